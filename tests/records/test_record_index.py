"""The index of a file of records: its format is that of `tfrecord2idx`, and a damaged one is found."""

from itertools import pairwise
from pathlib import Path

import google_crc32c
import pytest

from pipeline.errors import DatasetError
from pipeline.records import tfrecord
from pipeline.records.record_index import index_of, offsets_of, sizes_of
from tests.published import indexes_by_tfrecord2idx

RECORDS = [b"", b"a", b"x" * 100_000, b"bb"]
SIZES = [16, 17, 100_016, 18]
INDEX = b"0 16\n16 17\n33 100016\n100049 18\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "some.tfrecord"
    file.write_bytes(b"".join(tfrecord.frame(record) for record in RECORDS))
    return file


def test_the_index_is_that_of_tfrecord2idx(path: Path, tmp_path: Path):
    assert index_of(SIZES) == indexes_by_tfrecord2idx(tmp_path)["some"] == INDEX


def test_the_writer_counts_the_records_that_it_writes(path: Path, tmp_path: Path):
    with (tmp_path / "ours").open("wb") as file:
        writer = tfrecord.RecordWriter(file.fileno())
        for record in RECORDS[:3]:  # One of them is large, and is written in another way.
            writer.write(record[:1], record[1:], google_crc32c.value(record[1:]))
        writer.write_framed(list(map(tfrecord.frame, RECORDS[3:])))
        writer.close()
    assert (tmp_path / "ours").read_bytes() == path.read_bytes()
    assert list(writer.sizes) == SIZES


def test_each_record_is_read_by_itself(path: Path):
    bounds = offsets_of(sizes_of(INDEX))
    assert [tfrecord.record_at(path, start, end - start) for start, end in pairwise(bounds)] == RECORDS


def test_a_file_without_records_has_an_empty_index():
    assert (index_of([]), list(sizes_of(b""))) == (b"", [])


@pytest.mark.parametrize(
    "index",
    [
        b"0 16\n16 17\n33 100016\n100050 18\n",  # a wrong offset
        b"0 16\n16 18\n33 100016\n100049 18\n",  # a wrong size
        b"16 17\n33 100016\n100049 18\n",  # lacks the first line
        b"0 16\n16 17\n33 10",
        b"0 16\n16\n",
        b"0 -16\n",
        b"0 16 \n",
        b"\0\0\0\0",
        b"0 99999999999999999999999\n",
        b"0 18000000000000000000\n18000000000000000000 18000000000000000000\n",  # the sum has more than 64 bits
    ],
)
def test_a_damaged_index_gives_no_sizes(index: bytes):
    assert sizes_of(index) is None


@pytest.mark.parametrize(
    ("offset", "size", "message"),
    [
        (16, 18, "record at byte 16 does not have the 18 bytes"),
        (15, 17, "record at byte 15 has a damaged header"),
        (10**9, 17, "has a damaged header"),
        (33, 100_016, "record at byte 33 is damaged"),
    ],
)
def test_a_record_that_is_damaged_or_elsewhere_is_refused(path: Path, offset: int, size: int, message: str):
    content = bytearray(path.read_bytes())
    content[33 + 5_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        tfrecord.record_at(path, offset, size)
