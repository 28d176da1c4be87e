"""The training process: stop requests, the death of its parent, and two processes for one folder."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import champion_folder
from pipeline.dataset.manifest import load
from pipeline.errors import (
    BadInput,
    DatasetError,
    FileSystemError,
    FormatError,
    Preempted,
    PromotionError,
    SettingsError,
    TenfoldError,
    TrainingError,
)
from pipeline.monitor import last_row, read
from pipeline.monitor.open_metrics import METRICS
from pipeline.runs import run as runs
from pipeline.runs.launch import TrainingProcess, load_trained_result, prepare_run, train
from pipeline.runs.requirements import require_startable
from pipeline.runs.run import (
    EXIT_PREEMPTED,
    describe_progress,
    load_result,
    run_lock,
    save_failure,
    take_failure,
    training_folder,
)
from pipeline.stages.build import build
from pipeline.training import __main__ as process
from pipeline.training.stop import Stop
from scripts.airflow.processes import alive
from tests.conftest import MakeImages
from tests.waiting import until


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    source = make_images({"a": 20, "b": 20})
    values = {"source_uri": str(source), "workspace": str(tmp_path / "w"), "image_size": 32, "batch_size": 4}
    return settings_from({**values, "epochs": 400})


@pytest.fixture
def dataset(settings: Settings) -> Path:
    return Path(build(settings)["dataset"])


@pytest.mark.core
def test_a_process_stopped_by_sigterm_leaves_a_checkpoint_and_can_be_continued(settings: Settings, dataset: Path):
    run = prepare_run(settings, dataset, "run")
    process = TrainingProcess(run, output=1)
    until(lambda: last_row(run.folder / "record", "epochs"))
    assert "epoch " in describe_progress({"workspace": settings.workspace}, "run")
    process.request_stop()
    with pytest.raises(Preempted):
        process.wait()
    done = int(last_row(run.folder / "record", "epochs")["step"])
    assert list((run.folder / "checkpoints").glob("*.npz"))
    assert list((run.folder / "comet").glob("try-*/*.zip"))

    # The same training with fewer epochs, so that it ends soon.
    described = json.loads((run.folder / "run.json").read_text())
    described["settings"]["epochs"] = done + 1
    (run.folder / "run.json").write_text(json.dumps(described))
    result = TrainingProcess(runs.load_run(run.folder), output=1).wait()
    assert result["epochs"] == done + 1
    assert read(run.folder / "record", "epochs")["step"].tolist() == list(range(1, done + 2))


@pytest.mark.long
def test_a_stopped_train_command_waits_for_its_training_process(settings: Settings, dataset: Path, tmp_path: Path):
    settings = settings_from({**settings.model_dump(), "callbacks": "tests.training.compiling_callback:callbacks"})
    (tmp_path / "settings.json").write_text(json.dumps({**settings.model_dump(), "dataset": str(dataset)}))
    command = [sys.executable, "-m", "pipeline", "train", "--config", str(tmp_path / "settings.json")]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        folder = training_folder(settings, "manual", dataset.name)
        until(lambda: last_row(folder / "record", "epochs"))
        assert list(temporary.glob("__autograph_generated_file*.py"))
        [trainer] = psutil.Process(process.pid).children()
        process.terminate()
        output = process.communicate()[1]
    assert process.returncode == EXIT_PREEMPTED
    assert output.endswith("stopped: run the same command to continue from here\n")
    assert not trainer.is_running()
    assert list((folder / "checkpoints").glob("*.npz"))
    assert list(temporary.iterdir()) == []


@pytest.mark.long
def test_a_training_process_stops_when_its_parent_is_killed(settings: Settings, dataset: Path):
    script = "from pathlib import Path\nfrom pipeline.config.settings import settings_from\n"
    script += "from pipeline.runs.launch import train\n"
    script += f"train(settings_from({settings.model_dump()!r}), Path({str(dataset)!r}), 'run')"
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    folder = training_folder(settings, "run", dataset.name)
    until(lambda: last_row(folder / "record", "epochs"))
    [trainer] = psutil.Process(parent.pid).children()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until(lambda: not alive(trainer))
    assert list((folder / "checkpoints").glob("*.npz"))


def test_a_complete_training_is_not_repeated(settings: Settings, dataset: Path):
    run = prepare_run(settings, dataset, "run")
    assert load_trained_result(settings, dataset, "run") is None
    done = {"run": str(run.folder), "epochs": 7}
    (run.folder / "result.json").write_text(json.dumps(done))
    assert train(settings, dataset, "run") == load_trained_result(settings, dataset, "run") == done
    assert load_trained_result(settings, dataset, "another run") is None
    assert load_trained_result(settings_from({**settings.model_dump(), "epochs": 1}), dataset, "run") is None


@pytest.mark.long
def test_bad_input_in_the_training_process_is_raised_in_its_parent(settings: Settings, dataset: Path, tmp_path: Path):
    (tmp_path / "bad.keras").write_bytes(b"no weights")
    with pytest.raises(BadInput, match=r"bad\.keras"):
        train(settings_from({**settings.model_dump(), "weights": str(tmp_path / "bad.keras")}), dataset, "run")


def test_a_killed_training_process_is_an_error_with_its_signal(settings: Settings, dataset: Path):
    run = prepare_run(settings, dataset, "run")
    process = TrainingProcess(run, output=1)
    (run.folder / METRICS).touch()
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(TrainingError, match="SIGKILL"):
        process.wait()
    assert load_result(run.folder) is None
    # Otherwise, a dashboard would show its last values for ever.
    assert not (run.folder / METRICS).exists()


@pytest.mark.parametrize(
    ("values", "dataset_name", "kind", "message"),
    [
        ({}, "nothing", DatasetError, "is not a folder"),
        ({"weights": "/nowhere.keras"}, "", SettingsError, "weights must be"),
    ],
)
def test_missing_files_are_reported_before_a_process_starts(
    settings: Settings, dataset: Path, values: dict, dataset_name: str, kind: type[Exception], message: str
):
    with pytest.raises(kind, match=message):
        train(settings_from({**settings.model_dump(), **values}), dataset / dataset_name, "run")
    assert not (Path(settings.workspace) / "runs").exists()


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ('{"history": []}', FormatError, "older version of Tenfold: move it away"),
        ("", PromotionError, "cannot be read"),
    ],
)
def test_a_champion_that_cannot_be_read_is_reported_before_a_process_starts(
    settings: Settings, dataset: Path, content: str, kind: type[Exception], message: str
):
    pointer = champion_folder(Path(settings.workspace), load(dataset).name) / "champion.json"
    pointer.parent.mkdir(parents=True)
    pointer.write_text(content)
    with pytest.raises(kind, match=rf"champion\.json .*{message}"):
        train(settings, dataset, "run")
    assert not (Path(settings.workspace) / "runs").exists()
    require_startable(settings.model_copy(update={"promote": "never"}), dataset)


def test_two_training_processes_cannot_lock_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "LOCK_WAIT_S", 0.3)
    with run_lock(tmp_path, never), pytest.raises(TrainingError, match="another process"), run_lock(tmp_path, never):
        pass
    with run_lock(tmp_path, never), pytest.raises(Preempted), run_lock(tmp_path, lambda: True):
        pass
    with run_lock(tmp_path, never):
        pass


def never() -> bool:
    return False


@pytest.mark.long
def test_a_training_process_without_a_parent_stops(settings: Settings, dataset: Path):
    """The kernel does not report the death of a parent that died before the process requested the signal."""
    run = prepare_run(settings, dataset, "run")
    gone = subprocess.Popen(["true"])
    gone.wait()
    orphan = [sys.executable, "-m", "pipeline.training", str(run.folder), str(gone.pid)]
    assert subprocess.run(orphan, timeout=300, check=False).returncode == EXIT_PREEMPTED


def test_other_weights_at_the_same_path_are_another_training(settings: Settings, tmp_path: Path):
    weights = tmp_path / "some.keras"
    folders = set()
    for content in (b"one", b"two"):
        weights.write_bytes(content)
        folders.add(training_folder(settings_from({**settings.model_dump(), "weights": str(weights)}), "run", "1"))
    assert len(folders) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 1},
        {"learning_rate": 0.5},
        {"model": "MobileNetV2"},
        {"seed": 2},
        {"batch_size": 5},
        {"image_size": 64},
        {"shuffle_megabytes": 1},
        {"learning_rate_schedule": "cosine"},
        {"warmup_epochs": 0.5},
        {"weight_decay": 0.05},
        {"clip_norm": 1.0},
        {"label_smoothing": 0.1},
        {"class_weights": "balanced"},
        {"precision": "mixed_float16"},
        {"xla": True},
        {"callbacks": "mine:make"},
        {"patience": 3},
    ],
)
def test_settings_that_decide_a_training_change_its_folder(settings: Settings, values: dict):
    """A run that is cleared with other settings keeps its id, but must not use the checkpoints of the old settings."""
    other = settings_from({**settings.model_dump(), **values})
    assert training_folder(other, "run", "1") != training_folder(settings, "run", "1")
    assert training_folder(settings, "run", "1") != training_folder(settings, "run", "2")
    assert training_folder(settings, "run", "1") != training_folder(settings, "another", "1")


def test_files_of_another_format_have_another_folder(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """After an upgrade, training again must not continue among the files of the older version."""
    before = training_folder(settings, "run", "1")
    monkeypatch.setattr(runs, "RUN_FORMAT", runs.RUN_FORMAT + 1)
    assert training_folder(settings, "run", "1") != before


@pytest.mark.parametrize("values", [{"freeze_epochs": 2}, {"finetune_rate": 0.5}])
def test_settings_of_transfer_learning_change_the_folder(settings: Settings, tmp_path: Path, values: dict):
    (tmp_path / "some.keras").write_bytes(b"weights")
    values_of_both = {**settings.model_dump(), "model": "MobileNetV2", "weights": str(tmp_path / "some.keras")}
    folders = {training_folder(settings_from({**values_of_both, **more}), "run", "1") for more in ({}, values)}
    assert len(folders) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"source_uri": "/data/2026-02-03", "data_date": "2026-02-03"},
        {"window": 7},
        {"num_shards": 3, "validation_fraction": 0.5, "on_leak": "continue"},
        {"dataset": "/data/other", "publish_uri": "/data/published"},
        {"comet_project": "other", "tensorboard": True},
        {"cache_gigabytes": 1.0},
        {"checkpoint_minutes": 0.5, "checkpoint_steps": 7},
        {"micro_batches": 4, "stall_minutes": 5.0},
        {"gpus_per_server": 1, "server_wait_minutes": 1.0},
    ],
)
def test_settings_that_decide_no_training_keep_its_folder(settings: Settings, values: dict):
    """The training on the same dataset version is reused, whatever the date of the run."""
    other = settings_from({**settings.model_dump(), **values})
    assert training_folder(other, "run", "1") == training_folder(settings, "run", "1")


def test_an_attempt_keeps_the_failure_of_an_earlier_attempt(settings: Settings, dataset: Path):
    """The parent of the first attempt has not read the failure yet."""
    run = prepare_run(settings, dataset, "run")
    save_failure(run.folder, BadInput("too small"), attempt="first")
    second = TrainingProcess(run, output=1)
    second._process.kill()
    with pytest.raises(TrainingError, match="SIGKILL"):
        second.wait()
    failure = take_failure(run.folder, attempt="first")
    assert (type(failure), str(failure)) == (BadInput, "too small")
    assert take_failure(run.folder, attempt="first") is None


STALLED = """
import runpy, threading, time
from pipeline.runs import run

