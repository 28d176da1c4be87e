"""Containers, which are files that hold many images, and their formats: pipeline/kinds/images/containers."""

import json
import pkgutil
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from pipeline.sources import Classes, Skipped, SourceOptions
from pipeline.sources.cells import NAMES, labels_of
from pipeline.sources.folder import NOT_BY_NAME, begins_as_image, why_no_image
from pipeline.sources.suffixes import suffix_of
from pipeline.storage import Place

_PACKAGE = "pipeline.kinds.images.containers"
_BESIDE = (".cls", ".json", ".txt")
"""Suffixes of the files with the labels of an image, in WebDataset's form. The first one that names labels wins."""
_MAX_LABEL_BYTES = 1_000_000
"""A larger file beside an image does not hold its labels."""


class ContainedImage(NamedTuple):
    """An image in a container.

    `name` is its path within the container, and empty if it has none. `content` is None if the image is larger than
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


class ContainerFile(NamedTuple):
    """A container that is being read."""

    path: Path
    """A local file with its content."""
    place: Place
    """Where it comes from, maybe a bucket."""
    beside: Callable[[str], bytes | None]
    """Returns the content of a file in the same folder, by its name; None if there is none."""


class Format(Protocol):
    """The interface of a module of `pipeline/kinds/images/containers`."""

    BESIDE: Sequence[str]
    NAMES: re.Pattern[str]
    __name__: str

    def holds_images(self, file: IO[bytes]) -> bool:
        """Whether an open file with such a name holds images. Reads as little as possible, because it may be remote.

        May raise what `images` raises, which also means that it does not.
        """

    def images(self, file: ContainerFile, options: SourceOptions) -> Iterator[ContainedImage | Skipped | Classes]:
        """Yield the images of a container, one after another. Raises ValueError if it is damaged."""


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


class ArchivedFile(NamedTuple):
    """A file in an archive, such as a tar or zip file. `read` is called before the next file is asked for.

    If `reason` is not empty, the file cannot be read.
    """

    name: str
    size: int
    offset: int | None
    read: Callable[[], bytes]
    reason: str = ""


class _Member(NamedTuple):
    name: str
    content: bytes | None
    reason: str
    """Why it is no image; empty if it is one."""
    file: ArchivedFile

    @property
    def is_label(self) -> bool:
        """Whether the file may hold labels of the image that it follows or comes before."""
        return bool(self.reason) and self.content is not None


def images_of_archive(files: Iterable[ArchivedFile], options: SourceOptions) -> Iterator[ContainedImage | Skipped]:
    """Yield the images of an archive with their labels, if these are in files of the same name beside them.

    Such files must follow each other, as WebDataset demands it.
    """
    members = (_member(file, options) for file in files)
    # Only the files of one name are in memory.
    for _, of_name in groupby(members, key=lambda each: posixpath.splitext(each.name)[0]):
        together = list(of_name)
        beside = {suffix_of(each.name): each.content or b"" for each in together if each.is_label}
        labels = _labels_beside(beside, options.label_column)
        has_image = any(not each.reason for each in together)
        for each in together:
            if not each.reason:
                yield ContainedImage(each.name, each.content, each.file.offset, labels, size=each.file.size)
            elif not (each.is_label and has_image):
                yield Skipped(each.name, each.reason)


def _member(file: ArchivedFile, options: SourceOptions) -> _Member:
    # "./cats/1.jpg" and "cats/1.jpg" are one name.
    name = posixpath.normpath(file.name).lstrip("/")
    reason = file.reason or why_no_image(name)
    may_be_label = reason == NOT_BY_NAME and suffix_of(name) in _BESIDE
    limit = _MAX_LABEL_BYTES if may_be_label else -1 if reason else options.max_file_bytes
    content = file.read() if file.size <= limit else None
    if not reason and not suffix_of(name) and content is not None and not begins_as_image(content):
        return _Member(name, None, NOT_BY_NAME, file)
    return _Member(name, content, reason, file)


def _labels_beside(beside: dict[str, bytes], label_column: str) -> tuple[str, ...]:
    for suffix in _BESIDE:
        if suffix in beside and (labels := labels_of(_cell(beside[suffix], suffix, label_column))):
            return labels
    return ()


def _cell(content: bytes, suffix: str, label_column: str) -> Any:
    """Return the labels of a file as the cell of a list."""
    if suffix != ".json":
        return content.decode("utf-8")
    fields = json.loads(content)
    if not isinstance(fields, dict):
        return fields
    names = [label_column] if label_column else [*NAMES["label"], "cls"]
    return next((fields[name] for name in names if name in fields), None)
