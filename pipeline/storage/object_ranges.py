"""Divide the objects of a bucket into ranges of about equal size, without listing all of them.

A bucket does not state how many objects a range of names has. It is estimated: a page has the first thousand names of a
range. If they cover a tenth of the space between the first and the last name, the range has about ten thousand. For
this space, a name is a number whose digits are its characters. The largest range is then divided in the middle of its
space, again and again.
"""

import os.path
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from itertools import accumulate, pairwise

from pipeline.storage.bucket_path import BucketPath, ListedNames, bucket_client
from pipeline.system.parallel import ordered_map

PAGE = 1000
"""A page has at most this many names, which is the limit of Google Cloud Storage."""
REQUESTS = 32
"""This many requests are sent at the same time."""
FIRST_PAGES = 4
"""This many pages are read before anything else. They show that a source is small, and which characters names have."""
MAX_FOLDERS = 4000
"""At most this many folders are examined one by one. If there are more, a very large folder can be missed."""
CHUNKS = 64
"""The folders are divided into this many groups, which are examined at the same time."""
FEW_FOLDERS = 32
"""If a folder has at most this many folders, the folders in them are examined, as for train/ and validation/."""
MAX_LEVELS = 4
"""At most this many levels of folders are examined."""
MAX_BETWEEN = 30_000
"""Characters beyond ASCII are assumed to be used without gaps if there are at most this many between them."""
PIECES_PER_RANGE = 4
"""The bucket is divided into at most this many pieces for each range. A range consists of whole pieces."""
SAMPLES = 8
"""The names of a page are divided into this many parts, to see how dense they are."""
_SURROGATES = range(0xD800, 0xE000)
"""Numbers that are no characters."""


@dataclass(frozen=True, eq=False)
class _Piece:
    """A range of names, and what its first page shows."""

    first: str
    end: str
    names: Sequence[str]
    """The first name of the page, names at equal distances, and the last one."""
    count: int
    """The number of names in the page."""
    is_whole: bool
    """The page has all names of the range."""
    top: str = ""
    """No name of the range comes at or after this one. If it is empty, this is not known yet."""
    is_exact: bool = False
    """There are names shortly before `top`."""


