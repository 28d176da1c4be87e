"""The files that listings keep for later ones: rows of lists, indexes of containers, and copies of images.

Each listing of images notes which files it uses, before it relies on them. Files that were not used for a month are
removed. A run that lasts longer must list its source again. In a bucket, all files stay.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.sources import SourceOptions
from pipeline.storage import Place, place_of

KEPT_S = 31 * 86_400
"""For this many seconds, a person may clear tasks of a run that listed a source. It is longer than the usual schedules,
so that each run finds what the last one kept."""


def hash_of(content: Any) -> str:
    """Return a hash of a JSON value, for the name of a file."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def kept_folder(options: SourceOptions) -> Place:
    """Return the folder of the files that listings keep. Without one, they would be written to the current folder."""
    if not options.copies:
        raise ValueError("SourceOptions.copies is empty: give a folder for the files that listings keep")
    return place_of(options.copies)


def note_use(places: Iterable[Place]) -> None:
    """Note that a run uses some files now. They need not exist."""
    for place in places:
        if isinstance(place, Path):
            with suppress(OSError):  # Another user may own the file. Then, it may be removed and made again.
                os.utime(place)


def remove_unused(folder: Place, unused_s: float = KEPT_S, names: Iterable[str] | None = None) -> None:
    """Remove the files of a folder that no run used for some seconds; with `names`, only those of these names."""
    if not isinstance(folder, Path) or not folder.is_dir():
        return
    oldest = time.time() - unused_s
    for path in folder.iterdir() if names is None else [folder / name for name in names]:
        with suppress(OSError):  # Another run may remove it, too, or another user may own it.
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
