"""Settings that are lists or mappings. The command line and the form also give them as text."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

COLUMN_TYPES = ("int", "float", "bool", "string", "date", "time")
"""The types that `column_types` can state."""


def _list_of(value: Any) -> Any:
    """Return a list from text: JSON, or texts with commas between them."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _parsed(value, "a list")
    return [text.strip() for text in value.split(",")] if value.strip() else []


def _mapping_of(value: Any) -> Any:
    """Return a mapping from JSON as text."""
    if not isinstance(value, str):
        return value
    return _parsed(value, "an object") if value.strip() else {}


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be {what} in JSON ({error})") from None


def _without_blanks(texts: list[str]) -> list[str]:
    return [text.strip() for text in texts if text.strip()]


def _of_known_types(types: Mapping[str, str]) -> Mapping[str, str]:
    for column, stated in types.items():
        kind, colon, form = stated.partition(":")
        if kind not in COLUMN_TYPES:
            raise ValueError(
                f"must state {', '.join(COLUMN_TYPES)}, or date or time with a colon and a format, for the column "
                f"{column!r}"
            )
        if colon:
            _require_format(column, kind, form)
    return types


def _require_format(column: str, kind: str, form: str) -> None:
    try:
        if kind not in ("date", "time") or "%" not in form:
            raise ValueError("only a date or a time has a format, such as %d.%m.%Y")
        now = datetime(2026, 1, 31, 12)
        # A format without a zone cannot read one.
        datetime.strptime(now.astimezone().strftime(form), form)
    except ValueError as error:
        raise ValueError(f"must state a format of Python's strptime for the column {column!r} ({error})") from None


Texts = Annotated[list[str], BeforeValidator(_list_of), AfterValidator(_without_blanks)]
"""A list of texts, without blanks around them and without empty ones."""
Names = Annotated[list[str], BeforeValidator(_list_of)]
"""A list of names, as they are."""
ColumnTypes = Annotated[dict[str, str], BeforeValidator(_mapping_of), AfterValidator(_of_known_types)]
"""The type of each column, by its name or a pattern."""
