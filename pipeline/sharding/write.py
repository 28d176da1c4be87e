"""Plan file -> shards. Examples are read, examined and written one by one, or few at a time."""

import platform
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from pipeline import storage
from pipeline.dataset.index_files import crc32c_text, has_index, index_name, write_index
from pipeline.errors import SettingsError
from pipeline.plan.example_kind import kind_of
from pipeline.plan.examples import Examples, Sums
from pipeline.plan.merge import merged_lines, read_pieces
from pipeline.plan.range_plan import CLEAR_PLAN, RangePlan, ShardSpec, load_range, open_range
from pipeline.plan.results import load_result, remove_torn, results_folder, save_result
from pipeline.records.record_index import index_of
from pipeline.records.tfrecord import Writer, writer_of
from pipeline.storage import Place, place_of
from pipeline.system.arrow import one_thread
from pipeline.system.parallel import OneBehind
from pipeline.system.progress import Advance


@one_thread()
def write_range(plan_path: Place, advance: Advance) -> None:
    """Write the shards of one plan file that are not finished yet. Calls `advance` for every example.

    Raises:
        SourceError: If an example vanished or changed since the snapshot, or if the administrator does not allow it.
        ConflictError: If another file has the name of a shard.
        SettingsError: If the codecs of this machine differ from those of the machine that made the plan, or if the
            administrator does not allow a place that the plan names.
    """
    with open_range(plan_path) as (range_plan, file):
        pieces = read_pieces(file)
        _require_codecs(range_plan)
        # An attempt that was killed may have left temporary files.
        storage.sweep(results_folder(plan_path))
        finished = {spec for spec in range_plan.shards if _is_finished(plan_path, range_plan, spec)}
        advance(sum(spec.examples for spec in finished))
        # One stream for all shards: while a shard is uploaded, the examples of the next one are downloaded.
        lines = _lines(merged_lines(pieces), range_plan.shards, finished)
        examples = kind_of(range_plan).examples(range_plan)
        rows = examples.read(lines)
        # A disk takes as long to sync a shard as this process takes to write it, so both happen at the same time.
        with OneBehind() as behind:
            for spec in range_plan.shards:
                if spec not in finished:
                    _remove_torn(plan_path, range_plan, spec)
                    path = place_of(range_plan.written) / spec.name
                    complete = _write(path, spec, examples, islice(rows, spec.examples), advance, behind.wait)
                    behind.submit(partial(complete, plan_path))


def write_plan_file(path: str) -> int:
    """Do the same as `write_range`, as the task of an engine. Return the number of examples.

    The administrator of the machine of the task may allow other places than that of the caller.
    """
    plan_path = place_of(path)
    write_range(plan_path, lambda _count, _size=0: None)
    return load_range(plan_path).examples


def _require_codecs(range_plan: RangePlan) -> None:
    """Refuse to write with codecs that may give other bytes than the version promises."""
    planned = range_plan.codecs
    gzip = range_plan.records.compression == "gzip"
    here = kind_of(range_plan).codecs(gzip=gzip, perceptual_hash="imagehash" in planned)
    different = [
        f"{name} is {here.get(name, 'missing')} instead of {planned.get(name, 'missing')}"
        for name in sorted({*planned, *here})
        if planned.get(name) != here.get(name)
    ]
    if different:
        raise SettingsError(
            f"this machine ({platform.node()}) might write other bytes than version {range_plan.version} promises, "
            f"because its codecs differ from those of the machine that made the plan ({'; '.join(different)}): install "
            "the same packages on all machines, then make the plan again with `build` or `shard` (in Airflow: "
            f"{CLEAR_PLAN})"
        )


def _is_finished(plan_path: Place, range_plan: RangePlan, spec: ShardSpec) -> bool:
    result = load_result(plan_path, spec.name)
    if result is None:
        return False
    places = (place_of(folder) / spec.name for folder in (range_plan.written, range_plan.published))
    # The size is enough here: before a shard is published, its whole content is verified.
    return any(place.exists() and place.stat().st_size == result.bytes for place in places)


def _remove_torn(plan_path: Place, range_plan: RangePlan, spec: ShardSpec) -> None:
    """Remove a shard that was written completely, and whose file has other content since then."""
    result, path = load_result(plan_path, spec.name), place_of(range_plan.written) / spec.name
    # Without a result, `write_new` compares the file with the new one instead.
    if result is not None and path.exists():
        remove_torn(path, result)


def _lines(rows: Iterator[bytes], specs: Sequence[ShardSpec], finished: Collection[ShardSpec]) -> Iterator[bytes]:
    """Yield the rows of the shards that are not finished."""
    for spec in specs:
        lines = islice(rows, spec.examples)
        if spec in finished:
            deque(lines, maxlen=0)  # Skip to the rows of the next shard.
        else:
            yield from lines


def _write(
    path: Place,
    spec: ShardSpec,
    examples: Examples,
    rows: Iterable[Any],
    advance: Advance,
    wait_for_last: Callable[[], None],
) -> Callable[[Place], None]:
    """Write some rows as the records of a shard, then wait for the shard before it. Return what completes it."""
    sums = examples.sums()
    with ExitStack() as stack:
        # The shard is synced, because the commit relies on it after a power loss.
        file = stack.enter_context(storage.write_new(path, synced=True))
        records = writer_of(path, file)
        examples.write(rows, records, sums, advance)
        records.close()
        wait_for_last()  # Here, an error of the shard before it still removes the file of this one.
        return partial(_complete, path=path, spec=spec, records=records, sums=sums, file=stack.pop_all())


def _complete(plan_path: Place, path: Place, spec: ShardSpec, records: Writer, sums: Sums, file: ExitStack) -> None:
    """Complete a shard, then write its index and its result. Each file is complete or absent."""
    file.close()  # This syncs the file of the records and gives it its name.
    result = sums.result(spec, records)
    if has_index(spec.name):
        assert sum(records.sizes) == records.size, "the writer did not count each record"
        index = index_of(records.sizes)
        write_index(path.parent / index_name(spec.name), index)
        result = replace(result, index_bytes=len(index), index_crc32c=crc32c_text(index))
    save_result(plan_path, result, bytes(sums.hashes))
