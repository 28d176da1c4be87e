"""Check the quotes of a CSV or TSV file. After a stray quote, a parser reads the following rows as one field.

In RFC 4180, a quoted field begins and ends with a quote, and a quote within it is doubled. Such a field may span lines.
Any other quote is an error that names the line, because rows would be lost.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_MAX_ROW = 4 << 20
"""A row has at most this many characters. After a stray quote, it could be the rest of a file of gigabytes."""
_SHOWN = 80
"""An error message shows at most this many characters of a line."""


def require_quotes(file: Path, delimiter: str, encoding: str) -> None:
    """Raise ValueError with the line number if `file` has a quote in a wrong position."""
    # Excel writes a byte order mark. As a character of the first field, it would make a quote after it a stray one.
    without_mark = "utf-8-sig" if encoding == "utf-8" else encoding
    with file.open(encoding=without_mark, errors="surrogateescape", newline="") as lines:
        require_quotes_of_lines(lines, delimiter)


def require_quotes_of_lines(lines: Iterable[str], delimiter: str, first: int = 1) -> None:
    """Raise ValueError with the line number if a file with these lines has a quote in a wrong position.

    `first` is the number of the first line.
    """
    delimiter = re.escape(delimiter)
    cell = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{delimiter}\r\n]*)'
    whole = re.compile(rf"{cell}(?:{delimiter}{cell})*(?:\r\n|\r|\n)?")
    for number, row in _rows_with_quotes(lines, first):
        if not whole.fullmatch(row):
            shown = row.partition("\n")[0][:_SHOWN]
            raise ValueError(
                f"line {number} has a quote that does not belong to a quoted field, {shown!r}: enclose the whole "
                "field in quotes, and double each quote within it"
            )


def _rows_with_quotes(lines: Iterable[str], first: int) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, row) for each row with a quote. An open field continues up to the next quote."""
    numbered = enumerate(lines, first)
    for number, line in numbered:
        if '"' not in line:
            continue
        row = [line]
        quotes = line.count('"')
        size = len(line)
        # An odd number of quotes leaves a field open, since a quote within a field is doubled.
        while quotes % 2 and size < _MAX_ROW and (after := next(numbered, None)):
            size += len(after[1])
            row.append(after[1])
            quotes += after[1].count('"')
        yield number, "".join(row)
