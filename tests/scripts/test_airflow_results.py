from types import SimpleNamespace
from typing import Any

import pytest

from scripts.airflow.results import error_text, log_path, results, skip_reason


def stack(kind: str, value: str, is_cause: bool = False) -> dict[str, Any]:
    return {"exc_type": kind, "exc_value": value, "exc_notes": [], "is_cause": is_cause, "frames": [{"lineno": 1}]}


def line(event: str, level: str = "info", **more: Any) -> dict[str, Any]:
    return {"event": event, "level": level, **more}


HEAD = [{"event": "::group::Log message source details"}, {"event": "/logs/attempt=1.log"}, {"event": "::endgroup::"}]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([], "its process ended without a message, for example because it was killed"),
        ([*HEAD, line("::group::Pre Execute")],
         "its process ended without a message, for example because it was killed"),
        (["only text"], "only text"),
        ([line("::group::Pre Execute"), line("a"), line("b")], "a\nb"),
        ([line(str(number)) for number in range(9)], "4\n5\n6\n7\n8"),
        ([line("fine"), line("disk full", "error"), line("bye")], "disk full"),
        ([line("Task failed", "error", error_detail=[stack("ValueError", "epochs must be 1, got 0")])],
         "ValueError: epochs must be 1, got 0"),
        ([line("Task failed", "error", error_detail=[stack("KeyboardInterrupt", "")])], "KeyboardInterrupt"),
        ([line("f", "error", error_detail=[stack("Failed", "no shard"), stack("OSError", "disk full", is_cause=True)])],
         "Failed: no shard\ncaused by OSError: disk full"),
        ([line("f", "error", error_detail=[stack("Failed", "no shard"), stack("KeyError", "x")])], "Failed: no shard"),
        ([line("f", "error", error_detail=[stack("Failed", "same"), stack("BadInput", "same", is_cause=True)])],
         "Failed: same"),
    ],
)  # fmt: skip
def test_error_text(entries: list[Any], text: str) -> None:
    assert error_text(entries) == text


def test_log_path() -> None:
    assert log_path([*HEAD, line("reads /data/other.log")]) == "/logs/attempt=1.log"
    assert log_path([line("killed before it wrote any")]) == ""


def test_skip_reason() -> None:
    skips = [line("Skipping task.", reason="trained before"), line("Skipping task.", reason="left to the next")]
    assert skip_reason([*HEAD, *skips, line("bye", reason="none")]) == "left to the next"
    assert skip_reason(HEAD) == ""


def test_the_results_of_a_run_are_those_of_its_tasks() -> None:
    returned = {
        "upload.commit": {"dataset": "/d", "rejected": 0, "examples": {"train": 100}},
        "train": {"split": "test", "headline": "93.1% accuracy", "metrics": {"best_epoch": 8}, "epochs": 10},
        "report": {"report": "/run/report.html"},
        "promote": {"why": "not promoted: worse", "promoted": False},
    }
    client = SimpleNamespace(xcom=lambda _run, task, **_: returned.get(task))
    assert results(client, "run") == [
        "Dataset:       /d",
        "Card:          file:///d/card.html",
        "Report:        file:///run/report.html",
        "Test:          93.1% accuracy; best epoch: 8 of 10",
        "Promotion:     not promoted: worse",
    ]
