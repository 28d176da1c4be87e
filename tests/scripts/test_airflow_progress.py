import io
from typing import Any

import pytest

from scripts.airflow.progress import Lines, Region, Stage, clock, stages_of, write


def task(task_id: str, state: str | None, begin: int | None = None, end: int | None = None, part: int = -1) -> Any:
    times = [None if second is None else f"2026-01-02T03:04:{second:02}.000000Z" for second in (begin, end)]
    return {"task_id": task_id, "state": state, "map_index": part, "start_date": times[0], "end_date": times[1]}


@pytest.mark.parametrize(
    ("instances", "texts"),
    [
        ([task("extract", None), task("train", None)], []),
        ([task("extract", "queued")], []),
        ([task("extract", "running", 1)], ["running"]),
        ([task("extract", "success", 1, 4)], ["done, 3 s"]),
        ([task("extract", "skipped")], []),  # complete already: nothing of it began
        ([task("extract", "up_for_retry", 1, 2)], ["failed, Airflow will retry it"]),
        ([task("extract", "failed", 1, 4), task("train", "upstream_failed")], ["failed, 3 s"]),
        (
            [task("write", "success", 1, 2, 0), task("write", "running", 1, None, 1), task("write", None, part=2)],
            ["running, 1 of 3 tasks done"],
        ),
        ([task("write", "success", 1, 2, 0), task("write", "success", 3, 9, 1)], ["done, 2 of 2 tasks done, 8 s"]),
        ([task("write", "success", 1, 2, 0), task("write", "queued", part=1)], ["waiting, 1 of 2 tasks done"]),
        ([task("train", "running", 1)], ["running, epoch 2/3 loss 0.5"]),
        ([task("train", "success", 1, 2)], ["done, 1 s"]),
    ],
)
def test_text_of_stages(instances: list[Any], texts: list[str]) -> None:
    assert [stage.text for stage in stages_of(instances, {"train": "epoch 2/3 loss 0.5"})] == texts


def test_stages_are_sorted_by_their_start() -> None:
    instances = [task("train", "running", 9), task("extract", "success", 1, 2), task("copy", "success", 3, 4)]
    assert [stage.name for stage in stages_of(instances, {})] == ["extract", "copy", "train"]


def test_lines_show_only_what_changed() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.show([Stage("extract", "running")], 1)
    lines.show([Stage("extract", "running")], 2)
    lines.show([Stage("extract", "done"), Stage("train", "running")], 63)
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["0:01", "extract", "running"],
        ["1:03", "extract", "done"],
        ["1:03", "train", "running"],
    ]


def test_region_overwrites_exactly_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    region = Region(stream)
    region.show([Stage("extract", "running, with a text that is wider than the terminal")], 1)
    first = stream.getvalue()
    region.show([Stage("extract", "done")], 2)
    assert all(len(line) < 30 for line in first.splitlines())
    assert stream.getvalue()[len(first) :].startswith(f"\x1b[{first.count(chr(10))}F\x1b[J")


def test_region_is_no_higher_than_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "5")
    stream = io.StringIO()
    Region(stream).show([Stage(f"2026-01-{day:02}", "done") for day in range(1, 31)], 1)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        "2026-01-28",
        "2026-01-29",
        "2026-01-30",
        "0:01",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.9, "1:05"), (3661, "1:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


class Gone(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError


def test_a_closed_output_raises_no_error() -> None:
    write(Gone(), "Stopping Airflow\n")
