"""The format of an image in a record: the names of its features, the first label id, and encoding and compression.

The names are those of the ImageNet and detection scripts of the TensorFlow Model Garden, so that existing readers work
unchanged, or the short names that articles use.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, NamedTuple

from PIL import Image

from pipeline.images.examine import UsableImage
from pipeline.records import example
from pipeline.records.tfrecord import GZIP_SUFFIX

CACHE_ENTRIES = 4096
"""At most this many encoded parts of records of each kind are cached."""
_TYPES = {"bytes": bytes, "int64": int, "float": float}
"""The type of the values of a feature, by its kind."""


@dataclass(frozen=True, kw_only=True)
class FeatureKeys:
    """Names of the features. The defaults are those of the Model Garden."""

    encoded: str = "image/encoded"
    format: str = "image/format"
    height: str = "image/height"
    width: str = "image/width"
    channels: str = "image/channels"
    filename: str = "image/filename"
    label: str = "image/class/label"
    text: str = "image/class/text"
    synset: str = "image/class/synset"
    xmin: str = "image/object/bbox/xmin"
    ymin: str = "image/object/bbox/ymin"
    xmax: str = "image/object/bbox/xmax"
    ymax: str = "image/object/bbox/ymax"
    box_label: str = "image/object/class/label"
    box_text: str = "image/object/class/text"

    @property
    def of_boxes(self) -> tuple[str, ...]:
        """The features with one value for each box."""
        return (self.xmin, self.ymin, self.xmax, self.ymax, self.box_label, self.box_text)


MODEL_GARDEN = FeatureKeys()
PLAIN = FeatureKeys(
    encoded="image",
    format="format",
    height="height",
    width="width",
    channels="channels",
    filename="filename",
    label="class",
    text="label",
    synset="synset",
    xmin="xmin",
    ymin="ymin",
    xmax="xmax",
    ymax="ymax",
    box_label="box_class",
    box_text="box_label",
)


@dataclass(frozen=True)
class RecordFormat:
    """What a reader must know before it can read a record. Part of `dataset.json` as `records`."""

    feature_keys: Literal["model_garden", "plain"] = "model_garden"
    label_offset: int = 0
    """Id of the first label in the records. Everywhere else, ids begin at 0."""
    pixels: Literal["encoded", "raw"] = "encoded"
    """raw: height x width x 3 bytes, uint8 RGB row by row, instead of a JPEG or PNG."""
    compression: Literal["none", "gzip"] = "none"
    multi_label: bool = False
    boxes: bool = False
    synsets: bool = False
    """Whether labels are codes, which `synset` holds beside the words for people."""

    @property
    def keys(self) -> FeatureKeys:
        """The names of the features."""
        return MODEL_GARDEN if self.feature_keys == "model_garden" else PLAIN

    @property
    def ending(self) -> str:
        """The suffix of a shard."""
        return f".tfrecord{GZIP_SUFFIX if self.compression == 'gzip' else ''}"

    def features(self) -> dict[str, str]:
        """Return the type of each feature by name: "bytes" or "int64" for one value, or "bytes list" and so on."""
        keys, many = self.keys, " list" if self.multi_label else ""
        features = dict.fromkeys((keys.encoded, keys.format, keys.filename), "bytes")
        features |= dict.fromkeys((keys.height, keys.width, keys.channels), "int64")
        features |= {keys.label: f"int64{many}", keys.text: f"bytes{many}"}
        if self.synsets:
            features[keys.synset] = f"bytes{many}"
        if self.boxes:
            features |= dict.fromkeys(keys.of_boxes[:4], "float list")
            features |= {keys.box_label: "int64 list", keys.box_text: "bytes list"}
        return features


class ImageEncoder:
    """Turns images into records of one format. `labels` are ordered by id. `texts` has the names for people, by label.

    The image comes last in its record, so that its bytes are not copied. The parts that images of one class or of one
    size share are encoded once: encoding them for each image would take longer than reading a small image.
    """

    def __init__(self, form: RecordFormat, labels: Sequence[str], texts: Mapping[str, str]) -> None:
        self._form = form
        self._keys = keys = form.keys
        self._ids = {label: number + form.label_offset for number, label in enumerate(labels)}
        self._texts = texts
        kinds = form.features()
        self._no_boxes = b"".join(
            example.list_entry_head(key, kinds[key].removesuffix(" list"), 0) for key in keys.of_boxes if key in kinds
        )
        # Not methods: in a circle of references, the caches of each shard would stay until the garbage collector runs.
        self._labels = lru_cache(CACHE_ENTRIES)(partial(_encode_labels, form, self._ids, texts))
        self._shape = lru_cache(CACHE_ENTRIES)(partial(_encode_shape, keys))
        self._opening = lru_cache(CACHE_ENTRIES)(example.example_head)
        self._before_name = lru_cache(CACHE_ENTRIES)(partial(example.value_entry_head, keys.filename, "bytes"))
        self._before_image = lru_cache(CACHE_ENTRIES)(partial(example.value_entry_head, keys.encoded, "bytes"))

    def encode(self, image: UsableImage, labels: tuple[str, ...], filename: bytes) -> bytes:
        """Return the serialized tf.train.Example up to `image.encoded`, which is its end."""
        size = len(image.encoded)
        boxes = self._boxes(image, labels) if self._form.boxes else b""
        entries = b"".join(
            (
                self._labels(labels),
                self._shape(image.format, image.height, image.width),
                boxes,
                self._before_name(len(filename)),
                filename,
                self._before_image(size),
            )
        )
        return self._opening(len(entries) + size) + entries

    def _boxes(self, image: UsableImage, labels: tuple[str, ...]) -> bytes:
        keys, boxes = self._keys, image.boxes
        if not boxes:
            return self._no_boxes
        of_boxes = [box.label or labels[0] for box in boxes]
        return example.encode_entries(
            {
                keys.xmin: [float(box.xmin) for box in boxes],
                keys.ymin: [float(box.ymin) for box in boxes],
                keys.xmax: [float(box.xmax) for box in boxes],
                keys.ymax: [float(box.ymax) for box in boxes],
                keys.box_label: [self._ids[label] for label in of_boxes],
                keys.box_text: [text_bytes(self._texts.get(label, label)) for label in of_boxes],
            }
        )


def _encode_shape(keys: FeatureKeys, form: str, height: int, width: int) -> bytes:
    return b"".join(
        (
            example.cached_entry(keys.format, form.encode()),
            example.cached_entry(keys.height, height),
            example.cached_entry(keys.width, width),
        )
    )


def _encode_labels(
    form: RecordFormat, ids: Mapping[str, int], texts: Mapping[str, str], labels: tuple[str, ...]
) -> bytes:
    keys = form.keys
    features: dict[str, example.Feature] = {
        # Readers decode three channels, even if a gray image is stored with one.
        keys.channels: 3,
        keys.label: [ids[label] for label in labels],
        keys.text: [text_bytes(texts.get(label, label)) for label in labels],
    }
    if form.synsets:
        features[keys.synset] = [text_bytes(label) for label in labels]
    return example.encode_entries(features)


class RecordedImage(NamedTuple):
    """The image of a record. `labels` are ids from 0, whatever the offset in the record."""

    encoded: bytes
    format: str
    height: int
    width: int
    labels: tuple[int, ...]
    filename: bytes


def read_image(record: bytes, form: RecordFormat) -> RecordedImage:
    """Return the image of a record.

    Raises ValueError if the record is not a tf.train.Example, or with the names of the features that it lacks.
    """
    features, kinds, keys = example.decode(record), form.features(), form.keys
    # Lists, such as those of boxes, may be empty.
    missing = [name for name, kind in kinds.items() if not kind.endswith(" list") and len(features.get(name, [])) != 1]
    if missing or not features.get(keys.label):
        raise ValueError(f"lacks {', '.join(missing or [keys.label])}")
    for name, kind in kinds.items():
        if not all(isinstance(value, _TYPES[kind.removesuffix(" list")]) for value in features.get(name, ())):
            raise ValueError(f"does not hold values of type {kind} in {name!r}")
    return RecordedImage(
        encoded=features[keys.encoded][0],
        format=features[keys.format][0].decode(),
        height=features[keys.height][0],
        width=features[keys.width][0],
        labels=tuple(label - form.label_offset for label in features[keys.label]),
        filename=features[keys.filename][0],
    )


def as_file(image: RecordedImage) -> bytes:
    """Return the image as a JPEG or PNG file. Pixels are encoded as PNG."""
    if image.format != "RAW":
        return image.encoded
    buffer = io.BytesIO()
    Image.frombytes("RGB", (image.width, image.height), image.encoded).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def text_bytes(text: str) -> bytes:
    """Return a name as the bytes that the file system uses, which may not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")
