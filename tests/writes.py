"""Detection of files and objects that were written again."""

from collections.abc import Iterable

from pipeline.storage import BucketPath, Place


def writes(paths: Iterable[Place]) -> dict[Place, object]:
    """Return a value per file or object that changes when the file or object is written again.

    The whole `os.stat` is not usable, because reading the file changes `st_atime`.
    """
    return {path: _last_write(path) for path in paths if path.is_file()}


def _last_write(path: Place) -> object:
    status = path.stat()
    return status if isinstance(path, BucketPath) else (status.st_ino, status.st_mtime_ns)
