"""The benchmark of the planted slow server: its runs, and the table of its results."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import slow_server
from benchmarks.advice import add_line
from benchmarks.slow_server import (
    AROUND,
    RUNS,
    SERVERS,
    Named,
    Planted,
    all_correct,
    load_results,
    other_cores,
    report,
    results_file,
    run_origin,
    trained,
)
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.tuning.stages import WORDS, StageCosts, save_stages


def test_ten_runs_slow_each_server_down_by_each_means() -> None:
    planted = [run for run in RUNS if run.stage]
    assert len(planted) == 10
    assert len({(run.server, run.stage) for run in planted}) == SERVERS * 3
    for run in planted:
        assert run.stage in WORDS
        assert run.around in AROUND
    assert [run.server for run in RUNS if not run.stage] == [None, None]
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_a_run_is_correct_only_if_both_the_server_and_its_stage_are_named() -> None:
    runs = [Planted(name, 1, stage="read") for name in ("right", "other server", "other stage", "failed")]
    runs += [Planted("equal"), Planted("wrong"), Planted("missing", 0, stage="read"), Planted("disturbed")]
    results = {
        "right": Named("right", 1, "read"),
        "other server": Named("other server", 0, "read"),
        "other stage": Named("other stage", 1, "decode"),
        "failed": Named("failed", reason="no loop device"),
        "equal": Named("equal"),
        "disturbed": Named("disturbed", 0, "read", other_cores=1.0),
        "wrong": Named("wrong", 0, "parse"),
    }
    lines = [*report(runs, results)]
    assert "| right | read | server 1, read | correct |" in lines
    assert "| other server | read | server 0, read | WRONG |" in lines
    assert "| other stage | read | server 1, decode | WRONG |" in lines
    assert "| failed | read | no loop device |  |" in lines
    assert "| equal | none | none | correct |" in lines
    assert "| wrong | none | server 0, parse | WRONG |" in lines
    assert "| disturbed | none | server 0, read | disturbed |" in lines
    assert "1 of 3 runs with a slow server are correct." in lines
    assert "1 of 2 runs with equal servers are correct." in lines


def test_the_benchmark_fails_unless_each_run_has_a_sound_and_correct_result() -> None:
    runs = [Planted("slow", 1, stage="read"), Planted("equal")]
    results = {"slow": Named("slow", 1, "read"), "equal": Named("equal")}
    assert all_correct(runs, results)
    for other in (
        {"equal": results["equal"]},
        results | {"slow": Named("slow", reason="no loop device")},
        results | {"slow": Named("slow", 1, "read", other_cores=1.0)},
        results | {"equal": Named("equal", 1, "read")},
    ):
        assert not all_correct(runs, other)
    assert not all_correct([], {})


def test_only_results_of_this_code_and_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_server, "FOLDER", tmp_path)
    run, other = RUNS[0], RUNS[1]
    add_line(results_file(), Named(run.name, 0, "decode", origin=run_origin(run)))
    for origin in (run_origin(other), replace(run_origin(run), machine="other")):
        add_line(results_file(), Named(run.name, 1, "read", origin=origin))
    assert load_results(RUNS)[run.name].server == 0
    assert len({run_origin(each).digest for each in RUNS}) == len(RUNS)


def test_a_server_without_measured_stages_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its stages, no server could be named: a run of equal servers would count as correct."""
    save_stages(tmp_path, StageCosts({"read": Estimate(1.0, 1.0, 1.0)}, 1.0, 100, 1.0, {"read": 1.0}))

    @contextmanager
    def servers(*_: object) -> Iterator[Path]:
        yield tmp_path

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(slow_server, "FOLDER", tmp_path)
    monkeypatch.setattr(slow_server, "servers", servers)
    monkeypatch.setitem(AROUND, "", nothing)
    assert trained(RUNS[-1]).reason == "only 1 of 2 servers measured their stages"


def test_the_other_server_is_no_other_program(tmp_path: Path) -> None:
    """Of four cores, 3.6 are busy: the servers use 1 and 2 of them. The second one starts later."""
    for index, folder in enumerate([tmp_path, tmp_path / "servers" / "1"]):
        with closing(RecordSink(folder / "record")) as record:
            for now in range(10):
                busy = {"sys/cpu_pct": 100.0 if now < 5 else 90.0, "sys/cores": 4.0}
                if now >= 5 * index:
                    record.write(Row("samples", 1e6 + now, now, {**busy, "proc/cpu_pct": 100.0 * (1 + index)}))
    assert other_cores(tmp_path) == pytest.approx(0.6)
