"""Several training servers, each in a separate process on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import SettingsError, TrainingError
from pipeline.monitor import read
from pipeline.report import report_run
from pipeline.runs.changes import load_changes
from pipeline.runs.launch import TrainingProcess, prepare_run, train
from pipeline.runs.requirements import require_shares
from pipeline.runs.run import EXIT_PREEMPTED, load_result, take_failure
from pipeline.tables.schema import Column
from tests.made_tables import make_table
from tests.ports import own_port
from tests.published import replace_record
from tests.training import noting_ids, replicas
from tests.waiting import until

ROOT = Path(__file__).parents[2]
EXAMPLES, STEPS = 34, 5
"""Training examples of the published dataset, and the steps per epoch of two servers."""
BOUND_S = 60.0
"""Maximum seconds of a quiet machine from a signal or the death of a server to the end of the others."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    values = {"workspace": str(tmp_path), "image_size": 32, "batch_size": 8, "epochs": 2, "cache": "off"}
    return settings_from({**values, "num_training_servers": 2, "server_wait_minutes": 1.0})


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"xla": True, "micro_batches": 2}])
def test_two_servers_or_devices_take_the_same_steps_as_one_device(options: dict, tmp_path: Path):
    """Losses, clipped gradients and updates are equal. All servers get the stop request of one server."""
    addresses = [f"127.0.0.1:{own_port()}" for _ in range(2)]
    arguments = [[], *([str(index), *addresses] for index in range(2))]
    script = [sys.executable, replicas.__file__]
    commands = [[*script, tmp_path / f"{n}.npz", json.dumps(options), *args] for n, args in enumerate(arguments)]
    processes = [subprocess.Popen(command, env=ENVIRONMENT) for command in commands]
    one = replicas.two_steps()  # in this process, while the others load TensorFlow
    assert [process.wait() for process in processes] == [0] * 3
    mirrored, first, second = (list(np.load(tmp_path / f"{n}.npz").values()) for n in range(3))
    for ours, theirs in zip(first, second, strict=True):
        assert np.array_equal(ours, theirs)
    assert first[0][:, 2].tolist() == [8, 8]  # examples without padding
    assert [results[0][1, 3] > 0 for results in (one, mirrored, first)] == [True] * 3
    for several in (mirrored, first):
        for alone, together in zip((one[0][:, :3], *one[1:]), (several[0][:, :3], *several[1:]), strict=True):
            assert np.allclose(alone, together, rtol=1e-5, atol=1e-7)  # float32 sums in another order differ


