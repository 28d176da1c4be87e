"""The facts of a column of a table, from all of its values, batch by batch.

Facts are counts, minima, maxima and sets. A column therefore does not depend on the order of the rows, or on how they
are divided into batches. Only the samples of its notes do: they are the first ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pipeline.errors import SettingsError, SourceError
from pipeline.system.wording import shortened
from pipeline.tables import notes
from pipeline.tables.schema import MAX_POSITIONS, VECTOR_TYPES, Column, ColumnType, Role, TextRules
from pipeline.tables.stated_types import StatedType
from pipeline.tables.values import (
    DAY_US,
    PARSERS,
    RECORD_TYPES,
    Fitted,
    ValueType,
    are_almost_whole,
    are_whole,
    as_float32,
    cleaned,
    fit,
    have_values,
    is_long_integer,
    is_nan_text,
    parse_all,
    parse_fitting,
    require_supported,
    stripped,
    value_type_of,
    without,
    without_empty,
    without_nan,
    words_in,
)

MAX_MISFITS = 0.5
"""If at most this share of the values makes a column one of texts, a note names them."""
MAX_OTHERS = 1_000_000
"""The values of a column are compared with numbers and dates until this many are neither. If several processes read a
table, each compares the values of its range until then."""
ROUNDED = 0.99
"""If less than this share of the different numbers stays different in 32 bits, a note says so."""
_MAX_CHARACTERS = 2 << 20
"""The different values of a column are listed if they have at most this many characters together."""
_MAX_BOUND = 200
"""The smallest and largest text of a column are cut to this many characters."""
_MAX_SAMPLES = 2
"""A note names at most this many values."""
_MAX_SHOWN = 80
"""A note shows at most this many characters of a value."""
_MAX_WHOLE = 2**53
"""A double holds all whole numbers below this one."""
_MAX_FLOAT32 = 3.4028235677973366e38
"""Numbers from this one on are infinite in 32 bits."""
_PRIVATE = ("key", "group")
"""The roles of columns whose values can be personal data."""

Value = float | int | str
Range = tuple[Value, Value]
PlaceOf = Callable[[int], str]
"""Returns the file and the number of a row of a batch."""

_WIDER: Mapping[str | None, Sequence[str]] = {None: list(PARSERS), "int": ("int", "float"), "date": ("date", "time")}
"""The kinds that a column can have after more values, by its kind before. Others keep their kind or become strings."""
_GROUPS = ("numbers", "long integers", "codes", "times", "truth values", "others")
"""The groups of texts, in the order in which a note names their values."""
_GROUP_OF = {"int": "numbers", "float": "numbers", "date": "times", "time": "times", "bool": "truth values"}
_HELD: Mapping[str, tuple[str, str]] = {
    "numbers": ("numbers", "float"),
    "times": ("dates or times", "time"),
    "truth values": ("truth values", "bool"),
}
"""What a column holds besides few texts, in words, and the type to state for it."""


@dataclass
class _Tally:
    """How many texts of a column are of which group."""

    empty: int = 0
    words: Counter[str] = field(default_factory=Counter)
    """The texts that are missing values in a column of numbers, without blanks around them."""
    groups: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "_Tally":
        """Return a copy."""
        return _Tally(self.empty, self.words.copy(), self.groups.copy())

    def add(self, texts: pa.Array, rules: TextRules, counts: NDArray[np.int64]) -> dict[str, pa.Array]:
        """Add texts, each with its number, and return which of them are of which group."""
        clean = cleaned(texts, rules)
        masks = _grouped(clean, rules)
        is_missing = compute.or_(compute.is_null(clean), masks.pop("NaN"))
        self._add_missing(texts, is_missing, counts)
        for group, mask in masks.items():
            self.groups[group] += int(counts[mask.to_numpy(zero_copy_only=False)].sum())
        return masks

    def merge(self, other: "_Tally") -> None:
        """Add the numbers of other texts."""
        self.empty += other.empty
        self.words.update(other.words)
        self.groups.update(other.groups)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return what `vars` made JSON of."""
        return cls(content["empty"], Counter(content["words"]), Counter(content["groups"]))

    def add_parsed(self, texts: pa.Array, values: pa.Array, group: str) -> None:
        """Add texts that are all of one group or missing values, with what they are."""
        is_missing = compute.is_null(values, nan_is_null=True)
        if _any(is_missing):
            self._add_missing(texts, is_missing, np.ones(len(texts), np.int64))
        self.groups[group] += len(texts) - _sum(is_missing)

    def _add_missing(self, texts: pa.Array, is_missing: pa.Array, counts: NDArray[np.int64]) -> None:
        of_missing = counts[is_missing.to_numpy(zero_copy_only=False)].tolist()
        for text, count in zip(stripped(texts.filter(is_missing)).to_pylist(), of_missing, strict=True):
            if text:
                self.words[text] += count
            else:
                self.empty += count


