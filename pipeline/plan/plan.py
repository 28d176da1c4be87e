"""The plan of a version: what all plan files have in common."""

from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline import storage
from pipeline.config.allowed import require_folder, require_outputs
from pipeline.errors import SettingsError, require_format
from pipeline.plan.range_plan import PLAN_AGAIN, PLAN_FORMAT
from pipeline.records.format import RecordFormat
from pipeline.storage import Place, place_of


@dataclass(frozen=True)
class Plan:
    """What to write for a version of a dataset, or that this version is complete."""

    version: str
    kind: str
    """The kind of examples."""
    dataset_name: str
    dataset: str
    """Folder in which the version is published."""
    written: str
    """Folder in which shards are written; the same folder if it is in the workspace."""
    snapshot: str
    labels: list[str]
    records: RecordFormat
    settings: dict[str, Any]
    """The settings that decide the bytes."""
    quality: dict[str, Any]
    """The facts about all examples that are known before one is written."""
    complete: bool
    """Whether the dataset is committed already. If so, `ranges` is empty."""
    ranges: list[str]
    """Plan files, one for each task."""
    in_label_map: bool
    """Whether the ids of the labels come from the label map of the dataset name, and not from a user's file."""
    listed_ns: int
    """When the listing of the snapshot began, in Unix nanoseconds."""
    table: dict[str, Any] = field(default_factory=dict)
    """The field `table` of `dataset.json`. Empty for images."""


def save_plan(plan: Plan, folder: Place) -> Place:
    """Write a plan into a folder, and return its file."""
    path = folder / "plan.json"
    storage.write_json(path, {"format": PLAN_FORMAT, **asdict(plan)}, indent=1, synced=True)
    storage.sync_folder(folder)
    return path


def load_plan(path: Place) -> Plan:
    """Read the plan that `save_plan` wrote to `path`.

    Raises SettingsError if the file is not a plan, or if it or its folder names a place that the administrator does not
    allow, and FormatError if another version of Tenfold wrote it.
    """
    require_folder(path.parent)
    require_outputs([path])
    try:
        content = storage.read_json(path)
        require_format(content.pop("format", None), PLAN_FORMAT, path, PLAN_AGAIN)
        plan = Plan(**{**content, "records": RecordFormat(**content["records"])})
        require_outputs(map(place_of, (plan.dataset, plan.written, plan.snapshot, *plan.ranges)))
        of_name = place_of(plan.dataset).parent
        require_outputs([of_name, of_name / "labels", of_name / "partitions"])
        require_folder(place_of(plan.dataset))
        return plan
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} does not contain a plan: give the path that `shard` returned") from error
