"""PyArrow in the processes of tasks."""

from pathlib import Path

import pyarrow as pa

from pipeline.system.arrow import one_thread
from tests.engines.calls import HERE, Call


def test_a_task_has_one_thread_of_arrow_and_leaves_the_number_as_it_was():
    before = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(3)
    pa.set_io_thread_count(5)
    try:
        with one_thread():
            assert (pa.cpu_count(), pa.io_thread_count()) == (1, 1)
        assert (pa.cpu_count(), pa.io_thread_count()) == (3, 5)
    finally:
        pa.set_cpu_count(before[0])
        pa.set_io_thread_count(before[1])


def test_a_worker_process_converts_values_without_pandas(tmp_path: Path):
    """If this fails after an upgrade of PyArrow, it looks for pandas in another way."""
    assert set(Call(HERE, "convert_without_pandas", tmp_path, places=2).written.values()) == {"False"}
