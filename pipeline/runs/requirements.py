"""What a training refuses before it starts: places, settings and models with which it could not succeed."""

from pipeline.config.allowed import require_allowed, require_folder
from pipeline.config.preflight import require_buckets, require_weights
from pipeline.config.settings import Settings
from pipeline.dataset.manifest import Dataset, load, require_shards
from pipeline.dataset.shard_cache import GIGABYTE, require_room
from pipeline.errors import SettingsError
from pipeline.plan.example_kind import kind_of
from pipeline.runs.champion import pointer_of
from pipeline.runs.changes import require_under_way
from pipeline.runs.own_code import require_own_code
from pipeline.runs.training_settings import fitting_settings, require_model, settings_of_training
from pipeline.snapshot.snapshot import load_snapshot
from pipeline.storage import BucketPath, Place, place_of
from pipeline.system.proxies import require_proxies


def require_startable(settings: Settings, dataset: Place) -> Dataset:
    """Return the dataset if a training on it can start.

    Raises:
        DatasetError: If the dataset is missing or incomplete.
        SettingsError: If a setting does not fit, the weights are missing, or the administrator does not allow a place.
        PromotionError: If the file that names the champion is damaged.
        FormatError: If another version of Tenfold wrote the dataset or that file.
        StorageError: If a bucket does not answer.
    """
    content = load_usable(settings, dataset)
    require_shards(dataset, content)
    _require_fit(settings, content.records.multi_label, str(dataset))
    of_training = settings_of_training(settings, content)
    require_shares(settings.num_training_servers, of_training.batch_size, len(content.splits["train"].shards))
    # The gate would refuse a champion that it cannot read only after the training.
    if settings.promote != "never":
        pointer_of(place_of(settings.workspace), content.name)
    if isinstance(dataset, BucketPath):
        require_room(content, int(settings.cache_gigabytes * GIGABYTE))
    return content


def load_usable(settings: Settings, dataset: Place) -> Dataset:
    """Return a dataset if a training may use it, the weights and the workspace. Raises as `require_startable` does."""
    require_allowed(settings.model_copy(update={"dataset": str(dataset)}))
    require_proxies()  # Comet's client would log a proxy that it cannot read, with its password.
    require_buckets({"dataset": dataset, "workspace": place_of(settings.workspace)})
    require_weights(settings)
    return load(dataset)


def require_before_listing(settings: Settings) -> None:
    """Refuse what is known to be wrong with a training before its source is listed.

    Raises:
        SettingsError: A setting does not fit, or the administrator does not allow the training to continue.
        BadInput: The training to continue takes no changes.
        DatasetError: There is no such training.
    """
    require_model(settings.model, settings.example_kind, settings.source_uri)
    require_shares(settings.num_training_servers, settings.batch_size, settings.train_shards)
    if settings.continues:
        training = place_of(settings.continues)
        require_folder(training)
        require_under_way(training)


def require_shares(servers: int, batch_size: int | None, shards: int) -> None:
    """Raise SettingsError if some servers would get no shard, or no equal part of a batch.

    `batch_size` is None if Tenfold chooses it, which then fits.
    """
    if servers > shards:
        raise SettingsError(
            f"num_training_servers must be at most {shards}, the number of training shards, got {servers}: train on "
            "fewer servers, or build the dataset with more shards"
        )
    if batch_size is not None and batch_size % servers:
        raise SettingsError(
            f"batch_size must be a multiple of num_training_servers ({servers}), got {batch_size}: set "
            f"batch_size={-(-batch_size // servers) * servers}"
        )


def require_trainable(settings: Settings, snapshot: Place) -> None:
    """Raise SettingsError if a setting does not fit the examples, or the model cannot be built. No shard is needed."""
    content = load_snapshot(snapshot)
    # About as many as there will be. Which rows a training gets is not known before they are sorted.
    training_examples = round(content.listed * (1 - settings.validation_fraction - settings.test_fraction))
    fitting_settings(settings, content.kind, content.table, content.source_uri, training_examples)
    _require_fit(settings, content.multi_label, content.source_uri)
    can_build = kind_of(content).is_model_checked
    require_own_code(settings, len(content.labels), multi_label=content.multi_label, can_build=can_build)


def _require_fit(settings: Settings, multi_label: bool, place: str) -> None:
    """Raise SettingsError for settings that make classes count equally, if an image may have several labels.

    An image counts for all of its labels at once, so no weight of the image suits each of them.
    """
    if not multi_label:
        return
    for name, off in (("balanced", False), ("class_weights", "none")):
        if (value := getattr(settings, name)) != off:
            raise SettingsError(
                f"{name} must be {str(off).lower()} for images with several labels, as in {place}, got "
                f"{str(value).lower()}: such an image has no single class"
            )
