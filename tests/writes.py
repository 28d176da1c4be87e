"""Whether files or objects were written again."""

from collections.abc import Iterable

from pipeline.storage import BucketPath, Place


def writes(paths: Iterable[Place]) -> dict[Place, object]:
    """What is another once a file or an object is written again.

    Two whole `os.stat` would differ once somebody reads the file, as that changes `st_atime`.
    """
    return {path: _last_write(path) for path in paths if path.is_file()}


def _last_write(path: Place) -> object:
    status = path.stat()
    return status if isinstance(path, BucketPath) else (status.st_ino, status.st_mtime_ns)
