"""Comet: the limits hold by construction, and the archive, opened with zipfile, holds the series."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from pipeline.monitor.comet import Window, experiment_key, new_try
from pipeline.monitor.row import Row
from tests.comet_server import comet_server


def test_window_gives_mean_and_maximum_at_its_last_step() -> None:
    window = Window()
    assert window.add(Row("samples", 100.0, 1, {"x": 1.0})) is None
    assert window.add(Row("samples", 101.9, 2, {"x": 5.0, "y": float("nan")})) is None
    assert window.add(Row("samples", 102.1, 3, {"x": 9.0})) == (2, {"x": 3.0, "x/max": 5.0})
    assert window.take() == (3, {"x": 9.0, "x/max": 9.0})
    assert window.take() is None


@pytest.mark.parametrize(("gpus", "hours"), [(8, 10), (64, 1)])
def test_comets_limits_hold(gpus: int, hours: int) -> None:
    names = [f"gpu/{i}/{j}" for i in range(gpus) for j in range(5)] + [f"sys/{i}" for i in range(12)]
    samples, batches = Window(), Window()
    by_minute: Counter[int] = Counter()
    by_metric: Counter[str] = Counter()
    for tick in range(hours * 3600 * 2):  # 2 Hz: the rate within a window changes no count
        time = 1e9 + tick / 2
        for window, series in ((samples, names), (batches, ["a", "b", "c"])):
            ended = window.add(Row("samples", time, tick, dict.fromkeys(series, 1.0)))
            if ended:
                by_minute[int(time // 60)] += len(ended[1])
                by_metric.update(ended[1])
    assert max(by_minute.values()) < 12_000
    assert 100 < max(by_metric.values()) < 15_000


def test_key_is_what_comet_takes_and_stable() -> None:
    key = experiment_key("dag/run/version/settings")
    assert key.isalnum()
    assert 32 <= len(key) <= 50
    assert key == experiment_key("dag/run/version/settings") != experiment_key("dag/run/version/other")


def test_each_try_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert [new_try(tmp_path / "comet").name for _ in range(3)] == ["try-1", "try-2", "try-3"]


TRAINING = """
import sys
from pathlib import Path
from pipeline import monitor
options = monitor.CometOptions("project", "dag/run/v1", "a name", {"epochs": 2, "model": "small"})
with monitor.open_monitor(Path(sys.argv[1]), hz=20, comet=options) as m:
    for step in range(1, 31):
        m.batch(step=step, epoch=1 + step // 16, wait_s=0.001 * step, compute_s=0.01, examples=32)
        __import__("time").sleep(0.01)
    m.epoch(epoch=1, step=15, values={"loss": 0.5, "epoch/time_s": 1.5})
    m.epoch(epoch=2, step=30, values={"loss": 0.25, "epoch/time_s": 1.25})
print(m.comet_location)
"""


def train(folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Monitor a short training in a fresh process (comet_ml changes the process it is in); (location, its stderr)."""
    base = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", TRAINING, str(folder)]
    done = subprocess.run(command, env=base | environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()[-1], done.stderr


def messages(archive: Path) -> list[tuple[str, dict[str, object]]]:
    with zipfile.ZipFile(archive) as content:
        lines = content.read("messages.json").decode().splitlines()
    return [(message["type"], message["payload"]) for message in map(json.loads, lines)]


def series(archive: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by metric."""
    found: dict[str, list[tuple[int, float]]] = {}
    for kind, payload in messages(archive):
        if kind == "metric_msg":
            metric: dict[str, object] = payload["metric"]  # type: ignore[assignment]
            found.setdefault(str(metric["metricName"]), []).append((metric["step"], metric["metricValue"]))  # type: ignore[arg-type]
    return found


def test_archive_holds_parameters_and_all_series(tmp_path: Path) -> None:
    archive = Path(train(tmp_path, {})[0])
    assert archive.parent == tmp_path / "comet" / "try-1"
    assert archive.name.startswith(experiment_key("dag/run/v1"))

    found = series(archive)
    assert found["loss"] == [(1, 0.5), (2, 0.25)]
    assert found["epoch/time_s"] == [(1, 1.5), (2, 1.25)]
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


def test_a_retry_overwrites_no_archive(tmp_path: Path) -> None:
    first = Path(train(tmp_path, {})[0])
    content = first.read_bytes()
    second = Path(train(tmp_path, {})[0])
    assert second.parent.name == "try-2"
    assert first.read_bytes() == content
    assert second.name.split("-")[0] == first.name.split("-")[0]  # the same experiment


SECRET = "a1B2c3D4e5F6g7H8i9J0k1L2m"


def train_online(folder: Path, accepts: bool) -> tuple[str, str, dict[str, bytes]]:
    """(location, stderr, what the server received by path)"""
    with comet_server(accepts) as (url, received):
        location, words = train(folder, {"COMET_API_KEY": SECRET, "COMET_URL_OVERRIDE": url})
    return location, words, received


def test_with_a_key_the_series_go_to_the_server(tmp_path: Path) -> None:
    location, words, received = train_online(tmp_path, accepts=True)
    assert location.endswith(experiment_key("dag/run/v1"))
    assert not list(tmp_path.glob("comet/**/*.zip"))
    sent = received["/clientlib/batch/logger/experiment/metric"].decode()
    assert all(f'"{name}"' in sent for name in ("loss", "epoch/time_s", "input/wait_ms", "step/time_ms/max"))
    assert SECRET not in words


def test_a_refused_key_means_offline_with_a_warning_and_no_secret(tmp_path: Path) -> None:
    archive, words, _ = train_online(tmp_path, accepts=False)
    assert series(Path(archive))["loss"] == [(1, 0.5), (2, 0.25)]
    assert "an offline archive is written instead" in words
    assert SECRET not in words


@pytest.mark.long
def test_a_server_away_means_offline_with_a_warning_and_no_secret(tmp_path: Path) -> None:
    with socket.socket() as listener:  # bound and not listening: connections are refused, and comet_ml tries for 20 s
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/clientlib/"
        archive, words = train(tmp_path, {"COMET_API_KEY": SECRET, "COMET_URL_OVERRIDE": url})
    assert series(Path(archive))["loss"] == [(1, 0.5), (2, 0.25)]
    assert "an offline archive is written instead" in words
    assert SECRET not in words
