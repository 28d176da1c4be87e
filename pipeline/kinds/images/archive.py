"""The images of an archive, such as a tar or zip file, and their labels: class folders, or files beside the images."""

import json
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipeline.sources import Skipped, SourceOptions
from pipeline.sources.cells import NAMES, labels_of, text_of
from pipeline.sources.container_formats import (
    Bound,
    ContainedImage,
    FieldNotes,
    Item,
    in_one_spelling,
    require_no_vector,
)
from pipeline.sources.folder import IMAGE_MAGIC_BYTES, NOT_BY_NAME, begins_as_image, why_no_image
from pipeline.sources.suffixes import suffix_of

_SUFFIXES = (".cls", ".json", ".txt")
"""In WebDataset's form, files with these suffixes hold the labels of an image. The first file with a label decides."""
_MAX_LABEL_BYTES = 1_000_000
"""A larger file beside an image does not hold its labels."""
_MAX_TOGETHER = 16
"""At most about this many files are in memory. Names such as `img.0001.jpg` may all have one name before the point."""
_MAX_SCANNED = 50_000
"""The texts of an archive that is divided are searched in this many samples, from the first text on."""
_MAX_LABEL = 200
"""A text with more characters is a caption."""
_YOLO_ROW = re.compile(r"\d+(\s+[-+.\de]+){4,}")
"""A class and a box, or the corners of an outline."""
_OTHER_IMAGE = "additional image of a sample, such as a mask"


class ArchivedFile(NamedTuple):
    """A file in an archive. If `reason` is not empty, the file cannot be read."""

    name: str
    size: int
    offset: int | None
    read: Callable[[int], bytes]
    """Returns a number of its first bytes. It is called before the next file is asked for."""
    reason: str = ""
    start: int = 0
    """The `position` of its `Start`."""


class Start(NamedTuple):
    """The beginning of a file in an archive."""

    position: int
    """The `offset` of a `Bound` at this file."""
    offset: int
    """The offset of its first byte in the archive, or of its header."""
    may_be_text: bool
    """Whether it may be a .txt file."""


class _Member(NamedTuple):
    name: str
    content: bytes | None
    reason: str
    """Why it is no image; empty if it is one."""
    file: ArchivedFile

    @property
    def is_label(self) -> bool:
        """Whether the file may hold labels of the images of its sample."""
        return bool(self.reason) and self.content is not None


def images_of_archive(files: Iterable[ArchivedFile], options: SourceOptions, is_whole: bool = True) -> Iterator[Item]:
    """Yield the images of an archive with their labels, if these are in files of the same name beside them.

    Such files must follow each other, as WebDataset demands it. Raises ValueError if they hold something else. If the
    archive is divided, `bounds_of_archive` has seen enough files to decide it for all pieces.
    """
    texts, fields = _Texts(), _FieldsBeside(options)
    for sample in _samples(_member(file, options) for file in files):
        yield from _images_of_sample(sample, fields, texts)
    if is_whole:
        texts.require_labels()
    if fields.notes.are_wanted:
        yield fields.notes.fields()


def bounds_of_archive(
    starts: Iterable[Start], files_from: Callable[[int], Iterator[ArchivedFile]], options: SourceOptions, max_bytes: int
) -> Iterator[Bound]:
    """Yield bounds between samples that divide an archive into pieces of about `max_bytes`.

    Raises ValueError if the .txt files beside the first images hold something else than labels.

    Args:
        starts: The position of each file in the archive, in order.
        files_from: Returns the files from a `Start` on. Only their names are used, apart from those from the first .txt
            file on.
        options: The options of the source.
        max_bytes: The size of a piece.
    """
    begin, next_bound = 0, -1
    newest: deque[int] = deque(maxlen=_MAX_TOGETHER)
    looks_for_text = not options.label_column
    for position, offset, may_be_text in starts:
        newest.append(position)
        if may_be_text and looks_for_text:
            # The image of the text may be before it.
            _require_labels(files_from(newest[0]), options)
            looks_for_text = False
        if position == next_bound:
            yield Bound(offset=position)
            begin = offset
        elif position > next_bound and offset - begin >= max_bytes:
            # The files of one sample may be in any order, so the sample of this file may have begun before it.
            next_bound = _next_sample(files_from(position))
            if next_bound < 0:
                return


def may_be_text(name: bytes) -> bool:
    """Whether a file in an archive may be a .txt file, by its name."""
    return b".txt" in name.lower()


