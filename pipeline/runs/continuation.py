"""A training that continues another one, on a new dataset with the same examples.

What needs a new dataset cannot change in a training under way. A new run announces the dataset, builds it, and only
then requests a change of `dataset` in the training under way. That training takes the change before an epoch, as any
other change, and ends there. It is then complete, with a model of its own. The new training begins with the checkpoint
of that moment. Its setting `continues` names the other training, and is part of its identity.

Each step can be repeated after a kill: the dataset is complete or is completed, the same request is stored once, the
training under way ends before the same epoch again, and its last checkpoint stays.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import storage
from pipeline.config.allowed import require_folder
from pipeline.config.automatic import TrainingSettings, deciding_values, training_settings
from pipeline.config.declarations import ChangesAtEpoch, ChangesDataset, InFingerprint
from pipeline.config.settings import Settings, declared, validated
from pipeline.config.workspace import workspace_of
from pipeline.dataset.manifest import Dataset, load_allowed
from pipeline.errors import BadInput, DatasetError, SettingsError
from pipeline.runs.changes import (
    DATASET,
    Change,
    announce_dataset,
    builds_under_way,
    changeable_settings,
    dataset_settings,
    load_changes,
    newest_settings,
    replace_changes,
    request_dataset,
    requested_dataset,
    require_under_way,
    values_in_words,
    withdraw_dataset,
)
from pipeline.runs.files import RESULT, RUN, read_required, require_run_format, with_moved_dataset
from pipeline.runs.offers import load_offers
from pipeline.runs.run import checkpoint_name, load_result, training_place
from pipeline.runs.training_settings import settings_of_training
from pipeline.storage import Place, place_of

BUILD_FAILED = "the build of its dataset has failed"
"""Why an announcement is withdrawn."""


class _Earlier(NamedTuple):
    """A training that another one continues."""

    settings: TrainingSettings
    """With the changes that it has taken."""
    dataset: Dataset
    address: str
    """The folder of the dataset."""
    steps_per_epoch: int


class End(NamedTuple):
    """Where a training has ended for the one that continues it."""

    change: Change
    checkpoint: Place


def continued_settings(training: Place, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that continues a training under way with other values of some settings.

    The values are those of the settings, or texts of them. A setting that changes at an epoch may be among them. If the
    advice offers one of the values with others, such as a size, it comes with these.

    Raises:
        SettingsError: A setting cannot change, or not to this value, or nothing changes.
        BadInput: The training takes no changes, or cannot be continued on a new dataset.
        DatasetError: There is no training.
    """
    earlier = _load_earlier(training)
    require_under_way(training)
    kind, dataset = earlier.settings.example_kind, earlier.dataset
    names = [*dataset_settings(kind), *changeable_settings(kind)]
    if unknown := [name for name in values if name not in names]:
        raise SettingsError(f"{unknown[0]} cannot change in a training: the settings that can are {', '.join(names)}")
    _require_continuable(training, earlier)
    before = _values_of(earlier)
    origin = {
        "source_uri": earlier.settings.source_uri or dataset.source["uri"],
        "dataset_name": dataset.name,
        "workspace": str(workspace_of(_resolved(training))),  # It may have been moved.
    }
    # Another user of the folder may have written other names.
    companions = {name: value for name, value in _companions(training, values).items() if name in names}
    changed = {**companions, **values}
    settings = validated(Settings, {**before, **origin, **changed, "continues": str(_resolved(training))}, strict=False)
    if all(getattr(settings, name) == before[name] for name in changed):
        raise SettingsError(f"{values_in_words(changed)} is what the training {training} has: nothing changes")
    return settings


def needs_end(settings: Settings, dataset: Dataset, run_id: str) -> bool:
    """Return whether the training of a run needs the end of `settings.continues`: only until its first checkpoint."""
    if not settings.continues:
        return False
    training = training_place(settings_of_training(settings, dataset), run_id, dataset.version)
    require_folder(training)
    return not ((training / RESULT).exists() or any(training.glob("checkpoints/*.npz")))


