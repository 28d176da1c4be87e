"""The label map of a dataset name: which id a label has, in all versions, forever.

Each state is a file of its own, `labels/00003.json`. A process writes the next state under the next number, and only if
no other process has written that file. This compare-and-swap makes parallel runs of several dates agree, in a bucket
and on a disk.

Planning reserves ids, because the records need them. The commit of a version makes its ids permanent. A command removes
the reservations that no committed dataset uses, and their ids are used again. A commit claims its ids here before it
writes `dataset.json`, so that a release and a commit cannot both succeed.
"""

import json
import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from pipeline import storage
from pipeline.dataset.manifest import PARALLEL_REQUESTS, is_committed, load
from pipeline.errors import ConflictError, DatasetError, FormatError, SettingsError, SourceError, require_format
from pipeline.storage import Place
from pipeline.system.os_errors import retried
from pipeline.system.parallel import ordered_map
from pipeline.system.wording import first_of

COMMIT_NS = 3_600_000_000_000
"""An hour. A commit writes `dataset.json` seconds after its claim. An older claim without a dataset has failed."""
LABEL_MAP_FORMAT = 1
_EMPTY = f'{{"format": {LABEL_MAP_FORMAT}, "labels": [], "reservations": [], "claims": []}}'
_MEND = f"restore a copy of it, or write {_EMPTY} with the `labels` in dataset.json of the newest version"
_STATE = re.compile(r"([0-9]{5,})\.json")
"""The file of a state has its number as its name."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reservation:
    """The labels that a build added when it was planned: from `first_id` up to the next reservation."""

    first_id: int
    build: str
    """The work folder of the build, which is named after its version."""


@dataclass(frozen=True)
class Claim:
    """A commit that uses the first `labels` ids."""

    version: str
    labels: int
    claimed_ns: int


@dataclass(frozen=True)
class LabelMap:
    """One state of the label map."""

    number: int = 0
    """Number of the state, from 1. 0 if no state was written yet."""
    labels: tuple[str, ...] = ()
    """Labels by id, from 0."""
    reservations: tuple[Reservation, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class LabelUse:
    """Whether the id of a label is permanent, and if not, which build or commit holds it."""

    id: int
    label: str
    is_permanent: bool
    held_by: str
    """The build or the commit that holds the label. Empty if the label is permanent."""


def proposed_labels(folder: Place, needed: Sequence[str]) -> list[str]:
    """Return the labels by id, up to the last one that is `needed`. Missing labels are appended in their order.

    Nothing is written. `folder` is the folder of the dataset name. Labels that other versions added after the last
    needed one are left out, so that the same images keep their version.

    Raises DatasetError if the newest state is damaged.
    """
    labels = _latest(folder).labels
    known, wanted = set(labels), set(needed)
    proposed = [*labels, *(label for label in needed if label not in known)]
    # A table whose label is a number needs no labels.
    return proposed[: 1 + max((number for number, label in enumerate(proposed) if label in wanted), default=-1)]


def reserve_labels(folder: Place, labels: Sequence[str], build: str) -> bool:
    """Reserve the ids that `proposed_labels` returned for `labels`. `build` is the work folder of the build.

    Returns:
        False if the label map has changed, so that the labels cannot have these ids. Call `proposed_labels` again.

    Raises:
        DatasetError: The newest state is damaged.
    """
    while True:
        state = _latest(folder)
        # The labels still fit if the map has only grown or shrunk behind them.
        common = min(len(labels), len(state.labels))
        if state.labels[:common] != tuple(labels[:common]):
            return False
        if common == len(labels):
            return True
        # Another run has written this number first: the loop reads what it added.
        with suppress(ConflictError):
            reservations = (*state.reservations, Reservation(common, build))
            _write_next(folder, replace(state, labels=tuple(labels), reservations=reservations))
            _log.info("label map %s: %d labels added, ids from %d", folder / "labels", len(labels) - common, common)


def claim_labels(folder: Place, labels: Sequence[str], version: str) -> None:
    """Prevent a release from removing the labels of a version that is about to be committed.

    Writes a claim, unless a committed version has at least as many labels, which are then permanent already.

    Raises DatasetError if the labels no longer have these ids in the label map.
    """
    while True:
        state = _latest(folder)
        _require_ids(folder, state, labels, version)
        enough = (each for each in state.claims if each.labels >= len(labels))
        if any(is_committed(folder / each.version) for each in enough):
            # Another process may have written the newest state just now, and may not have synced its name yet.
            storage.sync_folder(folder / "labels")
            return
        claim = Claim(version, len(labels), time.time_ns())
        # Old claims of fewer labels are dropped, so that the file does not grow with every commit.
        others = [each for each in state.claims if _is_recent(each) or each.labels > len(labels)]
        with suppress(ConflictError):
            claims = (*(each for each in others if each.version != version), claim)
            _write_next(folder, replace(state, claims=claims))
            return


def label_uses(folder: Place) -> list[LabelUse]:
    """Return every label of a dataset name, by id. Raises the same errors as `release_labels`."""
    state = _latest(folder)
    committed = _committed(folder, state)
    return [
        LabelUse(number, label, number < committed, "" if number < committed else _holder(state, number))
        for number, label in enumerate(state.labels)
    ]


def release_labels(folder: Place) -> list[str]:
    """Remove the labels that neither a committed dataset nor a commit in progress uses, and return them.

    `folder` is the folder of the dataset name, as `allowed_name_folder` returns it. A build that was planned with these
    labels and is not committed must be planned again. Its commit fails with an error that says so.

    Raises DatasetError if the label map or a committed dataset cannot be read.
    """
    while True:
        state = _latest(folder)
        # A commit in progress has no `dataset.json` yet. Only its claim shows that it uses the labels.
        under_way = [claim.labels for claim in state.claims if _is_recent(claim)]
        used = max([_committed(folder, state), *under_way])
        if used >= len(state.labels):
            return []
        # A build or a commit has written this number first: the loop reads the map again.
        with suppress(ConflictError):
            reservations = tuple(each for each in state.reservations if each.first_id < used)
            claims = tuple(each for each in state.claims if each.labels <= used)
            _write_next(folder, LabelMap(state.number, state.labels[:used], reservations, claims))
            return list(state.labels[used:])


def _require_ids(folder: Place, state: LabelMap, labels: Sequence[str], version: str) -> None:
    if state.labels[: len(labels)] == tuple(labels):
        return
    wrong = next(number for number, label in enumerate(labels) if state.labels[number : number + 1] != (label,))
    now = f"belongs to {state.labels[wrong]!r}" if wrong < len(state.labels) else "belongs to no label"
    mend = "run its `shard` stage again (in Airflow: clear `shard.plan` and all tasks after it)"
    if is_committed(folder / version):
        mend = f"remove the folder {folder / version}, which another build committed at the same moment, and {mend}"
    raise DatasetError(
        f"version {version} was built with id {wrong} for the label {labels[wrong]!r}, but in the label map "
        f"{_path(folder, state.number)} this id now {now}. The labels were released while the version was being built: "
        f"{mend}"
    )


def _committed(folder: Place, state: LabelMap) -> int:
    """Return how many labels, from id 0, committed datasets use."""
    if not folder.is_dir():
        return 0
    names = (version.name for version in storage.folders(folder))
    versions = ordered_map(partial(_labels_in, folder), names, PARALLEL_REQUESTS)
    return max((_common(labels, state.labels) for labels in versions), default=0)


def _labels_in(folder: Place, name: str) -> Sequence[str]:
    if not is_committed(folder / name):
        return ()
    try:
        return load(folder / name).labels
    except FormatError as error:
        # A new build does not help: it makes another version beside this one.
        raise FormatError(
            f"{folder / name} is a dataset of another version of Tenfold, so the labels that it uses are unknown: "
            f"remove this folder, or move it out of {folder}"
        ) from error


def _common(some: Sequence[str], others: Sequence[str]) -> int:
    """Return how many labels at the beginning of two lists are equal. A user's own `label_map` may differ early."""
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _holder(state: LabelMap, label_id: int) -> str:
    """Return the commit or the build that holds a label."""
    claims = (each for each in state.claims if each.labels > label_id and _is_recent(each))
    if claim := next(claims, None):
        return f"the commit of version {claim.version}, which is in progress or was stopped less than an hour ago"
    # A person who restored the map may not know the reservations.
    builds = (each.build for each in reversed(state.reservations) if each.first_id <= label_id)
    return next(builds, "an unknown build")


