r"""The kinds of sources, one file for each. The file has the name that `source_kind` uses.

A source of your own is a file in this folder with two functions, and nothing else:

    '''A folder with an index.txt: in each line a path, a tab and a label.'''

    from collections.abc import Iterator
    from pipeline.sources import Found, Listed, SourceOptions, measure
    from pipeline.storage import Place

    def recognizes(place: Place) -> bool:
        return (place / "index.txt").is_file()

    def list_images(place: Place, options: SourceOptions) -> Iterator[Found]:
        lines = (place / "index.txt").read_text().splitlines()
        for key, label in sorted(line.split("\t") for line in lines):
            yield Listed(key, (label,), "", *measure(place / key))

`list_images` yields the content of the source, with images in the order of the bytes of their keys. A key is the path
of an image relative to `place`, or relative to its folder if `place` is a file. A place is a `pathlib.Path` or a path
in a bucket, which have the same methods. `measure` returns the size of a file and what else is known without reading
it. It refuses what the administrator does not allow, as does `is_source_file` for other files of the source.
`recognizes` lets `source_kind: auto` find this kind. The kinds are asked in the order of their names, `folder` last.
The first line of the file's docstring says what the kind looks for. An error repeats it if a source does not fit.

Several tasks can list a huge source, each a range of its keys, if the file has two functions instead of `list_images`:

- `boundaries(place, options, most, min_images)` returns up to `most - 1` ascending keys that divide the images into
  ranges of about equal size. A range should have at least `min_images` images. No image is read for it.
- `list_range(place, options, keys)` yields the items whose keys are in a `KeyRange` of `key_range.py`. The lists of
  all ranges, one after another, must equal that of the range `EVERYTHING`, apart from `Classes`: each range yields
  them, if there are any.

If files must be read before the boundaries are known, several tasks do it with two more functions, `unread` and `read`:
see `SourceToRead` in `detection.py`, and `containers.py`.

An optional `layout(place, options)` returns a short text that must be the same for all ranges of a source.

For a kind that comes with Tenfold:

- `stanford_cars.py` is a small kind to begin with. `walk` and `why_no_image` in `folder.py` list a folder on a disk
  or in a bucket.
- For files that hold many images, add a format to `pipeline/kinds/images/containers` instead of a kind of source.
- Yield a `Skipped` for each file that is not an image of a class. To decide the ids of the labels, yield `Classes`
  first. The records of ImageNet have two more properties, which `record_format` in `pipeline/plan/version.py`
  decides.
- Add an example to `EXAMPLES` in `tests/sources/examples.py`, and a row to the table in docs/reference/sources.md.
  `python -m docs.generate` adds the value of `source_kind` to docs/reference/settings.md.
- A file in this folder that is not a kind must be in `OTHER_FILES_OF_SOURCES` in `pipeline/config/settings.py`.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.config.allowed import require_source
from pipeline.errors import SourceError
from pipeline.storage import ObjectStat, Place
from pipeline.system.os_errors import cause_of, retried

MISSING = -1
"""The size of an image that is listed but does not exist. It is rejected by its key."""
UNMEASURED = -2
"""The size of a local file that is measured when it is read. Until then, its generation is 0."""


@dataclass(frozen=True)
class SourceOptions:
    """The settings of a source, apart from its place. `Settings` explains them.

    Most kinds need none of them, because the layout of a folder says everything.
    """

    kind: str = "auto"
    """The setting `source_kind`: the name of a file of this folder, or auto."""
    path_column: str = ""
    label_column: str = ""
    split_column: str = ""
    group_column: str = ""
    list_encoding: str = "utf-8"
    user_project: str = ""
    max_file_bytes: int = 256_000_000
    """Larger images are not read. They are listed, and rejected later."""
    copies: str = ""
    """Folder for what `containers` and `listing` keep: the rows of a source in the order of their keys, and copies of
    images that a container does not hold as they are."""


class Box(NamedTuple):
    """A bounding box in pixels of the upright image, from its upper left corner. `label` may be empty."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float
    label: str = ""


class Extent(NamedTuple):
    """Where the bytes of an image are, if they are a part of a file: they follow each other there from `offset` on.

    `file` is the key of a container, relative to the source. If `is_copy`, it is a file of the workspace instead.
    """

    file: str
    offset: int
    is_copy: bool


class Listed(NamedTuple):
    """An image of the source. `key` is its path relative to the source, with slashes. `split` and `group` may be empty.

    `generation` changes with the content: for a file, it is the time of its last change in nanoseconds. `size` is in
    bytes, or UNMEASURED. A bucket knows `crc32c` and `md5` of its objects; a file must be read for them. Images of one
    `group` stay on one side of the split. `extent` is None if the image is a file of its own. Otherwise, `generation`
    is that of the file with the bytes. `name` is its path in a container, if the key is another one.
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
    extent: Extent | None = None
    name: str = ""


class Skipped(NamedTuple):
    """A file that is not an image of a class, and the reason. It is counted, not rejected."""

    key: str
    reason: str


class Classes(NamedTuple):
    """Labels in the order of their ids, and texts for people for some of them. A source may yield this item first."""

    names: tuple[str, ...]
    texts: Mapping[str, str]


Found = Listed | Skipped | Classes


class Measured(NamedTuple):
    """What is known of an image without reading it: the fields of Listed with the same names."""

    size: int
    generation: int
    crc32c: int | None = None
    md5: str = ""


def measure_object(status: ObjectStat) -> Measured:
    """Return what a bucket knows of an object."""
    return Measured(status.st_size, status.generation, status.crc32c, status.md5)


def is_source_file(place: Place) -> bool:
    """Whether a file beside the images exists. Raises SourceError if it links to a place that is not allowed."""
    require_source(place)
    return place.is_file()


def measure(place: Place) -> Measured:
    """Return what is known of a file or object. Its size is MISSING if it does not exist or is not a regular file.

    Raises SourceError if the administrator or the file system does not allow reading it. Raises FileSystemError if the
    file system fails repeatedly, because that does not mean that the file does not exist.
    """
    try:
        require_source(place)
        status = retried(lambda: place.stat(), place)
    except ValueError:  # A list may contain a path with a zero byte.
        return Measured(MISSING, 0)
    except OSError as error:
        if cause_of(error) == "absent":
            return Measured(MISSING, 0)
        raise SourceError(
            f"{place} cannot be read ({error.strerror}): give the user that runs the task permission to read it"
        ) from error
    if isinstance(status, ObjectStat):
        return measure_object(status)
    if not stat.S_ISREG(status.st_mode):  # Opening a FIFO would wait forever for a writer.
        return Measured(MISSING, 0)
    # Not the time of modification: a copy that preserves it, or setting it, would hide that the content changed.
    return Measured(status.st_size, status.st_ctime_ns)
