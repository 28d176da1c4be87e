"""SIGTERM in each phase of a training: real processes whose main thread is stuck in C code at that moment."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import EXIT_PREEMPTED, Run
from pipeline.system import process
from pipeline.training import stop as stop_module
from pipeline.training.stop import Stage, Stop
from tests.training import stuck
from tests.waiting import until

BOUND_S = 20.0
"""Maximum seconds of a quiet machine from the signal to the end of a process."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    values = {"workspace": str(tmp_path), "image_size": 32, "batch_size": 8, "epochs": 1, "cache": "off"}
    return settings_from({**values, "server_wait_minutes": 5.0})


class Training:
    """A training process. Its output can be awaited."""

    def __init__(self, run: Run, phase: str = "") -> None:
        command = [sys.executable, *([stuck.__file__, phase] if phase else ["-m", "pipeline.training"])]
        environment = {**process.environment_of_tensorflow(), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*command, str(run.folder), str(os.getpid())],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.output += line

    def until_it_says(self, words: str) -> None:
        until(lambda: words in self.output or self.process.poll() is not None)
        assert words in self.output

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()


def codes_within_bound(trainings: Sequence[Training]) -> list[int]:
    """Return the exit codes of processes that end in time."""
    try:
        until(lambda: all(each.process.poll() is not None for each in trainings), BOUND_S)
    finally:
        for each in trainings:
            each.close()
    return [each.process.returncode for each in trainings]


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("compile", marks=pytest.mark.core),
        *(pytest.param(phase, marks=pytest.mark.long) for phase in ("import", "validation", "export")),
    ],
)
def test_a_training_stops_in_time_in_each_phase(settings: Settings, published: Path, phase: str):
    run = prepare_run(settings.model_copy(update={"checkpoint_steps": 1}), published, "run")
    training = Training(run, phase)
    training.until_it_says("stuck")
    training.process.send_signal(signal.SIGTERM)
    assert codes_within_bound([training]) == [EXIT_PREEMPTED], training.output
    has_checkpoint = bool(list((run.folder / "checkpoints").glob("*.npz")))
    assert has_checkpoint == (phase in ("validation", "export"))


@pytest.mark.parametrize(
    "phase", [pytest.param("compile", marks=pytest.mark.core), pytest.param("import", marks=pytest.mark.long)]
)
def test_the_stop_of_one_server_ends_the_other_in_time(settings: Settings, published: Path, phase: str):
    """Server 0 gets the signal. It is stuck, and server 1 waits for it within TensorFlow or before."""
    settings = settings.model_copy(update={"num_training_servers": 2})
    runs = [prepare_run(settings, published, "run", index) for index in range(2)]
    trainings = [Training(runs[0], phase), Training(runs[1])]
    for training, words in zip(trainings, ("stuck", "loading TensorFlow"), strict=True):
        training.until_it_says(words)
    trainings[0].process.send_signal(signal.SIGTERM)
    codes = codes_within_bound(trainings)
    assert codes == [EXIT_PREEMPTED] * 2, "\n".join(each.output for each in trainings)


@pytest.mark.core
def test_a_training_stops_while_it_loads_tensorflow(settings: Settings, published: Path):
    training = Training(prepare_run(settings, published, "run"))
    training.until_it_says("loading TensorFlow")
    training.process.send_signal(signal.SIGTERM)
    assert codes_within_bound([training]) == [EXIT_PREEMPTED]
    assert "training on" not in training.output  # The start of TensorFlow was not completed.


def test_a_process_that_misses_a_signal_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "ASK_EVERY_S", 0.1)
    second = "import signal; print(flush=True)\n[signal.sigwait([15]) for _ in range(2)]"
    blocked = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); {second}"
    with subprocess.Popen([sys.executable, "-c", blocked], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        process.stop_process(child)
    assert child.returncode == 0


def test_a_stop_waits_for_the_main_thread_while_that_saves(monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []
    monkeypatch.setattr(stop_module, "end_process", lambda code: events.append("ended"))
    monkeypatch.setattr(stop_module, "REPORT_S", 86_400.0)  # Its timer would end this process.
    monkeypatch.setattr(stop_module, "NOTICE_S", 0.01)
    stop = Stop()
    stop.enter(Stage.SAVING)
    stop.requested.set()
    ending = threading.Thread(target=stop._end_in_time, daemon=True)
    ending.start()
    with stop._changed:  # The thread waits by then, or has not begun.
        events.append("saved")
    stop.enter(Stage.WORKING)
    ending.join()
    assert events == ["saved", "ended"]
