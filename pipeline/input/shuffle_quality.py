"""Measures how near the order of training is to a perfect shuffle, with the buffer of the settings and with others.

A poor shuffle does harm in two ways. If the class mix of a batch differs from that of the whole, the weights are pulled
to and fro. If examples meet the same batch-mates in every epoch, they teach less. Both are measured on the order
itself: the stages of training run on the numbers of the examples instead of their records.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.automatic import TrainingSettings, with_automatic_values
from pipeline.config.example_kinds import IMAGES
from pipeline.config.settings import Settings
from pipeline.dataset import manifest as datasets
from pipeline.dataset.manifest import Dataset, Split
from pipeline.dataset.unreadable import read_record
from pipeline.errors import DatasetError, SettingsError
from pipeline.input.options import BatchOptions, batch_options
from pipeline.input.order import order_of_training
from pipeline.input.shard_pieces import buffered_bytes, shuffle_elements
from pipeline.input.tables import schema_of, value_of_text
from pipeline.records.format import read_image
from pipeline.records.tfrecord import read_records
from pipeline.storage import Place
from pipeline.system.progress import Advance, progress
from pipeline.tables.read import read_row

Numbers = NDArray[np.int64]
MAX_EXAMPLES = 1_000_000
"""Of a larger dataset, only the first shards are measured."""
BUFFERS = (1, 256, 1024, 4096, 16_384)
"""The table shows buffers of these sizes, in examples, beside the one of the settings."""
MEGABYTE = 1_000_000
MEGABYTES = tuple(2**power for power in range(17))
"""The advice is one of these sizes of the buffer. The last one is the largest that the setting allows."""
MAX_DISTANCE_RATIO = 1.1
"""A buffer is enough if the class distance is at most this many times that of a perfect shuffle."""
MAX_MEET_AGAIN = 1.5
"""A buffer is enough if batch-mates meet again at most this many times as often as by chance."""
_STRAYS = 2
"""The class distance may also exceed the ideal by this many standard deviations, which is chance."""
_MIN_PERMUTATIONS = 3
"""A standard deviation needs several permutations, also if one of them has enough batches."""
_IDEAL_BATCHES = 1000
"""The ideal is the mean over about this many batches: the few batches of a small epoch would give a poor estimate."""
_log = logging.getLogger(__name__)


def class_distance(labels: Numbers, batch_size: int) -> float:
    """Return how far the classes of a batch are from those of all batches, as a mean over the batches.

    The distance is half the sum of the differences of their shares: 0 for equal shares, 1 for no class in common.

    Args:
        labels: Label ids of the examples, from 0, in the order of training.
        batch_size: Number of examples in a batch.
    """
    shares = np.bincount(labels) / len(labels)
    batches = np.arange(len(labels)) // batch_size
    # Only the pairs of batch and class that occur: a table of all of them would take gigabytes.
    cells, counts = np.unique(batches * len(shares) + labels, return_counts=True)
    of_batch, of_class = np.divmod(cells, len(shares))
    sizes = np.bincount(batches)
    # The excess is half of the sum of all differences, because both shares add up to one.
    return float(np.maximum(counts / sizes[of_batch] - shares[of_class], 0).sum() / len(sizes))


def shuffled_class_distances(labels: Numbers, batch_size: int, seed: int) -> NDArray[np.float64]:
    """Return the same for perfect shuffles (random permutations): their mean is the ideal, their spread is chance."""
    random = np.random.default_rng(seed)
    permutations = max(_MIN_PERMUTATIONS, -(-_IDEAL_BATCHES * batch_size // len(labels)))
    return np.array([class_distance(random.permutation(labels), batch_size) for _ in range(permutations)])


def meet_again(first: Numbers, second: Numbers, batch_size: int) -> float:
    """Return how often two examples that share a batch in one epoch share one in the next, relative to chance.

    A perfect shuffle has 1. Chance is (B - 1) / (N - 1) in batches of B of N examples, and a little less if the last
    batch is not full.

    Args:
        first: Numbers of the examples, from 0, in the order of an epoch.
        second: The same in the order of the next epoch.
        batch_size: Number of examples in a batch.
    """
    in_first, in_second = (_batch_of_each(order, batch_size) for order in (first, second))
    mates = _pairs(np.bincount(in_first))
    _, together = np.unique(in_first * len(first) + in_second, return_counts=True)
    # By chance, a pair of batch-mates meets again with the probability mates / all pairs.
    return _pairs(together) * _pairs(np.array([len(first)])) / mates**2


def _batch_of_each(order: Numbers, batch_size: int) -> Numbers:
    batches = np.empty_like(order)
    batches[order] = np.arange(len(order)) // batch_size
    return batches


def _pairs(counts: Numbers) -> float:
    return float((counts * (counts - 1) // 2).sum())


def shuffle_quality(folder: Place, settings: Settings) -> dict[str, Any]:
    """Return the result of `python -m pipeline shuffle-quality`; `format_shuffle_quality` makes a table of it.

    `enough_megabytes` is the smallest buffer that is enough: 0 if none is needed, None if even
    the largest is not enough.

    Raises:
        DatasetError: If `folder` holds no whole dataset, no classes, or fewer than two training examples.
        SettingsError: If a batch has one example.
    """
    whole = datasets.load(folder)
    examples = whole.splits["train"].examples
    if examples < 2:
        raise DatasetError(f"{folder} holds {examples} training examples: an order needs at least two")
    settings = with_automatic_values(settings.model_copy(update={"example_kind": whole.kind}), examples)
    if settings.batch_size < 2:
        raise SettingsError(
            f"batch_size must be at least 2 to measure the order, got {settings.batch_size}: in a batch of one "
            "example, nothing is mixed"
        )
    if whole.table.get("task") == "regression":
        raise DatasetError(
            f"{folder} is a dataset for a regression, which has no classes whose order could be measured: a larger "
            "shuffle_megabytes shuffles the rows better"
        )
    datasets.require_shards(folder, whole)
    dataset = beginning_of(whole, MAX_EXAMPLES)
    _say_what_is_left_out(settings, dataset, whole)
    # Balancing reads labels, but the order is measured on numbers, which have none.
    options = replace(batch_options(settings), balanced=False)
    labels = _labels(folder, dataset)
    with progress("orders of training", 0, "orders") as advance:
        return {"dataset": str(folder), **_qualities(folder, dataset, options, labels, advance)}


def beginning_of(dataset: Dataset, max_examples: int) -> Dataset:
    """Return the dataset with its first training shards only: up to `max_examples` examples, but at least one shard."""
    split = dataset.splits["train"]
    ends = np.cumsum([shard.examples for shard in split.shards])
    shards = split.shards[: max(1, int(np.searchsorted(ends, max_examples, "right")))]
    examples, size = sum(shard.examples for shard in shards), sum(shard.bytes for shard in shards)
    return replace(dataset, splits={**dataset.splits, "train": Split(examples, size, split.classes, shards)})


def _say_what_is_left_out(settings: TrainingSettings, dataset: Dataset, whole: Dataset) -> None:
    seen, there = (each.splits["train"] for each in (dataset, whole))
    if seen.examples < there.examples:
        _log.info(
            "measuring the first %d of %d training shards: %d of %d examples",
            *(len(seen.shards), len(there.shards), seen.examples, there.examples),
        )
    # With random_resized, cache=auto keeps nothing, however much memory there is.
    keeps_nothing = settings.cache == "auto" and settings.crop == "random_resized"
    if settings.cache != "off" and not keeps_nothing and whole.kind == IMAGES:
        _log.info(
            "these are the orders with cache=off: if decoded images are kept, later epochs are shuffled completely "
            "with any buffer"
        )
    if settings.balanced:
        _log.info("balanced is ignored: this is the order before examples of rare classes are repeated")


def _labels(folder: Place, dataset: Dataset) -> Numbers:
    """Return the label of each training example, from 0; of several, the first."""
    split, label_of = dataset.splits["train"], _label_of(dataset)

    def labels(advance: Advance) -> Iterator[int]:
        for path in (folder / shard.name for shard in split.shards):
            for number, record in enumerate(read_records(path)):
                advance(1, len(record))
                yield read_record(label_of, record, dataset=dataset, path=path, number=number)

    with progress("labels", split.examples, "examples", split.bytes) as advance:
        return np.fromiter(labels(advance), np.int64, split.examples)


def _label_of(dataset: Dataset) -> Callable[[bytes], int]:
    """Return the function that returns the label of a record. It raises ValueError if the record is no example."""
    if dataset.kind == IMAGES:
        return lambda record: read_image(record, dataset.records).labels[0]
    schema = schema_of(dataset)
    # A record holds the value of the label, not its id.
    values = [value_of_text(schema.label, label) for label in dataset.labels]
    # A record stores a float in 32 bits.
    ids = {float(np.float32(each)) if isinstance(each, float) else each: id_ for id_, each in enumerate(values)}

    def label_of_row(record: bytes) -> int:
        [value] = read_row(record, schema)[schema.label.name]
        if value not in ids:
            raise ValueError(f"has the unknown label {value!r}")
        return ids[value]

    return label_of_row


def _qualities(
    folder: Place, dataset: Dataset, options: BatchOptions, labels: Numbers, advance: Advance
) -> dict[str, Any]:
    split = dataset.splits["train"]
    ideals = shuffled_class_distances(labels, options.batch_size, options.seed)
    ideal = float(ideals.mean())
    # The few batches of a small dataset exceed that ratio by chance, even if they are shuffled perfectly.
    farthest = max(MAX_DISTANCE_RATIO * ideal, ideal + _STRAYS * float(ideals.std()))

    # The table and the search for the smallest buffer measure some sizes twice.
    @cache
    def quality(elements: int) -> dict[str, Any]:
        """Return the measurements of two epochs with a buffer of `elements` examples."""
        size = elements * buffered_bytes(dataset)
        numbers = order_of_training(folder, dataset, replace(options, shuffle_bytes=size), epochs=2)
        # One array for each epoch: single numbers take ten times as long to come over from TensorFlow.
        first, second = numbers.batch(split.examples).as_numpy_iterator()
        distances = [class_distance(labels[order], options.batch_size) for order in (first, second)]
        again = meet_again(first, second, options.batch_size)
        advance(1)
        return {
            "examples": elements,
            "megabytes": size / MEGABYTE,
            "class_distance": sum(distances) / 2,
            "meet_again": again,
            # Such a buffer is a perfect shuffle, even if few examples measure worse.
            "holds_all": elements == split.examples,
        }

    def is_enough(elements: int) -> bool:
        # This is a perfect shuffle. Its measurement could fail by chance, and a larger buffer would not help.
        if elements == split.examples:
            return True
        result = quality(elements)
        return bool(result["class_distance"] <= farthest and result["meet_again"] <= MAX_MEET_AGAIN)

    set_one = shuffle_elements(dataset, options.shuffle_bytes)
    buffers = sorted({*(elements for elements in BUFFERS if elements < split.examples), set_one, split.examples})
    return {
        "examples": split.examples,
        "batch_size": options.batch_size,
        "shuffle_megabytes": options.shuffle_bytes // MEGABYTE,
        "shuffle_examples": set_one,
        "ideal_class_distance": ideal,
        "buffers": [quality(elements) for elements in buffers],
        "enough_megabytes": _enough_megabytes(dataset, is_enough),
    }


def _enough_megabytes(dataset: Dataset, is_enough: Callable[[int], bool]) -> int | None:
    if is_enough(1):
        return 0
    # A larger buffer shuffles better, so bisection finds the size with at most five measurements instead of 17.
    index = bisect_left(
        MEGABYTES, True, key=lambda megabytes: is_enough(shuffle_elements(dataset, megabytes * MEGABYTE))
    )
    return MEGABYTES[index] if index < len(MEGABYTES) else None


def format_shuffle_quality(result: Mapping[str, Any]) -> str:
    """Return the result as a table and a sentence."""
    return "\n".join(
        (
            f"{result['examples']} training examples in batches of {result['batch_size']}",
            "",
            "         buffer       | classes: distance | meet again,",
            f" examples          MB | (ideal {result['ideal_class_distance']:.3f})     | times chance",
            *(_row(buffer, result) for buffer in result["buffers"]),
            "",
            "distance: mean difference between the class shares of a batch and those of all examples; a perfect "
            "shuffle has the ideal.",
            "meet again: how often two examples of a batch share a batch again in the next epoch; 1 is pure chance.",
            _advice(result["enough_megabytes"]),
        )
    )


def _row(buffer: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    notes = ["no buffer"] if buffer["examples"] == 1 else ["all"] if buffer["holds_all"] else []
    if buffer["examples"] == result["shuffle_examples"]:
        notes.append(f"shuffle_megabytes={result['shuffle_megabytes']}, as set")
    figures = "{examples:9d} {megabytes:11.1f} | {class_distance:17.3f} | {meet_again:12.1f}".format_map(buffer)
    return f"{figures}  {', '.join(notes)}".rstrip()


def _advice(megabytes: int | None) -> str:
    if megabytes is None:
        return f"even shuffle_megabytes={MEGABYTES[-1]} is not enough: build the dataset again, which shuffles it"
    return f"{'' if megabytes else 'no buffer is needed: '}shuffle_megabytes={megabytes or 1} is enough"
