"""The benchmark of a year of dates: what is wrong with its dates, what it reads from output, and its table."""

from datetime import date
from pathlib import Path

import pytest
from PIL import Image, UnidentifiedImageError

from benchmarks import year
from benchmarks.harness.dates import BAD, MAX_CORRECTED, MIN_DATES, draw_another, draw_dates, plan_dates

FIRST = date(2024, 1, 1)


@pytest.mark.parametrize(("count", "bad"), [(MIN_DATES, 3), (31, 3), (60, 6), (365, 10)])
def test_bad_dates_are_of_every_kind_and_none_is_corrected_later(count: int, bad: int):
    dates = plan_dates(FIRST, count)
    assert len(dates.days) == count
    assert (len(dates.bad), set(dates.bad.values())) == (bad, set(BAD))
    assert len(dates.good) == count - bad
    assert len(dates.corrected) == MAX_CORRECTED
    assert set(dates.corrected) < set(dates.good[-year.WINDOW :])


def test_each_date_has_its_own_photographs(tmp_path: Path):
    dates = plan_dates(FIRST, MIN_DATES)
    draw_dates(tmp_path, dates, images=4)
    draw_another(tmp_path, dates.good[0], 4)
    found = {day: sorted((tmp_path / str(day)).glob("*/*.jpg")) for day in dates.days}
    counts = {"empty folder": 0, "broken images": 4, "one class": 4}
    assert {day: len(found[day]) for day in dates.bad} == {day: counts[kind] for day, kind in dates.bad.items()}
    assert [len(found[day]) for day in dates.good] == [5, *[4] * (len(dates.good) - 1)]
    contents = [path.read_bytes() for paths in found.values() for path in paths]
    assert len(set(contents)) == len(contents)
    for day, kind in dates.bad.items():
        assert (len({path.parent for path in found[day]}) == 1) == (kind == "one class")
        if kind == "broken images":
            with pytest.raises(UnidentifiedImageError):
                Image.open(found[day][0])


def test_reasons_are_read_from_the_output_of_a_backfill():
    output = ["2024-01-02  20  0123456789abcdef  new", "2024-01-03: extract failed: no images", "Full log: /logs/2.log"]
    assert year.reasons_in(output) == {"2024-01-03": "extract failed: no images"}


def test_the_table_has_a_column_for_each_section():
    one = year.Section(14, {year.CPU: 70.0, year.WALL: 150.0, year.WAIT: 10.0}, checks={"one training": False})
    other = year.Section(10, {year.CPU: 10.0, year.WALL: 50.0, "only here": 1.0}, reasons={"2024-01-03": "no images"})
    lines = year.table({"one": one, "other": other})
    rows = [line for line in lines if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert "| seconds per date, without that wait | 10.00 | 5.00 |" in rows
    assert "| only here |  | 1 |" in rows
    assert "| checks | 0 of 1 right: not one training | 0 of 0 right |" in rows
    assert lines[-1] == "- 2024-01-03: no images"
