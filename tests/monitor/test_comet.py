"""Comet in a separate process: online, offline, with a refused key, with a lost server, and killed."""

import json
import shlex
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import monitor
from pipeline.__main__ import main
from pipeline.monitor import CometOptions, Row, open_monitor, read
from pipeline.monitor.archives import recover
from pipeline.monitor.comet import CometSink, error_text, experiment_key, finish_within
from pipeline.monitor.record import RecordSink
from tests.comet_server import METRICS, comet_server
from tests.waiting import simulated_work, until


def test_the_experiment_key_is_valid_and_stable() -> None:
    key = experiment_key("dag/run/version/settings")
    assert key.isalnum()
    assert 32 <= len(key) <= 50
    assert key == experiment_key("dag/run/version/settings") != experiment_key("dag/run/version/other")


TRAINING = """
import logging, sys
from pathlib import Path
logging.basicConfig(level="INFO")
from pipeline import monitor
from pipeline.monitor.comet import log_upload_command
monitor.aggregation.MIN_INTERVAL_S = 1e6  # One interval, also on a busy machine.
options = monitor.CometOptions("project", "dag/run/v1", "a name", {"epochs": 2, "model": "small"})
with monitor.open_monitor(Path(sys.argv[1]), hz=20, comet=options) as m:
    for step in range(1, 31):
        m.batch(step=step, epoch=1 + step // 16, times=monitor.StepTimes(0.001 * step, 0.01), examples=32)
        __import__("time").sleep(0.01)
    m.epoch(epoch=1, step=15, values={"loss": 0.5, "epoch/time_s": 1.5})
    m.epoch(epoch=2, step=30, values={"loss": 0.25, "epoch/time_s": 1.25})
    if len(sys.argv) > 2:
        __import__("time").sleep(60)
log_upload_command(Path(sys.argv[1]) / "comet")
print(m.comet_location)
"""


def environment_in(folder: Path) -> dict[str, str]:
    temporary = folder / "temporary"  # must be empty at the end
    temporary.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).parents[2])
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": root, "TMPDIR": str(temporary)}


