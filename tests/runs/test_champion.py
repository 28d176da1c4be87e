"""Promotion of models: by comparison, manually, by rollback and concurrently, with the files of trainings."""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import storage
from pipeline.__main__ import main
from pipeline.config.settings import settings_from
from pipeline.errors import ConflictError, DatasetError, PromotionError, SettingsError, SourceError, TrainingError
from pipeline.evaluation.metrics import save_predictions
from pipeline.evaluation.one_label import Predictions
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.evaluation.table_classes import ClassPredictions
from pipeline.runs import promotion as promotion_module
from pipeline.runs.champion import (
    BY_HAND,
    Entry,
    Pointer,
    effective_promotions,
    find_promoted_model,
    pointer_of,
)
from pipeline.runs.decision import BADGES, Decision, Outcome, decision_in
from pipeline.runs.files import RUN_FORMAT
from pipeline.runs.promotion import promote_by_hand, promote_if_better, roll_back
from pipeline.runs.promotion_rule import Rules, compare
from pipeline.runs.recorded_run import load_recorded_run
from pipeline.runs.run import EXPORT_FORMAT, load_about
from pipeline.storage import Place
from standins.fake_gcs import FakeGcs

NAME = "flowers"
EXAMPLES = 200
SETTINGS = settings_from({})


def answers(correct: int, examples: int = EXAMPLES, first: int = 0) -> Predictions:
    """Return predictions of a model that is correct for `correct` examples, starting with example `first`.

    Half of the examples are of each of two classes, so always answering one of them is correct for half.
    """
    label = np.arange(examples, dtype=np.int32) % 2
    predicted = 1 - label
    places = np.arange(first, first + correct) % examples
    predicted[places] = label[places]
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
        (answers(149), answers(150), 0.0, False),
        (answers(148), answers(150), 0.01, True),
        (answers(147), answers(150), 0.01, False),
        (answers(150, first=40), answers(150), 0.0, True),  # right for as many, although for others
        (answers(6, examples=10), answers(8, examples=10), 0.0, False),
    ],
)
def test_a_model_is_refused_if_it_is_worse_on_the_same_examples(
    ours: Predictions, theirs: Predictions, max_worse: float, promoted: bool
):
    decision = compare(ours, theirs, "run/key", Rules("if_not_worse", max_worse, seed=0))
    assert decision.outcome == ("promoted" if promoted else "kept"), decision.sentence


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
def test_with_the_other_rule_a_model_is_refused_only_if_the_whole_interval_is_below_zero(
    ours: Predictions, theirs: Predictions, max_worse: float, promoted: bool
):
    decision = compare(ours, theirs, "run/key", Rules("unless_surely_worse", max_worse, seed=0))
    assert decision.outcome == ("promoted" if promoted else "kept"), decision.sentence


def sentence(correct: int, against: int, promote: str, max_worse: float = 0.0) -> str:
    return compare(answers(correct), answers(against), "run/key", Rules(promote, max_worse, seed=0)).sentence


def test_the_sentence_contains_all_numbers_of_the_decision():
    assert sentence(150, 180, "unless_surely_worse", 0.01) == (
        "not promoted: accuracy 75.0% against 90.0% of run/key on the same 200 validation images, a difference of "
        "-15.0 points (-20.3 to -10.2). The model is worse over the whole interval, by more than max_worse=0.01 "
        "allows"
    )
    assert sentence(150, 180, "if_not_worse").endswith("(-20.3 to -10.2). The model is worse")
    chance = "difference of -1.0 points (-2.7 to +0.6). "
    assert sentence(150, 152, "unless_surely_worse").endswith(f"{chance}It is worse, but this may be chance")
    assert sentence(150, 152, "if_not_worse").endswith(f"{chance}The model is worse, but this may be chance")
    assert sentence(150, 180, "if_not_worse", 0.2).endswith("It is worse, by no more than max_worse=0.2")
    assert sentence(180, 180, "if_not_worse").endswith("difference of 0 points (-1.5 to +1.5)")


