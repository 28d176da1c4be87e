"""A DataFrame of a real Spark becomes the same dataset as the file with its rows."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.stages.build import build
from pipeline.tables.samples import write_sample_table
from tests.engines.environment import python_of

pytestmark = pytest.mark.long


def of_file(table: Path, **values: Any) -> dict[str, Any]:
    return build(settings_from({"example_kind": "table", "source_uri": str(table), "dataset_name": "t", **values}))


def of_dataframe(table: Path, partitions: int, **values: Any) -> subprocess.CompletedProcess[str]:
    command = [python_of("spark"), "-m", "tests.engines.dataframe", str(table), str(partitions), json.dumps(values)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_dataframe_gives_the_version_and_bytes_of_its_file(tmp_path: Path):
    table = tmp_path / "t.csv"
    write_sample_table(table, 5000)
    values = {"label_column": "churn", "key_column": "customer"}
    expected = of_file(table, workspace=str(tmp_path / "file"), **values)
    result = result_of(of_dataframe(table, 7, workspace=str(tmp_path / "frame"), **values))
    assert result["version"] == expected["version"]
    one, other = (load(Path(each["dataset"])) for each in (expected, result))
    assert [shard.crc32c for shard in one.splits["train"].shards] == [
        shard.crc32c for shard in other.splits["train"].shards
    ]
    assert one.table == other.table
    assert verify(Path(result["dataset"]))["ok"]


def test_the_columns_of_a_dataframe_are_selected_as_those_of_a_file(tmp_path: Path):
    rows = [
        {
            "geo": {"at": {"lat": number / 8, "lon`g": number}, "name": f"n{number}"} if number % 3 else None,
            "a.b": number,
            "id": number,
            "left": "x",
            "y": "yn"[number % 2],
        }
        for number in range(500)
    ]
    maps = pa.array([[("k", 1)]] * len(rows), pa.map_(pa.string(), pa.int64()))
    ids = pa.array([row["id"] for row in rows]).cast(pa.decimal128(20, 0))
    table = pa.Table.from_pylist(rows).append_column("m", maps).set_column(2, "id", ids)
    parquet.write_table(table, tmp_path / "t.parquet")
    values = {"label_column": "y", "key_column": "id", "drop_columns": "left", "num_shards": 2}
    expected = of_file(tmp_path / "t.parquet", workspace=str(tmp_path / "file"), **values)
    done = of_dataframe(tmp_path / "t.parquet", 3, workspace=str(tmp_path / "frame"), **values)
    result = result_of(done)
    assert result["version"] == expected["version"]
    one, other = (load(Path(each["dataset"])) for each in (expected, result))
    names = ["geo.at.lat", "geo.at.lon`g", "geo.name", "a.b", "id", "y"]
    assert [column["name"] for column in other.table["columns"]] == names
    assert other.table == one.table
    assert list(other.quality["columns_left_out"]) == list(one.quality["columns_left_out"]) == ["m"]
    assert "1 column is left out, because the type is not supported: 'm' (map<string, int64" in done.stderr
    refused = of_dataframe(tmp_path / "t.parquet", 3, workspace=str(tmp_path / "w"), **{**values, "columns": "m"})
    assert "the column 'm' of the DataFrame holds map<string, int64" in refused.stderr
    assert "but columns selects it" in refused.stderr


SPELLINGS = """
import json, os, sys
from pyspark.sql import SparkSession
from pipeline.engines import SPARK_ON_LOOPBACK
from pipeline.tables.dataframe import _selected
from pipeline.tables.selection import Selection
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master("local[1]")
for name, value in SPARK_ON_LOOPBACK.items():
    builder = builder.config(name, value)
frame = builder.getOrCreate().createDataFrame([(1, 2, "y")], ["a", "A", "y"])
selected, chooser = _selected(frame, Selection(dropped=("a",)))
print(json.dumps([chooser.names, [list(row) for row in selected.collect()]]))
"""


def test_names_that_differ_only_in_case_are_different_columns():
    """Spark takes them for one name, as in the result of a join."""
    done = subprocess.run(
        [python_of("spark"), "-c", SPELLINGS], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [["A", "y"], [[2, "y"]]]