def _grouped(clean: pa.Array, rules: TextRules) -> dict[str, pa.Array]:
    """Return which texts are of which group. Those that are null are of none."""
    numbers = parse_fitting(clean, "float", rules)
    is_nan = compute.fill_null(compute.is_nan(numbers), False)
    is_long = compute.fill_null(is_long_integer(clean), False)
    found = {"NaN": is_nan, "numbers": compute.and_not(compute.is_valid(numbers), is_nan), "long integers": is_long}
    rest = without(clean, compute.or_(compute.is_valid(numbers), is_long))
    found["codes"] = compute.fill_null(compute.match_substring_regex(rest, "^0[0-9]+$"), False)
    found["times"] = compute.is_valid(parse_fitting(rest, "time", rules))
    found["truth values"] = compute.is_valid(parse_fitting(rest, "bool", rules))
    known = reduce(compute.or_, [found[group] for group in ("codes", "times", "truth values")])
    return {**found, "others": compute.and_not(compute.is_valid(rest), known)}


class _Counts:
    """The different texts of a column, in the order of their first rows, and how many rows have each."""

    def __init__(self) -> None:
        self.texts = pa.nulls(0, pa.large_string())
        self.numbers = np.zeros(0, np.int64)
        self.characters = 0
        """Number of characters of the different texts together."""

    def add(self, texts: pa.Array, numbers: NDArray[np.int64]) -> pa.Array:
        """Add different texts and the number of rows that have each. Return the texts that are new."""
        texts = texts.cast(pa.large_string())
        known = compute.index_in(texts, self.texts)
        is_new = compute.is_null(known).to_numpy(zero_copy_only=False)
        self.numbers[known.drop_null().to_numpy()] += numbers[~is_new]
        new = texts.filter(pa.array(is_new))
        self.texts = pa.concat_arrays([self.texts, new])
        self.numbers = np.concatenate([self.numbers, numbers[is_new]])
        self.characters += _sum(compute.utf8_length(new))
        return new


