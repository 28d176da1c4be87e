"""Mapping a function over a stream with threads."""

from collections.abc import Callable, Iterable, Iterator
from threading import Barrier, Event, Lock, get_ident

import pytest

from pipeline.system import parallel
from pipeline.system.parallel import OneBehind, map_in_threads_if_slow, ordered_map, within


def test_results_come_in_the_order_of_the_items():
    assert list(ordered_map(lambda number: number * number, range(100), threads=4)) == [n * n for n in range(100)]


def test_closing_early_does_not_wait_for_threads():
    """The garbage collector can close it as well. In a thread that was just starting, such a wait never ended."""
    release = Event()
    results = ordered_map(lambda number: release.wait() if number else True, range(10), threads=2, under_way=2)
    try:
        assert next(results)
        within(5, results.close)
    finally:
        release.set()


class Held:
    """Counts the bytes held at once, from the start of the work on an item until its result was used."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = Lock()

    def change(self, size: int) -> None:
        with self._lock:
            self.now += size
            self.most = max(self.most, self.now)


@pytest.mark.parametrize(
    "sizes", [[60] * 200, [10, 300, 5, 5, 300, 300, 1, 90] * 20, [1000, 1000], [0] * 50, [100, 1] * 50]
)
def test_items_together_hold_no_more_than_the_limit(sizes: list[int], monkeypatch: pytest.MonkeyPatch):
    """An item that is larger than the limit is held alone. No item waits forever."""
    monkeypatch.setattr(parallel, "MAX_WAITING_BYTES", 100)
    held = Held()

    def work(size: int) -> int:
        held.change(size)
        return size

    results = ordered_map(work, sizes, 16, size_of=lambda size: size)
    assert within(20, lambda: list_of(results, held)) == sizes
    assert held.most <= max(100, *sizes)


def list_of(results: Iterator[int], held: Held) -> list[int]:
    found = []
    for size in results:
        found.append(size)
        held.change(-size)
    return found


def test_work_without_waits_is_done_by_the_caller():
    assert {*map_in_threads_if_slow(lambda _: get_ident(), range(100), threads=4, many_waits=2)} == {get_ident()}


def test_work_that_waits_is_done_by_several_threads_from_the_next_item_on():
    """The barrier is passed only if two threads work at once."""
    barrier, never = Barrier(2), Event()

    def work(number: int) -> tuple[int, bool]:
        for _ in range(3):
            never.wait(0.001)  # As for a file of a slow disk.
        if number:
            barrier.wait(20)
        return number, caller == get_ident()

    caller = get_ident()
    results = map_in_threads_if_slow(work, range(5), threads=2, many_waits=3)
    assert list(results) == [(0, True), (1, False), (2, False), (3, False), (4, False)]


class TestOneBehind:
    def test_work_is_done_in_order_beside_the_block(self):
        done: list[int] = []
        started, release = Event(), Event()

        def wait() -> None:
            started.set()
            release.wait()
            done.append(1)

        with OneBehind() as behind:
            behind.submit(wait)
            started.wait()
            assert not done
            release.set()
            behind.submit(lambda: done.append(2))
            assert done[0] == 1
        assert done == [1, 2]

    @pytest.mark.parametrize("works", [1, 2])
    def test_an_error_of_the_work_is_raised(self, works: int):
        def fail() -> None:
            raise ValueError("no space")

        with pytest.raises(ValueError, match="no space"):
            submit_all([fail, lambda: None][:works])

    def test_work_is_completed_if_the_block_fails(self):
        done: list[bool] = []
        release = Event()

        def works() -> Iterator[Callable[[], None]]:
            yield lambda: done.append(release.wait())
            release.set()
            raise ValueError("block")

        with pytest.raises(ValueError, match="block"):
            submit_all(works())
        assert done == [True]


def submit_all(works: Iterable[Callable[[], None]]) -> None:
    with OneBehind() as behind:
        for work in works:
            behind.submit(work)
