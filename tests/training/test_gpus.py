"""The GPUs of a training: real processes that ask for the same ones. No GPU is needed: their names are given."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import BadInput, Preempted, TrainingError
from pipeline.monitor.gpu import MASK, visible_uuids
from pipeline.runs.launch import prepare_run
from pipeline.system.gpu_locks import GpuLocks, default_folder
from pipeline.training import __main__ as process
from pipeline.training import gpus as start
from pipeline.training.gpus import OwnGpus, own_gpus
from pipeline.training.stop import Stop
from tests.monitor.test_gpu import UUIDS, FakeNvml

TRAINING = """
import json, logging, os, sys, threading
from contextlib import nullcontext
from pathlib import Path
from pipeline.config.settings import settings_from
from pipeline.rendezvous import join_cluster
from pipeline.rendezvous.servers import Server
from pipeline.training import gpus as start
logging.basicConfig(level=logging.INFO)
index, count, gpus, values, folder = json.loads(sys.argv[1])
settings = settings_from(values)
start.visible_uuids = lambda: gpus
never = threading.Event().is_set
of_servers = join_cluster(
    Path(folder), Server(index, count), 600, never, lambda error: os._exit(1), gpus, settings.gpus_per_server
)
with of_servers if count > 1 else nullcontext() as cluster, start.own_gpus(settings, cluster, never) as own:
    print(*own.uuids, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""
"""One server of a training, up to the point where it would load TensorFlow. It ends when its stdin is closed."""
FOUR = [f"GPU-{number}" for number in range(4)]


def never() -> bool:
    return False


class Trainings:
    """Starts servers of trainings, each a process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.started = folder, []

    def start(self, gpus: list[str], per_server: int, servers: int = 1) -> "list[subprocess.Popen[str]]":
        """Start all servers of one training."""
        values = {"gpus_per_server": per_server, "server_wait_minutes": 10, "workspace": str(self._folder)}
        meeting = self._folder / f"cluster{len(self.started)}"
        meeting.mkdir()
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINING, json.dumps([index, servers, gpus, values, str(meeting)])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(self._folder)},
            )
            for index in range(servers)
        ]
        self.started += processes
        return processes


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[Trainings]:
    started = Trainings(tmp_path)
    yield started
    for each in started.started:
        each.kill()
        with each:  # closes the pipes, and waits
            pass


def gpus_of(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """Return the GPUs of all processes, in order, once each has its own."""
    gpus: list[str] = []
    for each in processes:
        *own, mask = each.stdout.readline().split()
        assert mask == ",".join(own)
        gpus += own
    return sorted(gpus)


@pytest.mark.core
def test_trainings_of_one_machine_get_different_gpus(trainings: Trainings):
    """The fifth one waits until one is killed."""
    started = [trainings.start(FOUR, 1)[0] for _ in range(4)]
    assert gpus_of(started) == FOUR
    [fifth] = trainings.start(FOUR, 1)
    # The process says that it waits.
    assert any("waiting for 1 of 4 GPUs" in line for line in fifth.stderr)
    started[2].kill()
    assert len(gpus_of([fifth])) == 1


@pytest.mark.core
def test_servers_of_one_machine_divide_its_gpus(trainings: Trainings):
    """Another training with two servers waits for both GPUs. It takes none before the first one has ended."""
    first = trainings.start(FOUR[:2], 0, servers=2)
    assert gpus_of(first) == FOUR[:2]
    second = trainings.start(FOUR[:2], 0, servers=2)
    for each in first:
        each.stdin.close()
    assert gpus_of(second) == FOUR[:2]


@pytest.mark.core
def test_servers_with_unequal_shares_are_refused_when_they_meet(trainings: Trainings):
    servers = trainings.start([*FOUR, *(f"GPU-x{number}" for number in range(4))], 0, servers=3)
    for each in servers:
        output = each.communicate()[1]
        assert "BadInput: the GPUs do not divide evenly" in output
        assert "would get 3, 3, 2" in output


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuLocks:
    """The locks of another training. The environment of this process is restored after the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(MASK, "")
    return GpuLocks(default_folder())


def test_a_wait_for_gpus_ends_after_a_limit_or_on_request(locks: GpuLocks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "visible_uuids", lambda: FOUR)
    settings = settings_from({"gpus_per_server": 2, "server_wait_minutes": 0.001})
    assert locks.take(FOUR, 3)
    message = r"needs 2 of the 4 GPUs .* 0.001 minutes \(server_wait_minutes\).*TENFOLD_TRAININGS_AT_ONCE"
    with pytest.raises(TrainingError, match=message), own_gpus(settings, None, never):
        pass
    with pytest.raises(Preempted), own_gpus(settings, None, lambda: True):
        pass
    monkeypatch.setattr(start, "visible_uuids", lambda: FOUR[:1])
    with pytest.raises(BadInput, match="gpus_per_server=2 needs 2 GPUs"), own_gpus(settings, None, never):
        pass


def test_a_training_process_waits_for_gpus_before_it_loads_tensorflow(
    locks: GpuLocks, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(start, "visible_uuids", lambda: FOUR)
    run = prepare_run(settings_from({"workspace": str(tmp_path)}), published, "run")
    assert locks.take(FOUR, 1)
    stop = Stop()
    stop.request()
    with pytest.raises(Preempted, match="while it waited for GPUs"):
        process._train(run.folder, stop, pytest.fail)


def test_gpus_that_tensorflow_does_not_use_are_free_for_others(locks: GpuLocks):
    own = GpuLocks(default_folder())
    assert own.take(FOUR, 4)
    OwnGpus(FOUR, own, 0).confirm(lambda: FOUR)
    assert locks.take(FOUR, 1) is None
    OwnGpus(FOUR, own, 0).confirm(list)
    assert locks.take(FOUR, 1)
    with pytest.raises(BadInput, match="gpus_per_server=2, but TensorFlow found 0 GPUs"):
        OwnGpus(FOUR, own, 2).confirm(list)


def test_the_gpus_of_a_process_are_those_that_cuda_shows_it():
    assert visible_uuids(FakeNvml(3), {}) == list(UUIDS)
    assert visible_uuids(FakeNvml(3), {MASK: f"2,{UUIDS[0]}"}) == [UUIDS[2], UUIDS[0]]
    assert visible_uuids(FakeNvml(3), {MASK: "-1"}) == []
    assert visible_uuids(FakeNvml(broken={"nvmlInit": 12}), {}) == []
