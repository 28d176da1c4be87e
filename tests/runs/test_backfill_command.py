"""The source of a backfill, from the addresses of the sources of its dates."""

import pytest

from pipeline.runs.backfill_command import backfill_command, schedule_note, source_with_placeholders


@pytest.mark.parametrize(
    ("addresses", "source"),
    [
        ({"2026-01-31": "/data/photos/2026-01-31"}, "/data/photos/{date}"),
        ({"2026-01-31": "gs://bucket/v01/2026-01-31/01.csv"}, "gs://bucket/v01/{date}/01.csv"),
        ({"2026-01-31": "/data/2026/01/31", "2026-02-01": "/data/2026/02/01"}, "/data/{year}/{month}/{day}"),
        ({"2026-01-31": "/data/year=2026/month=01/day=31/x"}, "/data/year={year}/month={month}/day={day}/x"),
        ({"2026-01-31": "/data/20260131.parquet"}, "/data/{year}{month}{day}.parquet"),
        ({"2026-01-01": "/data/2026-01", "2026-02-01": "/data/2026-02"}, "/data/{year}-{month}"),
        ({"2026-01-01": "/data/2026"}, "/data/{year}"),
        ({"2026-01-31T07:00": "/data/2026-01-31/07"}, "/data/{date}/{hour}"),
        ({"2026-01-31T07:15": "/data/2026-01-31T07-15.csv"}, "/data/{date}T{hour}-{minute}.csv"),
        ({"2026-01-31": "/data/photos"}, ""),
        ({"2026-01-31": "/data/20261/01"}, ""),
        # The source of a year has one date, the first of January.
        ({"2026-01-31": "/data/2026-01-01"}, ""),
        # The source was moved: most dates decide, and the newest must be one of them.
        (
            {"2026-01-01": "/old/2026-01-01", "2026-01-02": "/new/2026-01-02", "2026-01-03": "/new/2026-01-03"},
            "/new/{date}",
        ),
        ({"2026-01-01": "/old/2026-01-01", "2026-01-02": "/old/2026-01-02", "2026-01-03": "/new/2026-01-03"}, ""),
        ({"2026-01-30": "/old/2026-01-30", "2026-01-31": "/new/2026-01-31"}, ""),
    ],
)
def test_the_placeholders_of_a_source_are_put_back(addresses: dict[str, str], source: str):
    assert source_with_placeholders(addresses) == source


@pytest.mark.parametrize(
    ("first", "last", "span"),
    [
        ("2026-01-05", "2026-01-06", "FROM=2026-01-05 TO=2026-01-06"),
        ("2026-01-05T07:00", "2026-01-06T09:00", "FROM=2026-01-05T07 TO=2026-01-06T09"),
        ("2026-01-05T07:15", "2026-01-05T07:45", "FROM=2026-01-05T07 TO=2026-01-05T07"),
        # The source got an {hour}: FROM and TO must both be days or both be hours.
        ("2026-01-05", "2026-01-06T09:00", "FROM=2026-01-05 TO=2026-01-06"),
    ],
)
def test_a_backfill_takes_days_or_hours(first: str, last: str, span: str):
    command = backfill_command(first, last, " SOURCE='/d/{date}'")
    assert command == f"make backfill {span} REPROCESS=all SOURCE='/d/{{date}}'"


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        ([], ""),
        (["2026-01-05"], ""),
        (["2026-01-05", "2026-01-05T07:00"], "TENFOLD_BACKFILL_SCHEDULE=@hourly"),
        (["2026-01-05T07:15"], "such as '*/15 * * * *'"),
    ],
)
def test_hours_and_minutes_need_a_schedule(dates: list[str], words: str):
    assert words in schedule_note(dates)
    assert bool(schedule_note(dates)) == bool(words)