def _is_recent(claim: Claim) -> bool:
    return time.time_ns() - claim.claimed_ns < COMMIT_NS


def labels_of_file(path: Path, needed: Sequence[str]) -> list[str]:
    """Return the labels of a user's own file, a label a line.

    Raises SettingsError if it cannot be read or names one twice, SourceError if it lacks one that is needed.
    """
    try:
        lines = retried(path.read_bytes, path).decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise SettingsError(
            f"label_map must be a file with one label per line, got {str(path)!r}: {error.strerror}"
        ) from error
    labels = [label for line in lines if (label := line.strip("\r"))]
    # `count` for each label takes quadratic time, so it runs only if there are duplicates.
    twice = sorted({label for label in labels if labels.count(label) > 1}) if len(set(labels)) < len(labels) else []
    if twice or not labels:
        problem = f"names {first_of(map(repr, twice), 5)} twice" if twice else "is empty"
        raise SettingsError(f"label_map {str(path)!r} {problem}")
    if missing := sorted(set(needed) - set(labels)):
        raise SourceError(
            f"label_map {str(path)!r} lacks {first_of(map(repr, missing), 5)}: add them at the end of the file, one "
            "label per line"
        )
    return labels


def _latest(folder: Place) -> LabelMap:
    states = folder / "labels"
    # `glob` would treat a folder that it may not read as empty, and known labels would get other ids.
    paths = states.iterdir() if states.is_dir() else ()
    # Other files that a person put there, such as "00001 (copy).json", do not match.
    number = max((int(match[1]) for path in paths if (match := _STATE.fullmatch(path.name))), default=0)
    return _read_state(_path(folder, number), number) if number else LabelMap()


