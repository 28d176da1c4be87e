"""The snapshot: the content of a source at one time, as parts and a description with sums over all rows."""

from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline import storage
from pipeline.config.allowed import require_output, require_outputs
from pipeline.errors import SettingsError, require_format
from pipeline.snapshot.part import EXTRACT_AGAIN, SNAPSHOT_FORMAT, Part, allowed_part
from pipeline.snapshot.raw_example import Origin
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class Snapshot:
    """The description of a snapshot: its parts, its source, and sums over its rows."""

    source_uri: str
    origin: Origin
    """Where the raw examples are read: the source, and the folder of its local copies."""
    kind: str
    """The kind of examples: a value of `example_kind`."""
    source_kind: str
    """The kind of source, such as `folder`."""
    parts: list[Part]
    """The parts in the order of their keys. The number of an example counts through all of them."""
    started_ns: int
    """When the listing began, by the clock of this machine, in nanoseconds since 1970."""
    fingerprint: str
    """Hash of every row's content: key, labels, split, size, CRC32C, group and boxes; not of the source's location.
    It does not depend on the order of the rows, or on the parts."""
    listed: int
    bytes: int
    labels: list[str]
    """All labels of the examples. The order has no effect."""
    stated_labels: list[str]
    """Labels whose order the source states, in that order. The others get their ids in sorted order."""
    texts: dict[str, str]
    """Texts for people, of labels that are codes."""
    classes: dict[str, int]
    """Number of listed examples of each label, ordered by label."""
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
    storage.write_json(path, {"format": SNAPSHOT_FORMAT, **asdict(snapshot)}, indent=1, synced=True)
    storage.sync_folder(path.parent)  # Later tasks may run on other machines, which did not lose their power.
    return path


def load_snapshot(path: Place) -> Snapshot:
    """Read the snapshot that `save_snapshot` wrote to `path`.

    Raises SettingsError if the file is not a snapshot, or if it is or names a place that the administrator does not
    allow, and FormatError if another version of Tenfold wrote it.
    """
    require_outputs([path, skipped_path(path)])
    try:
        content = storage.read_json(path)
        require_format(content.pop("format", None), SNAPSHOT_FORMAT, path, EXTRACT_AGAIN)
        parts = list(map(allowed_part, content.pop("parts")))
        origin = Origin(**content["origin"])
        if origin.cache:
            require_output(place_of(origin.cache))
        return Snapshot(**{**content, "origin": origin, "parts": parts})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} does not contain a snapshot: give the path that `extract` returned") from error


def skipped_path(snapshot: Place) -> Place:
    """Return the file that lists the skipped files of a snapshot, one line of JSON for each."""
    return snapshot.with_suffix(".skipped")
