"""How PyArrow works in this process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

from typing_extensions import override

from pipeline.system.environment import environment_with
from pipeline.system.malloc import return_freed_memory

if TYPE_CHECKING:
    import pyarrow as pa

ONE_THREAD = {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
"""Environment of a process in which Arrow and NumPy's OpenBLAS start one thread each, and not one for each core."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let Arrow use one thread in a task, because a machine makes a call for each of its cores.

    Arrow reads the environment when it is loaded. The process of a cluster may have loaded it before.
    """
    arrow = sys.modules.get("pyarrow")
    before = (arrow.cpu_count(), arrow.io_thread_count()) if arrow else None
    with environment_with(ONE_THREAD):
        try:
            if arrow:
                arrow.set_cpu_count(1)
                arrow.set_io_thread_count(1)
            yield
        finally:
            if arrow and before:
                arrow.set_cpu_count(before[0])
                arrow.set_io_thread_count(before[1])


@contextmanager
def little_memory() -> Iterator[None]:
    """Let Arrow allocate memory as Python does, and return what is free at the end to the system.

    Its usual allocator keeps up to 100 MB for later. This holds for all threads of the process, and memory that was
    allocated before stays in its pool.
    """
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        return_freed_memory()


class _WithoutPandas(MetaPathFinder):
    """Finds no pandas."""

    @override
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("Arrow needs no pandas here", name=fullname)


def never_import_pandas() -> None:
    """Keep this process from importing pandas, as `leave_out_pandas` does, without loading Arrow now."""
    sys.meta_path.insert(0, _WithoutPandas())


def leave_out_pandas() -> None:
    """Keep Arrow from importing pandas in a process of our own, which takes 0.3 s and is of no use there.

    Arrow looks for pandas only once, when it first converts an object of Python. Seen in PyArrow 26.0. Afterwards, it
    takes a column of pandas for a plain sequence, so do not call this function in a process that runs a user's code.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(finder)


def without_views(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return a batch whose types are those of `plain_schema`.

    A Parquet file that Arrow wrote keeps views of texts and bytes. Arrow can neither sort nor filter rows with them.
    Seen in PyArrow 26.0.
    """
    schema = plain_schema(batch.schema)
    return batch if schema == batch.schema else batch.cast(schema)


def plain_schema(schema: "pa.Schema") -> "pa.Schema":
    """Return a schema with texts and bytes in place of views of them, also within lists and structs."""
    import pyarrow as pa

    return pa.schema(map(_plain_field, schema), schema.metadata)


def _plain_field(field: "pa.Field") -> "pa.Field":
    import pyarrow as pa

    kind, types = field.type, pa.types
    if types.is_string_view(kind):
        return field.with_type(pa.large_string())
    if types.is_binary_view(kind):
        return field.with_type(pa.large_binary())
    if types.is_struct(kind):
        return field.with_type(pa.struct(list(map(_plain_field, kind))))
    if types.is_list(kind):
        return field.with_type(pa.list_(_plain_field(kind.value_field)))
    if types.is_large_list(kind):
        return field.with_type(pa.large_list(_plain_field(kind.value_field)))
    if types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(_plain_field(kind.value_field), kind.list_size))
    return field
