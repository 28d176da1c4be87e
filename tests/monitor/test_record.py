"""The record: all written rows are read back, even if the process was killed or the disk was full."""

import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pandas
import pytest

from benchmarks.harness import simulated
from pipeline.monitor import record
from pipeline.monitor.record import (
    PARQUET,
    SEGMENT_BYTES,
    RecordSink,
    first_time,
    last_row,
    of_segment,
    read,
    read_servers,
    record_folders,
    segments,
)
from pipeline.monitor.row import Row
from pipeline.storage import write_whole
from tests.waiting import until

EACH_ROW = 1
"""Segment size that puts each row into a separate segment."""


def written(folder: Path, kind: str, steps: Sequence[int], segment_bytes: int = SEGMENT_BYTES, **values: float) -> None:
    """Open the record, write one row per step, and close it, as one process does."""
    sink = RecordSink(folder, segment_bytes)
    for step in steps:
        sink.write(row(kind, step, **values))
    sink.close()


def row(kind: str, step: int, **values: float) -> Row:
    return Row(kind, 1000.0 + step, step, values or {"x": step / 2})


def left_open(folder: Path, kind: str = "samples") -> Path:
    """Open the last segment again, as a killed process leaves it. Return its path."""
    path = segments(folder, kind)[-1]
    packed = path.with_suffix(PARQUET)
    path.write_bytes(as_csv(packed))
    packed.unlink()
    return path


