"""Arrays of bytes are joined and cut as Python joins and cuts the bytes of each row."""

import pyarrow as pa
import pytest

from pipeline.records.byte_arrays import BYTES, heads_of, joined, values

CONTENT = [b"", b"a", b"bc" * 300, b"\0\n", b"d"]


@pytest.mark.parametrize("part", [slice(0, 5), slice(1, 4), slice(2, 2)])
def test_values_are_those_of_the_slice(part: slice):
    assert values(pa.array(CONTENT, BYTES)[part]) == CONTENT[part]


def test_parts_are_joined_for_each_row():
    array = pa.array(CONTENT, BYTES)
    assert values(joined(b"<", array, pa.scalar(b"-", BYTES), array, b">")) == [
        b"<%b-%b>" % (each, each) for each in CONTENT
    ]


def test_a_head_is_made_once_for_each_length():
    made: list[int] = []

    def head_of(length: int) -> bytes:
        made.append(length)
        return b"%d" % length

    assert values(heads_of(pa.array([3, 1, 3, 3], pa.int64()), head_of)) == [b"3", b"1", b"3", b"3"]
    assert made == [3, 1]
    assert heads_of(pa.array([3, 3], pa.int64()), head_of).as_py() == b"3"
