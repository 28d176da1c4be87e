"""What a published number relies on: rates and ratios, the alternating order, and that all contenders do all work."""

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.harness import rounds
from benchmarks.harness.rounds import Contender, measure_whole, note, rate_cells, turned


def contender(title: str = "ours", work_s: Sequence[float] = (), error: str = "") -> Contender:
    return Contender(
        title=title,
        writer=title,
        python=Path(sys.executable),
        jobs=[],
        images=100,
        makes=[],
        work_s=list(work_s),
        error=error,
    )


def test_a_rate_is_that_of_the_median_round_and_one_slow_round_does_not_change_it():
    assert contender(work_s=[2.0, 2.0, 50.0]).images_per_s == 50
    assert contender().images_per_s is None


def test_the_spread_is_half_of_the_distance_between_the_quartiles():
    assert contender(work_s=[8.0, 9.0, 10.0, 11.0, 12.0]).spread == pytest.approx(0.1)
    assert contender(work_s=[8.0]).spread is None


def test_a_ratio_is_above_one_if_a_contender_is_faster_than_the_base():
    fast, slow = contender(work_s=[1.0, 1.0]), contender(work_s=[4.0, 4.0])
    assert rate_cells(fast, slow) == ("100 ±0%", "400%")
    assert rate_cells(slow, fast) == ("25 ±0%", "25%")


def test_a_contender_that_failed_has_its_error_instead_of_a_number():
    base = contender(work_s=[1.0, 1.0])
    assert rate_cells(contender(work_s=[1.0, 1.0], error="gave 2 of 3 images"), base) == ("gave 2 of 3 images", "")
    assert rate_cells(None, base) == ("", "")
    assert rate_cells(base, contender(error="failed")) == ("100 ±0%", "")


def test_every_contender_takes_every_place_in_the_order_and_has_several_predecessors():
    names = ["a", "b", "c"]
    orders = [turned(names, number) for number in range(6)]
    assert all(sorted(order) == names for order in orders)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == {*names}
    pairs = {pair for order in orders for pair in pairwise(order)}
    assert len(pairs) == 6
    assert turned([], 3) == []


def test_two_contenders_alternate():
    assert ["".join(turned("ab", number)) for number in range(4)] == ["ab", "ba", "ba", "ab"]


def test_contenders_alternate_and_one_that_failed_is_measured_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    order = []

    def whole(each: Contender, _: Path) -> float:
        order.append(each.title)
        each.error = "failed" if each.title == "c" else ""
        return 1.0

    monkeypatch.setattr(rounds, "whole", whole)
    measured = [contender(title) for title in "abc"]
    measure_whole(measured, 4, tmp_path)
    assert "".join(order) == "abc" + "ba" + "ba" + "ab"
    assert [len(each.whole_s) for each in measured] == [4, 4, 1]


def test_all_processes_of_a_contender_count_and_one_that_died_is_an_error():
    ours = contender()
    note(ours, [json.dumps({"peak_mb": 10.0, "seen": 1}).encode(), json.dumps({"peak_mb": 5.0, "seen": 2}).encode()])
    assert (ours.peak_mb, ours.seen, ours.error) == (15, [1, 2], "")
    note(ours, [json.dumps({"peak_mb": 1.0}).encode(), b""])
    assert (ours.peak_mb, ours.error) == (15, "failed (it died: see the log)")
