"""Functions that the contract tests let an engine call. Each gets the place of a file, and returns a count."""

import io
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from pipeline.config.allowed import SOURCES
from pipeline.errors import SourceError, StorageError
from pipeline.system.kernel import number as number_in
from tests.waiting import simulated_work, until

COUNT = 2


def write(place: str) -> int:
    """Write the file."""
    Path(place).write_text("done")
    return COUNT


def refuse_the_first(place: str) -> int:
    """Raise an error that no retry repairs, for one place."""
    if _number(place) == 0:
        raise SourceError(f"{Path(place).name} changed after it was listed: run again")
    return write(place)


def refuse_beside_a_long_call(place: str) -> int:
    """Raise an error for the first place as soon as the second one is being worked on, which takes long."""
    began = Path(place).with_name("the second call began")
    if _number(place) == 0:
        until(began.exists)
        raise SourceError(f"{Path(place).name} changed after it was listed: run again")
    began.touch()
    simulated_work(30)
    return write(place)


def fail_once(place: str) -> int:
    """Raise an error in the first call for each fourth place."""
    if _number(place) % 4 == 0 and _is_first_call(place):
        raise StorageError("the bucket did not answer")
    return write(place)


def fail_always(place: str) -> int:
    """Raise an error in each call for one place."""
    if _number(place) == 1:
        with Path(f"{place}.calls").open("a") as file:
            file.write("x")
        raise StorageError("the bucket did not answer:\ntry again later")
    return write(place)


def be_killed_once(place: str) -> int:
    """Kill this process in the first call for two places."""
    if _number(place) in (1, 3) and _is_first_call(place):
        os.kill(os.getpid(), signal.SIGKILL)
    return write(place)


def be_killed_first(place: str) -> int:
    """Kill this process in the first call for the first place."""
    if _number(place) == 0 and _is_first_call(place):
        os.kill(os.getpid(), signal.SIGKILL)
    return write(place)


def be_killed_always(place: str) -> int:
    """Kill this process in each call for the first place."""
    if _number(place) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(place)


def convert_without_pandas(place: str) -> int:
    """Write whether Arrow imported pandas for a conversion, which it does by default."""
    assert pa.array(["a", None]).to_pylist() == ["a", None]
    Path(place).write_text(str("pandas" in sys.modules))
    return COUNT


def tell_process(place: str) -> int:
    """Write the number of this process."""
    Path(place).write_text(str(os.getpid()))
    return COUNT


def count_threads(place: str) -> int:
    """Let Arrow and NumPy compute with as many threads as they like, and write how many this process has then."""
    columns = pa.table({str(number): np.arange(200_000) for number in range(8)})
    file = Path(f"{place}.parquet")
    parquet.write_table(columns, file, row_group_size=20_000)
    buffer = io.BytesIO()
    csv.write_csv(parquet.read_table(file), buffer)
    csv.read_csv(io.BytesIO(buffer.getvalue()))
    square = np.ones((1000, 1000))
    square @ square
    Path(place).write_text(str(number_in(Path("/proc/self/status").read_bytes(), "Threads")))
    return COUNT


def be_alone(place: str) -> int:
    """Raise an error if another call runs in this process."""
    marker = Path(place).with_name(f"process {os.getpid()} is busy")
    try:
        marker.touch(exist_ok=False)
    except FileExistsError as error:
        raise SourceError(f"{marker.name}: an engine must make one call at a time") from error
    simulated_work(0.1)
    marker.unlink()
    return write(place)


def tell_sources(place: str) -> int:
    """Write which sources the administrator allows in this process."""
    Path(place).write_text(os.environ.get(SOURCES, "nothing"))
    return COUNT


def _number(place: str) -> int:
    return int(Path(place).stem)


def _is_first_call(place: str) -> bool:
    marker = Path(f"{place}.called")
    is_first = not marker.exists()
    marker.touch()
    return is_first
