"""Parts that sentences have in common."""

import re
from collections.abc import Iterable, Sequence

MAX_EXAMPLES = 3
"""A sentence names at most this many examples of what it reports."""


_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_OF_ONE_EXAMPLE = re.compile(rf"(?P<name>column (?:{_QUOTED}))|(?:{_QUOTED})|\s*\([^()]*\)|\d[\d.,]*")
"""Matches what differs from example to example: quoted values, what is in parentheses, and numbers. The name of a
column, which it matches too, does not."""


def kind_of_reason(reason: str) -> str:
    """Return why an example was rejected, up to a colon, without what differs from example to example."""

    def general(match: re.Match[str]) -> str:
        return match["name"] or ("" if match[0].endswith(")") else "…")

    return _OF_ONE_EXAMPLE.sub(general, reason).partition(":")[0]


def share(part: int, whole: int) -> str:
    """Return a share as text, such as `3 of 100 (3%)`."""
    return f"{part} of {whole} ({100 * part / whole:.3g}%)"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as `1 group` or `2 groups`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def range_text(low: str, high: str) -> str:
    """Return the range between two values, such as `1 to 3`. If they are equal, the result is one value."""
    return low if low == high else f"{low} to {high}"


def format_size(count: float) -> str:
    """Write a number of bytes with three digits, in the largest unit that keeps it above one."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def such_as(pairs: Sequence[Sequence[str]]) -> str:
    """Return the first pairs of keys as text, quoted as in Python, because a key may contain any character."""
    shown = ", ".join(f"{other!r} (as {train!r})" for train, other in pairs[:MAX_EXAMPLES])
    return f", such as {shown}" if shown else ""


def first_of(texts: Iterable[str], limit: int) -> str:
    """Return the first of several texts, such as `a, b and 3 more`. Without a text, the result is empty."""
    found = list(texts)
    return ", ".join(found[:limit]) + (f" and {len(found) - limit} more" if len(found) > limit else "")


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, and three dots if there are more: a cell may have megabytes."""
    return text if len(text) <= limit else text[:limit] + "..."


def type_words(type_: str, is_list: bool, length: int | None) -> str:
    """Return the type of a column, such as `float` or `list of 8 float`. `length` is None if it is not always equal."""
    if not is_list:
        return type_
    return f"list of {length} {type_}" if length else f"list of {type_}"
