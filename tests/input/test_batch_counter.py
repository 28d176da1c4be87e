"""The count of ready batches."""

import tensorflow as tf

from pipeline.input.batch_counter import BatchCounter


def test_ready_batches_are_counted_in_percent_of_the_capacity():
    counter = BatchCounter(capacity=4)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # A prefetched batch would count.
    batches = iter(counter.counted(tf.data.Dataset.range(100).map(lambda n: (n, n))).with_options(options))
    assert counter.ready_pct(taken=0) == 0
    taken = [next(batches) for _ in range(3)]
    assert [int(first) for first, _ in taken] == [0, 1, 2]
    assert counter.ready_pct(taken=1) == 50
    assert counter.ready_pct(taken=3) == 0
    for _ in range(10):
        next(batches)
    assert counter.ready_pct(taken=1) == 100  # the maximum
    assert counter.ready_pct(taken=20) == 0  # A new attempt has not counted them.
