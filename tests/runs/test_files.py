"""The reader of the files of a run, with three ways to handle a missing or damaged file."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs.files import (
    RunFiles,
    facts,
    load_files,
    read_optional,
    read_or_empty,
    read_required,
    with_moved_addresses,
    with_moved_dataset,
)
from pipeline.storage import place_of

EMPTY = RunFiles(run={}, result={}, verdict={}, promotion={})


def test_a_valid_file_is_the_same_for_all_readers(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"dataset": "é"}', encoding="utf-8")
    for read in (read_required, read_optional, read_or_empty):
        assert read(tmp_path / "run.json") == {"dataset": "é"}


def test_a_missing_file_is_an_error_none_or_empty(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_required(tmp_path / "run.json")
    assert read_optional(tmp_path / "run.json") is None
    assert read_or_empty(tmp_path / "run.json") == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\0\0"])
def test_the_error_for_a_damaged_file_names_it(tmp_path: Path, content: bytes):
    (tmp_path / "run.json").write_bytes(content)
    for read in (read_required, read_optional):
        with pytest.raises(json.JSONDecodeError, match=r"^run\.json is not valid JSON: .* \(char \d+\)$"):
            read(tmp_path / "run.json")
    assert read_or_empty(tmp_path / "run.json") == {}


@pytest.mark.parametrize("content", [b"[1]", b"null", b"7", b'"\xff"'])
def test_content_other_than_a_json_object_reads_as_empty(tmp_path: Path, content: bytes):
    (tmp_path / "run.json").write_bytes(content)
    assert read_or_empty(tmp_path / "run.json") == {}


def test_a_folder_without_files_is_a_run_without_content(tmp_path: Path):
    assert load_files(tmp_path / "nothing") == EMPTY
    assert (EMPTY.epochs, EMPTY.steps_per_epoch, EMPTY.num_training_servers) == (0, 0, 1)
    assert (EMPTY.settings, EMPTY.host, EMPTY.newest_verdict, EMPTY.steps_judged) == ({}, {}, {}, {})
    assert not EMPTY.is_complete
    assert list(facts(EMPTY.run)) == []


@pytest.mark.parametrize(
    ("run_json", "training", "dataset"),
    [
        ({"dataset": "/w/datasets/a/1", "settings": {"workspace": "/w"}}, "/new/runs/r/t", "/new/datasets/a/1"),
        ({"dataset": "/w/datasets/a/1", "settings": {"workspace": "/w"}}, "gs://b/w/runs/r/t", "gs://b/w/datasets/a/1"),
        ({"dataset": "gs://b/datasets/a/1", "settings": {"workspace": "gs://b"}}, "/new/runs/r/t", "/new/datasets/a/1"),
        ({"dataset": "/w/datasets/a/1", "settings": {"workspace": "/w"}}, "/w/runs/r/t", "/w/datasets/a/1"),
        # It is published outside of the workspace.
        ({"dataset": "/w2/datasets/a/1", "settings": {"workspace": "/w"}}, "/new/runs/r/t", "/w2/datasets/a/1"),
        # The local copy of a training in a bucket.
        ({"dataset": "gs://b/datasets/a/1", "settings": {"workspace": "gs://b"}}, "/c/0a1b/r/t", "gs://b/datasets/a/1"),
        ({"dataset": "/w/datasets/a/1"}, "/new/runs/r/t", "/w/datasets/a/1"),
        ({"dataset": 1, "settings": {"workspace": "/w"}}, "/new/runs/r/t", 1),
    ],
)
def test_a_dataset_in_the_workspace_moves_with_it(run_json: dict[str, Any], training: str, dataset: Any):
    assert with_moved_dataset(run_json, place_of(training)) == {**run_json, "dataset": dataset}


def test_the_addresses_of_a_result_move_with_the_training():
    result = {"run": "/w/runs/r/t", "export": "/w/runs/r/t/export", "comet": "https://comet/w/runs/r/t", "epochs": 3}
    moved = with_moved_addresses(result, place_of("gs://b/runs/r/t"))
    assert moved == {**result, "run": "gs://b/runs/r/t", "export": "gs://b/runs/r/t/export"}


@pytest.mark.parametrize("result", [{}, {"run": "/w/runs/r/t", "model": "/w/runs/r/t2/model"}])
def test_other_addresses_stay(result: dict[str, str]):
    assert with_moved_addresses(result, Path("/v/runs/r/t")).get("model") == result.get("model")


def test_the_files_of_a_moved_training_name_its_present_place(tmp_path: Path):
    folder = tmp_path / "runs" / "r" / "t"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"run": "/old/runs/r/t", "model": "/old/runs/r/t/model.keras"}))
    assert load_files(folder).result == {"run": str(folder), "model": f"{folder}/model.keras"}


def test_the_local_copy_of_a_training_in_a_bucket_keeps_the_addresses_of_the_bucket(tmp_path: Path):
    result = {"run": "gs://b/runs/r/t", "model": "gs://b/runs/r/t/model.keras"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert load_files(tmp_path).result == result


def test_the_verdict_of_the_result_takes_precedence(tmp_path: Path):
    (tmp_path / "verdict.json").write_text('{"limit": "input", "step_ms": 0.0}')
    files = load_files(tmp_path)
    assert (files.newest_verdict["limit"], files.steps_judged) == ("input", {})
    result = {"limit": "compute", "step_ms": 40.0, "wait_ms": 10.0}
    (tmp_path / "result.json").write_text(json.dumps(result))
    files = load_files(tmp_path)
    assert files.is_complete
    assert files.steps_judged == files.newest_verdict == result


@pytest.mark.parametrize("missing", ["step_ms", "wait_ms"])
def test_a_verdict_without_its_times_has_no_judged_steps(tmp_path: Path, missing: str):
    times = {"step_ms": 40.0, "wait_ms": 10.0}
    del times[missing]
    (tmp_path / "verdict.json").write_text(json.dumps({"limit": "compute", **times}))
    assert load_files(tmp_path).steps_judged == {}
