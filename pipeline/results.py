"""What was written of each shard. The file of a result marks its shard as finished.

The content hashes of a shard are in a file of their own beside it, 16 bytes an example: as text in the result they
would take twice the room, and be read whenever it is.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from pipeline import storage
from pipeline.errors import DatasetError
from pipeline.storage import Place


@dataclass(frozen=True)
class ShardResult:
    """What was written of one shard; its file marks the shard as finished."""

    name: str
    split: str
    examples: int
    bytes: int
    crc32c: str
    ends: str
    """See `Shard.ends`."""
    classes: dict[str, int]
    rejected: list[dict[str, str]]
    misnamed: int
    """Images whose name says another format than their first bytes."""
    statistics: dict[str, Any]
    perceptual_hashes: list[tuple[str, int]] = field(default_factory=list)
    """Key and hash of each image, where near-duplicates are looked for."""
    profiles: dict[str, int] = field(default_factory=dict)
    """Images by what became of an ICC profile that is not sRGB: converted or ignored."""


@dataclass(frozen=True)
class WrittenShard:
    """A shard that was written just now."""

    result: ShardResult
    hashes: bytes
    """Content hash of each example (pipeline/content_hashes.py), in the order of the records."""


def results_folder(plan_path: Place) -> Place:
    """Where the results of shards are kept, beside the plans."""
    return plan_path.parent.parent / "results"


def load_result(plan_path: Place, shard: str) -> ShardResult | None:
    """What was written of a shard, if it was finished; a file that is damaged says nothing of it."""
    try:
        return ShardResult(**storage.read_json(results_folder(plan_path) / f"{shard}.json"))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def save_result(plan_path: Place, written: WrittenShard) -> None:
    """Keep what is known of a shard; the result comes last, and says that the shard is finished."""
    with storage.write_whole(hashes_path(plan_path, written.result.name)) as file:
        file.write(written.hashes)
    with storage.write_whole(results_folder(plan_path) / f"{written.result.name}.json") as file:
        file.write(json.dumps(vars(written.result)).encode())


def load_hashes(plan_path: Place, shard: str) -> bytes:
    """The content hashes of a finished shard. Raises DatasetError if they are missing."""
    path = hashes_path(plan_path, shard)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing: run the shard stage again") from error


def hashes_path(plan_path: Place, shard: str) -> Place:
    """The file of the content hashes of a shard."""
    return results_folder(plan_path) / f"{shard}.hashes"
