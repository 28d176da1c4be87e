"""The benchmark of the verdict: which verdicts count as correct, and some of its jobs."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import verdicts
from benchmarks.known_limits.jobs import CHANGES, JOBS, Job
from benchmarks.verdicts import ALONE, BESIDE, Seen
from pipeline.monitor.limits import Limit
from tests.monitor.jobs import skipped_if_disturbed

ONE = Job("one", frozenset({Limit.DECODING}), also=frozenset({Limit.COMPUTE}), needs_cores=True)
BOTH = Job("both", frozenset({Limit.HOST, Limit.READING}), names_all=True)


@pytest.mark.parametrize(
    ("job", "named", "alone", "beside"),
    [
        (ONE, {Limit.DECODING}, True, False),
        (ONE, {Limit.DECODING, Limit.COMPUTE}, True, False),
        (ONE, {Limit.COMPUTE}, False, False),
        (ONE, {Limit.DECODING, Limit.READING}, False, False),
        (ONE, {Limit.OTHER_PROGRAMS}, False, True),
        (ONE, {Limit.OTHER_PROGRAMS, Limit.DECODING}, False, True),
        (ONE, {Limit.OTHER_PROGRAMS, Limit.READING}, False, False),
        (BOTH, {Limit.HOST}, False, False),
        (BOTH, {Limit.HOST, Limit.READING}, True, True),
        (BOTH, {Limit.UNKNOWN}, False, False),
    ],
)
def test_a_verdict_is_correct_if_it_names_only_the_known_limit(
    job: Job, named: set[Limit], alone: bool, beside: bool
) -> None:
    assert job.is_named_by(frozenset(named), beside_others=False) == alone
    assert job.is_named_by(frozenset(named), beside_others=True) == beside


@pytest.mark.parametrize(("images_per_s", "expected"), [(40, True), (80, True), (81, False)])
def test_other_programs_are_a_correct_limit_if_they_slow_the_job_down(images_per_s: float, expected: bool) -> None:
    job = Job("waits", frozenset({Limit.READING}))
    beside = Seen("waits", BESIDE, ["reading", "other programs"], images_per_s=images_per_s)
    alone = Seen("waits", ALONE, ["reading"], images_per_s=100)
    assert verdicts.is_correct(job, beside, alone) == expected
    assert not verdicts.is_correct(job, beside)


def test_job_names_are_unique_and_changes_refer_to_jobs() -> None:
    names = [job.name for job in JOBS]
    assert len(set(names)) == len(names) >= 30
    assert {change.job for change in CHANGES} <= set(names)


def test_a_benchmark_measures_only_disturbed_jobs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path)
    cores = iter([1.5, 0.1])

    def work() -> Seen:
        return Seen("one", ALONE, ["decoding"], other_cores=next(cores))

    for _ in range(3):
        verdicts.measured("one", ALONE, "one", work)
    [seen] = verdicts.load_results().values()
    assert (seen.limits, seen.other_cores) == (["decoding"], 0.1)
    # A result of other code does not count.
    monkeypatch.setattr(verdicts, "result_origin", lambda: replace(seen.origin, digest="other"))
    assert verdicts.load_results() == {}


def test_the_table_counts_the_named_limits() -> None:
    results = {
        ("one", BESIDE): Seen("one", BESIDE, ["other programs", "decoding"]),
        ("both", BESIDE): Seen("both", BESIDE, reason="no disk"),
    }
    lines = verdicts.report(results, [ONE, BOTH], [BESIDE])
    assert "| limit (number of jobs) | decoding | other programs |" in lines
    assert "| other programs (1) | 1 | 1 |" in lines
    assert "1 of 1 verdicts name the limit and no wrong one." in lines
    assert "| both | host and reading | not run: no disk |  |" in lines


def test_the_benchmark_fails_unless_each_job_has_a_sound_and_correct_verdict() -> None:
    results = {
        ("one", ALONE): Seen("one", ALONE, ["decoding"]),
        ("one", BESIDE): Seen("one", BESIDE, ["other programs"]),
    }
    assert verdicts.all_correct(results, [ONE], [ALONE, BESIDE])
    assert not verdicts.all_correct(results, [ONE, BOTH], [ALONE])
    assert not verdicts.all_correct(results, [], [ALONE])
    for other in (
        Seen("one", ALONE, ["reading"]),
        Seen("one", ALONE, ["decoding"], other_cores=1.0),
        Seen("one", ALONE, reason="no disk"),
    ):
        assert not verdicts.all_correct(results | {("one", ALONE): other}, [ONE], [ALONE, BESIDE])


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("name", ["steps of 40 ms", "server that answers late", "Python generator"])
@skipped_if_disturbed()
def test_some_jobs_get_a_correct_verdict(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path)
    [job] = [job for job in JOBS if job.name == name]
    seen = verdicts.run(job, ALONE)
    assert verdicts.is_correct(job, seen), seen.verdict


@pytest.mark.long
@pytest.mark.alone
def test_a_job_next_to_other_programs_gets_a_correct_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path)
    [job] = [job for job in JOBS if job.name == "small CNN on the cores"]
    seen = verdicts.run(job, BESIDE)
    assert verdicts.is_correct(job, seen), seen.verdict
