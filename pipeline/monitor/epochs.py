"""What whole epochs of a training took: the time that a person sees, with everything between two epochs."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.monitor.diagnosis import BETWEEN_EPOCHS, is_steady
from pipeline.monitor.record import read

if TYPE_CHECKING:
    import pandas

_SECONDS = {
    **{f"{part}_s": column for part, column in BETWEEN_EPOCHS.items()},
    "checkpoint_s": "epoch/checkpoint_s",
}
PAUSE_S = 1.0
"""Less time than this passes between the last step of an epoch and its validation."""


def whole_epochs(record: Path, since: float | None = None, last: int | None = None) -> "pandas.DataFrame":
    """Return a row for each epoch of a record that has ended. The index is its number, from 1.

    With `since`, the epochs that had ended by then (Unix s) may be missing or wrong, and old parts of the record are
    not read. With `last`, only the newest `last` epochs are returned, and the batches of earlier ones are not read.
    The columns are, in seconds, but for the last three:

    - `whole_s`: from the end of the epoch before to its own end, by the clock of the record. So it also has what no
      column explains: the wait for a checkpoint, an input that is opened again, a model that is saved.
    - `steps_s`: what its steps would take if all were as long as the mean of the steady ones.
    - `validation_s`, `callbacks_s`: parts of it.
    - `between_s`: the rest of `whole_s` beyond `steps_s`, without the wait for the last complete checkpoint.
    - `checkpoint_s`: the time that this checkpoint needed beside the steps, with the part of `between_s` that is not
      beside it; NaN if there was none. So `whole_s` is the longer one of this and `steps_s` with `between_s`.
    - `examples`: number of training examples.
    - `starts`: whether a process began in it. Nothing says when such an epoch began, and its first step compiles. So
      `whole_s` is `steps_s` with validation and callbacks.
    - `time`: its end (Unix s).
    """
    rows = read(record, "epochs", [*_SECONDS.values()], since).set_index("step")
    first = 0
    if last is not None and len(rows) > last:
        first = int(rows.index[-last])
        # The first epoch began when the one before it ended. An epoch may have millions of steps.
        rows = rows[-last - 1 :]
        since = float(rows["time"].iloc[0])
    batches = read(record, "batches", ["step/time_ms", "input/examples", "epoch", "first"], since)
    found = rows[[*_SECONDS.values()]].set_axis([*_SECONDS], axis=1)
    of_epoch, steady = batches.groupby("epoch"), batches[is_steady(batches)].groupby("epoch")
    found["time"] = rows["time"]
    found["steps_s"] = steady["step/time_ms"].mean() * of_epoch.size() / 1000
    found["examples"] = of_epoch["input/examples"].sum()
    begins = of_epoch["first"].max() > 0
    worked_s = found[["validation_s", "callbacks_s"]].sum(axis=1)
    paused_s = rows["time"] - of_epoch["time"].last().reindex(rows.index) - worked_s
    # A process that began after the last step of an epoch shows in the first step of the next one, if there is one.
    may_resume = begins.shift(-1, fill_value=True).reindex(rows.index, fill_value=False)
    found["starts"] = begins.reindex(rows.index, fill_value=False) | (may_resume & (paused_s > PAUSE_S))
    clocked_s = rows["time"].diff().where(rows.index.to_series().diff() == 1)
    started_s = found[["steps_s", "validation_s", "callbacks_s"]].sum(axis=1, min_count=1)
    found["whole_s"] = clocked_s.where(~found["starts"], started_s)
    between_s = (found["whole_s"] - found["steps_s"]).clip(lower=0)
    unexplained_s = (between_s - worked_s).clip(lower=0)
    waited_s = (found["checkpoint_s"] - found["whole_s"] + unexplained_s).fillna(0).clip(0, unexplained_s)
    found["between_s"] = between_s - waited_s
    found["checkpoint_s"] = (found["checkpoint_s"] + unexplained_s - waited_s).clip(upper=found["whole_s"])
    return found.dropna(subset=["whole_s", "steps_s"]).loc[first:]


def usual_epochs(epochs: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return those of some `whole_epochs` that say most: no process began in them, if there are such epochs."""
    return epochs if epochs["starts"].all() else epochs[~epochs["starts"]]
