"""The fields of structs as columns: the field `lat` of the struct `geo` is the column `geo.lat`.

The columns have plain types in place of views.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

import pyarrow as pa

from pipeline.system.arrow import plain_schema, without_views


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which the fields of structs, also of those within structs, are columns."""
    return pa.schema(_leaves(plain_schema(schema)), schema.metadata)


def flat_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose schema is that of `flat_schema`. The fields of a missing struct are missing."""
    batch = without_views(batch)
    if not any(map(_has_fields, batch.schema.types)):
        return batch
    arrays = [part for column in batch.columns for part in _parts(column)]
    return pa.RecordBatch.from_arrays(arrays, schema=flat_schema(batch.schema))


def changed(
    fields: Iterable[pa.Field], change: Callable[[str, pa.Field], pa.Field | None], prefix: str = ""
) -> list[pa.Field]:
    """Return fields with `change(name, field)` in place of each column, which also leaves out columns."""
    found = []
    for field in fields:
        name = prefix + field.name
        if not _has_fields(field.type):
            made = change(name, field)
        else:
            parts = changed(field.type, change, f"{name}.")
            made = field.with_type(pa.struct(parts)) if parts else None
        found += [made] if made else []
    return found


def paths_to(name: str) -> list[str]:
    """Return the names of the structs that may hold a column, and its own, such as `geo` and `geo.lat`."""
    return list(accumulate(name.split("."), "{}.{}".format))


def _leaves(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[pa.Field]:
    for field in fields:
        name = prefix + field.name
        if _has_fields(field.type):
            yield from _leaves(field.type, f"{name}.")
        else:
            # A field that is never missing is missing if its struct is.
            yield field.with_name(name).with_nullable(True)


def _parts(array: pa.Array) -> Iterator[pa.Array]:
    if not _has_fields(array.type):
        yield array
        return
    for part in array.flatten():
        yield from _parts(part)


def _has_fields(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.num_fields)
