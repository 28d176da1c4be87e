import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import build_folders, name_folder
from pipeline.dataset import labels as label_maps
from pipeline.dataset.labels import (
    claim_labels,
    label_uses,
    labels_of_file,
    proposed_labels,
    release_labels,
    reserve_labels,
)
from pipeline.dataset.manifest import load
from pipeline.errors import DatasetError, FormatError, SettingsError, SourceError
from pipeline.plan.plan import load_plan
from pipeline.sharding import commit as committing
from pipeline.stages.shard import plan_shards, write_shards
from pipeline.stages.upload import publish
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages
from tests.snapshots import take_snapshot

BUILD = "work/images/v-1"


def label_map(folder: Path, needed: list[str], build: str = BUILD) -> list[str]:
    """Reserve labels as `make_plan` does, which tries again if another run came first."""
    while not reserve_labels(folder, labels := proposed_labels(folder, needed), build):
        pass
    return labels


def test_ids_are_assigned_once_and_never_change(tmp_path: Path):
    assert label_map(tmp_path, ["cat", "eel"]) == ["cat", "eel"]
    assert label_map(tmp_path, ["ant", "cat", "dog"]) == ["cat", "eel", "ant", "dog"]
    assert label_map(tmp_path, ["eel"]) == ["cat", "eel"]


def test_labels_added_later_do_not_change_an_earlier_map(tmp_path: Path):
    before = label_map(tmp_path, ["cat", "dog"])
    label_map(tmp_path, ["ant", "dog"])
    assert label_map(tmp_path, ["cat", "dog"]) == before


def test_known_labels_cause_no_write(tmp_path: Path):
    label_map(tmp_path, ["cat", "dog"])
    before = sorted(tmp_path.rglob("*"))
    label_map(tmp_path, ["dog"])
    assert sorted(tmp_path.rglob("*")) == before


def test_concurrent_runs_agree_on_the_ids(tmp_path: Path):
    days = [[f"shared{number}" for number in range(5)] + [f"of day {day}"] for day in range(16)]
    with ThreadPoolExecutor(16) as pool:
        maps = list(pool.map(lambda labels: label_map(tmp_path, labels), days))
    longest = max(maps, key=len)
    assert sorted(longest) == sorted({label for day in days for label in day})
    for day, labels in zip(days, maps, strict=True):
        assert labels == longest[: len(labels)]
        assert set(day) <= set(labels)
        assert label_map(tmp_path, day) == labels


def state(labels: str = '["cat"]', reservations: str = "[]", claims: str = "[]") -> str:
    return f'{{"format": 1, "labels": {labels}, "reservations": {reservations}, "claims": {claims}}}'


DAMAGED = ["", "[", '{"format": 1, "labels": ["cat"]}', state('"cat"'), state('{"cat": 0}'), state('["cat", 1]')]


@pytest.mark.parametrize("content", [*DAMAGED, state('["cat", "cat"]'), state(reservations='[{"first_id": 0}]')])
def test_a_damaged_map_is_refused_and_nothing_is_added(content: str, tmp_path: Path):
    label_map(tmp_path, ["cat", "dog"])
    path = tmp_path / "labels" / "00001.json"
    path.write_text(content)
    for read in (label_map, proposed_labels):
        with pytest.raises(DatasetError, match=r"00001\.json .*restore a copy"):
            read(tmp_path, ["cat", "eel"])
    assert list(path.parent.iterdir()) == [path]


def test_other_files_beside_the_map_are_ignored(tmp_path: Path):
    label_map(tmp_path, ["cat", "dog"])
    (tmp_path / "labels" / "00001 (copy).json").write_text("[]")
    assert label_map(tmp_path, ["ant"]) == ["cat", "dog", "ant"]


