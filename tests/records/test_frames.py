"""Many records are framed at once as TensorFlow and `frame` frame them one by one."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.records.byte_arrays import joined
from pipeline.records.frames import framed
from pipeline.records.tfrecord import Writer, data_of, ends_of, frame, read_records, writer_of

DATA = [random.Random(number).randbytes(number % 700) for number in range(1, 1500)]


def frames(contents: list[bytes]) -> list[bytes]:
    return joined(*framed(pa.array(contents, pa.large_binary()))).to_pylist()


def test_records_are_those_of_frame():
    assert frames(DATA) == list(map(frame, DATA))
    assert frames([b"abc"] * 3) == [frame(b"abc")] * 3
    assert frames([]) == []
    assert list(map(data_of, frames(DATA))) == DATA


def test_a_slice_has_the_records_of_the_slice():
    assert joined(*framed(pa.array(DATA, pa.large_binary())[3:70])).to_pylist() == list(map(frame, DATA[3:70]))


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_framed_records_make_the_file_of_single_records(tmp_path: Path, name: str):
    one, other = tmp_path / "one" / name, tmp_path / "other" / name
    writers: list[Writer] = []
    for path in (one, other):
        path.parent.mkdir()
        with path.open("wb") as file:
            writer = writer_of(path, file)
            if path is one:
                for data in DATA:
                    writer.write(b"", data, 0)
            else:
                for start in range(0, len(DATA), 100):
                    writer.write_framed(frames(DATA[start : start + 100]))
                writer.write_framed([])
            writer.close()
            writers.append(writer)
    assert one.read_bytes() == other.read_bytes()
    assert list(read_records(other)) == DATA
    assert {(writer.size, writer.crc32c, writer.ends) for writer in writers} == {
        (other.stat().st_size, writers[0].crc32c, ends_of(other))
    }
