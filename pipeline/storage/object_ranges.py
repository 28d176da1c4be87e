"""Divide the objects of a bucket into ranges of about equal size, without listing all of them.

A bucket does not state how many objects a range of names has. It is estimated: a page has the first thousand names of a
range. If they cover a tenth of the space from the first name to the end of the range, the range has about ten thousand.
For this space, a name is a number whose digits are its characters. The largest range is then divided in the middle of
its space, again and again.
"""

import os.path
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from heapq import nlargest
from itertools import accumulate, chain, pairwise

from pipeline.storage.bucket_path import BucketPath, ListedNames, bucket_client
from pipeline.system.parallel import ordered_map

PAGE = 1000
"""A page has at most this many names, which is the limit of Google Cloud Storage."""
REQUESTS = 32
"""This many requests are sent at the same time."""
FIRST_PAGES = 4
"""The names of a source with at most this many pages are counted, not estimated."""
MAX_FOLDERS = 4000
"""At most this many folders are examined one by one. If there are more, a very large folder can be missed."""
GROUPS = 64
"""The folders are divided into this many groups, which are examined at the same time."""
FEW_FOLDERS = 32
"""If a level has at most this many folders, the folders in them are examined, as for train/ and validation/."""
MAX_LEVELS = 4
"""At most this many levels of folders are examined."""
SPLITS_PER_RANGE = 8
"""Pieces are divided at most this many times for each range. A range consists of whole pieces."""
SAMPLES = 8
"""The names of a page are divided into this many parts, to see how dense they are."""
_NO_END = "\U0010ffff"
"""No name comes after this character."""
_MAX_SCRIPT = 30_000
"""Characters beyond ASCII are assumed to be used without gaps if there are at most this many between them."""
_SURROGATES = range(0xD800, 0xE000)
"""Numbers that are no characters."""


@dataclass(frozen=True, eq=False)
class _Piece:
    """A range of names, and what its first page shows."""

    names: Sequence[str]
    """The first name of the page, names at equal distances, and the last one."""
    count: int
    """The number of names in the page."""
    end: str
    """No name of the range comes at or after this one."""
    is_whole: bool
    """The page has all names of the range."""


