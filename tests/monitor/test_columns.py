"""The columns of a record: the same values as the table, although only one column is read at a time."""

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from pipeline.monitor import read
from pipeline.monitor.columns import BatchColumns
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row


def write(sink: RecordSink, steps: range, **values: float) -> None:
    for step in steps:
        sink.write(Row("batches", 1000.0 + step, step, {"x": step / 2, **values}))


@pytest.mark.parametrize("closes", [True, False])
def test_columns_are_those_of_the_table(tmp_path: Path, closes: bool) -> None:
    """The second process repeats steps 4 and 5, and has another metric."""
    first, second = RecordSink(tmp_path, segment_bytes=40), RecordSink(tmp_path)
    write(first, range(1, 6), y=1.0)
    first.close()
    write(second, range(4, 9), z=2.0)
    if closes:
        second.close()  # Otherwise the segment is read as it grows.
    table, columns = read(tmp_path, "batches"), BatchColumns(tmp_path)
    assert [*columns] == [*table]
    for name in table:
        np.testing.assert_array_equal(columns[name], table[name])
    assert columns["step"].tolist() == [*range(1, 9)]
    assert np.isnan(columns["z"]).tolist() == 3 * [True] + 5 * [False]
    with pytest.raises(KeyError):
        columns["nowhere"]
    second.close()


def test_columns_may_begin_with_a_later_epoch(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path, segment_bytes=40)
    for epoch in (1, 2, 3):
        write(sink, range(3 * epoch, 3 * epoch + 3), epoch=epoch)
    columns = BatchColumns(tmp_path, first_epoch=2)
    assert columns["step"].tolist() == [*range(6, 12)]
    assert columns["epoch"].tolist() == [2, 2, 2, 3, 3, 3]
    assert BatchColumns(tmp_path, first_epoch=4)["step"].tolist() == []
    sink.close()


def test_rows_that_come_later_are_left_out(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    write(sink, range(1, 4))
    columns = BatchColumns(tmp_path)
    write(sink, range(2, 6))
    sink.close()
    assert columns["x"].tolist() == [0.5, 1.0, 1.5]


def test_a_missing_record_has_no_columns(tmp_path: Path) -> None:
    assert [*BatchColumns(tmp_path)] == []


@pytest.mark.parametrize("damaged", ["time", "step", "x", "y"])
def test_a_closed_segment_with_a_damaged_page_has_no_rows(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    for steps in (range(1, 4), range(4, 7), range(7, 10)):
        sink = RecordSink(tmp_path)
        write(sink, steps, y=1.0)
        sink.close()
    path = tmp_path / "batches-00001.parquet"
    content, pages = bytearray(path.read_bytes()), pyarrow.parquet.read_metadata(path).row_group(0)
    (page,) = (each for each in map(pages.column, range(4)) if each.path_in_schema == damaged)
    content[page.data_page_offset + page.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    columns = BatchColumns(tmp_path)
    assert {name: values.tolist() for name, values in columns.items()} == read(tmp_path, "batches").to_dict("list")
    assert columns["step"].tolist() == [1, 2, 3, 7, 8, 9]
    assert "batches-00001.parquet is damaged" in caplog.text
