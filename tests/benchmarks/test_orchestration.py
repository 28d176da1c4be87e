"""The table of a backfill."""

from benchmarks.orchestration import dates_table


def test_a_backfill_is_compared_with_that_of_the_last_checkout():
    before = [
        {"dates": 2, "s": each, "cpu_s": 20.0, "tasks": 20, "processes": 18, "rows": {"log": 80}} for each in (20, 40)
    ]
    after = [
        {"dates": 2, "s": each, "cpu_s": 5.0, "tasks": 14, "processes": 4, "rows": {"log": 30}} for each in (10, 8)
    ]
    lines = dates_table({"this checkout": after, "before": before})
    assert lines[2:] == [
        "| this checkout | 4.50 | 0.35 | 2.50 | 0.25 | 7.0 | 2.0 | 15 |",
        "| before | 15.00 | 1.00 | 10.00 | 1.00 | 10.0 | 9.0 | 40 |",
    ]