def boundaries(
    place: BucketPath, prefixes: Sequence[str], most: int, min_objects: int, page_size: int = PAGE
) -> list[str]:
    """Return ascending keys that divide the objects below a place into at most `most` ranges of about equal size.

    `prefixes` are the folders that count, in ascending order, each with a slash at its end, and "" is the whole place.
    A range has at least about `min_objects` objects. Their number is estimated from a few requests for each range.
    """
    search = _Search(place, page_size)
    if search.is_small(prefixes, min_objects):
        return []
    pieces = search.measured(search.starts(prefixes))
    splits_left = PIECES_PER_RANGE * most
    while splits_left > 0:
        sizes = search.sizes(pieces)
        max_size = max(sum(sizes.values()) // (2 * _parts(sizes.values(), most, min_objects)), page_size)
        large = [piece for piece in pieces if not piece.is_whole and sizes[piece] > max_size]
        if not large:
            break
        chosen = nlargest(min(REQUESTS, splits_left), large, key=lambda piece: sizes[piece])
        splits_left -= len(chosen)
        halves = dict(zip(chosen, ordered_map(search.improved, chosen, REQUESTS), strict=True))
        pieces = [half for piece in pieces for half in halves.get(piece, (piece,))]
        search.learn([piece for each in halves.values() for piece in each])
    return _cut(pieces, list(search.sizes(pieces).values()), most, min_objects)


def _parts(sizes: Iterable[int], most: int, min_objects: int) -> int:
    return max(1, min(most, sum(sizes) // max(1, min_objects)))


def _cut(pieces: Sequence[_Piece], sizes: Sequence[int], most: int, min_objects: int) -> list[str]:
    """Return the first names of the pieces with which new ranges begin, so that the ranges have about equal sizes."""
    parts = _parts(sizes, most, min_objects)
    total = sum(sizes)
    before = [0, *accumulate(sizes)][:-1]
    cuts = []
    for part in range(1, parts):
        nearest = min(range(1, len(pieces)), key=lambda index: abs(before[index] * parts - part * total), default=0)
        if nearest and pieces[nearest].first not in cuts:
            cuts.append(pieces[nearest].first)
    return cuts


class _Search:
    """The requests and what they have shown."""

    def __init__(self, place: BucketPath, page_size: int) -> None:
        self._client, self._place, self._page_size = bucket_client(), place, page_size
        self._alphabet = _Alphabet()
        self._sizes: dict[_Piece, int] = {}
        """The known sizes. They change with the alphabet."""
        self._seen: list[str] = []
        """Names that single requests found. Their characters are added when all present requests have ended."""

    def is_small(self, prefixes: Sequence[str], min_objects: int) -> bool:
        """Return whether the first pages have all objects, and these are too few for two ranges."""
        count = pages = 0
        for prefix in prefixes:
            first, end = prefix, _after(prefix)
            while pages < FIRST_PAGES:
                page = self._page(first, end, self._page_size)
                pages += 1
                count += len(page.names)
                self._alphabet.learn(page.names)
                if page.is_last:
                    break
                first = page.names[-1] + " "
            else:
                return False
        return count < 2 * min_objects

    def starts(self, prefixes: Sequence[str]) -> list[list[str]]:
        """Return groups of ascending names. A group has the starts of its folders, and the end of the last folder."""
        groups = []
        for prefix in prefixes:
            starts = added = [prefix]
            for _ in range(MAX_LEVELS):
                if not 0 < len(added) <= FEW_FOLDERS:
                    break
                added = self._folders(added, MAX_FOLDERS - len(starts))
                starts = starts + added
            starts = [*sorted(starts), _after(prefix)]
            size = -(-len(starts) // CHUNKS)
            groups += [starts[index : index + size + 1] for index in range(0, len(starts) - 1, size)]
        return groups

    def _folders(self, prefixes: Sequence[str], limit: int) -> list[str]:
        """Return the folders directly in some folders, at most `limit`. Each folder adds all its folders, or none."""
        found: list[str] = []
        level = partial(self._client.level, self._place, max_folders=MAX_FOLDERS)
        for page in ordered_map(level, prefixes, REQUESTS):
            # Some of the folders would leave all others in one large range.
            if page.is_last and len(found) + len(page.folders) <= limit:
                found += page.folders
        return found

    def measured(self, groups: Sequence[Sequence[str]]) -> list[_Piece]:
        """Return the pieces of several groups of folders, without those that have no name."""
        pieces = [piece for group in ordered_map(self._pieces_of, groups, REQUESTS) for piece in group if piece.names]
        self.learn(pieces)
        return pieces

    def _pieces_of(self, starts: Sequence[str]) -> list[_Piece]:
        """Return the pieces of the folders that begin at `starts`. A page can have several small folders."""
        pieces: list[_Piece] = []
        index = 0
        while index < len(starts) - 1:
            page = self._page(starts[index], starts[-1], self._page_size)
            if page.is_last:
                return [*pieces, _piece_of(starts[index], starts[-1], page.names, is_whole=True)]
            # The last folder of the page, which goes on after it.
            last = bisect_right(starts, page.names[-1], hi=len(starts) - 1) - 1
            if last == index:
                piece = _piece_of(starts[index], starts[index + 1], page.names, is_whole=False)
                pieces.append(self._bounded(piece))
                index += 1
            else:
                names = page.names[: bisect_left(page.names, starts[last])]
                pieces.append(_piece_of(starts[index], starts[last], names, is_whole=True))
                index = last
        return pieces

    def learn(self, pieces: Iterable[_Piece]) -> None:
        """Remember the characters of the names of new pieces, and of single names."""
        names = [*self._seen, *(name for piece in pieces for name in (piece.names[0], piece.names[-1]))]
        self._seen.clear()
        if self._alphabet.learn(names):
            self._sizes.clear()

    def sizes(self, pieces: Iterable[_Piece]) -> dict[_Piece, int]:
        """Return the number of names in each piece, estimated unless its page has all of them."""
        self._sizes = {piece: self._sizes.get(piece) or self._size(piece) for piece in pieces}
        return self._sizes

    def _size(self, piece: _Piece) -> int:
        if piece.is_whole:
            return piece.count
        digits = _Digits(self._alphabet, (piece.names[0], piece.top))
        borders = [digits.number(name) for name in piece.names]
        # The widest gap is left out: from img_0999 to img_1000, there is much space, but no name.
        *widths, _ = sorted(after - before for before, after in pairwise(borders))
        space = digits.number(piece.top) - borders[0]
        return max(piece.count, piece.count * len(widths) * space // max(1, SAMPLES * sum(widths)))

    def improved(self, piece: _Piece) -> list[_Piece]:
        """Return the two halves of a piece, or the piece with a better `top`."""
        if not piece.is_exact:
            return [self._exact(piece)]
        middle = self._middle(piece)
        page = self._page(middle or piece.names[-1] + " ", piece.end, self._page_size)
        if not page.names:
            if not middle:
                return [replace(piece, is_whole=True)]
            bounded = self._exact(self._bounded(piece))
            return [replace(bounded, top=min(bounded.top, middle))]
        name = page.names[0]
        right = replace(_piece_of(name, piece.end, page.names, page.is_last), top=piece.top, is_exact=True)
        if not middle:
            return [replace(piece, end=name, is_whole=True), right]
        left = replace(piece, end=name, top=middle)
        digits = _Digits(self._alphabet, (low := piece.names[0], middle, name, piece.top))
        # After a gap, the names of the left half may end far before its middle.
        if (digits.number(name) - digits.number(middle)) * 8 > digits.number(piece.top) - digits.number(low):
            left = self._bounded(left)
        return [left, right]

    def _name_from(self, first: str, end: str) -> str:
        """Return the first name of a range; empty if there is none."""
        names = self._page(first, end, 1).names
        self._seen += names
        return next(iter(names), "")

    def _page(self, first: str, end: str, limit: int) -> ListedNames:
        if end and first >= end:
            return ListedNames((), (), is_last=True)
        return self._client.names(self._place, limit, first=first, end=end)

    def _bounded(self, piece: _Piece) -> _Piece:
        """Return a piece whose `top` follows from the beginning that all its names have in common."""
        if piece.is_whole:
            return piece
        low, high = piece.names[0], piece.names[-1]
        # The names of the page have `depth` characters in common. All names have between `shared` and `depth`.
        depth = min(len(_common_prefix((low, high))), len(high) - 1)
        shared, step = depth, 1
        while shared and self._name_from(_after(high[:shared]), piece.end):
            depth = shared - 1
            shared, step = max(0, shared - step), 2 * step
        while shared < depth:
            middle = (shared + depth + 1) // 2
            if self._name_from(_after(high[:middle]), piece.end):
                depth = middle - 1
            else:
                shared = middle
        return replace(piece, top=high[:shared] + chr(sys.maxunicode), is_exact=False)

    def _exact(self, piece: _Piece) -> _Piece:
        """Return a piece whose `top` has the highest character that a name has after their common beginning."""
        high = piece.names[-1]
        shared = len(_common_prefix((high, piece.top)))
        character, limit = high[shared], piece.top[shared]
        step = 1
        while True:
            between = [each for each in self._alphabet.all if character < each < limit]
            # A name may have a character that no known name has.
            tried = between[len(between) // 2] if between else _after(character, step)
            if tried >= limit:
                break
            if name := self._name_from(high[:shared] + tried, piece.end):
                character, step = name[shared], 2 * step
            else:
                # A script has thousands of characters. Many of them may be before this one.
                limit, step = tried, step if tried.isascii() else max(1, step // 4)
        return replace(piece, top=high[:shared] + limit, is_exact=True)

    def _middle(self, piece: _Piece) -> str:
        """Return the name in the middle of the space of a piece; empty if it is not after the page."""
        low, high, top = piece.names[0], piece.names[-1], piece.top
        digits = _Digits(self._alphabet, (low, top), longer=1)
        middle = digits.name((digits.number(low) + digits.number(top)) // 2)
        return middle if high < middle < top else ""


class _Alphabet:
    """The characters that names can have at each position.

    If a name has a digit at a position, others can have each digit of any name there. The same holds for letters.
    """

    def __init__(self) -> None:
        self.all: list[str] = []
        self._kinds: list[set[str]] = []
        self._by_kinds: dict[frozenset[str], list[str]] = {}

    def learn(self, names: Iterable[str]) -> bool:
        """Add the characters of some names. Returns whether any of them is new at its position."""
        characters = set(self.all)
        has_new = False
        for name in names:
            self._kinds += [set() for _ in range(len(name) - len(self._kinds))]
            for kinds, character in zip(self._kinds, name, strict=False):
                kind = _kind_of(character)
                has_new |= kind not in kinds or character not in characters
                kinds.add(kind)
            characters.update(name)
        if has_new:
            self.all = sorted(characters | _between(characters))
            self._by_kinds = {}
        return has_new

    def at(self, position: int) -> list[str]:
        """Return the characters of a position, in their order."""
        kinds = frozenset(self._kinds[position]) if position < len(self._kinds) else frozenset()
        if kinds not in self._by_kinds:
            self._by_kinds[kinds] = [each for each in self.all if not kinds or _kind_of(each) in kinds]
        return self._by_kinds[kinds]


def _between(characters: Iterable[str]) -> set[str]:
    """Return the characters between those beyond ASCII. Known names have few of the thousands of a script."""
    numbers = [ord(each) for each in characters if not each.isascii()]
    between = range(min(numbers), max(numbers)) if numbers else range(0)
    return {chr(each) for each in between if each not in _SURROGATES} if len(between) <= MAX_BETWEEN else set()


def _kind_of(character: str) -> str:
    if not character.isascii():
        return "beyond ASCII"
    return (
        "digit" if character.isdigit() else "upper" if character.isupper() else "lower" if character.islower() else ""
    )


class _Digits:
    """Turns names into numbers of equal order, and back. The beginning that some names share is left out."""

    def __init__(self, alphabet: _Alphabet, names: Sequence[str], longer: int = 0) -> None:
        self._shared = _common_prefix(names)
        positions = range(len(self._shared), max(map(len, names)) + longer)
        self._characters = [alphabet.at(position) for position in positions]

    def number(self, name: str) -> int:
        """Return the number of a name. The digit 0 is the end of the name. The highest is an unknown character."""
        rest = name[len(self._shared) :]
        number = 0
        for index, characters in enumerate(self._characters):
            digit = bisect_left(characters, rest[index]) + 1 if index < len(rest) else 0
            number = number * (len(characters) + 2) + digit
        return number

    def name(self, number: int) -> str:
        """Return the name of a number."""
        name: list[str] = []
        for characters in reversed(self._characters):
            number, digit = divmod(number, len(characters) + 2)
            # The end of the name is at the first 0.
            name = [characters[min(digit, len(characters)) - 1], *name] if digit else []
        return self._shared + "".join(name)


def _piece_of(first: str, end: str, names: Sequence[str], is_whole: bool) -> _Piece:
    sampled = [names[(len(names) - 1) * index // SAMPLES] for index in range(SAMPLES + 1)] if names else []
    return _Piece(first, end, sampled, len(names), is_whole)


def _after(prefix: str, step: int = 1) -> str:
    """Return the first name after all names that begin with `prefix`. If it is empty, there is none."""
    if not prefix:
        return ""
    number = min(ord(prefix[-1]) + step, sys.maxunicode)
    return prefix[:-1] + chr(_SURROGATES.stop if number in _SURROGATES else number)


def _common_prefix(names: Sequence[str]) -> str:
    return os.path.commonprefix(names)  # noqa: RUF071 - of texts, not of paths
