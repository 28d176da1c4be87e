"""The label map of a data set name: which id a label has, in all versions, for ever.

It only grows. Each state is a file of its own, `labels/00003.json`, a list of which the first label has id 0; the next
state is made under the next number only if nobody made it before: compare-and-swap, so that parallel runs of several
dates agree, on a bucket as on a disk.
"""

import json
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline import storage
from pipeline.errors import ConflictError, DatasetError, SettingsError, SourceError
from pipeline.storage import Place

_MEND = "bring back a copy of it, or the `labels` that dataset.json of the newest version lists"
_log = logging.getLogger(__name__)


def label_map(folder: Place, needed: Sequence[str]) -> list[str]:
    """Labels by id, up to the last one of those that are `needed`; the missing ones are added, in their order.

    `folder` is that of the data set name. What other versions added behind is left out, so that the same images keep
    their version whatever came since.

    Raises DatasetError where the newest state is damaged.
    """
    while True:
        number, labels = _latest(folder)
        new = _new(labels, needed)
        if not new:
            return _up_to_last(labels, needed)
        with suppress(ConflictError):  # another run was first: see what it added
            _write(_path(folder, number + 1), [*labels, *new])
            _log.info("label map %s: %d labels added, ids from %d", folder / "labels", len(new), len(labels))


def proposed_labels(folder: Place, needed: Sequence[str]) -> list[str]:
    """What `label_map` would return if no other run came between, with nothing written."""
    labels = _latest(folder)[1]
    return _up_to_last([*labels, *_new(labels, needed)], needed)


def _new(labels: Sequence[str], needed: Sequence[str]) -> list[str]:
    known = set(labels)
    return [label for label in needed if label not in known]


def given_labels(path: Path, needed: Sequence[str]) -> list[str]:
    """The labels of a user's own file, a label a line.

    Raises SettingsError where it cannot be read or names one twice, SourceError where it lacks one that is needed.
    """
    labels = _read_given(path)
    missing = sorted(set(needed) - set(labels))
    if missing:
        raise SourceError(f"label_map {str(path)!r} lacks {_few(missing)}: add the labels at its end, a label a line")
    return labels


def _read_given(path: Path) -> list[str]:
    try:
        lines = path.read_bytes().decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise SettingsError(f"label_map must be a file of labels, got {str(path)!r}: {error.strerror}") from error
    labels = [label for line in lines if (label := line.strip("\r"))]
    twice = sorted({label for label in labels if labels.count(label) > 1}) if len(set(labels)) < len(labels) else []
    if twice or not labels:
        raise SettingsError(f"label_map {str(path)!r} {f'names {_few(twice)} twice' if twice else 'is empty'}")
    return labels


def _latest(folder: Place) -> tuple[int, list[str]]:
    # Not "00001 (copy).json", nor anything else that a person put beside them.
    names = (path.stem for path in (folder / "labels").glob("*.json"))
    number = max((int(name) for name in names if re.fullmatch("[0-9]{5,}", name)), default=0)
    return number, _read_state(_path(folder, number)) if number else []


def _read_state(path: Place) -> list[str]:
    """The labels of a state. Going on from a damaged one would give known labels other ids."""
    try:
        labels = storage.read_json(path)
    except ValueError as error:
        raise DatasetError(f"label map {path} cannot be read ({error}): {_MEND}") from error
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DatasetError(f"label map {path} holds no list of labels: {_MEND}")
    if len(set(labels)) < len(labels):
        raise DatasetError(f"label map {path} names a label twice: {_MEND}")
    return labels


def _path(folder: Place, number: int) -> Place:
    return folder / "labels" / f"{number:05d}.json"


def _write(path: Place, labels: Sequence[str]) -> None:
    with storage.write_new(path) as file:
        file.write(json.dumps(labels, indent=0).encode("ascii"))


def _up_to_last(labels: Sequence[str], needed: Sequence[str]) -> list[str]:
    wanted = set(needed)
    return list(labels[: 1 + max(number for number, label in enumerate(labels) if label in wanted)])


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
