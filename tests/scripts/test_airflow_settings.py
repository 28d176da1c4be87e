import socket
from pathlib import Path

import pytest

from scripts.airflow.embedded import components, free_port
from scripts.airflow.errors import Refused
from scripts.airflow.keys import Keys
from scripts.airflow.settings import HOST, ROOT, environment, layout_from

KEYS = Keys(password="p", fernet="f", jwt="j", session="s")


def test_layout_is_that_of_the_checkout_unless_told_otherwise() -> None:
    assert layout_from({}).home == ROOT / ".airflow"
    assert layout_from({}).workspace == ROOT / "workspace"
    told = layout_from({"TENFOLD_HOME": "/h", "TENFOLD_WORKSPACE": "/w"}, dags="/d")
    assert (told.home, told.workspace, told.dags) == (Path("/h"), Path("/w"), Path("/d"))
    assert (layout_from({}).gpus, layout_from({"TENFOLD_GPUS": "8"}).gpus) == (1, 8)


@pytest.mark.parametrize("gpus", ["0", "-1", "all", "1.5"])
def test_gpus_are_a_number_of_trainings_at_once(gpus: str) -> None:
    with pytest.raises(Refused, match=f"TENFOLD_GPUS must be .*'{gpus}'"):
        layout_from({"TENFOLD_GPUS": gpus})


def test_settings_of_another_airflow_stay_out_and_the_rest_goes_in() -> None:
    inherited = {
        "AIRFLOW_HOME": "/other",
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW_CONN_GCS": "c",
        "A": "b",
    }
    environ = environment(layout_from({}), KEYS, 1234, inherited)
    assert environ["AIRFLOW_HOME"] == str(ROOT / ".airflow")
    assert environ["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert (environ["AIRFLOW_CONN_GCS"], environ["A"]) == ("c", "b")


def test_tasks_find_the_server_the_workspace_and_the_code() -> None:
    layout = layout_from({"TENFOLD_WORKSPACE": "/w"})
    environ = environment(layout, KEYS, 1234, {"PYTHONPATH": "/p", "no_proxy": "n"})
    assert environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:1234/execution/"
    assert environ["TENFOLD_WORKSPACE"] == "/w"
    assert environ["PYTHONPATH"] == f"{ROOT}:/p"
    assert environ["no_proxy"].split(",") == [HOST, "localhost", "n"]


@pytest.mark.parametrize(
    ("command", "option"), [("scheduler", "--skip-serve-logs"), ("triggerer", "--skip-serve-logs")]
)
def test_no_log_server_is_started(command: str, option: str) -> None:
    assert option in components(1)[command]


def test_free_port_is_the_favourite_unless_somebody_has_it() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        favourite = taken.getsockname()[1]
        assert free_port(favourite) != favourite
    assert free_port(favourite) == favourite
