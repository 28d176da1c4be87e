"""Publish shards: copy what is missing, and verify every byte."""

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from pipeline import storage
from pipeline.dataset.index_files import INDEX_FOLDER, crc32c_text, index_name, scan_shard, write_index
from pipeline.dataset.manifest import PARALLEL_REQUESTS, load
from pipeline.errors import ConflictError, DatasetError, FileSystemError
from pipeline.plan.plan import Plan
from pipeline.plan.range_plan import RangePlan
from pipeline.plan.results import ShardResult, remove_torn
from pipeline.records.record_index import index_of
from pipeline.sharding.finished_shards import finished_shards
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map
from pipeline.system.progress import Advance

COPIERS = 8
"""This many threads copy shards. Threads suffice: they wait for disk and bucket, and C computes the checksums."""


def copy_range(plan_path: Place, advance: Advance) -> None:
    """Copy the shards of one plan file to the folder of the dataset, unless they are there already, and verify them.

    Calls `advance` for every shard with its bytes.

    Raises FileSystemError if a shard is missing, DatasetError if it is damaged, ConflictError if another file has its
    name.
    """
    range_plan, results = finished_shards(plan_path)
    torn = set()
    are_sound = ordered_map(partial(_publish, range_plan), results, COPIERS)
    for result, is_sound in zip(results, are_sound, strict=True):
        if is_sound:
            advance(1, result.bytes)
        else:
            torn.add(result.name)
    if torn:
        _write_again(plan_path, torn, advance)
    # The commit relies on these names: after a power loss, it must not exist without its shards.
    published = place_of(range_plan.published)
    if any(result.index_crc32c for result in results):
        storage.sync_folder(published / INDEX_FOLDER)
    storage.sync_folder(published)


def _write_again(plan_path: Place, torn: Collection[str], advance: Advance) -> None:
    """Write and publish shards again whose files lost content, as after a power loss."""
    from pipeline.sharding.write import write_range  # Imports the decoders, which are nearly never needed here.

    write_range(plan_path, lambda *_: None)
    range_plan, results = finished_shards(plan_path)
    for result in (result for result in results if result.name in torn):
        if not _publish(range_plan, result):
            raise DatasetError(f"{result.name} of {plan_path} was damaged twice: check the disk, and run again")
        advance(1, result.bytes)


def _publish(range_plan: RangePlan, result: ShardResult) -> bool:
    """Copy a shard and its index unless they are there. Returns whether the shard is complete, as `_publish_shard`."""
    is_sound = _publish_shard(range_plan, result)
    if is_sound and result.index_crc32c:
        _publish_index(range_plan, result)
    return is_sound


def _publish_index(range_plan: RangePlan, result: ShardResult) -> None:
    """Copy the index of a published shard unless it is there. If it was lost or damaged, make it from the shard."""
    published, name = place_of(range_plan.published), index_name(result.name)
    if _crc32c(published / name) == result.index_crc32c:
        return
    index = b""
    with suppress(FileNotFoundError):  # Another attempt may have published the shard and removed the written files.
        index = (place_of(range_plan.written) / name).read_bytes()
    if crc32c_text(index) != result.index_crc32c:
        index = index_of(scan_shard(published / result.name))
    write_index(published / name, index)


def _publish_shard(range_plan: RangePlan, result: ShardResult) -> bool:
    """Copy a shard unless it is there. Returns whether its file is complete. A torn file is removed."""
    written, target = place_of(range_plan.written) / result.name, place_of(range_plan.published) / result.name
    if not target.exists():
        # The written file may be missing: another attempt may have published and removed it. `_copy` notices that.
        if _crc32c(written) not in (None, result.crc32c) and remove_torn(written, result):
            return False  # A torn shard is never published.
        _copy(written, target)
    crc32c = _crc32c(target)
    if crc32c == result.crc32c:
        return True
    if crc32c is None:  # Another attempt found it torn, and writes it again.
        return False
    # Only a file that this workspace wrote may be removed. A published file that differs belongs to somebody else.
    if written == target and remove_torn(target, result):
        return False
    raise ConflictError(
        f"{target} has CRC32C {crc32c}, but {result.crc32c} was expected. The file was left untouched: move it away "
        "and run again"
    )


def _crc32c(place: Place) -> str | None:
    try:
        return f"{storage.crc32c_of(place):08x}"
    except FileNotFoundError:
        return None


def copy_size(plan_path: Place) -> tuple[int, int]:
    """Return the number of shards that `copy_range` publishes, and their bytes.

    Raises FileSystemError if one was not written.
    """
    results = finished_shards(plan_path)[1]
    return len(results), sum(result.bytes for result in results)


def _copy(written: Place, target: Place) -> None:
    """Copy a shard. Another attempt of this task may publish it and remove the written copy at the same time.

    Raises FileSystemError if this host sees neither of the two files. Another host may have written one just now.
    """
    with suppress(FileNotFoundError):
        storage.copy_new(written, target)
        return
    for folder in (written.parent, target.parent):
        storage.refresh(folder)
    if target.exists():
        return
    try:
        storage.copy_new(written, target)
    except FileNotFoundError as error:
        if not target.exists():
            raise FileSystemError(
                f"{written} is missing, or this host does not see it yet, so {target} was not published: run again, or "
                "run the shard stage again"
            ) from error


def remove_copied(plan: Plan) -> None:
    """Remove the written shards that were copied elsewhere. Another attempt that is still writing is not disturbed."""
    written = place_of(plan.written)
    # The shards were written in their final folder. Nothing was copied.
    if written == place_of(plan.dataset):
        return
    shards = load(place_of(plan.dataset)).shards
    names = (name for shard in shards for name in (shard.name, index_name(shard.name) if shard.index_crc32c else ""))
    for _ in ordered_map(lambda name: (written / name).unlink(missing_ok=True), filter(None, names), PARALLEL_REQUESTS):
        pass
    if isinstance(written, Path):
        for folder in (written / INDEX_FOLDER, written):
            with suppress(OSError):  # The folder does not exist or is not empty.
                folder.rmdir()
