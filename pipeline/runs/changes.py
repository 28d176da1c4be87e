"""Changes of a training under way: settings that get another value from one of its epochs on.

A person or the advice requests a change in `changes.jsonl`, in the place of the training that all workers reach. Server
0 reads the file before each epoch, and writes into it from which epoch on the change holds, before that epoch begins. A
training that goes on from a checkpoint takes the same values in the same epochs. So a change decides the examples and
the results of the epochs after it as a setting does, but it is no part of the identity of the training, whose folder
keeps its name.

What a change keeps: each epoch has every example once, whatever changes. `prefetch_batches`, `checkpoint_minutes` and
`checkpoint_steps` keep order and pixels, too. `shuffle_megabytes` gives the later epochs another order. `cache` gives
them another order, and crops of images that were decoded once, a little larger than the model's images.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import storage
from pipeline.config.automatic import TrainingSettings, training_settings
from pipeline.config.declarations import ChangesAtEpoch, ChangesDataset
from pipeline.config.settings import MAX_TRAINED_EPOCHS, declared, settings_for, validated
from pipeline.errors import BadInput, ConflictError, DatasetError, SettingsError, TenfoldError
from pipeline.runs.files import CHANGES, RESULT, RUN, read_required, require_run_format
from pipeline.runs.offers import promised_of
from pipeline.storage import Place
from pipeline.system.os_errors import unless_missing

CACHES = ("off", "memory", "disk")
"""The values that `cache` can change to. `auto` would depend on the memory that is free when a training goes on."""
MAX_BYTES = 1 << 20
"""Maximum size of the file. Others may write it."""
DATASET = "dataset"
"""The field of a change that a training takes by its end: another one continues it on a new dataset
(pipeline/runs/continuation.py). Its value names the settings of the new dataset, in words."""
CONTINUES = "continues"
"""The field of the same change in the training that continues the other one."""
BUILD = "build"
"""The field of the same change while its dataset is built. The training does not end for it yet."""
ADVICE = "advice"
"""The changes that a training requests by itself have this name."""
_OF_DATASETS = (BUILD, DATASET, CONTINUES)
MAX_NAME = 200
"""Maximum length of the name of the person, in characters."""
ATTEMPTS = 20
"""A write is tried this many times, because others may write the file at the same time."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A change of one setting."""

    field: str
    value: int | float | str
    at: float
    """Time of the request, or of the withdrawal of an announcement, in Unix seconds."""
    by: str
    """Who requested it: a person, `ADVICE`, or the run that continues the training if `ADVICE` started it."""
    epoch: int = 0
    """The first epoch (from 1) with the value; 0 until the training has taken the change."""
    refused: str = ""
    """Why the training did not take it; empty if it did, or still will."""
    promised: tuple[float, ...] = ()
    """How many times faster the advice said that the training would be, with the ends of the interval; empty if it said
    nothing."""
    measured: float = 0.0
    """How many times faster it was; 0 if no whole epochs before and after the change show it yet."""
    begun: float = 0.0
    """When the build of its dataset began, in Unix seconds; it ended at the time `at`. 0 if no build has ended."""

    @property
    def words(self) -> str:
        """The setting with its value."""
        if self.field in _OF_DATASETS:
            return f"{self.value} on a new dataset"
        return f"{self.field}={_as_set(self.value)}"

    @property
    def dataset_values(self) -> dict[str, str]:
        """The settings of its dataset, with the texts of their values."""
        return dict(pair.split("=", 1) for pair in str(self.value).split(", ") if "=" in pair)

    @property
    def build_times(self) -> tuple[float, float]:
        """Begin and end of the build of its dataset, in Unix seconds. The end may be infinite. No build: (0, 0)."""
        if self.begun:
            return self.begun, self.at
        return (self.at, inf) if self.field == BUILD else (0.0, 0.0)

    @property
    def is_requested(self) -> bool:
        """Whether the training has not answered yet."""
        return not self.epoch and not self.refused

    def __str__(self) -> str:
        if self.refused:
            return f"{self.words}, requested by {self.by}, was refused: {self.refused}"
        if self.field == BUILD:
            return f"once it is built: {self.words}, requested by {self.by}"
        if self.is_requested:
            return f"from the next epoch on: {self.words}, requested by {self.by}"
        return f"from epoch {self.epoch} on: {self.words}, by {self.by}{self._proof}"

    @property
    def _proof(self) -> str:
        if not self.promised:
            return ""
        promised, low, high = (f"{each:.3g}" for each in self.promised)
        measured = f"measured {self.measured:.3g}" if self.measured else "not measured yet"
        return f": promised {promised} times faster ({low} to {high}), {measured}"