def failing(*_):
    threading.Thread(target=time.sleep, args=(600,)).start()  # like a thread that reads from a stalled bucket
    raise RuntimeError("nobody expected this")

run.load_run = failing
runpy.run_module("pipeline.training", run_name="__main__")
"""


def test_a_process_with_an_unexpected_exception_does_not_wait_for_threads(tmp_path: Path):
    command = [sys.executable, "-c", STALLED, str(tmp_path), str(os.getpid())]
    ended = subprocess.run(command, timeout=300, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    failure = take_failure(tmp_path)
    assert isinstance(failure, TrainingError)
    assert "RuntimeError: nobody expected this" in str(failure)


def test_a_failing_process_exits_within_a_time_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "FAIL_S", 0.1)
    left: list[TenfoldError] = []
    with pytest.raises(RuntimeError), process._failing_in_time(Stop(), left.append):
        raise RuntimeError("nobody expected this")
    until(lambda: left)
    assert "RuntimeError: nobody expected this" in str(left[0])
    with pytest.raises(OSError, match="Stale"), process._failing_in_time(Stop(), left.append):
        raise OSError(errno.ESTALE, "Stale file handle")
    until(lambda: len(left) == 2)
    assert isinstance(left[1], FileSystemError)
    with pytest.raises(Preempted), process._failing_in_time(Stop(), lambda _: pytest.fail("the exit was forced")):
        raise Preempted("asked to stop")


@pytest.mark.parametrize("reason", [BadInput("too small"), OSError(28, "No space left on device")])
def test_a_full_disk_does_not_hide_the_failure_of_a_training(
    reason: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def failing(*_: object) -> None:
        raise reason

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process, "_train", failing)
    monkeypatch.setattr(process, "save_failure", full)
    assert process._ended(tmp_path, Stop()) == 1
    assert str(reason) in caplog.text
    assert "the reason of the failure is only in this log" in caplog.text
