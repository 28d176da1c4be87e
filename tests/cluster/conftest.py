"""One cluster for all tests of this folder, because its start takes 30 seconds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.airflow.client import Client
from scripts.airflow.settings import ROOT, Layout
from standins.cluster.cluster import Cluster, celery, started
from standins.cluster.servers import database, key_prefix, silent
from standins.fake_gcs import FakeGcs
from tests.cluster.asking import wait_for_success
from tests.conftest import jpeg

BUCKET = "bucket"
SETTINGS = {"dataset_name": "dated", "window": 30, "epochs": 1, "image_size": 32, "batch_size": 8}
"""Defaults of all DAGs. `retrain` has no other settings, because asset events start it."""

SHARDS = {"dataset_name": "undated", "shards_per_task": 3}
"""The settings of a run of several tasks that write shards."""


@pytest.fixture(scope="package")
def bucket() -> Iterator[FakeGcs]:
    """A fake Cloud Storage that the workers and this process use."""
    with FakeGcs() as server, pytest.MonkeyPatch.context() as patch:
        server.create_bucket(BUCKET)
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        patch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        yield server


@pytest.fixture(scope="package")
def cluster(bucket: FakeGcs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Airflow on PostgreSQL and Redis with two CPU workers and one for the GPU queue."""
    if reasons := silent():
        pytest.skip(f"needs PostgreSQL and Redis: {reasons}")
    folder: Path = tmp_path_factory.mktemp("cluster")
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    layout = Layout(folder / "home", folder / "workspace", ROOT / "dags", trainings=2)
    with database() as address, key_prefix() as prefix:
        environ = {
            **celery(address, prefix),
            # A dead worker is detected by the missing heartbeats of its tasks: here sooner than in Compose.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "TENFOLD_RETRAIN_POLL_SECONDS": "5",
            "TENFOLD_SETTINGS": str(folder / "settings.json"),
        }
        with started(layout, environ) as cluster:
            yield cluster


@pytest.fixture(scope="package")
def image_training(cluster: Cluster) -> Iterator[Client]:
    """A client of the DAG image_training, which is not paused."""
    with cluster.client("image_training") as client:
        yield client


@pytest.fixture(scope="package")
def image_dataset(cluster: Cluster) -> Iterator[Client]:
    """A client of the DAG image_dataset, which is not paused."""
    with cluster.client("image_dataset") as client:
        yield client


@pytest.fixture(scope="package")
def retrain(cluster: Cluster) -> Iterator[Client]:
    """A client of the DAG retrain, which is not paused."""
    with cluster.client("retrain") as client:
        yield client


@pytest.fixture(scope="package")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 images of two classes, and a broken one."""
    source = tmp_path_factory.mktemp("source")
    for number in range(120):
        folder = source / ("cats" if number % 2 else "dogs")
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.jpg").write_bytes(jpeg(number))
    (source / "cats" / "broken.jpg").write_bytes(jpeg(1)[:50])
    return source


@pytest.fixture(scope="package")
def trained(image_training: Client, source: Path) -> str:
    """The id of a run of image_training that has succeeded."""
    run_id = image_training.trigger({"source_uri": str(source), **SHARDS})
    wait_for_success(image_training, run_id)
    return run_id
