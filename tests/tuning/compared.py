"""A comparison of inputs as its process leaves it, with invented times."""

from pathlib import Path

import numpy as np

from pipeline.config.settings import settings_from
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.measurement import (
    Comparison,
    Failure,
    Measurement,
    save_comparison,
    save_measurement,
    turn_folder,
    turns,
)
from pipeline.tuning.options import ComparisonOptions

MAKING_MS = {"files": 80.0, "files_parallel": 40.0, "shards": 40.0, "resized": 16.0, "pixels": 8.0, "cached": 5.0}
"""Time in which each input makes a batch."""
STEPS = 20
BATCH = 32


def compared(folder: Path, step_ms: float = 10.0, noise: float = 0.02, steps: int = STEPS, **values: object) -> Path:
    """Write a comparison of two rounds and more, in which each step of the model takes `step_ms`. Returns `folder`."""
    options = ComparisonOptions(**{name: values.pop(name) for name in ("contenders", "rounds") if name in values})
    settings = settings_from({"dataset_name": "flowers", "batch_size": BATCH, "epochs": 3, **values})
    save_comparison(folder, Comparison(settings.model_dump(), options, {"keep": "/data"}, "/images", {"cores": 2}, 0.0))
    random = np.random.default_rng(0)
    for turn in turns(options):
        own = turn_folder(folder, turn)
        making = MAKING_MS[turn.contender] * (1 + noise * random.normal())
        overlaps = CONTENDERS[turn.contender].parallel
        period = max(making, step_ms) if overlaps else making + step_ms
        wait = period - step_ms
        _record(own, period, wait, settings.epochs, steps)
        epoch_s = steps * period / 1000
        measured = Measurement(
            contender=turn.contender,
            round=turn.round,
            examples=steps * BATCH,
            epoch_s=[1.5 * epoch_s, *[epoch_s] * (settings.epochs - 1)],
            epoch_wait_s=[1.5 * epoch_s - steps * step_ms / 1000, *[steps * wait / 1000] * (settings.epochs - 1)],
            cached_fraction=0.0,
            kept_fraction=1.0,
            cold_per_s=500 * BATCH / making,
            warm_per_s=1000 * BATCH / making,
            step_alone_ms=step_ms,
            other_cores=0.1,
        )
        save_measurement(own, measured)
    return folder


def left_out(folder: Path, contender: str, **values: object) -> Path:
    """Write the same, but one contender could not be measured."""
    compared(folder, **values)
    for own in folder.glob(f"measurements/*-{contender}"):
        save_measurement(own, Failure(contender, "its images are in a bucket"))
    return folder


def _record(folder: Path, period_ms: float, wait_ms: float, epochs: int, steps: int) -> None:
    sink, now, step = RecordSink(folder / "record"), 1e9, 0
    for epoch in range(1, epochs + 1):
        for _ in range(steps):
            step, now = step + 1, now + period_ms / 1000
            times = {"input/wait_ms": wait_ms, "step/compute_ms": period_ms - wait_ms, "step/time_ms": period_ms}
            facts = {"input/examples": BATCH, "epoch": epoch, "first": float(step == 1)}
            sink.write(Row("batches", now, step, {**times, **facts}))
            busy = 95.0 if epoch == 1 < epochs else 60.0 + step % 5
            sink.write(Row("samples", now, step, {"sys/cpu_pct": busy, "sys/cores": 2.0}))
        sink.write(Row("epochs", now, epoch, {"loss": 1 / epoch, "epoch/time_s": steps * period_ms / 1000}))
    sink.close()
