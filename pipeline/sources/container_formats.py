"""Containers, which are files that hold many images, and their formats: pipeline/kinds/images/containers."""

import pkgutil
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast, runtime_checkable

from pipeline.sources import Box, Classes, Skipped, SourceOptions
from pipeline.sources.box_forms import BoxForms
from pipeline.storage import Place
from pipeline.system.wording import shortened

_PACKAGE = "pipeline.kinds.images.containers"
MAX_FIELDS = 20
"""An error message names about this many fields."""
_MAX_SHOWN = 60


class ContainedImage(NamedTuple):
    """An image in a container.

    `name` is its path within the container, and empty if it has none. `split` is a word that
    split_names.py knows. If an image of the source has another word, the splits of all images are left out, or the
    source is refused if `split_column` is set. `content` is None if the image is larger than
    `max_file_bytes` of the options. Then, `size` says how large it is. `offset` is where these bytes are in the file.
    It is None if the file does not hold them as they are, for example because it is compressed. Then, Tenfold stores a
    copy. Without `labels`, the folder of the name is the label.
    """

    name: str
    content: bytes | None
    offset: int | None = None
    labels: tuple[str, ...] = ()
    split: str = ""
    group: str = ""
    size: int = 0
    boxes: Sequence[Box] = ()


class Fields(NamedTuple):
    """The fields of records, or of files beside images, if a setting names one. They follow the images."""

    names: Sequence[str]
    """Some of the fields that there are."""
    absent: Mapping[str, str]
    """The settings that name a field which no image has, and this field."""
    holder: str
    """What has such fields, for an error: a record, or a file beside an image."""


class FieldNotes:
    """Notes which of the fields that settings name no image has.

    Args:
        named: The settings, and the field that each of them names; empty if it names none.
        holder: That of `Fields`.
    """

    def __init__(self, named: Mapping[str, str], holder: str) -> None:
        self._absent = {setting: name for setting, name in named.items() if name}
        self._holder = holder
        self.are_wanted = bool(self._absent)
        self._names: dict[str, None] = {}

    def add(self, names: Iterable[str], found: Collection[str]) -> None:
        """Note the fields of an image, and the settings whose field it has."""
        if len(self._names) < MAX_FIELDS:
            self._names |= dict.fromkeys(names)
        self._absent = {setting: name for setting, name in self._absent.items() if setting not in found}

    def fields(self) -> Fields:
        """Return what was found in all images."""
        return Fields(list(self._names)[:MAX_FIELDS], self._absent, self._holder)


class LabelForms(NamedTuple):
    """The forms of the labels of a container whose format may have texts or numbers. It follows the images.

    The keys say what has such labels: images or boxes. The values are the first of these labels, for an error.
    """

    texts: dict[str, str]
    numbers: dict[str, str]
    """Numbers that the container does not name."""


Item = ContainedImage | Skipped | Classes | BoxForms | Fields | LabelForms
"""What a format yields."""


class Bound(NamedTuple):
    """Where a piece of a container begins."""

    row: int = 0
    """The number of its first row, which is the name of an image without one. 0 if all images have a name."""
    offset: int = 0
    """Where the format finds this row, in bytes. 0 if it finds the row by its number."""


START = Bound()
"""The beginning of a container."""


class ContainerFile(NamedTuple):
    """A container that is being read, or a piece of it."""

    path: Path
    """A local file with its content."""
    place: Place
    """Where it comes from, maybe a bucket."""
    beside: Callable[[str], bytes | None]
    """Returns the content of a file in the same folder, by its name; None if there is none."""
    first: Bound = START
    """The first row that is read. It is the first one of the file unless the format has `bounds`."""
    end: Bound | None = None
    """The row after the last one. None is the end of the file."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the container is read."""
        return self.first == START and self.end is None


class Format(Protocol):
    """The interface of a module of `pipeline/kinds/images/containers`."""

    BESIDE: Sequence[str]
    NAMES: re.Pattern[str]
    __name__: str

    def holds_images(self, file: IO[bytes]) -> bool:
        """Whether an open file with such a name holds images. Reads as little as possible, because it may be remote.

        May raise what `images` raises, which also means that it does not.
        """

    def images(self, file: ContainerFile, options: SourceOptions) -> Iterator[Item]:
        """Yield the images of a container, one after another. Raises ValueError if it is damaged."""


@runtime_checkable
class DividingFormat(Format, Protocol):
    """A format whose files several tasks can read. It yields one item for each row, in the order of the rows."""

    def bounds(self, file: IO[bytes], options: SourceOptions, max_bytes: int) -> Sequence[Bound]:
        """Return ascending bounds that divide a local file into pieces of about `max_bytes`.

        Reads as little as possible, because one process does it. There are no bounds if the file can only be read from
        front to back. May raise what `images` raises.
        """


@runtime_checkable
class AmbiguousFormat(Format, Protocol):
    """A format whose files may hold a table instead. A name of another format shows that its file holds images."""

    def shows_images(self, file: IO[bytes]) -> bool:
        """Whether an open file surely holds images, as far as it says without a row that is decoded."""


@cache
def formats() -> list[Format]:
    """Return all formats, ordered by name."""
    package = find_spec(_PACKAGE)
    folders = package.submodule_search_locations if package else None
    names = sorted(module.name for module in pkgutil.iter_modules(folders))
    # Not imported by a statement: formats may use rooms that are above the sources.
    return [cast(Format, import_module(f"{_PACKAGE}.{name}")) for name in names]


def format_of(name: str) -> Format | None:
    """Return the format of a file by its name; None if it is no container."""
    return next((each for each in formats() if each.NAMES.fullmatch(name.lower())), None)


def name_of(form: Format) -> str:
    """Return the name of a format."""
    return form.__name__.rpartition(".")[2]


def in_one_spelling(name: str) -> str:
    """Return the path of an image: `./cats//1.jpg` and `cats/1.jpg` are one."""
    is_plain = not name or (name[0] not in "./" and name[-1] != "/" and "//" not in name and "/." not in name)
    return name if is_plain else posixpath.normpath(name).lstrip("/")


def require_no_vector(cell: Any) -> None:
    """Refuse 0 or 1 for each class with ValueError.

    Read as labels, all images of three classes would have the labels 0 and 1.
    """
    if isinstance(cell, list) and all(each in (0, 1) for each in cell) and len(cell) > len(set(cell)):
        raise ValueError(
            f"the label {shortened(str(cell), _MAX_SHOWN)} looks like a vector with 0 or 1 for each class: write a "
            'list of the labels instead, such as ["cat", "dog"], or name another column in label_column'
        )