def _require_labels(files: Iterable[ArchivedFile], options: SourceOptions) -> None:
    texts, fields = _Texts(), _FieldsBeside(options)
    members = (_member(file, options, reads_images=False) for file in files)
    for sample in islice(_samples(members), _MAX_SCANNED):
        deque(_images_of_sample(sample, fields, texts), maxlen=0)
        if texts.are_enough:
            break
    texts.require_labels()


def _next_sample(files: Iterable[ArchivedFile]) -> int:
    """Return where the first sample begins after that of the first file; -1 if there is none."""
    named = ((_sample_of(in_one_spelling(file.name)), file.start) for file in files)
    first, _ = next(named, ("", 0))
    return next((start for name, start in named if name != first), -1)


def _member(file: ArchivedFile, options: SourceOptions, reads_images: bool = True) -> _Member:
    name = in_one_spelling(file.name)
    reason, suffix = file.reason or why_no_image(name), suffix_of(name)
    may_be_label = reason == NOT_BY_NAME and suffix in _SUFFIXES
    limit = _MAX_LABEL_BYTES if may_be_label else -1 if reason else options.max_file_bytes
    is_read = may_be_label or reads_images or not suffix
    content = (
        file.read(file.size if may_be_label or reads_images else IMAGE_MAGIC_BYTES)
        if is_read and file.size <= limit
        else None
    )
    if not reason and not suffix and content is not None and not begins_as_image(content):
        return _Member(name, None, NOT_BY_NAME, file)
    return _Member(name, content, reason, file)


def _samples(members: Iterable[_Member]) -> Iterator[list[_Member]]:
    """Yield the files of one sample together. Files of one name are never apart."""
    sample: list[_Member] = []
    last = ""
    for member in members:
        name = _sample_of(member.name)
        if sample:
            is_full = len(sample) >= _MAX_TOGETHER and _stem(member.name) != _stem(sample[-1].name)
            if is_full or name != last:
                yield sample
                sample = []
        sample.append(member)
        last = name
    if sample:
        yield sample


def _sample_of(name: str) -> str:
    """Return the name of a sample, which ends at the first point: `a.b/1.seg.png` belongs to `a.b/1`.

    See `base_plus_ext` in https://github.com/webdataset/webdataset/blob/main/src/webdataset/tariterators.py
    """
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]


def _images_of_sample(
    sample: list[_Member], fields: "_FieldsBeside", texts: "_Texts"
) -> Iterator[ContainedImage | Skipped]:
    if len(sample) == 1 and not sample[0].reason:
        [only] = sample
        yield ContainedImage(only.name, only.content, only.file.offset, size=only.file.size)
        return
    images = {_stem(each.name) for each in sample if not each.reason}
    beside = {_stem(each.name) + suffix_of(each.name): each.content or b"" for each in sample if each.is_label}
    for each in sample:
        if each.reason:
            if not (each.is_label and images):
                yield Skipped(each.name, each.reason)
            continue
        labels = _labels_beside(_stem(each.name), beside, fields.label, texts)
        of_sample = labels or _labels_beside(_sample_of(each.name), beside, fields.label, texts)
        if of_sample and not labels and _sample_of(each.name) in images:
            yield Skipped(each.name, _OTHER_IMAGE)
        else:
            split, group = fields.split_and_group(each.name, beside, of_sample)
            yield ContainedImage(each.name, each.content, each.file.offset, of_sample, split, group, each.file.size)


def _labels_beside(stem: str, beside: dict[str, bytes], label_column: str, texts: "_Texts") -> tuple[str, ...]:
    """Return the labels in the files of a name. `label_column` names the field in JSON files, or a suffix."""
    if not beside:
        return ()
    is_suffix = _is_suffix(label_column)
    for suffix in _SUFFIXES if not label_column else [f".{label_column}" if is_suffix else ".json"]:
        if (name := stem + suffix) not in beside:
            continue
        try:
            cell = _cell(beside[name], suffix, "" if is_suffix else label_column)
            require_no_vector(cell)
        except ValueError as error:  # JSON, or text in UTF-8.
            raise ValueError(f"{name}, which is beside an image, holds no label: {error}") from error
        if labels := labels_of(cell):
            if suffix == ".txt" and not is_suffix:
                texts.add(name, cell)
            return labels
    return ()


def _is_suffix(label_column: str) -> bool:
    return f".{label_column}" in _SUFFIXES