class Noted:
    """The servers of a training, and the examples of their steps."""

    def __init__(self, settings: Settings, dataset: Path) -> None:
        self.runs = [prepare_run(settings, dataset, "run", index) for index in range(2)]

    def start(self, request: str = "") -> list[subprocess.Popen[bytes]]:
        """Start the servers. Server 0 requests a change, if one is given."""
        commands = [
            [sys.executable, noting_ids.__file__, str(run.folder / "notes"), str(run.folder), str(os.getpid())]
            for run in self.runs
        ]
        environments = {**ENVIRONMENT, "REQUEST": request}, ENVIRONMENT
        return [
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
            for command, environment in zip(commands, environments, strict=True)
        ]

    def lines(self, index: int) -> list[list[int]]:
        notes = self.runs[index].folder / "notes"
        return [list(map(int, line.split())) for line in notes.read_text().splitlines()] if notes.exists() else []

    def checksums(self, index: int) -> list[str]:
        """Return the step and the checksum of the weights of a server, after each step."""
        return (self.runs[index].folder / "notes.weights").read_text().splitlines()

    def surviving(self, index: int) -> dict[int, list[int]]:
        """Return the epoch and the example numbers of each step, from its last execution."""
        return {step: seen for step, *seen in self.lines(index)}

    def seen(self, epoch: int) -> Counter[int]:
        steps = [seen for index in range(2) for seen in self.surviving(index).values()]
        return Counter(number for of, *numbers in steps if of == epoch for number in numbers)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A dataset of a table with as many training rows as `published` has images. Its lists have different lengths."""
    return table_in(tmp_path, tested=0)


@pytest.fixture
def tested_table(tmp_path: Path) -> Path:
    """The same table with three test rows."""
    return table_in(tmp_path, tested=3)


def table_in(tmp_path: Path, tested: int) -> Path:
    columns = (
        Column("age", "int"),
        Column("income", "float", missing=4),
        Column("job", "string", missing=3),
        Column("words", "string", is_list=True),
        Column("label", "string", role="label"),
    )
    rows = [
        {
            "age": 20 + number,
            "income": None if number % 10 == 0 else 1000.0 * number,
            "job": None if number % 13 == 0 else ("baker", "pilot", "nurse")[number % 3],
            "words": ["good", "bad", "other"][: number % 4],
            "label": ("no", "yes")[number % 2],
        }
        for number in range(40)
    ]
    splits = {"train": rows[:EXAMPLES], "validation": rows[EXAMPLES + tested :], "test": rows[EXAMPLES:][:tested]}
    return make_table(tmp_path / "table", columns, splits, "classification")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")  # Names of columns are keys of the inputs only.
@pytest.mark.parametrize("kind", [pytest.param("published", marks=pytest.mark.core), "table", "tested_table"])
def test_two_servers_read_each_example_once_and_write_one_model(
    settings: Settings, kind: str, request: pytest.FixtureRequest
):
    noted = Noted(settings, request.getfixturevalue(kind))
    processes = noted.start()
    errors = errors_of(processes)
    assert [process.returncode for process in processes] == [0, 0], errors
    for epoch in (1, 2):
        assert noted.seen(epoch) == Counter(range(EXAMPLES))
    steps = [set(noted.surviving(index)) for index in range(2)]
    assert steps[0] == steps[1]
    assert noted.checksums(0) == noted.checksums(1)
    assert len(set(noted.checksums(0))) == 2 * STEPS
    first, second = (read(run.folder / "record", "epochs") for run in noted.runs)
    assert first[["loss", "val_loss", "val_accuracy"]].equals(second[["loss", "val_loss", "val_accuracy"]])
    assert "servers/sys/cpu_pct_mean" in read(noted.runs[0].folder / "record", "samples")
    result = load_result(noted.runs[0].folder)
    assert keras.models.load_model(result["model"]).count_params() > 0
    evaluation = json.loads((noted.runs[0].folder / "evaluation.json").read_text())
    is_tested = kind == "tested_table"
    assert (evaluation["split"], evaluation["examples"]) == (("test", 3) if is_tested else ("validation", 6))
    accuracy = evaluation["figures"]["accuracy"]["value"]
    assert accuracy == pytest.approx(result["metrics"]["test_accuracy" if is_tested else "val_accuracy"])
    assert f"{accuracy:.1%}" in report_run(noted.runs[0].folder).read_text()
    assert not list(noted.runs[1].folder.glob("*.keras"))
    assert TrainingProcess(noted.runs[1], output=1).wait() == result


@pytest.mark.long
def test_a_change_takes_effect_on_both_servers_at_the_same_epoch(settings: Settings, published: Path):
    plain, changed = (
        Noted(settings.model_copy(update={"epochs": 3, "shuffle_megabytes": number}), published) for number in (64, 65)
    )
    for noted, request in ((plain, ""), (changed, "2 cache=memory")):
        processes = noted.start(request)
        errors = errors_of(processes)
        assert [process.returncode for process in processes] == [0, 0], errors
        for epoch in (1, 2, 3):
            assert noted.seen(epoch) == Counter(range(EXAMPLES))
        assert noted.checksums(0) == noted.checksums(1)
    [change] = load_changes(changed.runs[0].folder)
    assert str(change) == "from epoch 2 on: cache=memory, by somebody"
    # Images that are kept come in another order from their second epoch on.
    same = [
        [noted.surviving(index)[step] for noted in (plain, changed)]
        for index in range(2)
        for step in (1, 2 * STEPS + 1)
    ]
    assert [ours == theirs for ours, theirs in same] == [True, False, True, False]


def errors_of(processes: Sequence[subprocess.Popen[bytes]], within_s: float | None = None) -> list[str]:
    """Return what the processes wrote to stderr, after their end.

    Args:
        processes: Running processes.
        within_s: Maximum seconds of a quiet machine until their end.
    """
    # All pipes are read at once. A process that fills its pipe stops, and the other server would wait for it forever.
    with ThreadPoolExecutor(len(processes)) as pool:
        outputs = pool.map(lambda process: process.communicate(), processes)
        if within_s is not None:
            try:
                until(lambda: all(process.poll() is not None for process in processes), within_s)
            except BaseException:
                for process in processes:  # otherwise the pool would wait for their end
                    process.kill()
                raise
        return [output.decode() for _, output in outputs]


@pytest.mark.core
def test_a_killed_server_stops_the_other_and_both_can_continue(settings: Settings, published: Path):
    noted = Noted(settings.model_copy(update={"epochs": 400, "checkpoint_steps": 2}), published)
    first, second = noted.start()
    until(lambda: list((noted.runs[0].folder / "checkpoints").glob("*.npz")))
    second.kill()
    second.communicate()
    [output] = errors_of([first], BOUND_S)
    assert first.returncode == 1
    assert "another training server can no longer be reached" in output
    assert "run again" in output
    assert isinstance(take_failure(noted.runs[0].folder), TrainingError)

    done = len(noted.lines(0)) // STEPS
    for run in noted.runs:  # the same training with fewer epochs
        described = json.loads((run.folder / "run.json").read_text())
        described["settings"]["epochs"] = done + 2
        (run.folder / "run.json").write_text(json.dumps(described))
    processes = noted.start()
    errors = errors_of(processes)
    assert [process.returncode for process in processes] == [0, 0], errors
    for epoch in range(1, done + 3):
        assert noted.seen(epoch) == Counter(range(EXAMPLES)), epoch


@pytest.mark.long
def test_a_train_command_names_the_killed_server(settings: Settings, published: Path, tmp_path: Path):
    values = {**settings.model_dump(), "epochs": 400, "dataset": str(published)}
    (tmp_path / "settings.json").write_text(json.dumps(values))
    command = [sys.executable, "-m", "pipeline", "train", "--config", str(tmp_path / "settings.json")]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        until(lambda: list(tmp_path.glob("runs/*/*/checkpoints/*.npz")))
        children = psutil.Process(process.pid).children()
        [second] = [child for child in children if any("servers/1" in word for word in child.cmdline())]
        second.kill()
        [output] = errors_of([process], BOUND_S)
    assert process.returncode == 1
    assert output.splitlines()[-1].startswith("error: training server 1: the training process ended with SIGKILL")
    assert not any(child.is_running() for child in children)


@pytest.mark.long
def test_stopping_one_server_stops_both_at_the_same_checkpoint(settings: Settings, published: Path):
    noted = Noted(settings.model_copy(update={"epochs": 400}), published)
    processes = noted.start()
    until(lambda: noted.lines(1))
    processes[1].send_signal(signal.SIGTERM)
    errors = errors_of(processes, BOUND_S)
    assert [process.returncode for process in processes] == [EXIT_PREEMPTED] * 2, errors
    last = {noted.lines(index)[-1][0] for index in range(2)}
    assert len(last) == 1  # after the same step
    assert len(list((noted.runs[0].folder / "checkpoints").glob(f"*-{last.pop():010d}.npz"))) == 1


@pytest.mark.long
def test_the_server_that_cannot_read_a_record_names_it(settings: Settings, published: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    shard = [each.name for each in load(copy).splits["train"].shards if each.examples][-1]
    replace_record(copy, shard, 0, b"noise")
    noted = Noted(settings, copy)
    processes = noted.start()
    errors = errors_of(processes, BOUND_S)
    assert [process.returncode for process in processes] == [1, 1], errors
    failures = [str(take_failure(run.folder)) for run in noted.runs]
    place = f"{copy / shard}: record 0 (from 0): not a tf.train.Example"
    assert failures[1].startswith(place)
    assert place in failures[0]


@pytest.mark.parametrize(
    ("servers", "batch_size", "shards", "message"),
    [
        (1, 1, 1, None),
        (10, 30, 10, None),
        (11, 33, 10, "num_training_servers must be at most 10, the number of training shards, got 11"),
        (3, 32, 10, r"batch_size must be a multiple of num_training_servers \(3\), got 32: set batch_size=33"),
    ],
)
def test_servers_without_equal_shares_are_refused(servers: int, batch_size: int, shards: int, message: str | None):
    with pytest.raises(SettingsError, match=message) if message else nullcontext():
        require_shares(servers, batch_size, shards)


@pytest.mark.long
def test_the_error_of_the_other_server_names_the_killed_server(settings: Settings, published: Path):
    runs = [prepare_run(settings.model_copy(update={"epochs": 400}), published, "run", index) for index in range(2)]
    processes = [TrainingProcess(run, output=1) for run in runs]
    until(lambda: list((runs[0].folder / "checkpoints").glob("*.npz")))
    os.kill(processes[1]._process.pid, signal.SIGKILL)
    with pytest.raises(TrainingError, match="ended with SIGKILL"):
        processes[1].wait()
    with pytest.raises(TrainingError, match=r"server 1 of 2 on .* ended: the training process ended with SIGKILL"):
        processes[0].wait()


def test_train_refuses_more_servers_than_shards(settings: Settings, published: Path):
    with pytest.raises(SettingsError, match="at most 10"):
        train(settings.model_copy(update={"num_training_servers": 11, "batch_size": 11}), published, "run")
    assert not (Path(settings.workspace) / "runs").exists()
