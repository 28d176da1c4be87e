"""Whether the administrator's notifiers can be made: `python -m scripts.airflow.notifiers FOLDERS NAME...`.

This takes a separate process, because a notifier imports Airflow, which then reads its home and settings.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from scripts.airflow.settings import DAGS, HOME, PLUGINS, ROOT

LIMIT_S = 60.0
"""Time limit for creating the notifiers. One that connects to a silent server would wait forever."""


def problem_of_notifiers(environ: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the first of these functions that cannot create a notifier, and why; empty if all can."""
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH", "")]))
    # A temporary home, so that the check neither reads nor changes that of the real Airflow.
    with tempfile.TemporaryDirectory() as home:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "scripts.airflow.notifiers", os.pathsep.join(_folders(environ)), *names],
                env={**os.environ, **environ, HOME: home, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return (
                f"{', '.join(names)} took longer than {LIMIT_S:.0f} s to create: a notifier must connect when it "
                "notifies, not when it is created"
            )
    lines = (done.stdout or done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"the check ended with code {done.returncode}"


def _folders(environ: Mapping[str, str]) -> list[str]:
    """Return the folders that Airflow can import from, beside those of Python."""
    home = Path(environ.get(HOME) or "~/airflow").expanduser()
    others = (environ.get(PLUGINS) or home / "plugins", environ.get(DAGS) or home / "dags")
    return [str(home / "config"), *map(str, others)]


def main(folders: str, *names: str) -> int:
    """Create each notifier. Prints the first one that cannot be created, and returns 1."""
    sys.path.extend(folders.split(os.pathsep))  # At the end, as Airflow does it.
    for name in names:
        module, _, function = name.rpartition(".")
        try:
            if not module:
                raise ValueError("the name of a notifier must be package.module.function")
            getattr(import_module(module), function)()
        except Exception as error:  # noqa: BLE001 - the administrator's own code may raise anything
            sys.stdout.write(f"{name} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
