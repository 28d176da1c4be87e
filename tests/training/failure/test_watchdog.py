"""The watchdog: when a training counts as stuck, and how it ends."""

import threading
from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import TenfoldError, TrainingError
from pipeline.runs.launch import train
from pipeline.stages.build import build
from pipeline.training.failure import watchdog
from pipeline.training.failure.watchdog import STACKS, Watchdog, watched
from tests.conftest import MakeImages
from tests.waiting import until


@pytest.mark.parametrize(
    ("looks", "steps", "stuck"),
    [
        (range(10, 71, 10), (), [False] * 6 + [True]),  # 60 s is not longer than the limit
        (range(10, 81, 10), (35,), [False] * 8),
        (range(10, 121, 10), (35,), [False] * 10 + [True] * 2),  # the heartbeat is noticed at 40
        ((10, 20, 5000, 5010), (), [False] * 4),  # the machine slept in between
        ((10, 20, 5000, 5010, 5020, 5030), (), [False] * 5 + [True]),  # counting continues after the sleep
        ((10, 12, 14, 16), (), [False] * 4),
    ],
)
def test_a_training_without_heartbeats_is_stuck(looks: range, steps: tuple[int, ...], stuck: list[bool]):
    now = [0.0]
    watch = Watchdog(60, 10, clock=lambda: now[0])
    found, left = [], list(steps)
    for time in looks:
        while left and left[0] <= time:
            watch.heartbeat()
            left.pop(0)
        now[0] = float(time)
        found.append(watch.look())
    assert found == stuck


def wait_long(ended: threading.Event) -> None:
    ended.wait(60)


def test_a_stuck_training_ends_with_the_stacks_of_all_threads(tmp_path: Path, capfd: pytest.CaptureFixture):
    left: list[TenfoldError] = []
    ended = threading.Event()
    threading.Thread(target=wait_long, args=(ended,)).start()
    with watched(tmp_path, 0.2, left.append):
        until(lambda: left)
    ended.set()
    assert isinstance(left[0], TrainingError)
    assert "no step has ended for 0.00333333 minutes (stall_minutes)" in str(left[0])
    for text in (capfd.readouterr().err, (tmp_path / STACKS).read_text()):
        assert "wait_long" in text
        assert "test_a_stuck_training_ends" in text


@pytest.mark.parametrize("limit_s", [0.0, 3600.0])
def test_a_running_training_is_not_stopped(tmp_path: Path, limit_s: float):
    with watched(tmp_path, limit_s, lambda error: pytest.fail(str(error))) as heartbeat:
        heartbeat()
    until(lambda: all(thread.name != "watchdog" for thread in threading.enumerate()))
    assert not (tmp_path / STACKS).exists()


def test_a_hanging_disk_does_not_prevent_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The forced exit is armed before the stacks are written."""
    done: list[str] = []
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback_later", lambda s, **more: done.append(f"{s} {more}"))
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda *_: done.append("dump"))
    with watched(tmp_path, 0.2, lambda _: done.append("left")):
        until(lambda: "left" in done)
    assert done == ["60.0 {'exit': True}", "dump", "dump", "left"]


STUCK = """
import time
import keras
import tensorflow as tf

class Stuck(keras.layers.Layer):
    def call(self, images):
        return images * tf.ensure_shape(tf.numpy_function(self.wait, [], tf.float32, stateful=True), ())

    @staticmethod
    def wait():
        time.sleep(600)

def model(size, classes):
    inputs = keras.Input((size, size, 3))
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(Stuck()(inputs))))
"""


@pytest.mark.long
def test_a_training_stuck_in_tensorflow_ends(make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stuck_model.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    values = {"source_uri": str(make_images({"a": 8, "b": 8})), "workspace": str(tmp_path / "w"), "image_size": 32}
    settings = settings_from({**values, "batch_size": 4, "model": "stuck_model:model", "stall_minutes": 0.5})
    dataset = Path(build(settings)["dataset"])
    with pytest.raises(TrainingError, match=r"no step has ended for 0\.5 minutes"):
        train(settings, dataset, "run")
    [stacks] = tmp_path.rglob(STACKS)
    text = stacks.read_text()
    assert '"wait"' in text or "in wait" in text
    assert "_send" in text  # the main thread, within TensorFlow