def boundaries(
    place: BucketPath, prefixes: Sequence[str], most: int, min_objects: int, page_size: int = PAGE
) -> list[str]:
    """Return ascending keys that divide the objects below a place into at most `most` ranges of about equal size.

    `prefixes` are the folders that count, in ascending order, each with a slash at its end, and "" is the whole place.
    A range has at least about `min_objects` objects. Their number is estimated from a few requests for each range.
    """
    search = _Search(place, page_size)
    first_pages = [search.page(prefix, _after(prefix), FIRST_PAGES * page_size) for prefix in prefixes]
    if all(page.is_last for page in first_pages) and sum(len(page.names) for page in first_pages) < 2 * min_objects:
        return []
    space = _Space().with_names(chain.from_iterable(page.names for page in first_pages))
    pieces = search.pieces(prefixes)
    sizes: dict[_Piece, int] = {}
    splits_left = SPLITS_PER_RANGE * most
    while True:
        new = [piece for piece in pieces if piece not in sizes]
        space = space.with_names(name for piece in new for name in piece.names)
        sizes |= {piece: space.size(piece) for piece in new}
        total = sum(sizes[piece] for piece in pieces)
        parts = max(1, min(most, total // max(1, min_objects)))
        max_size = max(total // (2 * parts), page_size)
        large = [piece for piece in pieces if not piece.is_whole and sizes[piece] > max_size]
        chosen = nlargest(min(REQUESTS, splits_left), large, key=sizes.__getitem__)
        if not chosen:
            break
        splits_left -= len(chosen)
        halves = dict(zip(chosen, ordered_map(partial(search.halves, space), chosen, REQUESTS), strict=True))
        pieces = [half for piece in pieces for half in halves.get(piece, (piece,))]
    # The range to which the first name of each piece belongs.
    ranges = [before * parts // max(1, total) for before in accumulate((sizes[piece] for piece in pieces), initial=0)]
    return [piece.names[0] for piece, (before, own) in zip(pieces[1:], pairwise(ranges), strict=False) if own > before]


class _Search:
    """The requests for the names below a place."""

    def __init__(self, place: BucketPath, page_size: int) -> None:
        self._client, self._place, self._page_size = bucket_client(), place, page_size

    def page(self, first: str, end: str, limit: int) -> ListedNames:
        """Return at most `limit` names of a range. An empty `end` is no end."""
        if end and first >= end:
            return ListedNames((), (), is_last=True)
        return self._client.names(self._place, limit, first=first, end="" if end == _NO_END else end)

    def pieces(self, prefixes: Sequence[str]) -> list[_Piece]:
        """Return a piece for each folder that is directly below some folders. Folders with empty names are left out."""
        groups = []
        for prefix in prefixes:
            starts = [*self._folders(prefix), _after(prefix) or _NO_END]
            size = -(-len(starts) // GROUPS)
            groups += [starts[index : index + size + 1] for index in range(0, len(starts) - 1, size)]
        return [piece for group in ordered_map(self._pieces_of, groups, REQUESTS) for piece in group]

    def halves(self, space: "_Space", piece: _Piece) -> list[_Piece]:
        """Return the two halves of a piece, or the piece with an earlier end if its second half has no name."""
        middle = space.middle(piece)
        left = replace(piece, end=middle)
        if not piece.names[-1] < middle < piece.end:
            middle = piece.names[-1] + " "
            left = replace(piece, end=middle, is_whole=True)
        page = self.page(middle, piece.end, self._page_size)
        # After a gap, the names of the first half may end far before its middle.
        return [left, _piece_of(page.names, piece.end, page.is_last)] if page.names else [self._bounded(left)]

    def _folders(self, prefix: str) -> list[str]:
        """Return a folder and the folders below it, in ascending order. A level is left out if it has too many."""
        level = found = [prefix]
        for _ in range(MAX_LEVELS):
            below = partial(self._client.level, self._place, max_folders=MAX_FOLDERS)
            # Some of the folders of a folder would leave all others in one large piece.
            pages = (page for page in ordered_map(below, level, REQUESTS) if page.is_last)
            level = [folder for page in pages for folder in page.folders]
            found = found + level if len(found) + len(level) <= MAX_FOLDERS else found
            if not 0 < len(level) <= FEW_FOLDERS:
                break
        return sorted(found)

    def _pieces_of(self, starts: Sequence[str]) -> list[_Piece]:
        """Return the pieces of the folders that begin at `starts`. A page can have several small folders."""
        pieces: list[_Piece] = []
        while len(starts) > 1:
            page = self.page(starts[0], starts[-1], self._page_size)
            # The last folder of the page, which goes on after it, is requested again unless it is the only one.
            last = bisect_right(starts, page.names[-1]) - 1 if page.names and not page.is_last else len(starts) - 1
            last = max(1, last)
            names = page.names[: bisect_left(page.names, starts[last])]
            if names:
                is_whole = page.is_last or len(names) < len(page.names)
                pieces.append(self._bounded(_piece_of(names, starts[last], is_whole)))
            starts = starts[last:]
        return pieces

    def _bounded(self, piece: _Piece) -> _Piece:
        """Return a piece that ends after the names with the longest beginning that all its names have in common."""
        if piece.is_whole:
            return piece
        beginning = piece.names[0][: _shared([piece.names[0], piece.names[-1]])]
        for length in range(len(beginning), _shared([beginning, piece.end]), -1):
            end = _after(beginning[:length])
            if not self.page(end, piece.end, 1).names:
                return replace(piece, end=end)
        return piece


class _Space:
    """Turns names into numbers of equal order, and back. The digits are the characters that known names have."""

    def __init__(self, known: frozenset[str] = frozenset()) -> None:
        self._known = known
        self._characters = sorted(known | _script_of(known))
        # The digit 0 is the end of a name, and the highest one is a character after all known ones.
        self._base = len(self._characters) + 2

    def with_names(self, names: Iterable[str]) -> "_Space":
        """Return the space that has the characters of more names, too. Suffixes are the same everywhere."""
        # The point is known, because 1.jpg must come before 10.jpg.
        return _Space(self._known.union(".", *(name.rpartition(".")[0] or name for name in names)))

    def size(self, piece: _Piece) -> int:
        """Return the number of names in a piece, estimated unless its page has all of them."""
        if piece.is_whole:
            return piece.count
        *borders, end = self._numbers([*piece.names, piece.end])
        # The widest gap is left out: from img_0999 to img_1000, there is much space, but no name.
        *widths, _ = sorted(after - before for before, after in pairwise(borders))
        return max(piece.count, piece.count * len(widths) * (end - borders[0]) // max(1, SAMPLES * sum(widths)))

    def middle(self, piece: _Piece) -> str:
        """Return a short name near the middle of the space of a piece, after its page if there is one."""
        names = [piece.names[0], piece.end]
        number = sum(self._numbers(names)) // 2
        characters = [*self._characters, _next(self._characters[-1])]
        found = ""
        while number:
            number, digit = divmod(number, self._base)
            # The end of the name is at the first 0.
            found = characters[digit - 1] + found if digit else ""
        name = names[0][: _shared(names)] + found
        # Further characters would only make the next halves longer.
        return next((short for end in range(len(name)) if (short := name[:end]) > piece.names[-1]), name)

    def _numbers(self, names: Sequence[str]) -> list[int]:
        """Return a number for the rest of each name after the beginning that all of them share."""
        shared = _shared(names)
        length = max(map(len, names)) + 1 - shared
        numbers = []
        for name in names:
            digits = [bisect_left(self._characters, each) + 1 for each in name[shared:]]
            numbers.append(reduce(lambda number, digit: number * self._base + digit, digits, 0))
            numbers[-1] *= self._base ** (length - len(digits))
        return numbers


def _script_of(characters: Iterable[str]) -> set[str]:
    """Return the characters beyond ASCII between known ones, and as many after them: a script has thousands."""
    numbers = [ord(each) for each in characters if not each.isascii()]
    count = max(numbers) - min(numbers) + 1 if numbers else 0
    if count > _MAX_SCRIPT:
        return set()
    start = min(numbers, default=0)
    between = range(start, min(start + 2 * count, ord(_NO_END)))
    return {chr(each) for each in between if each not in _SURROGATES}


def _piece_of(names: Sequence[str], end: str, is_whole: bool) -> _Piece:
    sampled = [names[(len(names) - 1) * index // SAMPLES] for index in range(SAMPLES + 1)]
    return _Piece(sampled, len(names), end, is_whole)


def _shared(names: Sequence[str]) -> int:
    """Return the length of the beginning that names have in common."""
    return len(os.path.commonprefix(names))  # noqa: RUF071 - of texts, not of paths


def _after(prefix: str) -> str:
    """Return the first name after all names that begin with `prefix`. If it is empty, there is none."""
    return prefix[:-1] + _next(prefix[-1]) if prefix else ""


def _next(character: str) -> str:
    """Return the character after another one. The numbers from 0xD800 to 0xDFFF are no characters."""
    return {"\ud7ff": "\ue000", _NO_END: _NO_END}.get(character) or chr(ord(character) + 1)
