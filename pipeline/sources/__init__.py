"""One file a kind of source, named as `source_kind` names it.

A source of your own is a file here with two functions, and nothing else:

    '''A folder with an index.txt: a path and a label a line.'''

    from collections.abc import Iterator
    from pipeline.config import Settings
    from pipeline.sources import Found, Listed, measure
    from pipeline.storage import Place

    def recognises(place: Place) -> bool:
        return (place / "index.txt").is_file()

    def list_images(place: Place, settings: Settings) -> Iterator[Found]:
        for line in sorted((place / "index.txt").read_text().splitlines()):
            key, label = line.rsplit(maxsplit=1)
            yield Listed(key, (label,), "", *measure(place / key))

`list_images` yields what the source holds, images in the order of the bytes of their keys; a key is the path of the
image below `place`, or below its folder where `place` is a file. A place is a `pathlib.Path` or lies in a bucket, and
is looked at and read alike; `measure` asks either for its size and what else is known without reading, and refuses what
the administrator does not allow (so does `is_source_file` for other files of the source). `recognises`
lets `source_kind: auto` find it. The first line of the file's docstring says what it looks for: an error repeats it
where a source does not fit.
"""

import os
import stat
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pipeline.allowed import require_source
from pipeline.errors import SourceError
from pipeline.storage import ObjectStat, Place
from pipeline.system.os_errors import cause_of, retried

MISSING = -1
"""The size of an image that is listed and not there; it is rejected by name."""


class Box(NamedTuple):
    """A bounding box in pixels of the upright image, from the upper left corner; `label` may be empty."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float
    label: str = ""


class Listed(NamedTuple):
    """An image that the source holds: `key` is its path with slashes; `split` and `group` may be empty.

    `generation` tells one content of the file from the next: for a file the time of its last change in nanoseconds.
    `crc32c` and `md5` are what a bucket knows of its objects; a file must be read for them. Images of one `group` stay
    on one side of the split.
    """

    key: str
    labels: tuple[str, ...]
    split: str
    size: int
    generation: int
    crc32c: int | None = None
    md5: str = ""
    group: str = ""
    boxes: tuple[Box, ...] = ()


class Skipped(NamedTuple):
    """Something that is no image of a class, and why; it is counted, not rejected."""

    key: str
    reason: str


class Classes(NamedTuple):
    """What a source may say first: its labels in the order of their ids, and the words for people of some of them."""

    names: tuple[str, ...]
    texts: Mapping[str, str]


Found = Listed | Skipped | Classes


class Measured(NamedTuple):
    """What is known of an image without reading it, as the fields of Listed of these names."""

    size: int
    generation: int
    crc32c: int | None = None
    md5: str = ""


def measured(status: ObjectStat) -> Measured:
    """What a bucket says of an object."""
    return Measured(status.st_size, status.generation, status.crc32c, status.md5)


def is_source_file(place: Place) -> bool:
    """Whether a file beside the images is there. Raises SourceError where it is a link to what is not allowed."""
    require_source(place)
    return place.is_file()


def _status(place: Place) -> os.stat_result | ObjectStat:
    return place.stat()


def measure(place: Place) -> Measured:
    """What is known of a file or object; its size is MISSING where there is none, or no regular one.

    Raises SourceError if the administrator or the file system does not allow reading it. Raises FileSystemError if the
    file system fails repeatedly, because that does not mean that the file does not exist.
    """
    try:
        require_source(place)
        status = retried(partial(_status, place), place)
    except ValueError:  # a list may hold a path with a zero byte
        return Measured(MISSING, 0)
    except OSError as error:
        if cause_of(error) == "absent":
            return Measured(MISSING, 0)
        raise SourceError(
            f"{place} cannot be read ({error.strerror}): give the user that runs the task permission to read it"
        ) from error
    if isinstance(status, ObjectStat):
        return measured(status)
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for ever for a writer
        return Measured(MISSING, 0)
    # Not the time of modification: copying with times kept, or setting them, would hide another content.
    return Measured(status.st_size, status.st_ctime_ns)
