"""Promotion of models: by comparison, manually, by rollback and concurrently, with the files of trainings."""

import json
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import storage
from pipeline.__main__ import main
from pipeline.config.settings import settings_from
from pipeline.errors import ConflictError, DatasetError, PromotionError, SourceError, TrainingError
from pipeline.evaluation.metrics import save_predictions
from pipeline.evaluation.one_label import Predictions
from pipeline.runs import promotion as promotion_module
from pipeline.runs.champion import Entry, effective_promotions, find_promoted_model, pointer_of, roll_back
from pipeline.runs.files import RUN_FORMAT
from pipeline.runs.promotion import compare_answers, promote_by_hand, promote_if_better
from pipeline.runs.recorded_run import load_recorded_run
from pipeline.runs.run import EXPORT_FORMAT
from pipeline.storage import Place
from standins.fake_gcs import FakeGcs

NAME = "flowers"
EXAMPLES = 200
SETTINGS = settings_from({})


def answers(correct: int, examples: int = EXAMPLES, first: int = 0) -> Predictions:
    """Return predictions of a model that is correct for `correct` examples, starting with example `first`."""
    label = np.zeros(examples, np.int32)
    predicted = np.ones(examples, np.int32)
    predicted[np.arange(first, first + correct) % examples] = 0
    sure = np.ones(examples, np.float32)
    return Predictions(label, predicted, sure, sure, predicted == label)


MakeTraining = Callable[..., Place]


@pytest.fixture(params=["disk", "bucket"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, gcs: FakeGcs) -> Place:
    """An empty workspace."""
    return tmp_path / "w" if request.param == "disk" else storage.place_of("gs://bucket/w")


@pytest.fixture
def make_training(workspace: Place, tmp_path: Path) -> MakeTraining:
    """Makes the files of a complete training: `make_training("run", correct=180)`."""

    def make(run: str, correct: int, version: str = "1", labels: tuple[str, ...] = ("a", "b")) -> Place:
        folder = workspace / "runs" / run / "key"
        run_json = {"format": RUN_FORMAT, "dataset": str(tmp_path / "dataset"), "settings": {"simulated_step_ms": 0.0}}
        about = {"format": EXPORT_FORMAT, "labels": labels, "dataset": NAME, "dataset_version": version}
        result = {"run": str(folder), "metrics": {"val_accuracy": correct / EXAMPLES}}
        save_predictions(tmp_path, answers(correct))
        for name, content in (
            ("run.json", json.dumps(run_json).encode()),
            ("export/about.json", json.dumps(about).encode()),
            ("predictions.npz", (tmp_path / "predictions.npz").read_bytes()),
            ("result.json", json.dumps(result).encode()),
        ):
            with storage.write_whole(folder / name) as file:
                file.write(content)
        return folder

    return make


def judged(run: Place, **values: Any) -> dict[str, Any]:
    return promote_if_better(run, SETTINGS.model_copy(update=values), output=2)


# --- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "max_worse", "promoted"),
    [
        (answers(180), answers(150), 0.0, True),
        (answers(150), answers(150), 0.0, True),
        (answers(150), answers(153), 0.0, True),  # three of 200 may be chance
        (answers(150), answers(165), 0.0, False),
        (answers(150), answers(165), 0.05, True),
        (answers(120), answers(165), 0.05, False),
        (answers(150, first=40), answers(165), 0.0, True),  # equally worse, but the predictions differ for many images
        (answers(6, examples=10), answers(8, examples=10), 0.0, True),  # two of ten say little
        (answers(0, examples=10), answers(10, examples=10), 0.0, False),
    ],
)
def test_a_model_is_refused_only_if_the_whole_interval_is_below_zero(
    ours: Predictions, theirs: Predictions, max_worse: float, promoted: bool
):
    decision = compare_answers(ours, theirs, "run/key", max_worse, seed=0)
    assert decision.is_promoted == promoted, decision.sentence


