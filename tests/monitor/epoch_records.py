"""A record of epochs whose times are known."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row

STEPS, EXAMPLES = 10, 100


def record_epochs(
    folder: Path,
    epochs: Sequence[tuple[float, float]],
    *,
    compiled_s: float = 10.0,
    lost: int = 0,
    from_epoch: int = 1,
    **each: float,
) -> Path:
    """Write epochs of STEPS steps and EXAMPLES examples, and return the folder.

    Args:
        folder: The folder of the record.
        epochs: Seconds of the steps of each epoch, and of the whole epoch.
        compiled_s: How much longer the first step of the process takes.
        lost: An epoch whose end is not in the record.
        from_epoch: The number of the first epoch.
        each: Seconds of each epoch, by their column without "epoch/" and "_s". All but `checkpoint` are part of it.
            What no column explains passes before the first step of an epoch, as in a training.
    """
    now, number = 1000.0, 0
    between = {f"epoch/{name}_s": seconds for name, seconds in {"validation": 0.0, "callbacks": 0.0, **each}.items()}
    with closing(RecordSink(folder)) as record:
        for epoch, (steps_s, whole_s) in enumerate(epochs, from_epoch):
            worked_s = sum(seconds for name, seconds in between.items() if name != "epoch/checkpoint_s")
            now += whole_s - steps_s - worked_s
            for _ in range(STEPS):
                first = number == 0
                seconds = steps_s / STEPS + first * compiled_s
                now += seconds
                number += 1
                values = {"step/compute_ms": 1000 * seconds, "step/time_ms": 1000 * seconds, "first": float(first)}
                values |= {"input/wait_ms": 0.0, "input/examples": EXAMPLES / STEPS, "epoch": float(epoch)}
                record.write(Row("batches", now, number, values))
            now += worked_s
            if epoch != lost:
                record.write(Row("epochs", now, epoch, between))
    return folder