def test_a_better_model_is_promoted_and_a_worse_one_is_not(workspace: Place, make_training: MakeTraining):
    runs = [make_training(name, correct) for name, correct in (("one", 150), ("better", 170), ("worse", 140))]
    promotions = [judged(run) for run in runs]
    assert [each["promoted"] for each in promotions] == [True, True, False]
    assert promotions[0]["why"].startswith(
        "promoted: the first model of 'flowers', accuracy 75.0% against 50.0% of the baseline on the same 200 "
        "validation images, a difference of +25.0 points (+"
    )
    assert promotions[1]["why"].startswith("promoted: accuracy 85.0% against 75.0% of one/key on the same 200")
    assert promotions[2]["why"].startswith("not promoted: accuracy 70.0% against 85.0% of better/key")
    assert [each["champion"] for each in promotions] == [str(runs[0]), str(runs[1]), str(runs[1])]
    assert [storage.read_json(run / "promotion.json") for run in runs] == promotions
    pointer = pointer_of(workspace, NAME)
    assert str(pointer.place) == promotions[0]["pointer"] == f"{workspace}/models/flowers/champion.json"
    assert [each.run for each in pointer.history] == [str(runs[0]), str(runs[1])]
    named = storage.read_json(pointer.place)["champion"]
    assert (named["export"], named["metrics"]) == ("runs/better/key/export", {"val_accuracy": 0.85})


