"""Many ended runs of Airflow with small trainings, for the list of trainings. Written into the database directly.

    python -m benchmarks.harness.ended_runs NUMBER FOLDER DAG

It runs in the environment of the Airflow. Thousands of calls of its API would take minutes.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from dags.gpu_pool import GPU_POOL, TRAIN
from dags.xcom_keys import DATASET_PLACE, TRAINING_PLACE
from pipeline.config.settings import settings_from
from pipeline.runs.files import PROMOTION, RESULT, RUN, RUN_FORMAT

DATASETS, MODELS, USERS = ("flowers", "birds", "cars"), ("small_cnn", "resnet50"), ("ada", "grace", "alan")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE = 500
"""Rows of one statement."""


def main() -> None:
    """Write the trainings and their runs."""
    number, folder, dag_id = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    dataset = folder / "dataset"
    dataset.mkdir(parents=True)
    splits = {"train": {"examples": 500}, "validation": {"examples": 100}}
    (dataset / "dataset.json").write_text(json.dumps({"splits": splits, "rejected": {"count": 3}}))
    random = Random(1)
    trainings = [write_training(folder / f"run-{index}", random) for index in range(number)]
    add_runs(dag_id, trainings, dataset)


def write_training(folder: Path, random: Random) -> Path:
    """Write the JSON files of a complete training, with all settings."""
    folder.mkdir()
    own = {"dataset_name": random.choice(DATASETS), "model": random.choice(MODELS), "epochs": random.randrange(1, 50)}
    settings = {**settings_from({}).model_dump(mode="json"), **own}
    accuracy, wait = random.random(), random.random() / 5
    numbers = {"wait_fraction": wait, "wait_ms": 30 * wait, "step_ms": 30.0, "examples_per_s": random.gauss(1000, 20)}
    result = {"metrics": {"val_accuracy": accuracy}, "baselines": {"val_accuracy": 0.2}, "limit": "compute", **numbers}
    decision = {"promoted": accuracy > 0.5, "decision": "promoted" if accuracy > 0.5 else "kept", "why": "by the rule"}
    about = {"format": RUN_FORMAT, "settings": settings, "steps_per_epoch": 60}
    for name, content in ((RUN, about), (RESULT, result), (PROMOTION, decision)):
        (folder / name).write_text(json.dumps(content))
    return folder


def add_runs(dag_id: str, trainings: Sequence[Path], dataset: Path) -> None:
    """Add a successful run for each training, with its task and what this task stored."""
    from airflow.models import xcom
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import insert, select

    # Airflow 3.4 stores an XCom by its task instance, and its XComModel takes no rows.
    by_instance = getattr(xcom, "XComModelV2", None)
    table = (by_instance or xcom.XComModel).__table__
    for number, chunk in enumerate(in_chunks(trainings)):
        begin = BEGIN + timedelta(minutes=number * AT_ONCE)
        with create_session() as session:
            runs = [run_values(dag_id, each.name, begin + timedelta(minutes=i)) for i, each in enumerate(chunk)]
            session.execute(insert(DagRun.__table__), runs)
            named = select(DagRun.run_id, DagRun.id).where(DagRun.run_id.in_([each.name for each in chunk]))
            numbers = {run.run_id: run.id for run in session.execute(named)}
            tasks = [{"dag_id": dag_id, "run_id": each.name, "task_id": TRAIN, "map_index": -1} for each in chunk]
            ended = [{**task, "pool": GPU_POOL, "state": "success"} for task in tasks]
            session.execute(insert(TaskInstance.__table__), ended)
            instances = select(TaskInstance.run_id, TaskInstance.id).where(TaskInstance.run_id.in_(numbers))
            ids = {instance.run_id: instance.id for instance in session.execute(instances)}
            owners = [
                {"task_instance_id": ids[each.name]} if by_instance else {**task, "dag_run_id": numbers[each.name]}
                for task, each in zip(tasks, chunk, strict=True)
            ]
            stored = [
                {**owner, "key": key, "value": str(place), "timestamp": begin}
                for owner, each in zip(owners, chunk, strict=True)
                for key, place in ((TRAINING_PLACE, each), (DATASET_PLACE, dataset))
            ]
            session.execute(insert(table), stored)


def run_values(dag_id: str, run_id: str, start: datetime) -> dict[str, Any]:
    """Return the columns of a run that has ended."""
    user = USERS[int(run_id.rpartition("-")[2]) % len(USERS)]
    ids = {"dag_id": dag_id, "run_id": run_id, "run_type": "manual", "triggering_user_name": user, "conf": {}}
    return {**ids, "state": "success", "run_after": start, "start_date": start, "end_date": start}


def in_chunks(trainings: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Yield parts of the trainings that fit into one statement."""
    for begin in range(0, len(trainings), AT_ONCE):
        yield trainings[begin : begin + AT_ONCE]


if __name__ == "__main__":
    main()
