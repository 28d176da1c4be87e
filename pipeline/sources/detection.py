"""Detect the kind of a source, and list its images."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from pipeline.config.settings import source_kinds
from pipeline.errors import SourceError
from pipeline.sources import Found, Listed, SourceOptions
from pipeline.sources.key_range import EVERYTHING, KeyRange, bytes_of, ranges_between, text_of_key
from pipeline.storage import Place
from pipeline.system.os_errors import retried

Result = TypeVar("Result")


class Source(Protocol):
    """The interface of a file of pipeline/sources. It also has the functions of `WholeSource` or `SourceInParts`."""

    __name__: str
    __doc__: str | None

    def recognizes(self, place: Place) -> bool:
        """Whether `place` has the layout of this kind. Looks only at a few names."""


@runtime_checkable
class WholeSource(Source, Protocol):
    """A kind of source that one task lists."""

    def list_images(self, place: Place, options: SourceOptions) -> Iterator[Found]:
        """Yield the content of `place`, in the order of the bytes of the keys."""


@runtime_checkable
class SourceInParts(Source, Protocol):
    """A kind of source that several tasks can list, each a range of its keys."""

    def boundaries(self, place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
        """Return up to `most - 1` ascending keys that divide the images into ranges of about equal size.

        A range should have at least `min_images` images. No image is read.
        """

    def list_range(self, place: Place, options: SourceOptions, keys: KeyRange) -> Iterator[Found]:
        """Yield the content of `place` whose keys are in a range, in the order of their bytes. Classes come first."""


@runtime_checkable
class SourceToRead(Source, Protocol):
    """A kind of source whose files must be read before it is divided. Several tasks can read a part each."""

    def unread(self, place: Place, options: SourceOptions, most: int) -> list[Any]:
        """Return the parts that are not read yet, as JSON. If no task reads them, `boundaries` does.

        If more parts are known only after these were read, each is an object with the key `divide`. Then, this function
        is called again.
        """

    def read(self, place: Place, options: SourceOptions, part: Any) -> int:
        """Read one part, and return how many files or pieces of files it has."""


@runtime_checkable
class SourceWithLayout(Protocol):
    """A kind of source that has more than one layout."""

    def layout(self, place: Place, options: SourceOptions) -> str:
        """Return a short text that changes if the source changes in a way that affects all of its images."""


def images_of(place: Place, options: SourceOptions, keys: KeyRange = EVERYTHING) -> Iterator[Found]:
    """Yield the content of a source: Classes first if the kind knows them, then images in the order of their keys.

    With `keys`, only this range is listed. The lists of all ranges, one after another, equal the list of everything,
    apart from Classes, which each range yields.

    Raises SourceError if no kind recognizes the source, if it cannot be read, if a kind violates the order, or if its
    functions are missing.
    """
    source = find_source(place, options.kind)
    if isinstance(source, SourceInParts):
        items = source.list_range(place, options, keys)
    elif not isinstance(source, WholeSource):
        raise SourceError(
            f"{source.__name__} lacks a function: add `list_images`, or both `boundaries` and `list_range`"
        )
    elif keys == EVERYTHING:
        items = source.list_images(place, options)
    else:
        raise SourceError(
            f"{source.__name__} lacks `boundaries` or `list_range`: list the source without ranges, or add both"
        )
    return _require_order(items, name_of(source), keys)


def key_ranges(place: Place, options: SourceOptions, most: int, min_images: int) -> list[KeyRange]:
    """Return at most `most` ranges that divide a source into parts of about equal size, in their order.

    Each has at least about `min_images` images. A source whose kind cannot list parts is one range.
    """
    source = find_source(place, options.kind)
    if most < 2 or not isinstance(source, SourceInParts):
        return [EVERYTHING]
    boundaries = _read(partial(source.boundaries, place, options, most, min_images), place)
    for one, other in pairwise(("", *boundaries)):
        if bytes_of(one) >= bytes_of(other):
            raise SourceError(
                f"{source.__name__} returns the boundary {other!r} after {one!r}: its function `boundaries` must "
                "return keys in ascending order, without an empty one"
            )
    return ranges_between(boundaries)


def unread_parts(place: Place, options: SourceOptions, most: int) -> list[Any]:
    """Return the parts of a source that must be read before `key_ranges`, as JSON. Several tasks can read them."""
    source = find_source(place, options.kind)
    return _read(partial(source.unread, place, options, most), place) if isinstance(source, SourceToRead) else []


def are_followed(parts: Sequence[Any]) -> bool:
    """Whether more parts may be known after some parts were read, which `unread_parts` returned."""
    return any(isinstance(part, dict) and "divide" in part for part in parts)


def read_part(place: Place, options: SourceOptions, part: Any) -> int:
    """Read a part that `unread_parts` returned, and return how many files or pieces of files it has."""
    source = find_source(place, options.kind)
    if not isinstance(source, SourceToRead):
        raise SourceError(f"source_uri {place} changed while it was being listed: run again")
    return source.read(place, options, part)


def layout_of(place: Place, options: SourceOptions) -> str:
    """Return a short text that is equal for all parts of a source, unless the source changed between them."""
    source = find_source(place, options.kind)
    layout = source.layout(place, options) if isinstance(source, SourceWithLayout) else ""
    return f"{name_of(source)} {layout}".rstrip()


def name_of(source: Source) -> str:
    """Return the name of a kind of source."""
    return source.__name__.rpartition(".")[2]


def find_source(place: Place, kind: str) -> Source:
    """Return the module of a kind of source. With "auto", the first that recognizes `place`; `folder` is the last.

    Raises SourceError if no kind recognizes `place`. The message says what each kind looks for.
    """
    kinds = [kind] if kind != "auto" else [*(other for other in source_kinds() if other != "folder"), "folder"]
    sources = [_source(name) for name in kinds]
    if isinstance(place, Path):
        # If the folder does not exist, the error says so. Without this line, it would say that no kind recognizes it.
        _read(place.stat, place)
    for source in sources:
        if _read(partial(source.recognizes, place), place):
            return source
    first_lines = [(source.__doc__ or "the module has no docstring").strip().partition("\n")[0] for source in sources]
    looked_for = "; ".join(f"{name}: {line.rstrip('.')}" for name, line in zip(kinds, first_lines, strict=True))
    raise SourceError(f"source_uri {place} is not what source_kind {kind!r} looks for ({looked_for})")


def root_of(place: Place) -> Place:
    """Return the folder that keys are relative to: `place`, or its folder if it is a list.

    A bucket may have an object with the same name as a folder. It is not a list.
    """
    return place.parent if _read(lambda: place.is_file() and not place.is_dir(), place) else place


def _read(work: Callable[[], Result], place: Place) -> Result:
    """Return the result of `work`, which reads a source. Raises SourceError if it cannot be read."""
    try:
        return retried(work, place)
    except OSError as error:
        raise SourceError(f"source_uri {error.filename or place} cannot be read: {error.strerror or error}") from error


def _source(kind: str) -> Source:
    try:
        return cast(Source, import_module(f"pipeline.sources.{kind}"))
    except Exception as error:  # The file of a user's own kind may raise anything.
        raise SourceError(f"pipeline/sources/{kind}.py cannot be imported: {error!r}") from error


def _require_order(items: Iterator[Found], kind: str, keys: KeyRange) -> Iterator[Found]:
    """Yield the items, and raise SourceError if two keys are not in order, or if a key is outside of the range.

    Another order could give another version. A key outside of the range would be listed twice.
    """
    last = b""
    first, end = map(bytes_of, keys)
    for item in items:
        if isinstance(item, Listed):
            key = bytes_of(item.key)
            if key <= last:
                raise SourceError(
                    f"pipeline/sources/{kind}.py lists {item.key!r} after {text_of_key(last)!r}: "
                    "it must yield each key once, in the order of the keys as bytes"
                )
            if key < first or (end and key >= end):
                raise SourceError(
                    f"pipeline/sources/{kind}.py lists {item.key!r}, which is not in the range from {keys.first!r} to "
                    f"{keys.end!r}: its list_range must yield only keys of the range"
                )
            last = key
        yield item