def test_the_verdict_contains_all_numbers_of_the_decision():
    refused = compare_answers(answers(150), answers(180), "run/key", 0.01, seed=0)
    assert refused.sentence == (
        "not promoted: accuracy 75.0% against 90.0% of run/key on the same 200 validation images, a difference of "
        "-15.0 points (-20.3 to -10.2). The model is worse over the whole interval, by more than max_worse=0.01 "
        "allows"
    )
    tested = compare_answers(answers(150), answers(180), "run/key", 0.0, seed=0, split="test")
    assert "of run/key on the same 200 test images" in tested.sentence
    chance = compare_answers(answers(150), answers(152), "run/key", 0.0, seed=0)
    assert chance.sentence.endswith("difference of -1.0 points (-2.7 to +0.6). It is worse, but this may be chance")
    equal = compare_answers(answers(180), answers(180), "run/key", 0.0, seed=0)
    assert equal.sentence.endswith("difference of +0.0 points (-1.5 to +1.5)")


def test_a_better_model_is_promoted_and_a_worse_one_is_not(workspace: Place, make_training: MakeTraining):
    runs = [make_training(name, correct) for name, correct in (("one", 150), ("better", 170), ("worse", 140))]
    promotions = [judged(run) for run in runs]
    assert [each["promoted"] for each in promotions] == [True, True, False]
    assert promotions[0]["why"] == "promoted: the first model of 'flowers'"
    assert promotions[1]["why"].startswith("promoted: accuracy 85.0% against 75.0% of one/key on the same 200")
    assert promotions[2]["why"].startswith("not promoted: accuracy 70.0% against 85.0% of better/key")
    assert [each["champion"] for each in promotions] == [str(runs[0]), str(runs[1]), str(runs[1])]
    assert [storage.read_json(run / "promotion.json") for run in runs] == promotions
    pointer = pointer_of(workspace, NAME)
    assert str(pointer.place) == promotions[0]["pointer"] == f"{workspace}/models/flowers/champion.json"
    assert [each.run for each in pointer.history] == [str(runs[0]), str(runs[1])]
    named = storage.read_json(pointer.place)["champion"]
    assert (named["export"], named["metrics"]) == (str(runs[1] / "export"), {"val_accuracy": 0.85})


@pytest.mark.parametrize(
    ("values", "promoted", "why"),
    [
        ({"promote": "never"}, False, "not promoted: promote=never"),
        ({"promote": "always"}, True, "promoted without a comparison: promote=always"),
        ({"max_worse": 0.2}, True, "promoted: accuracy 70.0% against 85.0%"),
    ],
)
def test_the_settings_decide_the_promotion(
    make_training: MakeTraining, values: dict[str, Any], promoted: bool, why: str
):
    judged(make_training("better", 170))
    promotion = judged(make_training("worse", 140), **values)
    assert (promotion["promoted"], promotion["why"].startswith(why)) == (promoted, True), promotion


def test_a_repeated_gate_gives_the_same_answer_and_no_second_entry(workspace: Place, make_training: MakeTraining):
    runs = [make_training(name, correct) for name, correct in (("one", 150), ("better", 170), ("worse", 140))]
    promotions = [judged(run) for run in runs]
    history = pointer_of(workspace, NAME).history
    assert judged(runs[1]) == promotions[1]
    assert judged(runs[2]) == promotions[2]
    since = judged(runs[0])  # promoted once, and replaced since
    assert since["why"].startswith(promotions[0]["why"] + " (decided on ")
    assert since["why"].endswith("by now better/key is the champion, and stays it)")
    assert pointer_of(workspace, NAME).history == history


def test_a_model_is_promoted_if_the_champion_is_missing(make_training: MakeTraining):
    gone = make_training("gone", 190)
    judged(gone)
    (gone / "export" / "about.json").unlink()
    promotion = judged(make_training("next", 20))
    assert promotion["promoted"]
    assert promotion["why"] == f"promoted without a comparison: the champion's model {gone / 'export'} is missing"


def test_a_model_with_other_label_ids_is_not_promoted(make_training: MakeTraining):
    judged(make_training("one", 150))
    promotion = judged(make_training("other", 190, version="2", labels=("b", "a")))
    assert not promotion["promoted"]
    assert promotion["why"].startswith("not promoted: some ids have other labels than in the champion one/key")