def train(folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Monitor a short training in a fresh process, because comet_ml changes its process. Return location and stderr."""
    command = [sys.executable, "-c", TRAINING, str(folder)]
    known = environment_in(folder) | environment
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.splitlines()[-1], done.stderr


def messages(archive: Path) -> list[tuple[str, dict[str, object]]]:
    with zipfile.ZipFile(archive) as content:
        lines = content.read("messages.json").decode().splitlines()
    return [(message["type"], message["payload"]) for message in map(json.loads, lines)]


def about(archive: Path) -> dict[str, object]:
    with zipfile.ZipFile(archive) as content:
        found: dict[str, object] = json.loads(content.read("experiment.json"))
    return found


def assert_all_is_recorded(folder: Path) -> None:
    """Assert that the local record has all batches, and a tick every 50 ms except for the dropped ones."""
    batches, samples = read(folder / "record", "batches"), read(folder / "record", "samples")
    assert batches["step"].tolist() == list(range(1, 31))
    ticks = 20 * (samples["time"].iloc[-1] - samples["time"].iloc[0]) + 1 - samples["monitor/dropped"].iloc[-1]
    assert len(samples) == pytest.approx(ticks, abs=1.5)


def series(archive: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) pairs by metric."""
    found: dict[str, list[tuple[int, float]]] = {}
    for kind, payload in messages(archive):
        if kind == "metric_msg":
            metric: dict[str, object] = payload["metric"]  # type: ignore[assignment]
            found.setdefault(str(metric["metricName"]), []).append((metric["step"], metric["metricValue"]))  # type: ignore[arg-type]
    return found


def test_an_offline_archive_contains_parameters_and_all_metrics(tmp_path: Path) -> None:
    location, output = train(tmp_path, {})
    archive = Path(location)
    assert archive == tmp_path / "comet" / "try-1" / f"{experiment_key('dag/run/v1')}.zip"
    assert list(archive.parent.iterdir()) == [archive]
    assert f"comet upload {archive}\n" in output

    found = series(archive)
    assert found["loss"] == [(1, 0.5), (2, 0.25)]
    assert found["epoch/time_s"] == [(1, 1.5), (2, 1.25)]
    losses = [
        p["metric"] for kind, p in messages(archive) if kind == "metric_msg" and p["metric"]["metricName"] == "loss"
    ]  # type: ignore[index]
    assert [metric["epoch"] for metric in losses] == [1, 2]  # type: ignore[index]
    assert found["input/wait_ms"] == [(30, 15.5)]
    assert found["input/wait_ms/max"] == [(30, 30)]
    assert found["step/time_ms"] == [(30, 25.5)]
    assert found["step/compute_ms"] == [(30, 10)]
    assert found["proc/rss_bytes/max"][0][1] >= found["proc/rss_bytes"][0][1] > 1e7
    assert "sys/cpu_pct" in found
    assert "first" not in found
    assert "epoch" not in found
    parameters = [p["param"] for kind, p in messages(archive) if kind == "parameter_msg"]
    assert {"epochs": 2, "model": "small"}.items() <= {p["paramName"]: p["paramValue"] for p in parameters}.items()  # type: ignore[index]


@pytest.mark.long
def test_a_retry_overwrites_no_archive(tmp_path: Path) -> None:
    first = Path(train(tmp_path, {})[0])
    content = first.read_bytes()
    location, output = train(tmp_path, {})
    second = Path(location)
    assert f"comet upload {first} {second}\n" in output
    assert second.parent.name == "try-2"
    assert first.read_bytes() == content
    assert second.name == first.name  # the same experiment


SECRET = "a1B2c3D4e5F6g7H8i9J0k1L2m"


def train_online(folder: Path, accepts: bool, goes_away: bool = False) -> tuple[str, str, dict[str, bytes]]:
    """Return location, stderr, and the bodies that the server received, by path."""
    with comet_server(accepts, goes_away) as (url, received):
        location, output = train(folder, {"COMET_API_KEY": SECRET, "COMET_URL_OVERRIDE": url})
    return location, output, received


@pytest.mark.long
def test_metrics_are_sent_to_the_server_with_a_valid_key(tmp_path: Path) -> None:
    location, output, received = train_online(tmp_path, accepts=True)
    assert location.endswith(experiment_key("dag/run/v1"))
    assert list((tmp_path / "comet").iterdir()) == []
    assert "WARNING" not in output
    sent = received[METRICS].decode()
    assert all(f'"{name}"' in sent for name in ("loss", "epoch/time_s", "input/wait_ms", "step/time_ms/max"))
    assert SECRET not in output


@pytest.mark.long
def test_a_refused_key_leads_to_an_offline_archive_without_the_secret(tmp_path: Path) -> None:
    archive, output, _ = train_online(tmp_path, accepts=False)
    assert series(Path(archive))["loss"] == [(1, 0.5), (2, 0.25)]
    assert [path.name for path in (tmp_path / "comet").iterdir()] == ["try-1"]
    assert "an offline archive is written instead" in output
    assert SECRET not in output


@pytest.mark.long
def test_a_lost_server_leads_to_a_complete_offline_archive(tmp_path: Path) -> None:
    """Comet itself would create another experiment, or lose the unsent values if the server is lost at the end."""
    archive, output, received = train_online(tmp_path, accepts=True, goes_away=True)
    assert b"0.25" not in received[METRICS]
    assert series(Path(archive))["loss"] == [(1, 0.5), (2, 0.25)]
    assert about(Path(archive))["resume_strategy"] == "get_or_create"
    assert f"comet upload {archive}\n" in output
    assert "force-reupload" not in output
    assert SECRET not in output
    assert_all_is_recorded(tmp_path)


@pytest.mark.long
def test_an_unreachable_server_leads_to_an_offline_archive_without_the_secret(tmp_path: Path) -> None:
    with socket.socket() as listener:  # It does not listen, so connections are refused. comet_ml retries for 20 s.
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/clientlib/"
        archive, output = train(tmp_path, {"COMET_API_KEY": SECRET, "COMET_URL_OVERRIDE": url})
    assert series(Path(archive))["loss"] == [(1, 0.5), (2, 0.25)]
    assert "an offline archive is written instead" in output
    assert SECRET not in output
    assert "urllib3" not in output


@contextmanager
def training(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a training after Comet has the loss of its last epoch. It continues to run, and is killed at the end."""
    command = [sys.executable, "-c", TRAINING, str(folder), "go on"]
    process = subprocess.Popen(command, env=environment_in(folder) | environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: b'"metricValue":0.25' in b"".join(map(Path.read_bytes, open_messages(folder))))
        yield process
    finally:
        process.kill()
        process.wait()


def open_messages(folder: Path) -> list[Path]:
    return list(folder.glob("comet/try-*/.open/*/messages.json"))


def recovered(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["comet", "recover", str(folder), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.long
def test_comet_recover_packs_files_of_a_killed_training_for_upload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "a run" / "training"
    with training(run, {}) as process:
        (run / "run.json").write_text("{}")
        assert recovered(tmp_path, capsys)["recovered"] == []  # the training is still running
        process.kill()
        process.wait()
        assert not list(run.glob("comet/*/*.zip"))
        assert not list((run / "temporary").iterdir())
        found = recovered(tmp_path, capsys)
    archive = run / "comet" / "try-1" / f"{experiment_key('dag/run/v1')}.zip"
    assert found["recovered"] == [str(archive)]
    assert str(found["upload"]).endswith(shlex.join(["comet", "upload", str(archive)]))
    assert series(archive)["loss"] == [(1, 0.5), (2, 0.25)]
    assert recovered(run, capsys) == {"recovered": [], "upload": found["upload"]}  # prints the command again

    whole = Path(train(tmp_path / "whole", {})[0])
    assert about(archive).keys() == about(whole).keys()
    with comet_server(accepts=True) as (url, received):
        online = {"COMET_API_KEY": SECRET, "COMET_URL_OVERRIDE": url}
        command = [str(Path(sys.executable).with_name("comet")), "upload", str(archive)]
        subprocess.run(command, env=environment_in(tmp_path) | online, capture_output=True, timeout=300, check=True)
    assert b'"loss"' in received[METRICS]


@pytest.mark.long
def test_the_next_attempt_packs_files_of_a_killed_attempt(tmp_path: Path) -> None:
    with training(tmp_path, {}) as process:
        process.kill()
        process.wait()
    location, output = train(tmp_path, {})
    first, second = sorted((tmp_path / "comet").glob("*/*.zip"))
    assert str(second) == location
    assert series(first)["loss"] == series(second)["loss"]
    assert f"packed the values that a killed attempt could not send to Comet: {first}" in output
    assert f"comet upload {first} {second}\n" in output


def test_files_of_a_killed_online_training_are_packed(tmp_path: Path) -> None:
    with (
        comet_server(accepts=True) as (url, _),
        training(tmp_path, {"COMET_API_KEY": SECRET, "COMET_URL_OVERRIDE": url}) as process,
    ):
        process.kill()
        process.wait()
    [archive] = recover(tmp_path / "comet")
    assert series(archive)["loss"] == [(1, 0.5), (2, 0.25)]
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_comet_recover_reports_a_missing_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comet", "recover", str(tmp_path)]) == 1
    assert f"{tmp_path} does not contain a run" in capsys.readouterr().err
    assert main(["comet", "recover", "gs://bucket/runs/x"]) == 1
    assert "is in a bucket" in capsys.readouterr().err


def test_an_error_message_does_not_contain_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(f"https://comet.example/?apiKey={SECRET}&x=1 does not answer")
    known = {"comet.api_key": SECRET}
    monkeypatch.setitem(sys.modules, "comet_ml", SimpleNamespace(get_config=known.get))
    assert error_text(error) == "OSError: https://comet.example/?apiKey=(the key)&x=1 does not answer"


def test_a_retry_goes_on_with_the_intervals_of_the_attempts_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts of 500 and 300 s, with an hour between them."""
    for begin, end in ((1000.0, 1500.0), (5100.0, 5400.0)):
        with closing(RecordSink(tmp_path / "record")) as record:
            for time in (begin, end):
                record.write(Row("samples", time, 1, {"x": 1.0}))
    made = []

    class Noted(CometSink):
        def __init__(self, folder: Path, options: CometOptions, before_s: float = 0.0) -> None:
            made.append(before_s)
            raise InterruptedError  # Comet itself takes seconds to begin.

    monkeypatch.setattr(monitor, "CometSink", Noted)
    with pytest.raises(InterruptedError), open_monitor(tmp_path, comet=CometOptions("project", "identity", "name")):
        pass
    assert made == [800.0]


def test_finish_within_stops_waiting_at_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    hangs = threading.Event()
    assert not finish_within(0.05, "it", hangs.wait)
    hangs.set()
    assert finish_within(300, "it", lambda: simulated_work(0.2))
    assert finish_within(300, "it", lambda: 1 / 0)
    assert [record.getMessage() for record in caplog.records] == [
        "it did not end within 0.05 s; the local record is complete",
        "it could not be ended: ZeroDivisionError: division by zero",
    ]
