import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import settings_from
from scripts.airflow.__main__ import backfill_of, command_parser
from scripts.airflow.checks import check_schedule
from scripts.airflow.errors import Refused
from scripts.airflow.request import (
    Backfill,
    Conf,
    check_settings,
    needed_settings,
    needs_sample_images,
    read_backfill,
    read_request,
    with_sample_images,
)
from scripts.airflow.settings import layout_from


@pytest.mark.parametrize(
    ("source", "params", "conf"),
    [
        ("", "", {}),
        ("", '{"epochs": 3}', {"epochs": 3}),
        ("gs://bucket/images", "", {"source_uri": "gs://bucket/images"}),
        ("", '{"source_uri": "gs://b/i"}', {"source_uri": "gs://b/i"}),
    ],
)
def test_read_request(source: str, params: str, conf: dict[str, object]) -> None:
    assert read_request(source, "", "", params, "") == conf


@pytest.mark.parametrize(
    ("params", "what"),
    [("{epochs: 3}", "at character 2"), ("[1]", "a JSON object"), ('"epochs"', "a JSON object")],
)
def test_the_error_for_params_that_are_no_object_shows_the_params(params: str, what: str) -> None:
    with pytest.raises(Refused, match=what) as refusal:
        read_request("", "", "", params, "")
    assert repr(params) in str(refusal.value)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    conf = check_settings({"source_uri": "images", "workspace": "work", "epochs": 3})
    assert conf == {"source_uri": str(tmp_path / "images"), "workspace": str(tmp_path / "work"), "epochs": 3}


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        (
            {"TENFOLD_SETTINGS": "{file}", "TENFOLD_TRAINING_SCHEDULE": "dayly"},
            "TENFOLD_TRAINING_SCHEDULE must be .* got 'dayly'",
        ),
        ({"TENFOLD_DATASET_SCHEDULE": "@daily"}, "TENFOLD_DATASET_SCHEDULE needs a settings file"),
        (
            {"TENFOLD_SETTINGS": "{dated}", "TENFOLD_DATASET_SCHEDULE": "@daily"},
            "TENFOLD_DATASET_SCHEDULE needs settings without data_date, got '2026-01-31' in .*dated.toml: remove it",
        ),
        (
            {"TENFOLD_SETTINGS": "{file}", "TENFOLD_TABULAR_SCHEDULE": "@daily"},
            "TENFOLD_TABULAR_SCHEDULE needs a settings file with a label_column",
        ),
        ({"TENFOLD_SETTINGS": "{file}", "TENFOLD_DATASET_SCHEDULE": "@dayly"}, "one of @hourly, .* got '@dayly'"),
        ({"TENFOLD_SETTINGS": "{file}", "TENFOLD_DATASET_SCHEDULE": "99 0 * * *"}, "got '99 0"),
        ({"TENFOLD_CATCHUP": "maybe"}, "TENFOLD_CATCHUP must be true or false, got 'maybe'"),
        ({"TENFOLD_DEADLINE_HOURS": "abc"}, "TENFOLD_DEADLINE_HOURS must be a number of hours, .*got 'abc'"),
        ({"TENFOLD_OWNER_LINK": "foo"}, "TENFOLD_OWNER_LINK must be an https: or mailto: link, got 'foo'"),
        ({"TENFOLD_START_DATE": "soon"}, "TENFOLD_START_DATE must be a date such as"),
        (
            {"TENFOLD_BACKFILL_SCHEDULE": "hourly"},
            "TENFOLD_BACKFILL_SCHEDULE must be .* one of @hourly, .*got 'hourly'",
        ),
        ({"TENFOLD_TIMEZONE": "Berlin"}, "TENFOLD_TIMEZONE must be .* such as Europe/Berlin, got 'Berlin'"),
        ({"TENFOLD_TIMEZONE": "Europe"}, "TENFOLD_TIMEZONE must be .* got 'Europe'"),
        ({"TENFOLD_TIMEZONE": "../etc/passwd"}, "TENFOLD_TIMEZONE must be .* got '../etc/passwd'"),
        ({"TENFOLD_START_DATE": "2026-01-31T25:00"}, "TENFOLD_START_DATE must be a date such as"),
        ({"TENFOLD_DATASET_SCHEDULE": "0 0 31 2 *"}, "TENFOLD_DATASET_SCHEDULE must be .* got '0 0 31 2 \\*'"),
        ({"TENFOLD_DEADLINE_HOURS": "1e300"}, "TENFOLD_DEADLINE_HOURS must be .* at most 87600, got '1e300'"),
        ({"TENFOLD_DEADLINE_HOURS": "nan"}, "TENFOLD_DEADLINE_HOURS must be .* got 'nan'"),
        ({"TENFOLD_RETRAIN_SCHEDULE": "nightly"}, "TENFOLD_RETRAIN_SCHEDULE must be a cron .* got 'nightly'"),
        ({"TENFOLD_RETRAIN_WAIT_HOURS": "-1"}, "TENFOLD_RETRAIN_WAIT_HOURS must be .* got '-1'"),
        ({"TENFOLD_RETRAIN_POLL_SECONDS": "often"}, "TENFOLD_RETRAIN_POLL_SECONDS must be .* got 'often'"),
        ({"TENFOLD_RETRAIN_POLL_SECONDS": "0"}, "TENFOLD_RETRAIN_POLL_SECONDS must be .* got '0'"),
        ({"TENFOLD_NOTIFIERS": "nope"}, "TENFOLD_NOTIFIERS must be package.module.function names, .*got 'nope'"),
        ({"TENFOLD_NOTIFIERS": "os.path:join"}, "TENFOLD_NOTIFIERS must be .*got 'os.path:join'"),
        ({"TENFOLD_ALLOWED_SOURCES": "/data,photos"}, "TENFOLD_ALLOWED_SOURCES must list absolute .* got 'photos'"),
        ({"TENFOLD_ALLOWED_WORKSPACES": "gs://"}, "TENFOLD_ALLOWED_WORKSPACES must list absolute .* got 'gs://'"),
        ({"TENFOLD_ALLOWED_PUBLISH": "s3://a"}, "TENFOLD_ALLOWED_PUBLISH must list absolute .* got 's3://a'"),
        ({"TENFOLD_SETTINGS": "{true}"}, "epochs must be a number, got true"),
        ({"TENFOLD_SETTINGS": "/nowhere.toml"}, "TENFOLD_SETTINGS=/nowhere.toml: .* cannot be read"),
        ({"TENFOLD_SETTINGS": "{bad}"}, "did you mean source_uri"),
    ],
)
def test_an_invalid_schedule_is_refused(environ: dict[str, str], what: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text('source_uri = "/data/{date}"')
    (tmp_path / "bad.toml").write_text('source_ur = "/data/{date}"')
    (tmp_path / "true.toml").write_text("epochs = true")
    (tmp_path / "dated.toml").write_text('source_uri = "/data/{date}"\ndata_date = "2026-01-31"')
    places = {name: tmp_path / f"{name}.toml" for name in ("file", "bad", "true", "dated")}
    with pytest.raises(Refused, match=what):
        check_schedule({name: value.format(**places) for name, value in environ.items()})


@pytest.mark.parametrize("schedule", ["", "@daily", "0 3 * * *"])
def test_a_schedule_with_a_settings_file_is_accepted(schedule: str, tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text('source_uri = "/data/{date}"')
    check_schedule({"TENFOLD_DATASET_SCHEDULE": schedule, "TENFOLD_SETTINGS": str(tmp_path / "file.toml")})


def test_valid_settings_are_accepted() -> None:
    valid = {
        "TENFOLD_START_DATE": "2026-01-31T00:00+02:00",
        "TENFOLD_BACKFILL_SCHEDULE": "@hourly",
        "TENFOLD_TIMEZONE": "Asia/Kolkata",
        "TENFOLD_DEADLINE_HOURS": "0.5",
        "TENFOLD_RETRAIN_POLL_SECONDS": "2",
        "TENFOLD_RETRAIN_SCHEDULE": "@daily",
        "TENFOLD_RETRAIN_WAIT_HOURS": "6",
        "TENFOLD_NOTIFIERS": "tests.dags.notifier.ToFile",
        "TENFOLD_ALLOWED_SOURCES": "/data, gs://photos/2026",
        "TENFOLD_ALLOWED_WORKSPACES": "*",
        "TENFOLD_ALLOWED_PUBLISH": "",
        "TENFOLD_ALLOWED_MODELS": "mine.models",
    }
    check_schedule(valid)


@pytest.mark.parametrize(("environ", "code"), [({}, 0), ({"TENFOLD_CATCHUP": "maybe"}, 2)])
def test_compose_refuses_the_same_settings(environ: dict[str, str], code: int) -> None:
    """`make docker-up` runs this command in the image before it starts any service."""
    command = [sys.executable, "-m", "scripts.airflow", "check"]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert (done.returncode, "TENFOLD_CATCHUP must be true or false" in done.stderr) == (code, bool(code))


@pytest.mark.parametrize(
    ("source", "table", "label", "params", "what"),
    [
        ("gs://b", "", "", '{"source_uri": "/images"}', "SOURCE='gs://b' and source_uri='/images' in PARAMS are both"),
        ("", "gs://b", "", '{"source_uri": "/images"}', "TABLE='gs://b' and source_uri='/images' in PARAMS are both"),
        ("gs://b", "gs://b", "", "", "SOURCE and TABLE are both given"),
        ("", "gs://b", "y", '{"label_column": "z"}', "LABEL='y' and label_column='z' in PARAMS are both"),
    ],
)
def test_a_value_given_twice_is_refused(source: str, table: str, label: str, params: str, what: str) -> None:
    with pytest.raises(Refused, match=what):
        read_request(source, table, label, params, "table")


def test_a_source_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    with pytest.raises(Refused, match=r"a\.jpg is neither"):
        read_request(str(tmp_path / "a.jpg"), "", "", "", "")


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({"epoch": 3}, "epoch is not a setting"),
        ({"epochs": "3"}, "epochs must be"),
        ({"source_uri": "gs://b"}, "source_uri"),
    ],
)
def test_settings_that_the_first_task_would_refuse_are_refused(conf: dict[str, object], what: str) -> None:
    with pytest.raises(Refused, match=what):
        check_settings(conf)


