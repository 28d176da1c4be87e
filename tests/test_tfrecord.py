from pathlib import Path

import pytest

from pipeline import tfrecord
from pipeline.errors import DatasetError

RECORDS = [b"", b"a", b"x" * 100_000]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "some.tfrecord"
    file.write_bytes(b"".join(tfrecord.frame(record) for record in RECORDS))
    return file


def test_records_come_back(path: Path):
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
    ("position", "words"),
    [
        (0, "record at byte 0 has a damaged header"),
        (9, "record at byte 0 has a damaged header"),
        (16 + 12, "record at byte 16 is damaged"),  # the one byte of the second record
        (16 + 14, "record at byte 16 is damaged"),  # its checksum
        (16 + 17 + 5_000, "record at byte 33 is damaged"),
    ],
)
def test_a_flipped_bit_is_found_with_its_offset(path: Path, position: int, words: str):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=words):
        list(tfrecord.read_records(path))


@pytest.mark.parametrize(("cut", "words"), [(1, "cut short"), (100_010, "damaged header")])
def test_a_cut_file_is_found(path: Path, cut: int, words: str):
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DatasetError, match=words):
        list(tfrecord.read_records(path))
