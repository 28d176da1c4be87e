"""The files that listings keep for later ones: rows of lists, indexes of containers, and copies of images.

Each listing of images notes which files it uses, before it relies on them. Files that were not used for a month are
removed. A run that lasts longer must list its source again. In a bucket, all files stay.

A damaged file counts as missing: it is not trusted, and does not stop a listing.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c

from pipeline import storage
from pipeline.sources import SourceOptions
from pipeline.storage import BucketPath, Place, place_of

KEPT_S = 31 * 86_400
"""For this many seconds, a person may clear tasks of a run that listed a source. It is longer than the usual schedules,
so that each run finds what the last one kept."""
_log = logging.getLogger(__name__)


def hash_of(content: Any) -> str:
    """Return a hash of a JSON value, for the name of a file."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def kept_folder(options: SourceOptions) -> Place:
    """Return the folder of the files that listings keep. Without one, they would be written to the current folder."""
    if not options.copies:
        raise ValueError("SourceOptions.copies is empty: give a folder for the files that listings keep")
    return place_of(options.copies)


def write_kept(place: Place, content: Any) -> None:
    """Write a JSON value that `read_kept` reads. The files that it describes are written before it."""
    storage.write_json(place, {"crc32c": _crc32c_of(content), "content": content}, synced=True)


def read_kept(place: Place) -> Any:
    """Return the JSON value that `write_kept` wrote; None if the file is missing, or damaged, which the log says."""
    try:
        kept = storage.read_json(place)
        is_intact = kept["crc32c"] == _crc32c_of(kept["content"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        is_intact = False
    if not is_intact:
        _warn_of_damage(place)
        return None
    return kept["content"]


def has_checksum(place: Place, crc32c: int) -> bool:
    """Whether a file has the content that was written, by its checksum. If it has not, the log says so."""
    # A bucket verifies its objects.
    if isinstance(place, BucketPath) or storage.crc32c_of(place) == crc32c:
        return True
    _warn_of_damage(place)
    return False


def _warn_of_damage(place: Place) -> None:
    _log.warning("%s is damaged: it is made again", place)


def _crc32c_of(content: Any) -> int:
    crc: int = google_crc32c.value(json.dumps(content).encode())
    return crc


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
