"""Whole builds, from the source to the published dataset, and the faults that they must survive."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import psutil
import pytest
from PIL import Image

from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import checksum, load, require_shards
from pipeline.dataset.verify import verify
from pipeline.errors import ConflictError, DatasetError, FileSystemError, SettingsError, SourceError
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.plan.results import hashes_path
from pipeline.records import tfrecord
from pipeline.sharding.write import write_range
from pipeline.stages.build import build
from pipeline.stages.shard import plan_shards, write_shards
from pipeline.stages.upload import publish
from pipeline.storage import place_of
from pipeline.storage.local import this_host
from scripts.airflow.processes import alive
from tests.conftest import MakeImages, jpeg
from tests.fixed_images import jpeg as fixed_jpeg
from tests.published import (
    build_command,
    changed,
    commit,
    examples,
    files_of_version,
    keys_of,
    newest_dataset,
    no_progress,
    planned,
    temporary_files,
    write_and_copy,
)
from tests.snapshots import take_snapshot
from tests.waiting import until
from tests.writes import writes


def test_each_listed_image_is_in_one_record_with_its_label(settings: Settings):
    folder = Path(build(settings)["dataset"])
    found = [*examples(folder, "train"), *examples(folder, "validation")]
    assert len(found) == 24
    assert len({features["image/filename"][0] for features in found}) == 24
    for features in found:
        name = features["image/filename"][0].decode()
        assert features["image/encoded"][0] == (Path(settings.source_uri) / name).read_bytes()
        assert features["image/class/text"][0].decode() == name.split("/")[0]
        assert load(folder).labels[features["image/class/label"][0]] == name.split("/")[0]
        assert (features["image/height"], features["image/width"]) == ([16], [24])


def test_a_build_reports_shard_names_counts_and_labels(settings: Settings):
    result = build(settings)
    dataset = load(Path(result["dataset"]))
    assert dataset.labels == ("cats", "dogs", "eels")
    assert result["shards"]["train"] == 10
    assert dataset.splits["train"].shards[0].name == "train-00000-of-00010.tfrecord"
    assert sum(result["examples"].values()) == 24
    assert {"rejected": 0, "already_complete": False}.items() <= result.items()
    for split in dataset.splits.values():
        assert sum(split.classes.values()) == split.examples == sum(shard.examples for shard in split.shards)
    assert verify(Path(result["dataset"])) == {"ok": True, "records": 24, "problems": []}


def test_tensorflow_reads_as_many_records_as_images_were_accepted(settings: Settings):
    import tensorflow as tf

    (Path(settings.source_uri) / "cats" / "broken.jpg").write_bytes(jpeg(5)[:60])
    folder = Path(build(settings)["dataset"])
    files = sorted(str(path) for path in folder.glob("*.tfrecord"))
    assert sum(1 for _ in tf.data.TFRecordDataset(files)) == 24
    [rejected] = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert rejected["path"] == "cats/broken.jpg"
    assert "decoded" in rejected["reason"]
    assert load(folder).source["listed"] == 25


def test_equal_images_give_equal_bytes_and_the_same_version(settings: Settings, tmp_path: Path):
    first = build(settings)
    copy = tmp_path / "copy"
    shutil.copytree(settings.source_uri, copy)
    second = build(changed(settings, source_uri=str(copy), workspace=str(tmp_path / "other")))
    assert second["version"] == first["version"]
    ours, theirs = files_of_version(Path(first["dataset"])), files_of_version(Path(second["dataset"]))
    assert ours == theirs
    assert len([name for name in ours if name.endswith(".tfrecord")]) == sum(first["shards"].values())


def test_a_second_run_does_nothing(settings: Settings):
    folder = Path(build(settings)["dataset"])
    before = writes(folder.iterdir())
    assert build(settings)["already_complete"] is True
    assert writes(folder.iterdir()) == before
    assert planned(settings)[1] == []


@pytest.mark.parametrize(
    "values",
    [
        {"split_seed": 1},
        {"num_shards": 4},
        {"num_training_servers": 2},
        {"validation_fraction": 0.5},
        {"test_fraction": 0.2},
        {"max_megapixels": 0.5},
    ],
)
def test_a_setting_that_changes_bytes_creates_a_new_version(settings: Settings, values: dict):
    assert build(settings)["version"] != build(changed(settings, **values))["version"]


@pytest.mark.parametrize(
    "values", [{"epochs": 3}, {"seed": 1}, {"shards_per_task": 1}, {"image_size": 64}, {"test_fraction": 0.0}]
)
def test_a_setting_that_changes_no_bytes_creates_no_version(settings: Settings, values: dict):
    build(settings)
    assert build(changed(settings, **values))["already_complete"] is True


def test_the_number_of_shards_or_servers_does_not_change_the_split(settings: Settings):
    values = ({"num_shards": 3}, {"num_shards": 40}, {"num_training_servers": 4})
    few, many, servers = (Path(build(changed(settings, **each))["dataset"]) for each in values)
    for split in ("train", "validation"):
        assert keys_of(few, split) == keys_of(many, split) == keys_of(servers, split)


def test_a_test_fraction_takes_images_only_from_training(settings: Settings):
    without, tested = (Path(build(each)["dataset"]) for each in (settings, changed(settings, test_fraction=0.25)))
    assert [load(folder).judged_split for folder in (without, tested)] == ["validation", "test"]
    assert keys_of(tested, "validation") == keys_of(without, "validation")
    assert keys_of(tested, "test")
    assert keys_of(tested, "train") == keys_of(without, "train") - keys_of(tested, "test")
    assert verify(tested) == {"ok": True, "records": 24, "problems": []}


def test_a_test_fraction_leaves_the_validation_images_of_a_source(make_images: MakeImages, settings: Settings):
    shutil.rmtree(settings.source_uri)
    make_images({"train/a": 20, "train/b": 20, "validation/a": 3, "validation/b": 3})
    folder = Path(build(changed(settings, test_fraction=0.3))["dataset"])
    sides = [{key.split(b"/")[0] for key in keys_of(folder, split)} for split in ("train", "validation", "test")]
    assert sides == [{b"train"}, {b"validation"}, {b"train"}]
    assert len(keys_of(folder, "validation")) == 6


def test_a_test_fraction_is_refused_if_the_source_has_test_images(make_images: MakeImages, settings: Settings):
    shutil.rmtree(settings.source_uri)
    make_images({f"{split}/{label}": 4 for split in ("train", "test") for label in ("a", "b")})
    message = r"test_fraction must be 0 for '.*source', which has test images of its own, got 0\.1"
    with pytest.raises(SettingsError, match=message):
        build(changed(settings, test_fraction=0.1))
    assert load(Path(build(settings)["dataset"])).judged_split == "test"


def test_a_test_fraction_that_chooses_no_image_is_refused(settings: Settings):
    with pytest.raises(SettingsError, match=r"test_fraction 0\.0001 chooses no image of .* for testing: set a larger"):
        build(changed(settings, test_fraction=0.0001))


def test_a_date_may_have_no_test_image(settings: Settings, caplog: pytest.LogCaptureFixture):
    """Otherwise, the same fraction would fail the small dates of a year."""
    of_date = changed(settings, test_fraction=0.0001, data_date="2026-11-28")
    assert load(Path(build(of_date)["dataset"])).judged_split == "validation"
    assert "so the date 2026-11-28 has no test split" in caplog.text


def test_a_test_split_without_a_usable_image_is_refused(make_images: MakeImages, settings: Settings):
    """Otherwise, the validation images would judge the model, although there were test images."""
    shutil.rmtree(settings.source_uri)
    source = make_images({"train/a": 8, "train/b": 8, "test/a": 2})
    for path in (source / "test" / "a").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SourceError, match=r"no usable test image .* 2 of 18 images were rejected.*; repair or replace"):
        build(settings)


def test_a_date_may_have_no_usable_test_image(
    make_images: MakeImages, settings: Settings, caplog: pytest.LogCaptureFixture
):
    """A window has the test images of the other dates, so a single damaged image must not stop a small date."""
    shutil.rmtree(settings.source_uri)
    source = make_images({"train/a": 8, "train/b": 8, "test/a": 1})
    [path] = (source / "test" / "a").iterdir()
    image = path.read_bytes()
    path.write_bytes(image[:100])
    damaged = Path(build(changed(settings, data_date="2026-11-27"))["dataset"])
    assert load(damaged).judged_split == "validation"
    assert verify(damaged) == {"ok": True, "records": 16, "problems": []}
    assert re.search(
        "no usable test image .* 1 of 17 images .* So a training on 2026-11-27 alone is judged on validation images. "
        "`retrain` needs a window with usable test images of other dates",
        caplog.text,
    )
    with pytest.raises(DatasetError, match=r"no usable test images in 1 partition of .*: all were rejected"):
        newest_dataset(changed(settings, window=1))
    path.write_bytes(image)
    build(changed(settings, data_date="2026-11-28"))
    window = load(newest_dataset(changed(settings, window=2)))
    assert (window.judged_split, window.splits["test"].examples) == ("test", 1)


def test_new_images_move_no_image_to_another_split(settings: Settings):
    before = Path(build(settings)["dataset"])
    for number in range(10):
        (Path(settings.source_uri) / "dogs" / f"new{number}.jpg").write_bytes(jpeg(500 + number))
    after = Path(build(settings)["dataset"])
    assert after != before
    for split in ("train", "validation"):
        assert keys_of(before, split) <= keys_of(after, split)


def test_a_build_keeps_the_splits_of_the_source(make_images: MakeImages, tmp_path: Path):
    source = make_images({"train/a": 4, "train/b": 4, "val/a": 2, "val/b": 1, "test/a": 3})
    folder = Path(build(settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w")}))["dataset"])
    assert {name: split.examples for name, split in load(folder).splits.items()} == {
        "train": 8,
        "validation": 3,
        "test": 3,
    }
    assert {name.split(b"/")[0] for name in keys_of(folder, "validation")} == {b"val"}


def test_a_build_accepts_fewer_images_than_shards_with_a_warning(
    make_images: MakeImages, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    source = make_images({"a": 2, "b": 2})
    result = build(settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w")}))
    assert result["shards"]["train"] == 10
    assert verify(Path(result["dataset"]))["records"] == 4
    assert "num_shards=" in caplog.text


def test_publishing_outside_the_workspace_keeps_no_second_copy(settings: Settings, tmp_path: Path):
    inside = Path(build(settings)["dataset"])
    outside = Path(build(changed(settings, publish_uri=str(tmp_path / "published")))["dataset"])
    assert outside.is_relative_to(tmp_path / "published")
    assert files_of_version(outside) == files_of_version(inside)
    shards = list(Path(settings.workspace).rglob("*.tfrecord"))
    assert {path.parent for path in shards} == {inside}


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_a_repeatedly_killed_build_converges_to_the_same_bytes(settings: Settings, tmp_path: Path):
    """Each run is killed a little later than the last one, until a run completes."""
    expected = Path(build(changed(settings, workspace=str(tmp_path / "unbroken")))["dataset"])
    command = build_command(settings)
    killed, delay = 0, 0.1
    while (code := _run_for(command, delay)) == -signal.SIGKILL:
        killed, delay = killed + 1, delay * 1.15 + 0.02
    assert code == 0
    assert killed >= 3
    folder = Path(build(settings)["dataset"])
    assert files_of_version(folder) == files_of_version(expected)
    assert temporary_files(settings) == []


def _run_for(command: list[str], seconds: float) -> int:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


@pytest.mark.parametrize("folder", ["labels", "partitions"])
def test_a_build_removes_temporary_files_of_a_killed_build(settings: Settings, folder: str):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    name_folder = Path(build(settings)["dataset"]).parent
    left = name_folder / folder / f".00002.json.{this_host()}.{dead.pid}.0123abcd.tmp"
    left.write_bytes(b"{")
    build(settings)
    assert temporary_files(settings) == []


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": 1}'])
def test_a_build_recovers_from_a_damaged_shard_result(settings: Settings, damage: str):
    first = build(settings)
    dataset = Path(first["dataset"]) / "dataset.json"
    dataset.unlink()
    [result] = Path(settings.workspace).rglob("results/train-00003-of-00010.tfrecord.json")
    result.write_text(damage)
    assert build(settings)["dataset"] == first["dataset"]
    assert verify(Path(first["dataset"]))["ok"]


def test_write_range_writes_only_missing_shards(settings: Settings):
    _, ranges = planned(settings)
    write_range(ranges[0], no_progress)
    written = writes(Path(settings.workspace).rglob("*.tfrecord"))
    assert len(written) == 5
    victim = min(written)
    victim.unlink()
    counted: list[int] = []
    write_range(ranges[0], counted.append)
    assert sum(counted) == load_range(ranges[0]).examples
    again = writes(written)
    assert {path for path in written if again[path] != written[path]} == {victim}


def test_the_command_write_continues_a_plan(settings: Settings, capsys: pytest.CaptureFixture[str]):
    plan_path = plan_shards(settings, take_snapshot(settings))
    assert not list(Path(load_plan(plan_path).written).glob("*.tfrecord"))
    options = [f"--set={name}={getattr(settings, name)}" for name in ("source_uri", "workspace", "dataset_name")]
    assert main(["write", str(plan_path), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"plan": str(plan_path)}
    dataset = publish(plan_path, settings)
    assert verify(Path(dataset["dataset"]))["ok"]
    assert main(["write", str(plan_path), *options]) == 0  # Nothing is left to do.


@pytest.mark.parametrize("elsewhere", [False, True])
def test_two_concurrent_builds_create_one_dataset(settings: Settings, tmp_path: Path, elsewhere: bool):
    settings = changed(settings, publish_uri=str(tmp_path / "published")) if elsewhere else settings
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(build, [settings, settings])
    assert first["dataset"] == second["dataset"]
    assert [path.parent for path in tmp_path.rglob("train-00000-of-00010.tfrecord")] == [Path(first["dataset"])]
    assert verify(Path(first["dataset"]))["ok"]
    assert temporary_files(settings) == []


@pytest.mark.long
def test_workers_of_a_killed_build_exit(settings: Settings):
    for number in range(2000):  # enough work to be killed in the middle
        (Path(settings.source_uri) / "cats" / f"more{number}.jpg").write_bytes(jpeg(number, (400, 300)))
    command = build_command(settings)
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def workers_of_parent() -> list[psutil.Process]:
        children = psutil.Process(parent.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    workers = until(workers_of_parent, errors=psutil.NoSuchProcess)  # A child may end between the two calls.
    parent.kill()  # the parent alone, not its group
    parent.wait()
    until(lambda: [worker for worker in workers if alive(worker)], is_expected=lambda running: running == [])


def test_publishing_changes_only_the_dataset_of_its_plan(settings: Settings, tmp_path: Path):
    """One version is published in two places. Copying it to the second place must not change the first."""
    inside = Path(build(settings)["dataset"])
    before = files_of_version(inside)
    elsewhere = changed(settings, publish_uri=str(tmp_path / "published"), dataset_name="other")
    publish(write_shards(elsewhere, take_snapshot(elsewhere)), elsewhere)
    assert files_of_version(inside) == before
    assert load(tmp_path / "published" / "other" / inside.name).name == "other"


def test_the_next_build_removes_shards_left_by_a_kill_after_the_commit(settings: Settings, tmp_path: Path):
    elsewhere = changed(settings, publish_uri=str(tmp_path / "published"))
    plan_path = write_shards(elsewhere, take_snapshot(elsewhere))
    written = Path(load_plan(plan_path).written)
    contents = {path: path.read_bytes() for path in written.rglob("*.*")}
    assert {path.suffix for path in contents} == {".tfrecord", ".idx"}
    publish(plan_path, elsewhere)
    (written / "index").mkdir(parents=True)
    for path, content in contents.items():
        path.write_bytes(content)
    assert build(elsewhere)["already_complete"] is True
    assert not written.exists()


def test_equal_images_in_two_sources_have_separate_plans(settings: Settings, tmp_path: Path):
    shutil.copytree(settings.source_uri, tmp_path / "copy")
    _, ours = planned(settings)
    _, theirs = planned(changed(settings, source_uri=str(tmp_path / "copy")))
    assert set(ours).isdisjoint(theirs)


def test_file_names_that_are_not_utf_8_are_supported(settings: Settings):
    label = os.fsdecode(b"caf\xe9")
    folder = Path(settings.source_uri) / label
    folder.mkdir()
    for number in range(6):
        (folder / os.fsdecode(b"\xff%d.jpg" % number)).write_bytes(jpeg(900 + number))
    (folder / os.fsdecode(b"\xfe.jpg")).write_bytes(b"broken")
    published = Path(build(settings)["dataset"])
    assert label in load(published).labels
    names = keys_of(published, "train") | keys_of(published, "validation")
    assert {b"caf\xe9/\xff%d.jpg" % number for number in range(6)} < names
    assert verify(published)["ok"]
    (folder / os.fsdecode(b"\xfe2.jpg")).write_bytes(jpeg(3))
    _, ranges = planned(settings)
    (folder / os.fsdecode(b"\xfe2.jpg")).unlink()
    with pytest.raises(SourceError) as caught:
        list(map(write_range, ranges, [no_progress] * len(ranges)))
    assert "\\udcfe2.jpg" in str(caught.value).encode("utf-8").decode()  # It has no surrogates: it is printable.


def test_a_build_does_not_overwrite_a_foreign_file_with_the_name_of_a_shard(settings: Settings):
    plan_path, _ = planned(settings)
    target = Path(settings.workspace) / "datasets" / "images" / load_plan(plan_path).version
    foreign = target / "train-00002-of-00010.tfrecord"
    target.mkdir(parents=True)
    foreign.write_bytes(b"mine")
    with pytest.raises(ConflictError, match=foreign.name):
        build(settings)
    assert foreign.read_bytes() == b"mine"
    assert not (target / "dataset.json").exists()


def torn(path: Path) -> bytes:
    """Replace the content of a file by zeros, as a power loss may do. Return the content."""
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    return content


@pytest.mark.parametrize("publish_uri", ["", "published"])
def test_a_shard_zeroed_by_a_power_loss_is_written_again(
    settings: Settings, publish_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    settings = changed(settings, publish_uri=publish_uri and str(tmp_path / publish_uri))
    plan_path = write_shards(settings, take_snapshot(settings))
    plan = load_plan(plan_path)
    damaged = [Path(plan.written) / f"train-0000{number}-of-00010.tfrecord" for number in (1, 3)]
    contents = [torn(path) for path in damaged]
    publish(plan_path, settings)
    assert [(Path(plan.dataset) / path.name).read_bytes() for path in damaged] == contents
    assert verify(Path(plan.dataset))["ok"]
    assert caplog.text.count("writing the shard again") == 2


@pytest.mark.parametrize("publish_uri", ["", "published"])
@pytest.mark.parametrize("size", [0, 100])
def test_a_shard_truncated_by_a_power_loss_is_written_again(
    settings: Settings, publish_uri: str, size: int, tmp_path: Path
):
    settings = changed(settings, publish_uri=publish_uri and str(tmp_path / publish_uri))
    plan = load_plan(write_shards(settings, take_snapshot(settings)))
    cut = Path(plan.written) / "train-00001-of-00010.tfrecord"
    content = cut.read_bytes()
    cut.write_bytes(content[:size])
    build(settings)
    assert (Path(plan.dataset) / cut.name).read_bytes() == content
    assert verify(Path(plan.dataset))["ok"]


def test_a_build_does_not_overwrite_a_shard_truncated_after_the_commit(settings: Settings):
    folder = Path(build(settings)["dataset"])
    shard = folder / "train-00001-of-00010.tfrecord"
    shard.write_bytes(b"")
    with pytest.raises(DatasetError, match=f"{shard.name} should hold .* but holds 0: restore the file"):
        build(settings)
    assert shard.read_bytes() == b""


def test_publishing_does_not_overwrite_a_foreign_shard(settings: Settings, tmp_path: Path):
    settings = changed(settings, publish_uri=str(tmp_path / "published"))
    plan_path = write_shards(settings, take_snapshot(settings))
    foreign = Path(load_plan(plan_path).dataset) / "train-00001-of-00010.tfrecord"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"mine")
    with pytest.raises(ConflictError, match=rf"{foreign.name} has CRC32C .*left untouched"):
        publish(plan_path, settings)
    assert foreign.read_bytes() == b"mine"
    assert not foreign.with_name("dataset.json").exists()


def test_content_hashes_zeroed_by_a_power_loss_are_written_again(settings: Settings):
    plan_path = write_shards(settings, take_snapshot(settings))
    path = hashes_path(place_of(load_plan(plan_path).ranges[0]), "train-00001-of-00010.tfrecord")
    content = torn(path)
    with pytest.raises(DatasetError, match=rf"{path.name} is damaged: run the shard stage again"):
        publish(plan_path, settings)
    build(settings)
    assert path.read_bytes() == content


def test_commit_fails_if_a_shard_was_not_written(settings: Settings):
    plan_path, ranges = planned(settings)
    write_and_copy(ranges[:1])
    with pytest.raises(FileSystemError, match="was not written"):
        commit(plan_path, settings)


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_bytes(jpeg(77))])
def test_an_image_changed_after_listing_stops_the_run(settings: Settings, change):
    _, ranges = planned(settings)
    change(Path(settings.source_uri) / "dogs" / "003.jpg")
    with pytest.raises(SourceError, match=r"003\.jpg"):
        list(map(write_range, ranges, [no_progress] * len(ranges)))
    assert temporary_files(settings) == []


def test_a_dataset_with_a_damaged_or_missing_shard_is_refused(settings: Settings):
    folder = Path(build(settings)["dataset"])
    shard = folder / "train-00004-of-00010.tfrecord"
    whole = shard.read_bytes()
    for damage in (whole[:-1], whole + b"x", b""):
        shard.write_bytes(damage)
        with pytest.raises(DatasetError, match=shard.name):
            require_shards(folder, load(folder))
    shard.unlink()
    with pytest.raises(DatasetError, match=r"train-00004.* is missing"):
        build(settings)


def test_a_shard_replaced_by_one_of_equal_size_is_refused(make_images: MakeImages, tmp_path: Path):
    """All images and names have the same size here, so that the shards differ only in their content."""
    source = make_images({"a": 40, "b": 40})
    for path in sorted(source.rglob("*.jpg")):
        path.write_bytes(fixed_jpeg(100 + int(path.stem) + 40 * (path.parent.name == "b")))
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")})
    for compression in ("none", "gzip"):
        folder = Path(build(changed(settings, compression=compression, prepare="raw"))["dataset"])
        shards = load(folder).splits["train"].shards
        one, other = next(
            pair for pair in combinations(shards, 2) if pair[0].bytes == pair[1].bytes and pair[0] != pair[1]
        )
        shutil.copy(folder / other.name, folder / one.name)
        with pytest.raises(
            DatasetError, match=rf"{one.name} has the size of the committed shard, but another first or last record"
        ):
            require_shards(folder, load(folder))
        assert f"{one.name} does not have the CRC32C" in "\n".join(verify(folder)["problems"])


def test_dataset_json_holds_a_checksum_for_each_metadata_file(settings: Settings):
    folder = Path(build(settings)["dataset"])
    listed = {each["file"] for each in load(folder).lists}
    others = {path.name for path in folder.glob("*.*") if path.suffix not in (".tfrecord", ".html")} - {
        "dataset.json",
        "skipped.jsonl",
    }
    assert listed == others >= {"features.json", "dataset_info.json", "image-class-label.labels.txt"}
    names = folder / "image-class-label.labels.txt"
    names.write_text(names.read_text().replace("cats", "bats"))
    assert verify(folder)["problems"] == [f"{names} does not have the CRC32C that was committed"]
    (folder / "features.json").unlink()
    assert f"{folder / 'features.json'} is missing" in verify(folder)["problems"]
    with pytest.raises(DatasetError, match=r"features\.json .* is missing"):
        require_shards(folder, load(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], " were committed"),
        (lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:], "record at byte 0 is damaged"),
        (lambda content: content * 2, "readable records"),
        (lambda content: b"", "0 readable records"),
    ],
    ids=["cut", "bit", "twice", "empty"],
)
def test_verify_describes_the_damage_of_a_shard(settings: Settings, damage, message: str):
    folder = Path(build(settings)["dataset"])
    shard = folder / "train-00004-of-00010.tfrecord"
    shard.write_bytes(damage(shard.read_bytes()))
    found = verify(folder)
    assert found["ok"] is False
    assert message in "\n".join(found["problems"])
    assert shard.name in found["problems"][0]


def test_a_damaged_or_missing_list_of_rejected_images_is_detected(settings: Settings):
    (Path(settings.source_uri) / "cats" / "broken.jpg").write_bytes(b"broken")
    folder = Path(build(settings)["dataset"])
    rejected = folder / "rejected.jsonl"
    rejected.write_text(rejected.read_text().replace("broken.jpg", "brokes.jpg"))
    assert "rejected.jsonl does not have the CRC32C" in "\n".join(verify(folder)["problems"])
    rejected.unlink()
    assert verify(folder)["ok"] is False
    with pytest.raises(DatasetError, match=r"rejected\.jsonl"):
        require_shards(folder, load(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content["splits"]["train"]["classes"].update(cats=99), "'cats', but 99 were committed"),
        (lambda content: content["splits"]["train"]["classes"].update(newts=1), "holds 0 examples of 'newts'"),
        (lambda content: content["splits"]["train"].update(bytes=9), "do not add up to 9"),
    ],
    ids=["count", "class", "bytes"],
)
def test_verify_compares_the_counts_in_dataset_json(settings: Settings, damage, message: str):
    folder = Path(build(settings)["dataset"])
    damage_json(folder, damage)
    assert message in "\n".join(verify(folder)["problems"])


@pytest.mark.parametrize("damage", [lambda c: c["source"].pop("listed"), lambda c: c.update(rejected=3)])
def test_an_incomplete_or_inconsistent_dataset_json_is_refused(settings: Settings, damage):
    folder = Path(build(settings)["dataset"])
    damage_json(folder, damage)
    with pytest.raises(DatasetError, match=r"dataset\.json cannot be read"):
        load(folder)


def damage_json(folder: Path, damage) -> None:
    """Change dataset.json and update its checksum, so that the checksum does not reveal the change."""
    content = json.loads((folder / "dataset.json").read_text())
    del content["checksum"]
    damage(content)
    (folder / "dataset.json").write_text(json.dumps({**content, "checksum": checksum(content)}))


def test_a_damaged_dataset_json_is_refused(settings: Settings):
    path = Path(build(settings)["dataset"]) / "dataset.json"
    whole = path.read_text()
    label = whole.index('"cats"')
    for damaged in (
        whole[: label + 1] + "b" + whole[label + 2 :],  # one bit
        whole.replace('"crc32c": "', '"crc32c": "0', 1),
        whole.replace('"checksum"', '"checksun"'),
        whole[:-20],
        "",
    ):
        path.write_text(damaged)
        with pytest.raises(DatasetError, match=r"dataset\.json cannot be read"):
            load(path.parent)
        with pytest.raises(DatasetError, match=r"dataset\.json cannot be read"):
            build(settings)


def test_a_reordered_dataset_json_is_accepted(settings: Settings):
    path = Path(build(settings)["dataset"]) / "dataset.json"
    dataset, content = load(path.parent), json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items()))))
    assert load(path.parent) == dataset


def test_verify_detects_two_swapped_records(settings: Settings):
    folder = Path(build(changed(settings, num_shards=1))["dataset"])
    shard = folder / "train-00000-of-00001.tfrecord"
    records = list(tfrecord.read_records(shard))
    shard.write_bytes(b"".join(tfrecord.frame(record) for record in [records[1], records[0], *records[2:]]))
    assert "does not have the CRC32C" in "\n".join(verify(folder)["problems"])


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ({}, "no images under source_uri"),
        ({"cats": 0}, "no images under source_uri"),
        ({"cats": 5}, "only one class, 'cats', .*: add images of at least one more class"),
        ({"flowers/roses": 5, "flowers/tulips": 5}, "only one class, 'flowers', .* set source_uri to '/.*/flowers'"),
    ],
)
def test_a_source_without_classes_is_refused(make_images: MakeImages, tmp_path: Path, folders: dict, message: str):
    make_images(folders)
    (tmp_path / "source").mkdir(exist_ok=True)
    with pytest.raises(SourceError, match=message):
        build(settings_from({"source_uri": str(tmp_path / "source"), "workspace": str(tmp_path / "w")}))
    assert [path for path in (tmp_path / "w").rglob("*") if path.is_file()] == []


def test_images_that_all_have_the_same_labels_are_refused(tmp_path: Path):
    rows = [{"path": f"{number}.jpg", "label": ["0", "1"]} for number in range(4)]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        (tmp_path / str(row["path"])).write_bytes(jpeg(1))
    with pytest.raises(SourceError, match=r"all images under .* have the same labels \(0, 1\), so that a model"):
        build(settings_from({"source_uri": str(tmp_path / "list.jsonl"), "workspace": str(tmp_path / "w")}))


def test_a_source_without_a_valid_image_creates_no_dataset(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 3, "b": 3})
    for path in source.rglob("*.jpg"):
        path.write_bytes(b"broken  " + str(path).encode())
    with pytest.raises(
        SourceError, match=r"no usable train image .* 6 of 6 images were rejected, 6 of them because .not an image"
    ):
        build(settings_from({"source_uri": str(source), "workspace": str(tmp_path / "w")}))
    assert not list((tmp_path / "w").rglob("dataset.json"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source_uri": ""}, "source_uri is empty"),
        ({"source_uri": "{source}/nothing"}, "source_uri must be a folder or list that exists"),
        ({"workspace": "{source}"}, "workspace must be outside source_uri"),
        ({"workspace": "{source}/cats/work"}, "workspace must be outside source_uri"),
        ({"publish_uri": "{source}/published"}, "publish_uri must be outside source_uri"),
        ({"workspace": "{source}/cats/000.jpg/work"}, "workspace must be outside"),
        ({"workspace": "/proc/nowhere"}, "workspace must be a folder that can be written to"),
        ({"dataset": "{source}"}, "dataset must be empty"),
        ({"weights": "/nowhere.keras"}, "weights must be a file that exists"),
        ({"workspace": "/tmp/" + "x" * 300}, "workspace must be a folder that can be written to"),
        ({"source_uri": "/" + "x" * 300}, "source_uri must be a folder or list that exists"),
        ({"source_uri": "/a\0b"}, "source_uri must be a folder or list that exists"),
    ],
)
def test_invalid_locations_are_refused_before_anything_is_written(
    settings: Settings, tmp_path: Path, values: dict, message: str
):
    before = sorted(tmp_path.rglob("*"))
    filled = {name: value.format(source=settings.source_uri) for name, value in values.items()}
    with pytest.raises(SettingsError, match=message):
        build(changed(settings, **filled))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_dataset_json_is_refused(settings: Settings):
    folder = Path(build(settings)["dataset"])
    (folder / "dataset.json").unlink()
    with pytest.raises(DatasetError, match="contains no dataset"):
        load(folder)


def test_memory_of_a_shard_task_does_not_grow_with_its_images(tmp_path: Path):
    """A task that held its images would need 30 MB more for the larger source."""
    small, large = (_peak_mb(_write_noise(tmp_path / str(images), images)) for images in (100, 1300))
    assert large - small < 10


def _write_noise(folder: Path, images: int) -> str:
    """Plan a source of images of 25 KB each. Return a statement that writes its shards."""
    for number in range(images):
        path = folder / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.Random(number).randbytes(128 * 128 * 3)
        Image.frombytes("RGB", (128, 128), pixels).save(path, quality=90)
    values = {"source_uri": str(folder / "source"), "workspace": str(folder / "w"), "shards_per_task": 100}
    _, [plan_path] = planned(settings_from(values))
    return f"write_range(Path({str(plan_path)!r}), lambda _: None)"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "I;16"])
def test_memory_to_examine_a_large_image_is_bounded(tmp_path: Path, mode: str):
    """20 megapixels are 60 MB as RGB. The original, the converted image and buffers are in memory together."""
    path = tmp_path / "large.png"
    Image.new(mode, (5000, 4000)).save(path, compress_level=1)
    examine = f"examine(Path({str(path)!r}).read_bytes(), Rules(max_pixels=10**9))"
    assert _peak_mb(examine) - _peak_mb("pass") < 260


def _peak_mb(statement: str) -> float:
    # Not ru_maxrss, which starts at the size of the process that forked.
    script = "from pathlib import Path; from pipeline.sharding.write import write_range\n"
    script += "from pipeline.images.examine import Rules, examine; import pipeline.kinds.images.examples\n"
    script += "from pipeline.plan.example_kind import kind_named; kind_named('images')\n"
    script += f"{statement}\nprint(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def test_a_shard_task_imports_no_heavy_library_and_needs_little_memory():
    """Otherwise a task of a few shards would spend most of its time on imports."""
    heavy = ("tensorflow", "numpy", "pydantic", "pyarrow", "scipy", "pipeline.config.settings")
    assert _peak_mb(f"import sys; assert not set({heavy}) & set(sys.modules)") < 60


@pytest.mark.parametrize(
    ("kind", "model", "models"),
    [("table", "small_cnn", "mlp or package"), ("table", "ResNet50", "mlp or"), ("images", "mlp", "small_cnn, .* or")],
)
def test_a_model_of_another_kind_is_refused_before_anything_is_built(
    tmp_path: Path, kind: str, model: str, models: str
):
    (tmp_path / "source.csv").write_text("a,label\n1,x\n2,y\n")
    places = {"source_uri": str(tmp_path / "source.csv"), "workspace": str(tmp_path / "w"), "label_column": "label"}
    settings = settings_from({**places, "example_kind": kind, "model": model})
    with pytest.raises(SettingsError, match=rf"model must be {models}.* for .*{kind}.*, got '{model}'"):
        build(settings, for_training=True)
    assert not (tmp_path / "w").exists()
