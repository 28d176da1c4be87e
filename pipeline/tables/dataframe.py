"""A DataFrame of Spark -> snapshot: its partitions are listed where they are.

Only facts about columns and the descriptions of parts pass through the driver. Seen in PySpark 4.3.
"""

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline import storage
from pipeline.config import Settings
from pipeline.snapshot.listing import listing_from
from pipeline.storage import Place
from pipeline.tables.extract import columns_of, list_rows, save_listed
from pipeline.tables.infer import Inference
from pipeline.tables.source import RawBatch
from pipeline.workspace import snapshots_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterable[pa.RecordBatch]


def list_dataframe(frame: "DataFrame", settings: Settings) -> Place:
    """List the rows of a DataFrame, and return the file of the snapshot.

    The DataFrame is computed twice, so it must give the same rows again: cache it if its computation is slow. All
    executors must reach the workspace.

    Raises:
        SourceError: If a type is not supported, there is no row that can be used, or the rows change meanwhile.
        SettingsError: If a setting names a column that the DataFrame does not have.
    """
    started_ns = time.time_ns()
    storage.sweep(snapshots_folder(settings))
    columns = columns_of(settings)
    total = Inference(columns)

    def infer(batches: Batches) -> bytes:
        inference = Inference(columns)
        for batch in batches:
            inference.add(batch)
        return pickle.dumps(inference)

    for state in _of_partitions(frame, infer):
        total.merge(pickle.loads(state))  # noqa: S301 - our own tasks made it
    schema = total.schema()

    def listed(batches: Batches) -> bytes:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context else 0
        raws = (RawBatch(batch, []) for batch in batches)
        return json.dumps(asdict(list_rows(raws, schema, settings, f"partition {number}, row "))).encode()

    listings = [listing_from(json.loads(content)) for content in _of_partitions(frame, listed)]
    return save_listed(settings, schema, started_ns, [each for each in listings if each.listed])


def _of_partitions(frame: "DataFrame", work: Callable[[Batches], bytes]) -> list[bytes]:
    """Return the result of `work` for each partition, in their order."""

    def results(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"result": pa.array([work(batches)], pa.binary())})

    rows: list[Any] = frame.mapInArrow(results, "result binary").collect()
    return [bytes(row["result"]) for row in rows]
