"""The page of the samples of any command."""

from pathlib import Path

import pandas

from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.monitor.thinned import all_samples
from pipeline.report import samples_page


def recorded(folder: Path, count: int) -> Path:
    sink = RecordSink(folder / "record")
    for number in range(count):
        values = {"sys/cpu_pct": 10.0 * number, "pressure/io_some_pct": 2.0 * number, "monitor/dropped": 0.0}
        sink.write(Row("samples", 100 + 0.2 * number, 0, values))
    sink.close()
    return folder / "record"


def test_the_page_has_a_figure_and_escapes_the_folder_name(tmp_path: Path) -> None:
    path = samples_page.write(recorded(tmp_path / "<b>", 11))
    page = path.read_text()
    assert path == tmp_path / "<b>" / "samples.html"
    assert "The processor was 50% busy on average" in page
    assert 'id="utilization-0"' in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page[: page.index("<script")]
    assert "default-src 'none'" in page


def test_the_table_summarizes_each_metric(tmp_path: Path) -> None:
    samples = pandas.DataFrame({"time": [0.0, 1, 2], "step": [0] * 3, "a": [1.0, 2, 9], "b": [None, 2.0, None]})
    table = samples_page.metrics(all_samples(samples))
    assert table.rows == [("a", "4", "2", "8.3", "9"), ("b", "2", "2", "2", "2")]
    assert table.note == "Of 3 samples."


def test_a_record_without_samples_is_reported_as_such(tmp_path: Path) -> None:
    assert "No samples were recorded" in samples_page.write(recorded(tmp_path, 0)).read_text()
