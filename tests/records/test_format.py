import dataclasses
import gc
import weakref
from collections.abc import Callable

import pytest

from pipeline.images.examine import Examiner, Rules, UsableImage
from pipeline.records import example
from pipeline.records.format import MODEL_GARDEN, PLAIN, ImageEncoder, RecordFormat, as_file, read_image
from pipeline.sources import Box

LABELS = ["n01440764", "n01443537"]
TEXTS = {"n01440764": "tench, Tinca tinca", "n01443537": "goldfish"}
NAME = "Rosen/\udcff blühend.jpg".encode("utf-8", "surrogateescape")
BOX = Box(0.25, 0.0, 0.5, 1.0)


def image(encoded: bytes = b"\xff\xd8" + b"j" * 300, form: str = "JPEG", boxes: tuple[Box, ...] = ()) -> UsableImage:
    return UsableImage(encoded, form, 480, 640, boxes, "JPEG", None, None)


def record(form: RecordFormat, labels: tuple[str, ...] = (LABELS[1],), made: UsableImage | None = None) -> bytes:
    made = made or image()
    return ImageEncoder(form, LABELS, TEXTS if form.synsets else {}).encode(made, labels, NAME) + made.encoded


def test_tensorflow_parses_the_features_of_the_model_garden():
    import tensorflow as tf

    features = tf.train.Example.FromString(record(RecordFormat())).features.feature
    assert set(features) == set(RecordFormat().features())
    assert features["image/encoded"].bytes_list.value == [image().encoded]
    assert features["image/format"].bytes_list.value == [b"JPEG"]
    assert features["image/height"].int64_list.value == [480]
    assert features["image/width"].int64_list.value == [640]
    assert features["image/channels"].int64_list.value == [3]
    assert features["image/filename"].bytes_list.value == [NAME]
    assert features["image/class/label"].int64_list.value == [1]
    assert features["image/class/text"].bytes_list.value == [b"n01443537"]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"label_offset": 1}, {"image/class/label": [2]}),
        ({"synsets": True}, {"image/class/synset": [b"n01443537"], "image/class/text": [b"goldfish"]}),
        ({"feature_keys": "plain"}, {"class": [1], "label": [b"n01443537"], "height": [480], "channels": [3]}),
        (
            {"boxes": True},
            {
                "image/object/bbox/xmin": [0.25],
                "image/object/bbox/xmax": [0.5],
                "image/object/bbox/ymin": [0.0],
                "image/object/bbox/ymax": [1.0],
                "image/object/class/label": [1],
                "image/object/class/text": [b"n01443537"],
            },
        ),
        ({"boxes": True, "feature_keys": "plain"}, {"xmin": [0.25], "box_class": [1], "box_label": [b"n01443537"]}),
    ],
)
def test_format_options_add_or_rename_features(form: dict, expected: dict):
    made = RecordFormat(**form)
    features = example.decode(record(made, made=image(boxes=(BOX,))))
    assert expected.items() <= features.items()
    assert set(features) == set(made.features())


def test_an_image_can_have_several_labels():
    form = RecordFormat(multi_label=True)
    features = example.decode(record(form, labels=(LABELS[1], LABELS[0])))
    assert features["image/class/label"] == [1, 0]
    assert features["image/class/text"] == [b"n01443537", b"n01440764"]
    assert form.features()["image/class/label"] == "int64 list"


@pytest.mark.parametrize("keys", ["model_garden", "plain"])
def test_an_image_without_boxes_has_empty_lists_of_the_right_kind(keys: str):
    import tensorflow as tf

    form = RecordFormat(boxes=True, feature_keys=keys)
    kinds = {"float": tf.float32, "int64": tf.int64, "bytes": tf.string}
    features = {key: tf.io.VarLenFeature(kinds[form.features()[key].split()[0]]) for key in form.keys.of_boxes}
    parsed = tf.io.parse_single_example(record(form), features)
    assert [len(values.values) for values in parsed.values()] == [0] * 6
    assert set(example.decode(record(form))) == set(form.features())


def test_a_box_can_have_its_own_label():
    features = example.decode(record(RecordFormat(boxes=True), made=image(boxes=(BOX, BOX._replace(label=LABELS[0])))))
    assert features["image/object/class/label"] == [1, 0]


@pytest.mark.parametrize("keys", ["model_garden", "plain"])
@pytest.mark.parametrize("offset", [0, 1])
def test_an_image_survives_a_round_trip(keys: str, offset: int):
    form = RecordFormat(feature_keys=keys, label_offset=offset)
    read = read_image(record(form), form)
    assert (read.encoded, read.format, read.height, read.width) == (image().encoded, "JPEG", 480, 640)
    assert (read.labels, read.filename) == ((1,), NAME)


def test_raw_pixels_become_a_png_file():
    form = RecordFormat(pixels="raw")
    pixels = bytes(range(256)) * (480 * 640 * 3 // 256)
    read = read_image(record(form, made=image(pixels, "RAW")), form)
    assert read.encoded == pixels
    assert as_file(read).startswith(b"\x89PNG")


def test_the_error_for_an_incomplete_record_names_the_missing_features():
    form = RecordFormat()
    with pytest.raises(ValueError, match=r"lacks image/encoded, image/format, image/filename, image/width"):
        read_image(example.encode({"image/height": 1, "image/channels": 3, "image/class/label": 1}), form)


def test_no_two_features_share_a_name():
    for keys in (MODEL_GARDEN, PLAIN):
        names = dataclasses.astuple(keys)
        assert len(set(names)) == len(names)


def test_no_plain_name_is_left_at_its_default():
    assert not [name for name in dataclasses.astuple(PLAIN) if name.startswith("image/")]


@pytest.mark.parametrize("made", [lambda: ImageEncoder(RecordFormat(), LABELS, {}), lambda: Examiner(Rules())])
def test_what_is_remembered_of_the_images_of_a_shard_ends_with_it(made: Callable[[], object]):
    """In a process that writes many shards, 3 MB of each one would wait for the garbage collector."""
    gc.disable()
    try:
        owner = made()
        ended = weakref.ref(owner)
        del owner
        assert ended() is None
    finally:
        gc.enable()
