"""A training that continues another one on a new dataset: the same examples, weights and optimizer."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.monitor import read
from pipeline.runs.changes import CONTINUES, DATASET, load_changes, request_dataset
from pipeline.runs.continuation import continued_settings
from pipeline.runs.launch import prepare_run
from pipeline.runs.promises import load_promises
from pipeline.runs.run import load_result, load_run
from tests.conftest import MakeImages
from tests.published import publish
from tests.training.test_exact_resume import Training
from tests.waiting import until

EPOCHS = 5


@pytest.fixture
def images(make_images: MakeImages) -> Path:
    return make_images({"a": 18, "b": 18})


@pytest.fixture
def settings(tmp_path: Path, images: Path) -> Settings:
    places = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "source_uri": str(images)}
    often = {"checkpoint_minutes": 0.0, "checkpoint_steps": 3, "cache": "off"}
    return settings_from({**places, **often, "image_size": 32, "batch_size": 4, "epochs": EPOCHS})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_training_continues_another_one_as_one_that_is_not_killed(
    settings: Settings, images: Path, tmp_path: Path
):
    """The training before is killed after the request, and this one before its first checkpoint.

    The request comes in the second epoch. The attempt after it may go on from a checkpoint before that epoch.
    """
    first, second = publish(images, tmp_path), publish(images, tmp_path, compression="gzip")
    examples = load(first).splits["train"].examples
    earlier = Training(prepare_run(settings, first, "earlier"))
    steps = earlier.run.steps_per_epoch
    request = {"REQUEST": f"{steps + 2} dataset=compression=gzip"}
    assert earlier.run_process(KILL_AFTER=str(2 * steps - 2), **request) == -signal.SIGKILL
    assert earlier.run_process(**request) == 0

    [change] = load_changes(earlier.run.folder)
    words = f"from epoch {change.epoch} on: compression=gzip on a new dataset, by somebody"
    assert (str(change), change.epoch in (2, 3)) == (words, True)
    done = change.epoch - 1
    result = load_result(earlier.run.folder)
    assert result is not None
    assert result["epochs"] == done
    assert [*earlier.of_epochs(done)] == [dict.fromkeys(range(examples), 1)] * done

    continued = continued_settings(earlier.run.folder, {"compression": "gzip"})
    whole, killed = (Training(prepare_run(continued, second, name)) for name in ("whole", "killed"))
    assert whole.run_process() == 0
    assert killed.run_process(KILL_AFTER="2") == -signal.SIGKILL
    assert killed.run_process() == 0

    assert [*killed.surviving()] == [*range(done * steps + 1, EPOCHS * steps + 1)]
    assert [*killed.of_epochs(EPOCHS)][done:] == [dict.fromkeys(range(examples), 1)] * (EPOCHS - done)
    assert killed.surviving() == whole.surviving()
    # A checksum follows the last of the steps that were sent together, and how many those are depends on the speed.
    ours, theirs = killed.weights(), whole.weights()
    both = ours.keys() & theirs.keys()
    assert len(both) > steps
    assert {step: ours[step] for step in both} == {step: theirs[step] for step in both}
    assert [str(each) for each in load_changes(killed.run.folder)] == [words]
    assert read(killed.run.folder / "record", "epochs")["step"].tolist() == [*range(change.epoch, EPOCHS + 1)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_command_goes_on_after_it_was_killed_and_keeps_its_promise(images: Path, tmp_path: Path):
    """An earlier command has built the dataset, requested the end of the training, and was killed. So is the next one.

    Its first request came with a promise.
    """
    values = {"workspace": tmp_path, "local_folder": tmp_path, "source_uri": images, "epochs": 30, "image_size": 32}
    values |= {"simulated_step_ms": 60.0, "batch_size": 4, "cache": "off"}
    run = started("run", *(part for name, value in values.items() for part in ("--set", f"{name}={value}")))
    [checkpoint] = until(lambda: [*tmp_path.glob("runs/manual/*/checkpoints/checkpoint-000001-*")], 300)
    training = checkpoint.parents[1]
    request_dataset(training, {"prepare": "resize", "prepare_size": 36}, "Ada", promised=(1.6, 1.5, 1.75))
    killed = started("apply", str(training), "prepare=resize")
    until(
        lambda: [path for path in tmp_path.glob("runs/manual/*/checkpoints/*.npz") if path.parents[1] != training], 300
    )
    killed.kill()
    killed.wait()
    assert run.wait() == 0
    assert started("apply", str(training), "prepare=resize").wait() == 0

    [later] = [path.parent for path in tmp_path.glob("runs/manual/*/result.json") if path.parent != training]
    [end], [begin] = load_changes(training), load_changes(later)
    assert (end.field, begin.field, end.epoch) == (DATASET, CONTINUES, begin.epoch)
    assert end.measured == begin.measured > 0
    [promise] = load_promises(tmp_path)
    assert promise.change == "prepare=resize, prepare_size=36 on a new dataset"
    assert (promise.training, promise.epoch) == (f"runs/manual/{later.name}", begin.epoch)
    assert (tuple(promise.promised), promise.measured) == ((1.6, 1.5, 1.75), begin.measured)
    epochs = [read(each / "record", "epochs")["step"].tolist() for each in (training, later)]
    assert epochs == [[*range(1, begin.epoch)], [*range(begin.epoch, 31)]]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_with_advice_apply_the_command_continues_on_a_faster_dataset_by_itself(tmp_path: Path):
    """Decoding photographs limits the training. The images would fit into memory, but not with this crop."""
    source = large_images(tmp_path / "source")
    values = {"workspace": tmp_path, "local_folder": tmp_path, "source_uri": source, "epochs": 600, "image_size": 32}
    values |= {"simulated_step_ms": 1.0, "batch_size": 8, "crop": "random_resized", "advice": "apply"}
    options = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "pipeline", "run", *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)

    later = Path(result["run"])
    earlier = Path(load_run(later).settings.continues)
    [end], [begin] = load_changes(earlier), load_changes(later)
    assert (end.field, begin.field, end.epoch) == (DATASET, CONTINUES, begin.epoch)
    assert end.words.startswith("prepare=")
    assert end.by == "advice"
    assert begin.promised[1] > 1
    assert begin.measured > 1
    epochs = [read(each / "record", "epochs")["step"].tolist() for each in (earlier, later)]
    assert epochs == [[*range(1, begin.epoch)], [*range(begin.epoch, 601)]]
    assert load(Path(result["dataset"])).settings["prepare"] in ("resize", "raw")

    # As if the command had been stopped when the first training was over.
    again = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert json.loads(again.stdout)["run"] == result["run"]


def large_images(folder: Path) -> Path:
    """Write 120 images of a megapixel, in two classes. Their noise takes about 7 ms to decode."""
    noise = np.random.default_rng(0)
    for number in range(120):
        path = folder / f"{number % 2}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(256, size=(900, 1200, 3), dtype=np.uint8)).save(path, quality=90)
    return folder


def started(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "pipeline", *arguments])
