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
from pipeline.sources.cells import NAMES as COLUMNS
from pipeline.sources.cells import labels_of, text_of
from pipeline.sources.container_formats import (
    Bound,
    ContainedImage,
    ContainerFile,
    FieldNotes,
    Item,
    LabelForms,
    require_no_vector,
)
from pipeline.sources.folder import begins_as_image
from pipeline.system.wording import first_of

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
_NUMBERED = re.compile(r"([0-9]+):(.*)")
"""A line of a label file with the number of the class."""
_MAX_SHOWN = 20
"""At most this many features are named in the reason why a record is skipped."""
_BEGIN_BYTES = 64
"""This many first bytes of an image include a zero byte."""


def holds_images(file: IO[bytes]) -> bool:
    """Whether the first record has the bytes of an image, in a feature of any name."""
    record = next(records_of(_records(file), Path("its first record")), None)
    features = {} if record is None else decode(record)
    return isinstance(_content(features, ""), bytes) or any(map(_begins_with_image, features.values()))


def _begins_with_image(values: list[Any]) -> bool:
    content = values[0] if values else None
    # A text has no zero byte. Without this check, BMW would be a bitmap, which begins with BM.
    return isinstance(content, bytes) and begins_as_image(content) and b"\0" in content[:_BEGIN_BYTES]


def shows_images(file: IO[bytes]) -> bool:
    """Return False: only a record would tell."""
    return False


def images(file: ContainerFile, options: SourceOptions) -> Iterator[Item]:
    """Yield the images in the order of the records, whose checksums are verified."""
    texts = filter(None, map(file.beside, BESIDE))
    classes = next((_classes(text.decode("utf-8-sig")) for text in texts), None)
    if classes is not None:
        yield Classes(tuple(classes.values()), {})
    labels = _Labels(classes)
    wanted = {name: getattr(options, name) for name in ("split_column", "group_column")}
    notes = FieldNotes(wanted, "record with an image")
    with file.path.open("rb") as stored:
        records = _records(stored)
        position = file.first.offset
        if position:
            records.seek(position)
        for number, record in enumerate(records_of(records, file.place), file.first.row):
            features = decode(record)
            image = _image(features, labels, options)
            if isinstance(image, str):
                yield Skipped(f"{number:08d}", image)
            else:
                notes.add(features, [setting for setting, name in wanted.items() if name in features])
                if records is stored and image.content is not None:
                    # The bytes are equal wherever they are found.
                    image = image._replace(offset=position + HEADER_BYTES + record.index(image.content))
                yield image
            position += HEADER_BYTES + len(record) + FOOTER_BYTES
            if file.end and position >= file.end.offset:
                break
    yield labels.forms
    if notes.are_wanted:
        yield notes.fields()


def _classes(text: str) -> Mapping[int, str]:
    """Return the classes of a label file by their numbers. The lines may begin with them: TF-Slim writes `0:daisy`."""
    lines = text.rstrip().splitlines()  # An empty last line is no class.
    numbered = {int(found[1]): found[2].strip() for line in lines if (found := _NUMBERED.fullmatch(line))}
    return dict(sorted(numbered.items())) if len(numbered) == len(lines) else dict(enumerate(lines))


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


class _Labels:
    """Reads the labels of records. It notes whether they are texts, or numbers that no label file names."""

    def __init__(self, classes: Mapping[int, str] | None) -> None:
        self.classes = classes
        self.forms = LabelForms({}, {})

    def of(self, values: Sequence[Any], feature: str, labeled: str) -> tuple[str, ...]:
        """Return the labels in some values of a feature. A negative number is no label.

        `labeled` says what has these labels: images or boxes.
        """
        values = [value for value in values if isinstance(value, bytes) or value >= 0]
        if self.classes is not None and all(isinstance(value, int) for value in values):
            return self._named(self.classes, values)
        labels = labels_of(values)
        if labels and self.classes is None:
            of_form = self.forms.texts if isinstance(values[0], bytes) else self.forms.numbers
            of_form.setdefault(labeled, f"the label {labels[0]!r} in {feature}")
        return labels

    @staticmethod
    def _named(classes: Mapping[int, str], numbers: Sequence[int]) -> tuple[str, ...]:
        unknown = next((number for number in numbers if number not in classes), None)
        if unknown is not None:
            raise ValueError(
                f"a label is {unknown}, but none of the {len(classes)} lines of the label file has this number"
            )
        return tuple(dict.fromkeys(map(classes.__getitem__, numbers)))


