"""Callbacks of Keras: they have the same effect in the training loop as in `fit`, also after a restart."""

import csv
import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from pipeline.config.automatic import training_settings
from pipeline.config.settings import Settings
from pipeline.errors import Preempted, SettingsError, TrainingError
from pipeline.monitor import last_row, read
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.runs.launch import TrainingProcess, prepare_run
from pipeline.runs.run import Run, load_result
from pipeline.training import callbacks as module
from pipeline.training.callbacks import Callbacks
from pipeline.training.job import run_job
from pipeline.training.state.checkpoint import Position
from pipeline.training.step.loop import EpochLoop, Sums
from pipeline.training.step.optimizer import build_optimizer, optimizer_options
from pipeline.training.step.simulated import SimulatedResult, SimulatedSteps
from tests.training.small import STEPS_PER_EPOCH, TRAINED
from tests.waiting import simulated_work, until

# Processes that these tests kill leave files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

VAL_LOSSES = (0.9, 2 / 3, 0.8, 2 / 3, 0.7, 0.4, 0.7, 0.8)
"""The best epochs are 1, 2 and 6. Epoch 4 equals epoch 2, whose value is rounded up in the record."""
FOLDERS: list[str] = []
"""The folders that `stops_early` was called with."""


def stops_early(folder: Path) -> list[keras.callbacks.Callback]:
    FOLDERS.append(str(folder))
    return [keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)]


def stops_early_by_accuracy(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.EarlyStopping("val_accuracy", patience=2, min_delta=0.01)]


def stops_at_once(folder: Path) -> list[keras.callbacks.Callback]:
    """The reason to stop is not in the record."""
    return [StopsInEpoch(3)]


def reduces_the_rate(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1), keras.callbacks.CSVLogger(folder / "rates.csv")]


def multiplies_the_rate(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]


def logs(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.CSVLogger(folder / "log.csv")]


def saves(folder: Path) -> list[keras.callbacks.Callback]:
    name = folder / "{epoch}.weights.h5"
    return [keras.callbacks.ModelCheckpoint(name, save_best_only=True, save_weights_only=True)]


def saves_whole(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.ModelCheckpoint(folder / "last.keras")]


def keeps_history(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.History(), keras.callbacks.TerminateOnNaN(), keras.callbacks.LambdaCallback()]


def fails(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs["gone"])]


def backs_up(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.BackupAndRestore(folder)]


def writes_for_tensorboard(folder: Path) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.TensorBoard(folder)]


def raises(folder: Path) -> list[keras.callbacks.Callback]:
    raise IndexError("list index out of range")


def nothing(folder: Path) -> None:
    return None


def takes_time(folder: Path) -> list[keras.callbacks.Callback]:
    return [Sleeper(0.5)]


class StopsInEpoch(keras.callbacks.Callback):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch, self._now = epoch, 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._now = epoch + 1

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._now == self._epoch:
            self.model.stop_training = True


