"""A place in a bucket, which is looked at and read as a `pathlib.Path` is.

So that what reads a data set or lists a source is written once. Writing goes through `pipeline.storage`: an object is
created or replaced under a precondition, never opened for writing. The client of Google Cloud Storage is loaded with
the first request.
"""

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pipeline.storage.gcs import Gcs

SCHEME = "gs://"


class ObjectStat(NamedTuple):
    """What a bucket says of an object; the first two are named as those of `os.stat_result`.

    `md5` is hexadecimal, and empty where the bucket has none (composed objects).
    """

    st_size: int
    st_mtime_ns: int
    generation: int
    crc32c: int
    md5: str


@dataclass(frozen=True, order=True)
class BucketPath:
    """`gs://bucket/key`; the key of the bucket itself is empty. `user_project` pays where the requester must."""

    bucket: str
    key: str = ""
    user_project: str = ""

    @classmethod
    def of(cls, uri: str, user_project: str = "") -> "BucketPath":
        """The place that a URI names. Raises ValueError where it names no bucket."""
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        if not uri.startswith(SCHEME) or not bucket:
            raise ValueError("must be gs://bucket/prefix")
        return cls(bucket, key.rstrip("/"), user_project)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> "BucketPath":
        # As pathlib has it: a list in a bucket may name images elsewhere.
        if name.startswith(SCHEME):
            return BucketPath.of(name, self.user_project)
        if name.startswith("../"):  # a bucket follows none: it would look for an object of that very name
            return self.parent / name.removeprefix("../")
        name = name.rstrip("/")
        if not name:
            return self
        return self._at(f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        stem, dot, ending = self.name.rpartition(".")
        return dot + ending if stem else ""

    @property
    def stem(self) -> str:
        return self.name.removesuffix(self.suffix) if self.suffix else self.name

    @property
    def parent(self) -> "BucketPath":
        return self._at(self.key.rpartition("/")[0])

    def with_name(self, name: str) -> "BucketPath":
        return self.parent / name

    def with_suffix(self, suffix: str) -> "BucketPath":
        return self.with_name(self.stem + suffix)

    def is_relative_to(self, other: object) -> bool:
        """Whether this place is `other` or lies below it."""
        if not isinstance(other, BucketPath) or self.bucket != other.bucket:
            return False
        return not other.key or self.key == other.key or self.key.startswith(other.key + "/")

    def stat(self, generation: int | None = None) -> ObjectStat:
        """Size, checksums and generation of the object, the newest or of a `generation`. Raises FileNotFoundError."""
        return self._gcs.stat(self, generation)

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object of this very name."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def require_bucket(self) -> None:
        """Ask for the bucket once, within seconds. Raises AccessError or StorageError with one sentence."""
        self._gcs.require_bucket(self)

    def require_writable(self) -> None:
        """Write below this place once, and remove it. Raises AccessError or StorageError with one sentence."""
        self._gcs.require_writable(self)

    def is_dir(self) -> bool:
        """Whether there are objects below this place: a bucket has no folders of its own."""
        return next(self._gcs.objects(self, most=1), None) is not None

    def iterdir(self) -> Iterator["BucketPath"]:
        """What lies in this place, as in a folder."""
        return self._gcs.children(self)

    def glob(self, pattern: str) -> Iterator["BucketPath"]:
        """Places below this one whose names match; `pattern` has a part for each level, and no `**`."""
        first, _, rest = pattern.partition("/")
        if not re.search(r"[*?\[]", first):
            found: Iterator[BucketPath] = iter([self / first])
        else:
            found = (child for child in self.iterdir() if fnmatch.fnmatchcase(child.name, first))
        for child in found:
            if rest:
                yield from child.glob(rest)
            elif child.exists():
                yield child

    def read_bytes(self, generation: int | None = None) -> bytes:
        """The whole object, checked; the newest or a `generation`. Raises FileNotFoundError."""
        return self._gcs.read(self, generation)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """A checked copy of the object, as an open temporary file without a name: it is gone when it is closed."""
        if mode != "rb":
            raise ValueError(f"{self} is opened for reading bytes only, got mode {mode!r}")
        return self._gcs.open(self)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        self._gcs.delete(self, missing_ok)

    @property
    def _gcs(self) -> "Gcs":
        from pipeline.storage.gcs import client  # here: nothing of Google's is loaded for local paths

        return client()

    def _at(self, key: str) -> "BucketPath":
        return BucketPath(self.bucket, key, self.user_project)
