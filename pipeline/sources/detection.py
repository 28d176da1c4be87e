"""Detect the kind of a source, and list its images."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from pipeline.config import Settings, source_kinds
from pipeline.errors import SourceError
from pipeline.sources import Found, Listed
from pipeline.storage import Place
from pipeline.system.os_errors import retried


class Source(Protocol):
    """The interface of a file of pipeline/sources."""

    __name__: str
    __doc__: str | None

    def recognises(self, place: Place) -> bool:
        """Whether `place` has the layout of this kind. Looks only at a few names."""

    def list_images(self, place: Place, settings: Settings) -> Iterator[Found]:
        """Yield the content of `place`, in the order of the bytes of the keys."""


def images_of(settings: Settings) -> Iterator[Found]:
    """Yield the content of the source: Classes first if the kind knows them, then images in the order of their keys.

    Raises SourceError if no kind recognizes the source, if it cannot be read, or if a kind violates the order.
    """
    place = settings.source
    source = find_source(place, settings.source_kind)
    return _require_order(source.list_images(place, settings), source.__name__)


def find_source(place: Place, kind: str) -> Source:
    """Return the module of a kind of source. With "auto", the first that recognizes `place`; `folder` is the last.

    Raises SourceError if no kind recognizes `place`. The message says what each kind looks for.
    """
    kinds = [kind] if kind != "auto" else [*(other for other in source_kinds() if other != "folder"), "folder"]
    sources = [_source(name) for name in kinds]
    try:
        if isinstance(place, Path):
            # A folder that does not exist must be reported as such, and not as one that no kind recognizes.
            retried(place.stat, place)
        for source in sources:
            if retried(partial(source.recognises, place), place):
                return source
    except OSError as error:
        raise SourceError(f"source_uri {place} cannot be read: {error.strerror}") from error
    first_lines = [(source.__doc__ or "the module has no docstring").strip().partition("\n")[0] for source in sources]
    looked_for = "; ".join(f"{name}: {line.rstrip('.')}" for name, line in zip(kinds, first_lines, strict=True))
    raise SourceError(f"source_uri {place} is not what source_kind {kind!r} looks for ({looked_for})")


def root_of(place: Place) -> Place:
    """Return the folder that keys are relative to: `place`, or its folder if it is a list.

    A bucket may have an object with the same name as a folder. It is not a list.
    """
    return place.parent if place.is_file() and not place.is_dir() else place


def _source(kind: str) -> Source:
    try:
        return cast(Source, import_module(f"pipeline.sources.{kind}"))
    except Exception as error:  # The file of a user's own kind may raise anything.
        raise SourceError(f"pipeline/sources/{kind}.py cannot be imported: {error!r}") from error


def _require_order(items: Iterator[Found], kind: str) -> Iterator[Found]:
    """Yield the items, and raise SourceError if two keys are not in order. Another order could give another version."""
    last = b""
    for item in items:
        if isinstance(item, Listed):
            key = item.key.encode("utf-8", "surrogateescape")
            if key <= last:
                raise SourceError(
                    f"pipeline/sources/{kind}.py lists {item.key!r} after {last.decode('utf-8', 'surrogateescape')!r}: "
                    "its list_images must yield each key once, in the order of the keys as bytes"
                )
            last = key
        yield item
