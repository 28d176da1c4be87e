"""The benchmark of the planted slow server: its runs, and the table of its results."""

from benchmarks.slow_server import AROUND, RUNS, SERVERS, Named, Planted, report
from pipeline.tuning.stages import WORDS


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
    runs += [Planted("equal"), Planted("wrong"), Planted("missing", 0, stage="read")]
    results = {
        "right": Named("right", 1, "read"),
        "other server": Named("other server", 0, "read"),
        "other stage": Named("other stage", 1, "decode"),
        "failed": Named("failed", reason="no loop device"),
        "equal": Named("equal"),
        "wrong": Named("wrong", 0, "parse"),
    }
    lines = [*report(runs, results)]
    assert "| right | read | server 1, read | correct |" in lines
    assert "| other server | read | server 0, read | WRONG |" in lines
    assert "| other stage | read | server 1, decode | WRONG |" in lines
    assert "| failed | read | no loop device |  |" in lines
    assert "| equal | none | none | correct |" in lines
    assert "| wrong | none | server 0, parse | WRONG |" in lines
    assert "1 of 3 runs with a slow server are correct." in lines
    assert "1 of 2 runs with equal servers are correct." in lines