def test_an_unreadable_label_folder_is_not_treated_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error is simulated, because root can read every folder."""
    label_map(tmp_path, ["cat", "dog"])

    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as without_rights:
        for name in ("listdir", "scandir"):
            without_rights.setattr(os, name, refused)
        with pytest.raises(PermissionError):
            proposed_labels(tmp_path, ["ant"])


def test_labels_with_newlines_or_invalid_utf_8_are_read_back(tmp_path: Path):
    labels = ["new\nline", "caf\udce9", "花"]
    assert label_map(tmp_path, labels) == label_map(tmp_path, labels) == labels


def test_a_file_of_the_user_decides_all_ids(tmp_path: Path):
    path = tmp_path / "labels.txt"
    path.write_text("\ufeffzebra\r\ncat\n\ndog\n")
    assert labels_of_file(path, ["cat", "dog"]) == ["zebra", "cat", "dog"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("cat\n", SourceError, "lacks 'dog': add"),
        ("cat\ndog\ncat\n", SettingsError, "names 'cat' twice"),
        ("\n", SettingsError, "is empty"),
        (None, SettingsError, "label_map must be a file with one label per line"),
    ],
)
def test_an_unsuitable_label_file_is_refused(tmp_path: Path, content: str | None, error: type, message: str):
    path = tmp_path / "labels.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message):
        labels_of_file(path, ["cat", "dog"])


# --- permanent labels, reservations and their release -----------------------------------------------------------------


@pytest.fixture
def failed(make_images: MakeImages, tmp_path: Path) -> Settings:
    """Settings of a name whose planned build was never committed. The classes of the build are `notes` and `src`."""
    places = {"source_uri": str(make_images({"notes": 6, "src": 6})), "workspace": str(tmp_path / "w")}
    settings = settings_from({**places, "dataset_name": "images"})
    plan_shards(settings, take_snapshot(settings))
    shutil.rmtree(settings.source_uri)
    return settings


def flowers(settings: Settings, make_images: MakeImages, *classes: str) -> dict[str, Any]:
    """Build a dataset of other images under the same name."""
    make_images(dict.fromkeys(classes, 6))
    snapshot = take_snapshot(settings)
    return publish(write_shards(settings, snapshot), settings)


def uses(settings: Settings) -> Iterator[tuple[int, str, str]]:
    return (
        (each.id, each.label, "permanent" if each.is_permanent else each.held_by)
        for each in label_uses(name_folder(settings))
    )


def test_reservations_of_a_failed_build_are_released_and_the_next_build_uses_their_ids(
    failed: Settings, make_images: MakeImages
):
    assert release_labels(name_folder(failed)) == ["notes", "src"]
    made = flowers(failed, make_images, "daisy", "rose")
    assert load(Path(made["dataset"])).labels == ("daisy", "rose")
    assert list(uses(failed)) == [(0, "daisy", "permanent"), (1, "rose", "permanent")]
    assert release_labels(name_folder(failed)) == []


def test_labels_of_a_committed_dataset_are_never_released(
    failed: Settings, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    """The labels of the failed build precede its own labels, whose ids must not change."""
    made = flowers(failed, make_images, "daisy", "rose")
    assert load(Path(made["dataset"])).labels == ("notes", "src", "daisy", "rose")
    assert release_labels(name_folder(failed)) == []
    shutil.rmtree(made["dataset"])
    assert release_labels(name_folder(failed)) == []  # as if the commit were still running
    monkeypatch.setattr(label_maps, "COMMIT_NS", 0)
    assert release_labels(name_folder(failed)) == ["notes", "src", "daisy", "rose"]


@pytest.mark.parametrize("reused", [False, True])
def test_a_build_whose_labels_were_released_is_not_committed(failed: Settings, make_images: MakeImages, reused: bool):
    make_images({"daisy": 6, "rose": 6})
    plan_path = write_shards(failed, take_snapshot(failed))
    release_labels(name_folder(failed))
    if reused:
        reserve_labels(name_folder(failed), ["ant"], BUILD)
    message = (
        r"id 0 for the label 'notes', but .* this id now belongs to ('ant'|no label)\. .*run its `shard` stage again"
    )
    with pytest.raises(DatasetError, match=message):
        publish(plan_path, failed)
    assert not list(name_folder(failed).glob("*/dataset.json"))
    made = publish(write_shards(failed, take_snapshot(failed)), failed)  # as the message advises
    assert load(Path(made["dataset"])).labels == (("ant", "daisy", "rose") if reused else ("daisy", "rose"))


def test_a_plan_with_a_label_map_of_a_user_reserves_no_ids(failed: Settings, make_images: MakeImages, tmp_path: Path):
    (tmp_path / "labels.txt").write_text("rose\ndaisy\n")
    given = settings_from({**failed.model_dump(), "label_map": str(tmp_path / "labels.txt")})
    made = flowers(given, make_images, "daisy", "rose")
    assert load(Path(made["dataset"])).labels == ("rose", "daisy")
    assert release_labels(name_folder(failed)) == ["notes", "src"]


def test_a_release_during_a_commit_removes_no_label(
    failed: Settings, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    make_images({"daisy": 6, "rose": 6})
    plan_path = write_shards(failed, take_snapshot(failed))
    save, released = committing.save, []

    def release_then_save(*arguments: Any) -> None:
        released.append((release_labels(name_folder(failed)), list(uses(failed))))
        save(*arguments)

    monkeypatch.setattr(committing, "save", release_then_save)
    made = publish(plan_path, failed)
    [(labels, held)] = released
    assert labels == []
    assert all(f"the commit of version {made['version']}" in by for _, _, by in held)
    assert {by for _, _, by in uses(failed)} == {"permanent"}


def test_a_commit_claims_its_labels_after_it_has_written_the_lists(failed: Settings, make_images: MakeImages):
    """Writing the lists of many shards takes long, and a claim expires."""
    make_images({"daisy": 6, "rose": 6})
    made = publish(write_shards(failed, take_snapshot(failed)), failed)
    claim = max((name_folder(failed) / "labels").iterdir())
    assert made["version"] in claim.read_text()
    assert claim.stat().st_mtime_ns > (Path(made["dataset"]) / "content_hashes.bin").stat().st_mtime_ns


def test_a_commit_whose_claim_expired_raises_an_error(
    failed: Settings, make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    """A conflict between the commit and the release must not go unnoticed."""
    make_images({"daisy": 6, "rose": 6})
    plan_path = write_shards(failed, take_snapshot(failed))
    save = committing.save

    def release_then_save(*arguments: Any) -> None:
        with monkeypatch.context() as later:
            later.setattr(label_maps, "COMMIT_NS", 0)
            assert release_labels(name_folder(failed)) == ["notes", "src", "daisy", "rose"]
        save(*arguments)

    monkeypatch.setattr(committing, "save", release_then_save)
    with pytest.raises(DatasetError, match=r"remove the folder .*/images/[0-9a-f]{16}, which another build committed"):
        publish(plan_path, failed)


def test_a_claim_made_during_a_release_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = settings_from({"workspace": str(tmp_path), "dataset_name": "images"})
    folder = name_folder(settings)
    label_map(folder, ["cat", "dog"])
    write, claims = label_maps._write_next, iter([("1" * 16,)])

    def claim_first(*arguments: Any) -> None:
        for (version,) in claims:
            claim_labels(folder, ["cat"], version)
        write(*arguments)

    monkeypatch.setattr(label_maps, "_write_next", claim_first)
    assert release_labels(name_folder(settings)) == ["dog"]
    assert [label for _, label, _ in uses(settings)] == ["cat"]


def test_reservations_in_a_bucket_are_released_too(
    make_images: MakeImages, gcs: FakeGcs, capsys: pytest.CaptureFixture[str]
):
    place = {"source_uri": str(make_images({"daisy": 6, "rose": 6})), "workspace": "gs://bucket/w"}
    settings = settings_from(place)
    label_map(name_folder(settings), ["notes"])
    assert release_labels(name_folder(settings)) == ["notes"]
    publish(write_shards(settings, take_snapshot(settings)), settings)
    label_map(name_folder(settings), ["tulip"])
    assert main(["labels", "--release", "--json", "--set", "workspace=gs://bucket/w"]) == 0
    assert json.loads(capsys.readouterr().out)["released"] == ["tulip"]
    assert list(uses(settings)) == [(0, "daisy", "permanent"), (1, "rose", "permanent")]


def test_repeated_commits_with_the_same_labels_write_one_claim(failed: Settings, make_images: MakeImages):
    flowers(failed, make_images, "daisy", "rose")
    before = sorted((name_folder(failed) / "labels").iterdir())
    make_images({"rose": 9})
    publish(write_shards(failed, take_snapshot(failed)), failed)
    assert sorted((name_folder(failed) / "labels").iterdir()) == before
    assert len(list(name_folder(failed).glob("*/dataset.json"))) == 2


def test_the_labels_command_lists_labels_with_their_holders_and_releases_them(
    failed: Settings, make_images: MakeImages, capsys: pytest.CaptureFixture[str]
):
    release_labels(name_folder(failed))
    flowers(failed, make_images, "daisy", "rose")
    make_images({"tulip": 6})
    plan = load_plan(plan_shards(failed, take_snapshot(failed)))
    build = str(build_folders(failed).work_of(plan.version))
    place = ["--set", f"workspace={failed.workspace}"]
    assert main(["labels", *place]) == 0
    assert f"     2  tulip  reserved by {build}\n" in (output := capsys.readouterr().out)
    assert "     0  daisy  permanent\n" in output
    assert main(["labels", "--release", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "label_map": str(name_folder(failed) / "labels"),
        "labels": [
            {"id": number, "label": label, "is_permanent": True, "held_by": ""}
            for number, label in enumerate(("daisy", "rose"))
        ],
        "released": ["tulip"],
    }
    assert main(["labels", "--json", *place, "--set", "dataset_name=flower"]) == 1
    assert "has no dataset 'flower'. It has images: set dataset_name" in capsys.readouterr().err


def test_a_damaged_dataset_stops_a_release(failed: Settings, make_images: MakeImages):
    made = flowers(failed, make_images, "daisy", "rose")
    (Path(made["dataset"]) / "dataset.json").write_text("{")
    with pytest.raises(DatasetError, match="cannot be read"):
        release_labels(name_folder(failed))


def test_a_dataset_of_another_version_stops_a_release_with_what_to_do(failed: Settings, make_images: MakeImages):
    folder = Path(flowers(failed, make_images, "daisy", "rose")["dataset"])
    content = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**content, "schema_version": 3}))
    with pytest.raises(FormatError, match=f"{folder} is a dataset of another version .* remove this folder, or move"):
        label_uses(name_folder(failed))
    shutil.move(folder, folder.parents[3])
    assert not any(each.is_permanent for each in label_uses(name_folder(failed)))


def test_labels_without_an_image_are_logged_once(
    failed: Settings, make_images: MakeImages, caplog: pytest.LogCaptureFixture
):
    flowers(failed, make_images, "daisy", "rose")
    messages = [
        each.getMessage() for each in caplog.records if "in the label map, but without an image" in each.getMessage()
    ]
    assert len(messages) == 1
    assert "2 classes in the label map, but without an image in this version: 'notes', 'src'. If" in messages[0]
    assert "`python -m pipeline labels --release`" in messages[0]
    shutil.rmtree(Path(failed.source_uri) / "rose")
    second = load(Path(flowers(failed, make_images, "ants")["dataset"])).quality
    assert (second["classes_gone"], second["classes_unused"]) == (["rose"], ["notes", "src"])  # No label is in both.