class InEffect(NamedTuple):
    """What an epoch is trained with."""

    settings: TrainingSettings
    kept_from: int = 1
    """The first epoch with the value of `cache`."""


def changeable_settings(kind: str) -> list[str]:
    """Return the settings that a training on a kind of examples can change."""
    return settings_for(kind, declared(ChangesAtEpoch))


def dataset_settings(kind: str) -> list[str]:
    """Return the settings that a training on a kind of examples can change by a new dataset."""
    return settings_for(kind, declared(ChangesDataset))


def request_changes(
    folder: Place, values: Mapping[str, Any], by: str, offers_folder: Place | None = None
) -> list[Change]:
    """Request changes of a training, all or none, and return them. The training takes them before its next epoch.

    Each request stores the gain that the training promises now, because later offers may differ or be missing. A
    setting that already has its value is left out.

    Args:
        folder: The place of the training.
        values: Settings with their values, or the texts of them.
        by: Who requests the changes.
        offers_folder: The folder with the newest offers, if it is another one than `folder`.

    Raises:
        SettingsError: A setting cannot change, or not to this value; or all of them have their values already.
        BadInput: The training is complete, or takes no changes.
        DatasetError: There is no training.
    """
    settings = _settings_under_way(folder)
    wanted = {field: checked(settings, field, value) for field, value in values.items()}
    promised = {field: promised_of(offers_folder or folder, field, value) for field, value in wanted.items()}
    name, now = _name_of(by), round(time.time(), 3)
    requested: list[Change] = []

    def added(changes: Sequence[Change]) -> list[Change]:
        newest = newest_values(settings.model_dump(), changes)
        requested[:] = [
            Change(field, value, now, name, promised=promised[field])
            for field, value in wanted.items()
            if value != newest[field]
        ]
        if not requested:
            known = " and ".join(f"{field} is {_as_set(value)}" for field, value in wanted.items())
            raise SettingsError(f"{known} already: nothing changes")
        return [*changes, *requested]

    _rewrite(folder, added)
    return requested


def announce_dataset(folder: Place, values: Mapping[str, Any], by: str, promised: tuple[float, ...] = ()) -> Change:
    """Store that a dataset is being built on which another training will continue this one. This one goes on meanwhile.

    The arguments are those of `request_dataset`. An earlier announcement of the same dataset is replaced, because its
    build was killed. Its promise still counts, unless the training has taken other changes since. Nothing is stored if
    the training already ends for a new dataset, or is complete.

    Returns:
        The announcement, for `withdraw_dataset`.
    """
    build = Change(BUILD, values_in_words(values), round(time.time(), 3), _name_of(by), promised=promised)

    def added(changes: Sequence[Change]) -> list[Change]:
        if requested_dataset(changes) or (folder / RESULT).exists():
            return [*changes]
        killed = _build_in(changes, build.value)
        return [*_without(changes, killed), _with_first_promise(build, killed, changes)]

    _rewrite(folder, added)
    return build


def withdraw_dataset(folder: Place, announced_at: float, why: str) -> None:
    """Store that the build of a dataset has failed. `announced_at` is the time of its announcement, in Unix seconds.

    A failure to store it costs a warning, because the error of the build counts more.
    """

    def withdrawn(change: Change) -> Change:
        if change.field != BUILD or change.refused or change.at != announced_at:
            return change
        return replace(change, at=round(time.time(), 3), begun=announced_at, refused=why)

    try:
        _rewrite(folder, lambda changes: [withdrawn(change) for change in changes])
    except (TenfoldError, OSError) as error:
        _log.warning("the training %s goes on saying that a dataset is being built for it: %s", folder, error)


def request_dataset(folder: Place, values: Mapping[str, Any], by: str, promised: tuple[float, ...] = ()) -> Change:
    """Request that a training ends before its next epoch, because another one continues it on a new dataset.

    `values` are the settings of the new dataset that differ. The same request is stored once. `promised` is what the
    advice says of it. If the dataset was announced, what the advice said then counts, because the build may have slowed
    the training down since, unless the training has taken other changes since.

    Raises as `request_changes` does, and BadInput if another dataset was requested before.
    """
    change = Change(DATASET, values_in_words(values), round(time.time(), 3), _name_of(by), promised=promised)
    require_under_way(folder)

    def same_in(changes: Sequence[Change]) -> Change | None:
        requested = requested_dataset(changes)
        if requested and requested.value != change.value:
            raise BadInput(f"the training {folder} already ends for another dataset: {requested}")
        return requested

    def added(changes: Sequence[Change]) -> list[Change]:
        if same_in(changes):
            return [*changes]
        build = _build_in(changes, change.value)
        request = replace(_with_first_promise(change, build, changes), begun=build.at) if build else change
        return [*_without(changes, build), request]

    if requested := same_in(load_changes(folder)):  # A waiting run repeats the request every few seconds.
        return requested
    _rewrite(folder, added)
    return same_in(load_changes(folder)) or change


