"""The event files of the TensorBoard sink, read as TensorBoard reads them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.config.settings import settings_from
from pipeline.errors import Preempted
from pipeline.monitor.record import RecordSink, rows
from pipeline.monitor.row import Row
from pipeline.runs.launch import prepare_run
from pipeline.training.job import run_job
from pipeline.training.log.tensorboard import TensorBoardSink


def scalars(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield the step, name and value of each scalar."""
    for path in sorted(folder.glob("*tfevents*")):
        first, *events = (tf.compat.v1.Event.FromString(each.numpy()) for each in tf.data.TFRecordDataset(str(path)))
        assert first.file_version == "brain.Event:2"
        for event in events:
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                yield event.step, value.tag, tf.make_ndarray(value.tensor).item()


def test_tensorboard_gets_each_epoch_and_aggregated_samples_and_batches(tmp_path: Path):
    with closing(TensorBoardSink(tmp_path)) as sink:
        for step in range(1, 31):
            sink.write(Row("samples", 100 + step / 10, step, {"sys/cpu_pct": step}))
            sink.write(Row("batches", 100 + step / 10, step, {"step/time_ms": 10.0, "epoch": 1}))
        sink.write(Row("epochs", 103.0, 1, {"loss": 0.5}))
    assert list(scalars(tmp_path)) == [(1, "loss", 0.5)]
    found = list(scalars(tmp_path / "windows"))
    assert [each for each in found if each[1].startswith("sys/cpu_pct")] == [
        (20, "sys/cpu_pct", 10.5),
        (20, "sys/cpu_pct/max", 20.0),
        (30, "sys/cpu_pct", 25.5),
        (30, "sys/cpu_pct/max", 30.0),
    ]
    assert {name for _, name, _ in found} == {
        f"{name}{end}" for name in ("sys/cpu_pct", "step/time_ms") for end in ("", "/max")
    }


def test_each_value_keeps_its_time(tmp_path: Path):
    with closing(TensorBoardSink(tmp_path)) as sink:
        sink.write(Row("epochs", 1234.5, 1, {"loss": 0.5}))
    [path] = tmp_path.glob("*tfevents*")
    _, event = (tf.compat.v1.Event.FromString(each.numpy()) for each in tf.data.TFRecordDataset(str(path)))
    assert event.wall_time == 1234.5


def test_a_restarted_sink_rewrites_completed_epochs_and_adds_windows(tmp_path: Path):
    for first, done in ((1, []), (2, [Row("epochs", 1.0, 1, {"loss": 0.9})])):
        with closing(TensorBoardSink(tmp_path, done)) as sink:
            for epoch in (first, first + 1):  # no checkpoint includes the second epoch of the first attempt
                sink.write(Row("epochs", epoch, epoch, {"loss": 1 - epoch / 10}))
                sink.write(Row("samples", epoch, epoch, {"x": first}))
    assert list(scalars(tmp_path)) == [
        (1, "loss", pytest.approx(0.9)),
        (2, "loss", pytest.approx(0.8)),
        (3, "loss", pytest.approx(0.7)),
    ]
    assert [(step, value) for step, name, value in scalars(tmp_path / "windows") if name == "x"] == [(2, 1.0), (3, 2.0)]


@pytest.mark.long
def test_a_stopped_job_writes_each_epoch_once(published: Path, tmp_path: Path):
    """The job is stopped in its second epoch."""
    values = {"workspace": str(tmp_path), "image_size": 32, "batch_size": 8, "epochs": 2, "tensorboard": True}
    run = prepare_run(settings_from(values), published, "run")
    calls = iter(range(100))
    with pytest.raises(Preempted):
        run_job(run, lambda: next(calls) >= 9)
    with closing(RecordSink(run.folder / "record")) as sink:  # as after a kill before the checkpoint
        sink.write(Row("epochs", 1.0, 2, {"val_loss": 99.0}))
    run_job(run, lambda: False)
    found = list(scalars(run.folder / "tensorboard"))
    losses = [(step, value) for step, name, value in found if name == "val_loss"]
    recorded = [(row.step, pytest.approx(row.values["val_loss"])) for row in rows(run.folder / "record", "epochs")]
    assert losses == recorded
    assert len(losses) == 2
    assert {"loss", "accuracy", "val_loss", "learning_rate", "input/wait_fraction"} <= {name for _, name, _ in found}
    windows = {name for _, name, _ in scalars(run.folder / "tensorboard" / "windows")}
    assert {"sys/cpu_pct", "sys/cpu_pct/max", "input/wait_ms", "step/time_ms/max"} <= windows
