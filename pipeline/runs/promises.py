"""What the advice promised of its changes, and what was then measured: a table in the workspace.

The epochs before a change are compared with those after it, by the clock of the record: with their validation, their
checkpoints, and all that lies between two of them, as they are promised. A promise of `cache` is about all epochs that
are left, and the first of these fills the cache. So it is measured when the last of them has ended. The first epoch
with any other change counts only until another one has ended: it opens its input again, which is not promised. Epochs
beside the build of a new dataset do not count, because it may use the same cores.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline import storage
from pipeline.config.allowed import require_output
from pipeline.config.workspace import workspace_of
from pipeline.errors import TenfoldError
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.epochs import usual_epochs, whole_epochs
from pipeline.monitor.limits import Limit
from pipeline.monitor.verdict import Verdict, diagnose_run
from pipeline.runs.changes import CONTINUES, DATASET, Change, edit_lines, load_changes, replace_changes, save_copy
from pipeline.runs.files import RUN, read_or_empty
from pipeline.storage import Place
from pipeline.system.os_errors import unless_missing

if TYPE_CHECKING:
    import pandas

TABLE = "promises.jsonl"
"""The table, in the workspace: a line of JSON for each promise."""
MAX_BYTES = 1 << 20
MAX_KEPT = 1000
"""The newest promises that the table keeps."""
MIN_PROMISES = 5
"""A machine needs at least this number of promises before their errors say something about it."""
MAX_FACTOR = 1e6
"""No change makes a training this many times faster, or slower. Such a line of the table is damaged."""
SURE = 1.96
"""A mean error is systematic if it is this many standard errors from none."""


@dataclass(frozen=True)
class Promise:
    """A change, what it should gain, and what it did. A gain is the ratio of the examples per second."""

    training: str
    """The address of the training, relative to its workspace."""
    machine: str
    """The processor and the number of its usable cores."""
    change: str
    epoch: int
    """The first epoch with the change."""
    promised: Estimate
    measured: float

    @property
    def error(self) -> float:
        """How far the promise is from the measurement, as a share of it."""
        return self.promised.value / self.measured - 1


def prove(folder: Path, training: Place, epochs: int, continued: Path | None = None) -> list[Change]:
    """Return the changes of a training of some epochs, with what its record in `folder` shows by now.

    They are stored at the place of the training. `continued` is the folder of the training that it continues, if any.
    """
    changes = load_changes(training)
    proved = with_measurements(folder / "record", changes, epochs, continued)
    if proved != changes:
        replace_changes(training, dict(zip(changes, proved, strict=True)))
        save_copy(folder, training, proved)
    return proved


def with_measurements(
    record: Path, changes: Sequence[Change], epochs: int, continued: Path | None = None
) -> list[Change]:
    """Return the changes of a training of some epochs, each that was promised something with what its record shows.

    Of changes that began with the same epoch, the record cannot tell which one made the difference. Epochs beside the
    build of a new dataset do not count. `continued` is the folder of the training that this one continues, if any. On
    another machine, it is not compared.
    """
    if not any(change.promised for change in changes):
        return [*changes]
    import pandas

    begun = Counter(change.epoch for change in changes if change.epoch and not change.refused)
    cached = {change.epoch for change in changes if change.field == "cache"}
    found, builds = whole_epochs(record), [*changes]
    is_comparable = continued and _machine_in(continued) == _machine_in(record.parent)
    if continued and is_comparable and len(earlier := _epochs_before(continued)):
        found = pandas.concat([earlier, found])
        builds += load_changes(continued)
    borders = [1, *sorted(begun), int(found.index.max()) + 1 if len(found) else 1]
    found = found.assign(is_beside_build=_are_beside_build(found, builds))
    gains = {}
    for before, epoch, after in zip(borders, borders[1:], borders[2:], strict=False):
        old, new = found.loc[before : epoch - 1], found.loc[epoch : after - 1]
        is_over = epoch not in cached or epochs in range(epoch, after)
        if len(old) and len(new) and begun[epoch] == 1 and is_over:
            gains[epoch] = _gain(old, new, is_cache=epoch in cached)
    return [
        # What was measured stays if the record before the change is on another machine.
        replace(change, measured=gains.get(change.epoch, change.measured))
        if change.promised and not change.refused
        else change
        for change in changes
    ]


def _machine_in(folder: Path) -> str:
    """Return on which machine a training in a folder ran last."""
    return machine_of(read_or_empty(folder / RUN).get("host", {}))


def _are_beside_build(epochs: "pandas.DataFrame", changes: Iterable[Change]) -> "pandas.Series[bool]":
    """Return which epochs a build of a dataset for this training may have slowed down, by their number."""
    begins, found = epochs["time"] - epochs["whole_s"], epochs["time"] < 0
    for change in changes:
        build_begin, build_end = change.build_times
        found |= (epochs["time"] > build_begin) & (begins < build_end)
    return found


def _gain(old: "pandas.DataFrame", new: "pandas.DataFrame", *, is_cache: bool) -> float:
    """Return how many times faster epochs are than those before a change; 0 if builds leave none to compare."""
    before, after = (each[~each["is_beside_build"]] for each in (old, new))
    # A promise of `cache` is about all of its epochs.
    if before.empty or after.empty or (is_cache and len(after) < len(new)):
        return 0.0
    after = after if is_cache else _settled(after)
    return round(float(_settled(before)["whole_s"].mean() / after["whole_s"].mean()), 4)


def _settled(epochs: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return those of some epochs with the same settings that say most, without the first if there are others."""
    return usual_epochs(epochs[1:] if len(epochs) > 1 else epochs)


