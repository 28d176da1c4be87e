"""Which model is the best, where a damaged checkpoint sends the training back."""

from pathlib import Path

import pytest

from pipeline.config import settings_from
from pipeline.runs import Best, Run, forget_bests, load_best, save_best


@pytest.fixture
def run(tmp_path: Path) -> Run:
    settings = settings_from({"workspace": str(tmp_path), "checkpoints_kept": 2})
    return Run(tmp_path, "run", "", "1", settings, {}, {})


def better(run: Run, *epochs: int) -> None:
    """Each of these epochs is better than those before it."""
    for epoch in epochs:
        (run.folder / f"model-{epoch}.keras").touch()
        save_best(run, Best(epoch, f"model-{epoch}.keras", {"val_accuracy": epoch / 10}))


def models(run: Run) -> list[str]:
    return sorted(path.name for path in run.folder.glob("*.keras"))


def test_models_stay_for_as_long_as_a_checkpoint_may_go_back_to_them(run: Run):
    assert load_best(run) is None
    better(run, 1, 2, 4, 5)
    assert load_best(run) == Best(5, "model-5.keras", {"val_accuracy": 0.5})
    assert models(run) == ["model-2.keras", "model-4.keras", "model-5.keras"]


@pytest.mark.parametrize(
    ("epochs_done", "best", "left"),
    [
        (7, 5, [2, 4, 5]),
        (5, 5, [2, 4, 5]),
        (4, 4, [2, 4]),
        (3, 2, [2]),
        (1, None, []),
        (0, None, []),
    ],
)
def test_what_was_best_of_the_steps_that_are_done_again_is_forgotten(
    run: Run, epochs_done: int, best: int | None, left: list[int]
):
    better(run, 1, 2, 4, 5)
    forget_bests(run, epochs_done)
    found = load_best(run)
    assert (found.epoch if found else None) == best
    assert models(run) == [f"model-{epoch}.keras" for epoch in left]


def test_a_run_without_any_is_left_as_it_is(run: Run):
    forget_bests(run, 0)
    assert not [*run.folder.iterdir()]
