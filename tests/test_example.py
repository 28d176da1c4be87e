import pytest

from pipeline import example

IMAGE = {
    "encoded": b"\xff\xd8" + b"j" * 300,
    "image_format": "JPEG",
    "height": 480,
    "width": 640,
    "filename": "Rosen/\udcff blühend.jpg".encode("utf-8", "surrogateescape"),
    "label": 2,
    "text": "Rosen",
}


def test_tensorflow_parses_what_we_encode():
    import tensorflow as tf

    message = tf.train.Example.FromString(example.encode_image(**IMAGE))
    features = message.features.feature
    assert set(features) == set(example.IMAGE_FEATURES)
    assert features["image/encoded"].bytes_list.value == [IMAGE["encoded"]]
    assert features["image/format"].bytes_list.value == [b"JPEG"]
    assert features["image/height"].int64_list.value == [480]
    assert features["image/width"].int64_list.value == [640]
    assert features["image/channels"].int64_list.value == [3]
    assert features["image/filename"].bytes_list.value == [IMAGE["filename"]]
    assert features["image/class/label"].int64_list.value == [2]
    assert features["image/class/text"].bytes_list.value == [b"Rosen"]


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
def test_features_come_back_and_tensorflow_agrees(features: dict, expected: dict):
    import tensorflow as tf

    encoded = example.encode(features)
    assert example.decode(encoded) == expected
    theirs = tf.train.Example.FromString(encoded).features.feature
    kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    assert {
        key: list(getattr(theirs[key], kinds[type(values[0])]).value) for key, values in expected.items()
    } == expected


def test_what_tensorflow_writes_is_read():
    import tensorflow as tf

    message = tf.train.Example()
    message.features.feature["a"].int64_list.value.extend([1, -5])
    message.features.feature["b"].float_list.value.append(0.25)
    assert example.decode(message.SerializeToString()) == {"a": [1, -5], "b": [0.25]}


def test_equal_features_give_equal_bytes_whatever_their_order():
    assert example.encode({"b": 1, "a": 2}) == example.encode({"a": 2, "b": 1})


@pytest.mark.parametrize("damaged", [b"\x0a\xff", b"\x08\x01", b"\x0a", b"\x0a" + b"\xff" * 11])
def test_foreign_bytes_are_refused(damaged: bytes):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        example.decode(damaged)
