"""The trend of a dataset name: which training is worse than its predecessors beyond noise."""

from random import Random
from typing import Any

import pytest

from pipeline.watch.summary import Summary
from pipeline.watch.trend import MIN_PREDECESSORS, Point, point_of, warnings


def points(speeds: list[float | None], waits: list[float | None] | None = None) -> list[Point]:
    return [Point("work", wait, speed) for speed, wait in zip(speeds, waits or [None] * len(speeds), strict=True)]


def test_a_slower_training_is_marked_with_the_numbers_of_its_predecessors():
    found = warnings(points([800.0, 810.0, 795.0, 820.0, 805.0, 410.0, 803.0]))
    sentence = "It takes 410 examples a second; the 5 trainings before took 795 to 820."
    assert found == [*5 * [{}], {"speed": sentence}, {}]


def test_a_training_that_waits_more_is_marked():
    found = warnings(points([None] * 7, [0.03, 0.04, 0.03, 0.05, 0.031, 0.24, 0.03]))
    expected = "It waits for data in 24% of the step time; the 5 trainings before waited in 3.0% to 5.0%."
    assert found == [*5 * [{}], {"wait": expected}, {}]


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ([800.0] * (MIN_PREDECESSORS - 1), 100.0),  # too few predecessors
        ([800.0] * 5, 730.0),  # less than 10% slower
        ([800.0, 500.0, 900.0, 650.0, 760.0], 480.0),  # within the noise
        ([800.0, 300.0, 800.0, 800.0, 800.0], 400.0),  # one of them was even slower
        ([800.0] * 5, 1600.0),  # faster
    ],
)
def test_noise_and_small_differences_are_not_marked(before: list[float], value: float):
    assert not any(warnings(points([*before, value])))


def test_only_trainings_with_the_same_work_are_compared():
    before = points([800.0] * 5)
    assert not any(warnings([*before, Point("larger images", None, 200.0)]))
    assert warnings([*before, *points([200.0])])[-1]


@pytest.mark.parametrize(
    "settings", [{"micro_batches": 2}, {"balanced": True}, {"shuffle_megabytes": 64}, {"drop_columns": "id"}]
)
def test_a_setting_that_changes_the_step_or_its_input_is_other_work(settings: dict[str, Any]):
    known = Summary("trained", changed={"learning_rate": 0.1})
    assert point_of(Summary("trained", changed=settings)).work != point_of(known).work
    assert point_of(Summary("trained", changed={})).work == point_of(known).work


def test_the_newest_predecessors_count():
    """After ten trainings on a slower machine, its speed is the usual one."""
    found = warnings(points([800.0] * 10 + [400.0] * 12))
    assert found[10]
    assert not any(found[20:])


@pytest.mark.parametrize(("noise", "most"), [(0.02, 0.0), (0.05, 0.01), (0.15, 0.02)])
def test_trainings_that_differ_by_chance_alone_are_seldom_marked(noise: float, most: float):
    random = Random(1)
    marked = checked = 0
    for _ in range(200):
        speeds = [800 * (1 + random.gauss(0, noise)) for _ in range(30)]
        found = warnings(points(speeds))
        marked += sum(map(bool, found))
        checked += len(found) - MIN_PREDECESSORS
    assert marked / checked <= most


def test_a_training_at_half_of_the_speed_is_marked_despite_noise():
    random = Random(2)
    found = [
        warnings(points([*(800 * (1 + random.gauss(0, 0.05)) for _ in range(10)), 400.0]))[-1] != {} for _ in range(200)
    ]
    assert sum(found) >= 198
