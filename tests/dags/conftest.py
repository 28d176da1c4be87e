"""DAGs in a real Airflow."""

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
    """How a run ended, task by task, and what the tasks returned, and left under other keys."""

    run_id: str
    state: str
    tasks: dict[str, str]
    tries: Counter[str]
    left: Callable[[str, str], Any]

    def returned(self, task_id: str) -> Any:
        """What a task returned; of a mapped one, the first."""
        return self.left(task_id, "return_value")


RunDag = Callable[..., Ran]
# Whatever a test changes: `dag.test` leaves the settings of a run in the form that the next one finds.
TINY = {"epochs": 1, "image_size": 32, "batch_size": 8, "num_training_servers": 1}
_OF_TRAINING = ("image_training", "retrain")


@pytest.fixture(scope="session")
def dags() -> dict[str, Any]:
    """All DAGs, as Airflow reads them from their folder."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    for dag in bag.dags.values():
        dag.deadline = None  # dag.test() fails after a good run with one (airflow issue 73428)
    return dict(bag.dags)


@pytest.fixture
def run_dag(dags: dict[str, Any], airflow_database: None, tmp_path: Path) -> RunDag:
    """Runs a DAG to its end in this process; tiny trainings, in a workspace of the test's own."""

    def run(dag_id: str, conf: dict[str, Any], logical_date: datetime | None = None) -> Ran:
        tiny = TINY if dag_id in _OF_TRAINING else {}
        conf = {"workspace": str(tmp_path / "workspace"), **tiny, **conf}
        with _params_kept(dags[dag_id]):
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
def _params_kept(dag: Any) -> Iterator[None]:
    """Airflow leaves the form of a run in the parameters of its DAG and tasks: the next run here would have it."""
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
        row = rows.filter(XComModel.map_index <= 0).one()  # of a mapped task, the first one's
        return XComModel.deserialize_value(row)
