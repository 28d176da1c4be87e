"""What was written of each shard. The file of a result marks its shard as finished."""

import json
from dataclasses import dataclass, field
from typing import Any

from pipeline import storage
from pipeline.storage import Place


@dataclass(frozen=True)
class ShardResult:
    """What was written of one shard; its file marks the shard as finished."""

    name: str
    split: str
    examples: int
    bytes: int
    crc32c: str
    classes: dict[str, int]
    rejected: list[dict[str, str]]
    misnamed: int
    """Images whose name says another format than their first bytes."""
    statistics: dict[str, Any]
    perceptual_hashes: list[tuple[str, int]] = field(default_factory=list)
    """Key and hash of each image, where near-duplicates are looked for."""
    profiles: dict[str, int] = field(default_factory=dict)
    """Images by what became of an ICC profile that is not sRGB: converted or ignored."""


def results_folder(plan_path: Place) -> Place:
    """Where the results of shards are kept, beside the plans."""
    return plan_path.parent.parent / "results"


def load_result(plan_path: Place, shard: str) -> ShardResult | None:
    """What was written of a shard, if it was finished; a file that is damaged says nothing of it."""
    try:
        return ShardResult(**storage.read_json(results_folder(plan_path) / f"{shard}.json"))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def save_result(plan_path: Place, result: ShardResult) -> None:
    """Say that a shard is finished."""
    with storage.write_whole(results_folder(plan_path) / f"{result.name}.json") as file:
        file.write(json.dumps(vars(result)).encode())