@pytest.mark.parametrize(("kind", "model"), [("table", "small_cnn"), ("images", "mlp")])
def test_a_model_of_another_kind_is_refused(kind: str, model: str) -> None:
    with pytest.raises(Refused, match=f"model must be .*, got '{model}'"):
        check_settings({"model": model}, kind)


def test_source_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my images").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_request("my images", "", "", "", "") == {"source_uri": str(tmp_path / "my images")}


@pytest.mark.parametrize("missing", ["none", "none/{date}", "none/{date}/more"])
def test_a_missing_source_is_refused(missing: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"SOURCE .*none.* does not exist"):
        read_request(str(tmp_path / missing), "", "", "", "")


@pytest.mark.parametrize("dated", ["{date}", "day-{date}/images"])
def test_dated_source_needs_only_the_folder_above_the_date(dated: str, tmp_path: Path) -> None:
    assert read_request(str(tmp_path / dated), "", "", "", "") == {"source_uri": str(tmp_path / dated)}


@pytest.mark.parametrize(
    ("dag_id", "conf", "default", "expected"),
    [
        ("image_training", {}, "", True),
        ("image_training", {"source_uri": "/images"}, "", False),
        ("image_training", {}, "/images", False),
        ("retrain", {}, "", False),
    ],
)
def test_a_run_without_a_source_needs_the_sample_images(
    dag_id: str, conf: Conf, default: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.toml").write_text(f"source_uri = {default!r}\n")
    monkeypatch.setenv("TENFOLD_SETTINGS", str(tmp_path / "settings.toml"))
    assert needs_sample_images(dag_id, conf) == expected


def test_existing_samples_are_not_drawn_again(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    assert with_sample_images({"epochs": 1}, samples) == {
        "source_uri": str(tmp_path / "samples"),
        "dataset_name": "samples",
        "epochs": 1,
    }
    assert list((tmp_path / "samples").iterdir()) == []


def test_the_source_can_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "images.csv").write_text("path,label\n")
    assert read_request(str(tmp_path / "images.csv"), "", "", "", "") == {"source_uri": str(tmp_path / "images.csv")}


NOW = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
DATED, BY_HOUR = {"source_uri": "/data/{date}"}, {"source_uri": "/data/{date}/{hour}"}
BY_MINUTE = {"source_uri": "/data/{date}/{hour}{minute}"}


@pytest.mark.parametrize(
    ("first", "last", "conf", "what"),
    [
        ("2026-01-02", "2026-01-01", DATED, "FROM=2026-01-02 is after TO=2026-01-01"),
        ("", "2026-01-01", DATED, "FROM must be a day such as 2026-01-31, or an hour such as 2026-01-31T07, got ''"),
        ("2026-01-01", "2026-02-30", DATED, "TO must be a day such as .* got '2026-02-30'"),
        ("2026-01-01T00", "2026-01-01T24", BY_HOUR, "TO must be a day such as .* got '2026-01-01T24'"),
        ("2026-01-01T00:30", "2026-01-01T07", BY_HOUR, "FROM must be a day such as .* got '2026-01-01T00:30'"),
        (
            "2026-01-31T07:00:00.5",
            "2026-01-31T07",
            BY_HOUR,
            "FROM must be a day such as .* got '2026-01-31T07:00:00.5'",
        ),
        ("2026-01-01T00+01:00", "2026-01-01T07", BY_HOUR, r"FROM must be a day .* got '2026-01-01T00\+01:00'"),
        (
            "2026-01-01T00",
            "2026-01-02",
            BY_HOUR,
            "must both be days or both be hours, got FROM=2026-01-01T00 and TO=20",
        ),
        (
            "2026-01-01T00",
            "2026-01-01T07",
            DATED,
            "FROM=2026-01-01T00 is an hour, but the source /data/{date} has no {hour}",
        ),
        ("9999-12-31", "9999-12-31", DATED, "TO must be before today .* got 9999-12-31"),
        ("2026-01-01", "2026-01-31", DATED, "TO must be before today .2026-01-31 in UTC.* got 2026-01-31"),
        (
            "2026-01-01T00",
            "2026-01-31T09",
            BY_HOUR,
            "TO must be before this hour .2026-01-31T09:00 in UTC.* got 2026-01",
        ),
        ("2023-01-01", "2026-01-01", DATED, "are 1097 dates: give at most 1000"),
        ("2025-11-01T00", "2026-01-01T00", BY_HOUR, "are 1465 dates: give at most 1000"),
    ],
)
def test_dates_that_cannot_be_backfilled_are_refused(first: str, last: str, conf: Conf, what: str) -> None:
    with pytest.raises(Refused, match=what):
        read_backfill("dag", first, last, "", conf, NOW)


def test_a_reprocess_behavior_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused, match="REPROCESS must be failed or all, got 'some'"):
        read_backfill("dag", "2026-01-01", "2026-01-02", "some", DATED, NOW)