def as_csv(packed: Path) -> bytes:
    """Return the rows of a closed segment as the open segment had them."""
    table = pandas.read_parquet(packed)
    rows = ([f"{row.pop('time'):.3f}", *map(record._number, row.values())] for row in table.to_dict("records"))
    return "".join(f"{','.join(line)}\n" for line in (table.columns, *rows)).encode()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Limit the size of all files to `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_are_read_back_with_time_step_and_values(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1, 2], **{"sys/cpu_pct": 33.25, "sys/mem_used_bytes": 150754820096})

    expected = {"time": [1001.0, 1002.0], "step": [1, 2], "sys/cpu_pct": [33.25] * 2}
    expected["sys/mem_used_bytes"] = [150754820096.0] * 2
    pandas.testing.assert_frame_equal(read(tmp_path, "samples"), pandas.DataFrame(expected))


def test_a_missing_record_is_an_empty_table(tmp_path: Path) -> None:
    assert list(read(tmp_path, "epochs").columns) == ["time", "step"]
    assert list(read(tmp_path, "epochs", ["loss"]).columns) == ["time", "step", "loss"]
    assert last_row(tmp_path, "epochs") is None


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind must be one of samples, batches, epochs, got 'sample'"):
        read(tmp_path, "sample")


@pytest.mark.parametrize("torn", ["1003.000,3", "1003.000,3,1.5", "1", "1003.000,3,1.5,9"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    written(tmp_path, "samples", [1, 2])
    with open(left_open(tmp_path), "a") as file:
        file.write(torn)
    for _ in range(2):
        assert list(read(tmp_path, "samples")["step"]) == [1, 2]
        assert last_row(tmp_path, "samples") == {"time": 1002.0, "step": 2.0, "x": 1.0}
        RecordSink(tmp_path)  # closes it


def test_a_torn_header_is_not_a_row(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1])
    (tmp_path / "samples-00001.csv").write_text("time,st")

    assert list(read(tmp_path, "samples")["step"]) == [1]
    assert last_row(tmp_path, "samples") == {"time": 1001.0, "step": 1.0, "x": 0.5}


def test_each_process_writes_a_separate_segment(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1])
    before = (tmp_path / "samples-00000.parquet").read_bytes()
    written(tmp_path, "samples", [2])

    assert names(tmp_path) == ["samples-00000.parquet", "samples-00001.parquet"]
    assert (tmp_path / "samples-00000.parquet").read_bytes() == before


def test_full_segments_are_closed_and_the_growing_one_is_plain(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path, segment_bytes=50)  # four lines
    for step in range(10, 20):
        sink.write(row("samples", step))
        assert last_row(tmp_path, "samples") == {"time": 1000.0 + step, "step": step, "x": step / 2}
        assert read(tmp_path, "samples")["step"].tolist() == list(range(10, step + 1))
    assert names(tmp_path) == ["samples-00000.parquet", "samples-00001.parquet", "samples-00002.csv"]
    assert as_csv(tmp_path / "samples-00001.parquet").decode().splitlines() == [
        "time,step,x",
        "1014.000,14,7",
        "1015.000,15,7.5",
        "1016.000,16,8",
        "1017.000,17,8.5",
    ]
    sink.close()
    assert names(tmp_path)[-1] == "samples-00002.parquet"


def test_a_new_segment_keeps_the_columns_of_a_full_one(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path, EACH_ROW)
    for values in ({"a": 1.0, "b": 1.0}, {"a": 2.0}, {"b": 3.0}):
        sink.write(Row("samples", 0.0, 0, values))
    sink.close()
    assert [as_csv(path)[:13] for path in sorted(tmp_path.iterdir())] == [b"time,step,a,b"] * 3


def test_a_plain_and_a_stored_file_are_one_segment(tmp_path: Path) -> None:
    """A process may be killed before it removes the plain file. In a bucket, the plain file may be older."""
    written(tmp_path, "samples", [1, 2])
    packed = (tmp_path / "samples-00000.parquet").read_bytes()
    plain = left_open(tmp_path)
    (tmp_path / "samples-00000.parquet").write_bytes(packed)
    for content in (plain.read_bytes(), plain.read_bytes()[:-10]):
        plain.write_bytes(content)
        assert read(tmp_path, "samples")["step"].tolist() == [1, 2]
        assert last_row(tmp_path, "samples") == {"time": 1002.0, "step": 2.0, "x": 1.0}
    RecordSink(tmp_path)
    assert names(tmp_path) == ["samples-00000.parquet"]
    assert (tmp_path / "samples-00000.parquet").read_bytes() == packed


def test_only_segments_of_dead_processes_are_closed(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1, 2])
    left_open(tmp_path)
    twin = RecordSink(tmp_path)
    twin.write(row("samples", 3))
    written(tmp_path, "samples", [4])
    assert names(tmp_path) == ["samples-00000.parquet", "samples-00001.csv", "samples-00002.parquet"]
    twin.write(row("samples", 5))
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2, 3, 5, 4]
    twin.close()
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2, 3, 5, 4]
    assert names(tmp_path)[1] == "samples-00001.parquet"


def test_a_segment_number_taken_by_another_process_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordSink(tmp_path)
    written(tmp_path, "samples", [1])
    monkeypatch.setattr(record, "segments", lambda *_: [])  # as before the other process wrote
    sink.write(row("samples", 2))
    monkeypatch.undo()
    assert names(tmp_path) == ["samples-00000.parquet", "samples-00001.csv"]
    sink.close()
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2]


def test_readers_see_each_row_once_while_a_segment_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[list[int], float | None]] = []

    def look() -> None:
        last = last_row(tmp_path, "samples")
        reads.append((read(tmp_path, "samples")["step"].tolist(), last and last["step"]))

    @contextmanager
    def looked_at(path: Path, synced: bool) -> Iterator[IO[bytes]]:
        look()
        with write_whole(path, synced) as file:
            yield file
            look()
        look()

    monkeypatch.setattr(record, "write_whole", looked_at)
    sink = RecordSink(tmp_path, EACH_ROW)
    sink.write(row("samples", 1))
    sink.write(row("samples", 2))  # must not wait until the first segment is stored
    sink.close()
    assert reads == [([1, 2], 2)] * 6


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (lambda folder: read(folder, "samples")["step"].tolist(), [1]),
        (lambda folder: last_row(folder, "samples"), {"time": 1001.0, "step": 1.0, "x": 0.5}),
        (lambda folder: first_time(folder / "samples-00000.csv"), 1001.0),
    ],
)
def test_a_segment_can_be_closed_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[[Path], Any], expected: Any
) -> None:
    sink, stored_rows = RecordSink(tmp_path), record._stored_rows
    sink.write(row("samples", 1))

    def looked_for_stored(path: Path, wanted: Callable[[str], bool]) -> Any:
        rows = stored_rows(path, wanted)
        monkeypatch.undo()
        sink.close()
        return rows

    monkeypatch.setattr(record, "_stored_rows", looked_for_stored)
    assert reader(tmp_path) == expected
    assert names(tmp_path) == ["samples-00000.parquet"]


@pytest.mark.parametrize("position", [100, -100, -1])
def test_a_closed_segment_with_a_wrong_byte_has_no_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    for steps in (range(500), [500]):
        written(tmp_path, "samples", steps)
    content = bytearray((tmp_path / "samples-00000.parquet").read_bytes())
    content[position] ^= 1
    (tmp_path / "samples-00000.parquet").write_bytes(content)
    for _ in range(2):
        assert read(tmp_path, "samples")["step"].tolist() == [500]
    assert caplog.text.count("samples-00000.parquet is damaged: its rows are left out") == 1
    (tmp_path / "samples-00001.parquet").unlink()
    assert last_row(tmp_path, "samples") is None


@pytest.mark.parametrize("damage", [b"\0" * 40, b"\0" * 40 + b"5,1\n1004.0,4,2.0\n", b"half a row\n"])
def test_a_segment_is_read_up_to_an_invalid_line(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, "samples", [1, 2])
    path = left_open(tmp_path)
    path.write_bytes(path.read_bytes() + damage)
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2]
    assert ("is damaged" in caplog.text) == damage.endswith(b"\n")
    RecordSink(tmp_path)
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2]


def test_the_file_of_a_segment_is_found_while_another_process_closes_it(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    sink.write(row("samples", 1))

    def name_of(path: Path) -> str:
        sink.close()  # The file that was there a moment ago is gone.
        path.stat()
        return path.name

    assert of_segment(tmp_path / "samples-00000.csv", name_of) == "samples-00000.parquet"


@pytest.mark.parametrize(
    "content", [b"time,step,x\xff\n1.0,1,2.0\n", b'time,step,"x\n1.0,1,2.0\n', b"time,step,x\n1.0,1,2.0\n2.0,1.5,2.0\n"]
)
def test_a_damaged_segment_does_not_keep_a_process_from_starting(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "samples-00000.csv").write_bytes(content)
    written(tmp_path, "samples", [2])
    assert read(tmp_path, "samples")["step"].tolist()[-1] == 2
    row = last_row(tmp_path, "samples")
    assert row is not None
    assert row["step"] == 2


@pytest.mark.parametrize("damage", [b"", bytes(100), b"PAR1"])
def test_an_empty_or_zeroed_segment_has_no_rows(tmp_path: Path, damage: bytes) -> None:
    written(tmp_path, "samples", [1, 2])
    written(tmp_path, "samples", [3])
    (tmp_path / "samples-00000.parquet").write_bytes(damage)
    assert read(tmp_path, "samples")["step"].tolist() == [3]
    assert first_time(tmp_path / "samples-00000.csv") is None


@pytest.mark.parametrize("damage", [b"", b"PAR1"])
def test_an_empty_stored_file_is_replaced_from_the_plain_file(tmp_path: Path, damage: bytes) -> None:
    written(tmp_path, "samples", [1, 2])
    packed = tmp_path / "samples-00000.parquet"
    whole = packed.read_bytes()
    (tmp_path / "samples-00000.csv").write_bytes(as_csv(packed))
    packed.write_bytes(damage)
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2]
    RecordSink(tmp_path)
    assert packed.read_bytes() == whole


def test_a_torn_stored_file_is_replaced_from_the_plain_file(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1, 2])
    packed = tmp_path / "samples-00000.parquet"
    whole = packed.read_bytes()
    (tmp_path / "samples-00000.csv").write_bytes(as_csv(packed))
    packed.write_bytes(whole[:-9])
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2]
    RecordSink(tmp_path)
    assert names(tmp_path) == ["samples-00000.parquet"]
    assert packed.read_bytes() == whole


def test_a_segment_stays_plain_if_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = RecordSink(tmp_path)
    sink.write(row("samples", 1))
    with full_disk(10):
        sink.close()
    assert names(tmp_path) == ["samples-00000.csv"]
    assert "samples-00000.csv is not stored as Parquet: [Errno 27]" in caplog.text
    assert read(tmp_path, "samples")["step"].tolist() == [1]
    RecordSink(tmp_path)
    assert names(tmp_path) == ["samples-00000.parquet"]


def test_a_half_written_row_is_written_again_to_the_next_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = RecordSink(tmp_path)
    sink.write(row("samples", 1))
    with full_disk((tmp_path / "samples-00000.csv").stat().st_size + 5):
        sink.write(row("samples", 2))
    sink.write(row("samples", 3))
    sink.close()
    assert read(tmp_path, "samples")["step"].tolist() == [1, 2, 3]
    assert names(tmp_path) == ["samples-00000.csv", "samples-00001.parquet"]  # no space to store the first
    assert "trying again after File too large" in caplog.text


def test_a_temporarily_full_disk_loses_rows_but_leaves_no_torn_line(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    with full_disk(5):
        for step in range(3):
            with pytest.raises(OSError, match="File too large"):
                sink.write(row("samples", step))
        assert names(tmp_path) == []  # otherwise each row would leave a file
    sink.write(row("samples", 3))
    with full_disk(5):
        for step in range(4, 1000):
            with pytest.raises(OSError, match="File too large"):
                sink.write(row("samples", step))
    assert names(tmp_path) == ["samples-00000.csv"]
    sink.write(row("samples", 1000))
    sink.close()
    table = read(tmp_path, "samples")
    assert table["step"].iloc[[0, -1]].tolist() == [3, 1000]
    assert (table["x"] == table["step"] / 2).all()


def test_a_new_column_starts_a_segment_and_a_missing_value_is_empty(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    for step, values in enumerate([{"a": 1.0}, {"a": 2.0, "b": 3.0}, {"b": 4.0}, {"a": 5.0}]):
        sink.write(Row("samples", 0.0, step, values))
    sink.close()

    assert len(segments(tmp_path, "samples")) == 2  # no third segment for a metric that is missing in some rows
    table = read(tmp_path, "samples")
    assert table["a"].tolist()[:2] == [1.0, 2.0]
    assert table["a"].isna().tolist() == [False, False, True, False]
    assert table["b"].isna().tolist() == [True, False, False, True]
    assert last_row(tmp_path, "samples") == {"time": 0.0, "step": 3.0, "a": 5.0}


@pytest.mark.parametrize(
    ("first", "second", "surviving"),
    [
        ([1, 2, 3, 4], [3, 4, 5], [1, 2, 3, 4, 5]),  # resumed at 2, so 3 and 4 were repeated
        ([1, 2, 3, 4, 5, 6], [3, 4], [1, 2, 3, 4]),  # still repeating, so 5 and 6 are not valid yet
        ([1, 2], [3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [1], [1]),
    ],
)
@pytest.mark.parametrize("kind", ["batches", "epochs"])
@pytest.mark.parametrize("segment_bytes", [EACH_ROW, SEGMENT_BYTES])
def test_repeated_steps_replace_earlier_rows(
    tmp_path: Path, kind: str, segment_bytes: int, first: list[int], second: list[int], surviving: list[int]
) -> None:
    written(tmp_path, kind, first, segment_bytes, x=1.0)
    written(tmp_path, kind, second, segment_bytes, x=2.0)
    left_open(tmp_path, kind)

    table = read(tmp_path, kind)
    assert table["step"].tolist() == surviving
    assert table["x"].tolist() == [2.0 if step in second else 1.0 for step in surviving]
    pandas.testing.assert_frame_equal(read(tmp_path, kind, ["x"]), table)


def test_all_samples_are_read_back(tmp_path: Path) -> None:
    written(tmp_path, "samples", [7, 7, 8])
    written(tmp_path, "samples", [5])
    assert read(tmp_path, "samples")["step"].tolist() == [7, 7, 8, 5]


def test_special_values_are_read_back(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    sink.write(Row("epochs", 0.0, 1, {"nan": float("nan"), "inf": float("inf"), "small": 1.5e-9, "third": 1 / 3}))
    sink.close()

    row = read(tmp_path, "epochs").iloc[0]
    assert row["nan"] != row["nan"]
    assert row["inf"] == float("inf")
    assert row["small"] == 1.5e-9
    assert row["third"] == pytest.approx(1 / 3, rel=1e-6)


def test_a_record_is_read_although_the_process_is_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(io.BytesIO):
        """Bytes during whose read SIGTERM comes."""

        def read(self, size: int | None = -1, /) -> bytes:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().read(size)

    written(tmp_path, "samples", [1, 2])
    left_open(tmp_path)
    monkeypatch.setattr(record, "io", SimpleNamespace(BytesIO=Interrupted))
    signals = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        assert read(tmp_path, "samples")["step"].tolist() == [1, 2]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.SIGTERM in signals


def test_only_the_requested_columns_are_read(tmp_path: Path) -> None:
    written(tmp_path, "samples", [1], a=1.0, b=1.0)
    written(tmp_path, "samples", [2], b=2.0, c=2.0)
    table = read(tmp_path, "samples", ["c", "a", "nowhere"])
    assert list(table.columns) == ["time", "step", "c", "a", "nowhere"]
    assert table["c"].fillna(-1).tolist() == [-1, 2]
    assert table["a"].fillna(-1).tolist() == [1, -1]
    assert table["nowhere"].isna().all()


def test_the_servers_of_a_run_are_read_together(tmp_path: Path) -> None:
    for index, folder in ((0, ""), (2, "servers/2"), (10, "servers/10")):
        written(tmp_path / folder / "record", "samples", [1, 2], **{f"of_{index}": index})
    (tmp_path / "servers" / "notes").mkdir()
    assert list(record_folders(tmp_path)) == [0, 2, 10]
    table = read_servers(tmp_path, "samples")
    assert list(table.columns) == ["server", "time", "step", "of_0", "of_2", "of_10"]
    assert table["server"].tolist() == [0, 0, 2, 2, 10, 10]
    assert table["of_2"].fillna(-1).tolist() == [-1, -1, 2, 2, -1, -1]
    assert read_servers(tmp_path, "samples", ["of_10"])["of_10"].notna().tolist() == [False] * 4 + [True] * 2


def test_read_servers_accepts_one_server_and_no_record(tmp_path: Path) -> None:
    assert list(read_servers(tmp_path, "epochs").columns) == ["server", "time", "step"]
    written(tmp_path / "record", "epochs", [1])
    assert read_servers(tmp_path, "epochs").to_dict("records") == [{"server": 0, "time": 1001, "step": 1, "x": 0.5}]


def test_last_row_reads_only_the_tail(tmp_path: Path) -> None:
    written(tmp_path, "samples", range(20_000))
    path = left_open(tmp_path)
    content = bytearray(path.read_bytes())
    content[200_000:200_100] = b"\xff" * 100  # a reader of this part would fail to decode it
    path.write_bytes(content)
    assert last_row(tmp_path, "samples") == {"time": 20_999.0, "step": 19_999.0, "x": 9_999.5}


def test_ten_hours_with_eight_gpus_fit_into_200_mb(tmp_path: Path) -> None:
    sink = RecordSink(tmp_path)
    for kind, rows in (("samples", simulated.samples(2000)), ("batches", simulated.batches(20_000))):
        for each in rows:
            sink.write(each)
        assert len(read(tmp_path, kind).columns) == {"samples": 129, "batches": 10}[kind]
    sink.close()
    sizes = {kind: (tmp_path / f"{kind}-00000.parquet").stat().st_size for kind in ("samples", "batches")}
    closed = 36_000 * (
        simulated.SAMPLES_A_S * sizes["samples"] / 2000 + simulated.BATCHES_A_S * sizes["batches"] / 20_000
    )
    assert closed + 2 * SEGMENT_BYTES < 150e6  # the limit is 200 MB


CHILD = """
import sys, time
from itertools import count
from pathlib import Path
from pipeline import monitor

class Samples:
    count = 0

    def write(self, row):
        self.count += row.kind == "samples"

samples = Samples()
with monitor.open_monitor(Path(sys.argv[1]), hz=10, sinks=[samples]) as m:
    for step in count(1):
        time.sleep(0.01)
        m.batch(step=step, epoch=1, times=monitor.StepTimes(0.002, 0.008), examples=32)
        if step == 20:
            m.epoch(epoch=1, step=step, values={"loss": 0.5})
        if step == 150:
            print(samples.count, flush=True)
"""


def test_sigkill_loses_less_than_two_seconds(tmp_path: Path) -> None:
    """The child continues to report. A step is on the disk two seconds later, in seconds of a quiet machine."""

    def steps(kind: str = "batches") -> list[int]:
        return read(tmp_path / "record", kind)["step"].tolist()

    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        samples = int(child.stdout.readline())
        try:
            until(lambda: len(steps()) >= 150 and len(steps("samples")) >= samples > 0, 2.0)
        finally:
            child.kill()
    assert (kept := steps()) == list(range(1, len(kept) + 1))
    assert read(tmp_path / "record", "epochs")["loss"].tolist() == [0.5]


HURRIED = """
import mmap, sys, time
from pathlib import Path
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.storage import write_whole
sink = RecordSink(Path(sys.argv[1]), segment_bytes=5000)
with open(sys.argv[3], "r+b") as file, mmap.mmap(file.fileno(), 8) as written:
    for number in range(10**9):
        sink.write(Row("samples", time.time(), int(sys.argv[2]), {"number": number}))
        written[:] = (number + 1).to_bytes(8)
"""


def test_a_process_killed_at_any_moment_leaves_each_row_once(tmp_path: Path) -> None:
    """Small segments make a kill during a rotation likely."""
    for number in range(4):
        written = tmp_path.with_name(f"written{number}")
        written.write_bytes(bytes(8))
        child = subprocess.Popen([sys.executable, "-c", HURRIED, str(tmp_path), str(number), str(written)])
        try:
            until(lambda: len(segments(tmp_path, "samples")) > 40 * (number + 1))  # noqa: B023 - only used here
        finally:
            child.kill()
            child.wait()
        table = read(tmp_path, "samples")
        assert int.from_bytes(written.read_bytes()) <= sum(table["step"] == number)
        for _, rows in table.groupby("step"):
            assert rows["number"].tolist() == list(range(len(rows)))
    assert table["step"].unique().tolist() == [0, 1, 2, 3]
    RecordSink(tmp_path)
    assert read(tmp_path, "samples").equals(table)
    assert {path.suffix for path in tmp_path.iterdir() if not path.name.startswith(".")} == {PARQUET}
