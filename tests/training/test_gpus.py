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
from pathlib import Path
from types import SimpleNamespace
from pipeline.config.settings import settings_from
from pipeline.rendezvous.servers import Server
from pipeline.training import gpus as start
logging.basicConfig(level=logging.INFO)
index, count, gpus, values, folder, found = json.loads(sys.argv[1])
settings = settings_from(values)
start.visible_uuids = lambda: gpus
never = threading.Event().is_set
run = SimpleNamespace(training=Path(folder), server=Server(index, count), settings=settings)
meeting = start.meeting_of(run, never, lambda error: os._exit(1))
with meeting as cluster, start.own_gpus(settings, cluster, never) as own:
    if found:
        own.confirm(lambda: range(found))
    print(*own.uuids, os.environ.get("CUDA_VISIBLE_DEVICES", ""), flush=True)
    sys.stdin.read()
"""
"""One server of a training, up to the point where it would load TensorFlow. It ends when its stdin is closed."""
EVALUATION = """
import json, os, sys
from pathlib import Path
from pipeline.training import gpus
from pipeline.training.served import exported
gpus.visible_uuids = lambda: json.loads(sys.argv[1])
exported.evaluate_exported = lambda export, dataset: os.environ.get("CUDA_VISIBLE_DEVICES")
exported.save_predictions = lambda folder, gpus: print(gpus, flush=True)
exported.main(Path("export"), Path("dataset"), Path("folder"), os.getppid())
"""
"""The process that evaluates an exported model. Instead, it prints which GPUs CUDA shows it."""
FOUR = [f"GPU-{number}" for number in range(4)]
PARTS = [f"MIG-{number}" for number in range(7)]


def never() -> bool:
    return False


class Trainings:
    """Starts servers of trainings, each a process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.started = folder, []

    def start(
        self, gpus: list[str], per_server: int, servers: int = 1, step: int = 1, found: int = 0, **values: object
    ) -> "list[subprocess.Popen[str]]":
        """Start all servers of one training. Servers after the first see every `step`th GPU, TensorFlow `found`."""
        values |= {"gpus_per_server": per_server, "server_wait_minutes": 10, "workspace": str(self._folder)}
        meeting = self._folder / f"cluster{len(self.started)}"
        meeting.mkdir()
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    TRAINING,
                    json.dumps([index, servers, gpus[:: step if index else 1], values, str(meeting), found]),
                ],
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
def test_servers_that_see_the_same_gpus_in_different_orders_divide_them(trainings: Trainings):
    started = trainings.start(FOUR[:2], 0, servers=2, step=-1)
    assert gpus_of(started) == FOUR[:2]


@pytest.mark.core
def test_servers_do_not_share_gpus_that_nvml_does_not_list(trainings: Trainings):
    """TensorFlow would give all of them to each server."""
    for each in trainings.start([], 0, servers=2, found=2):
        assert "BadInput: TensorFlow found 2 GPUs, but the driver's library NVML lists none" in each.communicate()[1]


@pytest.mark.core
def test_servers_of_a_simulated_accelerator_take_no_gpu(trainings: Trainings, locks: GpuLocks):
    assert locks.take(FOUR, 4)
    started = trainings.start(FOUR, 3, servers=2, simulated_step_ms=10.0)
    assert [each.stdout.readline().split() for each in started] == [["-1"], ["-1"]]


@pytest.mark.core
def test_an_evaluation_uses_only_a_gpu_that_no_training_uses(locks: GpuLocks, tmp_path: Path):
    def shown(gpus: list[str]) -> str:
        command = [sys.executable, "-c", EVALUATION, json.dumps(gpus)]
        return subprocess.check_output(command, text=True, env={**os.environ, "TMPDIR": str(tmp_path), MASK: "all"})

    assert locks.take(FOUR, 2)
    assert shown(FOUR) == f"{FOUR[2]}\n"
    assert shown(FOUR[:2]) == "-1\n"
    assert shown([]) == "all\n"


def test_each_server_takes_one_part_of_a_divided_gpu(locks: GpuLocks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "visible_uuids", lambda: PARTS)
    with own_gpus(settings_from({}), None, never) as own:
        assert list(own.uuids) == PARTS[:1]
        assert locks.take(PARTS, 6) == PARTS[1:]


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
    stop.requested.set()
    with pytest.raises(Preempted, match="while it waited for GPUs"):
        process._train(run.folder, stop, pytest.fail)


def test_gpus_that_tensorflow_does_not_use_are_free_for_others(locks: GpuLocks):
    own = GpuLocks(default_folder())
    assert own.take(FOUR, 4)
    OwnGpus(FOUR, own).confirm(lambda: FOUR)
    assert locks.take(FOUR, 1) is None
    OwnGpus(FOUR, own).confirm(list)
    assert locks.take(FOUR, 1)


def test_other_gpus_than_those_of_the_settings_are_reported(locks: GpuLocks, caplog: pytest.LogCaptureFixture):
    with pytest.raises(BadInput, match="gpus_per_server=2, but TensorFlow found 0 GPUs: run `make env CUDA=yes`, or"):
        OwnGpus(FOUR[:2], locks, 2).confirm(list)
    with pytest.raises(BadInput, match="gpus_per_server=2, but TensorFlow found 1 GPU: set gpus_per_server=0"):
        OwnGpus(FOUR[:2], locks, 2).confirm(lambda: FOUR[:1])
    OwnGpus(FOUR, locks).confirm(lambda: FOUR[:1])
    assert "only 1 of the 4 GPUs that this training has taken: set gpus_per_server=1" in caplog.text
    OwnGpus([], locks).confirm(lambda: FOUR)
    assert "NVML lists none: other trainings may use the same GPUs" in caplog.text


def test_the_gpus_of_a_process_are_those_that_cuda_shows_it():
    assert visible_uuids(FakeNvml(3), {}) == list(UUIDS)
    assert visible_uuids(FakeNvml(3), {MASK: f"2,{UUIDS[0]}"}) == [UUIDS[2], UUIDS[0]]
    assert visible_uuids(FakeNvml(3), {MASK: "-1"}) == []
    assert visible_uuids(FakeNvml(broken={"nvmlInit": 12}), {}) == []
