"""The options of a listing of images, made from the settings when a stage begins."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.settings import Settings
from pipeline.config.workspace import snapshots_folder
from pipeline.snapshot.raw_example import Origin
from pipeline.sources import SourceOptions
from pipeline.sources.detection import root_of
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class ExtractOptions:
    """The options of a listing."""

    source_uri: str
    """The place as a person wrote it, for messages and for the description of the snapshot."""
    place: Place
    source: SourceOptions
    origin: Origin
    """Where raw images are read: at the source, or from copies of a bucket if the workspace is local. Whether they are
    remote is known after the listing."""
    group_pattern: str
    folder: Place
    """Folder of the snapshots of the dataset name."""


def extract_options(settings: Settings) -> ExtractOptions:
    """Return the options of some settings."""
    place, cache = settings.source, place_of(settings.workspace) / "raw"
    max_file_bytes = int(settings.max_file_megabytes * 1e6)
    return ExtractOptions(
        source_uri=settings.source_uri,
        place=place,
        source=SourceOptions(
            kind=settings.source_kind,
            path_column=settings.path_column,
            label_column=settings.label_column,
            split_column=settings.split_column,
            group_column=settings.group_column,
            list_encoding=settings.list_encoding,
            user_project=settings.user_project,
            max_file_bytes=max_file_bytes,
            copies=str(cache / "containers"),
        ),
        origin=Origin(
            root=str(root_of(place)),
            user_project=settings.user_project,
            cache=str(cache) if isinstance(cache, Path) else "",
            max_file_bytes=max_file_bytes,
        ),
        group_pattern=settings.group_pattern,
        folder=snapshots_folder(settings),
    )