def last_change(changes: Iterable[Change], decodes_first: bool = False) -> int:
    """Return the first epoch with the newest settings; 0 if no change was made.

    A training that ends for another one, or continues another one, has the same settings from its begin to its end.
    With `decodes_first`, its first epoch counts as a change: it decodes the images, and later epochs only read them.
    """
    others = [DATASET] if decodes_first else [DATASET, CONTINUES]
    return max([int(decodes_first), *(each.epoch for each in changes if not each.refused and each.field not in others)])


def verdict_since_change(folder: Path, changes: Sequence[Change], decodes_first: bool = False) -> Verdict:
    """Return the verdict on the steps of a training with the newest settings. `decodes_first` is as in `last_change`.

    The first epoch after a change, which opens its input, counts only if no other one has enough steps.
    """
    changed = last_change(changes, decodes_first)
    verdict = diagnose_run(folder, changed + 1)
    if not changed or verdict.limit is not Limit.UNKNOWN:
        return verdict
    verdict = diagnose_run(folder, changed)
    if last_change(changes) or verdict.limit is Limit.UNKNOWN:
        return verdict
    return replace(verdict, sentence=f"{verdict.sentence} The first epoch, which decodes the images, is part of it.")


def epochs_since_change(record: Path, changes: Iterable[Change], decodes_first: bool = False) -> "pandas.DataFrame":
    """Return the `whole_epochs` with the newest settings, but for the first after a change, which opens its input.

    `decodes_first` is as in `last_change`.
    """
    return whole_epochs(record).loc[last_change(changes, decodes_first) + 1 :]


def _epochs_before(continued: Path) -> "pandas.DataFrame":
    """Return the epochs of a continued training since its last own change; none if its record is elsewhere."""
    taken = [each.epoch for each in load_changes(continued) if each.epoch and each.field != DATASET]
    return whole_epochs(continued / "record").loc[max(taken, default=1) :]


def load_promises(workspace: Place) -> list[Promise]:
    """Return the promises of a workspace, the oldest first. Lines that are damaged are left out.

    Raises SettingsError if this machine does not allow the place, and DatasetError if the table is no regular file.
    """
    require_output(workspace / TABLE)
    return _parsed(unless_missing(lambda: storage.read_limited(workspace / TABLE, MAX_BYTES)))


def promises_on(training: Place, machine: str) -> list[Promise]:
    """Return the promises of the workspace of a training on a machine; none if there is no such table to be read."""
    try:
        return [each for each in load_promises(workspace_of(training)) if each.machine == machine]
    except (TenfoldError, OSError):
        return []


def save_promises(workspace: Place, training: str, machine: str, changes: Iterable[Change]) -> None:
    """Write the promises of a training into the table of its workspace, in place of those of an earlier attempt.

    Raises ConflictError if others write into the table all the time.
    """
    promises = [
        Promise(training, machine, change.words, change.epoch, Estimate(*change.promised), change.measured)
        for change in changes
        if change.measured
    ]

    def added(before: Sequence[Promise]) -> list[Promise]:
        return [*(each for each in before if each.training != training), *promises][-MAX_KEPT:]

    if promises:
        require_output(workspace / TABLE)
        edit_lines(workspace / TABLE, lambda content: _lines(added(_parsed(content))), MAX_BYTES)


def summary_of(promises: Sequence[Promise]) -> str:
    """Return how well the promises of a workspace hold, in a sentence; empty if there are none."""
    if not promises:
        return ""
    error = np.median([abs(each.error) for each in promises])
    inside = sum(each.promised.low <= each.measured <= each.promised.high for each in promises)
    count = f"{len(promises)} changes" if len(promises) > 1 else "1 change"
    return (
        f"The advice promised how much faster {count} would make a training. It was wrong by {error:.0%} in the "
        f"median, and {inside} of {len(promises)} measurements are within the interval."
    )


def widened(promised: Estimate, kept: Iterable[Promise]) -> Estimate:
    """Return a promise whose interval holds the systematic error of the promises that were kept on the same machine."""
    errors = np.array([log(each.measured / each.promised.value) for each in kept])
    if len(errors) < MIN_PROMISES or abs(errors.mean()) < SURE * errors.std(ddof=1) / len(errors) ** 0.5:
        return promised
    moved = promised.value * exp(errors.mean())
    return promised._replace(low=min(promised.low, moved), high=max(promised.high, moved))


def machine_of(host: Mapping[str, Any]) -> str:
    """Return which machine `host_facts` describe. Pods on equal machines are the same one."""
    return f"{host.get('processor', '')}, {host.get('usable_cores', '?')} cores"


def _lines(promises: Iterable[Promise]) -> bytes:
    return "".join(json.dumps(asdict(each)) + "\n" for each in promises).encode()


def _parsed(content: bytes | None) -> list[Promise]:
    found = []
    for line in (content or b"").splitlines():
        try:
            promise = Promise(**json.loads(line))
            promise = replace(
                promise, promised=Estimate(*map(float, promise.promised)), measured=float(promise.measured)
            )
        except (ValueError, TypeError, OverflowError):  # Somebody else damaged it.
            continue
        texts = promise.training, promise.machine, promise.change
        numbers = promise.measured, *promise.promised
        if all(isinstance(text, str) for text in texts) and all(1 / MAX_FACTOR < each < MAX_FACTOR for each in numbers):
            found.append(promise)
    return found
