"""The benchmark of the advice: its pairs, and the table of its results."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import advice
from benchmarks.advice import (
    NOT_PREDICTED,
    Result,
    Rounds,
    Slice,
    add_line,
    are_close,
    examples_per_s,
    is_done,
    load_results,
    load_slices,
    measure,
    report,
    result_origin,
    results_file,
    slice_origin,
    slices_file,
)
from benchmarks.exhaustive import EPOCHS, Search, are_fast, rate_of, with_many_epochs
from benchmarks.exhaustive import report as report_searches
from benchmarks.harness.origin import PREDICTING, UNKNOWN, _digest
from benchmarks.known_limits.candidates import LESS_VALIDATION, PREPARED, alone, searched_jobs, together
from benchmarks.known_limits.datasets import DATA, Data
from benchmarks.known_limits.jobs import Job
from benchmarks.known_limits.own_inputs import INPUTS
from benchmarks.known_limits.pairs import PAIRS, Pair
from benchmarks.known_limits.surroundings import NotPossible
from benchmarks.verdicts import SURROUNDINGS, description
from pipeline.config.settings import Settings
from pipeline.tuning.predictions import predictions
from tests.monitor.epoch_records import EXAMPLES, record_epochs
from tests.tuning.test_predictions import costs, facts


def test_the_pairs_have_own_names_and_change_what_exists() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) == 40
    assert sum(pair.job.data in ("rows", "wide rows", "half of the rows") for pair in PAIRS) == 10
    for pair in PAIRS:
        for job in (pair.job, pair.changed):
            assert job.own_input in {"", *INPUTS}
            assert job.own_input or job.data in DATA
            assert job.around in SURROUNDINGS
        assert pair.changed != pair.job
        assert pair.is_hardware or pair.change.keys() <= Settings.model_fields.keys()


def test_a_dataset_is_changed_by_its_settings_and_a_training_by_its_own() -> None:
    by_change = {next(iter(pair.change)): pair for pair in PAIRS}
    prepared, kept, more = (by_change[name] for name in ("prepare", "cache", "cores"))
    assert "prepare" not in prepared.changed.settings
    assert kept.changed.settings["cache"] == "memory"
    assert "cores" not in more.changed.settings
    assert more.changed.around != more.job.around


def test_the_table_counts_only_sound_pairs() -> None:
    def result(name: str, value: float, measured: float, **values: Any) -> Result:
        return Result(name, ["decoding"], {"value": value, "low": 0.9 * value, "high": 1.1 * value}, measured, **values)

    lines = [
        *report(
            [
                result("right", 2.0, 2.0, spread=0.03, slices=2),
                result("far", 3.0, 2.0),
                result("near", 2.2, 2.0),
                result("disturbed", 9.0, 2.0, other_cores=1.0),
                Result("missing", ["reading"], reason="not predicted"),
            ]
        )
    ]
    assert "| right | decoding | 2.00 (1.80 to 2.20) | 2.00 ±3% | +0% |" in lines
    assert "| disturbed | decoding | 9.00 (8.10 to 9.90) | 2.00 | disturbed |" in lines
    assert "| missing | reading | not predicted | | |" in lines
    assert lines[-1].startswith(
        "4 of 40 pairs, 1 of them without a prediction. The median error of the others is 10.0% (at most 10% wanted). "
        "Of all of these pairs, 2 predictions (50%) are within"
    )
    assert lines[-1].endswith("and 2 measured factors are within the interval.")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0] * 20, True),
        ([2.4] * 2 + [2.0] * 18, True),
        ([3.0] * 2 + [2.0] * 18, True),
        ([3.0] * 3 + [2.0] * 17, False),  # 85% within 25%.
        ([2.3] * 11 + [2.0] * 9, False),  # A median error of 15%.
        ([0.0] * 3 + [2.0] * 17, False),  # Three without a prediction.
        ([2.0] * 17, False),  # Three were not run.
    ],
)
def test_the_benchmark_fails_unless_the_predictions_of_all_pairs_are_close(values: list[float], expected: bool) -> None:
    pairs = PAIRS[:20]
    results = {
        pair.name: Result(pair.name, [], {"value": value}, 2.0, reason="" if value else NOT_PREDICTED)
        for pair, value in zip(pairs, values, strict=False)
    }
    assert are_close(pairs, results) == expected
    disturbed = {name: replace(each, other_cores=1.0) for name, each in results.items()}
    assert not are_close(pairs, disturbed)
    assert not are_close([], {})


def test_the_measured_rate_is_that_of_whole_epochs(tmp_path: Path) -> None:
    record_epochs(tmp_path / "record", [(6.0, 6.5), (1.0, 2.0), (1.0, 2.0)], validation=0.5)
    assert examples_per_s(tmp_path, with_first=False) == pytest.approx(EXAMPLES / 2.0)
    assert examples_per_s(tmp_path, with_first=True) == pytest.approx(3 * EXAMPLES / 10.5)
    short = record_epochs(tmp_path / "short" / "record", [(6.0, 6.5)], validation=0.5)
    assert examples_per_s(short.parent, with_first=False) == pytest.approx(EXAMPLES / 6.5)
    with pytest.raises(NotPossible, match="no whole epoch"):
        examples_per_s(tmp_path / "none", with_first=False)


def test_a_sound_result_is_not_replaced_by_a_disturbed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "FOLDER", tmp_path)
    one, another = PAIRS[:2]
    origin = result_origin(one)
    for measured, others in [(2.0, 1.0), (3.0, 0.0), (4.0, 1.0)]:
        add_line(results_file(), Result(one.name, measured=measured, other_cores=others, origin=origin))
    add_line(results_file(), Result(one.name, reason="no loop device", origin=origin))
    assert load_results([one])[one.name].measured == 3.0
    elsewhere = replace(result_origin(another), machine="another machine")
    add_line(tmp_path / "more.jsonl", Result(another.name, measured=5.0, origin=elsewhere))
    found = load_results([one, another], tmp_path / "more.jsonl")
    assert {name: each.measured for name, each in found.items()} == {another.name: 5.0, one.name: 3.0}
    # What is not predicted any more was predicted by other code, or from another record.
    add_line(results_file(), Result(one.name, reason=NOT_PREDICTED, origin=origin))
    assert load_results([one])[one.name].reason == NOT_PREDICTED


def test_only_results_of_this_code_and_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "FOLDER", tmp_path)
    pair = PAIRS[0]
    result = Result(pair.name, measured=2.0, slices=2, origin=result_origin(pair))
    for origin in (replace(result.origin, digest="other"), replace(result.origin, machine="other"), UNKNOWN):
        add_line(results_file(), replace(result, origin=origin))
        add_line(slices_file(), Slice(pair.job.name, 1.0, 1.0, [], 0.0, 1.0, origin=origin))
    assert not load_results([pair])
    assert not load_slices(pair.job)
    add_line(results_file(), replace(result, slices=1))
    assert not is_done(pair)  # `--quick` stored it.
    add_line(results_file(), replace(result, origin=replace(result.origin, commit="of the docs", day="2026-01-01")))
    assert is_done(pair)


def test_a_slice_does_not_depend_on_the_code_that_predicts_nor_on_words(tmp_path: Path) -> None:
    for name in ("tuning/rates.py", "tuning/measure.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    before = [_digest(["job"], tmp_path, without) for without in (PREDICTING, ())]
    (tmp_path / "tuning/rates.py").write_text("2")
    after = [_digest(["job"], tmp_path, without) for without in (PREDICTING, ())]
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert _digest(["another"], tmp_path, PREDICTING) != after[0]
    (tmp_path / "tuning/measure.py").write_text("2")
    assert _digest(["job"], tmp_path, PREDICTING) != after[0]
    job = PAIRS[0].job
    assert description(job) == description(replace(job, name="renamed", limits=frozenset()))
    assert len({description(each) for pair in PAIRS for each in (pair.job, pair.changed)}) > len(PAIRS)


def test_a_change_that_is_not_possible_leaves_the_other_pairs_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("before", frozenset(), own_input="made")
    pairs = [Pair(job, {"prefetch_batches": more}, prefetched=more) for more in (4, 8, 16)]

    def run(job: Job, *, is_kept: bool) -> Slice:
        if job.prefetched == 8:
            raise NotPossible("no loop device")
        return Slice(job.name, float(job.prefetched), 1.0, ["buffer"], 0.0, 1.0, origin=slice_origin(job))

    monkeypatch.setattr(advice, "FOLDER", tmp_path)
    monkeypatch.setattr(advice, "run", run)
    monkeypatch.setattr(
        advice, "predicted", lambda pair: {"value": 2.0, "low": 1.0, "high": 3.0} if pair.prefetched < 16 else {}
    )
    found = [*advice.results_of(pairs, Rounds(2, 0))]
    assert [each.reason for each in found] == ["", "no loop device", NOT_PREDICTED]
    assert [each.measured for each in found] == [2.0, 0.0, 0.0]
    assert found[0].slices == 2


def test_slices_alternate_until_they_are_sound_and_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "FOLDER", tmp_path)
    jobs = [Job(name, frozenset(), own_input="made") for name in ("before", "after")]
    rates = {"before": itertools.cycle([1.0]), "after": iter([9.0, 2.0, 3.0, 2.9, 2.8])}
    others = {"before": itertools.cycle([0.0]), "after": iter([1.0, 0.0, 0.0, 0.0, 0.0])}
    ran = []

    def run(job: Job, *, is_kept: bool) -> Slice:
        ran.append((job.name, is_kept))
        return Slice(
            job.name, next(rates[job.name]), 1.0, ["decoding"], next(others[job.name]), 1.0, origin=slice_origin(job)
        )

    monkeypatch.setattr(advice, "run", run)
    measure(jobs[:1], Rounds(1, 2))
    measure(jobs, Rounds(2, 1))
    assert ran == [("before", True), ("after", True), ("after", True), ("before", False), ("after", False)]
    assert [each.per_s for each in load_slices(jobs[1])] == [2.0, 3.0]
    for _ in range(2):  # The slices differ by too much, but there are only two more of them.
        measure(jobs, Rounds(2, 2))
        assert ran[5:] == [("after", False), ("after", False)]
    assert [each.per_s for each in load_slices(jobs[1])] == [2.0, 3.0, 2.9, 2.8]


# --- exhaustive search ------------------------------------------------------------------------------------------------


def test_the_candidates_of_a_job_change_settings_that_exist() -> None:
    jobs = searched_jobs()
    assert len({job.name for job in jobs}) == 12
    for job in jobs:
        singles = [*alone(job)]
        pairs = together(singles[0], singles)
        assert pairs
        for each in (*singles, *pairs):
            assert each.change.keys() <= Settings.model_fields.keys()
            assert each.changed.data in DATA
            assert each.changed != job


def test_a_dataset_that_is_prepared_in_another_way_holds_the_same_images() -> None:
    for name, others in PREPARED.items():
        for prepare, other in others.items():
            before, after = DATA[name], DATA[other]
            assert isinstance(before, Data)
            assert isinstance(after, Data)
            assert (before.image, before.images, before.copies) == (after.image, after.images, after.copies)
            assert after.settings["prepare"] == prepare
    for name, other in LESS_VALIDATION.items():
        assert type(DATA[name]) is type(DATA[other])
        assert DATA[name].validation_fraction > DATA[other].validation_fraction


def test_the_share_of_the_chosen_change_counts_speed_and_time() -> None:
    factors = {"nothing": 1.0, "prepare=raw": 4.0, "cache=memory": 2.0, "prepare=raw, cache=memory": 5.0}
    once_s = {"prepare=raw": 60.0, "prepare=raw, cache=memory": 60.0}
    search = Search("photographs", ["decoding"], "cache=memory", factors, train_s=100.0, once_s=once_s, with_two=True)
    assert search.best == "prepare=raw, cache=memory"
    assert search.share == pytest.approx(0.4)
    assert search.share_of_time == 1.0
    disturbed = Search("PNG", ["decoding"], "nothing", {"nothing": 1.0}, other_cores=1.0)
    lines = [*report_searches([search, disturbed])]
    assert "| photographs | decoding | cache=memory | 2.00 | prepare=raw, cache=memory | 5.00 | 40% | 100% |" in lines
    assert "| PNG | decoding | nothing | 1.00 | nothing | 1.00 | disturbed | |" in lines
    assert lines[-1].startswith("In 0 of 2 jobs, the training of 100 epochs with the chosen change reaches 90%")
    assert lines[-1].endswith("it is 1. Jobs without a sound result: 1.")
    assert " of 3 changes and pairs of changes (" in lines[-1]
    assert " of 3 changes (" in [*report_searches([replace(search, with_two=False)])][-1]


def test_a_training_of_many_epochs_is_compared_although_few_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two epochs fills a cache, at 50 examples per second. The second one reads it, at 200."""
    monkeypatch.setattr(advice, "FOLDER", tmp_path)
    job = searched_jobs()[0]
    kept = next(pair.changed for pair in alone(job) if "cache" in pair.change)
    for each, later in (job, 50.0), (kept, 200.0):
        assert each.settings["epochs"] == (1 if each is job else 2)
        with_first = each.settings["epochs"] / (1 / 50 + (1 / later if each is kept else 0))
        add_line(slices_file(), Slice(each.name, later, with_first, [], 0.0, 1.0, origin=slice_origin(each)))
    assert rate_of(job) == pytest.approx(50)
    assert rate_of(kept) == pytest.approx(EPOCHS / (1 / 50 + (EPOCHS - 1) / 200))


