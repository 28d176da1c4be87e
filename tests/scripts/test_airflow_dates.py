import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import settings_from
from scripts.airflow.__main__ import backfill_of, command_parser
from scripts.airflow.dates import Backfill, read_backfill
from scripts.airflow.errors import Refused
from scripts.airflow.settings import layout_from

TODAY = date(2026, 1, 31)
DATED = {"source_uri": "/data/{date}"}


@pytest.mark.parametrize(
    ("first", "last", "reprocess", "what"),
    [
        ("2026-01-02", "2026-01-01", "", "FROM=2026-01-02 is after TO=2026-01-01"),
        ("", "2026-01-01", "", "FROM must be a date such as 2026-01-31, got ''"),
        ("2026-01-01", "2026-02-30", "", "TO must be a date such as 2026-01-31, got '2026-02-30'"),
        ("2026-01-01", "2026-01-31", "", "TO must be before today .2026-01-31 in UTC.* got 2026-01-31"),
        ("2023-01-01", "2026-01-01", "", "are 1097 dates: give at most 1000"),
        ("2026-01-01", "2026-01-02", "some", "REPROCESS must be failed or all, got 'some'"),
    ],
)
def test_dates_that_cannot_be_backfilled_are_refused(first: str, last: str, reprocess: str, what: str) -> None:
    with pytest.raises(Refused, match=what):
        read_backfill("dag", first, last, reprocess, DATED, TODAY)


@pytest.mark.parametrize(("reprocess", "behavior"), [("", "failed"), ("failed", "failed"), ("all", "completed")])
def test_the_request_to_airflow_includes_the_whole_last_day(reprocess: str, behavior: str) -> None:
    wanted = read_backfill("dag", "2026-01-29", "2026-01-30", reprocess, DATED, TODAY)
    assert wanted.days == [date(2026, 1, 29), date(2026, 1, 30)]
    assert wanted.body() == {
        "dag_id": "dag",
        "from_date": "2026-01-29T00:00:00+00:00",
        "to_date": "2026-01-30T23:59:59.999999+00:00",
        "dag_run_conf": DATED,
        "reprocess_behavior": behavior,
        "max_active_runs": 2,
    }


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({"source_uri": "/data"}, "SOURCE=/data is the same for every date: .* such as SOURCE=/data/{date}"),
        ({}, "SOURCE is missing"),
        ({"source_uri": "/data/{date}", "data_date": "2026-01-01"}, "PARAMS must not set data_date, got '2026-01-01'"),
    ],
)
def test_a_source_with_the_same_images_for_all_dates_is_refused(
    conf: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENFOLD_SETTINGS", raising=False)
    with pytest.raises(Refused, match=what):
        read_backfill("dag", "2026-01-29", "2026-01-30", "", conf, TODAY)


def test_the_source_can_come_from_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.toml").write_text('source_uri = "/data/{date}"')
    monkeypatch.setenv("TENFOLD_SETTINGS", str(tmp_path / "s.toml"))
    read_backfill("dag", "2026-01-29", "2026-01-30", "", {}, TODAY)


@pytest.fixture
def backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Backfill]:
    """A function that returns the backfill of some options of the command line."""
    monkeypatch.delenv("TENFOLD_SETTINGS", raising=False)
    monkeypatch.setenv("TENFOLD_HOME", str(tmp_path / "home"))

    def read(*options: str) -> Backfill:
        arguments = ["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *options]
        args, layout = command_parser().parse_args(arguments), layout_from(os.environ)
        return backfill_of(args, layout)

    return read


LABEL = json.dumps({"label_column": "churn"})


@pytest.mark.parametrize(
    ("options", "dag_id"),
    [
        (["--dag", "tabular_dataset", "--source", "{folder}/{{date}}.csv", "--params", LABEL], "tabular_dataset"),
        (["--dag", "tabular_training", "--source", "{folder}/{{date}}.csv", "--label", "churn"], "tabular_training"),
        (["--table", "{folder}/{{date}}.csv", "--label", "churn"], "tabular_dataset"),
    ],
)
def test_a_backfill_of_tables_is_named_after_their_folder(
    backfill: Callable[..., Backfill], tmp_path: Path, options: list[str], dag_id: str
) -> None:
    (tmp_path / "data").mkdir()
    filled = [word if word == LABEL else word.format(folder=tmp_path / "data") for word in options]
    request = backfill(*filled)
    source = f"{tmp_path}/data/{{date}}.csv"
    assert (request.dag_id, request.conf) == (dag_id, {"source_uri": source, "label_column": "churn"})
    assert settings_from({**request.conf, "example_kind": "table"}).dataset_name == "data"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--dag", "tabular_dataset", "--source", "gs://b/{date}.csv"], "LABEL is missing"),
        (
            ["--dag", "image_dataset", "--table", "gs://b/{date}.csv"],
            "is for images, .* DAG=tabular_dataset",
        ),
        (["--dag", "retrain"], "DAG must be .*image_dataset.*tabular_dataset, got 'retrain'"),
    ],
)
def test_a_backfill_of_tables_that_cannot_run_is_refused(
    backfill: Callable[..., Any], options: list[str], what: str
) -> None:
    with pytest.raises(Refused, match=what):
        backfill(*options)


def test_the_label_can_come_from_the_settings_file(
    backfill: Callable[..., Backfill], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text('label_column = "y"')
    monkeypatch.setenv("TENFOLD_SETTINGS", str(tmp_path / "s.toml"))
    backfill("--dag", "tabular_dataset", "--source", "gs://bucket/{date}.csv")
