"""Files that hold many images: zip, tar, Parquet or TFRecord.

A source is such a file, or a folder that has more such files than images in class folders.

The formats are the modules of `pipeline/kinds/images/containers`. The key of an image is its name within the container,
if no other image of the source has this name. Otherwise, it is the key of the container and the number of the row or
file in it. So the same images have the same keys as in a folder.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline import storage
from pipeline.config.allowed import may_read
from pipeline.errors import BadInput, SourceError
from pipeline.sources import Found, Listed, Skipped, SourceOptions, measure
from pipeline.sources.compression import UNPACK_ERRORS
from pipeline.sources.container_formats import format_of, name_of
from pipeline.sources.folder import HIDDEN, NOT_BY_NAME, require_no_log, walk, why_no_image
from pipeline.sources.key_range import EVERYTHING, KeyRange, range_bytes
from pipeline.sources.suffixes import suffix_of
from pipeline.storage import Place
from pipeline.system.arrow import little_memory
from pipeline.system.os_errors import cause_of

if TYPE_CHECKING:
    from pipeline.sources.container_index import Index
    from pipeline.sources.container_rows import Container

MAX_NAMES = 1000
"""At most this many names of a folder decide whether it holds containers."""
MAX_LEVELS = 4
"""They are searched this many folders deep."""
MAX_PROBED = 3
"""At most this many containers are opened to see whether they hold images."""
NO_CONTAINER = "not a container by its name"


class FirstFormat(NamedTuple):
    """The format of the first container of a source; an empty name if it has none."""

    name: str
    holds_images: bool


def recognizes(place: Place) -> bool:
    """Whether `place` is a container with images, or a folder that has more containers than images."""
    return first_format(place).holds_images


def first_format(place: Place) -> FirstFormat:
    """Return the format of a container, or of the first one of a folder that has more containers than images."""
    if format_of(place.name) and place.is_file():
        return _format_of_file(place)
    nothing = FirstFormat("", holds_images=False)
    if isinstance(place, Path) and not place.is_dir():
        return nothing
    names = [name for name in islice(_names_below(place), MAX_NAMES) if why_no_image(name) != HIDDEN]
    containers = [name for name in names if format_of(name.rpartition("/")[2])]
    # An image beside the folders is of no class. Data sets of the Hub have a few more images, for their pages.
    images = [name for name in names if "/" in name and suffix_of(name) and not why_no_image(name)]
    if len(containers) <= len(images):
        return nothing
    # A small dataset has empty shards.
    for name in sorted(containers)[:MAX_PROBED]:
        found = _format_of_file(place / name)
        if found.holds_images:
            break
    return found


def _format_of_file(place: Place) -> FirstFormat:
    form = format_of(place.name)
    assert form is not None
    holds_images = False
    # A dangling link does not decide about the other containers, and opening a FIFO would wait forever for a writer.
    if may_read(place) and (not isinstance(place, Path) or place.is_file()):
        try:
            with suppress(BadInput, ValueError, *UNPACK_ERRORS), storage.open_ranges(place) as file:
                holds_images = form.holds_images(file)
        except OSError as error:
            if cause_of(error) not in ("absent", "content"):  # Arrow raises an error of the content for damage.
                raise
    return FirstFormat(name_of(form), holds_images)


def list_range(place: Place, options: SourceOptions, keys: KeyRange) -> Iterator[Found]:
    """Yield the images whose keys are in a range. A container is read only if it was not indexed before."""
    with _opened(place, options, is_range=keys != EVERYTHING) as index:
        yield from index.items(keys)


def boundaries(place: Place, options: SourceOptions, most: int, min_images: int) -> Sequence[str]:
    """Return keys that divide the images into ranges of about equal size."""
    with _opened(place, options) as index:
        return index.boundaries(most, min_images)


def layout(place: Place, options: SourceOptions) -> str:
    """Return the number of containers, and their size and newest generation."""
    containers, _ = _containers(place)
    size, generation = sum(each.size for each in containers), max(each.generation for each in containers)
    return f"{len(containers)} files of {size} bytes, generation {generation}"


def unread(place: Place, options: SourceOptions, most: int) -> list[Any]:
    """Return what must be read before `boundaries`, as JSON, in at most about `most` parts of many megabytes.

    Several tasks can call `read` for one part each. If none does, `boundaries` reads all of it. If there are many large
    containers, the first parts are those whose pieces must be found: see `SourceToRead`.
    """
    from pipeline.sources.container_index import undivided_groups, unread_pieces

    containers, others = _containers(place)
    if len(groups := undivided_groups(containers, others, options, most)) > 1:
        # The machine of the task may have another size of pieces in its environment.
        return [{"divide": [each.key for each in group], "piece_bytes": range_bytes()} for group in groups]
    pieces = unread_pieces(containers, others, options, most)
    return [{"read": [(piece.container.key, piece.first, piece.end) for piece in group]} for group in pieces]


def read(place: Place, options: SourceOptions, part: Any) -> int:
    """Read a part that `unread` returned, and return the number of its pieces. Raises SourceError if it is damaged."""
    from pipeline.sources.container_rows import Container, Piece, described, files_of, pieces_of

    is_file = place.is_file()

    def container(key: str) -> Container:
        file = place if is_file else place / key
        form = format_of(file.name)
        if form is None:
            raise SourceError(f"{file} is {NO_CONTAINER}: run again")
        status = measure(file)  # Refuses what the administrator does not allow.
        return Container(key, file, status.size, status.generation, form)

    if "divide" in part:
        return len(list(pieces_of([container(key) for key in part["divide"]], options, part["piece_bytes"])))
    pieces = [Piece.of(container(key), first, end) for key, first, end in part["read"]]
    with little_memory():
        for piece, files in zip(pieces, files_of(pieces, options), strict=True):
            described(piece, files, options)
    return len(pieces)


def _opened(place: Place, options: SourceOptions, is_range: bool = False) -> "AbstractContextManager[Index]":
    # Other kinds of sources do not need Arrow.
    from pipeline.sources.container_index import open_index

    containers, others = _containers(place)
    return open_index(containers, others, options, is_range)


def _containers(place: Place) -> "tuple[list[Container], list[Skipped]]":
    """Return the containers of a source, ordered by their keys, and the other files.

    Raises:
        SourceError: There is none.
    """
    from pipeline.sources.container_rows import Container

    is_file = place.is_file()
    containers: list[Container] = []
    others: list[Skipped] = []
    for item in [Listed(place.name, (), "", *measure(place))] if is_file else walk(place):
        key, file = item.key, place if is_file else place / item.key
        require_no_log(place, key)
        form = format_of(file.name) if why_no_image(key) != HIDDEN else None
        if form and isinstance(item, Skipped) and item.reason == NOT_BY_NAME:  # The name has no suffix.
            item = Listed(key, (), "", *measure(file))
        if isinstance(item, Skipped):
            others.append(item)
        elif form is None:
            others.append(Skipped(key, why_no_image(key) or NO_CONTAINER))
        else:
            containers.append(Container(key, file, item.size, item.generation, form))
    if not containers:
        raise SourceError(f"source_uri {place} has no file whose name is that of a container")
    return containers, others


def _names_below(folder: Place, prefix: str = "", levels: int = MAX_LEVELS) -> Iterator[str]:
    """Yield the paths of some files in a folder and in folders in it. Errors are ignored: `walk` reports them."""
    if not isinstance(folder, Path):
        yield from (each.key for each in storage.objects(folder))
        return
    some: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        some += islice(entries, MAX_NAMES)
    folders = []
    for entry in some:
        with suppress(OSError):
            if entry.is_dir():
                folders.append(entry.name)
            else:
                yield prefix + entry.name
    for name in folders if levels > 1 else ():
        if may_read(folder / name):
            yield from _names_below(folder / name, f"{prefix}{name}/", levels - 1)
