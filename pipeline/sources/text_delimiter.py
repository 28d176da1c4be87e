"""Which character divides the fields of a text file whose name does not tell."""

import csv
from collections.abc import Iterable
from itertools import islice

_DELIMITERS = "\t;|,"
"""The delimiters of `.txt` files, the most likely one first."""


def delimiter_of_text(lines: Iterable[str]) -> str | None:
    """Return the delimiter of a `.txt` file by its first lines.

    None if the first two lines are not rows with the same number of fields, at least two.
    """
    first = list(islice(lines, 2))
    fields = {}
    for delimiter in _DELIMITERS:
        try:
            counts = [len(row) for row in csv.reader(first, delimiter=delimiter)]
        except csv.Error:
            continue
        if len(counts) == 2 and 1 < counts[0] == counts[1]:
            fields[delimiter] = counts[0]
    return max(fields, key=lambda delimiter: fields[delimiter], default=None)