@pytest.mark.parametrize(
    ("zone", "now", "is_over"),
    [
        ("UTC", "2026-01-30T23:30Z", False),
        ("Europe/Berlin", "2026-01-30T23:30Z", True),
        ("America/New_York", "2026-01-31T04:30Z", False),
        ("America/New_York", "2026-01-31T05:00Z", True),
    ],
)
def test_a_day_is_over_at_midnight_in_its_time_zone(
    zone: str, now: str, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENFOLD_TIMEZONE", zone)
    with nullcontext() if is_over else pytest.raises(Refused, match=f"before today .2026-01-30 in {zone}"):
        read_backfill("dag", "2026-01-01", "2026-01-30", "", DATED, datetime.fromisoformat(now))


def test_a_time_zone_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_TIMEZONE", "Berlin")
    with pytest.raises(Refused, match=r"TENFOLD_TIMEZONE must be the name of a time zone .* got 'Berlin'"):
        read_backfill("dag", "2026-01-01", "2026-01-02", "", DATED, NOW)


@pytest.mark.parametrize(("reprocess", "behavior"), [("", "failed"), ("failed", "failed"), ("all", "completed")])
def test_the_request_to_airflow_includes_the_whole_last_day(reprocess: str, behavior: str) -> None:
    wanted = read_backfill("dag", "2026-01-29", "2026-01-30", reprocess, DATED, NOW)
    assert wanted.names == ["2026-01-29", "2026-01-30"]
    assert wanted.body() == {
        "dag_id": "dag",
        "from_date": "2026-01-29T00:00:00+00:00",
        "to_date": "2026-01-30T23:59:59.999999+00:00",
        "dag_run_conf": DATED,
        "reprocess_behavior": behavior,
        "max_active_runs": 2,
    }


@pytest.mark.parametrize(
    ("zone", "first", "last", "begin", "end", "names"),
    [
        (
            "UTC",
            "2026-01-29T22",
            "2026-01-30T01",
            "29T22:00",
            "30T01:59",
            ["29T22:00", "29T23:00", "30T00:00", "30T01:00"],
        ),
        # Hours are in UTC in any time zone.
        ("Europe/Berlin", "2026-01-29T23", "2026-01-29T23", "29T23:00", "29T23:59", ["29T23:00"]),
        ("Europe/Berlin", "2026-01-29", "2026-01-30", "28T23:00", "30T22:59", ["29", "30"]),
        # Days of 25 hours, 23 hours, and without a midnight.
        ("Europe/Berlin", "2025-10-25", "2025-10-26", "24T22:00", "26T22:59", ["25", "26"]),
        ("Europe/Berlin", "2025-03-29", "2025-03-30", "28T23:00", "30T21:59", ["29", "30"]),
        ("America/Santiago", "2025-09-06", "2025-09-08", "06T04:00", "09T02:59", ["06", "07", "08"]),
    ],
)
def test_the_request_to_airflow_in_hours_and_in_time_zones(
    zone: str, first: str, last: str, begin: str, end: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENFOLD_TIMEZONE", zone)
    wanted = read_backfill("dag", first, last, "", BY_HOUR, NOW)
    body, month = wanted.body(), first[:8]
    assert body["from_date"] == f"{month}{begin}:00+00:00"
    assert body["to_date"] == f"{month}{end}:59.999999+00:00"
    assert wanted.names == [month + name for name in names]


@pytest.mark.parametrize(
    ("conf", "environ", "needed"),
    [
        (DATED, {}, {}),
        (BY_HOUR, {}, {"TENFOLD_BACKFILL_SCHEDULE": "@hourly"}),
        (BY_HOUR, {"TENFOLD_BACKFILL_SCHEDULE": "0 */6 * * *"}, {}),
        (BY_MINUTE, {"TENFOLD_BACKFILL_SCHEDULE": "*/15 * * * *"}, {}),
        (BY_MINUTE, {"TENFOLD_DATASET_SCHEDULE": "*/15 * * * *"}, {"TENFOLD_BACKFILL_SCHEDULE": "@hourly"}),
    ],
)
def test_an_airflow_that_is_started_for_hours_has_runs_for_hours(
    conf: Conf, environ: dict[str, str], needed: dict[str, str]
) -> None:
    request = read_backfill("image_dataset", "2026-01-01", "2026-01-02", "", conf, NOW)
    assert needed_settings(request, environ) == needed


@pytest.mark.parametrize("environ", [{}, {"TENFOLD_TABULAR_SCHEDULE": "*/15 * * * *"}])
@pytest.mark.parametrize("dag_id", ["image_dataset", "my_own"])
def test_an_airflow_is_not_started_for_minutes_that_it_would_leave_out(dag_id: str, environ: dict[str, str]) -> None:
    request = read_backfill(dag_id, "2026-01-01", "2026-01-02", "", BY_MINUTE, NOW)
    with pytest.raises(Refused, match=r"has {minute}, .*: set TENFOLD_BACKFILL_SCHEDULE to .*, such as '\*/15 \* "):
        needed_settings(request, environ)


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({"source_uri": "/data"}, "the source /data is the same for every date: .* such as /data/{date}"),
        ({}, "SOURCE or TABLE is missing"),
        ({"source_uri": "/data/{date}", "data_date": "2026-01-01"}, "PARAMS must not set data_date, got '2026-01-01'"),
    ],
)
def test_a_source_with_the_same_images_for_all_dates_is_refused(
    conf: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENFOLD_SETTINGS", raising=False)
    with pytest.raises(Refused, match=what):
        read_backfill("dag", "2026-01-29", "2026-01-30", "", conf, NOW)


@pytest.mark.parametrize(("conf", "is_refused"), [(DATED, True), ({**DATED, "data_date": ""}, False)])
def test_a_data_date_of_the_settings_file_would_be_that_of_all_dates(
    conf: Conf, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text('data_date = "2026-01-31"')
    monkeypatch.setenv("TENFOLD_SETTINGS", str(tmp_path / "s.toml"))
    refusal = pytest.raises(Refused, match="the file of TENFOLD_SETTINGS must not set data_date, got '2026-01-31'")
    with refusal if is_refused else nullcontext():
        read_backfill("dag", "2026-01-29", "2026-01-30", "", conf, NOW)


def test_the_source_can_come_from_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.toml").write_text('source_uri = "/data/{date}"')
    monkeypatch.setenv("TENFOLD_SETTINGS", str(tmp_path / "s.toml"))
    read_backfill("dag", "2026-01-29", "2026-01-30", "", {}, NOW)


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


def test_the_source_of_an_airflow_elsewhere_need_not_exist_here(
    backfill: Callable[..., Backfill], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match="does not exist"):
        backfill("--source", "/nowhere/{date}")
    monkeypatch.setenv("TENFOLD_AIRFLOW_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TENFOLD_AIRFLOW_PASSWORD", "password")
    assert backfill("--source", "/nowhere/{date}").conf == {"source_uri": "/nowhere/{date}"}
    undated = read_request("/nowhere", "", "", "", "images", has_other_disks=True)
    assert undated == {"source_uri": "/nowhere"}


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
    assert "label_column" not in backfill("--dag", "tabular_dataset", "--source", "gs://bucket/{date}.csv").conf
    assert "label_column" not in backfill("--table", "gs://bucket/{date}.csv").conf
