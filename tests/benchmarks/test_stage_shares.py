"""The benchmark of the stages of the input: its table, and when it fails."""

import sys
from typing import Any

import pytest

from benchmarks import stage_shares

IMAGES = {"read": 0.1, "parse": 0.1, "decode": 0.6, "resize": 0.1, "batch": 0.1}
ROWS = {"read": 0.2, "parse": 0.5, "batch": 0.3}
SAVED = "2.1 points | 105% | "


@pytest.mark.parametrize(("removed", "exit_code"), [(0.28, 0), (0.36, 1)])
def test_the_table_has_a_column_for_each_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], removed: float, exit_code: int
) -> None:
    def compared(folder: Any, *_: object) -> dict[str, dict[str, float]]:
        measured = IMAGES if folder.name == "photos" else ROWS
        return {
            "measured": measured,
            "removed": measured | ({"batch": removed} if measured is ROWS else {}),
            "saved": {"in_all": 1.05, "by_nothing": 0.021},
            "us": {"measured": 812.4, "whole": 790.6, "cpu_s": 3.0},
        }

    jobs = {name: (lambda root, name=name: root / name, None) for name in ("photos", "rows")}
    monkeypatch.setattr(stage_shares, "JOBS", jobs)
    monkeypatch.setattr(stage_shares, "compared", compared)
    monkeypatch.setattr(stage_shares, "open_unless_set", lambda: None)  # It changes the environment.
    monkeypatch.setattr(sys, "argv", ["stage_shares"])
    assert stage_shares.main() == exit_code
    header, rule, photos, rows = capsys.readouterr().out.splitlines()[-4:]
    assert header.startswith("| job | read | parse | decode | resize | batch | ")
    assert {line.count("|") for line in (header, rule, photos, rows)} == {12}
    times = f"{SAVED}812 (791) µs | 3.0 s |"
    assert photos == f"| photos | 10% (10%) | 10% (10%) | 60% (60%) | 10% (10%) | 10% (10%) | 0.0 points | {times}"
    shown = f"30% ({removed:.0%}) | {100 * abs(0.3 - removed):.1f} points"
    assert rows == f"| rows | 20% (20%) | 50% (50%) |  |  | {shown} | {times}"
