"""Ids of labels and of the texts of a table. Models take ids in place of texts, because no accelerator holds strings.

The ids of a column of texts follow from its facts, `preprocessing` of `dataset.json`. Id 0 is a missing text, which is
empty. If the facts list texts, the listed texts have the ids from 2 on, without an empty one, and id 1 is any other
text. If the texts are hashed, the ids from 1 on are the buckets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_MISSING, _UNKNOWN, _FIRST = 0, 1, 2
"""The ids of a missing text, of a text outside the vocabulary, and of the first text of the vocabulary."""
_MAX_HASH = 2**62
"""Equal hashes of two values are as good as impossible below this number."""


def id_count(facts: Mapping[str, Any]) -> int:
    """Return the number of ids of a column of texts, whose ids are all smaller."""
    return int(facts["hash_buckets"] + 1 if "hash_buckets" in facts else _FIRST + len(_listed(facts)))


def text_ids(facts: Mapping[str, Any], texts: tf.Tensor) -> tf.Tensor:
    """Return the ids (int64) of texts (string, any shape), as the facts of their column give them."""
    if "hash_buckets" in facts:
        buckets = 1 + tf.strings.to_hash_bucket_fast(texts, facts["hash_buckets"])
        return tf.where(tf.equal(texts, ""), tf.constant(_MISSING, tf.int64), buckets)
    listed = _listed(facts)
    values = np.array([b"", *(text.encode("utf-8", "surrogateescape") for text in listed)], object)
    ids, is_known = Ids(values, [_MISSING, *range(_FIRST, _FIRST + len(listed))]).of(texts)
    return tf.where(is_known, ids, tf.constant(_UNKNOWN, tf.int64))


def _listed(facts: Mapping[str, Any]) -> Sequence[str]:
    return [text for text in facts["vocabulary"] if text]


class Ids:
    """Finds ids by values, in a sorted list. A hash table would be a resource of TensorFlow."""

    def __init__(self, values: NDArray[Any], ids: Sequence[int]) -> None:
        """Take at least one value, without repeats, of any dtype of TensorFlow (strings: object)."""
        # Arrays of NumPy, because TensorFlow could place its own constants on a GPU, which no input pipeline reads.
        with tf.init_scope():
            keys = _keys(tf.constant(values)).numpy()
        order = np.argsort(keys)
        self._keys, self._ids = keys[order], np.array(ids, np.int64)[order]

    def of(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the ids (int64) of values, and which of them have one (bool), all of the shape of the values."""
        keys = tf.reshape(_keys(values), [-1])
        place = tf.minimum(tf.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_known = tf.equal(tf.gather(self._keys, place), keys)
        shape = tf.shape(values)
        return tf.reshape(tf.gather(self._ids, place), shape), tf.reshape(is_known, shape)


def _keys(values: tf.Tensor) -> tf.Tensor:
    """Return numbers that can be sorted: the values, or the hashes of strings."""
    return tf.strings.to_hash_bucket_fast(values, _MAX_HASH) if values.dtype == tf.string else values