def require_under_way(folder: Place) -> None:
    """Refuse a training that another one cannot continue, unless it has ended for that. Raises as `request_changes`."""
    if not requested_dataset(load_changes(folder)):
        _settings_under_way(folder)


def requested_dataset(changes: Iterable[Change]) -> Change | None:
    """Return the request for which a training ends; None if there is none."""
    return next((each for each in changes if each.field == DATASET and not each.refused), None)


def builds_under_way(changes: Iterable[Change]) -> list[Change]:
    """Return the announcements that were not withdrawn. A killed build leaves its announcement."""
    return [each for each in changes if each.field == BUILD and not each.refused]


def take_over(folder: Place, change: Change) -> None:
    """Write into a training which change it continues another training with, unless it is written already."""
    if not any(each.field == CONTINUES for each in load_changes(folder)):
        _rewrite(folder, lambda changes: [replace(change, field=CONTINUES, measured=0.0), *changes])


def values_in_words(values: Mapping[str, Any]) -> str:
    """Return settings with their values, as a person sets them."""
    return ", ".join(f"{name}={_as_set(value)}" for name, value in values.items())


def checked(settings: TrainingSettings, field: str, value: Any) -> Any:
    """Return a value that a setting can change to, as its type. Raises SettingsError if it cannot."""
    names = changeable_settings(settings.example_kind)
    if field not in names:
        raise SettingsError(f"{field} cannot change in a training: the settings that can are {', '.join(names)}")
    if field == "cache" and value not in CACHES:
        raise SettingsError(f"cache must be one of {', '.join(CACHES)} to change in a training, got {value!r}")
    # Pydantic would read true as 1.
    value = str(value).lower() if isinstance(value, bool) else value
    return getattr(validated(TrainingSettings, {**settings.model_dump(), field: value}, strict=False), field)


def load_changes(folder: Place) -> list[Change]:
    """Return the changes of a training in the order of their requests. Lines that are damaged are left out."""
    return _parsed(unless_missing(lambda: storage.read_limited(folder / CHANGES, MAX_BYTES)))


def first_epoch(changes: Iterable[Change]) -> int:
    """Return the first epoch (from 1) of a training. One that continues another one begins with a later epoch."""
    return max([1, *(change.epoch for change in changes if change.field == CONTINUES)])


