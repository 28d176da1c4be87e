"""Trainings that run out of device memory. The tests raise the error themselves, because no device is small."""

from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings
from pipeline.errors import BadInput, CacheDamaged, FileSystemError, OutOfMemory
from pipeline.input.exhaustion import is_out_of_memory
from pipeline.monitor import read
from pipeline.runs import launch as training
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Run, load_micro_batch_limit, load_result, save_micro_batch_limit
from pipeline.training.failure.device_memory import micro_batches_of, min_micro_batches, out_of_memory_error
from pipeline.training.job import run_job
from tests.training.hungry import SMALL_MEMORY

VALUES = {"image_size": 32, "batch_size": 8, "epochs": 1}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return training_settings({**VALUES, "workspace": str(tmp_path)})


@pytest.fixture
def run(settings: Settings, published: Path) -> Run:
    return prepare_run(settings, published, "some run")


def with_settings(run: Run, **values: object) -> Run:
    return Run(**{**run.__dict__, "settings": training_settings({**run.settings.model_dump(), **values})})


@pytest.mark.parametrize(
    ("batch", "at_most", "parts"), [(8, 8, 1), (8, 4, 2), (8, 3, 4), (8, 1, 8), (12, 5, 3), (7, 3, 7), (1, 1, 1)]
)
def test_min_micro_batches_returns_the_smallest_divisor(batch: int, at_most: int, parts: int):
    assert min_micro_batches(batch, at_most) == parts


@pytest.mark.parametrize(
    ("micro_batches", "limit", "share", "parts"),
    [(1, None, 8, 1), (2, None, 8, 2), (1, 4, 8, 2), (4, 4, 8, 4), (2, 1, 8, 8), (1, 4, 4, 1)],
)
def test_the_setting_and_the_limit_of_the_run_decide_the_micro_batches(
    run: Run, micro_batches: int, limit: int | None, share: int, parts: int
):
    if limit:
        save_micro_batch_limit(run.folder, limit)
    assert micro_batches_of(with_settings(run, micro_batches=micro_batches), share) == parts


def test_micro_batches_that_do_not_divide_the_batch_are_refused(run: Run):
    with pytest.raises(BadInput, match="micro_batches must divide 8, the examples of each device"):
        run_job(with_settings(run, micro_batches=3), lambda: False)


@pytest.mark.parametrize(
    ("error", "is_of_memory"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8]"), True),
        (tf.errors.ResourceExhaustedError(None, None, "MemoryError"), True),
        (tf.errors.ResourceExhaustedError(None, None, "/cache/train.data; No space left on device"), False),
        (tf.errors.ResourceExhaustedError(None, None, "/cache/train.data; Disk quota exceeded"), False),
        (tf.errors.ResourceExhaustedError(None, None, "/data/train-00001; Too many open files"), False),
        (tf.errors.InternalError(None, None, "Failed call to cublasCreate: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (tf.errors.InternalError(None, None, "CUDNN_STATUS_EXECUTION_FAILED"), False),
        (tf.errors.UnavailableError(None, None, "Socket closed"), False),
    ],
)
def test_out_of_memory_errors_are_recognized(error: tf.errors.OpError, is_of_memory: bool):
    assert is_out_of_memory(error) == is_of_memory


def test_each_attempt_halves_the_micro_batch_down_to_one_example(run: Run):
    limits = []
    for _ in range(3):
        error = out_of_memory_error(run, 8, micro_batches_of(run, 8))
        assert isinstance(error, OutOfMemory)
        limits.append(load_micro_batch_limit(run.folder))
    assert limits == [4, 2, 1]
    error = out_of_memory_error(run, 8, micro_batches_of(run, 8))
    assert isinstance(error, BadInput)
    assert "out of memory with 1 of 8 examples at once on each device (batch_size=8, micro_batches=8): set a" in str(
        error
    )


@pytest.fixture
def hungry(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a model that runs out of memory with more than two examples."""
    (tmp_path / "hungry_model.py").write_text(SMALL_MEMORY)
    monkeypatch.syspath_prepend(tmp_path)
    return with_settings(run, model="hungry_model:model")


@pytest.mark.long
def test_the_out_of_memory_error_names_the_number_of_examples(hungry: Run):
    with pytest.raises(OutOfMemory, match="out of memory with 8 of 8 examples at once on each device"):
        run_job(hungry, lambda: False)
    assert load_micro_batch_limit(hungry.folder) == 4


@pytest.mark.long
def test_a_training_out_of_memory_halves_its_micro_batches(hungry: Run):
    save_micro_batch_limit(hungry.folder, 4)
    with pytest.raises(OutOfMemory, match="out of memory with 4 of 8 examples at once on each device"):
        run_job(hungry, lambda: False)
    run_job(hungry, lambda: False)  # includes the validation and the evaluation
    assert load_result(hungry.folder)
    assert load_micro_batch_limit(hungry.folder) == 2
    batches = read(hungry.folder / "record", "batches")
    assert batches["input/examples"].max() == 8  # the batch size does not change


def processes_that_end(monkeypatch: pytest.MonkeyPatch, *outcomes: object) -> list[object]:
    """Make the training processes end with these outcomes, in order. Return a list of the started runs."""
    ends, started = iter(outcomes), list[object]()

    class Process:
        def __init__(self, run: object, output: int) -> None:
            started.append(run)

        def wait(self) -> object:
            end = next(ends)
            if isinstance(end, Exception):
                raise end
            return end

        def request_stop(self) -> None: ...

        stop = request_stop

    monkeypatch.setattr(training, "TrainingProcess", Process)
    monkeypatch.setattr(training, "prepare_run", lambda *arguments: arguments[-1])
    return started


def test_train_retries_after_out_of_memory(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    started = processes_that_end(monkeypatch, OutOfMemory("with 8"), OutOfMemory("with 4"), {"run": "done"})
    assert training.train(settings, Path("data"), "run") == {"run": "done"}
    assert len(started) == 3


def test_train_fails_if_the_image_cache_is_damaged_three_times(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    started = processes_that_end(monkeypatch, *[CacheDamaged("the disk") for _ in range(9)])
    with pytest.raises(FileSystemError, match="were damaged 3 times: check the disk of local_folder, or set cache"):
        training.train(settings, Path("data"), "run")
    assert len(started) == 3
