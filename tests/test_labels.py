from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import DatasetError, SettingsError, SourceError
from pipeline.labels import given_labels, label_map, proposed_labels


def test_ids_are_given_once_and_never_move(tmp_path: Path):
    assert label_map(tmp_path, ["cat", "eel"]) == ["cat", "eel"]
    assert label_map(tmp_path, ["ant", "cat", "dog"]) == ["cat", "eel", "ant", "dog"]
    assert label_map(tmp_path, ["eel"]) == ["cat", "eel"]


def test_what_others_added_behind_changes_nothing_for_those_before(tmp_path: Path):
    before = label_map(tmp_path, ["cat", "dog"])
    label_map(tmp_path, ["ant", "dog"])
    assert label_map(tmp_path, ["cat", "dog"]) == before


def test_nothing_new_writes_nothing(tmp_path: Path):
    label_map(tmp_path, ["cat", "dog"])
    before = sorted(tmp_path.rglob("*"))
    label_map(tmp_path, ["dog"])
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_of_many_dates_at_once_agree(tmp_path: Path):
    days = [[f"shared{number}" for number in range(5)] + [f"of day {day}"] for day in range(16)]
    with ThreadPoolExecutor(16) as pool:
        maps = list(pool.map(lambda labels: label_map(tmp_path, labels), days))
    longest = max(maps, key=len)
    assert sorted(longest) == sorted({label for day in days for label in day})
    for day, labels in zip(days, maps, strict=True):
        assert labels == longest[: len(labels)]
        assert set(day) <= set(labels)
        assert label_map(tmp_path, day) == labels


@pytest.mark.parametrize("content", ["", "[", '{"cat": 0}', '["cat", 1]', '["cat", "cat"]', '"cat"'])
def test_a_damaged_map_is_refused_and_nothing_is_added(content: str, tmp_path: Path):
    label_map(tmp_path, ["cat", "dog"])
    state = tmp_path / "labels" / "00001.json"
    state.write_text(content)
    for read in (label_map, proposed_labels):
        with pytest.raises(DatasetError, match=r"00001\.json .*bring back"):
            read(tmp_path, ["cat", "eel"])
    assert list(state.parent.iterdir()) == [state]


def test_other_files_beside_the_map_are_left_alone(tmp_path: Path):
    label_map(tmp_path, ["cat", "dog"])
    (tmp_path / "labels" / "00001 (copy).json").write_text("[]")
    assert label_map(tmp_path, ["ant"]) == ["cat", "dog", "ant"]


def test_names_with_newlines_and_not_utf_8_survive(tmp_path: Path):
    labels = ["new\nline", "caf\udce9", "花"]
    assert label_map(tmp_path, labels) == label_map(tmp_path, labels) == labels


def test_a_file_of_the_user_decides_all_ids(tmp_path: Path):
    path = tmp_path / "labels.txt"
    path.write_text("\ufeffzebra\r\ncat\n\ndog\n")
    assert given_labels(path, ["cat", "dog"]) == ["zebra", "cat", "dog"]


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ("cat\n", SourceError, "lacks 'dog': add"),
        ("cat\ndog\ncat\n", SettingsError, "names 'cat' twice"),
        ("\n", SettingsError, "is empty"),
        (None, SettingsError, "label_map must be a file of labels"),
    ],
)
def test_a_file_that_does_not_do_is_refused(tmp_path: Path, content: str | None, error: type, words: str):
    path = tmp_path / "labels.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=words):
        given_labels(path, ["cat", "dog"])
