"""The links of a report, and the settings of its run."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.automatic import with_automatic_values
from pipeline.config.settings import settings_from
from pipeline.report.about_run import Link, links_of, settings_of
from pipeline.runs.files import RunFiles


def files(run: dict[str, Any], **result: Any) -> RunFiles:
    return RunFiles(run=run, result=result, verdict={})


def test_a_run_on_this_machine_links_to_its_card_its_shards_and_comet():
    run = {"dataset": "/w/datasets/a b/v1", "dag": "image_training", "run_id": "manual__1+0"}
    query, page = "dag_id=image_training&run_id=manual__1%2B0", "../dags/image_training/runs/manual__1%2B0"
    assert links_of(files(run, comet="https://comet.example/1")) == [
        Link("Dataset card", "file:///w/datasets/a%20b/v1/card.html", f"card?{query}"),
        Link("Shards", "file:///w/datasets/a%20b/v1", ""),
        Link("Training in Airflow", "", f"{page}/plugin/training"),
        Link("Tasks and logs", "", page),
        Link("Comet", "https://comet.example/1", "https://comet.example/1"),
    ]


def test_a_dataset_in_a_bucket_is_linked_in_the_console():
    console = "https://console.cloud.google.com/storage/browser/b/w/datasets/a/v1"
    assert links_of(files({"dataset": "gs://b/w/datasets/a/v1"})) == [
        Link("Dataset card", "https://storage.cloud.google.com/b/w/datasets/a/v1/card.html", ""),
        Link("Shards", console, console),
    ]


@pytest.mark.parametrize("comet", [None, "archive.zip", "javascript:alert(1)"])
def test_only_an_address_of_the_web_is_a_link_to_comet(comet: str | None):
    assert links_of(files({}, comet=comet)) == []


def test_changed_settings_are_apart_from_those_with_their_defaults(tmp_path: Path):
    given = settings_from({"source_uri": str(tmp_path), "epochs": 3, "balanced": True})
    values = with_automatic_values(given, 600).model_dump(mode="json")
    found = settings_of(values, 600)
    assert {name: rest for name, *rest in found.changed.rows} == {
        "source_uri": [str(tmp_path), "empty"], "epochs": ["3", "10"], "balanced": ["true", "false"],
        "dataset_name": [values["dataset_name"], "empty"],
    }  # fmt: skip
    unchanged = dict(found.unchanged.rows)
    assert unchanged["batch_size"] == "32"  # as Tenfold chooses it
    assert "key_column" not in unchanged  # it has no effect on images
    assert settings_of({}, 0) is None


def test_settings_that_this_machine_refuses_are_shown():
    found = settings_of({"model": "gone", "source_kind": "gone", "epochs": 3}, 0)
    assert ("source_kind", "gone", "auto") in found.changed.rows
