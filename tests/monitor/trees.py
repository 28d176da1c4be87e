"""Generated files of /proc and /sys in a folder, for machines that the tests do not have."""

from collections.abc import Mapping
from pathlib import Path


def grow(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their path relative to the root, and replace existing ones. Return the root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


class Clock:
    """A clock that the tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
