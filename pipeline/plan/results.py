"""The results of the shard tasks, one file per shard. The file marks its shard as finished.

The hashes of the examples of a shard are in a separate file beside the result, with 24 bytes per example. As text in
the result, they would take twice the space, and every reader of the result would read them.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c

from pipeline import storage
from pipeline.dataset.content_hashes import HASH_BYTES
from pipeline.dataset.manifest import is_committed
from pipeline.errors import DatasetError
from pipeline.storage import Place, local

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardResult:
    """The result of writing one shard. Its file marks the shard as finished."""

    name: str
    split: str
    examples: int
    bytes: int
    crc32c: str
    ends: str
    """See `Shard.ends`."""
    hashes_crc32c: str
    """CRC32C of the file of content hashes, as eight hexadecimal digits."""
    classes: dict[str, int]
    rejected: list[dict[str, str]]
    misnamed: int
    """Number of images whose suffix belongs to another format than their content."""
    statistics: dict[str, Any]
    perceptual_hashes: list[tuple[str, int]] = field(default_factory=list)
    """Key and hash of each image. Empty if near-duplicates are not looked for."""
    profiles: dict[str, int] = field(default_factory=dict)
    """Number of images whose ICC profile is not sRGB, by how the profile was used: converted or ignored."""
    index_bytes: int = 0
    index_crc32c: str = ""
    """See `Shard.index_crc32c`."""


def results_folder(plan_path: Place) -> Place:
    """Return the folder of the results of a plan, beside the folder of its plan files."""
    return plan_path.parent.parent / "results"


def load_result(plan_path: Place, shard: str) -> ShardResult | None:
    """Return the result of a finished shard; None if it is not finished, or if a file is damaged or truncated."""
    try:
        result = ShardResult(**storage.read_json(_result_path(plan_path, shard)))
        hashed = hashes_path(plan_path, shard).stat().st_size
    # A file that does not parse was torn by a power loss. Another version of Tenfold may have written other fields.
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return result if hashed == result.examples * HASH_BYTES else None


def save_result(plan_path: Place, result: ShardResult, hashes: bytes) -> None:
    """Store the hashes, then the result of a shard. The result is last, because it marks the shard as finished.

    `hashes` are those of its examples (pipeline/dataset/content_hashes.py), in the order of the records.
    """
    # Neither file is synced. `load_result` and `load_hashes` detect a file that a power loss tore, and the shard is
    # written again.
    with storage.write_whole(hashes_path(plan_path, result.name)) as file:
        file.write(hashes)
    storage.write_json(_result_path(plan_path, result.name), vars(result))


def remove_torn(path: Place, result: ShardResult) -> bool:
    """Remove the file of a shard if it does not hold what was written, as after a power loss.

    Returns whether it was removed. Only a local disk can tear a file. A file of a committed dataset stays, because
    `verify` judges it.
    """
    if not isinstance(path, Path) or is_committed(path.parent) or not local.remove_torn(path, int(result.crc32c, 16)):
        return False
    _log.warning(
        "%s does not have the CRC32C %s with which it was written: writing the shard again", path, result.crc32c
    )
    return True


def load_hashes(plan_path: Place, shard: str, crc32c: int) -> bytes:
    """Return the content hashes of a finished shard. `crc32c` is the CRC32C of their file.

    Raises DatasetError if a power loss tore the file. The shard then counts as unfinished.
    """
    path = hashes_path(plan_path, shard)
    hashes: bytes = path.read_bytes()
    if google_crc32c.value(hashes) != crc32c:
        _result_path(plan_path, shard).unlink(missing_ok=True)
        raise DatasetError(f"{path} is damaged: run the shard stage again")
    return hashes


def result_files(plan_path: Place, shard: str) -> tuple[Place, Place]:
    """Return the two files of the result of a shard."""
    return _result_path(plan_path, shard), hashes_path(plan_path, shard)


def hashes_path(plan_path: Place, shard: str) -> Place:
    """Return the file of the content hashes of a shard."""
    return results_folder(plan_path) / f"{shard}.hashes"


def _result_path(plan_path: Place, shard: str) -> Place:
    return results_folder(plan_path) / f"{shard}.json"
