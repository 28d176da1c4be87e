import random

import pytest

from pipeline.records import example


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"a": 1, "b": b"x"}, {"a": [1], "b": [b"x"]}),
        ({"a": [0, 127, 128, 300, 2**40, -1, -(2**63)]}, {"a": [0, 127, 128, 300, 2**40, -1, -(2**63)]}),
        ({"a": [0.5, -2.0]}, {"a": [0.5, -2.0]}),
        ({"a": [b"", b"x" * 200]}, {"a": [b"", b"x" * 200]}),
        ({}, {}),
    ],
)
def test_features_survive_a_round_trip_and_tensorflow_agrees(features: dict, expected: dict):
    import tensorflow as tf

    encoded = example.encode(features)
    assert example.decode(encoded) == expected
    theirs = tf.train.Example.FromString(encoded).features.feature
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    assert {
        key: list(getattr(theirs[key], kinds[type(values[0])]).value) for key, values in expected.items()
    } == expected


def test_an_example_written_by_tensorflow_is_read():
    import tensorflow as tf

    message = tf.train.Example()
    message.features.feature["a"].int64_list.value.extend([1, -5])
    message.features.feature["b"].float_list.value.append(0.25)
    assert example.decode(message.SerializeToString()) == {"a": [1, -5], "b": [0.25]}


def test_equal_features_give_equal_bytes_whatever_their_order():
    assert example.encode({"b": 1, "a": 2}) == example.encode({"a": 2, "b": 1})


@pytest.mark.parametrize("length", [0, 1, 100, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_value_can_be_appended_without_a_copy(length: int):
    import tensorflow as tf

    value = b"x" * length
    entries = example.encode_entries({"a": [1, 2], "z": b"text"})
    entries += example.value_entry_head("image/encoded", "bytes", length)
    whole = example.example_head(len(entries) + length) + entries + value
    assert example.decode(whole) == {"a": [1, 2], "z": [b"text"], "image/encoded": [value]}
    assert tf.train.Example.FromString(whole).features.feature["image/encoded"].bytes_list.value == [value]


@pytest.mark.parametrize("key", ["a", "k" * 115, "k" * 20_000])
def test_the_heads_of_entries_are_those_of_encoded_features(key: str):
    for kind, value, content in (
        ("float", [0.5, 1.0], b"\0\0\0\x3f\0\0\x80\x3f"),
        ("int64", [1, 2], b"\1\2"),
        ("bytes", b"text", b"text"),
    ):
        head = example.value_entry_head(key, kind, len(content))
        assert head + content == example.encode_entries({key: value})
        empty = example.list_entry_head(key, kind, 0)
        assert example.decode(example.example_head(len(empty)) + empty) == {key: []}
    texts = b"".join(example.value_head(len(text)) + text for text in (b"", b"x" * 200))
    assert example.list_entry_head(key, "bytes", len(texts)) + texts == example.encode_entries({key: [b"", b"x" * 200]})


@pytest.mark.parametrize("damaged", [b"\x0a\xff", b"\x08\x01", b"\x0a", b"\x0a" + b"\xff" * 11])
def test_foreign_bytes_are_refused(damaged: bytes):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        example.decode(damaged)


def test_messages_of_tensorflow_are_parsed():
    import tensorflow as tf

    chosen = random.Random(0)
    for _ in range(300):
        count = chosen.choice([0, 1, 1, 2, 15, 40])
        values = chosen.choice(
            [
                [chosen.choice([0, 1, 127, 128, -1, 2**63 - 1, -(2**63)]) for _ in range(count)],
                [0.5 * chosen.randrange(10) for _ in range(count)],
                [b"x" * chosen.choice([0, 1, 10, 113, 122, 123, 124, 128, 20_000]) for _ in range(count)],
            ]
        )
        lists = {"int64_list": tf.train.Int64List, "float_list": tf.train.FloatList, "bytes_list": tf.train.BytesList}
        name = {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type((values or [0])[0])]
        feature = tf.train.Feature(**{name: lists[name](value=values)})
        key = "k" * chosen.choice([0, 1, 10, 127, 128, 300]) + chosen.choice(["", "ü"])
        features = tf.train.Features(feature={key: feature, "unset": tf.train.Feature()})
        expected = {key: (name.removesuffix("_list"), values), "unset": ("", [])}
        parsed = example.parse(tf.train.Example(features=features).SerializeToString())
        assert parsed.feature_lists is None
        assert {name: (kind, list(found)) for name, (kind, found) in parsed.features.items()} == expected
        steps = tf.train.FeatureLists(feature_list={"s": tf.train.FeatureList(feature=[feature, tf.train.Feature()])})
        message = tf.train.SequenceExample(context=features, feature_lists=steps).SerializeToString()
        assert example.parse(message).features == parsed.features
        ((kind, found), unset) = (example.parse(message).feature_lists or {})["s"]
        assert (kind, list(found), unset) == (*expected[key], ("", ()))


def test_random_damage_of_a_message_is_refused_or_parsed():
    whole = example.encode({"a": [1, 300], "b": 0.5, "c": b"text", "d": 7})
    chosen = random.Random(0)
    refused = 0
    for _ in range(5000):
        damaged = bytearray(whole[: chosen.randrange(len(whole) + 1)])
        for _ in range(chosen.randrange(1, 4) if damaged else 0):
            damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        try:
            example.parse(bytes(damaged))
        except ValueError:
            refused += 1
    assert 2500 < refused < 5000


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x12\x03\x0a\x01\0",  # a float of one byte
        b"\x0a\x0d\x0a\x0b\x0a\x01a\x12\x06\x22\x04\x0a\x02\0\0",  # a list of a fourth kind
        b"\x1a\x00",  # a third field
        b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x04\x1a\x03\x0a\x01\x07",  # a list that ends after its feature
        b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x02\x0a\x01\x07",  # a number that ends after its list
    ],
)
def test_messages_of_other_programs_are_refused(message: bytes):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        example.parse(message)
