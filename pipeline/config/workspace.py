"""The folders of the workspace and of published datasets. No other module builds these paths."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from pipeline import storage
from pipeline.config.allowed import require_allowed, require_folder, require_outputs
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError, SourceError
from pipeline.storage import Place, is_inside, place_of
from pipeline.system.os_errors import unless_missing
from pipeline.system.wording import first_of

RANGES = "ranges"
"""This folder beside the snapshots has a folder for each division of a source, named after its time and source."""
MAX_LISTED = 10
"""An error message shows at most this many dataset names."""


def snapshots_folder(settings: Settings) -> Place:
    """Return the folder of the snapshots of a dataset's sources."""
    return _work_of_name(settings) / "snapshots"


def plan_folders(settings: Settings) -> list[Place]:
    """Return the folders of all plans of a dataset name, from all its sources: see `BuildFolders.work_of`."""
    snapshots, work = snapshots_folder(settings), _work_of_name(settings)
    found = unless_missing(lambda: list(storage.folders(work))) or []
    return [folder for folder in found if folder.name != snapshots.name]


def _work_of_name(settings: Settings) -> Place:
    return place_of(settings.workspace) / "work" / _name(settings)


def with_dataset_name(settings: Settings) -> Settings:
    """Return settings with a dataset name. If the settings have none, the name is that of the only published dataset.

    Raises:
        SettingsError: The settings have no name, and no dataset or several datasets are published.
    """
    if settings.dataset_name:
        return settings
    require_allowed(settings)
    folder = settings.datasets_folder
    names = published_names(folder)
    if len(names) != 1:
        advice = "choose one with --set dataset_name=NAME" if names else "build a dataset first"
        raise SettingsError(f"dataset_name is empty, but {folder} has {_listed(names)}: {advice}")
    return settings.model_copy(update={"dataset_name": names[0]})


def require_name(settings: Settings) -> None:
    """Refuse a dataset name that was never built: it is most likely mistyped. Raises SettingsError."""
    if not allowed_name_folder(settings).is_dir():  # No check may show what is outside of the allowed places.
        folder = settings.datasets_folder
        raise SettingsError(
            f"{folder} has no dataset {settings.dataset_name!r}. It has {_listed(published_names(folder))}: set "
            "dataset_name to one of them"
        )


def published_names(folder: Place) -> list[str]:
    """Return names that have a partition. Of other names, no version was ever committed."""
    folders = storage.folders(folder) if folder.is_dir() else ()
    return sorted(each.name for each in folders if (each / "partitions").is_dir())


def _listed(names: Sequence[str]) -> str:
    return first_of(names, MAX_LISTED) or "no dataset"


def name_folder(settings: Settings) -> Place:
    """Return the folder of all published versions of a dataset, and of its label map."""
    return settings.datasets_folder / _name(settings)


def allowed_name_folder(settings: Settings) -> Place:
    """Return `name_folder`. Raises what `require_allowed_folders` does."""
    require_allowed_folders(settings)
    return name_folder(settings)


def require_allowed_folders(settings: Settings) -> None:
    """Refuse settings with a place that the administrator does not allow, or with a folder that leads to such a place.

    Another user of the workspace may have made a link in place of a folder.

    Raises:
        SettingsError: It names the field or the folder.
    """
    require_allowed(settings)
    folder, snapshots = name_folder(settings), snapshots_folder(settings)
    for small in ("labels", "partitions"):
        require_folder(folder / small)
    require_outputs([folder / "windows", snapshots / RANGES])
    require_outputs(place_of(settings.workspace) / name for name in ("raw", "raw/containers", "runs"))


def _name(settings: Settings) -> str:
    if not settings.dataset_name:
        raise SettingsError("dataset_name is empty: set dataset_name or source_uri")
    return settings.dataset_name


@dataclass(frozen=True)
class BuildFolders:
    """The folders of the versions of a dataset name that are built from one source."""

    of_name: Place
    """Folder of all published versions, and of the label map."""
    of_work: Place
    """Folder of the plans and shard results of the name."""
    place_hash: str
    """A short hash of the source and of the published place."""
    workspace: Place

    def published(self, version: str) -> Place:
        """Return the folder of a published version."""
        return self.of_name / version

    def address_of(self, version: str) -> str:
        """Return the folder of a published version, relative to the workspace if it is inside: it may be moved."""
        published = self.published(version)
        return str(published).removeprefix(f"{self.workspace}/" if is_inside(published, self.workspace) else "")

    def work_of(self, version: str) -> Place:
        """Return the folder for the plans and shard results of a version, from one source to one published place."""
        return self.of_work / f"{version}-{self.place_hash}"

    def require_allowed(self, version: str) -> None:
        """Refuse the folders of a version, and links in them, that the administrator does not allow.

        Raises:
            SettingsError: It names the folder or the link.
        """
        for folder in (self.work_of(version), self.published(version)):
            require_folder(folder)

    def shards_of(self, version: str) -> Place:
        """Return the folder in which shards are written: the final one if datasets are published in the workspace."""
        published = self.published(version)
        return published if is_inside(published, self.workspace) else self.work_of(version) / "shards"


def build_folders(settings: Settings) -> BuildFolders:
    """Return the folders of the versions that these settings build."""
    return BuildFolders(
        of_name=name_folder(settings),
        of_work=_work_of_name(settings),
        place_hash=place_hash(f"{settings.source_uri}\0{settings.datasets_folder}"),
        workspace=place_of(settings.workspace),
    )


def run_folder(workspace: str, run_id: str) -> Place:
    """Return the folder of the trainings of a run. Different run ids never share a folder."""
    return place_of(workspace) / "runs" / folder_name(run_id)


def champion_folder(workspace: Place, dataset_name: str) -> Place:
    """Return the folder that names the champion of a dataset name."""
    return workspace / "models" / dataset_name


def workspace_of(training: Place) -> Place:
    """Return the workspace of a training's folder. Raises SourceError if the folder is in no workspace."""
    runs = training.parent.parent
    if runs.name != "runs":
        raise SourceError(
            f"{training} is not the folder of a training: such folders are named WORKSPACE/runs/RUN/TRAINING"
        )
    return runs.parent


def folder_name(run_id: str) -> str:
    """Return a folder name for a run id. It is unique, has no slash, is never hidden and never too long."""
    name = quote(run_id, safe=":+@=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    # File systems limit a name to 255 bytes.
    if len(name) <= 150:
        return name
    # quote() escapes "!", so no short name can look like a shortened one.
    return f"{name[:100]}!{hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()}"


def place_hash(uri: str) -> str:
    """Return a short hash of a place, so that equal images in two places do not share plans."""
    return hashlib.blake2b(uri.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
