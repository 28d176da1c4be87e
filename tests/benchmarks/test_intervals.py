"""The simulation of the intervals of figures."""

import pytest

from benchmarks import intervals


def test_a_quick_simulation_prints_a_row_for_each_figure(capsys: pytest.CaptureFixture[str]):
    intervals.main(["--quick"])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| figure | 20 examples | 40 examples |"
    names = {row.split(" | ")[0] for row in rows}
    for name in ("images, one label: top-5 accuracy", "table, a number: R²", "table, two classes in groups: log loss"):
        assert f"| {name}" in names
    assert len(rows) == len(names) == 40
