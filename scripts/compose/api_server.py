"""Write the log-in into the file that Airflow's simple auth manager reads, then become the API server.

It opens that file for writing, so that no read-only mount can bring it.
"""

import json
import os
from pathlib import Path

from scripts.airflow.keys import USER, write_private
from scripts.airflow.remote import PASSWORD


def main() -> None:
    """Start the API server in place of this process."""
    passwords = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    # Taken out of the environment, which Airflow's processes inherit.
    write_private(passwords, json.dumps({USER: os.environ.pop(PASSWORD)}))
    os.execvp("airflow", ["airflow", "api-server"])  # noqa: S606 - a command of our own


if __name__ == "__main__":
    main()
