import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.sources import Found, Listed, Skipped, SourceOptions
from pipeline.sources.folder import list_range
from pipeline.sources.key_range import EVERYTHING


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def entries_of(root: Path) -> list[Found]:
    return list(list_range(root, SourceOptions(), EVERYTHING))


def listed(root: Path) -> list[tuple[str, str, str]]:
    return [(item.key, *item.labels, item.split) for item in entries_of(root) if isinstance(item, Listed)]


def skipped(root: Path) -> dict[str, str]:
    return {item.key: item.reason for item in entries_of(root) if isinstance(item, Skipped)}


def test_class_folders(tmp_path: Path):
    write(tmp_path, "dogs/b.JPG", "dogs/deep/a.png", "cats/c.jpeg")
    assert listed(tmp_path) == [
        ("cats/c.jpeg", "cats", ""),
        ("dogs/b.JPG", "dogs", ""),
        ("dogs/deep/a.png", "dogs", ""),
    ]


@pytest.mark.parametrize(
    ("train", "name"),
    [
        ("train", "val"),
        ("Train", "Valid"),
        ("training", "validation"),
        ("train", "dev"),
        ("Split-train", "Split-eval"),
        ("split=train", "split=val"),
    ],
)
def test_split_folders_of_the_source(tmp_path: Path, train: str, name: str):
    write(tmp_path, f"{train}/cats/a.jpg", f"{name}/cats/b.jpg", "test/cats/c.jpg", "extra/cats/d.jpg")
    assert {(label, split) for _, label, split in listed(tmp_path)} == {
        ("cats", "train"),
        ("cats", "validation"),
        ("cats", "test"),
    }
    assert skipped(tmp_path) == {"extra/cats/d.jpg": "outside train/, validation/ and test/"}


def test_a_train_folder_with_images_is_a_class(tmp_path: Path):
    write(tmp_path, "train/a.jpg", "car/b.jpg")
    assert [label for _, label, _ in listed(tmp_path)] == ["car", "train"]


def test_a_train_folder_alone_is_a_split(tmp_path: Path):
    write(tmp_path, "train/cats/a.jpg", "train/dogs/b.jpg")
    assert {(label, split) for _, label, split in listed(tmp_path)} == {("cats", "train"), ("dogs", "train")}


def test_split_folders_without_train_are_refused(tmp_path: Path):
    write(tmp_path, "val/cats/a.jpg", "test/dogs/b.jpg", ".hidden/c.jpg")
    with pytest.raises(SourceError, match=r"holds test and val with folders in them, but no train/"):
        entries_of(tmp_path)


def test_val_and_test_folders_with_images_are_classes(tmp_path: Path):
    write(tmp_path, "val/a.jpg", "test/b.jpg")
    assert [label for _, label, _ in listed(tmp_path)] == ["test", "val"]


def test_a_train_split_beside_class_folders_is_refused(tmp_path: Path):
    write(tmp_path, "train/steam/a.jpg", "car/b.jpg", "plane/c.jpg")
    with pytest.raises(SourceError, match=r"train/ with folders in it, beside car, plane"):
        listed(tmp_path)


def test_a_test_folder_is_a_class_if_there_is_no_train_folder(tmp_path: Path):
    write(tmp_path, "test/a.jpg", "exam/b.jpg")
    assert listed(tmp_path) == [("exam/b.jpg", "exam", ""), ("test/a.jpg", "test", "")]


def test_other_files_are_skipped_with_a_reason(tmp_path: Path):
    write(tmp_path, "cats/.DS_Store", "cats/._a.jpg", "cats/notes.txt", "Thumbs.db", "loose.jpg", ".git/a/b.jpg")
    assert skipped(tmp_path) == {
        ".git/a/b.jpg": "hidden",
        "Thumbs.db": "hidden",
        "cats/.DS_Store": "hidden",
        "cats/._a.jpg": "hidden",
        "cats/notes.txt": "not an image by its name",
        "loose.jpg": "not in a class folder",
    }
    assert listed(tmp_path) == []


@pytest.mark.parametrize(
    "folder", ["@eaDir", "#recycle", "@Recycle", "$RECYCLE.BIN", "System Volume Information", "__MACOSX", "lost+found"]
)
def test_folders_that_programs_make_are_no_classes(tmp_path: Path, folder: str):
    write(tmp_path, "cats/a.jpg", "dogs/b.jpg", f"{folder}/c.jpg", f"cats/{folder}/d/SYNOPHOTO_THUMB_M.jpg")
    assert listed(tmp_path) == [("cats/a.jpg", "cats", ""), ("dogs/b.jpg", "dogs", "")]
    assert skipped(tmp_path) == {f"{folder}/c.jpg": "hidden", f"cats/{folder}/d/SYNOPHOTO_THUMB_M.jpg": "hidden"}
    write(tmp_path, "train/a/1.jpg", "val/a/2.jpg", f"train/{folder}/3.jpg")
    for name in ("cats", "dogs"):
        shutil.rmtree(tmp_path / name)
    assert {split for _, _, split in listed(tmp_path)} == {"train", "validation"}


def test_a_class_named_train_may_have_a_folder_that_a_program_made(tmp_path: Path):
    write(tmp_path, "bus/1.jpg", "train/2.jpg", "train/@eaDir/2.jpg/SYNOPHOTO_THUMB_M.jpg")
    assert listed(tmp_path) == [("bus/1.jpg", "bus", ""), ("train/2.jpg", "train", "")]


def test_linked_images_are_listed_and_loops_and_pipes_are_skipped(tmp_path: Path):
    write(tmp_path, "cats/a.jpg")
    (tmp_path / "cats" / "loop").symlink_to(tmp_path)
    (tmp_path / "cats" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "cats" / "linked.jpg").symlink_to(tmp_path / "cats" / "a.jpg")
    os.mkfifo(tmp_path / "cats" / "pipe.jpg")
    assert [key for key, _, _ in listed(tmp_path)] == ["cats/a.jpg", "cats/linked.jpg"]
    assert skipped(tmp_path) == {
        "cats/gone.jpg": "dangling link",
        "cats/loop": "link to a folder above it",
        "cats/pipe.jpg": "not a regular file",
    }


def test_keys_are_sorted_by_their_bytes_as_in_a_bucket(tmp_path: Path):
    names = ["a/x.jpg", "a.b/x.jpg", "a-b/x.jpg", "A/x.jpg", "ä/x.jpg", "a/y/z.jpg", "a/y.jpg", "a/z.jpg"]
    write(tmp_path, *names)
    assert [key for key, _, _ in listed(tmp_path)] == sorted(names, key=lambda name: name.encode())


def test_unusual_names_stay_unchanged_and_unique(tmp_path: Path):
    names = ["cats/花 #?%.jpg", "cats/new\nline.jpg", "cats/" + "n" * 200 + ".jpg", "cats/Case.jpg", "cats/case.jpg"]
    write(tmp_path, *names)
    (tmp_path / "cats" / os.fsdecode(b"\xff\xfe.jpg")).write_bytes(b"x")
    keys = [key for key, _, _ in listed(tmp_path)]
    assert Counter(keys) == Counter([*names, "cats/" + os.fsdecode(b"\xff\xfe.jpg")])


def test_a_missing_source_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match=r"source_uri .*nothing cannot be read"):
        entries_of(tmp_path / "nothing")
