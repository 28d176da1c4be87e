"""Are the quotes of a CSV or TSV file in order? A stray one makes a parser take the rows behind it for one field.

By RFC 4180 a quoted field begins and ends with a quote, and a quote within it is doubled. Such a field may span lines.
Anything else is refused with the number of its line, instead of losing rows.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_LONGEST_ROW = 4 << 20
"""Characters of a row that is gathered. Behind a stray quote, it could be the rest of a file of gigabytes."""
_SHOWN = 80  # characters of a line in a sentence


def require_quotes(file: Path, delimiter: str, encoding: str) -> None:
    """Raise ValueError, naming the line, if a quote in `file` stands where none may."""
    cell = rf'(?:"(?:[^"]|"")*"|[^"{delimiter}\r\n]*)'
    whole = re.compile(rf"{cell}(?:{delimiter}{cell})*\r?\n?")
    # The mark that Excel puts in front would make the quote behind it a stray one.
    without_mark = "utf-8-sig" if encoding == "utf-8" else encoding
    with file.open(encoding=without_mark, errors="surrogateescape", newline="\n") as lines:
        for number, row in _rows_with_quotes(lines):
            if not whole.fullmatch(row):
                shown = row.partition("\n")[0][:_SHOWN]
                raise ValueError(
                    f"line {number} has a quote that does not belong to a quoted field, {shown!r}: enclose the whole "
                    "field in quotes, and double those within it"
                )


def _rows_with_quotes(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(number of its first line, row) of each row with a quote; a field that is left open takes lines up to a quote."""
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        if '"' not in line:
            continue
        row = [line]
        quotes = line.count('"')
        size = len(line)
        while quotes % 2 and size < _LONGEST_ROW and (after := next(numbered, None)):
            size += len(after[1])
            row.append(after[1])
            quotes += after[1].count('"')
        yield number, "".join(row)