def announce_continuation(settings: Settings, by: str) -> Change | None:
    """Store in the training `settings.continues`, if there is one, that a run begins to build a dataset for it.

    What the training promises of the change at this moment is stored, too: the build may use the cores of the training,
    whose later offers would be about the slower steps.

    A training that ends for a new dataset already is left as it is. Its old dataset may be gone.

    Returns:
        The announcement, for `withdraw_dataset` if the build fails; None if there is none.

    Raises:
        SettingsError: The training is in another workspace, or the administrator does not allow one of its places.
        BadInput: The training is complete, takes no changes, or cannot be continued on a new dataset.
        DatasetError: There is no training.
    """
    if not settings.continues:
        return None
    training = place_of(settings.continues)
    _require_workspace_of(training, settings)
    require_folder(training)
    if requested_dataset(load_changes(training)):
        return None
    require_under_way(training)
    earlier, after = _load_earlier(training), settings.model_dump()
    _require_continuable(training, earlier)
    values = _values_of_dataset(earlier, after)
    return announce_dataset(training, values, by, _promised(training, values, after)) if values else None


@contextmanager
def announced(settings: Settings, by: str) -> Iterator[None]:
    """Announce a dataset as `announce_continuation` does, and withdraw it if the block fails before its request."""
    build = announce_continuation(settings, by)
    try:
        yield
    except BaseException:  # Also if a person interrupts the command.
        if build:
            withdraw_dataset(place_of(settings.continues), build.at, BUILD_FAILED)
        raise


def request_continuation(settings: Settings, dataset: Dataset, by: str) -> Change:
    """Request that the training `settings.continues` ends, for a training with these settings on a new dataset.

    The same request is stored once, with what the training promised of the change when the build of the dataset began.

    Raises:
        SettingsError: A setting differs that cannot change so.
        BadInput: The examples differ, the training takes no changes, or it has ended otherwise.
        DatasetError: There is no training.
    """
    training = place_of(settings.continues)
    earlier = _load_earlier(training)
    _require_workspace_of(training, settings)
    _require_continuable(training, earlier)
    _require_same_training(earlier, settings_of_training(settings, dataset), dataset)
    _require_same_examples(earlier, dataset)
    after = {**settings.model_dump(), **_stored_settings(dataset)}
    values = _values_of_dataset(earlier, after)
    if not values:
        raise BadInput(f"the dataset of the training {training} has the same settings: nothing changes")
    return request_dataset(training, values, by, _promised(training, values, after))


def end_of(training: Place) -> End | None:
    """Return where a training has ended for the one that continues it; None if it still goes on.

    Raises:
        BadInput: It has ended otherwise, so that nothing is left to train, or its last checkpoint is missing.
        DatasetError: There is no training.
    """
    run_json = _load_run_json(training)
    if load_result(training) is None:
        return None
    change = next((each for each in load_changes(training) if each.field == DATASET and each.epoch), None)
    if change is None:
        raise BadInput(f"the training {training} was over before it could be continued: nothing is left to train")
    epochs_done = change.epoch - 1
    checkpoint = training / "checkpoints" / checkpoint_name(epochs_done, epochs_done * run_json["steps_per_epoch"])
    storage.refresh(checkpoint.parent)
    if not checkpoint.exists():  # It was there before the result.
        raise BadInput(f"the training {training} has ended, but {checkpoint} is missing: train from the start")
    return End(change, checkpoint)


def require_end(training: Place) -> End:
    """Return where a training has ended. Raises BadInput if it goes on, or has ended otherwise."""
    end = end_of(training)
    if end is None:
        raise BadInput(f"the training {training}, which is to be continued, still goes on: run this again later")
    return end


def save_measured(training: Place, change: Change) -> None:
    """Write what a change has gained into the training that ended for it."""
    require_folder(training)
    asked = [each for each in load_changes(training) if each.field == DATASET and each.epoch == change.epoch]
    replace_changes(training, {each: replace(each, measured=change.measured) for each in asked})


def _load_run_json(training: Place) -> dict[str, Any]:
    """Return the content of `run.json`. Another user of the workspace may have made links in the folder."""
    require_folder(training)
    try:
        content: dict[str, Any] = read_required(training / RUN)
    except FileNotFoundError as error:
        raise DatasetError(f"{training} is not the folder of a training: it has no run.json") from error
    require_run_format(content, training)
    return content


def _load_earlier(training: Place) -> _Earlier:
    content = with_moved_dataset(_load_run_json(training), training)
    settings = newest_settings(training_settings(content["settings"]), load_changes(training))
    address = content["dataset"]
    return _Earlier(settings, load_allowed(place_of(address)), address, content["steps_per_epoch"])


def _resolved(place: Place) -> Place:
    return place.resolve() if isinstance(place, Path) else place


