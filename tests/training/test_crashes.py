"""Power loss in a training: the next attempt reaches the same model from any state that a power loss can leave."""

from pathlib import Path

import keras
import numpy as np
import pytest

from pipeline import storage
from pipeline.config.settings import settings_from
from pipeline.monitor import read
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, load_result, result_of
from pipeline.training.job import run_job
from tests.crashes import recorded, restore, sampled, states


def never() -> bool:
    return False


def trained(workspace: Path, published: Path) -> Run:
    """Run an attempt: two epochs, with a checkpoint in the middle of each epoch."""
    often = {"checkpoint_minutes": 0.0, "checkpoint_steps": 3}
    values = {"workspace": str(workspace), "image_size": 32, "batch_size": 8, "epochs": 2, **often}
    run = prepare_run(settings_from({**values, "cache": "off"}), published, "run")
    storage.sweep(run.folder)
    if result_of(run) is None:
        run_job(run, never)
    return run


def weights(model: Path) -> list[np.ndarray]:
    return list(keras.models.load_model(model).get_weights())


@pytest.mark.long
@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.core), 8])
def test_a_training_converges_after_any_power_loss(published: Path, tmp_path: Path, count: int):
    workspace = tmp_path / "workspace"
    with recorded(workspace) as recording:
        run = trained(workspace, published)
    expected, metrics = weights(run.model_path), load_result(run.folder)["metrics"]
    found = states(recording, random_states=1)
    replayed = sampled(found, count)
    for state in replayed:
        restore(state, workspace)
        trained(workspace, published)
        assert load_result(run.folder)["metrics"] == metrics, state.ops
        assert all(map(np.array_equal, weights(run.model_path), expected)), state.ops
        assert (run.export_folder / "saved_model.pb").stat().st_size
        steps = read(run.folder / "record", "batches")["step"].tolist()
        assert steps == sorted(set(steps))
        assert not [*run.folder.rglob("*.tmp*")]
    print(f"training: {len(recording.ops)} operations, {len(replayed)} of {len(found)} states converge")