class TextFacts:
    """The facts of a column of CSV, whose type is inferred from its texts.

    Most columns have few different values. As long as they are few, only new values are parsed.
    """

    def __init__(self, name: str, limit: int, rules: TextRules) -> None:
        self._name, self._limit, self._rules = name, limit, rules
        self._kind: str | None = None
        """The kind of all values up to now: a key of PARSERS or "string". None if there is no value."""
        self._nulls = 0
        self._counts: _Counts | None = _Counts()
        """None if there are too many different values."""
        self._first = pa.nulls(0, pa.large_string())
        """The first different values, if there are too many and they may be floats."""
        self._tally = _Tally()
        """The values that `_counts` does not have."""
        self._samples: dict[str, dict[str, str]] = {}
        """By group of values, the first ones with their places."""
        self._floats = _FloatFacts()
        self._range: Range | None = None
        """The smallest and the largest value of the kind. Those of floats have 64 bits."""
        self._text_range: Range | None = None

    def add(self, text: pa.Array, place_of: PlaceOf) -> None:
        """Add the values of a batch."""
        if value_type_of(text.type) != ValueType("string"):
            raise SourceError(f"the column {self._name!r} holds text and {text.type}: write it with one type")
        if self._rules.strip:
            text = stripped(text)
        self._nulls += text.null_count
        values, counts = text.drop_null(), self._counts
        if counts:
            values = self._count(counts, values)
        self._text_range = _joined(self._text_range, _range_of(values))
        if not len(values):
            return
        masks = self._masks_of(values, are_counted=bool(counts))
        for group, mask in masks.items():
            samples = self._samples.setdefault(group, {})
            if len(samples) < _MAX_SAMPLES:
                for value in values.filter(mask).unique():
                    shown = shortened(value.as_py(), _MAX_SHOWN)
                    samples.setdefault(shown, place_of(compute.index(text, value.cast(text.type)).as_py()))
                    if len(samples) == _MAX_SAMPLES:
                        break

    def merge(self, later: "TextFacts", moved: Callable[[str], str]) -> None:
        """Add the facts of later rows. `moved` returns the place of a row in the table from that in `later`."""
        kind = _joined_kind(self._kind, later._kind)
        ranges = [_as_kind(each._range, each._kind, kind) for each in (self, later) if kind and kind != "string"]
        self._kind, self._range = kind, reduce(_joined, ranges, None)
        self._text_range = _joined(self._text_range, later._text_range)
        self._nulls += later._nulls
        self._floats.merge(later._floats)
        for group, samples in later._samples.items():
            own = self._samples.setdefault(group, {})
            for shown, place in samples.items():
                if len(own) < _MAX_SAMPLES:
                    own.setdefault(shown, moved(place))
        if self._counts and later._counts:
            self._tally.merge(later._tally)
            self._counts.add(later._counts.texts, later._counts.numbers)
            self._require_few(self._counts)
            return
        known = self._counts.texts if self._counts else self._first
        if self._counts and kind in ("int", "float"):
            self._first = pa.concat_arrays([known, later._first]).unique().slice(0, self._limit)
        self._tally, self._counts = self._whole_tally(), None
        self._tally.merge(later._whole_tally())

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        counts = self._counts and [self._counts.texts.to_pylist(), self._counts.numbers.tolist()]
        return {
            "kind": self._kind,
            "nulls": self._nulls,
            "counts": counts,
            "first": self._first.to_pylist(),
            "tally": vars(self._tally),
            "samples": self._samples,
            "floats": vars(self._floats),
            "range": self._range,
            "text_range": self._text_range,
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Take the facts that `to_json` returned."""
        self._kind, self._nulls, self._samples = content["kind"], content["nulls"], content["samples"]
        self._first = pa.array(content["first"], pa.large_string())
        self._tally, self._floats = _Tally.from_json(content["tally"]), _FloatFacts(**content["floats"])
        self._range, self._text_range = map(_range_from, (content["range"], content["text_range"]))
        self._counts = None
        if content["counts"] is not None:
            texts, numbers = content["counts"]
            self._counts = _Counts()
            self._counts.add(pa.array(texts, pa.large_string()), np.array(numbers, np.int64))

    def column(self, role: Role) -> Column:
        """Return the column with its facts."""
        kind = self._whole_kind()
        if kind == "float":
            kind = self._floats.type(self._range, role)
            # As a float, a long code would lose digits, and many rows would have one key.
            kind = "string" if kind == "float" and role in ("key", "group", "split") else kind
        type_ = cast(ColumnType, kind)
        texts = self._counts.texts if self._counts else None
        if type_ == "string":
            return _column(self._name, role, type_, self._nulls, texts, self._text_range)
        tally = self._whole_tally()
        missing = self._nulls + tally.empty + tally.words.total()
        values = None if texts is None else self._fitted(texts, type_).values.unique()
        return _column(self._name, role, type_, missing, values, _rounded(self._range, type_))

    def notes(self, column: Column) -> Iterator[str]:
        """Yield what is notable about the column, which `column` returned."""
        tally = self._whole_tally()
        if column.type != "string":
            if tally.words:
                yield notes.missing_values(self._name, tally.words)
            if column.type == "float":
                self._floats.count(self._fitted(self._counts.texts if self._counts else self._first, "float"))
                yield from self._floats.notes(self._name)
        elif column.role not in _PRIVATE:
            yield from self._notes_of_text(tally.groups)

    def _notes_of_text(self, groups: Counter[str]) -> Iterator[str]:
        """Yield why the column is one of texts, if most of its values are not."""
        values = groups.total()
        for group, note in (("codes", notes.codes), ("long integers", notes.long_integers)):
            if groups[group] and groups[group] + groups["numbers"] == values:
                yield note(self._name, groups[group], self._samples[group])
                return
        for group, (held, type_) in _HELD.items():
            misfits = values - groups[group]
            if groups[group] and 0 < misfits <= MAX_MISFITS * values:
                others = [self._samples.get(other, {}) for other in _GROUPS if other != group]
                samples = dict([pair for each in others for pair in each.items()][:_MAX_SAMPLES])
                yield notes.few_texts(
                    self._name,
                    held=held,
                    type_=type_,
                    misfits=misfits,
                    values=values,
                    samples=samples,
                    has_point=any("." in text for text in self._samples[group]),
                )

    def _count(self, counts: _Counts, values: pa.Array) -> pa.Array:
        """Count the values of a batch, and return those that are new."""
        counted = compute.value_counts(values)
        new = counts.add(counted.field("values"), counted.field("counts").to_numpy())
        self._require_few(counts)
        return new

    def _require_few(self, counts: _Counts) -> None:
        """Forget the different values if there are too many."""
        if len(counts.texts) > self._limit or counts.characters > _MAX_CHARACTERS:
            if self._kind in ("int", "float", None):
                self._first = counts.texts.slice(0, self._limit)
            self._tally, self._counts = self._whole_tally(), None

    def _whole_kind(self) -> str:
        """Return the kind of all values, also of NaN."""
        if self._kind in ("int", "float", "string"):
            return self._kind
        nans = {text for text in self._whole_tally().words if is_nan_text(text)}
        if not self._kind:
            return "float" if nans else "string"
        # As one of dates, times or truth values, the column would lose the rows whose NaN is no missing value.
        return self._kind if nans <= set(self._rules.missing) else "string"

    def _whole_tally(self) -> _Tally:
        """Return the tally of all values."""
        tally = self._tally.copy()
        if self._counts:
            tally.add(self._counts.texts, self._rules, self._counts.numbers)
        return tally

    def _masks_of(self, values: pa.Array, are_counted: bool) -> Mapping[str, pa.Array]:
        """Extend the kind and the range by some values, and return which are of which group."""
        if self._kind != "string":
            # A missing value that looks like a number must not be taken for one.
            parsed = None if have_values(self._rules.missing) else self._parse(without_empty(values))
            if parsed is None:
                parsed = self._parse(cleaned(values, self._rules))
            if parsed is not None:
                group = _GROUP_OF.get(self._kind or "", "others")
                if not are_counted:
                    self._tally.add_parsed(values, parsed, group)
                return {group: compute.invert(compute.is_null(parsed, nan_is_null=True))}
            self._kind = "string"
        if self._tally.groups["others"] > MAX_OTHERS:
            return {}
        tally = _Tally() if are_counted else self._tally
        return tally.add(values, self._rules, np.ones(len(values), np.int64))

    def _parse(self, text: pa.Array) -> pa.Array | None:
        """Return the values of texts, by which the kind and the range are extended; None if they have no kind.

        NaN can be a missing value in a column of any kind, so it decides none.
        """
        text = without_nan(text)
        if text.null_count == len(text):
            return pa.nulls(len(text), pa.float64())
        for kind in _WIDER.get(self._kind, (self._kind,)):
            assert kind is not None
            values = parse_all(text, kind, self._rules)
            if values is not None:
                break
        else:
            return None
        if kind == "float":
            self._floats.add(values)
        self._range = _joined(_as_kind(self._range, self._kind, kind), _range_of(values))
        self._kind = kind
        return values

    def _fitted(self, texts: pa.Array, type_: ColumnType) -> Fitted:
        fitted = fit(texts, type_, self._rules)
        assert fitted is not None
        return fitted


@dataclass
class _FloatFacts:
    """Whether floats are whole numbers, and how many of them become equal in 32 bits."""

    are_whole: bool = True
    are_almost_whole: bool = True
    has_infinite: bool = False
    has_doubles: bool = True
    """Whether any float has more than 32 bits."""
    numbers: int = 0
    """Number of different floats, as far as they were compared."""
    numbers_in_32_bits: int = 0

    def add(self, values: pa.Array) -> None:
        """Add the floats of a batch."""
        self.are_whole = self.are_whole and are_whole(values)
        self.are_almost_whole = self.are_almost_whole and are_almost_whole(values)
        self.has_infinite = self.has_infinite or _any(compute.is_inf(values))

    def merge(self, other: "_FloatFacts") -> None:
        """Add the facts of other floats."""
        self.are_whole &= other.are_whole
        self.are_almost_whole &= other.are_almost_whole
        self.has_infinite |= other.has_infinite
        self.has_doubles |= other.has_doubles
        # Both counts are those of one part: the one in which most numbers become equal.
        part = max(self, other, key=lambda each: (each.numbers - each.numbers_in_32_bits, -each.numbers))
        self.numbers, self.numbers_in_32_bits = part.numbers, part.numbers_in_32_bits

    def count(self, fitted: Fitted) -> None:
        """Count different floats."""
        assert fitted.doubles is not None
        self.count_doubles(fitted.doubles.filter(compute.is_valid(fitted.values)))

    def count_doubles(self, doubles: pa.Array) -> None:
        """Count different floats of 64 bits."""
        different = compute.add(doubles, 0.0).unique()  # -0.0 becomes 0.0.
        self.numbers, self.numbers_in_32_bits = len(different), len(as_float32(different).unique())

    def type(self, range_: Range | None, role: Role) -> ColumnType:
        """Return "int" if all numbers are whole: pandas makes floats of integers if some are missing."""
        if range_ is None:
            return "float"
        are_whole = self.are_whole and all(abs(cast(float, bound)) < _MAX_WHOLE for bound in range_)
        if role == "label":  # Its infinite values do not count, because their rows are rejected.
            return "int" if are_whole or self.are_almost_whole else "float"
        return "int" if are_whole and self.has_doubles and not self.has_infinite else "float"

    def notes(self, name: str) -> Iterator[str]:
        """Yield whether many different numbers become equal."""
        if self.numbers_in_32_bits < ROUNDED * self.numbers:
            yield notes.rounded(name, self.numbers, self.numbers_in_32_bits)


@dataclass
class _TypeFacts:
    """The facts of the values of one type."""

    values: pa.Array | None
    """The different values; None if there are too many. Floats have 64 bits."""
    range: Range | None = None
    floats: _FloatFacts = field(default_factory=lambda: _FloatFacts(has_doubles=False))

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        values = None if self.values is None else self.values.to_pylist()
        return {"values": values, "range": self.range, "floats": vars(self.floats)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], kind: ColumnType) -> Self:
        """Return the facts of the type `kind`, which `to_json` returned."""
        values = None if content["values"] is None else pa.array(content["values"], _TYPES[kind])
        return cls(values, _range_from(content["range"]), _FloatFacts(**content["floats"]))


class TypedFacts:
    """The facts of a column whose type is known: that of Parquet, Spark and others, or one that the settings state."""

    def __init__(self, name: str, limit: int, rules: TextRules, stated: StatedType | None = None) -> None:
        self._name, self._limit, self._rules, self._stated = name, limit, rules, stated
        self._missing = 0
        self._words: Counter[str] = Counter()
        """The texts that are missing values."""
        self._of_types: dict[ColumnType, _TypeFacts] = {}
        """By type, because files may differ. Facts are joined at the end, so that the order of files is irrelevant."""
        self._are_lists: set[bool] = set()
        self._lengths: Range | None = None
        """The smallest and the largest length of the lists that have a value."""
        self._empty = 0
        """Number of empty lists."""

    def add(self, array: pa.Array, place_of: PlaceOf) -> None:
        """Add the values of a batch. `place_of` is not needed, because a type leaves no value out."""
        kind = require_supported(self._name, array.type)
        if kind.is_list or kind.type:
            self._are_lists.add(kind.is_list)
        if kind.is_list or not kind.type:
            self._missing += array.null_count
            if kind.is_list:
                lengths = _lengths_of(array.drop_null())
                has_values = compute.greater(lengths, 0)
                self._empty += len(lengths) - _sum(has_values)
                self._lengths = _joined(self._lengths, _range_of(lengths.filter(has_values)))
            if kind.type:
                self._require_stated(kind.type, array.type)
                self._extend(kind.type, _TypeFacts(None))
            return
        type_, form = self._stated or StatedType(kind.type)
        fitted = fit(array, type_, self._rules, form)
        if fitted is None:
            raise self._refused(array.type)
        misfits = 0 if fitted.misfits is None else _sum(fitted.misfits)
        # Rows with a float beyond float32, or with a value that does not fit a stated type, are rejected.
        if misfits and type_ != "float" and not self._stated:
            raise SourceError(
                f"the column {self._name!r} holds {array.type} with {misfits} values that cannot be stored ("
                f"{_LIMITS[type_]}): correct them, or leave the column out with drop_columns"
            )
        if kind.type == "string" and type_ != "string":
            self._words.update(words_in(array, self._rules))
        self._missing += fitted.values.null_count - misfits
        values, floats = fitted.values, _FloatFacts(has_doubles=False)
        if fitted.doubles is not None:
            # -0.0 becomes 0.0.
            values = compute.add(without(fitted.doubles, compute.is_null(values)), 0.0)
            floats.has_doubles = array.type not in (pa.float32(), pa.float16())
            floats.add(values)
        self._extend(type_, _TypeFacts(values, _range_of(values), floats))

    def merge(self, other: "TypedFacts", moved: Callable[[str], str]) -> None:
        """Add the facts of other rows. `moved` is not needed, because no note names a row."""
        self._missing += other._missing
        self._words.update(other._words)
        self._are_lists |= other._are_lists
        self._lengths = _joined(self._lengths, other._lengths)
        self._empty += other._empty
        for kind, facts in other._of_types.items():
            self._extend(kind, facts)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        return {
            "missing": self._missing,
            "words": self._words,
            "are_lists": list(self._are_lists),
            "lengths": self._lengths,
            "empty": self._empty,
            "types": {kind: facts.to_json() for kind, facts in self._of_types.items()},
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Take the facts that `to_json` returned."""
        self._missing, self._words = content["missing"], Counter(content["words"])
        self._are_lists = set(content["are_lists"])
        self._lengths, self._empty = _range_from(content["lengths"]), content["empty"]
        self._of_types = {kind: _TypeFacts.from_json(facts, kind) for kind, facts in content["types"].items()}

    def column(self, role: Role) -> Column:
        """Return the column with its facts. Raises SourceError if its types cannot be joined."""
        types = frozenset(self._of_types)
        type_ = next(iter(types)) if len(types) == 1 else _JOINED.get(types)
        if (types and not type_) or len(self._are_lists) > 1:
            held = "lists and single values" if len(self._are_lists) > 1 else " and ".join(sorted(types))
            raise SourceError(f"the column {self._name!r} holds {held}: write it with one type in all files")
        if True in self._are_lists:
            return self._list_column(type_ or "string", role)
        if not type_:
            stated = self._stated or StatedType("string")
            return _column(self._name, role, stated.type, self._missing, pa.nulls(0), None, stated.format)
        facts = self._of_types.items()
        range_ = reduce(_joined, [_as_kind(each.range, narrow, type_) for narrow, each in facts])
        if type_ == "float" and not self._stated:
            type_ = self._of_types["float"].floats.type(range_, role)
        values = reduce(_union, [_as_type(each.values, narrow, type_) for narrow, each in facts])
        if values is not None and len(values) > self._limit:
            values = None
        form = self._stated.format if self._stated else ""
        return _column(self._name, role, type_, self._missing, values, _rounded(range_, type_), form)

    def _list_column(self, type_: ColumnType, role: Role) -> Column:
        low, high = cast(tuple[int, int], self._lengths or (0, 0))
        is_vector = type_ in VECTOR_TYPES and 0 < low == high <= MAX_POSITIONS
        length = low if is_vector else None
        # An empty list is a missing vector. If all lists are empty, they may be vectors of any length in a window.
        missing = self._missing + (self._empty if length or not self._lengths else 0)
        return Column(self._name, type_, is_list=True, role=role, missing=missing, length=length)

    def notes(self, column: Column) -> Iterator[str]:
        """Yield what is notable about the column, which `column` returned."""
        if self._words:
            yield notes.missing_values(self._name, self._words)
        if column.is_ragged and self._lengths:
            low, high = self._lengths
            yield notes.pooled(column, 0 if self._empty else int(low), int(high))
        if column.type == "float" and not column.is_list and (facts := self._of_types.get("float")):
            if facts.values is not None:
                facts.floats.count_doubles(facts.values)
            yield from facts.floats.notes(self._name)

    def _extend(self, kind: ColumnType, more: _TypeFacts) -> None:
        """Add the facts of further values of a type."""
        facts = self._of_types.setdefault(kind, _TypeFacts(pa.nulls(0, _TYPES[kind])))
        facts.range = _joined(facts.range, more.range)
        facts.floats.merge(more.floats)
        facts.values = values = _union(facts.values, more.values)
        if values is not None:
            size = _sum(compute.utf8_length(values)) if values.type == pa.large_string() else 0
            if len(values) > self._limit or size > _MAX_CHARACTERS:
                if kind == "float":
                    facts.floats.count_doubles(values)
                facts.values = None

    def _require_stated(self, held: ColumnType, type_: pa.DataType) -> None:
        """Raise SettingsError if lists hold another type than the settings state."""
        if self._stated and self._stated != StatedType(held):
            raise self._refused(type_)

    def _refused(self, type_: pa.DataType) -> SettingsError:
        assert self._stated
        return SettingsError(
            f"column_types states {self._stated.words} for the column {self._name!r}, which holds {type_}: state "
            "another type, or none"
        )


_TYPES: Mapping[ColumnType, pa.DataType] = {**RECORD_TYPES, "float": pa.float64()}
"""The type of Arrow of the different values of a type."""
_JOINED: Mapping[frozenset[ColumnType], ColumnType] = {
    frozenset(("int", "float")): "float",
    frozenset(("date", "time")): "time",
}
_LIMITS: Mapping[ColumnType, str] = {
    "int": "integers have 64 bits and a sign",
    "string": "bytes must be text in UTF-8",
    "date": "dates must be within 290,000 years of 1970",
    "time": "times must be within 290,000 years of 1970",
}


def _column(
    name: str,
    role: Role,
    type_: ColumnType,
    missing: int,
    values: pa.Array | None,
    range_: Range | None,
    form: str = "",
) -> Column:
    """Return a column from its different values, or None if there are too many, and its range."""
    # The values of keys and groups can be personal data, and no reader needs them.
    is_private = role in _PRIVATE
    low, high = (None, None) if is_private else map(_cut, range_ or (None, None))
    column = Column(name, type_, role=role, missing=missing, low=low, high=high, format=form)
    if values is None:
        return column
    values = values.drop_null()
    if type_ == "float":
        values = as_float32(values).unique()
    texts: Sequence[str] = ()
    if not is_private and (type_ == "string" or role == "label"):
        texts = tuple(_text_of(value, type_) for value in sorted(values.to_pylist()))
    return replace(column, distinct=len(values), values=texts)


def _cut(bound: Value | None) -> Value | None:
    """Return a bound of a range. Texts may have a million characters."""
    return bound[:_MAX_BOUND] if isinstance(bound, str) else bound


def _text_of(value: Value, type_: ColumnType) -> str:
    if type_ == "bool":
        return str(value).lower()
    return str(np.float32(value)) if type_ == "float" else str(value)


def _union(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    """Return the different values of two arrays; None if one of them has too many."""
    if one is None or other is None:
        return None
    return pa.concat_arrays([one, other.drop_null().unique()]).unique()


def _as_type(values: pa.Array | None, kind: ColumnType, type_: ColumnType) -> pa.Array | None:
    """Return values of one type as those of another one."""
    if values is None or kind == type_:
        return values
    if type_ == "time":
        return compute.multiply(values, DAY_US)
    if kind == "float":
        values = compute.round(values.filter(compute.is_finite(values)))  # The row of an infinite label is rejected.
    return values.cast(_TYPES[type_], safe=False)


def _as_kind(range_: Range | None, kind: str | None, wider: str) -> Range | None:
    """Return a range of integers or dates as one of floats or times."""
    if not range_ or kind == wider:
        return range_
    low, high = range_
    assert isinstance(low, int)
    assert isinstance(high, int)
    return (low * DAY_US, high * DAY_US) if wider == "time" else (float(low), float(high))


def _rounded(range_: Range | None, type_: ColumnType) -> Range | None:
    """Return a range in the form of the records: floats have 32 bits, and whole floats may be integers."""
    if range_ is None or type_ not in ("int", "float"):
        return range_
    low, high = (cast(float, bound) for bound in range_)
    return (round(low), round(high)) if type_ == "int" else (float(np.float32(low)), float(np.float32(high)))


def _range_of(values: pa.Array) -> Range | None:
    """Return the smallest and the largest value. Infinite floats do not count: nobody could scale by them."""
    if pa.types.is_floating(values.type):
        is_finite = compute.less(compute.abs(values), _MAX_FLOAT32)
        if not compute.all(is_finite, min_count=0).as_py():
            values = values.filter(is_finite)
    bounds = compute.min_max(values)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if isinstance(low, bool):
        low, high = int(low), int(high)
    return None if low is None else (low, high)


def _lengths_of(lists: pa.Array) -> pa.Array:
    """Return the lengths of lists. Lists with a missing element are left out, because their rows are rejected."""
    lengths = compute.list_value_length(lists)
    is_missing = compute.is_null(lists.flatten(), nan_is_null=True)
    if not _any(is_missing):
        return lengths
    parents = np.repeat(np.arange(len(lists)), lengths.to_numpy())
    return pa.array(np.delete(lengths.to_numpy(), parents[is_missing.to_numpy(zero_copy_only=False)]))


def _range_from(content: Sequence[Value] | None) -> Range | None:
    """Return a range that was stored as JSON."""
    return (content[0], content[1]) if content else None


def _joined_kind(one: str | None, other: str | None) -> str | None:
    """Return the kind of a column whose parts have these kinds."""
    if one == other or not one or not other:
        return one or other
    wider = {frozenset(("int", "float")): "float", frozenset(("date", "time")): "time"}
    return wider.get(frozenset((one, other)), "string")


def _joined(one: Range | None, other: Range | None) -> Range | None:
    if not one or not other:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _any(mask: pa.Array) -> bool:
    return bool(compute.any(mask, min_count=0).as_py())


def _sum(values: pa.Array) -> int:
    return compute.sum(values, min_count=0).as_py() or 0
