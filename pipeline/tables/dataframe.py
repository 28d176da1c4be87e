"""A DataFrame of Spark -> snapshot: its partitions are listed where they are.

Only facts about columns and the descriptions of parts pass through the driver. Seen in PySpark 4.3.
"""

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline import storage
from pipeline.config.allowed import allowlists, require_output
from pipeline.config.settings import Settings
from pipeline.engines.task import default_environment, error_of_cluster, reported
from pipeline.errors import SourceError, TenfoldError
from pipeline.snapshot.listing import listing_from
from pipeline.snapshot.part import Arrange
from pipeline.storage import Place
from pipeline.tables.extract import list_rows, save_listed
from pipeline.tables.infer import Inference, require_classes, require_columns
from pipeline.tables.options import table_options
from pipeline.tables.selection import Chooser, Selection
from pipeline.tables.source import RawBatch, without_empty_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

Batches = Iterable[pa.RecordBatch]


def list_dataframe(frame: "DataFrame", settings: Settings, arrange: Arrange) -> Place:
    """List the rows of a DataFrame, and return the file of the snapshot.

    `arrange` decides the order in which the lines of a part are stored: see `write_parts`.

    The DataFrame is computed twice, so it must give the same rows again: cache it if its computation is slow. All
    executors must reach the workspace.

    Raises:
        SourceError: If a type is not supported, there is no row that can be used, or the rows change meanwhile.
        SettingsError: If a setting names a column that the DataFrame does not have, or leaves none to learn from.
    """
    options = table_options(settings, arrange)
    names = frame.columns
    if not all(name.strip() for name in names):
        raise SourceError("the DataFrame has a column without a name: name it")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(f"the DataFrame has two columns {twice!r}: rename one")
    frame, chooser = _selected(frame, options.selection)
    names, left_out = list(chooser.names), dict(chooser.left_out)
    require_columns(options.columns, names)
    started_ns = time.time_ns()
    storage.sweep(options.folder)
    total = Inference(options.columns)

    def raws_of(batches: Batches) -> Iterator[RawBatch]:
        number = 1
        for batch in batches:
            raw = RawBatch(batch.rename_columns(names), [], left_out=left_out, prefix=_prefix(), first_number=number)
            number += raw.rows
            yield without_empty_rows(raw, names)

    def infer(batches: Batches) -> bytes:
        inference = Inference(options.columns)
        for raw in raws_of(batches):
            inference.add(raw)
        return pickle.dumps(inference)

    for state in _of_partitions(frame, infer):
        total.merge(pickle.loads(state))  # noqa: S301 - our own tasks made it
    schema = total.schema()
    require_classes(schema, options.source_uri)

    def listed(batches: Batches) -> bytes:
        listing = list_rows(raws_of(batches), schema, options, _prefix())
        return json.dumps(asdict(listing)).encode()

    made = _of_partitions(frame, partial(_allowed, listed, allowlists(), options.folder))
    listings = [listing_from(json.loads(content)) for content in made]
    return save_listed(options, schema, started_ns, [each for each in listings if each.listed])


def _prefix() -> str:
    """Return what comes before the number of a row of this partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"partition {context.partitionId() if context else 0}, row "


def _selected(frame: "DataFrame", selection: Selection) -> tuple["DataFrame", Chooser]:
    """Return the selected columns of a DataFrame in the order of their names in the chooser. No row is computed.

    Their names are replaced by numbers, because `mapInArrow` of PySpark 4.3 takes `geo.lat` for a field of a struct.
    Spark takes `A` for another spelling of `a`.
    """
    leaves = list(_leaves(frame.schema))
    chooser = Chooser(selection)
    chooser.choose(pa.schema([(".".join(path), _arrow_type(kind)) for path, kind in leaves]), "the DataFrame")
    paths = {".".join(path): path for path, _ in leaves}
    numbers = {name: f"c{number}" for number, name in enumerate(frame.columns)}
    numbered = frame.toDF(*numbers.values())
    columns = []
    for number, name in enumerate(chooser.names):
        column, *fields = paths[name]
        parts = [numbers[column], *(field.replace("`", "``") for field in fields)]
        columns.append(numbered[".".join(f"`{part}`" for part in parts)].alias(f"c{number}"))
    return numbered.select(columns), chooser


def _leaves(struct: "StructType", parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], "DataType"]]:
    """Yield the path and the type of each column. The fields of a struct are columns."""
    from pyspark.sql.types import StructType

    for field in struct.fields:
        path = (*parents, field.name)
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            yield from _leaves(field.dataType, path)
        else:
            yield path, field.dataType


def _arrow_type(kind: "DataType") -> pa.DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException:  # Arrow has no such type, so it is left out.
        return pa.opaque(pa.null(), kind.simpleString(), "spark")


def _allowed(
    work: Callable[[Batches], bytes], environment: Mapping[str, str], folder: Place, batches: Batches
) -> bytes:
    """Do some work on an executor, whose administrator may allow other places than that of the driver."""
    with default_environment(environment):
        require_output(folder)
        return work(batches)


def _of_partitions(frame: "DataFrame", work: Callable[[Batches], bytes]) -> list[bytes]:
    """Return the result of `work` for each partition, in their order.

    Raises:
        TenfoldError: The error of a partition, or an EngineError if Spark failed.
    """

    def results(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            result = work(batches)
        except TenfoldError as error:
            raise reported(error) from error
        yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})

    try:
        rows: list[Any] = frame.mapInArrow(results, "result binary").collect()
    except Exception as error:  # PySpark has many classes.
        raise error_of_cluster(error) from error
    return [bytes(row["result"]) for row in rows]
