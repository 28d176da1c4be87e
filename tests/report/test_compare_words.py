"""What a comparison of runs says in sentences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SettingsError
from pipeline.evaluation.regression import RegressionPredictions
from pipeline.report.compare import LETTERS, MAX_RUNS, Comparison, names_of, require_count
from pipeline.report.compare_page import Cell, Named, result
from pipeline.report.compare_words import note, quality_sentence, reason, speed_sentence, verdict
from pipeline.report.compared_run import ComparedRun, Measured
from tests.report.compared_runs import run_with
from tests.report.evaluated import predictions


def model(share: float, **further: Any) -> ComparedRun:
    """Return a run whose model is right for a share of 400 images."""
    wrong = round(400 * (1 - share))
    return run_with(predictions([(0, int(number < wrong), 0.9) for number in range(400)]), **further)


def regression() -> ComparedRun:
    """Return a run whose model estimates a number for each of 400 rows."""
    label = np.arange(400.0)
    return run_with(RegressionPredictions(label, label + 1))


def test_the_first_sentence_names_the_best_model_and_says_that_it_is_sure():
    sentence = verdict(Comparison([model(0.6), model(0.9), model(0.5)]))
    assert sentence.startswith("B is surely the best of 3 models: its accuracy is 90.0%. The difference from A is +30")
    assert sentence.endswith("Parentheses show 95% intervals. Those of all 3 pairs of models hold together.")


def test_of_two_models_one_is_better():
    sentence = quality_sentence(Comparison([model(0.6), model(0.9)]))
    assert sentence.startswith("B is surely the better model: its accuracy is 90.0%. The difference from A is +30.0")
    assert sentence.endswith("points (+25.5 to +34.5).")


def test_a_small_difference_is_not_sure():
    sentence = quality_sentence(Comparison([model(0.895), model(0.9), model(0.5)]))
    assert sentence.startswith(
        "B has the best accuracy, 90.0%, but that is not sure: A may be as good. The difference from A is +0.5 points"
    )
    assert sentence.endswith("B is surely better than C.")


def test_models_on_other_images_are_not_ranked_as_sure():
    found = Comparison([model(0.6), model(0.9, version="v2")])
    expected = "B has the best accuracy, 90.0%, but that is not sure: A cannot be compared with it."
    assert quality_sentence(found) == expected
    assert "Not compared with B image by image: A was evaluated on other examples" in note(found)


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        ([run_with(), run_with()], "No model was evaluated yet, so the models are not compared."),
        ([run_with(), model(0.9)], "Only the model of B was evaluated, so the models are not compared."),
        (
            [model(0.5, settings={"simulated_step_ms": 2.0}), model(0.9, settings={"simulated_step_ms": 4.0})],
            "The steps of A and B are simulated, so the models are not compared.",
        ),
    ],
)
def test_models_that_cannot_be_ranked(runs: list[ComparedRun], sentence: str):
    found = Comparison(runs)
    assert quality_sentence(found) == sentence
    assert [row for row in found.rows if row.metric and any(value is not None for value in row.values)] == []


def test_models_of_different_tasks_are_not_compared():
    found = Comparison([model(0.9), regression()])
    assert quality_sentence(found) == "The models of A and B have different tasks, so they are not compared."
    assert [row.name for row in found.rows if row.metric] == ["best validation accuracy of an epoch"]


def test_a_model_of_another_task_is_named():
    sentence = quality_sentence(Comparison([regression(), model(0.6), model(0.9)]))
    assert sentence.startswith("C is surely the better model: its accuracy is 90.0%. The difference from B is +30.0")
    assert sentence.endswith(" A has a model of another task.")


def test_one_model_on_other_images_does_not_hide_which_of_the_others_is_the_best():
    found = Comparison([model(0.6), model(0.95, version="v2"), model(0.9)])
    sentence = quality_sentence(found)
    assert sentence.startswith("C is surely the better model: its accuracy is 90.0%. The difference from A is +30.0")
    assert sentence.endswith(" B cannot be compared with these models. It may be better or worse.")
    assert "Not compared with C image by image: B was evaluated on other examples" in note(found)
    assert result(found, 1, Named("")).cells[1] == Cell("-", "not comparable")
    [accuracy] = [row for row in found.rows if row.name == "accuracy"]
    assert (accuracy.values, accuracy.reference, {*accuracy.intervals}) == ((60.0, 95.0, 90.0), 2, {0})


def test_a_simulated_training_is_left_out_of_the_ranking_of_models():
    found = Comparison([model(0.99, settings={"simulated_step_ms": 2.0}), model(0.9), model(0.5)])
    assert quality_sentence(found).startswith("B is surely the better model")


def test_the_fastest_run_is_compared_with_the_next_and_the_slowest_one():
    sentence = speed_sentence(Comparison([run_with(rate=100), run_with(rate=400), run_with(rate=200)]))
    assert sentence.startswith("B is surely the fastest run: 400 examples a second in the steady steps. It is 2 (1.9")
    assert "times as fast as C, the next one. It is 4 (3.9" in sentence
    assert "times as fast as A, the slowest one" in sentence


def test_a_small_difference_in_speed_is_not_sure():
    sentence = speed_sentence(Comparison([run_with(rate=100), run_with(rate=100.1)]))
    assert sentence.startswith("B has the highest speed, 100 examples a second in the steady steps, but that is not ")
    assert "sure: A may be as fast. It is 1 (0.99" in sentence


def test_of_runs_with_a_similar_speed_the_slower_ones_are_named():
    sentence = speed_sentence(Comparison([run_with(rate=100), run_with(rate=100.1), run_with(rate=50)]))
    assert "that is not sure: A may be as fast. B is surely faster than C." in sentence


def test_an_unlimited_ratio_is_unknown():
    slow = run_with(rate=100)
    vague = {each: replace(found, deviation=1e6, freedom=1.0) for each, found in slow.measures.items()}
    found = Comparison([run_with(rate=200), replace(slow, measures=vague)])
    assert "It is 2 (interval unknown) times as fast as B." in speed_sentence(found)
    assert result(found, 1, Named("")).cells[-2] == Cell("50.0%", "unknown")


def test_runs_with_too_few_steps_are_named():
    found = Comparison([run_with(rate=100), run_with(), run_with(rate=200)])
    assert speed_sentence(found).endswith("Too few steady steps to compare the speed (B: 0; 10 are needed).")
    assert speed_sentence(Comparison([run_with()] * 2)).startswith("Too few steady steps to compare the speed (A: 0,")


def test_settings_that_change_the_work_of_a_step_come_before_other_programs():
    large = run_with(rate=100, settings={"image_size": 224, "cache": "off"}, other_cores=1.5)
    small = run_with(rate=2100, settings={"image_size": 32, "cache": "memory"})
    assert reason(Comparison([large, small])) == (
        "Their steps do different work, which explains a difference in speed: image_size is 224 in A and 32 in B. "
        "Other programs kept 1.5 of 2 cores during A and 0 of 2 cores during B busy, which may also add to the "
        "difference."
    )


def test_only_work_that_differs_between_the_fastest_and_the_slowest_explains_it():
    runs = [run_with(rate=rate, settings={"batch_size": size}) for rate, size in ((100, 8), (400, 8), (200, 64))]
    assert "batch_size" not in reason(Comparison(runs))


def test_other_programs_explain_a_difference_between_equal_settings():
    runs = [run_with(rate=100, other_cores=1.5), run_with(rate=200)]
    assert reason(Comparison(runs)).endswith("busy, which may explain the difference.")


def test_other_programs_may_hide_a_difference():
    runs = [run_with(rate=100, other_cores=1.5), run_with(rate=100)]
    assert reason(Comparison(runs)).endswith("busy, which may hide a difference.")


def test_without_another_cause_the_parts_of_the_step_say_where_the_time_goes():
    # 32 examples take 320 ms, 300 of them data wait, against 160 ms with 140 of data wait.
    found = Comparison([run_with(rate=100), run_with(rate=200)])
    assert reason(found) == "For 1,000 examples, B takes 5 s less data wait."


def test_the_settings_of_a_group_are_compared_over_seeds():
    def trained(share: float, size: int, seed: int) -> ComparedRun:
        return model(share, settings={"image_size": size, "seed": seed})

    runs = [trained(0.90 + 0.005 * seed, 96, seed) for seed in range(3)]
    runs += [trained(0.60 + 0.005 * seed, 64, seed) for seed in range(3)]
    found = Comparison(runs)
    assert [group.letters for group in found.groups] == ["A, B and C", "D, E and F"]
    assert "Over seeds, the settings of A, B and C are surely the best: their mean accuracy is 90.5%." in verdict(found)


def test_a_repeated_run_is_no_further_seed():
    def trained(share: float, size: int, seed: int) -> ComparedRun:
        return model(share, settings={"image_size": size, "seed": seed})

    large = [trained(share, 96, seed) for share, seed in ((0.88, 0), (0.92, 0), (0.91, 1))]
    small = [trained(share, 64, 0) for share in (0.60, 0.61, 0.62)]
    found = Comparison([*large, *small])
    assert [(group.letters, group.scores) for group in found.groups] == [
        ("A, B and C", (pytest.approx(0.90), pytest.approx(0.91)))
    ]
    assert found.quality_of_groups is None


def test_other_dataset_versions_and_settings_make_other_groups():
    runs = [model(0.9, settings={"learning_rate": rate}) for rate in (0.1, 0.2)]
    assert Comparison([*runs, model(0.9, settings={"learning_rate": 0.1}, version="v2")]).groups == []


def test_what_changes_the_work_of_a_step_is_listed_first():
    one, other = {"cache": "off", "model": "a", "xla": True}, {"cache": "memory", "model": "b", "xla": True}
    found = Comparison([run_with(settings=one), run_with(settings=other), run_with(settings=one)])
    assert [*found.differing.items()] == [("model", ("a", "b", "a")), ("cache", ("off", "memory", "off"))]


def test_each_ranking_says_for_how_many_pairs_its_intervals_are_widened():
    found = Comparison([model(0.6), model(0.9), run_with(rate=100), run_with(rate=200), run_with(rate=300)])
    assert verdict(found).endswith("Parentheses show 95% intervals. Those of all 3 pairs of speeds hold together.")
    assert note(found).startswith("Each interval covers 95%. Those of all 3 pairs of speeds are widened (Bonferroni)")
    assert "pairs of models" not in note(found)
    three = Comparison([model(share, rate=100 * share) for share in (0.5, 0.6, 0.9)])
    assert verdict(three).endswith(
        "Those of all 3 pairs of models hold together, as do those of all 3 pairs of speeds."
    )


def test_machines_have_one_gpu_or_several():
    fast = replace(run_with(rate=200), gpus=1, usable_cores=1.0)
    slow = replace(run_with(rate=100), gpus=2)
    assert reason(Comparison([fast, slow])) == (
        "Their machines differ: 1 usable core and 1 GPU in A and 2 usable cores and 2 GPUs in B."
    )


def test_names_of_runs():
    assert [names_of(numbers) for numbers in ([0], [0, 1], [0, 1, 2])] == ["A", "A and B", "A, B and C"]
    assert len(LETTERS) == MAX_RUNS == 20


@pytest.mark.parametrize("count", [0, 1, 21])
def test_a_comparison_has_two_to_twenty_runs(count: int):
    with pytest.raises(SettingsError, match=f"a comparison has 2 to 20 runs, got {count}: name"):
        require_count(count)


def test_of_many_runs_only_the_first_are_named():
    sentence = quality_sentence(Comparison([model(0.9) for _ in range(12)]))
    assert "is not sure: B, C, D, E, F, G and 5 more may be as good." in sentence


def test_a_wide_interval_of_the_speed_is_a_plain_number():
    slow, fast = run_with(rate=100), run_with(rate=400)
    few = {each: Measured(found.value, found.value, 1) for each, found in slow.measures.items()}
    comparison = Comparison([replace(slow, measures=few), fast])
    assert "e+" not in speed_sentence(comparison)
    assert all("e+" not in cell.below for number in range(2) for cell in result(comparison, number, Named("")).cells)
