"""The DAG image_dataset, whose shards Spark or Beam write."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dags.engines import write_with_engine
from pipeline.errors import SettingsError
from tests.conftest import MakeImages
from tests.dags.conftest import RunDag
from tests.engines.environment import PROVIDER, python_of

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings

RUN = """
import json, sys
from tests.airflow_home import HOME, ROOT, copy_database
copy_database(HOME)
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(str(ROOT / "dags")).dags["image_dataset"]
dag.deadline = None
ran = dag.test(run_conf=json.loads(sys.argv[1]))
print("tasks", json.dumps({f"{each.task_id} {each.map_index}": str(each.state) for each in ran.get_task_instances()}))
"""


@pytest.fixture
def source(make_images: MakeImages) -> Path:
    return make_images({"cats": 40, "dogs": 40})


@pytest.mark.long
def test_spark_writes_the_shards_of_a_dag(run_dag: RunDag, source: Path, tmp_path: Path):
    expected = run_dag("image_dataset", {"source_uri": str(source), "publish_uri": str(tmp_path / "expected")})
    assert expected.state == "success"
    python = python_of("spark")
    conf = {"source_uri": str(source), "workspace": str(tmp_path / "spark"), "engine": "spark"}
    conf["publish_uri"] = str(tmp_path / "published")
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(conf)],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path / "home"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2,4]"}),
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONPATH": f"{PROVIDER}:{os.environ['PYTHONPATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    [tasks] = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("tasks ")]
    assert tasks.pop("extract_range -1") == "skipped"
    assert set(tasks.values()) == {"success"}, done.stdout[-5000:]
    assert {"shard.write 0", "upload.copy 0"} <= tasks.keys()
    assert "shard.write 1" not in tasks
    assert digests(tmp_path / "published") == digests(tmp_path / "expected") != {}


@pytest.mark.long
def test_beam_writes_the_shards_of_a_dag(
    run_dag: RunDag, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("TENFOLD_ENGINES_PYTHON", python_of("beam"))
    ran = run_dag("image_dataset", {"source_uri": str(source), "engine": "beam"})
    assert ran.state == "success"
    assert (ran.tasks["shard.write[0]"], "shard.write[1]" in ran.tasks) == ("success", False)
    again = run_dag("image_dataset", {"source_uri": str(source), "engine": "beam"})
    assert (again.state, again.tasks["shard.write"]) == ("success", "skipped")


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("spark", "engine=spark needs the package apache-airflow-providers-apache-spark"),
        ("beam", "set TENFOLD_ENGINES_PYTHON to its Python"),
    ],
)
def test_a_worker_without_the_engine_is_refused(run_dag: RunDag, source: Path, engine: str, message: str):
    ran = run_dag("image_dataset", {"source_uri": str(source), "engine": engine})
    assert ran.state == "failed"
    assert message in ran.left("shard.write", "failure")
    assert ran.tries["shard.write[0]"] == 1  # A retry cannot help.


def test_the_error_of_the_process_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TENFOLD_ENGINES_PYTHON", sys.executable)
    with pytest.raises(SettingsError, match=r"plan\.json is not a file"):
        write_with_engine(str(tmp_path / "plan.json"), {"engine": "beam"})


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each shard, by its path below the folder of published datasets."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.tfrecord")
    }
