from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.sources import Box, Classes, Found, Listed, Skipped, SourceOptions
from pipeline.sources.imagenet import NO_LABEL, list_range, recognizes
from pipeline.sources.key_range import EVERYTHING
from tests.sources.examples import imagenet, write_images

FISH, GOLD = "n01440764", "n01443537"
LABEL_LIST = "imagenet_2012_validation_synset_labels.txt"


def entries_of(place: Path) -> list[Found]:
    return list(list_range(place, SourceOptions(), EVERYTHING))


def listed(place: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    return {item.key: (item.labels, item.split) for item in entries_of(place) if isinstance(item, Listed)}


def skipped(place: Path) -> dict[str, str]:
    return {item.key: item.reason for item in entries_of(place) if isinstance(item, Skipped)}


def test_the_layout_of_the_challenge(tmp_path: Path):
    assert entries_of(imagenet(tmp_path))[0] == Classes((FISH, GOLD), {FISH: "tench, Tinca tinca"})
    assert listed(tmp_path) == {
        f"train/{FISH}/{FISH}_1.JPEG": ((FISH,), "train"),
        f"train/{GOLD}/{GOLD}_2.JPEG": ((GOLD,), "train"),
        "val/ILSVRC2012_val_00000001.JPEG": ((FISH,), "validation"),
        "val/ILSVRC2012_val_00000002.JPEG": ((GOLD,), "validation"),
    }
    assert skipped(tmp_path) == {"test/a.JPEG": NO_LABEL["test"], "train/a.tar": "not an image by its name"}


@pytest.mark.parametrize("name", [LABEL_LIST, "synset_labels.txt", "val.txt", "val/val_annotations.txt"])
@pytest.mark.parametrize(
    "text",
    [
        f"{FISH}\n{GOLD}\n",
        f"{FISH}\r\n{GOLD}\r\n\r\n",
        f"ILSVRC2012_val_00000002.JPEG {GOLD}\nILSVRC2012_val_00000001.JPEG {FISH}\n",
        f"val/ILSVRC2012_val_00000002.JPEG\t{GOLD}\t0\t32\nILSVRC2012_val_00000001 {FISH}",
    ],
)
def test_forms_of_the_validation_list(name: str, text: str, tmp_path: Path):
    (imagenet(tmp_path) / LABEL_LIST).unlink()
    (tmp_path / name).write_bytes(text.encode())
    validation = [labels for labels, split in listed(tmp_path).values() if split == "validation"]
    assert validation == [(FISH,), (GOLD,)]


def test_a_line_belongs_to_the_number_of_an_image_and_not_to_its_position(tmp_path: Path):
    (imagenet(tmp_path) / "val/ILSVRC2012_val_00000001.JPEG").unlink()
    assert listed(tmp_path)["val/ILSVRC2012_val_00000002.JPEG"] == ((GOLD,), "validation")


@pytest.mark.parametrize("name", ["val", "validation"])
def test_synset_folders_need_no_list(name: str, tmp_path: Path):
    write_images(
        tmp_path, f"train/{FISH}/a.JPEG", f"train/{GOLD}/b.JPEG", f"{name}/{GOLD}/c.JPEG", f"test/{FISH}/d.JPEG"
    )
    assert listed(tmp_path)[f"{name}/{GOLD}/c.JPEG"] == ((GOLD,), "validation")
    assert listed(tmp_path)[f"test/{FISH}/d.JPEG"] == ((FISH,), "test")


def test_a_flat_validation_folder_without_a_list_names_the_missing_files(tmp_path: Path):
    (imagenet(tmp_path) / LABEL_LIST).unlink()
    assert skipped(tmp_path)["val/ILSVRC2012_val_00000001.JPEG"] == NO_LABEL["validation"]
    assert all(name in NO_LABEL["validation"] for name in (LABEL_LIST, "LOC_val_solution.csv"))


def test_validation_images_of_unknown_synsets_are_skipped(tmp_path: Path):
    (imagenet(tmp_path) / LABEL_LIST).write_text(f"{FISH}\nn99999999\n")
    assert skipped(tmp_path)["val/ILSVRC2012_val_00000002.JPEG"] == "of a synset that train/ does not have"


def test_loose_training_images_are_skipped(tmp_path: Path):
    write_images(imagenet(tmp_path), "train/loose.JPEG", f"train/.hidden/{FISH}.JPEG")
    assert skipped(tmp_path)["train/loose.JPEG"] == NO_LABEL["train"]
    assert skipped(tmp_path)[f"train/.hidden/{FISH}.JPEG"] == "hidden"


@pytest.fixture
def kaggle(tmp_path: Path) -> Path:
    data = "ILSVRC/Data/CLS-LOC"
    write_images(tmp_path, f"{data}/train/{FISH}/{FISH}_1.JPEG", f"{data}/train/{GOLD}/{GOLD}_2.JPEG")
    write_images(tmp_path, f"{data}/val/ILSVRC2012_val_00000001.JPEG", f"{data}/test/ILSVRC2012_test_00000001.JPEG")
    (tmp_path / "LOC_synset_mapping.txt").write_text(f"{FISH} tench, Tinca tinca\n{GOLD} goldfish\n")
    boxes = f"{GOLD} 111 108 441 193 {GOLD} 0 0 9 9"
    (tmp_path / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\nILSVRC2012_val_00000001,{boxes} \n")
    (tmp_path / "LOC_train_solution.csv").write_text(f"ImageId,PredictionString\n{FISH}_1,{FISH} 1 2 3 4 \n")
    return tmp_path


def test_the_layout_of_kaggle(kaggle: Path):
    assert recognizes(kaggle)
    classes, *images = entries_of(kaggle)
    assert classes == Classes((FISH, GOLD), {FISH: "tench, Tinca tinca", GOLD: "goldfish"})
    data = "ILSVRC/Data/CLS-LOC"
    assert [item[:3] for item in images if isinstance(item, Listed)] == [
        (f"{data}/train/{FISH}/{FISH}_1.JPEG", (FISH,), "train"),
        (f"{data}/train/{GOLD}/{GOLD}_2.JPEG", (GOLD,), "train"),
        (f"{data}/val/ILSVRC2012_val_00000001.JPEG", (GOLD,), "validation"),
    ]
    assert [item.boxes for item in images if isinstance(item, Listed)] == [
        (Box(1, 2, 3, 4, FISH),),
        (),
        (Box(111, 108, 441, 193, GOLD), Box(0, 0, 9, 9, GOLD)),
    ]
    assert skipped(kaggle) == {f"{data}/test/ILSVRC2012_test_00000001.JPEG": NO_LABEL["test"]}


@pytest.mark.parametrize("solution", [f"{FISH} 1 2 3", f"{FISH} 1 2 3 x"])
def test_a_truncated_solution_is_refused(solution: str, kaggle: Path):
    (kaggle / "LOC_val_solution.csv").write_text(f"ILSVRC2012_val_00000001,{solution}\n")
    with pytest.raises(SourceError, match=rf"four numbers for each box, got '{solution}' for ILSVRC2012_val_00000001"):
        entries_of(kaggle)


@pytest.mark.parametrize("line", ["ILSVRC2012_val_00000001.JPEG 65", "65", "tench"])
def test_a_list_with_a_line_that_is_no_synset_is_refused(line: str, tmp_path: Path):
    (imagenet(tmp_path) / LABEL_LIST).write_text(f"{FISH}\n{line}\n")
    with pytest.raises(SourceError, match=rf"line 2 of .*{LABEL_LIST} is '{line}': it must be a synset"):
        entries_of(tmp_path)


@pytest.mark.parametrize(
    ("names", "recognized"),
    [
        ([f"train/{FISH}/a.JPEG"], True),
        ([f"train/{FISH}/a.JPEG", "train/.cache/a", "train/n02.tar"], True),
        ([f"train/{FISH}/a.JPEG", "train/cats/a.jpg"], False),
        (["train/n0144076/a.JPEG"], False),
        (["train/a.JPEG"], False),
        ([f"{FISH}/a.JPEG"], False),
        ([f"val/{FISH}/a.JPEG"], False),
    ],
)
def test_recognized_layouts(names: list[str], recognized: bool, tmp_path: Path):
    write_images(tmp_path, *names)
    assert recognizes(tmp_path) == recognized


def test_metadata_that_is_not_utf_8_is_refused_unless_its_encoding_is_declared(tmp_path: Path):
    imagenet(tmp_path)
    (tmp_path / "imagenet_metadata.txt").write_bytes("n01440764\tRöte\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"imagenet_metadata\.txt holds .* which is not utf-8.*list_encoding"):
        entries_of(tmp_path)
    classes = next(list_range(tmp_path, SourceOptions(list_encoding="latin-1"), EVERYTHING))
    assert isinstance(classes, Classes)
    assert classes.texts[FISH] == "Röte"


def test_folders_that_programs_make_do_not_change_the_layout(tmp_path: Path):
    expected = listed(imagenet(tmp_path))
    write_images(tmp_path, "train/@eaDir/a.JPEG", "train/lost+found/b.JPEG")
    assert recognizes(tmp_path)
    assert listed(tmp_path) == expected
