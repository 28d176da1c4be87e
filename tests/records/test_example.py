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


@pytest.mark.parametrize(
    "damaged",
    [b"\x0a\xff", b"\x08", b"\x0c", b"\x02\x00", b"\x0d\x00", b"\x0b", b"\x0b\x14", b"\x0a", b"\x0a" + b"\xff" * 11],
)
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
        b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x04\x1a\x03\x0a\x01\x07",  # a list that ends after its feature
        b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x02\x0a\x01\x07",  # a number that ends after its list
    ],
)
def test_messages_of_other_programs_are_refused(message: bytes):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        example.parse(message)


def varint(number: int) -> bytes:
    """Return the encoding of a number of protobuf."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes, wire_type: int = 2) -> bytes:
    """Return a field: of bytes with their length, or of content that is encoded already."""
    return varint(number << 3 | wire_type) + (varint(len(content)) if wire_type == 2 else b"") + content


def group(number: int, content: bytes) -> bytes:
    return field(number, content + field(number, b"", 4), 3)


def entry(key: bytes, feature: bytes) -> bytes:
    """Return a tf.train.Example with one feature."""
    return field(1, field(1, field(1, key) + field(2, feature)))


UNPACKED = b"".join(field(1, varint(number), 0) for number in (1, 300, 2**64 - 5))
FLOATS = field(1, b"\0\0\0\x3f", 5) + field(1, b"\0\0\x80\x3f", 5)
MESSAGES = {
    "unpacked numbers": entry(b"a", field(3, UNPACKED)),
    "unpacked floats": entry(b"a", field(2, FLOATS)),
    "packed and unpacked": entry(b"a", field(3, field(1, b"\7\x08") + UNPACKED + field(1, b"\x09"))),
    "unknown in a list": entry(b"a", field(3, field(1, b"\7") + field(2, b"\x08") + field(3, b"\1", 0))),
    "unknown in a list of bytes": entry(b"a", field(1, field(1, b"x") + field(2, b"y") + field(1, b"\1", 0))),
    "unknown in a feature": entry(b"a", field(9, b"zzz") + field(3, field(1, b"\7")) + field(4, b"z" * 8, 1)),
    "unknown beside the entries": field(1, field(2, b"?") + field(1, field(1, b"a"))),
    "unknown beside the features": field(3, b"?") + entry(b"a", field(3, field(1, b"\7"))) + field(5, b"\7", 0),
    "a number above 15": field(3000, b"?" * 200) + entry(b"a", field(3, field(1, b"\7"))),
    "a group": group(4, field(1, b"?") + group(5, field(7, b"\1", 0))) + entry(b"a", field(3, field(1, b"\7"))),
    "a list of a fourth kind": entry(b"a", field(4, field(1, b"\0\0"))),
    "a list of another wire type": entry(b"a", field(3, b"\7", 0) + field(2, b"\0\0\0\0", 5)),
    "lists of two kinds": entry(b"a", field(3, field(1, b"\7")) + field(1, field(1, b"x"))),
    "a list in two parts": entry(b"a", field(3, field(1, b"\7")) + field(3, field(1, b"\x08"))),
    "a value in two parts": field(
        1, field(1, field(1, b"a") + field(2, field(3, field(1, b"\7"))) + field(2, field(3, field(1, b"\x08"))))
    ),
    "a name twice": entry(b"a", field(3, field(1, b"\7"))) + entry(b"a", field(3, field(1, b"\x08"))),
    "a value before its name": field(1, field(1, field(2, field(3, field(1, b"\7"))) + field(1, b"a"))),
    "no name": field(1, field(1, field(2, field(3, field(1, b"\7"))))),
    "a number of 70 bits": entry(b"a", field(3, field(1, b"\xff" * 9 + b"\x7f"))),
    "only unknown": field(3, b"") + field(7, b"\1", 0),
}


def features_by_tensorflow(message: bytes) -> dict[str, tuple[str, list]]:
    import tensorflow as tf

    features = tf.train.Example.FromString(message).features.feature
    kinds = {name: feature.WhichOneof("kind") or "" for name, feature in features.items()}
    return {
        name: (kind.removesuffix("_list"), list(getattr(features[name], kind).value) if kind else [])
        for name, kind in kinds.items()
    }


def features_of(message: bytes) -> dict[str, tuple[str, list]]:
    return {name: (kind, list(values)) for name, (kind, values) in example.parse(message).features.items()}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_unusual_messages_are_read_as_protobuf_defines_them(message: bytes):
    assert features_of(message) == features_by_tensorflow(message)


def test_an_unknown_field_in_the_entry_of_a_map_is_skipped():
    """The runtime of protobuf for Python leaves out the whole entry instead. TensorFlow refuses the record."""
    message = field(1, field(1, field(1, b"a") + field(3, b"?") + field(2, field(3, field(1, b"\7")))))
    assert features_of(message) == {"a": ("int64", [7])}


def test_steps_are_read_as_protobuf_defines_them():
    steps = field(1, field(3, UNPACKED)) + field(2, b"?") + field(1, field(3, field(1, b"\7")))
    message = field(2, field(1, field(1, b"s") + field(2, steps) + field(3, b"?"))) + field(9, b"?")
    found = (example.parse(message).feature_lists or {})["s"]
    assert [(kind, list(values)) for kind, values in found] == [("int64", [1, 300, -5]), ("int64", [7])]


def test_random_fields_are_read_as_protobuf_defines_them():
    chosen = random.Random(0)

    def unknown() -> bytes:
        number = chosen.choice([4, 9, 15, 16, 3000])
        return chosen.choice(
            [
                field(number, varint(chosen.randrange(2**40)), 0),
                field(number, bytes(8), 1),
                field(number, b"?" * chosen.choice([0, 3, 130])),
                group(number, field(1, b"?")),
                field(number, bytes(4), 5),
                b"",
            ]
        )

    def mixed(*fields: bytes) -> bytes:
        return b"".join(unknown() + each for each in fields) + unknown()

    def of_numbers() -> bytes:
        values = [varint(chosen.choice([0, 7, 127, 128, 2**64 - 1])) for _ in range(chosen.randrange(4))]
        return chosen.choice([field(1, b"".join(values)), b"".join(field(1, value, 0) for value in values)])

    def of_floats() -> bytes:
        values = [bytes([0, 0, chosen.choice([0, 128]), 63]) for _ in range(chosen.randrange(4))]
        return chosen.choice([field(1, b"".join(values)), b"".join(field(1, value, 5) for value in values)])

    def one_list() -> bytes:
        kind = chosen.choice([1, 2, 3])
        content = {1: lambda: field(1, b"x" * chosen.choice([0, 5, 200])), 2: of_floats, 3: of_numbers}[kind]
        return field(kind, mixed(*(content() for _ in range(chosen.randrange(3)))))

    for _ in range(2000):
        features = (mixed(*(one_list() for _ in range(chosen.choice([0, 1, 1, 2])))) for _ in range(3))
        named = zip((b"a", b"a", b"b"), features, strict=True)
        entries = (field(1, field(1, name) + field(2, feature)) for name, feature in named)
        message = mixed(field(1, mixed(*entries)))
        assert features_of(message) == features_by_tensorflow(message)
