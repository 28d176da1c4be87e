"""The best model after a damaged checkpoint sets a training back."""

from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.runs.run import Best, Run, find_best_model, load_best, rewind_best_epochs, save_best
from pipeline.storage import crc32c_of


@pytest.fixture
def run(tmp_path: Path) -> Run:
    settings = settings_from({"workspace": str(tmp_path)})
    return Run(tmp_path, "run", "", "1", settings, {}, {}, steps_per_epoch=1)


def better(run: Run, *epochs: int) -> None:
    """Save a best model for each of these epochs."""
    for epoch in epochs:
        path = run.folder / f"model-{epoch}.keras"
        path.write_text(f"the model of epoch {epoch}")
        save_best(run, Best(epoch, path.name, {"val_accuracy": epoch / 10}, f"{crc32c_of(path):08x}"))


def models(run: Run) -> list[str]:
    return sorted(path.name for path in run.folder.glob("*.keras"))


def test_best_models_are_not_deleted_while_a_checkpoint_can_return_to_them(run: Run):
    assert load_best(run) is None
    better(run, 1, 2, 4, 5, 7)
    best = load_best(run)
    assert best
    assert (best.epoch, best.model, best.metrics) == (7, "model-7.keras", {"val_accuracy": 0.7})
    assert models(run) == ["model-2.keras", "model-4.keras", "model-5.keras", "model-7.keras"]


@pytest.mark.parametrize(
    ("epochs_done", "best", "left"),
    [
        (8, 7, [2, 4, 5, 7]),
        (7, 7, [2, 4, 5, 7]),
        (6, 5, [2, 4, 5]),
        (4, 4, [2, 4]),
        (3, 2, [2]),
        (1, None, []),
        (0, None, []),
    ],
)
def test_rewinding_removes_best_models_of_later_epochs(run: Run, epochs_done: int, best: int | None, left: list[int]):
    better(run, 1, 2, 4, 5, 7)
    rewind_best_epochs(run, epochs_done)
    found = load_best(run)
    assert (found.epoch if found else None) == best
    assert models(run) == [f"model-{epoch}.keras" for epoch in left]


@pytest.mark.parametrize(("damaged", "best"), [([7], 5), ([5, 7], 4), ([5], 7), ([2, 4, 5, 7], None)])
@pytest.mark.parametrize("damage", [b"", b"the model of epoch 0"])
def test_the_next_best_model_replaces_a_damaged_model(
    run: Run, damaged: list[int], best: int | None, damage: bytes, caplog: pytest.LogCaptureFixture
):
    better(run, 1, 2, 4, 5, 7)
    for epoch in damaged:
        (run.folder / f"model-{epoch}.keras").write_bytes(damage)
    rewind_best_epochs(run, 7)
    found = load_best(run)
    assert (found.epoch if found else None) == best
    assert ("model-7.keras, the best model at epoch 7, is damaged" in caplog.text) == (7 in damaged)


def test_the_best_model_is_loaded_by_its_final_name(run: Run, caplog: pytest.LogCaptureFixture):
    better(run, 2, 5)
    (run.folder / "model-5.keras").replace(run.model_path)
    (run.folder / "model-2.keras").unlink()
    rewind_best_epochs(run, 7)
    assert find_best_model(run) == run.model_path
    assert not caplog.text


def test_a_damaged_list_of_best_models_counts_as_empty(run: Run, caplog: pytest.LogCaptureFixture):
    better(run, 2)
    (run.folder / "best.json").write_bytes(b"\0\0")
    assert load_best(run) is None
    assert "best.json is damaged" in caplog.text


def test_rewinding_a_run_without_best_models_changes_nothing(run: Run):
    rewind_best_epochs(run, 0)
    assert not [*run.folder.iterdir()]
