"""The data gate in a build: what it stops, at which stage, and which files remain."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.errors import GateError, SettingsError, SourceError
from pipeline.gate.notices import notices
from pipeline.runs.launch import prepare_run
from pipeline.runs.requirements import require_trainable
from pipeline.stages.build import build
from tests.conftest import MakeImages, jpeg
from tests.images.drawn import encoded, scene
from tests.images.icc import ADOBE_RGB, rgb_profile
from tests.published import changed, commit, examples, keys_of, planned, write_and_copy
from tests.snapshots import take_snapshot


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_profiles_are_counted(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 3, "b": 3})
    for name, profile in (("adobe", rgb_profile(ADOBE_RGB, 2.2)), ("broken", b"profile"), ("srgb", rgb_profile())):
        (source / "a" / f"{name}.jpg").write_bytes(encoded(scene(16, 16, len(profile)), "JPEG", icc_profile=profile))
    build(settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")}))
    (path,) = (tmp_path / "workspace").glob("datasets/*/*/dataset.json")
    assert json.loads(path.read_bytes())["quality"]["profiles"] == {"converted": 1, "ignored": 1}


@pytest.fixture
def leaking(make_images: MakeImages, tmp_path: Path) -> Settings:
    """Two of five validation images are in training too, one of them under another name."""
    source = make_images({"train/a": 6, "train/b": 6, "val/a": 2, "val/b": 1})
    shutil.copy(source / "train/a/000.jpg", source / "val/b/copied.jpg")
    shutil.copy(source / "train/b/001.jpg", source / "val/b/b.jpg")
    return settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")})


def test_a_leak_is_named_and_stops_the_run_before_a_shard_is_written(leaking: Settings):
    with pytest.raises(GateError) as caught:
        build(leaking)
    assert "2 of 5 (40%) validation and test images are in training too" in str(caught.value)
    assert "'val/b/copied.jpg' (as 'train/a/000.jpg')" in str(caught.value)
    assert "on_leak=continue" in str(caught.value)
    assert not list(Path(leaking.workspace).rglob("*.tfrecord"))
    assert not list(Path(leaking.workspace).rglob("labels/*"))  # a wrong source must leave no label behind


@pytest.mark.parametrize("values", [{"on_leak": "continue"}, {"max_leaked_fraction": 0.4}])
def test_an_allowed_leak_is_counted_and_listed(leaking: Settings, values: dict):
    folder = Path(build(changed(leaking, **values))["dataset"])
    dataset = load(folder)
    assert dataset.quality["duplicates"] == {"images": 4, "groups": 2}
    assert (dataset.quality["leaks"]["images"], dataset.quality["leaks"]["of"]) == (2, 5)
    assert [row["kind"] for row in lines(folder / "duplicates.jsonl")] == ["equal", "equal"]
    copied = {"path": "val/b/copied.jpg", "split": "validation", "labels": ["b"]}
    assert copied in lines(folder / "duplicates.jsonl")[0]["images"]
    assert dataset.duplicates["groups"] == 2
    assert b"copied.jpg" in (folder / "card.html").read_bytes()


@pytest.fixture
def contradictory(make_images: MakeImages, tmp_path: Path) -> Settings:
    """One picture in two classes, and another one twice in one class."""
    source = make_images({"a": 8, "b": 8})
    shutil.copy(source / "a/000.jpg", source / "b/same.jpg")
    shutil.copy(source / "a/001.jpg", source / "a/again.jpg")
    return settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")})


def test_the_same_picture_under_two_labels_is_a_contradiction(contradictory: Settings):
    folder = Path(build(contradictory)["dataset"])
    found = load(folder).quality["contradictions"]
    pair = {"paths": ["a/000.jpg", "b/same.jpg"], "labels": [["a"], ["b"]]}
    assert found == {"images": 2, "groups": 1, "of": 18, "pairs": [pair]}
    assert [[image["labels"] for image in row["images"]] for row in lines(folder / "duplicates.jsonl")] == [
        [["a"], ["b"]],
        [["a"], ["a"]],
    ]
    assert (
        load(folder).quality["findings"][0].startswith("2 of 18 (11.1%) images are equal to one with different labels")
    )
    card = (folder / "card.html").read_text()
    assert "Equal images with different labels" in card
    assert "b/same.jpg (b)" in card


def test_contradictions_stop_the_run_above_their_threshold(contradictory: Settings):
    failing = changed(contradictory, on_contradiction="fail")
    with pytest.raises(GateError, match=r"'a/000\.jpg' \('a'\) and 'b/same\.jpg' \('b'\).*on_contradiction=continue"):
        build(failing)
    assert build(changed(failing, max_contradictory_fraction=0.2))["rejected"] == 0


def test_classes_without_a_training_image_are_named(make_images: MakeImages, tmp_path: Path):
    """The split holds back some of 60 classes with one image each, and moves no image to prevent that."""
    source = make_images({f"c{number:02d}": 1 for number in range(60)})
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")})
    dataset = load(Path(build(settings)["dataset"]))
    held_back = sorted(set(dataset.labels) - set(dataset.splits["train"].classes))
    assert dataset.quality["classes_without_training"] == held_back
    assert 5 < len(held_back) < 20
    assert f"{len(held_back)} classes without training images" in " ".join(notices(dataset.quality))


def test_a_class_whose_training_images_were_all_rejected_is_named(make_images: MakeImages, tmp_path: Path):
    source = make_images({"train/a": 4, "train/b": 4, "val/a": 2, "val/b": 2})
    for path in (source / "train/b").iterdir():
        path.write_bytes(b"no image")
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")})
    assert load(Path(build(settings)["dataset"])).quality["classes_without_training"] == ["b"]


def test_a_complete_dataset_is_checked_against_the_thresholds_of_each_run(leaking: Settings):
    build(changed(leaking, on_leak="continue"))
    with pytest.raises(GateError, match="in training too"):
        build(leaking)
    assert build(changed(leaking, on_leak="continue"))["already_complete"] is True


def test_ask_fails_without_a_terminal(leaking: Settings):
    with pytest.raises(GateError, match="where a person can be asked"):
        build(changed(leaking, on_leak="ask"))


def test_too_many_rejected_images_stop_the_run_before_the_commit(settings: Settings):
    for number in range(10):
        (Path(settings.source_uri) / "cats" / f"broken{number}.jpg").write_bytes(b"broken%d" % number)
    with pytest.raises(GateError, match=r"10 of 34 .* were rejected, more than max_rejected_fraction=0.1"):
        build(changed(settings, max_rejected_fraction=0.1))
    assert not list(Path(settings.workspace).rglob("dataset.json"))
    [rejections] = Path(settings.workspace).rglob("rejected.jsonl")
    assert len(lines(rejections)) == 10
    result = build(settings)  # By default, half may be rejected. The build reuses the written shards.
    assert result["rejected"] == 10
    assert lines(Path(result["dataset"]) / "rejected.jsonl") == lines(rejections)


def test_imbalanced_classes_are_reported_and_can_stop_the_run(make_images: MakeImages, tmp_path: Path):
    source = make_images({"many": 40, "few": 4})
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "max_imbalance": 5})
    assert "max_imbalance=5" in load(Path(build(settings)["dataset"])).quality["findings"][0]
    with pytest.raises(GateError, match="'many'"):
        build(changed(settings, on_imbalance="fail"))


@pytest.mark.long
def test_drift_is_measured_against_the_last_version(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 60, "b": 60})
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "on_drift": "fail"})
    first = build(settings)
    assert load(Path(first["dataset"])).quality["drift"] is None
    for number in range(60):
        (source / "a" / f"{number:03d}.jpg").write_bytes(jpeg(9000 + number, (200, 300)))
    with pytest.raises(GateError, match=f"differ from those of version {first['version']} in sizes by"):
        build(settings)
    dataset = load(Path(build(changed(settings, on_drift="continue"))["dataset"]))
    assert dataset.quality["drift"]["against"] == first["version"]
    assert dataset.quality["drift"]["sizes"] > 0.25


# --- labels -----------------------------------------------------------------------------------------------------------


def test_label_ids_never_change_and_changed_classes_are_logged(settings: Settings, caplog: pytest.LogCaptureFixture):
    first = load(Path(build(settings)["dataset"]))
    shutil.rmtree(Path(settings.source_uri) / "dogs")
    (Path(settings.source_uri) / "ants").mkdir()
    for number in range(8):
        (Path(settings.source_uri) / "ants" / f"{number}.jpg").write_bytes(jpeg(700 + number))
    folder = Path(build(settings)["dataset"])
    second = load(folder)
    assert first.labels == ("cats", "dogs", "eels")
    assert second.labels == ("cats", "dogs", "eels", "ants")
    assert second.quality["classes_new"] == ["ants"]
    assert second.quality["classes_gone"] == ["dogs"]
    assert "'ants'" in caplog.text
    assert "'dogs'" in caplog.text
    ids = {
        (features["image/class/text"][0], features["image/class/label"][0]) for features in examples(folder, "train")
    }
    assert ids == {(b"cats", 0), (b"eels", 2), (b"ants", 3)}


def test_a_version_is_reused_after_a_class_was_added_and_removed(settings: Settings, make_images: MakeImages):
    before = build(settings)
    make_images({"ants": 8})
    assert build(settings)["version"] != before["version"]
    shutil.rmtree(Path(settings.source_uri) / "ants")
    again = build(settings)
    assert (again["version"], again["already_complete"]) == (before["version"], True)


def test_images_of_a_new_class_move_no_other_image(settings: Settings):
    before = Path(build(settings)["dataset"])
    folder = Path(settings.source_uri) / "aardvarks"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.jpg").write_bytes(jpeg(800 + number))
    after = Path(build(settings)["dataset"])
    for split in ("train", "validation"):
        assert keys_of(before, split) <= keys_of(after, split)
        old, new = (
            {f["image/filename"][0]: f["image/class/label"] for f in examples(x, split)} for x in (before, after)
        )
        assert old.items() <= new.items()


def test_a_label_map_of_the_user_decides_the_ids(settings: Settings, tmp_path: Path):
    path = tmp_path / "labels.txt"
    path.write_text("zebras\neels\ndogs\ncats\n")
    dataset = load(Path(build(changed(settings, label_map=str(path)))["dataset"]))
    assert dataset.labels == ("zebras", "eels", "dogs", "cats")
    path.write_text("zebras\neels\n")
    with pytest.raises(SourceError, match="lacks 'cats', 'dogs'"):
        build(changed(settings, label_map=str(path)))


# --- groups and duplicates --------------------------------------------------------------------------------------------


def test_images_of_a_group_stay_in_one_split(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 0, "b": 0})
    for person in range(20):
        for shot in range(6):
            path = source / "ab"[shot % 2] / f"person{person}_{shot}.jpg"
            path.write_bytes(jpeg(100 * person + shot))
    settings = settings_from(
        {"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "group_pattern": r"^(.+)_\d$"}
    )
    folder = Path(build(settings)["dataset"])
    people = [
        {name.split(b"/")[1].split(b"_")[0] for name in keys_of(folder, split)} for split in ("train", "validation")
    ]
    assert people[0].isdisjoint(people[1])
    assert len(people[0] | people[1]) == 20
    assert people[1]


def test_equal_images_stay_in_one_split_and_are_counted(settings: Settings):
    source = Path(settings.source_uri)
    for number in range(8):
        shutil.copy(source / "cats" / f"{number:03d}.jpg", source / "eels" / f"copy{number}.jpg")
    folder = Path(build(changed(settings, validation_fraction=0.5))["dataset"])
    train, validation = (keys_of(folder, split) for split in ("train", "validation"))
    for number in range(8):
        pair = {b"cats/%03d.jpg" % number, b"eels/copy%d.jpg" % number}
        assert pair <= train or pair <= validation
    assert load(folder).quality["duplicates"] == {"images": 16, "groups": 8}
    assert load(folder).quality["leaks"]["images"] == 0


def test_near_duplicates_are_reported_if_enabled(settings: Settings):
    import io

    from PIL import Image

    source = Path(settings.source_uri)
    big = Image.effect_noise((8, 8), 90).resize((300, 200), Image.Resampling.BICUBIC).convert("RGB")
    for name, size, quality in (("one", (300, 200), 95), ("two", (240, 160), 60)):
        buffer = io.BytesIO()
        big.resize(size).save(buffer, "JPEG", quality=quality)
        (source / "cats" / f"{name}.jpg").write_bytes(buffer.getvalue())
    folder = Path(build(changed(settings, near_duplicates=True))["dataset"])
    alike = [{image["path"] for image in row["images"]} for row in lines(folder / "duplicates.jsonl")]
    assert any({"cats/one.jpg", "cats/two.jpg"} <= group for group in alike)
    assert load(folder).quality["near_duplicates"]["images"] >= 2


# --- shards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"check": "header"},
        {"prepare": "resize", "prepare_size": 16},
        {"prepare": "raw", "compression": "gzip", "feature_keys": "plain", "label_offset": 1},
        pytest.param({"prepare": "raw", "prepare_size": 16}, marks=pytest.mark.long),
        pytest.param({"feature_keys": "plain"}, marks=pytest.mark.long),
        pytest.param({"label_offset": 1}, marks=pytest.mark.long),
        pytest.param({"compression": "gzip"}, marks=pytest.mark.long),
    ],
)
def test_every_kind_of_shard_is_valid_and_reproducible(settings: Settings, tmp_path: Path, values: dict):
    first = build(changed(settings, **values))
    again = build(changed(settings, **values, workspace=str(tmp_path / "other")))
    assert first["version"] == again["version"] != build(settings)["version"]
    ours, theirs = (
        {path.name: path.read_bytes() for path in Path(each["dataset"]).glob("*.tfrecord*")} for each in (first, again)
    )
    assert ours == theirs
    assert verify(Path(first["dataset"])) == {"ok": True, "records": 24, "problems": []}
    assert len(file_names_of_any_kind(Path(first["dataset"]))) == 24


def file_names_of_any_kind(folder: Path) -> set[bytes]:
    from pipeline.records import tfrecord
    from pipeline.records.format import read_image

    dataset = load(folder)
    shards = [shard.name for split in dataset.splits.values() for shard in split.shards]
    return {
        read_image(record, dataset.records).filename
        for name in shards
        for record in tfrecord.read_records(folder / name)
    }


def test_the_size_on_disk_is_estimated_in_the_log(settings: Settings, caplog: pytest.LogCaptureFixture):
    for number in range(40):
        (Path(settings.source_uri) / "cats" / f"big{number}.jpg").write_bytes(jpeg(number, (512, 384)))
    caplog.set_level(logging.INFO)
    folder = Path(build(changed(settings, prepare="raw"))["dataset"])
    [message] = [record.getMessage() for record in caplog.records if "prepare=raw" in record.getMessage()]
    written = sum(path.stat().st_size for path in folder.glob("*.tfrecord"))
    assert 0.5 * written < 1e6 * float(message.split("about ")[1].split()[0]) < 2 * written


def test_numeric_labels_are_sorted_as_numbers(make_images: MakeImages, tmp_path: Path):
    source = make_images({str(number): 2 for number in (0, 1, 2, 10)})
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace")})
    assert load(Path(build(settings)["dataset"])).labels == ("0", "1", "2", "10")


def test_labels_can_have_more_digits_than_python_parses(settings: Settings, tmp_path: Path):
    listed = tmp_path / "list.csv"
    keys = [path.relative_to(tmp_path) for path in sorted(Path(settings.source_uri).rglob("*.jpg"))]
    long = "1" * 5000
    listed.write_text("path,label\n" + "".join(f"{key},{(long, 2)[at % 2]}\n" for at, key in enumerate(keys)))
    folder = Path(build(changed(settings, source_uri=str(listed)))["dataset"])
    assert load(folder).labels == (long, "2")


def test_a_single_group_that_leaves_no_training_images_is_refused(settings: Settings, tmp_path: Path):
    listed = tmp_path / "list.csv"
    keys = [path.relative_to(tmp_path) for path in sorted(Path(settings.source_uri).rglob("*.jpg"))]
    listed.write_text("path,label,group\n" + "".join(f"{key},{key.parts[1]},one\n" for key in keys))
    with pytest.raises(SourceError, match=r"left for training \(\d+ for validation\): .* make the groups smaller"):
        build(changed(settings, source_uri=str(listed)))


def test_images_with_several_labels_are_counted_once(settings: Settings, tmp_path: Path):
    listed = tmp_path / "list.csv"
    keys = [path.relative_to(tmp_path) for path in sorted(Path(settings.source_uri).rglob("*.jpg"))]
    listed.write_text("path,label\n" + "".join(f"{key},{key.parts[1]}|animals\n" for key in keys))
    folder = Path(build(changed(settings, source_uri=str(listed)))["dataset"])
    dataset = load(folder)
    assert dataset.quality["classes_without_validation"] == dataset.quality["findings"] == []
    assert sum(split.examples for split in dataset.splits.values()) == 24
    assert sum(count for split in dataset.splits.values() for count in split.classes.values()) == 48
    assert verify(folder) == {"ok": True, "records": 24, "problems": []}
    prepare_run(settings, folder, "run")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"balanced": True}, "balanced must be false for images with several labels, as in .*, got true"),
        ({"class_weights": "balanced"}, "class_weights must be none for images with several labels, .* got balanced"),
    ],
)
def test_class_balancing_is_refused_for_images_with_several_labels(
    settings: Settings, tmp_path: Path, values: dict[str, Any], message: str
):
    listed = tmp_path / "list.csv"
    keys = [path.relative_to(tmp_path) for path in sorted(Path(settings.source_uri).rglob("*.jpg"))]
    listed.write_text("path,label\n" + "".join(f"{key},{key.parts[1]}|animals\n" for key in keys))
    of_list = changed(settings, source_uri=str(listed))
    require_trainable(of_list, take_snapshot(of_list))
    with pytest.raises(SettingsError, match=message):
        require_trainable(changed(of_list, **values), take_snapshot(of_list))
    folder = Path(build(of_list)["dataset"])
    with pytest.raises(SettingsError, match=message):
        prepare_run(changed(of_list, **values), folder, "run")


def test_the_commit_does_not_repeat_the_question(leaking: Settings):
    questions: list[str] = []
    settings = changed(leaking, on_leak="ask")

    def yes(sentence: str) -> bool:
        questions.append(sentence)
        return True

    plan_path, ranges = planned(settings, yes)
    write_and_copy(ranges)
    commit(plan_path, settings, yes)
    assert len(questions) == 1
    with pytest.raises(GateError):
        commit(plan_path, leaking)


def test_another_preparation_causes_no_drift(make_images: MakeImages, tmp_path: Path):
    source = make_images({"a": 0, "b": 0})
    for number in range(120):
        (source / "ab"[number % 2] / f"{number}.jpg").write_bytes(jpeg(number, (200, 100)))
    settings = settings_from({"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "on_drift": "fail"})
    build(settings)
    drift = load(Path(build(changed(settings, prepare="raw", prepare_size=16))["dataset"])).quality["drift"]
    assert set(drift) == {"against", "classes"}
