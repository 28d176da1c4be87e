"""The values of a column as they stand in records, from text or from the types of Arrow.

Whether a value fits a type depends on that value alone, never on the other values of its batch.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute

from pipeline.errors import SourceError
from pipeline.tables.schema import NO_RULES, ColumnType, TextRules

TEXT = {b"tenfold": b"text"}
"""The metadata of the schema of a batch whose strings are fields of CSV, or of one such column. The type of each column
must be inferred."""
RECORD_TYPES: Mapping[ColumnType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float32(),
    "bool": pa.bool_(),
    "string": pa.large_string(),
    "date": pa.int64(),
    "time": pa.int64(),
}
"""The type of Arrow of the values in a record. Dates are days, and times are microseconds, since 1970 in UTC."""
IntArray = np.ndarray[Any, np.dtype[np.int64]]
DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAN_TEXTS = [sign + "".join(letters) for sign in ("", "-") for letters in product("nN", "aA", "nN")]
"""The texts that mean NaN."""
_MAX_ALMOST = 2.0**24
"""A number below this one may be whole by its value in 32 bits, which hold all whole numbers below it."""
_MAX_TIME = 100
"""A time has at most this many characters."""
_HAS_ZONE = r"[T ].*(Z|[+-][0-9:]+)$"
"""Matches a time with a time zone."""
_IS_FINE = r"(\.[0-9]{6})[0-9]+"
"""Matches a time with more digits than those of microseconds."""

Parse = Callable[[pa.Array], pa.Array | None]
"""Returns the values of text, or None if any text does not fit the type. Missing text is a missing value."""


class ValueType(NamedTuple):
    """What a type of Arrow holds. `type` is None if every value is missing."""

    type: ColumnType | None
    is_list: bool = False


def value_type_of(kind: pa.DataType) -> ValueType | None:
    """Return what a type of Arrow holds; None if it is not supported: a map, a list of lists, and so on.

    A decimal without digits after the point is an integer. As a float, a long number would lose digits.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return value_type_of(kind.value_type)
    if is_list(kind):
        items = value_type_of(kind.value_type)
        return ValueType(items.type, is_list=True) if items and not items.is_list else None
    if types.is_null(kind):
        return ValueType(None)
    if types.is_decimal(kind):
        return ValueType("float" if kind.scale > 0 else "int")
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    binaries = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    tests: Mapping[ColumnType, Sequence[Callable[[pa.DataType], bool]]] = {
        "int": [types.is_integer],
        "float": [types.is_floating],
        "bool": [types.is_boolean],
        "string": [*texts, *binaries],
        "date": [types.is_date],
        "time": [types.is_timestamp],
    }
    return next((ValueType(name) for name, each in tests.items() if any(test(kind) for test in each)), None)


