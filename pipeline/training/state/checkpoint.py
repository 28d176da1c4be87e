"""Checkpoints: weights, optimizer, and the position of the training. A rerun goes on from the last whole one.

A checkpoint is one file, written by a thread of its own from copies: a training of 25 million weights waits 0.1 s for
the copies instead of 0.4 to 1.2 s for the disk. TensorFlow's own background writing fails with Keras 3's variables.
"""

import io
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import keras
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StorageError, TrainingError, require_format
from pipeline.runs.run import CHECKPOINTS_KEPT, checkpoint_name
from pipeline.storage import Place, sync_folder, write_whole
from pipeline.system.parallel import OneBehind
from pipeline.training.step.loop import Sums

CHECKPOINT_FORMAT = 3
_TORN = (BadZipFile, EOFError, KeyError, ValueError, RuntimeError)
"""Errors of a file that was cut or has other bytes. The zip format has a checksum for each array."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """The position of a training."""

    epochs_done: int = 0
    step: int = 0
    """Training steps done since the first epoch: with the seed and the batch size, the place in the input."""
    sums: Sums = field(default_factory=Sums)
    """Sums of the current epoch, `sums.examples` of whose examples are done."""
    keeps: bool | None = None
    """Whether decoded images are kept; None before the first checkpoint."""

    @property
    def row(self) -> list[float]:
        """The position as numbers, for the other servers."""
        keeps = -1 if self.keeps is None else int(self.keeps)
        return [self.epochs_done, self.step, keeps, *astuple(self.sums)]

    @classmethod
    def of_row(cls, row: Sequence[float]) -> "Position":
        """Return the position of a `row`."""
        epochs_done, step, keeps, examples, *sums = row
        return cls(int(epochs_done), int(step), Sums(int(examples), *sums), None if keeps < 0 else bool(keeps))


class Checkpoints(OneBehind):
    """The checkpoints of one training in a folder, which keeps the last ones. A thread writes one of them at a time.

    No other server or replica takes part, so that one of them may save at any time.
    """

    def __init__(self, folder: Path, model: keras.Model, optimizer: keras.Optimizer) -> None:
        super().__init__("checkpoint")
        self._folder = folder
        optimizer.build(model.trainable_variables)  # Its variables must exist before they can be restored.
        # They are stored by their order: the names that Keras gives depend on what else the process has made. Those of
        # the model include the counts of dropout.
        self.variables = [*model.variables, *optimizer.variables]
        self.took_s = math.nan
        """Seconds that the thread needed for the last checkpoint that is written; NaN before the first one."""

    def restore(self) -> Position:
        """Restore the last whole checkpoint, and return its position. Remove damaged ones, with a warning.

        Raises:
            FormatError: If another version of Tenfold wrote it.
            TrainingError: If it holds other variables than these.
        """
        paths = self._files()
        for path in reversed(paths):
            content = path.read_bytes()  # Outside the try: a file that cannot be read now is not damaged.
            try:
                position, values = _parsed(content, path)
            except _TORN as error:
                _log.warning("the checkpoint %s is damaged (%.200s): using the previous checkpoint", path, error)
                path.unlink()  # It would count as one of the last ones, which are kept.
                continue
            self._assign(values, path)
            _log.info("continuing after epoch %d, step %d", position.epochs_done, position.step)
            return position
        if paths:
            _log.warning(
                "none of the checkpoints in %s could be read: the training starts from the beginning", self._folder
            )
        return Position()

    def continue_from(self, path: Place) -> Position:
        """Restore the checkpoint of another training at the end of an epoch, and return its position.

        This training decides itself whether it keeps decoded images.

        Raises:
            FormatError: If another version of Tenfold wrote it.
            TrainingError: If it is damaged, or holds other variables than these.
        """
        try:
            position, values = _parsed(path.read_bytes(), path)
        except _TORN as error:
            raise TrainingError(f"{path} is damaged ({error}), so no training can continue from it") from error
        self._assign(values, path)
        _log.info("continuing %s after epoch %d, step %d", path.parent.parent, position.epochs_done, position.step)
        return Position(position.epochs_done, position.step)

    def save(self, position: Position, before_it_appears: Callable[[], None] = lambda: None) -> None:
        """Write the current values of the variables, in the background, after the checkpoint before is written.

        Errors of the thread are raised by the next call, by `wait`, or at the end of the block. The thread calls
        `before_it_appears`, which waits for what must be on the disk before the checkpoint is.

        Raises:
            StorageError: If the checkpoint before could not be written.
            TrainingError: If a weight in it is not a finite number, as after an overflow of the gradients. No training
                could go on from there.
        """
        self.wait()
        # Copies: the next steps change the variables while the thread writes.
        values = [variable.numpy() for variable in self.variables]
        # Without their number, a damaged list of arrays that ends early would not be noticed.
        about = json.dumps({"format": CHECKPOINT_FORMAT, "variables": len(values), "position": asdict(position)})
        path = self._folder / checkpoint_name(position.epochs_done, position.step)
        self.submit(partial(self._write, path, about, values, before_it_appears))

    def _write(
        self, path: Path, about: str, values: list[NDArray[np.generic]], before_it_appears: Callable[[], None]
    ) -> None:
        began = time.perf_counter()
        if not all(np.isfinite(value).all() for value in values if np.issubdtype(value.dtype, np.inexact)):
            raise TrainingError(
                f"some weights are not finite numbers, so {path} is not written: lower learning_rate, or set "
                "clip_norm. The next attempt continues from the previous checkpoint"
            )
        try:
            with write_whole(path, synced=True) as file:
                np.savez(file, np.array(about), *values)
                # Within the block, at whose end the file gets its name.
                before_it_appears()
            sync_folder(self._folder)  # A power loss must not keep the removal of the old ones alone.
            for old in self._files()[:-CHECKPOINTS_KEPT]:
                old.unlink()
            self.took_s = time.perf_counter() - began
        except OSError as error:
            raise StorageError(
                f"the checkpoint {path} cannot be written ({error}): free some disk space, or check the file system, "
                "and run again. Training then continues from the previous checkpoint"
            ) from error

    def _files(self) -> list[Path]:
        """Return the files of the checkpoints, the oldest first."""
        return sorted(self._folder.glob("checkpoint-*.npz"))

    def _assign(self, values: list[NDArray[np.generic]], path: Place) -> None:
        # Before any variable changes: a checkpoint must be restored as a whole or not at all.
        if [value.shape for value in values] != [tuple(variable.shape) for variable in self.variables]:
            raise TrainingError(
                f"{path} holds other variables than the model, because another version of Keras or of the model wrote "
                f"it: return to that version, or remove {self._folder} to train from the beginning"
            )
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)


def _parsed(content: bytes, path: Place) -> tuple[Position, list[NDArray[np.generic]]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        first, *values = (arrays[f"arr_{number}"] for number in range(len(arrays.files)))  # `savez` gives these names.
    about = json.loads(str(first))
    mend = f"remove {path.parent} to train from the beginning"
    require_format(about.get("format"), CHECKPOINT_FORMAT, path, mend)
    if about["variables"] != len(values):
        raise ValueError(f"it holds {len(values)} of {about['variables']} variables")
    position = about["position"]
    return Position(**{**position, "sums": Sums(**position["sums"])}), values


class Interval:
    """Tells when the next checkpoint is due: `minutes` or `steps` after the last one, whichever is first; 0: never.

    `step` is that of the last checkpoint, or the one at which this process began.
    """

    def __init__(self, minutes: float, steps: int, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._minutes, self._steps, self._clock = minutes, steps, clock
        self.begin(step)

    def begin(self, step: int) -> None:
        """Begin the next interval: a checkpoint was made at `step`."""
        self._step, self._time = step, self._clock()

    def steps_left(self, step: int) -> float:
        """Return after how many steps from `step` on a checkpoint is due: 0 if now, infinity if only time decides."""
        if 0 < self._minutes * 60 <= self._clock() - self._time:
            return 0
        return max(0, self._step + self._steps - step) if self._steps > 0 else math.inf
