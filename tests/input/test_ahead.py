import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import tensorflow as tf

from pipeline.input import one_ahead

LIMIT_S = 10


def test_all_batches_come_in_their_order() -> None:
    assert list(one_ahead(range(10))) == list(range(10))
    assert list(one_ahead([])) == []


def test_the_next_one_is_taken_while_one_is_worked_on_and_no_more() -> None:
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


def test_an_error_comes_with_the_batch_it_belongs_to() -> None:
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
        assert any(thread.name.startswith("one-ahead") for thread in threading.enumerate())
    assert not any(thread.name.startswith("one-ahead") for thread in threading.enumerate())


@pytest.mark.parametrize("strategy", [tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy()])
def test_what_a_strategy_deals_out(strategy: tf.distribute.Strategy) -> None:
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(10).batch(2))
    dealt = [strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in one_ahead(batches)]
    assert dealt == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
