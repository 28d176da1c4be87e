"""The DAG on Celery with two CPU workers and one GPU worker, which are killed as when their machine dies."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import settings_from
from pipeline.dataset.verify import verify
from pipeline.monitor import read
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.plan.results import load_result
from pipeline.runs.run import training_folder
from pipeline.stages.shard import plan_shards
from pipeline.storage import place_of
from scripts.airflow.client import Client, Json
from standins.cluster.cluster import CPU, CPU_WORKERS, GPU, GPU_WORKER, Cluster
from standins.fake_gcs import FakeGcs
from tests.cluster.asking import comes, task, tasks, wait_for_success
from tests.cluster.conftest import SHARDS
from tests.listening import addresses
from tests.published import rows_of_plan
from tests.snapshots import take_snapshot
from tests.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # the storage client leaves sockets open
]

BEGUN = ("running", "success")


def wait_for_retry(client: Client, run_id: str, task_id: str, map_index: int = -1) -> Json:
    """Wait until the second attempt of a task has started, and return it."""
    comes(lambda: (each := task(client, run_id, task_id, map_index))["try_number"] == 2 and each["state"] in BEGUN)
    return task(client, run_id, task_id, map_index)


def assert_nothing_lost_or_doubled(committed: Json, source: Path) -> None:
    assert verify(place_of(committed["dataset"])) == {"ok": True, "records": 120, "problems": []}
    assert sum(committed["examples"].values()) + committed["rejected"] == len(list(source.rglob("*.jpg")))


def test_every_task_runs_on_a_worker_of_its_queue(cluster: Cluster, image_training: Client, source: Path, trained: str):
    run_id = trained
    writing = tasks(image_training, run_id, "shard.write")
    assert len(writing) >= 4
    assert {each["queue"] for each in writing} == {CPU}
    assert {each["hostname"] for each in writing} <= set(CPU_WORKERS)
    training = task(image_training, run_id, "train", map_index=0)
    assert (training["queue"], training["hostname"]) == (GPU, GPU_WORKER)
    assert_nothing_lost_or_doubled(image_training.xcom(run_id, "upload.commit"), source)
    assert addresses(cluster.processes()) == {"127.0.0.1"}


def last_image_of(settings: dict[str, Any], number: int) -> str:
    """Return the key of the last image in a range of shards. Another workspace gives the same plan."""
    apart = settings_from({**settings, "workspace": "gs://bucket/apart"}).dated()
    ranges = load_plan(plan_shards(apart, take_snapshot(apart))).ranges
    return rows_of_plan(place_of(ranges[number]))[-1].key


def test_tasks_of_a_killed_cpu_worker_are_retried_on_another_worker(
    cluster: Cluster, image_dataset: Client, source: Path, bucket: FakeGcs
):
    """Source and workspace are in a bucket, so the workers share no disk.

    The bucket does not answer for the last shard of a range, so the task hangs there. On any machine, it is killed in
    the middle of its work.
    """
    bucket.put_folder("bucket", "raw/", source)
    settings = {"source_uri": "gs://bucket/raw", **SHARDS}
    number = 1
    stalled = bucket.fail("stall", on="download", matches=re.escape(last_image_of(settings, number)), times=None)
    run_id = image_dataset.trigger({**settings, "workspace": "gs://bucket/work"})
    comes(lambda: stalled.fired)
    plan_file = place_of(image_dataset.xcom(run_id, "shard.plan")[number])
    first, *_, last = load_range(plan_file).shards
    comes(lambda: load_result(plan_file, first.name))
    # A task that its worker has not started yet has no heartbeats, so its death would not be detected.
    comes(lambda: all(each["start_date"] for each in tasks(image_dataset, run_id, "shard.write")))
    written = generations(bucket)
    assert load_result(plan_file, last.name) is None

    worker = task(image_dataset, run_id, "shard.write", number)["hostname"]
    cluster.kill(worker)
    stalled.release()
    again = wait_for_retry(image_dataset, run_id, "shard.write", number)
    assert {again["hostname"]} == set(CPU_WORKERS) - {worker}
    wait_for_success(image_dataset, run_id)
    assert_nothing_lost_or_doubled(image_dataset.xcom(run_id, "upload.commit"), source)
    assert {name: generations(bucket)[name] for name in written} == written
    cluster.add_worker(worker, CPU, 2)


def generations(bucket: FakeGcs) -> dict[str, int]:
    """Return the generation of every shard. It changes when a shard is written again."""
    return {name: bucket.generation("bucket", name) for name in bucket.names("bucket") if "/train-" in name}


def test_two_gpu_workers_train_one_model(cluster: Cluster, image_training: Client, source: Path):
    cluster.add_worker("gpu-beside", GPU, 1)
    try:
        run_id = image_training.trigger(
            {"source_uri": str(source), **SHARDS, "num_training_servers": 2, "batch_size": 8, "epochs": 2}
        )
        wait_for_success(image_training, run_id)
    finally:
        cluster.kill("gpu-beside")
    training = tasks(image_training, run_id, "train")
    assert [each["try_number"] for each in training] == [1, 1]
    assert len({each["hostname"] for each in training}) == 2
    results = [image_training.xcom(run_id, "train", map_index=index) for index in range(2)]
    assert results[0] == results[1]
    examples = image_training.xcom(run_id, "upload.commit")["examples"]["train"]
    for place in ("", "servers/1"):
        batches = read(Path(results[0]["run"]) / place / "record", "batches")
        assert batches.groupby("epoch")["input/examples"].sum().tolist() == [examples] * 2


def test_a_training_on_a_killed_gpu_worker_continues_on_another_worker(
    cluster: Cluster, image_training: Client, source: Path
):
    epochs = 12
    run_id = image_training.trigger({"source_uri": str(source), **SHARDS, "epochs": epochs})
    comes(lambda: image_training.xcom(run_id, "upload.commit"))
    folder = training_folder(
        settings_from(image_training.xcom(run_id, "extract", "settings")),
        run_id,
        image_training.xcom(run_id, "upload.commit")["version"],
    )
    until(lambda: any((folder / "checkpoints").glob("*.npz")))
    cluster.kill(GPU_WORKER)
    before = read(folder / "record", "epochs")
    assert 0 < len(before) < epochs

    cluster.add_worker("gpu-2", GPU, 1)
    again = wait_for_retry(image_training, run_id, "train", map_index=0)
    assert again["hostname"] == "gpu-2"
    wait_for_success(image_training, run_id)
    assert image_training.xcom(run_id, "train", map_index=0)["epochs"] == epochs
    record = read(folder / "record", "epochs")
    assert record["step"].tolist() == list(range(1, epochs + 1))
    assert record["time"].iloc[: len(before)].tolist() == before["time"].tolist()  # These epochs were not repeated.
