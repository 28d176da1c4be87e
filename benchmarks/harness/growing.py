"""Records of trainings on 8 GPUs with 20 ms steps that began hours ago and still go on; the rows are simulated.

    python -m benchmarks.harness.growing HOURS FOLDER ...

Writes all at once what such a training left until now, says "ready", and goes on in its pace until its stdin ends.
"""

import heapq
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.harness.rounds import ROOT
from benchmarks.harness.simulated import batches, samples
from pipeline.monitor.overview import OverviewSink
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row, Sink
from pipeline.runs.files import RUN_FORMAT

STEPS_PER_EPOCH, EPOCH_S = 5000, 100
BEGIN = 1.7e9
"""The time of the first of the simulated rows."""
SETTINGS = {"epochs": 1000, "batch_size": 256, "model": "resnet50", "dataset_name": "imagenet"}


def main() -> None:
    """Write, and go on."""
    hours, folders = float(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    sinks = [sink for folder in folders for sink in start_record(folder)]
    is_ready = False
    for row in rows(time.time() - 3600 * hours):
        if not is_ready and row.time > time.time():
            is_ready = True
            print("ready", flush=True)
        if is_ready and has_ended(until=row.time):
            return
        for sink in sinks:
            sink.write(row)


def start_record(folder: Path) -> Sequence[Sink]:
    """Make the folder of a training. Return what writes into it, as the monitor does."""
    folder.mkdir(parents=True)
    run_json = {"format": RUN_FORMAT, "settings": SETTINGS, "steps_per_epoch": STEPS_PER_EPOCH}
    (folder / "run.json").write_text(json.dumps(run_json))
    return RecordSink(folder / "record"), OverviewSink(folder / "overview")


def rows(begin: float) -> Iterator[Row]:
    """Yield all rows of a training without an end that began then."""
    for row in heapq.merge(samples(sys.maxsize), batches(sys.maxsize), epochs(), key=lambda row: row.time):
        yield replace(row, time=row.time - BEGIN + begin)


def epochs() -> Iterator[Row]:
    """Yield one after the other."""
    for epoch in count(1):
        scores = {"loss": 1 / epoch, "accuracy": 0.5, "val_loss": 1 / epoch, "val_accuracy": 0.5}
        times = {"epoch/time_s": EPOCH_S - 1.0, "epoch/validation_s": 1.0}
        yield Row("epochs", BEGIN + epoch * EPOCH_S, epoch, scores | times)


def has_ended(until: float) -> bool:
    """Wait until that time; whether our stdin ended before."""
    return bool(select.select([sys.stdin], [], [], max(0.0, until - time.time()))[0])


@contextmanager
def growing(trainings: Sequence[tuple[float, Sequence[Path]]]) -> Iterator[None]:
    """Folders of trainings that began so many hours ago, a process each length; they grow while the block goes on."""
    command = [sys.executable, "-m", "benchmarks.harness.growing"]
    writers = [
        subprocess.Popen([*command, str(hours), *folders], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for hours, folders in trainings
    ]
    try:
        for writer in writers:
            assert writer.stdout
            if not writer.stdout.readline():
                raise RuntimeError("a record could not be written: see above")
        yield
    finally:
        for writer in writers:
            writer.communicate()


if __name__ == "__main__":
    main()
