"""Hundreds of random transient errors: no image is lost, no result changes, and each error is reported."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from google.auth._exponential_backoff import ExponentialBackoff
from google.oauth2 import _client
from google.oauth2.credentials import Credentials

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.monitor import read
from pipeline.stages.build import build
from pipeline.storage import gcs as requests_of
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages
from tests.published import build_command, files_of_version, temporary_files
from tests.token_server import TokenServer
from tests.transient_errors import FailingFileSystem, Injected

ROUNDS = int(os.environ.get("TRANSIENT_ROUNDS", "3"))
TRIES = 12


@dataclass(frozen=True)
class Training:
    """A training that the command line runs."""

    workspace: Path
    command: list[str]

    @property
    def folder(self) -> Path:
        [run] = self.workspace.glob("runs/*/*/run.json")
        return run.parent

    def weights(self) -> list[np.ndarray]:
        return list(keras.models.load_model(self.folder / "model.keras").get_weights())


def train_command(values: dict[str, object], workspace: Path) -> Training:
    given = {**values, "workspace": workspace}
    options = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    return Training(workspace, [sys.executable, "-m", "pipeline", "train", *options])


def has_another_way(error: Injected) -> bool:
    """Return whether Python handles the error itself: O_TMPFILE has a fallback, and realpath keeps the link."""
    return error.call == "stat" or (error.call == "open" and Path(error.path).is_dir())


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    source = make_images({"cats": 30, "dogs": 30})
    values = {"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "dataset_name": "pets"}
    return settings_from({**values, "num_shards": 3})


@pytest.mark.long
def test_a_build_on_a_failing_file_system_completes_after_retries(
    settings: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    expected = Path(build(settings.model_copy(update={"workspace": str(tmp_path_factory.mktemp("sound"))}))["dataset"])
    failing = FailingFileSystem(tmp_path, tmp_path_factory.mktemp("failing"))
    met = []
    for round_ in range(ROUNDS):
        of_round = settings.model_copy(update={"workspace": str(tmp_path / f"w{round_}")})
        for attempt in range(TRIES):
            # Errors become rarer with each attempt, because the retries of Airflow are minutes apart.
            environment = failing.environment(one_in=round(60 * 1.6**attempt), seed=TRIES * round_ + attempt)
            done = subprocess.run(build_command(of_round), env=environment, capture_output=True, text=True)
            injected = failing.injected()
            met += injected
            named = [each for each in injected if each.message in done.stderr or has_another_way(each)]
            # If several threads have an error at the same time, the build ends with the first one and names it.
            assert named == injected if done.returncode == 0 else named, done.stderr
            if done.returncode == 0:
                break
            assert done.stderr.splitlines()[-1].endswith(
                ("run the same command to continue from here", "and run again")
            ), done.stderr
        folder = Path(build(of_round)["dataset"])
        assert done.returncode == 0
        assert files_of_version(folder) == files_of_version(expected)
        assert load(folder).rejected["count"] == 0
        assert verify(folder)["ok"]
        assert temporary_files(of_round) == []
    print(f"{len(met)} errors in {ROUNDS} builds")
    assert len(met) > 2 * ROUNDS


@pytest.mark.long
def test_two_servers_on_a_failing_file_system_learn_the_same_weights(
    settings: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    """The file system holds the shards, the rendezvous files, the checkpoints, the models and the record."""
    dataset = build(settings)["dataset"]
    values = {"dataset": dataset, "num_training_servers": 2, "batch_size": 8, "epochs": 2, "image_size": 32}
    of_training = {**values, "cache": "off", "checkpoint_steps": 3}
    expected = train_command(of_training, tmp_path_factory.mktemp("sound"))
    subprocess.run(expected.command, check=True, capture_output=True)
    tried = train_command(of_training, tmp_path / "training")
    failing = FailingFileSystem(tmp_path, tmp_path_factory.mktemp("failing"))
    met = []
    for attempt in range(TRIES):
        environment = failing.environment(one_in=600 * 2**attempt, seed=attempt)
        done = subprocess.run(tried.command, env=environment, capture_output=True, text=True)
        met += failing.injected()
        if done.returncode == 0:
            break
        assert "must be" not in done.stderr.splitlines()[-1], done.stderr
    assert done.returncode == 0, done.stderr
    assert all(map(np.array_equal, tried.weights(), expected.weights()))
    steps = read(tried.folder / "record", "batches")["step"].tolist()
    assert steps == read(expected.folder / "record", "batches")["step"].tolist()
    print(f"{len(met)} errors in a training, which came through at try {attempt + 1}")
    assert met


@pytest.fixture
def tokens(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    """A server whose tokens expire at once, so that each request needs a new token."""
    server = TokenServer()
    server.expires_in = 1
    credentials = Credentials(
        None, refresh_token="r", token_uri=f"http://{server.address}", client_id="c", client_secret="s"
    )
    monkeypatch.setattr(requests_of, "_credentials", lambda: credentials)
    monkeypatch.setattr(requests_of, "FIRST_WAIT_S", 0.01)
    quick = partial(ExponentialBackoff, initial_wait_seconds=0.01)  # pauses between the retries of google-auth
    monkeypatch.setattr(_client, "_exponential_backoff", SimpleNamespace(ExponentialBackoff=quick))
    thread = threading.Thread(target=server.http.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()
    requests_of._client.cache_clear()


OF_THE_WORKSPACE = "insert|rewrite|get|download|list"
PASSING = ({"code": 401}, {"code": 503}, {"code": 429}, {"code": 500}, {"kind": "reset"}, {"kind": "lost"})


@pytest.mark.core
def test_a_build_in_an_unreliable_bucket_completes(
    settings: Settings, gcs: FakeGcs, tokens: TokenServer, caplog: pytest.LogCaptureFixture
):
    expected = files_of_version(Path(build(settings)["dataset"]))
    chance = Random(1)
    gcs.put_folder("bucket", "raw/", Path(settings.source_uri))
    refused = []
    for round_ in range(ROUNDS):
        places = {"source_uri": "gs://bucket/raw", "workspace": f"gs://bucket/w{round_}"}
        # The object of a fault decides in which stage the fault occurs.
        names = [name for name in gcs.names("bucket") if name.startswith("raw/")]
        made = ["snapshot", "plan.json", "train-0000[0-2]", "validation", "dataset.json", "labels/", "results/", "list"]
        faults = [
            gcs.fail(**{"kind": "status", **chance.choice(PASSING)}, on="download|get", matches=f"^{re.escape(name)}$")
            for name in chance.sample(names, 30)
        ] + [
            gcs.fail(
                **{"kind": "status", **chance.choice(PASSING)}, on="insert|rewrite|get|download|list", matches=word
            )
            for word in made
            for _ in range(2)
        ]
        # google-auth requests a token three times before it gives up. One in twenty requests gets no token at first.
        begin = tokens.requests + 10
        tokens.fails = lambda number, begin=begin: number > begin and (number - begin) % 60 < 3
        before = len(caplog.messages)
        folder = place_of(build(settings_from({**settings.model_dump(), **places}))["dataset"])
        tokens.fails = lambda _: False
        met = sum(fault.fired for fault in faults)
        retries = [line for line in caplog.messages[before:] if "trying again after" in line]
        refused += [line for line in retries if "RefreshError" in line]
        assert met > 25
        assert len(retries) >= met - sum(fault.fired for fault in faults if fault.kind == "lost")
        assert {name: (folder / name).read_bytes() for name in expected if name.endswith("tfrecord")} == {
            name: bytes_ for name, bytes_ in expected.items() if name.endswith("tfrecord")
        }
        assert load(folder).rejected["count"] == 0
        gcs.faults.clear()
    print(f"{met} errors of the bucket in the last build, {len(refused)} of the token server in all")
    assert refused
