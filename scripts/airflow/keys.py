"""The generated log-in and secrets of the embedded Airflow. They never enter the repository."""

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

USER = "admin"


@dataclass(frozen=True)
class Keys:
    """The log-in and the secrets. They stay the same, because one of them encrypts connections in the database."""

    password: str
    fernet: str
    jwt: str
    session: str


def load_keys(path: Path) -> Keys:
    """Read the keys, or create them if there are none."""
    if not path.exists():
        write_private(path, json.dumps(asdict(new_keys())))
    return Keys(**json.loads(path.read_text()))


def write_private(path: Path, text: str) -> None:
    """Write a whole file that only its owner can read."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    # The mode is given at creation: a later chmod would leave the password readable for a moment.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    part.replace(path)


def new_keys() -> Keys:
    """Return a log-in and secrets that nobody has seen."""
    return Keys(
        password=secrets.token_urlsafe(12),
        fernet=base64.urlsafe_b64encode(os.urandom(32)).decode(),
        jwt=secrets.token_hex(64),
        session=secrets.token_hex(32),
    )
