"""The scripts that Compose runs beside Airflow, run as processes of this machine."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from scripts.compose import env, health
from tests.ports import own_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(env, "ROOT", tmp_path)
    monkeypatch.setenv("TENFOLD_PORT", str(own_port()))
    return tmp_path


def docker_that_says(published: str, folder: Path) -> None:
    """Write a stand-in for the command `docker`, which prints the port of its containers."""
    docker = folder / "docker"
    docker.write_text(f"#!/bin/sh\necho {published}\n")
    docker.chmod(0o700)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_port_that_another_program_has_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_ours: bool
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        docker_that_says(f"127.0.0.1:{port if is_ours else port + 1}", checkout)
        monkeypatch.setenv("PATH", f"{checkout}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("TENFOLD_PORT", str(port))
        assert env.main() == (0 if is_ours else 2)
    message = f"another program on 127.0.0.1 uses TENFOLD_PORT={port}"
    assert (message in capsys.readouterr().err) != is_ours


def test_a_port_that_is_not_a_number_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TENFOLD_PORT", "http")
    assert env.main() == 2
    assert "TENFOLD_PORT must be a port from 1 to 65535, got 'http'" in capsys.readouterr().err


def test_settings_are_checked_before_a_service_starts():
    recipe = (ROOT / "Makefile").read_text().partition("\ndocker-up:")[2].partition("\n\n")[0]
    steps = ("scripts.compose.env", "docker compose build", "scripts.airflow check", "docker compose up")
    assert [recipe.index(step) for step in steps] == sorted(recipe.index(step) for step in steps)


def test_the_first_start_creates_secrets_that_only_their_owner_can_read(
    checkout: Path, capsys: pytest.CaptureFixture[str]
):
    env.main()
    assert stat.S_IMODE((checkout / ".env").stat().st_mode) == 0o600
    assert (checkout / "data").is_dir()
    settings = env.read(checkout / ".env")
    assert settings["TENFOLD_AIRFLOW_PASSWORD"] in capsys.readouterr().out


def test_later_starts_keep_the_secrets(checkout: Path):
    env.main()
    before = (checkout / ".env").read_text()
    env.main()
    assert (checkout / ".env").read_text() == before


def test_all_secrets_are_different():
    texts = [env.new_settings() for _ in range(2)]
    secrets = [
        secret for text in texts for secret in re.findall(r"^(?:AIRFLOW\w+|\w+PASSWORD)=(.+)", text, re.MULTILINE)
    ]
    assert len(set(secrets)) == len(secrets) == 12
    assert all(len(secret) >= 16 for secret in secrets)


def test_the_file_holds_every_variable_that_compose_requires(checkout: Path):
    env.main()
    required = set(re.findall(r"\$\{([A-Z_]+):\?", (ROOT / "docker-compose.yml").read_text()))
    assert len(required) == 6
    assert required <= env.read(checkout / ".env").keys()


def test_the_api_server_gets_a_login_file_and_not_the_password_variable(tmp_path: Path):
    """A stand-in for the command `airflow` prints its arguments, its login file and its password variable."""
    airflow = tmp_path / "airflow"
    airflow.write_text(
        '#!/bin/sh\necho "$@"; stat -c %a "$FILE"; cat "$FILE"; echo; echo "${TENFOLD_AIRFLOW_PASSWORD-none}"'
    )
    airflow.chmod(0o700)
    file = str(tmp_path / "passwords.json")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.compose.api_server"],
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": file,
            "FILE": file,
            "TENFOLD_AIRFLOW_PASSWORD": 'with "quotes"',
        },
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    command, mode, login, password = done.stdout.splitlines()
    assert (command, mode, password) == ("api-server", "600", "none")
    assert json.loads(login) == {"admin": 'with "quotes"'}


class Server(HTTPServer):
    """A stand-in for the API server."""

    paths: tuple[str, ...] = ("/api/v2/monitor/health", "/execution/health")


class Monitor(BaseHTTPRequestHandler):
    """Answers as Airflow's monitor does."""

    server: "Server"

    def do_GET(self) -> None:
        parts = {
            "metadatabase": {"status": "healthy"},
            "scheduler": {"status": "unhealthy"},
            "triggerer": {"status": None},
        }
        body = json.dumps(parts).encode()
        self.send_response(200 if self.path in self.server.paths else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Monitor) as server:
        monkeypatch.setenv("TENFOLD_AIRFLOW_URL", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("part", "code"), [("metadatabase", 0), ("api-server", 0), ("scheduler", 1), ("triggerer", 1)])
def test_a_component_is_healthy_if_the_monitor_says_so(monitor: Server, part: str, code: int):
    assert health.main(part) == code


def test_a_server_that_tasks_cannot_reach_is_unhealthy(monitor: Server):
    monitor.paths = ("/api/v2/monitor/health",)
    assert health.main("metadatabase") == 0
    assert health.main("api-server") == 1


def test_a_component_without_an_answer_is_unhealthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TENFOLD_AIRFLOW_URL", "http://127.0.0.1:9")
    assert health.main("scheduler") == 1
    assert "scheduler: " in capsys.readouterr().err