def _cell(content: bytes, suffix: str, label_column: str) -> Any:
    """Return the labels of a file as the cell of a list."""
    if suffix != ".json":
        return content.decode("utf-8-sig")  # Programs of Windows write a mark before it.
    fields = json.loads(content)
    if not isinstance(fields, dict):
        return fields
    names = [label_column] if label_column else NAMES["label"]
    found = next((fields[name] for name in names if name in fields), None)
    if isinstance(found, dict):
        raise ValueError(f"its label is an object ({', '.join(found)}): write the label itself")
    return found


def _fields_beside(name: str, beside: Mapping[str, bytes], is_needed: bool) -> Mapping[str, Any]:
    """Return the fields of the JSON file beside an image; none if there is no such file.

    Raises ValueError if it cannot be read and `is_needed`, because a setting names one of its fields.
    """
    file = next((file for stem in (_stem(name), _sample_of(name)) if (file := f"{stem}.json") in beside), "")
    try:
        fields = json.loads(beside[file]) if file else {}
    except ValueError as error:
        if not is_needed:  # The label is in another file.
            return {}
        raise ValueError(f"{file}, which is beside an image, cannot be read: {error}") from error
    return fields if isinstance(fields, dict) else {}


def _text_in(fields: Mapping[str, Any], role: str, wanted: str) -> str:
    """Return the field of a role as text, empty if there is none. `wanted` is its name; empty for the usual names."""
    names = [wanted] if wanted else NAMES[role]
    return text_of(next((fields[name] for name in names if name in fields), None))


class _FieldsBeside:
    """The fields of files beside images."""

    def __init__(self, options: SourceOptions) -> None:
        self.label, self._split, self._group = options.label_column, options.split_column, options.group_column
        self._needs_json = bool(self._split or self._group or (self.label and not _is_suffix(self.label)))
        named = {"label_column": self.label, "split_column": self._split, "group_column": self._group}
        self.notes = FieldNotes(named, "file beside an image")

    def split_and_group(self, name: str, beside: Mapping[str, bytes], labels: Sequence[str]) -> tuple[str, str]:
        """Return the split and the group of an image with these labels. Each is empty if there is none."""
        fields = _fields_beside(name, beside, self._needs_json)
        # The folder would silently replace a label that is empty in all files.
        has = {"label_column": labels, "split_column": self._split in fields, "group_column": self._group in fields}
        self.notes.add(fields, [setting for setting, is_found in has.items() if is_found])
        return _text_in(fields, "split", self._split), _text_in(fields, "group", self._group)


class _Texts:
    """Finds out that the .txt files beside the images are captions or boxes. As labels, each would be a class."""

    ENOUGH = 10_000
    """This many texts decide. Samples without a text do not count, because there may be many before the first text."""
    _FEW = 20
    """The texts of fewer images may all be different classes, even if their names have several words."""
    _WORDS_IF_FEW = 4
    _WORDS = 2
    """The names of classes have at most this many words, on average. There may be as many classes as images."""

    def __init__(self) -> None:
        self._count = self._words = 0
        self._different: set[int] = set()

    @property
    def are_enough(self) -> bool:
        """Whether further texts change nothing."""
        return self._count >= self.ENOUGH

    def add(self, name: str, text: str) -> None:
        """Add the text of an image. Raises ValueError if it is no label."""
        if all(_YOLO_ROW.fullmatch(line.strip()) for line in text.strip().splitlines()):
            raise ValueError(
                f"{name} holds boxes in YOLO format, not a label: write a list of the images with the columns path, "
                "label, xmin, ymin, xmax and ymax in pixels. Or pack the images in class folders, without the .txt "
                "files. If these texts are labels, set label_column to txt"
            )
        if len(text) > _MAX_LABEL:
            raise ValueError(f"{name} has {len(text)} characters: {self._no_labels()}")
        if not self.are_enough:
            self._count += 1
            self._words += len(text.split())
            self._different.add(hash(text))

    def require_labels(self) -> None:
        """Raise ValueError if nearly each image has another text of several words."""
        words = self._WORDS_IF_FEW if self._count < self._FEW else self._WORDS
        if self._words > words * self._count and len(self._different) > 0.9 * self._count:
            raise ValueError(
                f"{len(self._different)} of {self._count} .txt files beside its images differ: {self._no_labels()}"
            )

    @staticmethod
    def _no_labels() -> str:
        return (
            "they look like captions, not labels. If they are labels, set label_column to txt. Otherwise, set "
            "label_column to the field of the .json files that holds the label, or pack the images in class folders "
            "without .txt files"
        )
