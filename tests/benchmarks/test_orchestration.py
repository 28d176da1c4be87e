"""The table of a backfill."""

from benchmarks.orchestration import dates_table


def test_a_backfill_is_compared_with_that_of_the_last_checkout():
    slow = {"dates": 2, "run_s": 9.0, "tasks_s": 7.0, "tasks": 20, "processes": 18, "rows": {"log": 80}}
    fast = {"dates": 2, "run_s": 5.0, "tasks_s": 1.0, "tasks": 14, "processes": 4, "rows": {"log": 30}}
    before = [{**slow, "s": each, "cpu_s": 20.0} for each in (20, 40)]
    after = [{**fast, "s": each, "cpu_s": 5.0} for each in (10, 8)]
    lines = dates_table({"this checkout": after, "before": before})
    assert lines[2:] == [
        "| this checkout | 4.50 | 0.35 | 2.50 | 0.25 | 2.50 | 0.50 | 7.0 | 2.0 | 15 |",
        "| before | 15.00 | 1.00 | 10.00 | 1.00 | 4.50 | 3.50 | 10.0 | 9.0 | 40 |",
    ]
