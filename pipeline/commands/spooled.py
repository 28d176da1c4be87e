"""A part of the result of a command that may not fit into memory, such as a prediction for each row of a table."""

import json
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class Spooled:
    """JSON values in a temporary file, which are read again one at a time. The file is removed with this object.

    All values are computed before the first one is printed, so that a command that fails prints no half of a result.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._file = tempfile.TemporaryFile(mode="w+", encoding="ascii", prefix="tenfold-")  # noqa: SIM115 - `finalize` closes it
        weakref.finalize(self, self._file.close)
        self._file.writelines(json.dumps(value) + "\n" for value in values)

    def __iter__(self) -> Iterator[Any]:
        """Yield the values. Only one loop at a time may do so."""
        return map(json.loads, self.lines())

    def lines(self) -> Iterator[str]:
        """Yield each value as a line of JSON."""
        self._file.seek(0)
        return iter(self._file)


def json_pieces(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pieces of one JSON object. Spooled values become an array, which is never in memory as a whole."""
    before = "{"
    for name, value in result.items():
        yield f"{before}{json.dumps(name)}: "
        yield from _array(value.lines()) if isinstance(value, Spooled) else (json.dumps(value),)
        before = ", "
    yield "}" if result else "{}"


def _array(lines: Iterable[str]) -> Iterator[str]:
    before = "["
    for line in lines:
        yield before + line.rstrip("\n")
        before = ", "
    yield "]" if before == ", " else "[]"
