"""The files that listings keep for later ones: rows of lists, indexes of containers, and copies of images.

Each listing notes which files it uses. Files that were not used for a week are removed, because no run needs them that
may still continue. In a bucket, all files stay.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.storage import Place

KEPT_S = 7 * 86_400
"""For this many seconds, a person may clear tasks of a run that listed a source."""


def note_use(places: Iterable[Place]) -> None:
    """Note that a run uses some files now. They need not exist."""
    for place in places:
        if isinstance(place, Path):
            with suppress(FileNotFoundError):
                os.utime(place)


def remove_unused(folder: Place, unused_s: float = KEPT_S, names: Iterable[str] | None = None) -> None:
    """Remove the files of a folder that no run used for some seconds; with `names`, only those of these names."""
    if not isinstance(folder, Path) or not folder.is_dir():
        return
    oldest = time.time() - unused_s
    for path in folder.iterdir() if names is None else [folder / name for name in names]:
        with suppress(FileNotFoundError):  # Another run may remove it, too.
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