def test_the_preparation_of_a_dataset_counts_little_in_many_epochs() -> None:
    """It takes longer than the two epochs of the training."""
    prepared = {"resize": costs(2_500, read=5, parse=10, decode=5, batch=30)}
    settings = {"crop": "random", "epochs": 2}
    of = facts(settings=settings, prepared=prepared, prepared_core_s={"resize": 0.002})
    assert "cache" in predictions(of)[0].change
    assert with_many_epochs(of)[0]["change"]["prepare"] == "resize"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([1.0] * 12, True), ([1.0] * 11 + [0.5], True), ([1.0] * 10 + [0.5] * 2, False), ([1.0] * 10, False), ([], False)],
)
def test_the_benchmark_fails_unless_the_chosen_changes_of_enough_jobs_are_fast(
    shares: list[float], expected: bool
) -> None:
    jobs = searched_jobs()
    found = {
        job.name: Search(job.name, [], "chosen", {"chosen": share, "best": 1.0})
        for job, share in zip(jobs, shares, strict=False)
    }
    assert are_fast(jobs, found) == expected
    failed = {name: replace(each, reason="the advice chooses what was not tried") for name, each in found.items()}
    disturbed = {name: replace(each, other_cores=1.0) for name, each in found.items()}
    assert not are_fast(jobs, failed)
    assert not are_fast(jobs, disturbed)
    assert are_fast(jobs[:1], found) == bool(shares)