def _stored_settings(dataset: Dataset) -> dict[str, Any]:
    """Return the settings of a dataset that are known. It may have been built with others than those of a training."""
    known = {name: dataset.settings[name] for name in declared(InFingerprint) if name in dataset.settings}
    return {**known, "compression": dataset.records.compression}


def _values_of(earlier: _Earlier) -> dict[str, Any]:
    return {**earlier.settings.model_dump(), **_stored_settings(earlier.dataset)}


def _values_of_dataset(earlier: _Earlier, after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a new dataset that differ from those of the dataset of a training."""
    before, names = _values_of(earlier), dataset_settings(earlier.dataset.kind)
    values = {name: after[name] for name in names if after[name] != before[name]}
    if after.get("prepare") == "keep":
        values.pop("prepare_size", None)  # It has no effect.
    return values


def _companions(training: Place, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values that belong to these: those of the dataset that is requested or built, or else of an offer.

    A dataset that is built counts only if it was offered when its build began. A person chose the others as a whole.
    """
    texts = {name: str(value) for name, value in values.items()}
    changes = load_changes(training)
    offered = [each for each in reversed(builds_under_way(changes)) if each.promised]
    known = [change.dataset_values for change in (requested_dataset(changes), *offered) if change]
    known += [{name: str(value) for name, value in offer.change.items()} for offer in load_offers(training)]
    return next((each for each in known if texts.items() <= each.items()), {})


def _promised(training: Place, values: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, ...]:
    """Return how many times faster these settings of a dataset should make a training, by an offer of the training.

    An offer may name more of the settings `after` the change, such as the size that the images have already.
    """
    return next(
        (
            offer.promised
            for offer in load_offers(training)
            if values.keys() <= offer.change.keys()
            and all(name in after and after[name] == value for name, value in offer.change.items())
        ),
        (),
    )


def _require_workspace_of(training: Place, settings: Settings) -> None:
    if _resolved(workspace_of(training)) != _resolved(place_of(settings.workspace)):
        raise SettingsError(
            f"continues must name a training of the workspace {settings.workspace}, got {settings.continues}"
        )


def _require_continuable(training: Place, earlier: _Earlier) -> None:
    """Refuse a training that no other one can continue."""
    if window := earlier.dataset.window:
        raise BadInput(
            f"the training {training} uses {len(window)} dates as one dataset, and one run cannot build all of them "
            "again: build the dates with the new setting, and train on them"
        )
    if earlier.settings.callbacks:
        raise BadInput(
            f"the training {training} has callbacks, whose state a new training would not have: it cannot be continued"
        )


def _require_same_training(earlier: _Earlier, settings: TrainingSettings, dataset: Dataset) -> None:
    """Refuse settings of the training or of its dataset that differ and cannot change."""
    can_change = {"continues", *declared(ChangesAtEpoch), *declared(ChangesDataset)}
    before = {**_in_fingerprint(earlier.dataset), **deciding_values(earlier.settings)}
    after = {**_in_fingerprint(dataset), **deciding_values(settings)}
    if differing := [name for name in before if name not in can_change and before[name] != after[name]]:
        name = differing[0]
        raise SettingsError(
            f"{name} must be {before[name]} as in the training that is continued, got {after[name]}: with another "
            "value, leave continues empty and train from the start"
        )


def _in_fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Return the settings in the fingerprint of a dataset. A setting that is not stored has its default."""
    defaults = {name: Settings.model_fields[name].get_default() for name in declared(InFingerprint)}
    return {**defaults, **{name: dataset.settings[name] for name in defaults if name in dataset.settings}}


def _require_same_examples(earlier: _Earlier, dataset: Dataset) -> None:
    def facts(each: Dataset) -> tuple[Any, ...]:
        splits = {name: (split.examples, dict(split.classes)) for name, split in each.splits.items()}
        return each.kind, each.labels, dict(each.table), splits

    before, after = earlier.dataset.source, dataset.source
    # Another source may be a copy, so only the numbers of its examples are compared.
    has_changed = before.get("uri") == after.get("uri") and before.get("fingerprint") != after.get("fingerprint")
    if has_changed or facts(earlier.dataset) != facts(dataset):
        is_same = before.get("fingerprint") == after.get("fingerprint")
        why = "images were rejected while they were prepared, as its card says" if is_same else "the source has changed"
        raise BadInput(
            f"the new dataset has other examples than {earlier.address}, so the training cannot be continued on it: "
            f"{why}. Train on the new dataset from the start"
        )
