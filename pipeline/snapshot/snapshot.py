"""The snapshot: the content of a source at one time, as parts and a description with sums over all rows."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline import storage
from pipeline.errors import SettingsError
from pipeline.snapshot.part import Part
from pipeline.snapshot.raw_image import Origin
from pipeline.storage import Place


@dataclass(frozen=True)
class Snapshot:
    """The description of a snapshot: its parts, its source, and sums over its rows."""

    source_uri: str
    origin: Origin
    """The places where the images are read."""
    kind: str
    parts: list[Part]
    """The parts in the order of their keys. The number of an image counts through all of them. Snapshots of earlier
    releases have no parts, and can only be committed."""
    started_ns: int
    """When the listing began, by the clock of this machine, in nanoseconds since 1970."""
    fingerprint: str
    """Hash of every row's content: key, labels, split, size, CRC32C, group and boxes; not of the source's location.
    It does not depend on the order of the rows, or on the parts."""
    listed: int
    bytes: int
    labels: list[str]
    """All labels of the images. The order has no effect."""
    stated_labels: list[str]
    """Labels whose order the source states, in that order. The others get their ids in sorted order."""
    texts: dict[str, str]
    """Texts for people, of labels that are codes."""
    classes: dict[str, int]
    """Number of listed images of each label, ordered by label."""
    multi_label: bool
    has_boxes: bool
    box_labels: list[str]
    """Labels that only boxes have, ordered."""
    skipped: dict[str, int]
    """Number of files that are not images of a class, by reason."""
    skipped_suffixes: dict[str, int]
    """Number of files that were skipped because of their suffix, by suffix, the most frequent first."""
    table: dict[str, Any] = field(default_factory=dict)
    """The schema of a table (pipeline/tables/schema.py). Empty for images."""


def save_snapshot(snapshot: Snapshot, path: Place) -> Place:
    """Write the description of a snapshot. Returns `path`."""
    with storage.write_whole(path, synced=True) as file:
        file.write(json.dumps(asdict(snapshot), indent=1).encode())
    storage.sync_folder(path.parent)  # Later tasks may run on other machines, which did not lose their power.
    return path


def load_snapshot(path: Place) -> Snapshot:
    """Read the snapshot that `save_snapshot` wrote to `path`.

    Raises SettingsError if the file is not a snapshot.
    """
    try:
        content = storage.read_json(path)
        content.pop("rows", None)  # Earlier releases had one file of rows.
        parts = [Part(**part) for part in content.pop("parts", ())]
        return Snapshot(**{**content, "origin": Origin(**content["origin"]), "parts": parts})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _other_release(path) from error


def load_snapshot_to_plan(path: Place) -> Snapshot:
    """Read a snapshot like `load_snapshot`, and require that it has the parts that a plan needs."""
    snapshot = load_snapshot(path)
    if sum(part.listed for part in snapshot.parts) != snapshot.listed:
        raise _other_release(path)
    return snapshot


def _other_release(path: Place) -> SettingsError:
    return SettingsError(
        f"{path} does not contain a snapshot of this release: give the path that `extract` returned. After an upgrade, "
        "run `extract` again (in Airflow: clear `extract` and all tasks after it)"
    )


def started_ns(path: Place) -> int:
    """Return when the listing of a snapshot began, in Unix nanoseconds. Also reads snapshots of earlier releases."""
    return int(storage.read_json(path)["started_ns"])


def skipped_path(snapshot: Place) -> Place:
    """Return the file that lists the skipped files of a snapshot, one line of JSON for each."""
    return snapshot.with_suffix(".skipped")
