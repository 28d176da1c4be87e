"""The settings of a command, compared with those of a running Airflow."""

import os
from pathlib import Path

import pytest

from scripts.airflow.differences import CONTENT, differences, noted_settings
from scripts.airflow.embedded import components, usable_airflow
from scripts.airflow.errors import Refused
from scripts.airflow.keys import load_keys
from scripts.airflow.processes import identify
from scripts.airflow.record import Record, write_record
from scripts.airflow.settings import ROOT, environment, layout_from

KEY = "secret"


@pytest.mark.parametrize(
    ("asked", "started", "found"),
    [
        ({}, {}, []),
        ({}, {"TENFOLD_TIMEZONE": "Asia/Tokyo"}, []),
        ({"TENFOLD_TIMEZONE": "UTC"}, {"TENFOLD_TIMEZONE": "UTC"}, []),
        (
            {"TENFOLD_TIMEZONE": "UTC"},
            {"TENFOLD_TIMEZONE": "Asia/Tokyo"},
            ["TENFOLD_TIMEZONE is UTC, but Asia/Tokyo for Airflow"],
        ),
        ({"TENFOLD_CATCHUP": ""}, {}, []),
        ({"TENFOLD_TIMEZONE": "UTC"}, {}, ["TENFOLD_TIMEZONE is UTC, but not set for Airflow"]),
        ({"TENFOLD_TIMEZONE": ""}, {"TENFOLD_TIMEZONE": "UTC"}, ["TENFOLD_TIMEZONE is empty, but UTC for Airflow"]),
        ({"TENFOLD_BEAM_OPTIONS": "--token=a"}, {}, ["TENFOLD_BEAM_OPTIONS is set, but not for Airflow"]),
        (
            {"TENFOLD_BEAM_OPTIONS": "--token=a"},
            {"TENFOLD_BEAM_OPTIONS": "--token=b"},
            ["TENFOLD_BEAM_OPTIONS has another value"],
        ),
        ({"TENFOLD_BEAM_OPTIONS": "--token=a"}, {"TENFOLD_BEAM_OPTIONS": "--token=a"}, []),
        ({"TENFOLD_HOME": "/h", "TENFOLD_ERROR_FILE": "/e"}, {}, []),
    ],
)
def test_variables_that_a_command_sets_are_compared(
    asked: dict[str, str], started: dict[str, str], found: list[str]
) -> None:
    assert differences(asked, noted_settings(started, KEY), KEY) == found


def test_a_settings_file_is_compared_by_its_content(tmp_path: Path) -> None:
    one, copy, other = (tmp_path / name for name in ("one.toml", "copy.toml", "other.toml"))
    one.write_text("window = 3")
    copy.write_text("window = 3")
    other.write_text("window = 1")
    got, without = noted_settings({"TENFOLD_SETTINGS": str(one)}, KEY), noted_settings({}, KEY)
    assert differences({"TENFOLD_SETTINGS": str(one)}, got, KEY) == []
    assert differences({"TENFOLD_SETTINGS": str(copy)}, got, KEY) == []
    assert differences({"TENFOLD_SETTINGS": str(other)}, got, KEY) == [
        f"TENFOLD_SETTINGS is {other}, but {one} for Airflow"
    ]
    for path in (one, tmp_path / "missing.toml"):
        assert differences({"TENFOLD_SETTINGS": str(path)}, without, KEY) == [
            f"TENFOLD_SETTINGS is {path}, but not set for Airflow"
        ]
    one.write_text("window = 2")
    assert differences({"TENFOLD_SETTINGS": str(one)}, got, KEY) == [
        f"the file {one} (TENFOLD_SETTINGS) has changed since Airflow started"
    ]


def test_a_value_that_may_be_a_secret_is_not_stored() -> None:
    environ = {"AIRFLOW__CORE__FERNET_KEY": "planted-key", "TENFOLD_BEAM_OPTIONS": "planted-options"}
    noted = noted_settings(environ, KEY)
    assert noted.keys() == {*environ, CONTENT}
    assert "planted" not in str(noted)


def test_a_running_airflow_is_refused_if_the_command_sets_other_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"TENFOLD_HOME": str(tmp_path), "TENFOLD_WORKSPACE": str(tmp_path / "w"), "TENFOLD_PORT": "8080"}
    layout, keys = layout_from(home), load_keys(tmp_path / "keys.json")
    settings = tmp_path / "settings.toml"
    settings.write_text("window = 3")
    allowed = dict.fromkeys(
        ("TENFOLD_ALLOWED_SOURCES", "TENFOLD_ALLOWED_WORKSPACES", "TENFOLD_ALLOWED_PUBLISH", "TENFOLD_ALLOWED_MODELS"),
        "*",
    )
    noted = noted_settings(environment(layout, keys, 8080, allowed), keys.session)
    processes = dict.fromkeys(components(0), identify(os.getpid()))
    write_record(tmp_path, Record(8080, background=True, processes=processes, settings=noted, code=str(ROOT)))

    assert usable_airflow(layout) is not None
    monkeypatch.chdir(tmp_path)
    assert usable_airflow(layout_from({**home, "TENFOLD_WORKSPACE": "w", **allowed})) is not None
    assert usable_airflow(layout_from({**home, "TENFOLD_PORT": ""})) is not None
    with pytest.raises(
        Refused,
        match="the Airflow at http://127.0.0.1:8080 has other settings than this command: TENFOLD_PORT is 9000, but "
        f"8080 for Airflow; TENFOLD_SETTINGS is {settings}, but not set for Airflow. .*run `make down` first",
    ):
        usable_airflow(layout_from({**home, "TENFOLD_SETTINGS": str(settings), "TENFOLD_PORT": "9000"}))
