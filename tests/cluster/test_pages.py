"""The pages of the plugin with Airflow on PostgreSQL, which refuses some text that SQLite accepts."""

import pytest

from scripts.airflow.client import Json
from standins.cluster.cluster import Cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # the storage client leaves sockets open
]


def test_pages_work_on_postgresql(cluster: Cluster, trained: str) -> None:
    with cluster.http() as http:

        def status_of(dag_id: str, run_id: str) -> Json:
            answer = http.get("/tenfold/data", params={"dag_id": dag_id, "run_id": run_id})
            status: Json = answer.raise_for_status().json()["status"]
            return status

        assert status_of("image_training", trained)["state"] == "trained"
        rows = http.get("/tenfold/trainings.json").raise_for_status().json()["rows"]
        assert (trained, "trained") in [(row["run_id"], row["state"]) for row in rows]
        for ids in (("image_training", "a\0b"), ("a\0b", trained), ("image_training", "x" * 300)):
            assert status_of(*ids)["words"] == "There is no run with this id."
