"""tfrecord: records of tf.train.Example with the bytes of an image, as of the Model Garden, of TFDS and of Tenfold."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pipeline.records.example import decode
from pipeline.records.format import MODEL_GARDEN, PLAIN
from pipeline.records.tfrecord import (
    FOOTER_BYTES,
    HEADER_BYTES,
    decompressed,
    has_valid_header,
    records_of,
    sizes_of_records,
)
from pipeline.sources import Box, Classes, Skipped, SourceOptions
from pipeline.sources.cells import labels_of, text_of
from pipeline.sources.container_formats import Bound, ContainedImage, ContainerFile, require_no_vector

NAMES = re.compile(r".+\.(tfrecords?|tfrec)(-\d+-of-\d+)?(\.gz)?")
IMAGE = ("image/encoded", "image", "image_raw", "encoded", "jpeg", "image/image")
LABEL = (
    *("image/class/text", "image/class/label", "label", "class", "labels", "image/label"),
    *(MODEL_GARDEN.box_text, MODEL_GARDEN.box_label),
)
"""The usual names of a feature. A text comes before its number. Records with boxes may have labels of boxes alone."""
FILENAME = ("image/filename", "filename", "image/file_name", "file_name", "path")
BESIDE = ("label.labels.txt", "labels.txt", "label_map.txt")
"""Files beside the records, with one class in each line. The first one is that of TFDS."""
_PIXELS = b"RAW"


def holds_images(file: IO[bytes]) -> bool:
    """Whether the first record has the bytes of an image."""
    record = next(records_of(_records(file), Path("its first record")), None)
    return record is not None and isinstance(_feature(decode(record), IMAGE, ""), bytes)


def shows_images(file: IO[bytes]) -> bool:
    """Return False: only a record would tell."""
    return False


def images(file: ContainerFile, options: SourceOptions) -> Iterator[ContainedImage | Skipped | Classes]:
    """Yield the images in the order of the records, whose checksums are verified."""
    texts = filter(None, map(file.beside, BESIDE))
    # An empty last line is no class.
    classes = next((text.decode().rstrip().splitlines() for text in texts), None)
    if classes is not None:
        yield Classes(tuple(classes), {})
    with file.path.open("rb") as stored:
        records = _records(stored)
        position = file.first.offset
        if position:
            records.seek(position)
        for number, record in enumerate(records_of(records, file.place), file.first.row):
            offset = position + HEADER_BYTES if records is stored else None
            yield _image(record, number, offset, classes, options)
            position += HEADER_BYTES + len(record) + FOOTER_BYTES
            if file.end and position >= file.end.offset:
                return


def bounds(file: IO[bytes], options: SourceOptions, max_bytes: int) -> Sequence[Bound]:
    """Return the places between records that divide a file. Only the headers are read, unless it is compressed."""
    if _records(file) is not file:
        return ()
    found = []
    offset = filled = 0
    for number, size in enumerate(sizes_of_records(file, Path(file.name))):
        if filled and filled + size > max_bytes:
            found.append(Bound(number, offset))
            filled = 0
        offset += size
        filled += size
    return found


def _records(file: IO[bytes]) -> IO[bytes]:
    """Return the bytes of the records of a file that may be compressed."""
    begin = file.read(HEADER_BYTES)
    file.seek(0)
    return file if not begin or has_valid_header(begin) else decompressed(file)


def _image(
    record: bytes, number: int, offset: int | None, classes: Sequence[str] | None, options: SourceOptions
) -> ContainedImage | Skipped:
    features = decode(record)
    content = _feature(features, IMAGE, options.path_column)
    values, boxes = _values(features, LABEL, options.label_column), _boxes(features, classes)
    if classes is None and not boxes:
        require_no_vector(values)
    labels = _labels(values, classes)
    if not isinstance(content, bytes) or not labels:
        return Skipped(f"{number:08d}", "no label" if isinstance(content, bytes) else "no image")
    if _feature(features, ("image/format",), "") == _PIXELS:
        raise ValueError("its records hold pixels, not the files of images: build that dataset with prepare=keep")
    group = _feature(features, ("group",), options.group_column)
    return ContainedImage(
        name=text_of(_feature(features, FILENAME, "")),
        content=content if len(content) <= options.max_file_bytes else None,
        # The bytes are equal wherever they are found.
        offset=None if offset is None else offset + record.index(content),
        labels=labels,
        group=text_of(group),
        size=len(content),
        boxes=boxes,
    )


def _boxes(features: Mapping[str, list[Any]], classes: Sequence[str] | None) -> Sequence[Box]:
    """Return the boxes of a record that have a label, in pixels.

    The record has them as fractions of the size of the image.
    """
    # A record without boxes may still have a feature of the name `box_label`.
    keys = next((each for each in (MODEL_GARDEN, PLAIN) if features.get(each.xmin)), None)
    values = _values(features, (keys.box_text, keys.box_label), "") if keys else []
    if keys is None or not values:
        return ()
    sides = [features.get(name, []) for name in keys.of_boxes[:4]]
    width, height = (_feature(features, (name,), "") for name in (keys.width, keys.height))
    if not width or not height or {len(side) for side in sides} != {len(values)}:
        raise ValueError(
            f"a record has boxes without {keys.width}, {keys.height}, or all of {', '.join(keys.of_boxes)}"
        )
    labels = ["".join(_labels([value], classes)) for value in values]
    return [
        Box(xmin * width, ymin * height, xmax * width, ymax * height, label)
        for xmin, ymin, xmax, ymax, label in zip(*sides, labels, strict=True)
        if label
    ]


def _values(features: Mapping[str, list[Any]], names: Sequence[str], wanted: str) -> list[Any]:
    return next((features[name] for name in ([wanted] if wanted else names) if features.get(name)), [])


def _feature(features: Mapping[str, list[Any]], names: Sequence[str], wanted: str) -> Any:
    return next(iter(_values(features, names, wanted)), None)


def _labels(values: list[Any], classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the labels of a record. Numbers are those of the lines of the label file, if there is one."""
    if classes is None or not all(isinstance(value, int) for value in values):
        return labels_of(values)
    if any(value >= len(classes) for value in values):
        raise ValueError(f"a label is {max(values)}, but the label file has {len(classes)} lines")
    return tuple(dict.fromkeys(classes[value] for value in values if value >= 0))
