"""A place in a bucket, with the methods of `pathlib.Path` that examine a file, read it or remove it.

Code that reads a dataset or lists a source is therefore the same for disks and buckets. `pipeline.storage` has the
functions that write: an object is created or replaced under a precondition, and never opened for writing.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

from pipeline.system.os_errors import unless_missing

if TYPE_CHECKING:
    from pipeline.storage.gcs import Gcs

SCHEME = "gs://"


def bucket_client() -> "Gcs":
    """Return the one client of this process. Any number of threads may use it."""
    # An import at the top would load Google's client for local paths, too.
    from pipeline.storage.gcs import client

    return client()


class ListedNames(NamedTuple):
    """The first names and folders of a listing, relative to the listed place. A folder has a slash at its end."""

    names: Sequence[str]
    folders: Sequence[str]
    is_last: bool


class FirstPage(NamedTuple):
    """The first page of a listing. Names are relative to the listed place, and a folder has a slash at its end."""

    sizes: Mapping[str, int]
    """The size of each object in bytes, by its name."""
    folders: Sequence[str]
    is_all: bool
    """Whether there are no more pages."""


class ObjectStat(NamedTuple):
    """The metadata of an object. The first two fields have the names of `os.stat_result`: bytes, and Unix nanoseconds.

    `md5` is hexadecimal, and empty if the bucket has none (composed objects).
    """

    st_size: int
    st_mtime_ns: int
    generation: int
    crc32c: int
    md5: str


@dataclass(frozen=True, order=True)
class BucketPath:
    """`gs://bucket/key`. The key of the bucket itself is empty. `user_project` pays if the requester must."""

    bucket: str
    key: str = ""
    user_project: str = ""

    @classmethod
    def of(cls, uri: str, user_project: str = "") -> "BucketPath":
        """Return the place that a URI names. Raises ValueError if it names no bucket."""
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        if not uri.startswith(SCHEME) or not bucket:
            raise ValueError("must be gs://bucket/prefix")
        return cls(bucket, key.rstrip("/"), user_project)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> "BucketPath":
        # As in pathlib, an absolute name replaces the path: a list in a bucket may name images elsewhere.
        if name.startswith(SCHEME):
            return BucketPath.of(name, self.user_project)
        # A bucket does not resolve "..": it would look for an object with exactly this name.
        if name.startswith("../"):
            return self.parent / name.removeprefix("../")
        name = name.rstrip("/")
        if not name:
            return self
        return self._at(f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name with its dot; empty if it has none."""
        stem, dot, ending = self.name.rpartition(".")
        return dot + ending if stem else ""

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.name.removesuffix(self.suffix) if self.suffix else self.name

    @property
    def parent(self) -> "BucketPath":
        """The place that holds this one; the bucket itself is its own parent."""
        return self._at(self.key.rpartition("/")[0])

    def with_name(self, name: str) -> "BucketPath":
        """Return the place of another name in the same parent."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> "BucketPath":
        """Return the place whose name has another suffix."""
        return self.with_name(self.stem + suffix)

    def is_relative_to(self, other: object) -> bool:
        """Whether this place is `other` or lies below it."""
        if not isinstance(other, BucketPath) or self.bucket != other.bucket:
            return False
        # The slash matters: `data2` is not below `data`.
        return not other.key or self.key == other.key or self.key.startswith(other.key + "/")

    def stat(self, generation: int | None = None) -> ObjectStat:
        """Return size, checksums and generation of an object: the newest, or `generation`. Raises FileNotFoundError."""
        return bucket_client().stat(self, generation)

    def exists(self) -> bool:
        """Return whether there is an object of this name, or one below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object of this very name."""
        return unless_missing(self.stat) is not None

    def require_bucket(self) -> None:
        """Ask for the bucket once, within seconds. Raises AccessError or StorageError with one sentence."""
        bucket_client().require_bucket(self)

    def require_writable(self) -> None:
        """Write below this place once, and remove it. Raises AccessError or StorageError with one sentence."""
        bucket_client().require_writable(self)

    def is_dir(self) -> bool:
        """Whether there are objects below this place. A bucket has no folders of its own."""
        return next(bucket_client().objects(self, limit=1), None) is not None

    def iterdir(self) -> Iterator["BucketPath"]:
        """Yield the objects and folders in this place. A name that is both is yielded twice."""
        return bucket_client().children(self)

    def glob(self, pattern: str) -> Iterator["BucketPath"]:
        """Yield the places below this one whose names match. `pattern` has one part for each level, and no `**`."""
        first, _, rest = pattern.partition("/")
        if not re.search(r"[*?\[]", first):
            # A part without a wildcard needs no listing of this level, which may have millions of objects.
            children: Iterator[BucketPath] = iter([self / first])
        else:
            children = (child for child in self.iterdir() if fnmatch.fnmatchcase(child.name, first))
        for child in children:
            if rest:
                yield from child.glob(rest)
            elif child.exists():
                yield child

    def read_bytes(self, generation: int | None = None) -> bytes:
        """Return the whole object, checked; the newest or a `generation`. Raises FileNotFoundError."""
        return bucket_client().read(self, generation)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the content of the object as text. Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding, errors)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Return a checked copy of the object, as an open temporary file that vanishes when it is closed."""
        if mode != "rb":
            raise ValueError(f"{self} is opened for reading bytes only, got mode {mode!r}")
        return bucket_client().open(self)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        bucket_client().delete(self, missing_ok)

    def _at(self, key: str) -> "BucketPath":
        return BucketPath(self.bucket, key, self.user_project)