def _image(features: Mapping[str, list[Any]], labels: _Labels, options: SourceOptions) -> ContainedImage | str:
    """Return the image of a record, or the reason why it has none."""

    def no(noun: str, usual: Sequence[str], setting: str) -> str:
        if any(name in features for name in _names(usual, getattr(options, setting))):
            return f"no {noun}"
        known = first_of(sorted(features), _MAX_SHOWN)
        return f"no {noun}: name the feature of the {noun}s in {setting} ({known})"

    content = _content(features, options.path_column)
    if not isinstance(content, bytes):
        return no("image", IMAGE, "path_column")
    feature, boxes = _filled(features, LABEL, options.label_column), _boxes(features, labels, options.label_column)
    values = features.get(feature, [])
    if labels.classes is None and not boxes:
        require_no_vector(values)
    of_image = labels.of(values, feature, "images")
    if not of_image:
        return no("label", LABEL, "label_column")
    if _feature(features, ("image/format",), "") == _PIXELS:
        raise ValueError("its records hold pixels, not the files of images: build that dataset with prepare=keep")
    return ContainedImage(
        name=text_of(_feature(features, FILENAME, "")),
        content=content if len(content) <= options.max_file_bytes else None,
        labels=of_image,
        split=text_of(_feature(features, COLUMNS["split"], options.split_column)),
        group=text_of(_feature(features, COLUMNS["group"], options.group_column)),
        size=len(content),
        boxes=boxes,
    )


def _boxes(features: Mapping[str, list[Any]], labels: _Labels, label_column: str) -> Sequence[Box]:
    """Return the boxes of a record that have a label, in pixels.

    The record has them as fractions of the size of the image.
    """
    # A record without boxes may still have a feature of the name `box_label`.
    keys = next((each for each in (MODEL_GARDEN, PLAIN) if features.get(each.xmin)), None)
    if keys is None:
        return ()
    usual = (keys.box_text, keys.box_label)
    feature = _filled(features, usual, label_column if label_column in usual else "")
    values = features.get(feature, [])
    if not values:
        return ()
    sides = [features.get(name, []) for name in keys.of_boxes[:4]]
    width, height = (_feature(features, (name,), "") for name in (keys.width, keys.height))
    if not width or not height or {len(side) for side in sides} != {len(values)}:
        raise ValueError(
            f"a record has boxes without {keys.width}, {keys.height}, or all of {', '.join(keys.of_boxes)}"
        )
    of_boxes = ["".join(labels.of([value], feature, "boxes")) for value in values]
    return [
        Box(xmin * width, ymin * height, xmax * width, ymax * height, label)
        for xmin, ymin, xmax, ymax, label in zip(*sides, of_boxes, strict=True)
        if label
    ]


def _content(features: Mapping[str, list[Any]], wanted: str) -> Any:
    """Return the first value of the feature of the images. An empty image is one, which is rejected later."""
    return next((features[name][0] for name in _names(IMAGE, wanted) if features.get(name)), None)


def _names(usual: Sequence[str], wanted: str) -> Sequence[str]:
    return [wanted] if wanted else usual


def _filled(features: Mapping[str, list[Any]], usual: Sequence[str], wanted: str) -> str:
    """Return the name of the first feature that has a value; empty if none has. An empty text is no value."""
    names = _names(usual, wanted)
    return next((name for name in names if any(value != b"" for value in features.get(name, ()))), "")


def _feature(features: Mapping[str, list[Any]], usual: Sequence[str], wanted: str) -> Any:
    return next(iter(features.get(_filled(features, usual, wanted), ())), None)
