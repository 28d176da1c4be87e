"""The file .env of Compose, with a log-in and secrets of its own: `python3 -m scripts.compose.env`.

Runs on the host, which need not have an environment, so it uses the standard library only. A file that is there stays
as it is. Refuses a port that another program uses, because the build before the start takes minutes. Prints the address
and the log-in.
"""

import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from scripts.airflow.keys import USER, new_keys, write_private
from scripts.ports import HOST, is_taken, port_of

ROOT = Path(__file__).resolve().parents[2]
_TEMPLATE = """\
# Created at the first start. Keep this file: the database uses these secrets. Never commit it.

# cpu trains on the CPU, gpu on NVIDIA GPUs; ,gcs adds a bucket to try out.
COMPOSE_PROFILES=cpu
# Folder of your images on this machine, readable by other users. In the containers, it is /data.
DATA_FOLDER=./data
# Port of the UI, on 127.0.0.1 only.
TENFOLD_PORT=8080
# Number of workers that make shards, and of tasks that each runs at once.
TENFOLD_WORKERS=2
TENFOLD_WORKER_TASKS=2
# Base images. Each can be pinned by digest, such as postgres:17@sha256:...
# PYTHON_IMAGE=python:3.11-slim-bookworm
# POSTGRES_IMAGE=postgres:17
# REDIS_IMAGE=redis:7
# Number of trainings that run at once. On a machine with several GPUs, set gpus_per_server, too.
TENFOLD_TRAININGS_AT_ONCE=1
# What a form may reach: prefixes (also gs://bucket/prefix) and packages of models, separated by commas.
# Empty allows nothing, * allows everything.
TENFOLD_ALLOWED_SOURCES=/data,/workspace/samples
TENFOLD_ALLOWED_WORKSPACES=/workspace
TENFOLD_ALLOWED_PUBLISH=/workspace
TENFOLD_ALLOWED_MODELS=

TENFOLD_AIRFLOW_PASSWORD={password}
POSTGRES_PASSWORD={postgres}
REDIS_PASSWORD={redis}
AIRFLOW_FERNET_KEY={fernet}
AIRFLOW_JWT_SECRET={jwt}
AIRFLOW_SESSION_KEY={session}
"""


def main() -> int:
    """Make the file if it is missing, and print the address and the log-in. Returns 2 if a setting is wrong, else 0."""
    file = ROOT / ".env"
    if not file.exists():
        write_private(file, new_settings())
        (ROOT / "data").mkdir(exist_ok=True)  # Otherwise, Docker creates it, and root owns it.
    settings = read(file)
    text = os.environ.get("TENFOLD_PORT") or settings.get("TENFOLD_PORT") or "8080"  # In the order of Compose.
    try:
        port = port_of(text)
    except ValueError as error:
        print(f"docker-up: {error}: change it in {file}", file=sys.stderr)
        return 2
    if is_taken(port) and not _is_ours(port):
        print(
            f"docker-up: another program on {HOST} uses TENFOLD_PORT={port}: end that program, or set another "
            f"TENFOLD_PORT in {file}",
            file=sys.stderr,
        )
        return 2
    print(f"Airflow: http://{HOST}:{port}   user: {USER}   password: {settings['TENFOLD_AIRFLOW_PASSWORD']}")
    return 0


def _is_ours(port: int) -> bool:
    """Whether containers of an earlier start use a port. A second start is no mistake."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    command = [docker, "compose", "port", "api-server", "8080"]
    published = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return published.strip().endswith(f":{port}")


def new_settings() -> str:
    """Return the text of a new file, with secrets that nobody has seen."""
    return _TEMPLATE.format(
        **asdict(new_keys()),
        # They become part of an address, where base64 would need quoting.
        postgres=secrets.token_hex(32),
        redis=secrets.token_hex(32),
    )


def read(file: Path) -> dict[str, str]:
    """Return the settings of a file, by name."""
    lines = (line.partition("=") for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


if __name__ == "__main__":
    sys.exit(main())
