"""Process a stream with several threads."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from resource import RUSAGE_THREAD, getrusage
from threading import Thread
from typing import Any, NamedTuple, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WAITING_BYTES = 512_000_000
"""The threads of one reader hold at most this many bytes of images, including results that wait to be used."""


class _UnderWay(NamedTuple):
    future: Future[Any]
    size: int
    """Bytes that the item takes in memory until its result is used."""


def ordered_map(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    under_way: int | None = None,
    size_of: Callable[[Item], int] = lambda _: 0,
) -> Iterator[Result]:
    """Yield the results of `work` in the order of `items`.

    `Executor.map` submits all items at once. This function keeps at most `under_way` of them submitted (by default four
    for each thread), so that a listing of ten million stays a stream. Together they take at most MAX_WAITING_BYTES.
    `size_of` returns the bytes of an item. An item that is larger than MAX_WAITING_BYTES is processed alone.
    """
    max_waiting = under_way or 4 * threads
    waiting: deque[_UnderWay] = deque()
    held = 0
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            size = size_of(item)
            # Wait for memory here, in the order of the items. If the threads waited, the first item could starve.
            while waiting and (len(waiting) >= max_waiting or held + size > MAX_WAITING_BYTES):
                yield waiting[0].future.result()
                held -= waiting.popleft().size
            waiting.append(_UnderWay(pool.submit(work, item), size))
            held += size
        while waiting:
            yield waiting.popleft().future.result()
    except GeneratorExit:
        # The caller does not need the rest. The garbage collector may close this generator within a thread that is just
        # starting. To wait for other threads there would never end.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    except BaseException:
        # Without the cancellation, all submitted items would be processed before the error is raised.
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def map_in_threads_if_slow(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    many_waits: int,
    size_of: Callable[[Item], int] = lambda _: 0,
) -> Iterator[Result]:
    """Do the same as `ordered_map`, but without threads until one item takes `many_waits` waits or more.

    For work that does not wait, such as reading files that are in memory, several threads take longer than one, because
    they wait for each other. A slow disk or network file system lets a thread wait for nearly each file.
    """
    rest = iter(items)
    for item in rest:
        before = _waits()
        result = work(item)
        is_slow = _waits() - before >= many_waits
        yield result
        if is_slow:
            break
    yield from ordered_map(work, rest, threads, size_of=size_of)


def _waits() -> int:
    """Return how often this thread has waited. It does not count how often another process took its core."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def items_ahead(items: Iterable[Item], count: int) -> Generator[Item]:
    """Yield the same items; a thread takes the next `count` of them while the caller uses one.

    No item may be None. An error comes with the item that it belongs to. `close()` ends the thread.
    """
    thread = ThreadPoolExecutor(1, "items-ahead")
    try:
        iterator = iter(items)
        # The end is None: in a generator, a StopIteration that `result` raises would become a RuntimeError.
        waiting = deque(thread.submit(next, iterator, None) for _ in range(count))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(next, iterator, None))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)


class OneBehind:
    """A thread that does one piece of work at a time, beside the block of this context manager.

    An error of the work is raised once: when the next work is submitted, or at the end of the block. If the block
    itself fails, the work that was submitted is still done.
    """

    def __init__(self, name: str = "one-behind") -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._done: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._thread:  # Waits for the work.
            if kind is None:
                self.wait()

    def wait(self) -> None:
        """Wait until the submitted work is done. Raises its error."""
        # Cleared first, so that an error is raised once, and the next work can be submitted.
        done, self._done = self._done, None
        if done:
            done.result()

    @property
    def is_busy(self) -> bool:
        """Whether work is being done."""
        return self._done is not None and not self._done.done()

    def submit(self, work: Callable[[], None]) -> None:
        """Begin this work when the work before it is done, for which the caller waits."""
        self.wait()
        self._done = self._thread.submit(work)


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """Return the result of `work`, which has no time limit of its own. Raises TimeoutError after `seconds`.

    After the limit, `work` continues in its thread, and nobody waits for it. It ends with the process at the latest.
    """
    done = start_in_thread(work, "within")
    wait([done], seconds)
    if not done.done():
        raise TimeoutError(f"no result within {seconds:g} s")
    return done.result()


def start_in_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Begin `work` in a daemon thread of this name, which does not keep the process alive."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller that waits for the result gets it
            done.set_exception(error)

    # An executor would not do: the interpreter waits for its threads before it ends.
    Thread(target=run, name=name, daemon=True).start()
    return done
