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


def test_each_part_gets_its_seconds_if_the_accelerator_waits_for_the_host(hands: Hands, clock: StepClock) -> None:
    clock.add_host()  # starts the clock
    for seconds, book in ((1, clock.add_wait), (4, clock.add_host), (8, clock.add_checkpoint)):
        hands.now += seconds
        book()
    hands.now += 16
    begun = clock.begin()
    assert clock.end(begun, hands.now + 2) == StepTimes(wait_s=1, compute_s=2, host_s=20, checkpoint_s=8)


@pytest.mark.parametrize(
    ("ended", "times"),
    [
        # The first step ends after: sent, wait, host work, checkpoint, the second step is sent.
        (10, StepTimes(wait_s=3, host_s=2, checkpoint_s=1, compute_s=4)),
        (12, StepTimes(wait_s=1, host_s=2, checkpoint_s=1, compute_s=4)),
        (14, StepTimes(host_s=1, checkpoint_s=1, compute_s=4)),
        (16, StepTimes(compute_s=4)),
        (18, StepTimes(compute_s=2)),
    ],
)
def test_a_moment_in_which_the_accelerator_computes_counts_as_compute(
    hands: Hands, clock: StepClock, ended: float, times: StepTimes
) -> None:
    hands.now = 10
    clock.add_host()
    first = clock.begin()
    for seconds, book in ((3, clock.add_wait), (2, clock.add_host), (1, clock.add_checkpoint)):
        hands.now += seconds
        book()
    second = clock.begin()
    assert hands.now == 16
    assert clock.end(first, ended) == StepTimes(compute_s=ended - 10)
    assert clock.end(second, 20) == times


def test_time_after_a_pause_is_not_counted(hands: Hands, clock: StepClock) -> None:
    clock.add_host()
    clock.end(clock.begin(), 1)
    hands.now = 1
    clock.pause()
    hands.now, hands.paused = 100, 50
    clock.add_host()
    hands.now += 2
    clock.add_checkpoint()
    assert clock.end(clock.begin(), 105) == StepTimes(compute_s=3, checkpoint_s=2)


def test_paused_seconds_count_as_host_time(hands: Hands, clock: StepClock) -> None:
    clock.add_host()
    begun = clock.begin()
    hands.now, hands.paused = 1, 3
    assert clock.end(begun, 1) == StepTimes(compute_s=1, host_s=3)
    assert clock.end(clock.begin(), 1) == StepTimes()


def test_the_times_of_steps_that_were_sent_together_are_shared_equally() -> None:
    assert StepTimes(4, 8, 12, 16).share(4) == StepTimes(1, 2, 3, 4)
