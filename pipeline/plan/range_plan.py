"""A range of shards, which one task writes. It is the first line of a plan file. The pieces of their rows follow.

This module is light to import, like all modules of a shard task, which starts in tenths of a second.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from pipeline.errors import require_format
from pipeline.images.examine import Rules
from pipeline.records.format import RecordFormat
from pipeline.snapshot.raw_example import Origin
from pipeline.storage import Place

WRITER_VERSION = 3
"""Increase this if the same examples with the same codecs would give other bytes. All datasets then get new
versions."""

PLAN_FORMAT = 4
"""The format of plan files and of the whole plan, `plan.json`."""
PLAN_AGAIN = "run the `shard` stage again, from its plan (in Airflow: clear `shard.plan` and all tasks after it)"
"""What to do about a plan that cannot be used."""


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
    """Read only the first line of a plan file."""
    with path.open("rb") as file:
        return read_range(file, path)


def read_range(file: IO[bytes], path: Place) -> RangePlan:
    """Read the first line of an open plan file, up to its pieces. `path` is the file.

    Raises FormatError if another version of Tenfold wrote the plan, or would write other bytes.
    """
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
