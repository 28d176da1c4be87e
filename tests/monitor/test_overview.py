"""The overview of a record has few rows and all peaks."""

from pathlib import Path

from pipeline.monitor.overview import OverviewSink
from pipeline.monitor.record import read
from pipeline.monitor.row import Row


def test_ten_hours_fit_in_two_thousand_rows_with_all_peaks(tmp_path: Path) -> None:
    sink = OverviewSink(tmp_path)
    for tick in range(36_000):  # one per second
        sink.write(Row("samples", 1000.0 + tick, tick, {"sys/cpu_pct": 100.0 if tick == 30_000 else 10.0}))
    sink.close()
    table = read(tmp_path, "samples")
    assert 1800 < len(table) < 2000
    assert table["sys/cpu_pct/max"].max() == 100
    assert table["sys/cpu_pct"].max() < 20
    assert table["step"].iloc[-1] == 35_999


def test_retries_add_few_rows_and_pauses_between_them_none(tmp_path: Path) -> None:
    """Ten hours in 20 attempts, each of half an hour, with a day between two of them."""
    for attempt in range(20):
        sink = OverviewSink(tmp_path)
        for tick in range(1800 * attempt, 1800 * (attempt + 1)):
            sink.write(Row("samples", 1000.0 + tick + 86_400 * attempt, tick, {"sys/cpu_pct": 10.0}))
        sink.close()
    assert 1800 < len(read(tmp_path, "samples")) < 2050


def test_open_intervals_are_written_at_the_end_and_epochs_at_once(tmp_path: Path) -> None:
    sink = OverviewSink(tmp_path)
    sink.write(Row("epochs", 1000.0, 1, {"loss": 2.0}))
    sink.write(Row("batches", 1000.5, 1, {"input/wait_ms": 1.0, "epoch": 1}))
    assert read(tmp_path, "epochs")["loss"].tolist() == [2.0]
    assert len(read(tmp_path, "batches")) == 0
    sink.close()
    assert read(tmp_path, "batches")["input/wait_ms"].tolist() == [1.0]
