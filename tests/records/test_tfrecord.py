import os
from pathlib import Path

import google_crc32c
import pytest

from pipeline.errors import DatasetError
from pipeline.records import tfrecord
from pipeline.storage import crc32c_of

RECORDS = [b"", b"a", b"x" * 100_000]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "some.tfrecord"
    file.write_bytes(b"".join(tfrecord.frame(record) for record in RECORDS))
    return file


def test_records_survive_a_round_trip(path: Path):
    assert list(tfrecord.read_records(path)) == RECORDS


def test_tensorflow_reads_the_same_records(path: Path):
    import tensorflow as tf

    assert [record.numpy() for record in tf.data.TFRecordDataset(str(path))] == RECORDS


def test_tensorflow_writes_the_same_bytes(path: Path, tmp_path: Path):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in RECORDS:
            writer.write(record)
    assert (tmp_path / "theirs").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (0, "record at byte 0 has a damaged header"),
        (9, "record at byte 0 has a damaged header"),
        (16 + 12, "record at byte 16 is damaged"),  # the one byte of the second record
        (16 + 14, "record at byte 16 is damaged"),  # its checksum
        (16 + 17 + 5_000, "record at byte 33 is damaged"),
    ],
)
def test_a_flipped_bit_is_reported_with_its_offset(path: Path, position: int, message: str):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        list(tfrecord.read_records(path))


@pytest.mark.parametrize(("cut", "message"), [(1, "cut short"), (100_010, "damaged header")])
def test_a_truncated_file_is_an_error(path: Path, cut: int, message: str):
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DatasetError, match=message):
        list(tfrecord.read_records(path))


@pytest.mark.parametrize("ending", [".tfrecord", ".tfrecord.gz"])
@pytest.mark.parametrize("sizes", [[], [0, 1, 100], [1000] * 3000, [110_000] * 7, [5, 400_000, 65_535, 65_536, 3]])
def test_records_written_in_two_parts_are_read_by_us_and_by_tensorflow(tmp_path: Path, sizes: list[int], ending: str):
    import tensorflow as tf

    path = tmp_path / f"some{ending}"
    parts = [(b"before %d" % number, bytes([number % 251]) * size) for number, size in enumerate(sizes)]
    with open(path, "wb") as file:
        writer = tfrecord.writer_of(path, file)
        for before, body in parts:
            writer.write(before, body, google_crc32c.value(body))
        writer.close()
    records = [before + body for before, body in parts]
    assert list(tfrecord.read_records(path)) == records
    theirs = tf.data.TFRecordDataset(str(path), compression_type="GZIP" if ending.endswith("gz") else "")
    assert [record.numpy() for record in theirs] == records
    assert (writer.size, writer.crc32c) == (path.stat().st_size, crc32c_of(path))


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Partial writes are simulated, because no real disk makes them on request."""
    whole, taken = os.writev, []
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: taken.append(1) or whole(descriptor, parts[:1]))
    with open(tmp_path / "some.tfrecord", "wb") as file:
        writer = tfrecord.RecordWriter(file.fileno())
        for body in (b"a" * 300_000, b"b" * 300_000):
            writer.write(b"before", body, google_crc32c.value(body))
        writer.close()
    assert len(taken) == 2
    assert list(tfrecord.read_records(tmp_path / "some.tfrecord")) == [b"before" + c * 300_000 for c in (b"a", b"b")]


def test_gzip_streams_do_not_depend_on_the_time(tmp_path: Path):
    for name in ("a.tfrecord.gz", "b.tfrecord.gz"):
        with open(tmp_path / name, "wb") as file:
            writer = tfrecord.GzipRecordWriter(file.fileno())
            writer.write(b"before", b"body", google_crc32c.value(b"body"))
            writer.close()
    content = (tmp_path / "a.tfrecord.gz").read_bytes()
    assert content == (tmp_path / "b.tfrecord.gz").read_bytes()
    assert content[4:8] == bytes(4)  # the time in the header
    (tmp_path / "a.tfrecord.gz").write_bytes(content[:-9])
    with pytest.raises(DatasetError, match="compressed stream is damaged"):
        list(tfrecord.read_records(tmp_path / "a.tfrecord.gz"))
