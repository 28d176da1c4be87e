"""The mean over GPUs is the same in a row, in a table and in the load."""

import numpy as np
import pandas
import pytest

from pipeline.monitor import gpu_columns
from pipeline.monitor.load import is_of_load, load_of

BUSY = {0: 20.0, 1: 60.0, 10: 70.0}


def samples(busy: dict[int, float]) -> pandas.DataFrame:
    columns = {f"gpu/{number}/util_pct": value for number, value in busy.items()}
    return pandas.DataFrame(
        {"time": [1.0, 2.0], "step": [1, 2], "sys/cpu_pct": 90.0, **columns, "gpu/0/power_w": 300.0}
    )


def test_mean_over_gpus_replaces_the_values_of_each_gpu() -> None:
    row = {"sys/cpu_pct": 5.0, **{f"gpu/{number}/util_pct": busy for number, busy in BUSY.items()}}
    assert gpu_columns.mean_over_gpus(row) == {"sys/cpu_pct": 5.0, "gpu/util_pct": 50.0}


def test_all_columns_of_the_load_are_known() -> None:
    """Of a long record, only these columns are read."""
    read: set[str] = set()

    class Asked(dict[str, list[float]]):
        def __contains__(self, column: object) -> bool:
            read.add(str(column))
            return False

    load_of(Asked({"time": [1.0], "gpu/0/util_pct": [1.0], "gpu/0/compute_capability": [8.0]}))
    assert len(read) > 15
    assert all(map(is_of_load, read))
    assert not is_of_load("gpu/0/power_w")


def test_table_and_load_have_the_same_mean_over_gpus() -> None:
    table = samples(BUSY)
    assert gpu_columns.with_gpus_together(table)["gpu/util_pct"].tolist() == [50.0, 50.0]
    assert gpu_columns.busy_pct(table).tolist() == [50.0, 50.0]
    assert load_of(table).gpu == 50.0


def test_a_gpu_without_a_value_is_not_in_the_mean() -> None:
    table = samples({0: 20.0, 1: np.nan})
    assert gpu_columns.busy_pct(table).tolist() == [20.0, 20.0]
    assert load_of(table).gpu == 20.0


def test_the_processor_counts_if_there_is_no_gpu() -> None:
    table = samples({})
    assert gpu_columns.busy_pct(table).tolist() == [90.0, 90.0]
    assert "gpu/util_pct" not in gpu_columns.with_gpus_together(table)
    assert load_of(table).gpu is None


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("gpu/0/util_pct", True),
        ("gpu/12/throttled_thermal", True),
        ("gpu/0/pcie_rx_Bps", False),
        ("gpu/util_pct", False),
        ("sys/cpu_pct", False),
    ],
)
def test_only_some_gpu_columns_are_combined(column: str, expected: bool) -> None:
    assert gpu_columns.is_combined(column) is expected
