"""Threads over a stream."""

from threading import Event

from pipeline.parallel import ordered_map, within


def test_results_come_in_the_order_of_the_items():
    assert list(ordered_map(lambda number: number * number, range(100), threads=4)) == [n * n for n in range(100)]


def test_closing_half_way_waits_for_no_thread():
    """The garbage collector closes it, too: in a thread that was just starting, the wait was seen to be for ever."""
    release = Event()
    results = ordered_map(lambda number: release.wait() if number else True, range(10), threads=2, under_way=2)
    try:
        assert next(results)
        within(5, results.close)
    finally:
        release.set()