def require_supported(name: str, kind: pa.DataType) -> ValueType:
    """Return what a column holds. Raises SourceError if its type of Arrow is not supported."""
    if value_type := value_type_of(kind):
        return value_type
    raise SourceError(
        f"the column {name!r} holds {kind}, which is not supported: leave it out with drop_columns, or write its parts "
        "as columns of their own (text, numbers, dates, times, or lists of these)"
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type of Arrow is a list: of any length, large, or of a fixed size."""
    types = pa.types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _all(mask: pa.Array) -> bool:
    return bool(compute.all(mask, min_count=0).as_py())


def _any(mask: pa.Array) -> bool:
    return bool(compute.any(mask, min_count=0).as_py())


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


def _parse_ints(text: pa.Array) -> pa.Array | None:
    values = _cast(text, pa.int64())
    # Arrow also reads 007 and 0xF. They are codes, whose text must stay as it is.
    return values if values is not None and _all(compute.equal(values.cast(text.type), text)) else None


def _parse_floats(text: pa.Array) -> pa.Array | None:
    """Return float64, with NaN if the text says so."""
    values = _cast(text, pa.float64())
    if values is None or _has_code(text):
        return None
    if _any(compute.greater_equal(compute.abs(values), 2.0**63)) and _any(is_long_integer(text)):
        return None
    is_nan = compute.is_nan(values)
    # Arrow also reads nan(1).
    if _any(is_nan) and not all(map(is_nan_text, text.filter(is_nan).unique().to_pylist())):
        return None
    return values


def is_nan_text(text: str) -> bool:
    """Whether a text means NaN."""
    return text in _NAN_TEXTS


def without_nan(text: pa.Array) -> pa.Array:
    """Return text with nulls instead of NaN."""
    is_nan = compute.is_in(text, pa.array(_NAN_TEXTS, text.type))
    return without(text, is_nan) if _any(is_nan) else text


def is_long_integer(text: pa.Array) -> pa.Array:
    """Return which texts are integers beyond 64 bits. As floats, many of them would become one."""
    is_negative = compute.starts_with(text, "-")
    digits = compute.ascii_ltrim(text, "-")
    limit = compute.if_else(is_negative, str(2**63), str(2**63 - 1)).cast(text.type)
    length = compute.binary_length(digits)
    # Texts of one length are ordered like their numbers.
    is_as_long = compute.and_(compute.equal(length, 19), compute.greater(digits, limit))
    is_beyond = compute.or_(compute.greater(length, 19), is_as_long)
    return compute.and_(is_beyond, compute.match_substring_regex(digits, "^[1-9][0-9]{18,}$"))


def _has_code(text: pa.Array) -> bool:
    """Return whether any text begins with a plus sign, or with a zero before another digit, such as 007.5."""
    if _any(compute.starts_with(text, "+")):
        return True
    # A regular expression takes ten times as long as these functions, which leave hardly any text to it.
    zero = compute.or_(compute.starts_with(text, "0"), compute.starts_with(text, "-0"))
    if not _any(zero):
        return False
    point = compute.or_(compute.starts_with(text, "0."), compute.starts_with(text, "-0."))
    is_long = compute.greater(compute.binary_length(text), 1)
    suspicious = text.filter(compute.and_(compute.and_not(zero, point), is_long))
    return _any(compute.match_substring_regex(suspicious, "^-?0[0-9]"))


def _parse_bools(text: pa.Array) -> pa.Array | None:
    values = _bools(text)
    return values if values.null_count == text.null_count else None


def _bools(text: pa.Array) -> pa.Array:
    """Return which words are true; null for words that are neither true nor false."""
    words = compute.utf8_lower(text)
    is_true = compute.equal(words, "true")
    return compute.if_else(compute.or_(is_true, compute.equal(words, "false")), is_true, None)


def _parse_dates(text: pa.Array) -> pa.Array | None:
    values = _cast(text, pa.date32())
    return None if values is None else values.cast(pa.int32()).cast(pa.int64())


def _parse_times(text: pa.Array) -> pa.Array | None:
    """Return microseconds. A time without a time zone is in UTC."""
    present = text.drop_null()
    if not len(present):
        return pa.nulls(len(text), pa.int64())
    # The expressions below would take minutes for a text of a megabyte.
    if compute.max(compute.binary_length(present)).as_py() > _MAX_TIME:
        return None
    # A cast that fails takes thirty times as long as one that succeeds, so the first text decides which one is tried.
    first = present[0].as_py()
    kind = pa.timestamp("us", "UTC") if re.search(_HAS_ZONE, first) else pa.timestamp("us")
    if not re.search(_IS_FINE, first) and (values := _cast(text, kind)) is not None:
        return values.cast(pa.int64())
    # Some texts have a time zone and others none, or there are fractions finer than microseconds.
    text = compute.replace_substring_regex(text, _IS_FINE, r"\1")
    has_zone = compute.match_substring_regex(text, _HAS_ZONE)
    nothing = pa.scalar(None, text.type)
    without = _cast(compute.if_else(has_zone, nothing, text), pa.timestamp("us"))
    within = _cast(compute.if_else(has_zone, text, nothing), pa.timestamp("us", "UTC"))
    if without is None or within is None:
        return None
    return compute.coalesce(without.cast(pa.int64()), within.cast(pa.int64()))


PARSERS: Mapping[str, Parse] = {
    "int": _parse_ints,
    "float": _parse_floats,
    "bool": _parse_bools,
    "date": _parse_dates,
    "time": _parse_times,
}
"""The kinds of text in the order in which they are tried."""
_POSSIBLE: Mapping[str, str] = {
    "int": r"^(0|-?[1-9][0-9]{0,18})$",
    "float": r"^-?(((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|(?i:inf|infinity|nan))$",
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "time": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9].*)?$",
}
"""Text that does not match these expressions never fits the type. Most text that matches does."""


def parse_all(text: pa.Array, kind: str, rules: TextRules) -> pa.Array | None:
    """Return the values of text; None if any text does not fit the type. Floats are float64, with NaN."""
    return PARSERS[kind](_with_point(text, kind, rules))


def parse_fitting(text: pa.Array, kind: str, rules: TextRules = NO_RULES) -> pa.Array:
    """Return the values of text, null if the text does not fit the type. Floats are float64, with NaN."""
    if kind == "bool":
        return _bools(text)
    text, parse = _with_point(text, kind, rules), PARSERS[kind]
    values = parse(text)
    if values is not None:
        return values
    nothing = pa.scalar(None, text.type)
    possible = compute.if_else(compute.match_substring_regex(text, _POSSIBLE[kind]), text, nothing)
    if kind == "float":
        possible = compute.if_else(is_long_integer(possible), nothing, possible)
    return _parse_halves(possible, parse)


def _with_point(text: pa.Array, kind: str, rules: TextRules) -> pa.Array:
    """Return numbers with a decimal point, if they have a comma. A point is then no part of a number."""
    if not rules.decimal_comma or kind not in ("int", "float"):
        return text
    return compute.replace_substring(compute.replace_substring(text, ".", "x"), ",", ".")


def _parse_halves(text: pa.Array, parse: Parse) -> pa.Array:
    """Halve the text until each part fits, or is one text that does not."""
    values = parse(text)
    if values is not None:
        return values
    if len(text) == 1:
        nothing = parse(pa.nulls(1, text.type))
        assert nothing is not None
        return nothing
    middle = len(text) // 2
    return pa.concat_arrays([_parse_halves(text[:middle], parse), _parse_halves(text[middle:], parse)])


def are_whole(doubles: pa.Array) -> bool:
    """Whether all finite numbers are whole, and small enough for a double to hold each of them exactly."""
    finite = doubles.filter(compute.is_finite(doubles))
    return _all(compute.and_(_is_whole(finite), compute.less(compute.abs(finite), 2.0**53)))


def are_almost_whole(doubles: pa.Array) -> bool:
    """Whether all finite numbers are whole in 32 bits, such as (0.1 + 0.2) * 10, and small enough for that."""
    finite = as_float32(doubles.filter(compute.is_finite(doubles)))
    return _all(compute.and_(_is_whole(finite), compute.less(compute.abs(finite), _MAX_ALMOST)))


def cleaned(text: pa.Array, rules: TextRules) -> pa.Array:
    """Return text without blanks around it, and null instead of an empty text or a missing value.

    Such text is that of a column of numbers, dates, times or truth values.
    """
    return without_words(without_empty(stripped(text)), rules)


def without_words(text: pa.Array, rules: TextRules) -> pa.Array:
    """Replace the texts that `rules` call missing values by null, with or without blanks around them."""
    is_word = compute.is_in(stripped(text), pa.array(rules.missing, text.type))
    return without(text, is_word) if _any(is_word) else text


def words_in(column: pa.Array, rules: TextRules) -> Counter[str]:
    """Return how many values of a column of text are which missing value."""
    text = stripped(_strings(column))
    words = text.filter(compute.is_in(text, pa.array(rules.missing, text.type)))
    return Counter({each["values"]: each["counts"] for each in words.value_counts().to_pylist()})


def stripped(text: pa.Array) -> pa.Array:
    """Return text without blanks around it."""
    return compute.utf8_trim_whitespace(text)


@lru_cache(8)
def have_values(words: Sequence[str]) -> bool:
    """Whether a missing value looks like a number, a date, a time or a truth value, such as -999."""
    text = pa.array([word for word in words if not is_nan_text(word)], pa.large_string())
    return any(parse_fitting(text, kind).null_count < len(text) for kind in PARSERS)


class Fitted(NamedTuple):
    """Values in the type of records, and which of the given values do not fit it (None: all fit).

    A value is null if it is missing or does not fit.
    """

    values: pa.Array
    misfits: pa.Array | None
    doubles: pa.Array | None = None
    """Floats before they are rounded to 32 bits. Those that do not fit are among them."""


def fit(array: pa.Array, kind: ColumnType, rules: TextRules = NO_RULES, form: str = "") -> Fitted | None:
    """Return the values of an array of Arrow in the type of records.

    NaN is missing, and so is an empty text unless `kind` is a string. Finite values beyond float32 do not fit.

    Args:
        array: Values of a supported type, without lists.
        kind: The type of the values to return.
        rules: How texts become values.
        form: The format of texts that are dates or times. Empty: ISO 8601.

    Returns:
        The values, or None if an array of this type has no values of `kind`.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    given = value_type_of(array.type)
    assert given is not None
    assert not given.is_list
    if given.type is None:
        return Fitted(pa.nulls(len(array), RECORD_TYPES[kind]), None)
    if given.type == "float" and kind == "int" and not pa.types.is_decimal(array.type):
        array = without(array, compute.is_nan(array))
    if given.type == "string" and kind != "string":
        array = without_empty(array)
        values, is_missing = _values_of_text(_strings(array), kind, rules, form)
        array = without(array, is_missing) if is_missing is not None else array
    elif convert := _CONVERSIONS.get((given.type, kind)):
        values = convert(array)
        if kind == given.type == "string" and rules.strip:
            values = stripped(values)
    else:
        return None
    misfits = None
    if values.null_count > array.null_count:
        misfits = compute.and_(compute.is_valid(array), compute.is_null(values))
    return _fit_float32(values, misfits) if kind == "float" else Fitted(values, misfits)


def _values_of_text(text: pa.Array, kind: ColumnType, rules: TextRules, form: str) -> tuple[pa.Array, pa.Array | None]:
    """Return the values of text, and which texts mean a missing value (None: none does)."""
    # Most columns have neither blanks nor missing values, so they are parsed as they are.
    if not form and not have_values(rules.missing) and (values := parse_all(text, kind, rules)) is not None:
        return values, None
    clean = cleaned(text, rules)
    if kind == "int":
        clean = without_nan(clean)
    is_missing = compute.and_(compute.is_valid(text), compute.is_null(clean))
    if form:
        return _of_format(clean, kind, form), is_missing
    values = parse_fitting(clean, kind, rules)
    if kind == "int":
        # pandas makes floats of integers if some are missing, and writes them as 1.0.
        rest = without(clean, compute.is_valid(values))
        values = compute.coalesce(values, _whole(parse_fitting(rest, "float", rules)))
    return values, is_missing


def _of_format(text: pa.Array, kind: ColumnType, form: str) -> pa.Array:
    """Return the dates or times of text in a format of Python. Text in another format becomes null.

    Arrow's parser takes February 31 for March 3.
    """
    encoded = text.dictionary_encode()
    values = [_moment(each, kind, form) for each in encoded.dictionary.to_pylist()]
    return pa.array(values, pa.int64()).take(encoded.indices)


def _moment(text: str, kind: ColumnType, form: str) -> int | None:
    """Return days or microseconds since 1970. A time without a time zone is in UTC."""
    try:
        moment = datetime.strptime(text, form)
    except ValueError:
        return None
    if kind == "date":
        return moment.toordinal() - _EPOCH.toordinal()
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def without_empty(text: pa.Array) -> pa.Array:
    """Replace empty text by null."""
    is_empty = compute.equal(compute.binary_length(text), 0)
    return without(text, is_empty) if _any(is_empty) else text


def without_empty_text(column: pa.Array, rules: TextRules = NO_RULES) -> pa.Array:
    """Replace empty text by null in a column of text. Other columns are returned unchanged."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if value_type_of(column.type) != ValueType("string"):
        return column
    return without_empty(stripped(_strings(column)) if rules.strip else column)


def label_values(column: pa.Array, rules: TextRules) -> tuple[pa.Array, Counter[str]]:
    """Return the values of a label, and how many of them are which missing value. Only texts can be one."""
    if value_type_of(column.type) != ValueType("string") or not rules.missing:
        return column, Counter()
    words = words_in(column, rules)
    return (without_words(_strings(column), rules) if words else column), words


def without(array: pa.Array, mask: pa.Array) -> pa.Array:
    """Replace the values that the mask names by null."""
    return compute.if_else(mask, pa.scalar(None, array.type), array)


def as_float32(doubles: pa.Array) -> pa.Array:
    """Return floats of 32 bits. Finite values beyond them become infinite, and -0.0 becomes 0.0.

    With two zeros, the number of different values and the smallest one would depend on the order of rows.
    """
    return compute.add(doubles.cast(pa.float32(), safe=False), pa.scalar(0.0, pa.float32()))


def _fit_float32(doubles: pa.Array, misfits: pa.Array | None) -> Fitted:
    values = as_float32(doubles)
    is_nan, is_infinite = compute.is_nan(values), compute.is_inf(values)
    if _any(is_nan):
        values = without(values, is_nan)
    if _any(is_infinite):
        beyond = compute.fill_null(compute.and_(is_infinite, compute.is_finite(doubles)), False)
        if _any(beyond):
            values = without(values, beyond)
            misfits = beyond if misfits is None else compute.or_(misfits, beyond)
    return Fitted(values, misfits, doubles)


def _strings(array: pa.Array) -> pa.Array:
    """Return text as large_string. Bytes that are not UTF-8 become null."""
    try:
        return array.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(each) for each in array.to_pylist()], pa.large_string())


def _decoded(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


def _ints(array: pa.Array) -> pa.Array:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.decimal256(76, 0))
        low, high = (pa.scalar(Decimal(bound), array.type) for bound in (-(2**63), 2**63 - 1))
        array = without(array, compute.or_(compute.less(array, low), compute.greater(array, high)))
    elif array.type == pa.uint64():
        array = without(array, compute.greater(array, pa.scalar(2**63 - 1, pa.uint64())))
    return array.cast(pa.int64())


def doubles_of(array: pa.Array) -> pa.Array:
    """Return numbers as floats of 64 bits."""
    if pa.types.is_decimal(array.type):
        # The cast of a decimal to a float is not always the nearest float. That of text is, as for CSV.
        array = array.cast(pa.string())
    return array.cast(pa.float64(), safe=False)


def _whole(array: pa.Array) -> pa.Array:
    """Return floats as integers, null if they have a fraction. pandas makes floats of integers if some are missing."""
    doubles = doubles_of(array)
    # A larger decimal is rounded as a double. A larger double is a whole number.
    limit = 2.0**53 if pa.types.is_decimal(array.type) else 2.0**63
    is_whole = compute.and_(_is_whole(doubles), compute.less(compute.abs(doubles), pa.scalar(limit)))
    rounded = as_float32(doubles).cast(pa.float64())
    is_almost = compute.and_(_is_whole(rounded), compute.less(compute.abs(rounded), _MAX_ALMOST))
    nothing = pa.scalar(None, pa.float64())
    values = compute.if_else(is_whole, doubles, compute.if_else(is_almost, rounded, nothing))
    return values.cast(pa.int64())


def _is_whole(doubles: pa.Array) -> pa.Array:
    return compute.equal(compute.trunc(doubles), doubles)


def _days(array: pa.Array) -> pa.Array:
    if pa.types.is_date64(array.type):
        return _computed(array, lambda milliseconds: milliseconds // (DAY_US // 1000))
    return array.cast(pa.int32()).cast(pa.int64())


def _microseconds(array: pa.Array) -> pa.Array:
    if array.type.unit == "ns":
        # A cast would round times before 1970 up.
        return _computed(array, lambda nanoseconds: nanoseconds // 1000)
    return _multiplied(array.cast(pa.int64()), {"s": 1_000_000, "ms": 1000, "us": 1}[array.type.unit])


def _multiplied(values: pa.Array, factor: int) -> pa.Array:
    """Multiply integers. A product beyond 64 bits becomes null."""
    if factor == 1:
        return values
    is_beyond = compute.greater(compute.abs(values), (2**63 - 1) // factor)
    return compute.multiply(without(values, is_beyond), factor)


def _computed(array: pa.Array, function: Callable[[IntArray], IntArray]) -> pa.Array:
    """Apply a function of NumPy to the integers of an array."""
    integers = compute.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return pa.array(function(integers), mask=compute.is_null(array).to_numpy(zero_copy_only=False))


_CONVERSIONS: Mapping[tuple[ColumnType, ColumnType], Callable[[pa.Array], pa.Array]] = {
    ("int", "int"): _ints,
    ("int", "float"): doubles_of,
    ("float", "float"): doubles_of,
    ("float", "int"): _whole,
    ("bool", "bool"): lambda array: array,
    ("string", "string"): _strings,
    ("int", "string"): lambda array: array.cast(pa.large_string()),
    ("bool", "string"): lambda array: array.cast(pa.large_string()),
    ("date", "date"): _days,
    ("date", "time"): lambda array: _multiplied(_days(array), DAY_US),
    ("time", "time"): _microseconds,
}
"""The conversions from the type of an array to that of the schema. They return null for values that do not fit."""
