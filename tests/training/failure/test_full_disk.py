"""A disk that fills at the end of a training: an error before the training is complete, a warning after it."""

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.commands.training import report_of
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import TrainingError
from pipeline.monitor import Row, closing_sink
from pipeline.monitor.overview import OverviewSink
from pipeline.runs.launch import TrainingProcess, prepare_run
from pipeline.runs.run import load_result, save_run
from pipeline.training.failure.full_disk import explain_full_disk
from pipeline.training.log.tensorboard import TensorBoardSink
from tests.namespaces import disk_of, fill
from tests.report.evaluated import evaluated
from tests.waiting import until


@pytest.fixture
def end_on_a_full_disk(published: Path, tmp_path: Path) -> Callable[[str, str], tuple[TrainingProcess, str]]:
    """A function that trains, fills the disk when a file of the run appears, and returns the process and its log."""

    def train(size: str, appears: str) -> tuple[TrainingProcess, str]:
        with disk_of(size, tmp_path / "disk") as disk:
            values = {"workspace": str(disk / "w"), "image_size": 32, "batch_size": 4, "epochs": 2, "tensorboard": True}
            run = prepare_run(settings_from(values), published, "run")
            with open(tmp_path / "log", "wb") as log:
                process = TrainingProcess(run, log.fileno())
                until((run.folder / appears).exists, pause=0.001)
                fill(disk)
                try:
                    process.wait()
                except TrainingError as error:
                    log.write(str(error).encode())
            assert (load_result(run.folder) is not None) == (appears == "result.json")
            return process, (tmp_path / "log").read_text()

    return train


@pytest.mark.long
@pytest.mark.parametrize(
    ("appears", "message"),
    [
        ("result.json", "to upload this run to Comet, run: "),
        (
            "export/about.json",
            "result.json': free some disk space and run again, and training continues from its last checkpoint",
        ),
        ("evaluation.json", "free some disk space"),
    ],
)
def test_a_full_disk_is_an_error_before_the_result_and_a_warning_after_it(
    end_on_a_full_disk: Callable[[str, str], tuple[TrainingProcess, str]], appears: str, message: str
):
    _, output = end_on_a_full_disk("64m", appears)
    assert message in output
    assert ("the training process ended with exit code" in output) == (appears != "result.json")
    for unexpected in ("Traceback", "Exception", "unexpectedly"):
        assert unexpected not in output


@pytest.mark.parametrize("kind", [OverviewSink, TensorBoardSink])
def test_a_sink_that_cannot_write_its_last_rows_logs_a_warning(
    kind: type[OverviewSink | TensorBoardSink], small_disk: Path, caplog: pytest.LogCaptureFixture
):
    with closing_sink(kind(small_disk / "sink")) as sink:
        for second in range(2):  # The overview writes the first sample at once.
            sink.write(Row("samples", 1e9 + second, 1, {f"sys/{number}": 1.0 for number in range(1000)}))
        fill(small_disk)
    assert f"{kind.__name__} could not write its last rows: [Errno 28] No space left on device" in caplog.text


class Torn:
    """An object whose destructor fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


@pytest.mark.long
def test_a_full_disk_in_a_thread_or_destructor_is_only_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    others: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: others.append(str(failed.exc_value)))
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: others.append(str(failed.exc_value)))

    def fail(error: Exception) -> None:
        def work() -> None:
            raise error

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        Torn(error)
        gc.collect()

    with explain_full_disk():
        fail(OSError(28, "No space left on device"))
        assert (others, caplog.text.count("No space left on device")) == ([], 2)
        fail(ValueError("a mistake"))
    assert others == ["a mistake", "a mistake"]


def test_a_report_that_does_not_fit_on_the_disk_does_not_fail_the_training(
    published: Path, small_disk: Path, caplog: pytest.LogCaptureFixture
):
    run = prepare_run(settings_from({"workspace": str(small_disk / "w"), "batch_size": 4}), published, "run")
    evaluated(run.folder, ["a", "b"], [(0, 1, 0.5)] * load(published).splits["validation"].examples)
    save_run(run)
    fill(small_disk)
    assert report_of(run.folder) == ""
    assert f"free some disk space, then write it with `python -m pipeline report {run.folder}`" in caplog.text