@pytest.mark.long
def test_an_error_in_the_evaluation_of_the_champion_is_raised(make_training: MakeTraining):
    judged(make_training("one", 150))
    with pytest.raises(DatasetError, match="dataset is not a folder: name the folder of a version"):
        judged(make_training("other", 150, version="2"))


def test_a_signal_to_the_group_of_a_task_reaches_the_evaluation_of_the_champion(
    make_training: MakeTraining, monkeypatch: pytest.MonkeyPatch
):
    script = "import os, sys; sys.exit(40 + (os.getpgid(0) == os.getpgid(os.getppid())))"
    monkeypatch.setattr(promotion_module, "command_of", lambda *_: [sys.executable, "-c", script])
    judged(make_training("one", 150))
    with pytest.raises(TrainingError, match="ended with exit code 41"):
        judged(make_training("other", 150, version="2"))


def test_each_dataset_name_has_a_separate_champion(workspace: Place, make_training: MakeTraining):
    judged(make_training("one", 150))
    assert pointer_of(workspace, "cars").champion is None


def test_concurrent_gates_compare_each_model_with_the_previous_champion(workspace: Place, make_training: MakeTraining):
    runs = [make_training(f"run-{number}", 150) for number in range(5)]
    threads = [threading.Thread(target=judged, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = pointer_of(workspace, NAME).history
    assert {each.run for each in history} == {str(run) for run in runs}
    assert "the first model" in history[0].why
    for before, promoted in pairwise(history):
        assert f"of {storage.place_of(before.run).parent.name}/key on the same" in promoted.why


# --- rollback ---------------------------------------------------------------------------------------------------------


def entry(action: str, run: str) -> Entry:
    return Entry(action, run, f"{run}/export", "1", {}, "", "", "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "effective"),
    [
        ("", ""),
        ("+a", "a"),
        ("+a +b", "ab"),
        ("+a +b -a", "a"),
        ("+a +b +c -b -a", "a"),
        ("+a +b -a +c -a", "a"),
        ("+a +b -a +b", "ab"),
    ],
)
def test_effective_promotions_are_those_not_rolled_back(history: str, effective: str):
    entries = [entry({"+": "promote", "-": "rollback"}[word[0]], word[1]) for word in history.split()]
    assert [each.run for each in effective_promotions(entries)] == list(effective)


def test_each_rollback_goes_one_step_back_and_is_recorded(workspace: Place, make_training: MakeTraining):
    one, two, three = (make_training(name, 150) for name in ("one", "two", "three"))
    for run in (one, two, three):
        judged(run)
    assert roll_back(pointer_of(workspace, NAME)).run == str(two)
    assert judged(three)["champion"] == str(two)  # a cleared task does not undo the rollback
    assert roll_back(pointer_of(workspace, NAME)).run == str(one)
    with pytest.raises(PromotionError, match="there is no model to roll back to"):
        roll_back(pointer_of(workspace, NAME))
    assert promote_by_hand(three)["champion"] == str(three)
    assert roll_back(pointer_of(workspace, NAME)).run == str(one)
    history = pointer_of(workspace, NAME).history
    assert [(each.action[0], storage.place_of(each.run).parent.name) for each in history] == [
        *(("p", "one"), ("p", "two"), ("p", "three")),
        *(("r", "two"), ("r", "one"), ("p", "three"), ("r", "one")),
    ]
    assert history[3].why == f"rolled back the promotion of {three}"


def test_a_rollback_to_a_missing_model_is_refused(workspace: Place, make_training: MakeTraining):
    one, two = (make_training(name, 150) for name in ("one", "two"))
    for run in (one, two):
        judged(run)
    (one / "export" / "about.json").unlink()
    with pytest.raises(PromotionError, match=r"the model to roll back to is missing: .*/runs/one/key/export"):
        roll_back(pointer_of(workspace, NAME))
    assert pointer_of(workspace, NAME).champion == pointer_of(workspace, NAME).history[1]


def test_a_rollback_of_a_changed_pointer_is_refused(workspace: Place, make_training: MakeTraining):
    for name in ("one", "two"):
        judged(make_training(name, 150))
    seen = pointer_of(workspace, NAME)
    judged(make_training("three", 150))
    with pytest.raises(ConflictError, match=r"another program changed .* in the meantime"):
        roll_back(seen)


# --- commands and report ----------------------------------------------------------------------------------------------


def test_the_commands_promote_roll_back_and_show_the_champion(
    workspace: Place, make_training: MakeTraining, capsys: pytest.CaptureFixture
):
    one, two = (make_training(name, correct) for name, correct in (("one", 180), ("two", 120)))
    places = ["--set", f"workspace={workspace}", "--set", f"dataset_name={NAME}"]

    def output_of(*arguments: str, code: int = 0) -> str:
        assert main(arguments) == code
        captured = capsys.readouterr()
        return str(captured.out if code == 0 else captured.err)

    assert "none: no model has been promoted yet" in output_of("champion", *places)
    assert "there is no model to roll back to" in output_of("rollback", *places, code=1)
    judged(one)
    assert json.loads(output_of("promote", str(two), "--json"))["champion"] == str(two)
    assert json.loads(output_of("promote", str(two), "--json"))["why"] == "it is the champion already"
    output = output_of("champion", *places)
    assert f"champion  {two / 'export'}" in output
    assert "(promoted: by hand)" in output
    assert json.loads(output_of("rollback", *places, "--json"))["model"] == str(one / "export")
    champion = json.loads(output_of("champion", *places, "--json"))
    assert (champion["champion"]["run"], len(champion["history"])) == (str(one), 3)
    assert find_promoted_model(workspace / "models" / NAME) == one / "export"
    assert find_promoted_model(two) == two / "export"


def test_an_incomplete_training_cannot_be_promoted(make_training: MakeTraining, tmp_path: Path):
    run = make_training("one", 150)
    (run / "result.json").unlink()
    with pytest.raises(SourceError, match=r"has no complete training: there is no result\.json"):
        promote_by_hand(run)
    with pytest.raises(SourceError, match="has no exported model"):
        promote_by_hand(tmp_path)


def test_a_training_without_predictions_cannot_be_compared(make_training: MakeTraining):
    judged(make_training("one", 150))
    run = make_training("two", 150)
    (run / "predictions.npz").unlink()
    with pytest.raises(SourceError, match=r"two/key has no predictions\.npz, .*: remove this folder and train again"):
        judged(run)


def test_a_simulated_training_is_never_promoted(make_training: MakeTraining):
    run = make_training("one", 150)
    content = storage.read_json(run / "run.json")
    content["settings"]["simulated_step_ms"] = 40.0
    with storage.write_whole(run / "run.json") as file:
        file.write(json.dumps(content).encode())
    assert judged(run)["why"] == ("not promoted: the model was trained with simulated_step_ms, so it learned nothing")
    with pytest.raises(PromotionError, match="was trained with simulated_step_ms, so its model learned nothing"):
        promote_by_hand(run)


@pytest.mark.parametrize(
    "content", [b"", b'{"format": 1}', b'{"format": 1, "history": [{"action": "promote"}]}', b"[1]"]
)
def test_a_damaged_pointer_is_an_error_and_stays_unchanged(
    workspace: Place, make_training: MakeTraining, content: bytes
):
    place = workspace / "models" / NAME / "champion.json"
    with storage.write_whole(place) as file:
        file.write(content)
    with pytest.raises(PromotionError, match=r"champion\.json cannot be read .*: restore a copy of it"):
        judged(make_training("one", 150))
    assert place.read_bytes() == content


def test_the_report_shows_the_verdict_of_the_gate(tmp_path: Path):
    (tmp_path / "promotion.json").write_text(json.dumps({"why": "promoted: by <hand>"}))
    from pipeline.report.page import render

    assert "Promotion: promoted: by &lt;hand&gt;." in render(load_recorded_run(tmp_path), [], [])
