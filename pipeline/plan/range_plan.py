"""A range of shards, which one task writes. It is the first line of a plan file. The pieces of their rows follow.

This module is light to import, like all modules of a shard task, which starts in tenths of a second.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from pipeline.config.allowed import require_output, require_outputs
from pipeline.dataset.index_files import INDEX_FOLDER
from pipeline.errors import SettingsError, require_format
from pipeline.images.examine import Rules
from pipeline.plan.results import result_files
from pipeline.records.format import RecordFormat
from pipeline.snapshot.raw_example import Origin
from pipeline.storage import Place, place_of

WRITER_VERSION = 3
"""Increase this if the same examples with the same codecs would give other bytes. All datasets then get new
versions."""

PLAN_FORMAT = 5
"""The format of plan files and of the whole plan, `plan.json`."""
CLEAR_PLAN = "clear `shard.plan` and all tasks after it, or `extract` if that task failed"
"""How to make a plan again in Airflow. For a small dataset, `extract` makes it."""
PLAN_AGAIN = f"run the `shard` stage again, from its plan (in Airflow: {CLEAR_PLAN})"
"""What to do about a plan that cannot be used."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""The name of a shard. It leads into no other folder."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One planned shard: its file name, its split, and its number of examples."""

    name: str
    split: str
    examples: int


@dataclass(frozen=True)
class RangePlan:
    """The first line of a plan file."""

    version: str
    kind: str
    """The kind of examples."""
    origin: Origin
    labels: list[str]
    texts: dict[str, str]
    records: RecordFormat
    rules: Rules
    shards: list[ShardSpec]
    written: str
    """Folder in which shards are written."""
    published: str
    """Folder in which shards are published; the same folder if it is in the workspace."""
    codecs: dict[str, str]
    """The `codec_versions` of the version."""
    table: dict[str, Any] = field(default_factory=dict)
    """The schema of a table. Empty for images."""

    @property
    def examples(self) -> int:
        """Number of examples in all shards."""
        return sum(spec.examples for spec in self.shards)


def to_header(range_plan: RangePlan) -> bytes:
    """Return the first line of a plan file."""
    content = {"format": PLAN_FORMAT, "writer": WRITER_VERSION, **asdict(range_plan)}
    return json.dumps(content).encode() + b"\n"


def load_range(path: Place) -> RangePlan:
    """Read only the first line of a plan file. Raises what `open_range` does."""
    with open_range(path) as (range_plan, _):
        return range_plan


@contextmanager
def open_range(path: Place) -> Iterator[tuple[RangePlan, IO[bytes]]]:
    """Open a plan file, and give the content of its first line, and the file from its pieces on.

    Raises:
        SettingsError: If the file is or names a place that the administrator does not allow.
        FormatError: If another version of Tenfold wrote the plan, or would write other bytes.
    """
    require_output(path)
    with path.open("rb") as file:
        range_plan = _read_range(file, path)
        _require_allowed(range_plan, path)
        yield range_plan, file


def _require_allowed(range_plan: RangePlan, path: Place) -> None:
    """Refuse the places that a plan file names, apart from its pieces and rows, which are checked as they are read."""
    names = [spec.name for spec in range_plan.shards]
    if foreign := next((name for name in names if not _NAME.fullmatch(name)), None):
        raise SettingsError(f"Tenfold never gives a shard the name {foreign!r}: {PLAN_AGAIN}")
    require_outputs(file for name in names for file in result_files(path, name))
    for folder in map(place_of, {range_plan.written, range_plan.published}):
        require_outputs([folder, folder / INDEX_FOLDER, *(folder / name for name in names)])
    if range_plan.origin.cache:
        require_output(place_of(range_plan.origin.cache))


def _read_range(file: IO[bytes], path: Place) -> RangePlan:
    content = json.loads(file.readline())
    require_format(content.pop("format", None), PLAN_FORMAT, path, PLAN_AGAIN)
    # The version of the dataset identifies the bytes that the writer of that time would write.
    require_format(content.pop("writer", None), WRITER_VERSION, path, PLAN_AGAIN)
    content["shards"] = [ShardSpec(**spec) for spec in content["shards"]]
    content["records"], content["rules"] = RecordFormat(**content["records"]), Rules(**content["rules"])
    content["origin"] = Origin(**content["origin"])
    return RangePlan(**content)


def describe_range(specs: Sequence[ShardSpec]) -> str:
    """Return a range of shards as text: "train 5 to 9 of 10", "train 10 of 12 to validation 2 of 3"."""
    (first_split, first, first_of), (last_split, last, last_of) = (_parts(spec.name) for spec in (specs[0], specs[-1]))
    if first_split != last_split:
        return f"{first_split} {first} of {first_of} to {last_split} {last} of {last_of}"
    return f"{first_split} {first} to {last} of {last_of}" if first != last else f"{first_split} {first} of {first_of}"


def _parts(name: str) -> tuple[str, int, int]:
    split, index, _, shards = name.partition(".")[0].split("-")
    return split, int(index), int(shards)
