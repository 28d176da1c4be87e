import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.airflow.embedded import _port, components, free_port, prepare
from scripts.airflow.errors import Refused
from scripts.airflow.keys import Keys
from scripts.airflow.settings import ROOT, environment, layout_from
from scripts.ports import HOST
from tests.ports import own_port

KEYS = Keys(password="p", fernet="f", jwt="j", session="s")


def test_the_layout_defaults_to_the_checkout() -> None:
    assert layout_from({}).home == ROOT / ".airflow"
    assert layout_from({}).workspace == ROOT / "workspace"
    layout = layout_from({"TENFOLD_HOME": "/h", "TENFOLD_WORKSPACE": "/w"}, dags="/d")
    assert (layout.home, layout.workspace, layout.dags) == (Path("/h"), Path("/w"), Path("/d"))
    assert (layout_from({}).trainings, layout_from({"TENFOLD_TRAININGS_AT_ONCE": "8"}).trainings) == (1, 8)


def test_each_further_training_at_once_adds_a_task_at_once() -> None:
    environments = [environment(layout_from({"TENFOLD_TRAININGS_AT_ONCE": str(n)}), KEYS, 1, {}) for n in (1, 8)]
    assert [each["AIRFLOW__CORE__PARALLELISM"] for each in environments] == ["4", "11"]


@pytest.mark.parametrize("trainings", ["0", "-1", "all", "1.5"])
def test_trainings_at_once_must_be_a_positive_number(trainings: str) -> None:
    with pytest.raises(Refused, match=f"TENFOLD_TRAININGS_AT_ONCE must be .*'{trainings}'"):
        layout_from({"TENFOLD_TRAININGS_AT_ONCE": trainings})


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_must_be_a_number_in_range(port: str) -> None:
    with pytest.raises(Refused, match=f"TENFOLD_PORT must be a port .*'{port}'"):
        layout_from({"TENFOLD_PORT": port})


def test_the_error_for_a_taken_port_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    port = own_port()
    with socket.create_server((HOST, port)):
        layout = layout_from({"TENFOLD_HOME": str(tmp_path / "home"), "TENFOLD_PORT": str(port)})
        with pytest.raises(Refused, match=f"another program on 127.0.0.1 uses TENFOLD_PORT={port}"):
            prepare(layout, background=True)
    assert prepare(layout, background=True).record.port == port


@pytest.fixture
def no_root() -> Iterator[None]:
    """Run as the user nobody if the test runs as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.mark.skipif(
    int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80, reason="anybody may open port 80 here"
)
def test_the_error_for_a_privileged_port_names_its_setting(no_root: None) -> None:
    with pytest.raises(Refused, match="this user is not allowed to open TENFOLD_PORT=80"):
        _port(layout_from({"TENFOLD_PORT": "80"}), background=True)


def test_only_settings_of_another_airflow_are_dropped() -> None:
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


def test_tasks_get_the_server_the_workspace_and_the_code() -> None:
    layout = layout_from({"TENFOLD_WORKSPACE": "/w"})
    environ = environment(layout, KEYS, 1234, {"PYTHONPATH": "/p", "no_proxy": "n"})
    assert environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:1234/execution/"
    assert environ["TENFOLD_WORKSPACE"] == "/w"
    assert environ["PYTHONPATH"] == f"{ROOT}:/p"
    assert environ["no_proxy"].split(",") == [HOST, "localhost", "n"]


def test_a_supervisor_waits_for_a_silent_api_server_as_long_as_the_scheduler_does() -> None:
    silence_s = 300  # the default of [scheduler] task_instance_heartbeat_timeout
    answer_s = 5  # of one heartbeat. Airflow 3.4 does not try it again.
    environ = environment(layout_from({}), KEYS, 1, {})
    assert int(environ["AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"]) * answer_s >= silence_s


@pytest.mark.parametrize(
    ("command", "option"), [("scheduler", "--skip-serve-logs"), ("triggerer", "--skip-serve-logs")]
)
def test_no_log_server_is_started(command: str, option: str) -> None:
    assert option in components(1)[command]


def test_free_port_is_the_favorite_unless_it_is_taken() -> None:
    favorite = own_port()
    with socket.create_server((HOST, favorite)):
        assert free_port(favorite) != favorite
    assert free_port(favorite) == favorite