class HalvesTheRate(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.model.optimizer.learning_rate = 0.5 * float(self.model.optimizer.learning_rate)


class Sleeper(keras.callbacks.Callback):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        simulated_work(self._seconds)


def halves_the_rate(folder: Path) -> list[keras.callbacks.Callback]:
    return [HalvesTheRate()]


def settings_of(name: str, **values: object) -> Settings:
    function = f"{__name__}:{name}" if name else ""
    return training_settings({"callbacks": function, "epochs": len(VAL_LOSSES), "learning_rate": 0.5, **values})


@dataclass
class Training:
    """A fake job: epochs with the losses above, their record, and a checkpoint of the learning rate."""

    folder: Path
    settings: Settings
    rates: dict[int, float] = field(default_factory=dict)
    """The learning rate in the first step of each epoch."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        self.model = keras.Sequential([keras.Input((5, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
        self.options = optimizer_options(self.settings, STEPS_PER_EPOCH)
        self.optimizer = build_optimizer(self.options, self.model)
        self.optimizer.build(self.model.trainable_variables)

    def callbacks(self) -> Callbacks:
        run = Run(self.folder, "run", "", "1", self.settings, {}, {}, steps_per_epoch=1)
        return Callbacks(run, self.model, self.optimizer, self.options, self.strategy, STEPS_PER_EPOCH)

    def run(self, start: Position | None = None, until: int = len(VAL_LOSSES), steps: int = 0) -> "Training":
        """Train to the end of epoch `until`, and `steps` steps of the next epoch. There the training is killed."""
        start = start or Position()
        callbacks = self.callbacks()
        taken = callbacks.report_batches_of(self)
        callbacks.begin(start)
        for epoch in range(start.epochs_done + 1, len(VAL_LOSSES) + 1):
            if not callbacks.begin_epoch(epoch):
                break
            self.rates.setdefault(epoch, float(self.optimizer.learning_rate))
            done = start.step - start.epochs_done * STEPS_PER_EPOCH if epoch == start.epochs_done + 1 else 0
            self.model.layers[-1].bias.assign([epoch, 0])
            for _ in range(done, steps if epoch > until else STEPS_PER_EPOCH):
                taken.train(*TRAINED)
            if epoch > until:
                return self
            self._end_epoch(epoch, callbacks)
            if epoch == until and not steps:
                return self
        callbacks.end()
        return self

    def _end_epoch(self, epoch: int, callbacks: Callbacks) -> None:
        callbacks.validate(lambda: Sums(1, 1.0, 1.0))
        values = {"loss": 0.3, "val_loss": VAL_LOSSES[epoch - 1], "val_accuracy": 1 - VAL_LOSSES[epoch - 1]}
        values |= {"learning_rate": float(self.optimizer.learning_rate)}
        values |= callbacks.end_epoch(epoch, values)
        with closing(RecordSink(self.folder / "record")) as sink:
            sink.write(Row("epochs", 0.0, epoch, {**values, "global_step": epoch * STEPS_PER_EPOCH}))

    def train(self, *_: tf.Tensor) -> tf.Tensor:
        return tf.constant([0.9, 2.0, 3.0, 0.0])

    evaluate = train

    def resumed(self, done: int, steps: int) -> "Training":
        """Continue from the checkpoint of this training, as another process would."""
        other = Training(self.folder, self.settings, self.rates)
        for variable, value in zip(other.optimizer.variables, self.optimizer.variables, strict=True):
            variable.assign(value)
        sums = Sums(3, 0.9, 2.0) if steps else Sums()
        return other.run(Position(done, done * STEPS_PER_EPOCH + steps, sums))

    def results(self) -> dict[str, object]:
        """Return the results of a training: its epochs, learning rates and the files of its callbacks."""
        files = {path.name: path for path in sorted((self.folder / "callbacks").glob("*"))}
        texts = {name: path.read_text() for name, path in files.items() if name.endswith(".csv")}
        biases = {name: bias_of(path) for name, path in files.items() if name.endswith(".h5")}
        return {
            "epochs": read(self.folder / "record", "epochs")["step"].tolist(),
            "rates": self.rates,
            **texts,
            **biases,
        }


def bias_of(path: Path) -> float:
    """Return the bias of the first class: the epoch in which the weights were saved."""
    model = keras.Sequential([keras.Input((5, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.load_weights(path)
    return float(model.layers[-1].bias[0])


EIGHT = list(range(1, 9))
WORKING = {
    "stops_early": {"epochs": EIGHT[:4]},
    "stops_early_by_accuracy": {"epochs": EIGHT[:4]},
    "stops_at_once": {"epochs": EIGHT[:3]},
    "reduces_the_rate": {"rates": dict(zip(EIGHT, (0.5, 0.5, 0.5, 0.25, 0.125, 0.0625, 0.0625, 0.03125), strict=True))},
    "multiplies_the_rate": {"rates": {epoch: 0.5 ** (epoch + 1) for epoch in EIGHT}},
    "saves": {f"{epoch}.weights.h5": float(epoch) for epoch in (1, 2, 6)},
    "keeps_history": {"epochs": EIGHT},
    "logs": {"epochs": EIGHT},
}


@pytest.mark.parametrize("name", WORKING)
def test_a_callback_has_the_effect_that_it_has_in_keras(name: str, tmp_path: Path):
    results = Training(tmp_path, settings_of(name)).run().results()
    assert {each: results[each] for each in WORKING[name]} == WORKING[name]


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("name", WORKING)
def test_a_killed_training_ends_like_an_uninterrupted_training(name: str, steps: int, tmp_path: Path):
    whole = Training(tmp_path / "whole", settings_of(name)).run().results()
    last = len(whole["epochs"]) - steps
    for done in (last // 2, last):
        killed = Training(tmp_path / f"killed {done}", settings_of(name)).run(until=done, steps=steps)
        assert killed.resumed(done, steps).results() == whole


def test_a_model_saved_by_a_callback_can_be_loaded(tmp_path: Path):
    Training(tmp_path, settings_of("saves_whole")).run(until=1)
    assert keras.models.load_model(tmp_path / "callbacks" / "last.keras").output_shape == (None, 2)


def test_a_csv_log_has_each_epoch_once_after_a_restart(tmp_path: Path):
    Training(tmp_path, settings_of("logs")).run(until=3).resumed(3, 0)
    with (tmp_path / "callbacks" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(8)]
    assert [float(row["val_loss"]) for row in rows] == [pytest.approx(loss, rel=1e-6) for loss in VAL_LOSSES]
    assert set(rows[0]) == {"epoch", "loss", "val_loss", "val_accuracy", "learning_rate"}


def test_the_callbacks_function_is_called_with_a_folder_of_the_run(tmp_path: Path):
    Training(tmp_path, settings_of("stops_early")).callbacks()
    assert FOLDERS[-1] == str(tmp_path / "callbacks")
    assert (tmp_path / "callbacks").is_dir()


def recording_events(callbacks: list[tuple[str, tuple]]) -> Callable[[Path], list[keras.callbacks.Callback]]:
    """Return a function that creates a callback, which appends its events to a list."""

    class Keeps(keras.callbacks.Callback):
        pass

    for event in ("train_begin", "train_end", "epoch_begin", "epoch_end", "test_begin", "test_end"):
        setattr(Keeps, f"on_{event}", lambda self, *values, event=event: callbacks.append((event, values)))
    for event in ("train_batch_begin", "train_batch_end"):
        setattr(
            Keeps, f"on_{event}", lambda self, batch, logs=None, event=event: callbacks.append((event, (batch, logs)))
        )
    return lambda folder: [Keeps()]


def test_events_come_in_the_order_of_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events_of_callbacks: list[tuple[str, tuple]] = []
    monkeypatch.setitem(globals(), "keeps", recording_events(events_of_callbacks))
    Training(tmp_path, settings_of("keeps")).run(until=1)
    batch = ["train_batch_begin", "train_batch_end"]
    events = ["train_begin", "epoch_begin", *batch, *batch, "test_begin", "test_end", "epoch_end"]
    assert [event for event, _ in events_of_callbacks] == events
    [last] = [logs for event, (batch, *logs) in events_of_callbacks if event == "train_batch_end" and batch == 1]
    assert last == [{"loss": pytest.approx(0.3), "accuracy": pytest.approx(2 / 3)}]
    assert events_of_callbacks[-1][1][0] == 0  # epochs are counted from 0


def test_means_of_a_resumed_epoch_include_the_steps_before_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    events_of_callbacks: list[tuple[str, tuple]] = []
    monkeypatch.setitem(globals(), "keeps", recording_events(events_of_callbacks))
    training = Training(tmp_path, settings_of("keeps"))
    training.run(Position(0, 1, Sums(3, 9.0, 0.0)), until=1)
    batches = [values for event, values in events_of_callbacks if event == "train_batch_end"]
    assert batches == [(1, {"loss": pytest.approx(9.9 / 6), "accuracy": pytest.approx(2 / 6)})]


def test_the_clock_of_the_loop_excludes_the_time_of_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setitem(globals(), "simulated_work", slept.append)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: sum(slept)))
    callbacks = Training(tmp_path, settings_of("takes_time")).callbacks()
    training = Training(tmp_path, settings_of("takes_time"))
    steps = callbacks.report_batches_of(training)
    callbacks.begin(Position())
    callbacks.begin_epoch(1)
    begin = callbacks.clock()
    steps.train(*TRAINED)
    assert slept == [0.5]
    assert callbacks.clock() == begin
    assert callbacks.end_epoch(1, {"loss": 0.5})["callbacks/time_s"] == 0.5


@pytest.mark.parametrize("name", ["", "stops_early", "reduces_the_rate", "logs"])
def test_steps_are_not_wrapped_if_no_callback_uses_batches(name: str, tmp_path: Path):
    training = Training(tmp_path, settings_of(name))
    assert training.callbacks().report_batches_of(training) is training


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("raises", {}, r"failed, called with \(.*/callbacks\) \(IndexError: list index out of range\)"),
        ("nothing", {}, "must return a list of keras.callbacks.Callback, got None"),
        ("gone", {}, "does not exist, because .* has no 'gone'"),
        ("backs_up", {}, "cannot have BackupAndRestore: remove it"),
        (
            "writes_for_tensorboard",
            {},
            "cannot have TensorBoard without the package tensorboard: install the package, or set",
        ),
        (
            "reduces_the_rate",
            {"learning_rate_schedule": "cosine"},
            "cannot have ReduceLROnPlateau, because it and the learning rate schedule",
        ),
        (
            "multiplies_the_rate",
            {"warmup_epochs": 0.5},
            "cannot have LearningRateScheduler, because it and the learning rate schedule",
        ),
    ],
)
def test_unusable_callbacks_are_refused_before_the_first_step(name: str, values: dict, message: str, tmp_path: Path):
    with pytest.raises(SettingsError, match=rf"^callbacks '{__name__}:{name}' {message}") as caught:
        Training(tmp_path, settings_of(name, **values)).callbacks()
    assert "\n" not in str(caught.value)


def test_the_error_of_a_failed_callback_names_its_method(tmp_path: Path):
    with pytest.raises(TrainingError, match=r"^a callback failed in on_epoch_end \(KeyError: 'gone'\)$"):
        Training(tmp_path, settings_of("fails")).run()


# --- real jobs --------------------------------------------------------------------------------------------------------


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return a function that requests a stop from its call number `steps + 1` on."""
    calls = iter(range(10**9))
    return lambda: next(calls) >= steps


def job_settings(tmp_path: Path, name: str, **values: object) -> Settings:
    small = {"workspace": str(tmp_path), "image_size": 32, "batch_size": 8, "epochs": 3, **values}
    return settings_of(name, **small)


LONG_S = 1.0
"""Longer than a step, even on a slow machine."""


def ends_with_the_first_epoch(folder: Path) -> list[keras.callbacks.Callback]:
    return [StopsInEpoch(1), Sleeper(LONG_S)]


@pytest.mark.long
def test_a_callback_can_stop_a_job(published: Path, tmp_path: Path):
    run = prepare_run(job_settings(tmp_path, "ends_with_the_first_epoch"), published, "run")
    run_job(run, never)
    assert load_result(run.folder)["epochs"] == 1
    assert (run.folder / "evaluation.json").exists()
    batches, epochs = (read(run.folder / "record", kind) for kind in ("batches", "epochs"))
    assert epochs["callbacks/time_s"][0] >= LONG_S * len(batches)
    # The time of batch callbacks counts as host time of the next step. After the last batch, it is in no step.
    assert batches["step/host_ms"].max() >= 1000 * LONG_S
    assert batches["step/compute_ms"].min() < 1000 * LONG_S


def stop_after(epochs: int) -> keras.callbacks.Callback:
    """Stop after this number of epochs, because no accuracy exceeds the baseline or is better by `min_delta`.

    Without `min_delta`, Keras would continue after an epoch that is better than the ones before it.
    """
    return keras.callbacks.EarlyStopping("val_accuracy", patience=epochs, baseline=2.0, min_delta=1e9)


def patient(folder: Path) -> list[keras.callbacks.Callback]:
    return [stop_after(2), keras.callbacks.ReduceLROnPlateau("loss", min_delta=1e9, patience=1, factor=0.5)]


@pytest.mark.long
@pytest.mark.parametrize("steps", [2, 9, 12])  # in the first epoch, the second, the evaluation of the best model
def test_a_stopped_job_continues_to_count_patience(steps: int, published: Path, tmp_path: Path):
    run = prepare_run(job_settings(tmp_path, "patient", epochs=6), published, "run")
    with pytest.raises(Preempted):
        run_job(run, after(steps))
    run_job(run, never)
    epochs = read(run.folder / "record", "epochs")
    assert (epochs["step"].tolist(), load_result(run.folder)["epochs"]) == ([1, 2], 2)
    assert epochs["callbacks/stop"].tolist() == [0, 1]
    assert epochs["learning_rate"].tolist() == [0.5, 0.5]  # the rate of its own steps, not of the following epoch


def very_patient(folder: Path) -> list[keras.callbacks.Callback]:
    return [stop_after(20)]


@pytest.mark.long
def test_a_killed_job_continues_to_count_patience(published: Path, tmp_path: Path):
    run = prepare_run(job_settings(tmp_path, "very_patient", epochs=400, checkpoint_steps=1), published, "run")
    process = TrainingProcess(run, output=1)
    until(lambda: (last_row(run.folder / "record", "epochs") or {"step": 0})["step"] >= 3)
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(TrainingError, match="SIGKILL"):
        process.wait()
    assert TrainingProcess(run, output=1).wait()["epochs"] == 20
    assert read(run.folder / "record", "epochs")["step"].tolist() == list(range(1, 21))


def reduces_and_stops(folder: Path) -> list[keras.callbacks.Callback]:
    reduce = keras.callbacks.ReduceLROnPlateau("loss", min_delta=1e9, patience=1, factor=0.5)
    return [reduce, stop_after(3)]


@pytest.mark.long
def test_all_servers_follow_the_callbacks_of_server_0(published: Path, tmp_path: Path):
    settings = job_settings(tmp_path, "reduces_and_stops", epochs=6, num_training_servers=2)
    runs = [prepare_run(settings, published, "run", index) for index in range(2)]
    processes = [TrainingProcess(run, output=1) for run in runs]
    assert [process.wait()["epochs"] for process in processes] == [3, 3]
    rates = [read(run.folder / "record", "epochs")["learning_rate"].tolist() for run in runs]
    assert rates == [[0.5, 0.5, 0.25]] * 2


def test_a_callback_changes_the_rate_of_the_next_step_although_results_are_read_late(tmp_path: Path) -> None:
    training = Training(tmp_path, settings_of("halves_the_rate"))
    accelerator = SimulatedSteps(training.strategy, 0.001)
    rates: list[float] = []

    def train(*batch: tf.Tensor) -> SimulatedResult:
        rates.append(float(training.optimizer.learning_rate))
        return accelerator.train(*batch)

    callbacks = training.callbacks()
    steps = callbacks.report_batches_of(SimpleNamespace(train=train, python_calls=0))
    callbacks.begin(Position())
    callbacks.begin_epoch(1)
    monitor = SimpleNamespace(batch=lambda **_: None)
    batches = repeat((*TRAINED[:4], tf.range(4, dtype=tf.int64)))
    EpochLoop(steps, monitor, lambda: False).train(1, batches, 4, lambda _: None)
    assert rates == [0.5, 0.25, 0.125, 0.0625]