def _read_state(path: Place, number: int) -> LabelMap:
    """Read a state. If a damaged state were used, known labels would get other ids."""
    try:
        content = storage.read_json(path)
        found = content.get("format") if isinstance(content, dict) else None
        # Ids of datasets that this version cannot read do not matter, so these datasets and their map go together.
        mend = f"move the folder {path.parent.parent} away, and build its datasets again"
        require_format(found, LABEL_MAP_FORMAT, path, mend)
        labels = content["labels"]
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise TypeError("labels must be a list of texts")
        state = LabelMap(
            number=number,
            labels=tuple(labels),
            reservations=tuple(Reservation(**each) for each in content["reservations"]),
            claims=tuple(Claim(**each) for each in content["claims"]),
        )
    except ValueError as error:
        raise DatasetError(f"label map {path} cannot be read ({error}): {_MEND}") from error
    except (KeyError, TypeError) as error:
        raise DatasetError(f"label map {path} does not contain a list of labels: {_MEND}") from error
    if len(set(state.labels)) < len(state.labels):
        raise DatasetError(f"label map {path} contains a label twice: {_MEND}")
    return state


def _path(folder: Place, number: int) -> Place:
    return folder / "labels" / f"{number:05d}.json"


def _write_next(folder: Place, state: LabelMap) -> None:
    """Write the state that follows `state.number`. Raises ConflictError if that file exists with other content."""
    content = {"format": LABEL_MAP_FORMAT, **asdict(state)}
    del content["number"]
    with storage.write_new(_path(folder, state.number + 1), synced=True) as file:
        file.write(json.dumps(content, indent=0).encode("ascii"))
    storage.sync_folder(folder / "labels")  # After a crash, no dataset may exist whose ids are lost.
