from pathlib import Path

import pytest

from scripts.airflow.errors import Refused
from scripts.airflow.request import check_settings, read_request, with_source


@pytest.mark.parametrize(
    ("source", "params", "conf"),
    [
        ("", "", {}),
        ("", '{"epochs": 3}', {"epochs": 3}),
        ("gs://bucket/images", "", {"source_uri": "gs://bucket/images"}),
        ("", '{"source_uri": "gs://b/i"}', {"source_uri": "gs://b/i"}),
    ],
)
def test_request(source: str, params: str, conf: dict[str, object]) -> None:
    assert read_request(source, params) == conf


@pytest.mark.parametrize(
    ("params", "what"),
    [("{epochs: 3}", "at character 2"), ("[1]", "a JSON object"), ('"epochs"', "a JSON object")],
)
def test_params_that_are_no_object_are_refused_with_what_was_given(params: str, what: str) -> None:
    with pytest.raises(Refused, match=what) as refusal:
        read_request("", params)
    assert repr(params) in str(refusal.value)


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({"epoch": 3}, "epoch is not a setting"),
        ({"epochs": "3"}, "epochs must be"),
        ({"source_uri": "gs://b"}, "source_uri"),
    ],
)
def test_settings_that_the_first_task_would_refuse_start_nothing(conf: dict[str, object], what: str) -> None:
    with pytest.raises(Refused, match=what):
        check_settings(conf)


def test_source_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my images").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_request("my images", "") == {"source_uri": str(tmp_path / "my images")}


@pytest.mark.parametrize("missing", ["none", "none/{date}", "none/{date}/more"])
def test_source_that_is_not_there_is_refused(missing: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"SOURCE .*none.* does not exist"):
        read_request(str(tmp_path / missing), "")


@pytest.mark.parametrize("dated", ["{date}", "day-{date}/images"])
def test_dated_source_needs_only_the_folder_above_the_date(dated: str, tmp_path: Path) -> None:
    assert read_request(str(tmp_path / dated), "") == {"source_uri": str(tmp_path / dated)}


def test_samples_are_drawn_once_and_only_without_a_source(tmp_path: Path) -> None:
    given = {"source_uri": "/images"}
    assert with_source(given, tmp_path) == given
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "samples").mkdir()
    assert with_source({"epochs": 1}, tmp_path) == {"source_uri": str(tmp_path / "samples"), "epochs": 1}
    assert list((tmp_path / "samples").iterdir()) == []
