"""The ids of texts, which Keras finds in the same way."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.input.ids import id_count, text_ids

LISTED = {"vocabulary": ["b", "東京", "", "a", "two\nlines", "[UNK]", "long" * 1000, "zero\0"]}
HASHED = {"hash_buckets": 20}
TEXTS = [["", "a", "b"], ["東京", "c", "A"], ["a ", " ", "two\nlines"]]


def ids_of(facts: dict[str, Any], texts: Any) -> Any:
    return text_ids(facts, tf.constant(texts)).numpy().tolist()


def test_listed_texts_have_ids_of_their_own():
    assert ids_of(LISTED, TEXTS) == [[0, 4, 2], [3, 1, 1], [1, 1, 5]]
    assert ids_of(LISTED, LISTED["vocabulary"]) == [2, 3, 0, 4, 5, 6, 7, 8]
    assert id_count(LISTED) == 9


def test_the_ids_are_those_of_the_layers_of_keras():
    words = [text for text in LISTED["vocabulary"][:5] if text]
    lookup = keras.layers.StringLookup(vocabulary=words, mask_token="", oov_token="other")
    assert ids_of({"vocabulary": words}, TEXTS) == lookup(tf.constant(TEXTS)).numpy().tolist()
    hashing = keras.layers.Hashing(id_count(HASHED), mask_value="")
    assert ids_of(HASHED, TEXTS) == hashing(tf.constant(TEXTS)).numpy().tolist()
    assert id_count(HASHED) == 21


@pytest.mark.parametrize("facts", [LISTED, HASHED, {"vocabulary": []}, {"vocabulary": [""]}])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (2, 3)])
def test_ids_keep_the_shape_and_are_below_their_number(facts: dict[str, Any], shape: tuple[int, ...]):
    spec = tf.TensorSpec([None] * len(shape), tf.string)
    traced = tf.function(lambda texts: text_ids(facts, texts), input_signature=[spec])
    ids = traced(tf.fill(shape, "a"))
    assert (ids.shape, ids.dtype) == (shape, tf.int64)
    assert np.all((ids.numpy() >= 1) & (ids.numpy() < id_count(facts)))


def test_the_static_shape_of_a_batch_is_kept():
    batches = tf.data.Dataset.from_tensor_slices(["a", "b"]).batch(2, drop_remainder=True)
    assert batches.map(lambda texts: text_ids(LISTED, texts)).element_spec == tf.TensorSpec([2], tf.int64)
