"""The step clock assigns each second of a loop to one part. Only the tests advance the time."""

import pytest

from pipeline.monitor.step_clock import StepClock, StepTimes


class Hands:
    """The readings of two clocks, set by the tests."""

    def __init__(self) -> None:
        self.now = self.paused = 0.0


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def clock(hands: Hands) -> StepClock:
    return StepClock(lambda: hands.now, lambda: hands.paused)


def test_each_part_gets_its_seconds(hands: Hands, clock: StepClock) -> None:
    clock.add_host()  # starts the clock
    for seconds, book in ((1, clock.add_wait), (2, clock.add_compute), (4, clock.add_host), (8, clock.add_checkpoint)):
        hands.now += seconds
        book()
    hands.now += 16
    clock.add_host()
    assert clock.take() == StepTimes(wait_s=1, compute_s=2, host_s=20, checkpoint_s=8)
    assert clock.take() == StepTimes()


def test_time_after_a_pause_is_not_counted(hands: Hands, clock: StepClock) -> None:
    clock.add_host()
    hands.now += 1
    clock.add_wait()
    clock.pause()
    hands.now, hands.paused = 100, 50
    clock.add_host()
    hands.now += 2
    clock.add_checkpoint()
    assert clock.take() == StepTimes(wait_s=1, checkpoint_s=2)


def test_paused_seconds_count_as_host_time(hands: Hands, clock: StepClock) -> None:
    clock.add_host()
    hands.now, hands.paused = 1, 3
    clock.add_compute()
    assert clock.take() == StepTimes(compute_s=1, host_s=3)
    assert clock.take() == StepTimes()
