"""What a search of the list means: words, and filters such as `accuracy>0.5` or `dataset:flowers`. Reads no file."""

import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

TEXTS = ("run", "user", "dag", "state", "started", "dataset", "model", "promotion", "limit")
SHARES = ("accuracy", "wait", "progress")
"""Numbers from 0 to 1, which people also write as percentages."""
AMOUNTS = ("error", "speed")
"""The mean absolute error of a regression, and the examples a second."""
COLUMNS = (*TEXTS, *SHARES, *AMOUNTS)
CONTAINS, EQUALS, DIFFERS = ":", "=", "!="
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = {CONTAINS: "contains", EQUALS: "is", DIFFERS: "is not"}
"""How a sentence says an operator."""
_TIME = re.compile(r"\d{4}(-\d\d(-\d\d( \d\d:\d\d(:\d\d)?)?)?)?")
_TOKEN = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_FILTER = re.compile(r"([A-Za-z]\w*)(<=|>=|!=|[:=<>])(.*)")


class SearchError(ValueError):
    """A filter is not understood. The message is a sentence for the person who wrote it."""


class Searched(Protocol):
    """A row that a search looks at."""

    def text(self) -> str:
        """Return the text of all columns in lower case."""

    def cell(self, name: str) -> str:
        """Return all that a column of texts shows."""

    def value(self, name: str) -> Any:
        """Return the value of a column or setting; None if there is none."""


@dataclass(frozen=True)
class Filter:
    """A condition on one column or setting."""

    name: str
    operator: str
    text: str
    """What the value is compared with, in lower case."""
    number: float | None
    """The same as a number; None if it is no number."""
    tolerance: float = 0.0
    """Numbers that differ by at most this are equal."""

    def finds(self, row: Searched) -> bool:
        """Return whether a row fulfills the condition."""
        # A badge is a whole value, but a part is also looked for in the sentence beside it.
        in_cell = self.operator == CONTAINS and self.name in TEXTS
        return self.matches(row.cell(self.name) if in_cell else row.value(self.name))

    def matches(self, value: Any) -> bool:
        """Return whether a value fulfills the condition. A missing value only differs."""
        if value is None or value == "":
            return self.operator == DIFFERS
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if order := _ORDERS.get(self.operator):
            if is_number:
                return self.number is not None and order(value, self.number)
            return self.name == "started" and order(self._as_precise(value), self.text)
        if is_number and self.number is not None:
            is_equal = math.isclose(value, self.number, abs_tol=self.tolerance)
            return is_equal is not (self.operator == DIFFERS)
        known = str(value).casefold()
        if self.operator == CONTAINS:
            return self.text in known
        if self.name == "started":
            known = self._as_precise(known)
        return (self.text == known) is not (self.operator == DIFFERS)

    def _as_precise(self, time: str) -> str:
        """Return a time without what the filter does not say: a text with fewer digits is a day, a month or a year."""
        return time[: len(self.text)]

    def __str__(self) -> str:
        """Return how the filter is understood."""
        words = _WORDS.get(self.operator, self.operator)
        if self.name in SHARES and self.number is not None:
            return f"{self.name} {words} {100 * self.number:g}%"
        return f"{self.name} {words} {self.text}"


@dataclass(frozen=True)
class Search:
    """Words and filters. A row is found if it has all of them."""

    words: tuple[str, ...]
    filters: tuple[Filter, ...]

    def finds(self, row: Searched) -> bool:
        """Return whether a row has all words and fulfills all conditions."""
        if not all(each.finds(row) for each in self.filters):
            return False
        if not self.words:
            return True
        text = row.text()
        return all(word in text for word in self.words)


def parse(text: str, settings: Collection[str]) -> Search:
    """Return what a search means. `settings` are the names of all settings.

    Words and filters are separated by blanks. A text in quotes is one word.

    Raises:
        SearchError: A filter names neither a column nor a setting, or its value does not suit it.
    """
    words, filters = [], []
    for token in _TOKEN.findall(text):
        found = _FILTER.fullmatch(token)
        if found:
            name, sign, value = found.groups()
            filters.append(_filter(name.lower(), sign, value, token=token, settings=settings))
        else:
            words.append(token.replace('"', "").casefold())
    return Search(tuple(filter(None, words)), tuple(filters))


def _filter(name: str, sign: str, value: str, token: str, settings: Collection[str]) -> Filter:
    text = value.replace('"', "").casefold()
    if name not in COLUMNS and name not in settings:
        close = difflib.get_close_matches(name, [*COLUMNS, *settings], n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise SearchError(
            f"No column and no setting is named {name}.{hint} To search for the text itself, put it in quotes: "
            f'"{token}".'
        )
    if not text:
        raise SearchError(f"The filter {token} has no value. Write, for example, {name}{sign}{_example(name)}.")
    number = _number(text, is_share=name in SHARES)
    if number is None and (name in (*SHARES, *AMOUNTS) or (sign in _ORDERS and name not in TEXTS)):
        raise SearchError(
            f"{name} is compared with a number, and {value!r} is no number. To search for the text itself, put it in "
            f'quotes: "{token}".'
        )
    if sign in _ORDERS and name in TEXTS and name != "started":
        raise SearchError(f"{name} is a text. Write {name}:{text} for texts that contain {text}, or {name}={text}.")
    if name == "started" and sign != CONTAINS and not _TIME.fullmatch(text):
        raise SearchError(
            f"started is compared with a time, and {value!r} is none. Write, for example, started{sign}2026-11-30, "
            f'started{sign}2026-11 or started{sign}"2026-11-30 14:05".'
        )
    return Filter(name, sign, text, number, 0.0 if number is None else _tolerance(name, text, number))


def _example(name: str) -> str:
    examples = {"started": "2026-11-30", **dict.fromkeys(SHARES, "0.5"), **dict.fromkeys(AMOUNTS, "100")}
    return examples.get(name, "flowers")


def _plain(text: str) -> str:
    """Return a number without the commas that the page writes between thousands."""
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)


def _number(text: str, *, is_share: bool) -> float | None:
    """Return the number in a text; None if it is none. A share over 1 is a percentage."""
    is_percentage = is_share and text.endswith("%")
    try:
        number = float(text.removesuffix("%") if is_percentage else _plain(text))
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return number / 100 if is_percentage or (is_share and number > 1) else number


def _tolerance(name: str, text: str, number: float) -> float:
    """Return by how much a value may differ from a number that it equals: half of its last digit, as on the page."""
    if name not in (*SHARES, *AMOUNTS):
        return 0.0
    exponent = Decimal(_plain(text.removesuffix("%"))).as_tuple().exponent
    digit = 10.0**exponent if isinstance(exponent, int) else 0.0
    if name in AMOUNTS:  # The page shows four digits.
        return max(digit, 10.0 ** (math.floor(math.log10(abs(number) or 1)) - 3)) / 2
    is_percentage = text.endswith("%") or number != float(text)
    return min(digit / 100 if is_percentage else digit, 0.01) / 2  # "0.5" is no accuracy of 54%.
