"""Fixtures that run DAGs in a real Airflow."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.airflow_home import ROOT, airflow_database

__all__ = ["airflow_database"]


class Ran(NamedTuple):
    """The final states of a run and its tasks, with the return values and other XComs of the tasks."""

    run_id: str
    state: str
    tasks: dict[str, str]
    tries: Counter[str]
    left: Callable[[str, str], Any]

    def returned(self, task_id: str) -> Any:
        """Return the return value of a task, or of the first instance of a mapped task."""
        return self.left(task_id, "return_value")


RunDag = Callable[..., Ran]
# Settings of small trainings. A test can override them.
TINY = {"epochs": 1, "image_size": 32, "batch_size": 8, "num_training_servers": 1}
_OF_TRAINING = ("image_training", "retrain")


@pytest.fixture(scope="session")
def dags() -> dict[str, Any]:
    """All DAGs that Airflow reads from the folder."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    for dag in bag.dags.values():
        dag.deadline = None  # with a deadline, dag.test() fails after a successful run (airflow issue 73428)
    return dict(bag.dags)


@pytest.fixture
def run_dag(dags: dict[str, Any], airflow_database: None, tmp_path: Path) -> RunDag:
    """A function that runs a DAG to its end in this process, with a tiny training and a separate workspace."""

    def run(dag_id: str, conf: dict[str, Any], logical_date: datetime | None = None) -> Ran:
        tiny = TINY if dag_id in _OF_TRAINING else {}
        conf = {"workspace": str(tmp_path / "workspace"), **tiny, **conf}
        with _restored_params(dags[dag_id]):
            ran = dags[dag_id].test(logical_date=logical_date, run_conf=conf)
        instances = ran.get_task_instances()
        return Ran(
            ran.run_id,
            str(ran.state),
            {_name(each): str(each.state) for each in instances},
            Counter({_name(each): each.try_number for each in instances}),
            partial(_left, ran),
        )

    return run


@contextmanager
def _restored_params(dag: Any) -> Iterator[None]:
    """Restore the parameters of a DAG and its tasks. Airflow changes them in a run, which would affect the next run."""
    params = [each.params.get_param(name) for each in (dag, *dag.tasks) for name in each.params]
    values = [param.value for param in params]
    try:
        yield
    finally:
        for param, value in zip(params, values, strict=True):
            param.value = value


def _name(instance: Any) -> str:
    return instance.task_id if instance.map_index < 0 else f"{instance.task_id}[{instance.map_index}]"


def _left(run: Any, task_id: str, key: str) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(XComModel).filter_by(run_id=run.run_id, task_id=task_id, key=key)
        row = rows.filter(XComModel.map_index <= 0).one()  # the first instance of a mapped task
        return XComModel.deserialize_value(row)
