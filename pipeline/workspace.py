"""Where things lie in the workspace. Nothing else knows the folders."""

import hashlib
from collections.abc import Sequence
from urllib.parse import quote

from pipeline import storage
from pipeline.allowed import require_allowed
from pipeline.config import Settings
from pipeline.errors import SettingsError, SourceError
from pipeline.storage import Place, lies_in, place_of

_SHOWN = 10  # dataset names in an error message


def snapshots_folder(settings: Settings) -> Place:
    """Snapshots of a data set's sources."""
    return _work_of_name(settings) / "snapshots"


def work_folder(settings: Settings, version: str) -> Place:
    """Plans and the results of shards of one version, from one source and for one place to publish it in."""
    place = place_hash(f"{settings.source_uri}\0{settings.datasets_folder}")
    return _work_of_name(settings) / f"{version}-{place}"


def hashes_folder(settings: Settings, version: str) -> Place:
    """Return the folder for content hashes of a version of an earlier release, which has no file of them."""
    return _work_of_name(settings) / "hashes" / version


def _work_of_name(settings: Settings) -> Place:
    return place_of(settings.workspace) / "work" / _name(settings)


def named(settings: Settings) -> Settings:
    """Return settings with a dataset name. If the settings have none, the name is that of the only published dataset.

    Raises SettingsError if no dataset or several datasets are published.
    """
    if settings.dataset_name:
        return settings
    require_allowed(settings)
    folder = settings.datasets_folder
    names = _published_names(folder)
    if len(names) != 1:
        raise SettingsError(
            f"dataset_name is empty, and {folder} holds {_few(names)}: choose a dataset with --set dataset_name=NAME"
        )
    return settings.model_copy(update={"dataset_name": names[0]})


def require_name(settings: Settings) -> None:
    """Refuse a dataset name that was never built: it is most likely mistyped. Raises SettingsError."""
    if not name_folder(settings).is_dir():
        folder = settings.datasets_folder
        raise SettingsError(
            f"{folder} holds no dataset {settings.dataset_name!r}, but {_few(_published_names(folder))}: set "
            "dataset_name to one of them"
        )


def _published_names(folder: Place) -> list[str]:
    """Names that have a partition. Of other names, no version was ever committed."""
    found = storage.folders(folder) if folder.is_dir() else ()
    return sorted(each.name for each in found if (each / "partitions").is_dir())


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "") or "no dataset"


def name_folder(settings: Settings) -> Place:
    """Where all versions of a data set are published, and its label map."""
    return settings.datasets_folder / _name(settings)


def _name(settings: Settings) -> str:
    if not settings.dataset_name:
        raise SettingsError("dataset_name is empty: set dataset_name or source_uri")
    return settings.dataset_name


def dataset_folder(settings: Settings, version: str) -> Place:
    """Where a version is published."""
    return name_folder(settings) / version


def shards_folder(settings: Settings, version: str) -> Place:
    """Where shards are written: under their final names where the published place lies in the workspace."""
    published = dataset_folder(settings, version)
    if lies_in(published, place_of(settings.workspace)):
        return published
    return work_folder(settings, version) / "shards"


def run_folder(settings: Settings, run_id: str) -> Place:
    """Where trainings of one run are kept; different run ids never share a folder."""
    return place_of(settings.workspace) / "runs" / folder_name(run_id)


def champion_folder(workspace: Place, dataset_name: str) -> Place:
    """Where it is said which model is promoted for a data set name."""
    return workspace / "models" / dataset_name


def workspace_of(training: Place) -> Place:
    """The workspace of a training, by its folder. Raises SourceError where it lies in none."""
    runs = training.parent.parent
    if runs.name != "runs":
        raise SourceError(f"{training} is no folder of a training: those are WORKSPACE/runs/RUN/TRAINING")
    return runs.parent


def folder_name(run_id: str) -> str:
    """A run id as the name of a folder: one to one, without a slash, never hidden and never too long."""
    name = quote(run_id, safe=":+@=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= 150:
        return name
    # quote() escapes "!", so no short name can look like a shortened one.
    return f"{name[:100]}!{hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()}"


def place_hash(uri: str) -> str:
    """A short name for a place, so that equal images in two places do not share plans."""
    return hashlib.blake2b(uri.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
