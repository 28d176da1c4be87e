"""The dialect of CSV files: their encoding and delimiter, and where their header is."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.system.wording import shortened

_DELIMITERS = ";\t|,"
"""The delimiters that a first line may have, the most likely one first."""
_NUMBER = re.compile(r"[-+]?\d[\d.,:/ -]*")
"""Matches a number or a date. The name of a column is hardly one."""
_MAX_SHOWN = 80
"""An error shows at most this many characters of a line."""


@dataclass(frozen=True)
class Dialect:
    """How CSV files are written."""

    encoding: str = "utf-8"
    delimiter: str = ""
    """Empty: as the name of a file says."""
    names: Sequence[str] = ()
    """The names of the columns of files without a header."""
    skipped_lines: int = 0
    """Number of lines before the header, or before the first row of a file without a header."""

    @property
    def header_lines(self) -> int:
        """The number of lines before the first row."""
        return self.skipped_lines + (not self.names)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Dialect":
        """Return the dialect that `asdict` described."""
        return cls(**{**content, "names": tuple(content["names"])})


DEFAULT_DIALECT = Dialect()


def advice_on(line: str, delimiter: str, dialect: Dialect) -> str:
    """Return what the line of the header of a CSV file looks like, and the setting for it. Empty if it is a header."""
    line = line.rstrip("\r\n")
    fields = line.split(delimiter)
    if line.startswith("#"):
        advice = "is a comment: set csv_skip_lines to the number of lines before the header"
    elif other := next((each for each in _DELIMITERS if each != delimiter and len(line.split(each)) > len(fields)), ""):
        advice = f"has another delimiter: set csv_delimiter to {other!r}"
    elif not dialect.names and any(_NUMBER.fullmatch(each.strip()[:_MAX_SHOWN]) for each in fields):
        advice = "looks like a row: if the file has no header, set csv_columns to the names of its columns"
    else:
        return ""
    which = f"line {dialect.skipped_lines + 1}" if dialect.skipped_lines else "first line"
    return f". Its {which}, {shortened(line, _MAX_SHOWN)!r}, {advice}"
