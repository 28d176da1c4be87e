"""Read JSON lines with Arrow, many lines at a time."""

import io
import re
from collections.abc import Callable, Iterator

import pyarrow as pa

_ROW = re.compile(r"in row (\d+)")


def tables_of_lines(
    stream: io.BufferedReader, parse: Callable[[bytes], pa.Table], max_bytes: int, advice: str
) -> Iterator[pa.Table]:
    """Yield the lines of a file, about `max_bytes` at a time. A line has at most as many.

    Args:
        stream: The file.
        parse: Returns lines as a table.
        max_bytes: About how many bytes are parsed at once.
        advice: What to do if a column has values of different types.

    Raises:
        ValueError: Arrow cannot parse a line. The error has its number.
    """
    rows = 0
    while block := stream.read(max_bytes):
        block += stream.readline(max_bytes)
        if len(block) == 2 * max_bytes and not block.endswith(b"\n"):
            raise ValueError(f"a line has more than {max_bytes >> 20} MiB")
        if block.isspace():
            continue
        try:
            table = parse(block)
        except pa.ArrowInvalid as error:
            # Arrow counts from the start of the block.
            reason = _ROW.sub(lambda match: f"in row {rows + int(match[1]) + 1}", str(error))  # noqa: B023
            # "Column()" is the line itself.
            is_of_column = "changed from" in reason and "Column()" not in reason
            raise ValueError(f"{reason}: {advice if is_of_column else 'each line must be one object'}") from error
        rows += table.num_rows
        yield table


def without_times(kind: pa.DataType) -> pa.DataType:
    """Return text for times. Arrow takes a text for a time if all others in its block are times, too."""
    if pa.types.is_list(kind):
        return pa.list_(without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_times(field.type)) for field in kind])
    return pa.string() if pa.types.is_timestamp(kind) else kind
