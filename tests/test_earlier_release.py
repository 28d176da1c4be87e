"""Files of an earlier release can be read and continued: a dataset, a half-written plan, a stopped training."""

from pathlib import Path

import pytest

from pipeline.config import Settings
from pipeline.dataset.manifest import load
from pipeline.dataset.partitions import newest_partitions
from pipeline.dataset.verify import verify
from pipeline.errors import SettingsError
from pipeline.monitor import read
from pipeline.report import report_run
from pipeline.runs.launch import train
from pipeline.sharding.plan_files import load_plan, make_plan
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.storage import place_of
from pipeline.workspace import dataset_folder, work_folder
from tests.earlier_release import COMPLETE, HALF_WRITTEN, RUN, TRAINING, restore
from tests.published import commit


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return restore(tmp_path)


def test_a_dataset_of_an_earlier_release_is_readable(settings: Settings):
    folder = dataset_folder(settings, COMPLETE)
    assert newest_partitions(settings, 1) == {"latest": COMPLETE}
    assert {split: found.examples for split, found in load(folder).splits.items()} == {"train": 21, "validation": 3}
    checked = verify(folder)
    assert (checked["ok"], checked["records"], checked["problems"]) == (True, 24, [])


def test_a_half_written_plan_of_an_earlier_release_is_completed(settings: Settings):
    folder = dataset_folder(settings, HALF_WRITTEN)
    [written] = folder.glob("*.tfrecord")
    inode = written.stat().st_ino
    plan_path = work_folder(settings, HALF_WRITTEN) / "plan.json"
    for path in map(place_of, load_plan(plan_path).ranges):
        write_range(path, lambda *_: None)
        copy_range(path, lambda *_: None)
    dataset = commit(plan_path, settings.model_copy(update={"split_seed": 1}))
    assert dataset.version == HALF_WRITTEN
    assert written.stat().st_ino == inode  # the shard of the earlier release stays
    assert verify(folder)["ok"]


def test_a_snapshot_of_an_earlier_release_cannot_be_planned(settings: Settings):
    plan = load_plan(work_folder(settings, HALF_WRITTEN) / "plan.json")
    with pytest.raises(SettingsError, match=r"does not contain a snapshot of this release.*run `extract` again"):
        make_plan(settings, place_of(plan.snapshot))


def test_the_record_of_an_earlier_release_is_readable_and_reportable(settings: Settings, tmp_path: Path):
    folder = tmp_path / "workspace" / "runs" / RUN / TRAINING
    assert list(read(folder / "record", "batches")["step"]) == [1, 2, 3, 4, 5, 6]
    assert "sys/cpu_pct" in read(folder / "record", "samples")
    assert str(report_run(folder)) == str(folder / "report.html")


@pytest.mark.long
def test_a_stopped_training_of_an_earlier_release_resumes_from_its_checkpoint(settings: Settings):
    result = train(settings, dataset_folder(settings, COMPLETE), RUN)
    folder = Path(result["run"])
    assert folder.name == TRAINING  # the settings identify the training by the same folder as before
    assert list(read(folder / "record", "batches")["step"]) == list(range(1, 19))
    assert len(read(folder / "record", "epochs")) == 3
