"""Trees of /proc and /sys as files in a folder: what a machine like this one never shows can be shown."""

from collections.abc import Mapping
from pathlib import Path


def grow(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their path below the root, over what stood there; return the root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


class Clock:
    """A time that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