def newest_values(settings: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """Return the settings that can change with the values that they have once all requests are taken.

    `settings` are those in `run.json`. The result is empty if the training takes no changes.
    """
    if settings.get("advice", "off") == "off":
        return {}
    values = {name: settings[name] for name in changeable_settings(settings["example_kind"]) if name in settings}
    return values | {change.field: change.value for change in changes if not change.refused and change.field in values}


def newest_settings(settings: TrainingSettings, changes: Iterable[Change]) -> TrainingSettings:
    """Return the settings after all changes that a training has taken. Raises as `in_effect` does."""
    return in_effect(settings, changes, settings.epochs).settings


def in_effect(settings: TrainingSettings, changes: Iterable[Change], epoch: int) -> InEffect:
    """Return what an epoch (from 1) is trained with, by the changes that the training has taken.

    Raises SettingsError if the file has a value that the setting cannot have.
    """
    values, kept_from = dict[str, Any](), 1
    for change in changes:
        if 0 < change.epoch <= epoch and not change.refused and change.field not in _OF_DATASETS:
            values[change.field] = checked(settings, change.field, change.value)
            kept_from = change.epoch if change.field == "cache" else kept_from
    return InEffect(settings.model_copy(update=values), kept_from)


def replace_changes(folder: Place, answers: Mapping[Change, Change]) -> None:
    """Write what the training did with some changes. Requests that came meanwhile stay."""
    _rewrite(folder, lambda changes: [answers.get(change, change) for change in changes])


def save_copy(folder: Path, place: Place, changes: Iterable[Change]) -> None:
    """Write changes into the local folder of a training whose place is in a bucket, for its report."""
    if folder != place:
        with storage.write_whole(folder / CHANGES) as file:
            file.write(_lines(changes))


def as_numbers(effect: InEffect) -> list[float]:
    """Return what an epoch is trained with as numbers, which servers can exchange."""
    values = (getattr(effect.settings, field) for field in declared(ChangesAtEpoch))
    numbers = [float((*CACHES, "auto").index(value) if isinstance(value, str) else value) for value in values]
    return [*numbers, float(effect.kept_from)]


def from_numbers(settings: TrainingSettings, numbers: Sequence[float]) -> InEffect:
    """Return what `as_numbers` stands for. `settings` are those of the training."""
    *numbers, kept_from = numbers
    values: dict[str, Any] = {}
    for field, number in zip(declared(ChangesAtEpoch), numbers, strict=True):
        own = getattr(settings, field)
        values[field] = (*CACHES, "auto")[int(number)] if isinstance(own, str) else type(own)(number)
    return InEffect(settings.model_copy(update=values), int(kept_from))


def _build_in(changes: Iterable[Change], value: object) -> Change | None:
    """Return the announcement of a dataset, by its settings in words; None if there is none, or it was withdrawn."""
    return next((each for each in builds_under_way(changes) if each.value == value), None)


def _without(changes: Iterable[Change], change: Change | None) -> list[Change]:
    return [each for each in changes if each != change]


def _with_first_promise(change: Change, announced: Change | None, changes: Iterable[Change]) -> Change:
    """Return a change with the promise of its announcement, unless the training has taken other changes since."""
    if announced is None or any(
        each.epoch and each.at >= announced.at and each.field not in _OF_DATASETS for each in changes
    ):
        return change
    return replace(change, promised=announced.promised)


def _settings_under_way(folder: Place) -> TrainingSettings:
    """Return the settings of a training that takes changes. Raises as `request_changes` does."""
    try:
        content = read_required(folder / RUN)
    except FileNotFoundError as error:
        raise DatasetError(f"{folder} is not the folder of a training: it has no run.json") from error
    require_run_format(content, folder)
    if (folder / RESULT).exists():
        raise BadInput(f"the training {folder} is complete, so nothing can change in it: train again")
    settings = training_settings(content["settings"])
    if settings.advice == "off":
        raise BadInput(
            f"the training {folder} has advice=off, so it takes no changes: set advice=show and run it again"
        )
    return settings


def edit_lines(file: Place, edit: Callable[[bytes | None], bytes], max_bytes: int) -> None:
    """Replace a file of at most `max_bytes`, whole or not at all. If somebody else changed it meanwhile, edit that.

    Raises ConflictError if others write into it all the time.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        before = unless_missing(lambda: storage.read_limited(file, max_bytes))
        after = edit(before)
        storage.require_size(file, len(after), max_bytes)
        try:
            storage.swap(file, before, after)
            return
        except ConflictError:
            if not attempts_left:
                raise


def _rewrite(folder: Place, edit: Callable[[list[Change]], list[Change]]) -> None:
    edit_lines(folder / CHANGES, lambda content: _lines(edit(_parsed(content))), MAX_BYTES)


def _lines(changes: Iterable[Change]) -> bytes:
    return "".join(json.dumps(asdict(change)) + "\n" for change in changes).encode()


def _parsed(content: bytes | None) -> list[Change]:
    changes = []
    for line in (content or b"").splitlines():
        try:
            fields = json.loads(line)
            change = Change(**{**fields, "promised": tuple(map(float, fields.get("promised", ())))})
            if not _is_whole(change):
                raise ValueError("it is no change")
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            _log.warning("a line of %s is left out: %s", CHANGES, error)
        else:
            changes.append(change)
    return changes


def _is_whole(change: Change) -> bool:
    """Return whether each field has a possible value. Others may write the file, and the pages read it."""
    texts = change.field, change.by, change.refused
    numbers = change.at, change.epoch, change.measured, change.begun, *change.promised
    return (
        all(isinstance(text, str) for text in texts)
        and change.field in (*_OF_DATASETS, *declared(ChangesAtEpoch))
        and isinstance(change.value, int | float | str)
        and isinstance(change.epoch, int)
        and 0 <= change.epoch <= MAX_TRAINED_EPOCHS
        and all(isinstance(number, int | float) and isfinite(number) for number in numbers)
        and (isinstance(change.value, str) or isfinite(change.value))
        and len(change.promised) in (0, 3)
    )


def _name_of(person: str) -> str:
    return "".join(each if each.isprintable() else " " for each in person)[:MAX_NAME]


def _as_set(value: object) -> str:
    """Return a value as a person sets it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