@pytest.mark.parametrize(
    ("values", "promoted", "why"),
    [
        ({"promote": "never"}, False, "not promoted: promote=never"),
        ({"promote": "always"}, True, "promoted: without a comparison, because promote=always"),
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


def test_a_model_takes_the_place_of_a_missing_champion_if_it_beats_the_baseline(make_training: MakeTraining):
    gone = make_training("gone", 190)
    judged(gone)
    (gone / "export" / "about.json").unlink()
    promotion = judged(make_training("next", 150))
    assert promotion["promoted"]
    assert promotion["why"].startswith(
        f"promoted: the model in place of the missing champion {gone / 'export'}, accuracy 75.0% against 50.0% of the "
        "baseline on the same 200 validation images"
    )


def test_a_model_with_other_label_ids_is_not_promoted(make_training: MakeTraining):
    judged(make_training("one", 150))
    promotion = judged(make_training("other", 190, version="2", labels=("b", "a")))
    assert promotion["decision"] == "asked"
    assert promotion["why"].startswith("a person must decide: some ids have other labels than in the champion one/key")


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


def test_the_champion_of_a_moved_workspace_is_found_where_the_workspace_is(
    workspace: Place, make_training: MakeTraining, tmp_path: Path, gcs: FakeGcs
):
    for name, correct in (("one", 150), ("two", 160)):
        judged(make_training(name, correct))
    moved = move_workspace(workspace, tmp_path, gcs)
    one, two = (moved / "runs" / name / "key" for name in ("one", "two"))
    assert [each.run for each in pointer_of(moved, NAME).history] == [str(one), str(two)]
    assert find_promoted_model(moved / "models" / NAME) == two / "export"
    assert judged(two)["promoted"]  # A cleared task does not promote it again.
    make_training("worse", 140)
    worse = moved / "runs" / "worse" / "key"
    copy_folder(workspace / "runs" / "worse", moved / "runs" / "worse")
    assert judged(worse)["why"].startswith("not promoted: accuracy 70.0% against 80.0% of two/key on the same 200")
    assert roll_back(pointer_of(moved, NAME), 2).champion.run == str(one)


def move_workspace(workspace: Place, tmp_path: Path, gcs: FakeGcs) -> Place:
    """Move a workspace to another folder, or to another bucket, and return its new place."""
    gcs.create_bucket("another")
    moved = tmp_path / "moved" / "v" if isinstance(workspace, Path) else storage.place_of("gs://another/v")
    copy_folder(workspace, moved)
    for name in files_below(workspace):
        (workspace / name).unlink()
    return moved


def copy_folder(source: Place, target: Place) -> None:
    """Copy all files of a folder."""
    for name in files_below(source):
        with storage.write_whole(target / name) as file:
            file.write((source / name).read_bytes())


def files_below(folder: Place) -> list[str]:
    """Return the names of all files below a folder."""
    if isinstance(folder, Path):
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return [key for key, _ in storage.objects(folder)]


def test_a_model_of_a_moved_workspace_is_compared_on_the_dataset_there(
    workspace: Place, make_training: MakeTraining, tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    judged(make_training("one", 150))
    two = make_training("two", 160, version="2")
    run_json = storage.read_json(two / "run.json")
    stored = {
        "dataset": f"{workspace}/datasets/{NAME}/2",
        "settings": {**run_json["settings"], "workspace": str(workspace)},
    }
    storage.write_json(two / "run.json", {**run_json, **stored})
    moved = move_workspace(workspace, tmp_path, gcs)
    evaluated: list[Place] = []

    def evaluate(export: Place, dataset: Place, output: int) -> Predictions:
        evaluated.extend((export, dataset))
        return answers(150)

    monkeypatch.setattr(promotion_module, "_evaluated", evaluate)
    assert judged(moved / "runs" / "two" / "key")["promoted"]
    assert evaluated == [moved / "runs" / "one" / "key" / "export", moved / "datasets" / NAME / "2"]


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
    return Entry(action, run, f"{run}/export", "1", {}, None, "", "", "")  # type: ignore[arg-type]


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
    assert roll_back(pointer_of(workspace, NAME), 2).champion.run == str(two)
    taken_back = storage.read_json(three / "promotion.json")
    assert (taken_back["decision"], taken_back["champion"]) == ("rolled_back", str(two))
    assert taken_back["why"].endswith("was taken back, and two/key is the champion")
    assert judged(three) == taken_back  # a cleared task does not undo the rollback
    assert roll_back(pointer_of(workspace, NAME), 2).champion.run == str(one)
    with pytest.raises(PromotionError, match="there is no model to roll back to"):
        roll_back(pointer_of(workspace, NAME), 2)
    assert promote_by_hand(three, output=2)["champion"] == str(three)
    assert roll_back(pointer_of(workspace, NAME), 2).champion.run == str(one)
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
        roll_back(pointer_of(workspace, NAME), 2)
    assert pointer_of(workspace, NAME).champion == pointer_of(workspace, NAME).history[1]


def test_a_rollback_needs_no_files_of_the_run_that_it_takes_back(
    workspace: Place, make_training: MakeTraining, caplog: pytest.LogCaptureFixture
):
    one, two = (make_training(name, 150) for name in ("one", "two"))
    for run in (one, two):
        judged(run)
    (two / "result.json").unlink()
    assert roll_back(pointer_of(workspace, NAME), 2).champion.run == str(one)
    assert f"{two} cannot be marked as rolled back: {two} has no complete training" in caplog.text


def test_a_rollback_to_a_folder_that_is_not_allowed_is_refused(
    workspace: Place, make_training: MakeTraining, monkeypatch: pytest.MonkeyPatch
):
    for name in ("one", "two"):
        judged(make_training(name, 150))
    pointer = pointer_of(workspace, NAME)
    for allowed in ("TENFOLD_ALLOWED_WORKSPACES", "TENFOLD_ALLOWED_PUBLISH"):
        monkeypatch.setenv(allowed, str(workspace / "runs" / "two"))
    with pytest.raises(SettingsError, match=r"runs/one/key/export.* TENFOLD_ALLOWED_WORKSPACES"):
        roll_back(pointer, 2)


def test_a_rollback_of_a_changed_pointer_is_refused(workspace: Place, make_training: MakeTraining):
    for name in ("one", "two"):
        judged(make_training(name, 150))
    seen = pointer_of(workspace, NAME)
    judged(make_training("three", 150))
    with pytest.raises(ConflictError, match=r"another program changed .* in the meantime"):
        roll_back(seen, 2)


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
    assert json.loads(output_of("promote", str(two), "--json"))["why"] == "promoted: by hand"
    output = output_of("champion", *places)
    assert f"champion  {two / 'export'}" in output
    assert "(by hand)" in output
    assert json.loads(output_of("rollback", *places, "--json"))["model"] == str(one / "export")
    champion = json.loads(output_of("champion", *places, "--json"))
    assert (champion["champion"]["run"], len(champion["history"])) == (str(one), 3)
    assert find_promoted_model(workspace / "models" / NAME) == one / "export"
    assert find_promoted_model(two) == two / "export"


def test_an_incomplete_training_cannot_be_promoted(make_training: MakeTraining, tmp_path: Path):
    run = make_training("one", 150)
    (run / "result.json").unlink()
    with pytest.raises(SourceError, match=r"has no complete training: there is no result\.json"):
        promote_by_hand(run, output=2)
    with pytest.raises(SourceError, match="has no exported model"):
        promote_by_hand(tmp_path, output=2)


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
        promote_by_hand(run, output=2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format": 3}',
        b'{"format": 3, "history": [{"action": "promote"}]}',
        json.dumps({"format": 3, "history": [asdict(Entry("promote", 1, 2, "", {}, None, "", "", ""))]}).encode(),  # type: ignore[arg-type]
        b"[1]",
    ],
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


@pytest.mark.parametrize(("decision", "badge"), BADGES.items())
def test_the_report_shows_a_badge_and_the_reason(tmp_path: Path, decision: Outcome, badge: str):
    write_decision(tmp_path, decision, "by <hand>")
    from pipeline.report.page import render

    shown = f'<span class="badge {decision}">{badge}</span> by &lt;hand&gt;</p>'
    assert shown in render(load_recorded_run(tmp_path))


def write_decision(folder: Path, outcome: Outcome, reason: str) -> None:
    (folder / "promotion.json").write_text(json.dumps(Decision(outcome, reason).to_json()))


def test_a_promotion_by_hand_is_the_decision_that_pages_show(make_training: MakeTraining):
    run = make_training("one", 100)  # no better than the baseline
    assert judged(run)["decision"] == "asked"
    assert promote_by_hand(run, output=2) == storage.read_json(run / "promotion.json")
    assert decision_in(storage.read_json(run / "promotion.json")) == Decision("promoted", "by hand")
    assert decision_in({}) is None
    assert decision_in({"why": "promoted: by hand"}) is None  # as another version wrote it


# --- the best champion so far -----------------------------------------------------------------------------------------


def test_a_model_is_also_compared_with_the_best_champion_so_far(make_training: MakeTraining):
    best, low, between, above = (make_training(*each) for each in BEST_SO_FAR)
    judged(best)
    judged(low, promote="always")
    promotion = judged(between)
    assert promotion["decision"] == "kept"
    assert promotion["why"].startswith(
        "not promoted: accuracy 80.0% against 85.0% of best/key, the best champion so far, on the same 200 validation "
        "images, a difference of -5.0 points ("
    )
    promotion = judged(above)
    assert promotion["decision"] == "promoted"
    assert "accuracy 85.0% against 75.0% of low/key on the same 200" in promotion["why"]
    assert "; accuracy 85.0% against 85.0% of best/key, the best champion so far, on the same 200" in promotion["why"]


BEST_SO_FAR = [("best", 170), ("low", 150), ("between", 160), ("above", 170)]


def test_the_best_champion_so_far_is_compared_on_the_examples_of_the_model(
    make_training: MakeTraining, monkeypatch: pytest.MonkeyPatch
):
    """Both champions are evaluated once more. There, the one with the better score of its own is the worse one."""
    best, low, between, _ = (make_training(name, correct, version) for (name, correct), version in NEW_EXAMPLES)
    judged(best)
    judged(low, promote="always")
    evaluated = []

    def evaluate(export: Place, dataset: Place, output: int) -> Predictions:
        evaluated.append(export)
        return answers({best / "export": 120, low / "export": 130}[export])

    monkeypatch.setattr(promotion_module, "_evaluated", evaluate)
    assert judged(between)["decision"] == "promoted"
    assert evaluated == [low / "export", best / "export"]


NEW_EXAMPLES = list(zip(BEST_SO_FAR, "1123", strict=True))


def test_the_best_champion_so_far_is_not_one_that_was_rolled_back(workspace: Place, make_training: MakeTraining):
    best, low, between, _ = (make_training(*each) for each in BEST_SO_FAR)
    judged(low)
    judged(best)
    roll_back(pointer_of(workspace, NAME), 2)
    assert judged(between)["decision"] == "promoted"


def test_a_promotion_by_hand_ends_the_comparison_with_better_champions_before_it(make_training: MakeTraining):
    best, low, between, _ = (make_training(*each) for each in BEST_SO_FAR)
    judged(best)
    promote_by_hand(low, output=2)
    assert judged(between)["decision"] == "promoted"


def test_a_best_champion_that_is_missing_or_of_another_format_is_left_out(make_training: MakeTraining):
    best, low, between, _ = (make_training(*each) for each in BEST_SO_FAR)
    judged(best)
    judged(low, promote="always")
    with storage.write_whole(best / "export" / "about.json") as file:
        file.write(b'{"format": 0}')
    assert judged(between)["decision"] == "promoted"


def test_a_best_champion_whose_place_is_not_allowed_is_not_opened(
    workspace: Place, make_training: MakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whoever can write to the workspace can edit the history."""
    best, low, between, _ = (make_training(*each) for each in BEST_SO_FAR)
    judged(best)
    judged(low, promote="always")
    content = storage.read_json(workspace / "models" / NAME / "champion.json")
    content["history"][0].update(run=str(tmp_path / "outside/key"), export=str(tmp_path / "outside/key/export"))
    storage.write_json(workspace / "models" / NAME / "champion.json", content)
    monkeypatch.setenv("TENFOLD_ALLOWED_WORKSPACES", f"{workspace},{tmp_path / 'dataset'}")
    monkeypatch.setenv("TENFOLD_ALLOWED_PUBLISH", "")
    opened: list[Place] = []
    monkeypatch.setattr(promotion_module, "load_about", lambda place: opened.append(place) or load_about(place))
    assert judged(between)["decision"] == "promoted"
    assert not [place for place in opened if "outside" in str(place)]


def test_a_best_champion_that_cannot_be_evaluated_is_left_out(
    make_training: MakeTraining, monkeypatch: pytest.MonkeyPatch
):
    best, low, between, _ = (make_training(name, correct, version) for (name, correct), version in NEW_EXAMPLES)
    judged(best)
    judged(low, promote="always")

    def evaluate(export: Place, dataset: Place, output: int) -> Predictions:
        if export == best / "export":
            raise TrainingError("its variables are gone")
        return answers(130)

    monkeypatch.setattr(promotion_module, "_evaluated", evaluate)
    assert judged(between)["decision"] == "promoted"


def test_a_decision_is_taken_again_if_the_champion_changed_meanwhile(
    make_training: MakeTraining, monkeypatch: pytest.MonkeyPatch
):
    """A person promotes the run while its task compares it with a better champion."""
    best, _, between, _ = (make_training(*each) for each in BEST_SO_FAR)
    judged(best)
    load = promotion_module.load_predictions

    def load_slowly(run: Place) -> Any:
        monkeypatch.setattr(promotion_module, "load_predictions", load)
        promote_by_hand(between, output=2)
        return load(run)

    monkeypatch.setattr(promotion_module, "load_predictions", load_slowly)
    promotion = judged(between)
    assert (promotion["decision"], promotion["champion"]) == ("promoted", str(between))


def test_a_promotion_by_hand_that_was_killed_is_completed_by_the_next(make_training: MakeTraining):
    run = make_training("run", 100)
    promote_by_hand(run, output=2)
    (run / "promotion.json").unlink()
    promote_by_hand(run, output=2)
    assert storage.read_json(run / "promotion.json")["decision"] == "promoted"


def test_a_model_in_place_of_a_missing_champion_must_beat_the_baseline(make_training: MakeTraining):
    below, gone, better = (make_training(name, correct) for name, correct in (("a", 70), ("b", 90), ("c", 95)))
    promote_by_hand(below, output=2)
    judged(gone, promote="always")
    (gone / "export" / "about.json").unlink()
    assert judged(better)["decision"] == "asked"


@pytest.mark.parametrize(
    ("history", "lower_is_better", "best_first"),
    [
        ("", False, ""),
        ("+a70 +b80 +c75", False, "bca"),
        ("+a70 +b80 +c75", True, "acb"),
        ("+a70 +b80 -a70 +c75", False, "ca"),
        ("+a70 +b70", False, "ba"),  # of equal ones the newest
        ("+a80 +b?? +c75", False, "ac"),
        ("+a80 !b70 +c75", False, "cb"),
        ("+a80 !b70 -a80 +c75", False, "ac"),
    ],
)
def test_the_best_promotions_come_first(history: str, lower_is_better: bool, best_first: str):
    entries = [
        replace(
            entry("rollback" if word[0] == "-" else "promote", word[1]),
            score=None if word[2:] == "??" else float(word[2:]),
            why=BY_HAND if word[0] == "!" else "",
        )
        for word in history.split()
    ]
    pointer = Pointer(Path("champion.json"), None, tuple(entries))
    assert "".join(each.run for each in pointer.best_first(lower_is_better)) == best_first


def test_a_score_that_is_almost_equal_is_not_worse():
    """A model that runs again gives slightly other probabilities."""
    labels = np.arange(EXAMPLES) % 2
    second = np.where(labels, 0.9, 0.1)
    ours, theirs = (
        ClassPredictions.of_batch(labels, np.stack([1 - each, each], axis=1)) for each in (second, second + 1e-8)
    )
    rules = Rules("if_not_worse", 0.0, seed=0)
    assert compare(ours, theirs, "run/key", rules).is_promoted
    assert compare(theirs, ours, "run/key", rules).is_promoted


def test_a_score_that_is_no_number_is_left_to_a_person():
    labels = np.arange(4.0)
    good, bad = (RegressionPredictions.of_batch(labels, labels + error) for error in (0.1, float("nan")))
    for ours, theirs in ((good, bad), (bad, good)):
        decision = compare(ours, theirs, "run/key", Rules("if_not_worse", 0.0, seed=0))
        assert (decision.outcome, decision.reason.endswith("is no number")) == ("asked", True)
