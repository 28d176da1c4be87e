"""What the log and the dataset card say about the columns of a table, one sentence for each fact."""

import re
from collections.abc import Mapping

from pipeline.system.wording import MAX_EXAMPLES, counted, first_of
from pipeline.tables.schema import MAX_POSITIONS, VECTOR_TYPES, Column

Samples = Mapping[str, str]
"""Some values, each with the file and the row of the first one."""
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
"""Matches numbers with commas between thousands. With one comma, it may be a decimal one, too."""
_POOLED_NUMBERS = ("numbers", "the mean of their logarithms")
_POOLED = {
    "bool": ("truth values", "the share of the true ones"),
    "string": ("texts", "the mean of their embeddings, without their order"),
    "date": ("dates", "the mean of their logarithms"),
    "time": ("times", "the mean of their logarithms"),
}
"""By type, what lists hold, and what the model `mlp` makes of a list."""


def missing_values(name: str, texts: Mapping[str, int]) -> str:
    """Say which texts are missing values. `texts` has the number of each."""
    ordered = sorted(texts, key=lambda text: (-texts[text], text))
    shown = first_of([f"{counted(texts[text], 'value')} {text!r}" for text in ordered], MAX_EXAMPLES)
    return f"column {name!r}: {shown} {'is' if sum(texts.values()) == 1 else 'are'} missing"


def few_texts(name: str, *, held: str, type_: str, misfits: int, values: int, samples: Samples, has_point: bool) -> str:
    """Say that few values make a column one of texts.

    `held` is what the other values are, `type_` their type. `has_point` says whether any of them has a decimal point.
    """
    advice = f'Add them to missing_values, or set column_types={{"{name}": "{type_}"}} to reject their rows'
    if type_ in ("int", "float") and samples and all(_THOUSANDS.fullmatch(text) for text in samples):
        advice = "If the commas are thousands separators, write the numbers without them"
    elif type_ == "float" and not has_point and all(re.fullmatch(r"-?\d+,\d+", text) for text in samples):
        advice = "If the comma is a decimal one, set decimal_comma=true"
    return (
        f"column {name!r} holds texts, because {misfits} of {counted(values, 'value')} are not {held}, such as "
        f"{_places(samples)}. {advice}"
    )


def codes(name: str, count: int, samples: Samples) -> str:
    """Say that a column of digits is one of texts, because some begin with a zero."""
    return (
        f"column {name!r} holds texts, because {counted(count, 'value')} such as {_places(samples)} would lose a zero "
        "as numbers"
    )


def long_integers(name: str, count: int, samples: Samples) -> str:
    """Say that a column of integers is one of texts, because some have too many digits."""
    return (
        f"column {name!r} holds texts, because {counted(count, 'integer')} such as {_places(samples)} "
        f"{'needs' if count == 1 else 'need'} more than 64 bits"
    )


def rounded(name: str, before: int, after: int) -> str:
    """Say that different numbers become equal in records."""
    return (
        f"column {name!r}: {before} different numbers become {after} in the records, which hold floats of 32 bits. "
        "Store them as integers or as times, which keep all digits, or subtract a number from them"
    )


def pooled(column: Column, shortest: int, longest: int) -> str:
    """Say what a model sees of lists that are no vectors. `shortest` and `longest` are their lengths."""
    noun, seen = _POOLED.get(column.type, _POOLED_NUMBERS)
    lengths = str(longest) if shortest == longest else f"{shortest} to {longest}"
    advice = ""
    if column.type in VECTOR_TYPES and longest > MAX_POSITIONS:
        advice = f". A vector has at most {MAX_POSITIONS:,} values"
    elif column.type in VECTOR_TYPES:
        advice = ". If all lists had one length, the model would see each number"
    return f"column {column.name!r}: lists of {lengths} {noun}; the model sees {seen}{advice}"


def alike(column: Column) -> str:
    """Say which texts of a column differ only by blanks or case. Empty if none do."""
    groups: dict[str, list[str]] = {}
    for text in column.values if column.type == "string" else ():
        groups.setdefault(text.strip().casefold(), []).append(text)
    equal = [texts for texts in groups.values() if len(texts) > 1]
    if not equal:
        return ""
    shown = first_of([" and ".join(map(repr, texts[:MAX_EXAMPLES])) for texts in equal], MAX_EXAMPLES)
    noun = "classes" if column.role == "label" else "values"
    has_blanks = any(len({text.strip() for text in texts}) < len(texts) for texts in equal)
    advice = "set strip_texts=true to remove the blanks" if has_blanks else "write each in one way"
    number = "two" if len(equal) == 1 and len(equal[0]) == 2 else "different"
    return f"column {column.name!r}: {shown} are {number} {noun}: {advice}"


def empty_rows(count: int) -> str:
    """Say that rows without any value were left out."""
    return f"{counted(count, 'row')} without any value {'was' if count == 1 else 'were'} left out"


def _places(samples: Samples) -> str:
    return " and ".join(f"{text!r} ({place})" for text, place in samples.items())
