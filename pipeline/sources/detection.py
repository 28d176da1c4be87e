"""Which kind of source is this, and what does it hold?"""

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
    """What a file of pipeline/sources offers."""

    __name__: str
    __doc__: str | None

    def recognises(self, place: Place) -> bool:
        """Whether `place` is laid out as this kind expects; looks at a few names only."""

    def list_images(self, place: Place, settings: Settings) -> Iterator[Found]:
        """What `place` holds, in the order of the bytes of the keys."""


def images_of(settings: Settings) -> Iterator[Found]:
    """What the source holds: Classes first where the kind knows them, then images in the order of their keys' bytes.

    Raises SourceError where no kind recognises the source, where it cannot be read, or where a kind breaks the order.
    """
    place = settings.source
    source = find_source(place, settings.source_kind)
    return _in_order(source.list_images(place, settings), source.__name__)


def find_source(place: Place, kind: str) -> Source:
    """The module of the kind `kind` of source; with "auto" the first that recognises `place`, and folder last.

    Raises SourceError where it is not recognized, saying what was looked for.
    """
    kinds = [kind] if kind != "auto" else [*(other for other in source_kinds() if other != "folder"), "folder"]
    sources = [_source(name) for name in kinds]
    try:
        if isinstance(place, Path):
            retried(place.stat, place)
        for source in sources:
            if retried(partial(source.recognises, place), place):
                return source
    except OSError as error:
        raise SourceError(f"source_uri {place} cannot be read: {error.strerror}") from error
    looked_for = "; ".join(f"{name}: {_first_line(source)}" for name, source in zip(kinds, sources, strict=True))
    raise SourceError(f"source_uri {place} is not what source_kind {kind!r} looks for ({looked_for})")


def root_of(place: Place) -> Place:
    """Return the folder that keys are relative to: `place`, or its folder if it is a list.

    A bucket may hold an object of the very name of a folder, which is no list.
    """
    return place.parent if place.is_file() and not place.is_dir() else place


def _source(kind: str) -> Source:
    try:
        return cast(Source, import_module(f"pipeline.sources.{kind}"))
    except Exception as error:  # a file of the user's own may raise anything
        raise SourceError(f"pipeline/sources/{kind}.py cannot be imported: {error!r}") from error


def _first_line(source: Source) -> str:
    return (source.__doc__ or "it says nothing about itself").strip().partition("\n")[0].rstrip(".")


def _in_order(found: Iterator[Found], kind: str) -> Iterator[Found]:
    """As `found`; a source of one's own that lists in another order would give another version on another day."""
    last = b""
    for item in found:
        if isinstance(item, Listed):
            key = item.key.encode("utf-8", "surrogateescape")
            if key <= last:
                raise SourceError(
                    f"{kind} lists {item.key!r} after {last.decode('utf-8', 'surrogateescape')!r}: list_images must "
                    "yield every key once, in the order of its bytes"
                )
            last = key
        yield item
