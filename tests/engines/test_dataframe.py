"""A DataFrame of a real Spark becomes the same dataset as the file with its rows."""

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.stages.build import build
from pipeline.tables.samples import write_sample_table
from tests.engines.environment import python_of

pytestmark = pytest.mark.long


def test_a_dataframe_gives_the_version_and_bytes_of_its_file(tmp_path: Path):
    table = tmp_path / "t.csv"
    write_sample_table(table, 5000)
    values = {"example_kind": "table", "source_uri": str(table), "label_column": "churn", "key_column": "customer"}
    expected = build(settings_from({**values, "workspace": str(tmp_path / "file"), "dataset_name": "t"}))
    command = [python_of("spark"), "-m", "tests.engines.dataframe", str(table), "7", str(tmp_path / "frame")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["version"] == expected["version"]
    one, other = (load(Path(each["dataset"])) for each in (expected, result))
    assert [shard.crc32c for shard in one.splits["train"].shards] == [
        shard.crc32c for shard in other.splits["train"].shards
    ]
    assert one.table == other.table
    assert verify(Path(result["dataset"]))["ok"]
