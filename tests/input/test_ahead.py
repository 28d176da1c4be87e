import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import tensorflow as tf

from pipeline.input import one_ahead

LIMIT_S = 10


def test_one_ahead_keeps_the_order_of_batches() -> None:
    assert list(one_ahead(range(10))) == list(range(10))
    assert list(one_ahead([])) == []


def test_exactly_one_batch_is_taken_ahead() -> None:
    taken: list[int] = []
    second = threading.Event()

    def batches() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            if number == 1:
                second.set()
            yield number

    with closing(one_ahead(batches())) as ahead:
        assert next(ahead) == 0
        assert second.wait(LIMIT_S)
    assert taken == [0, 1]


def test_an_error_is_raised_in_place_of_its_batch() -> None:
    def batches() -> Iterator[int]:
        yield 0
        raise OSError("damaged")

    ahead = one_ahead(batches())
    assert next(ahead) == 0
    with pytest.raises(OSError, match="damaged"):
        next(ahead)


def test_closing_ends_the_thread() -> None:
    with closing(one_ahead(range(10))) as ahead:
        next(ahead)
        assert any(thread.name.startswith("items-ahead") for thread in threading.enumerate())
    assert not any(thread.name.startswith("items-ahead") for thread in threading.enumerate())


@pytest.mark.parametrize("strategy", [tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy()])
def test_one_ahead_returns_the_batches_of_a_strategy(strategy: tf.distribute.Strategy) -> None:
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(10).batch(2))
    dealt = [strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in one_ahead(batches)]
    assert dealt == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
