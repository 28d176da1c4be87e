"""The record: what is read back is what was written, whatever happened to the process in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas
import pytest

from pipeline.monitor.record import RecordSink, last_row, read, segments
from pipeline.monitor.row import Row


def written(folder: Path, kind: str, steps: Sequence[int], **values: float) -> None:
    """One process: opens the record, writes a row a step, closes it."""
    sink = RecordSink(folder)
    for step in steps:
        sink.write(Row(kind, 1000.0 + step, step, values or {"x": step / 2}))
    sink.close()


def test_rows_come_back_with_time_step_and_values(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1, 2], **{"sys/cpu_pct": 33.25, "sys/mem_used_bytes": 150754820096})

    expected = {"time": [1001.0, 1002.0], "step": [1, 2], "sys/cpu_pct": [33.25] * 2}
    expected["sys/mem_used_bytes"] = [150754820096] * 2
    pandas.testing.assert_frame_equal(read(tmp_path, "samples"), pandas.DataFrame(expected))


def test_no_record_is_an_empty_table(tmp_path: Path) -> None:
    assert list(read(tmp_path, "epochs").columns) == ["time", "step"]
    assert last_row(tmp_path, "epochs") is None


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind must be one of samples, batches, epochs, got 'sample'"):
        read(tmp_path, "sample")


@pytest.mark.parametrize("torn", ["1003.000,3", "1003.000,3,1.5", "1", "1003.000,3,1.5,9"])
def test_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    written(tmp_path, "samples", [1, 2])
    with open(segments(tmp_path, "samples")[0], "a") as file:
        file.write(torn)

    assert list(read(tmp_path, "samples")["step"]) == [1, 2]
    assert last_row(tmp_path, "samples") == {"time": 1002.0, "step": 2.0, "x": 1.0}


def test_torn_header_is_no_row(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1])
    (tmp_path / "samples-00001.csv").write_text("time,st")

    assert list(read(tmp_path, "samples")["step"]) == [1]
    assert last_row(tmp_path, "samples") == {"time": 1001.0, "step": 1.0, "x": 0.5}


def test_each_process_has_a_segment_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1])
    before = segments(tmp_path, "samples")[0].read_bytes()
    written(tmp_path, "samples", [2])

    assert [path.name for path in segments(tmp_path, "samples")] == ["samples-00000.csv", "samples-00001.csv"]
    assert segments(tmp_path, "samples")[0].read_bytes() == before


def test_new_column_starts_a_segment_and_a_missing_value_is_empty(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    for step, values in enumerate([{"a": 1.0}, {"a": 2.0, "b": 3.0}, {"b": 4.0}, {"a": 5.0}]):
        sink.write(Row("samples", 0.0, step, values))
    sink.close()

    assert len(segments(tmp_path, "samples")) == 2  # and no third one for the metric that comes and goes
    table = read(tmp_path, "samples")
    assert table["a"].tolist()[:2] == [1.0, 2.0]
    assert table["a"].isna().tolist() == [False, False, True, False]
    assert table["b"].isna().tolist() == [True, False, False, True]
    assert last_row(tmp_path, "samples") == {"time": 0.0, "step": 3.0, "a": 5.0}


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ([1, 2, 3, 4], [3, 4, 5], [1, 2, 3, 4, 5]),  # resumed at 2: 3 and 4 were repeated
        ([1, 2, 3, 4, 5, 6], [3, 4], [1, 2, 3, 4]),  # still repeating: 5 and 6 are no part of this line
        ([1, 2], [3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [1], [1]),
    ],
)
@pytest.mark.parametrize("kind", ["batches", "epochs"])
def test_repeated_steps_replace_those_before(
    tmp_path: Path, kind: str, first: list[int], second: list[int], kept: list[int]
) -> None:
    written(tmp_path, kind, first, x=1.0)
    written(tmp_path, kind, second, x=2.0)

    table = read(tmp_path, kind)
    assert table["step"].tolist() == kept
    assert table["x"].tolist() == [2.0 if step in second else 1.0 for step in kept]


def test_all_samples_are_kept(tmp_path: Path) -> None:
    written(tmp_path, "samples", [7, 7, 8])
    written(tmp_path, "samples", [5])
    assert read(tmp_path, "samples")["step"].tolist() == [7, 7, 8, 5]


def test_special_values(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    sink.write(Row("epochs", 0.0, 1, {"nan": float("nan"), "inf": float("inf"), "small": 1.5e-9, "third": 1 / 3}))
    sink.close()

    row = read(tmp_path, "epochs").iloc[0]
    assert row["nan"] != row["nan"]
    assert row["inf"] == float("inf")
    assert row["small"] == 1.5e-9
    assert row["third"] == pytest.approx(1 / 3, rel=1e-6)


def test_last_row_reads_only_the_tail(tmp_path: Path) -> None:
    written(tmp_path, "samples", range(20_000))
    path = segments(tmp_path, "samples")[0]
    content = bytearray(path.read_bytes())
    content[200_000:200_100] = b"\xff" * 100  # nothing that looks here could decode it
    path.write_bytes(content)
    assert last_row(tmp_path, "samples") == {"time": 20_999.0, "step": 19_999.0, "x": 9_999.5}


def test_ten_hours_with_eight_gpus_fit_in_200_mb(tmp_path: Path) -> None:
    sample = {f"gpu/{i}/{name}": 12345.678 for i in range(8) for name in "abcde"}
    sample |= {f"sys/{i}": 1e9 + 0.1 for i in range(14)}
    batch = {"wait": 1.2345678, "compute": 18.765432, "time": 20.000011, "examples": 256.0, "epoch": 12.0, "first": 0.0}
    sink = RecordSink(tmp_path)
    for _ in range(1000):
        sink.write(Row("samples", 1.7e9, 1_000_000, sample))
        sink.write(Row("batches", 1.7e9, 1_000_000, batch))
    sink.close()

    size = {kind: segments(tmp_path, kind)[0].stat().st_size / 1000 for kind in ("samples", "batches")}
    assert 36_000 * (5 * size["samples"] + 50 * size["batches"]) < 200e6


CHILD = """
import sys, time
from pathlib import Path
from pipeline import monitor
with monitor.open_monitor(Path(sys.argv[1]), hz=10) as m:
    for step in range(1, 10_000):
        time.sleep(0.01)
        m.batch(step=step, epoch=1, wait_s=0.002, compute_s=0.008, examples=32)
        if step == 20:
            m.epoch(epoch=1, step=step, values={"loss": 0.5})
"""


def test_sigkill_loses_less_than_two_seconds(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)])
    try:
        deadline = time.monotonic() + 30
        while len(read(tmp_path / "record", "samples")) < 10 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        killed = time.time()
        child.wait()

    for kind in ("samples", "batches"):
        assert 0 <= killed - read(tmp_path / "record", kind)["time"].iloc[-1] < 1.0  # the rule is 2 s
    assert read(tmp_path / "record", "epochs")["loss"].tolist() == [0.5]
    steps = read(tmp_path / "record", "batches")["step"].tolist()
    assert steps == list(range(1, len(steps) + 1))
