"""A training that is killed repeatedly reads the same examples and learns the same as an uninterrupted training."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.monitor import read
from pipeline.runs.changes import load_changes
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, load_result
from tests.training import noting_ids

EPOCHS, BATCH = 6, 4
KILLED_AFTER = (4, 8)
"""Steps of each killed process. No checkpoint holds the last step of a killed process, so that step is repeated."""
VALUES = ["loss", "accuracy", "val_loss", "val_accuracy"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    often = {"checkpoint_minutes": 0.0, "checkpoint_steps": 3}
    values = {"workspace": str(tmp_path), "image_size": 32, "batch_size": BATCH, "epochs": EPOCHS, **often}
    return settings_from({**values, "cache": "off"})


class Training:
    """A run that can be started several times, and the examples of its steps."""

    def __init__(self, run: Run) -> None:
        self.run, self._notes = run, run.folder / "notes"

    def run_process(self, **environment: str) -> int:
        """Run the training in a process, and return its exit code."""
        command = [sys.executable, noting_ids.__file__, str(self._notes), str(self.run.folder), str(os.getpid())]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
        return subprocess.run(command, env=environment, check=False).returncode

    def noted(self) -> list[tuple[int, ...]]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def surviving(self) -> dict[int, tuple[int, ...]]:
        """Return the epoch and the example numbers of each step, from its last execution."""
        return {step: seen for step, *seen in self.noted()}

    def weights(self) -> dict[str, str]:
        """Return the checksum of the weights after each step, from its last execution."""
        return dict(line.split() for line in Path(f"{self._notes}.weights").read_text().splitlines())

    def of_epochs(self, epochs: int = EPOCHS) -> Iterator[Counter[int]]:
        for epoch in range(1, epochs + 1):
            yield Counter(number for of, *numbers in self.surviving().values() if of == epoch for number in numbers)


@pytest.mark.core
@pytest.mark.timeout(900)
def test_a_repeatedly_killed_training_equals_an_uninterrupted_training(settings: Settings, published: Path):
    whole, killed = (Training(prepare_run(settings, published, name)) for name in ("whole", "killed"))
    assert whole.run_process() == 0
    for steps in KILLED_AFTER:
        assert killed.run_process(KILL_AFTER=str(steps)) == -signal.SIGKILL
    assert killed.run_process() == 0

    examples = load(published).splits["train"].examples
    assert [*killed.of_epochs()] == [dict.fromkeys(range(examples), 1)] * EPOCHS
    assert killed.surviving() == whole.surviving()
    assert len(killed.noted()) >= len(whole.noted()) + len(KILLED_AFTER)  # the last step of each killed process
    assert_recorded_alike(killed.run, whole.run)
    assert load_result(killed.run.folder)["metrics"] == pytest.approx(
        load_result(whole.run.folder)["metrics"], rel=1e-3
    )


@pytest.mark.parametrize("change", ["cache=memory", "cache=disk", "prefetch_batches=1"])
@pytest.mark.timeout(900)
def test_a_training_that_is_killed_after_a_change_equals_one_that_is_not(
    settings: Settings, published: Path, change: str
):
    """The change is requested in the second epoch, and the training is killed in the third and in the fourth one."""
    settings = settings.model_copy(update={"epochs": 5, "local_folder": settings.workspace})
    whole, killed = (Training(prepare_run(settings, published, name)) for name in ("whole", "killed"))
    steps = whole.run.steps_per_epoch
    request = {"REQUEST": f"{steps + 2} {change}"}
    assert whole.run_process(**request) == 0
    for taken in (2 * steps + 2, steps + 2):
        assert killed.run_process(KILL_AFTER=str(taken), **request) == -signal.SIGKILL
    assert killed.run_process(**request) == 0

    for training in (whole, killed):
        assert [str(each) for each in load_changes(training.run.folder)] == [f"from epoch 3 on: {change}, by somebody"]
    examples = load(published).splits["train"].examples
    assert [*killed.of_epochs(5)] == [dict.fromkeys(range(examples), 1)] * 5
    assert killed.surviving() == whole.surviving()
    # A checksum follows the last of the steps that were sent together, and how many those are depends on the speed.
    ours, theirs = killed.weights(), whole.weights()
    both = ours.keys() & theirs.keys()
    assert len(both) > steps
    assert {step: ours[step] for step in both} == {step: theirs[step] for step in both}


def assert_recorded_alike(run: Run, other: Run) -> None:
    """Assert that both records have each step and epoch once, with equal examples and losses."""
    batches, others = (read(each.folder / "record", "batches") for each in (run, other))
    assert batches["step"].tolist() == others["step"].tolist() == [*range(1, len(batches) + 1)]
    assert batches["input/examples"].tolist() == others["input/examples"].tolist()
    epochs, others = (read(each.folder / "record", "epochs") for each in (run, other))
    assert epochs["step"].tolist() == others["step"].tolist() == [*range(1, EPOCHS + 1)]
    print("largest difference:", np.abs(epochs[VALUES].to_numpy() - others[VALUES].to_numpy()).max())
    assert np.allclose(epochs[VALUES], others[VALUES], rtol=1e-3, atol=1e-6)
