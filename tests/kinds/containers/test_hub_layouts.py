"""Parquet files in the usual layouts of the Hugging Face Hub: they are read, or one sentence names what to set."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import SourceError
from pipeline.kinds.images.containers.parquet import holds_images
from pipeline.sources import Box
from pipeline.sources.box_forms import boxes_of
from tests.conftest import jpeg
from tests.kinds.containers.examples import Found

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
ROWS = [{"bytes": jpeg(number), "path": None} for number in range(3)]
PICTURES = pa.array(ROWS, IMAGE)
AN_IMAGE = {"_type": "Image"}


PATH = "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet"


class Layout(NamedTuple):
    columns: Mapping[str, Any]
    features: Mapping[str, Any] = {}
    """What the metadata of the Hub's library says about the columns; nothing, if the file was written without it."""
    labels: tuple[tuple[str, ...], ...] = (("a",), ("b",), ("c",))
    classes: tuple[str, ...] | None = ("a", "b", "c")
    settings: Mapping[str, str] = {}
    keys: tuple[str, ...] = ()
    boxes: tuple[tuple[Box, ...], ...] = ((), (), ())


def classes(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def several(feature: Any, kind: str = "List") -> dict[str, Any]:
    return {"feature": feature, "_type": kind}


ABC = classes("a", "b", "c")
NUMBER = {"dtype": "float32", "_type": "Value"}
OF_OBJECTS = {"id": several(NUMBER), "bbox": several(several(NUMBER)), "category": several(ABC)}
# Only x, y, width and height are possible: of the first box, 20 is less than 30.
SIZES = [[[30.0, 40.0, 20.0, 10.0], [1.0, 1.0, 5.0, 5.0]], [[0.0, 0.0, 9.0, 9.0]], []]
# Only two corners are possible: as a width, 60 would end outside of the 64 pixels.
CORNERS = [[[30.0, 40.0, 60.0, 50.0], [1.0, 1.0, 5.0, 5.0]], [[2.0, 2.0, 9.0, 9.0]], []]
CATEGORIES = [[1, 0], [2], []]
FOUND_BOXES = (
    (Box(30, 40, 50, 50, "b"), Box(1, 1, 6, 6, "a")),
    (Box(0, 0, 9, 9, "c"),),
)
PIXELS = {"width": [64] * 3, "height": [64] * 3}


def objects(boxes: list[Any], categories: list[Any] = CATEGORIES) -> list[Any]:
    return [{"id": each, "bbox": box, "category": each} for box, each in zip(boxes, categories, strict=True)]


LAYOUTS = {
    "image, label (mnist)": Layout({"image": PICTURES, "label": [0, 1, 2]}, {"image": AN_IMAGE, "label": ABC}),
    "img, label (cifar10)": Layout({"img": PICTURES, "label": [0, 1, 2]}, {"img": AN_IMAGE, "label": ABC}),
    "fine_label, coarse_label (cifar100)": Layout(
        {"img": PICTURES, "fine_label": [0, 1, 2], "coarse_label": [0, 0, 1]},
        {"img": AN_IMAGE, "fine_label": ABC, "coarse_label": classes("x", "y")},
        settings={"label_column": "coarse_label"},
        labels=(("x",), ("x",), ("y",)),
        classes=("x", "y"),
    ),
    "image_file_path, image, labels (beans)": Layout(
        {"image_file_path": ["/home/x/1.jpg"] * 3, "image": PICTURES, "labels": [0, 1, 2]},
        {"image": AN_IMAGE, "labels": ABC},
    ),
    "the only column with classes (ade20k)": Layout(
        {"annotation": PICTURES, "image": pa.array(ROWS[::-1], IMAGE), "scene_category": [0, 1, 2], "id": [7, 8, 9]},
        {"annotation": AN_IMAGE, "image": AN_IMAGE, "scene_category": ABC},
    ),
    "boxes as x, y, width, height (cppe-5)": Layout(
        {"image_id": [7, 8, 9], "image": PICTURES, **PIXELS, "objects": objects(SIZES)},
        {"image": AN_IMAGE, "objects": several(OF_OBJECTS, "Sequence")},
        labels=(("b", "a"), ("c",)),
        boxes=FOUND_BOXES,
    ),
    "boxes as a struct of lists, as the library writes them since version 4": Layout(
        {"image": PICTURES, "objects": objects(SIZES)},
        {"image": AN_IMAGE, "objects": OF_OBJECTS},
        labels=(("b", "a"), ("c",)),
        boxes=FOUND_BOXES,
    ),
    "boxes as a list of structs": Layout(
        {
            "image": PICTURES,
            "objects": [
                [{"bbox": box, "category": name} for box, name in zip(of, names, strict=True)]
                for of, names in zip(SIZES, [["b", "a"], ["c"], []], strict=True)
            ],
        },
        settings={"label_column": "objects.category"},
        labels=(("b", "a"), ("c",)),
        classes=None,
        boxes=FOUND_BOXES,
    ),
    "image.bytes as a column beside a path": Layout(
        {"image": ["c.jpg", "b.jpg", "a.jpg"], "image.bytes": [each["bytes"] for each in ROWS], "label": list("abc")},
        labels=(("c",), ("b",), ("a",)),
        classes=None,
        keys=("a.jpg", "b.jpg", "c.jpg"),
    ),
    "a list of structs in a struct": Layout(
        {"image": PICTURES, "found": [{"objects": [{"kind": name} for name in names]} for names in ("ba", "c", "")]},
        settings={"label_column": "found.objects.kind"},
        labels=(("b", "a"), ("c",)),
        classes=None,
    ),
    "boxes as two corners (detection-datasets/coco)": Layout(
        {"image": PICTURES, **PIXELS, "objects": objects(CORNERS)},
        {"image": AN_IMAGE, "objects": OF_OBJECTS},
        labels=(("b", "a"), ("c",)),
        boxes=((Box(30, 40, 60, 50, "b"), Box(1, 1, 5, 5, "a")), (Box(2, 2, 9, 9, "c"),)),
    ),
    "no box in any image": Layout(
        {"image": PICTURES, "objects": objects([[], [], []], [[], [], []]), "label": [0, 1, 2]},
        {"label": ABC, "objects": OF_OBJECTS},
    ),
    "file_name, label (imagefolder)": Layout(
        {
            "image": [each["bytes"] for each in ROWS],
            "file_name": ["1.jpg", "x/2.jpg", "3.jpg"],
            "label": ["a", "b", "a"],
        },
        labels=(("a",), ("a",), ("b",)),
        classes=None,
        keys=("1.jpg", "3.jpg", "x/2.jpg"),
    ),
    "image_path, image_bytes": Layout(
        {
            "image_path": ["c.jpg", "b.jpg", "a.jpg"],
            "image_bytes": [each["bytes"] for each in ROWS],
            "label": list("abc"),
        },
        labels=(("c",), ("b",), ("a",)),
        classes=None,
        keys=("a.jpg", "b.jpg", "c.jpg"),
    ),
    "jpg, cls (webdataset)": Layout(
        {"jpg": PICTURES, "cls": [0, 1, 2], "__key__": ["x", "y", "z"], "__url__": ["1.tar"] * 3},
        {"jpg": AN_IMAGE},
        labels=(("0",), ("1",), ("2",)),
        classes=None,
    ),
    "jpg, json (webdataset)": Layout(
        {"jpg": PICTURES, "json": [{"kind": name, "width": 3} for name in "abc"], "__key__": ["x", "y", "z"]},
        {"jpg": AN_IMAGE},
        settings={"label_column": "json.kind"},
        classes=None,
    ),
    "several labels": Layout(
        {"image": PICTURES, "labels": [[0, 1], [], [2]]},
        {"image": AN_IMAGE, "labels": several(ABC)},
        labels=(("a", "b"), ("c",)),
    ),
    "several labels, as older versions of the library wrote them": Layout(
        {"image": PICTURES, "labels": [[0, 1], [], [2]]},
        {"image": AN_IMAGE, "labels": several(ABC, "Sequence")},
        labels=(("a", "b"), ("c",)),
    ),
    "a label for each object, without names": Layout(
        {"image": PICTURES, "labels": [["b", "a", "b"], [None, "c", None], []], "bboxes": SIZES},
        labels=(("b", "a"), ("c",)),
        classes=None,
    ),
    "one box in an image": Layout(
        {"image": PICTURES, "object": [{"bbox": [1.0, 2.0, 3.0, 4.0], "kind": each} for each in "abc"]},
        settings={"label_column": "object.kind"},
        classes=None,
    ),
    "boxes of the classes 0 and 1, without names": Layout(
        {"image": PICTURES, "objects": objects(SIZES, [[0, 0], [1], []])},
        settings={"label_column": "objects.category"},
        labels=(("0",), ("1",)),
        classes=None,
        boxes=((Box(30, 40, 50, 50, "0"), Box(1, 1, 6, 6, "0")), (Box(0, 0, 9, 9, "1"),)),
    ),
    "the size of the images as text": Layout(
        {"image": PICTURES, "width": ["64 px"] * 3, "objects": objects(SIZES)},
        {"image": AN_IMAGE, "objects": OF_OBJECTS},
        labels=(("b", "a"), ("c",)),
        boxes=FOUND_BOXES,
    ),
    "one category of several boxes": Layout(
        {"image": PICTURES, "objects": [{"bbox": SIZES[0], "kind": each} for each in "abc"]},
        settings={"label_column": "objects.kind"},
        classes=None,
    ),
    "left, right": Layout(
        {"left": PICTURES, "right": PICTURES, "label": ["a", "b", "c"]},
        {"left": AN_IMAGE, "right": AN_IMAGE},
        settings={"path_column": "right"},
        classes=None,
    ),
    "an image that is missing": Layout(
        {"image": pa.array([ROWS[0], None, ROWS[2]], IMAGE), "label": [0, 1, 2]},
        {"image": AN_IMAGE, "label": ABC},
        labels=(("a",), ("c",)),
        keys=tuple(f"{PATH}/{number:08d}.jpg" for number in (0, 2)),
    ),
    "left.jpg, right.jpg (webdataset)": Layout(
        {"left.jpg": PICTURES, "right.jpg": PICTURES, "label": [0, 1, 2]},
        {"left.jpg": AN_IMAGE, "right.jpg": AN_IMAGE, "label": ABC},
        settings={"path_column": "left.jpg"},
    ),
    "names with dots": Layout(
        {
            "my.image": [{"content": each["bytes"]} for each in ROWS],
            "my.facts": [{"the.kind": name} for name in "abc"],
        },
        settings={"path_column": "my.image.content", "label_column": "my.facts.the.kind"},
        classes=None,
    ),
    "names with dots of boxes": Layout(
        {
            "image": PICTURES,
            "my.objects": [
                [{"bbox": box, "category": name} for box, name in zip(of, names, strict=True)]
                for of, names in zip(SIZES, ["ba", "c", ""], strict=True)
            ],
        },
        settings={"label_column": "my.objects.category"},
        labels=(("b", "a"), ("c",)),
        classes=None,
        boxes=FOUND_BOXES,
    ),
    "images without a path": Layout(
        {"image": pa.array([{"bytes": each["bytes"]} for each in ROWS]), "label": list("abc")}, classes=None
    ),
    "one column as label and group": Layout(
        {"image": PICTURES, "kind": list("abc")},
        settings={"label_column": "kind", "group_column": "kind"},
        classes=None,
    ),
    "an image in a struct, which may be missing": Layout(
        {"of": [{"image": ROWS[0]}, None, {"image": None}], "label": list("abc")},
        settings={"path_column": "of.image"},
        labels=(("a",),),
        classes=None,
    ),
    "labels as a dictionary": Layout(
        {"image": PICTURES, "label": pa.array(["a", "b", "c"]).dictionary_encode()}, classes=None
    ),
}


def write(folder: Path, columns: Mapping[str, Any], features: Mapping[str, Any]) -> Path:
    """Write the file of a data set as the Hub names it."""
    table = pa.table(dict(columns))
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path = folder / PATH
    path.parent.mkdir()
    parquet.write_table(table, path)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_usual_layout_is_read(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    layout = LAYOUTS[name]
    source = write(tmp_path, layout.columns, layout.features)
    found = Found(source, str(tmp_path_factory.mktemp("copies")), **layout.settings)
    assert tuple(found.labels.values()) == layout.labels
    assert found.classes == layout.classes
    assert set(found.splits.values()) == {"train"}
    assert tuple(each.boxes for each in found.images.values()) == layout.boxes[: len(layout.labels)]
    assert len(found.images) + len(found.skipped) == 3
    if layout.keys:
        assert tuple(found.images) == layout.keys


def test_of_two_columns_with_one_name_the_last_is_read(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    source = write(tmp_path, {"image": PICTURES, "label": list("xyz"), "other": list("abc")}, {})
    table = parquet.read_table(source / PATH).rename_columns(["image", "label", "label"])
    parquet.write_table(table, source / PATH)
    found = Found(source, str(tmp_path_factory.mktemp("copies")))
    assert tuple(found.labels.values()) == (("a",), ("b",), ("c",))


def test_a_table_with_bytes_in_a_struct_holds_no_images(tmp_path: Path):
    table = pa.table({"my.facts": [{"code": b"123", "other.code": None}], "label": ["a"]})
    parquet.write_table(table, tmp_path / "table.parquet")
    with open(tmp_path / "table.parquet", "rb") as file:
        assert not holds_images(file)


SENTENCES: dict[str, tuple[Layout, str]] = {
    "two columns of classes (cifar100)": (
        LAYOUTS["fine_label, coarse_label (cifar100)"]._replace(settings={}),
        r"name the column that holds the labels in label_column \(fine_label, coarse_label\)",
    ),
    "captions": (
        Layout({"image": PICTURES, "text": ["a cat", "a dog", "fog"]}, {"image": AN_IMAGE}),
        r"it has no column label or .*: name the column that holds the labels in label_column \(text\)",
    ),
    "only images": (
        Layout({"image": PICTURES}, {"image": AN_IMAGE}),
        "no column can hold labels: add a column of texts",
    ),
    "masks in the column of labels": (
        Layout({"pixel_values": PICTURES, "label": PICTURES}, {"pixel_values": AN_IMAGE, "label": AN_IMAGE}),
        "no column can hold labels: add a column of texts or integers",
    ),
    "masks, named as labels": (
        Layout({"image": PICTURES, "mask": PICTURES, "kind": [1, 2, 3]}, settings={"label_column": "mask"}),
        r"label_column is 'mask', which holds struct<.*> instead of labels: name .* in label_column \(kind\)",
    ),
    "a column of labels that does not exist": (
        Layout({"image": PICTURES, "kind": [1, 2, 3]}, settings={"label_column": "kinds"}),
        r"label_column is 'kinds', which does not exist: name .* in label_column \(kind\)",
    ),
    "fields of JSON": (
        LAYOUTS["jpg, json (webdataset)"]._replace(settings={}),
        r"name the column that holds the labels in label_column \(json\.kind, json\.width, __key__\)",
    ),
    "several images in a row": (
        Layout({"images": pa.array([ROWS, ROWS[:1], []], pa.list_(IMAGE)), "label": [0, 1, 2]}),
        "a row of 'images' holds a list of images: write the file with one image in each row",
    ),
    "two columns of images": (
        LAYOUTS["left, right"]._replace(settings={}),
        r"it has several columns of images: name one in path_column \(left, right\)",
    ),
    "a column of images that does not exist": (
        Layout({"image": PICTURES, "label": [1, 2, 3]}, settings={"path_column": "img"}),
        "path_column is 'img', but its columns are image, label: name one of these",
    ),
    "a column of splits that does not exist": (
        Layout({"image": PICTURES, "label": [1, 2, 3]}, settings={"split_column": "fold"}),
        "split_column is 'fold', but its columns are image, label: name one of these, or none",
    ),
    "images in place of splits": (
        Layout({"image": PICTURES, "label": [1, 2, 3]}, settings={"split_column": "image"}),
        "split_column is 'image', which holds images: name another column, or none",
    ),
    "a number for each class": (
        Layout({"image": PICTURES, "labels": [[0, 1, 0], [1, 0, 0], [0, 0, 1]]}),
        r"the label \[0, 1, 0\] looks like a vector with 0 or 1 for each class: write a list of the labels instead",
    ),
    "boxes with five numbers": (
        Layout(
            {"image": PICTURES, "objects": objects([[[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], [[1, 1, 2, 2, 5]], []])},
            {"objects": OF_OBJECTS},
        ),
        r"a box in 'objects\.bbox' is \[1.*5.*\] instead of four numbers: correct it, or write the file without",
    ),
    "a box that is missing": (
        Layout(
            {"image": PICTURES, "objects": objects([[*SIZES[0][:1], None], [], []], [[0, 1], [], []])},
            settings={"label_column": "objects.category"},
        ),
        r"a box in 'objects\.bbox' is None instead of four numbers",
    ),
    "a box without one of its numbers": (
        Layout(
            {"image": PICTURES, "objects": objects([[[50.0, 50.0, 10.0, None]], [], []], [[0], [], []])},
            settings={"label_column": "objects.category"},
        ),
        r"a box in 'objects\.bbox' is \[50\.0, 50\.0, 10\.0, None\] instead of four numbers",
    ),
    "boxes as fractions": (
        Layout(
            {"image": PICTURES, **PIXELS, "objects": objects([[[0.5, 0.5, 0.25, 0.25]], [], []], [[0], [], []])},
            {"objects": OF_OBJECTS},
        ),
        r"boxes in 'objects\.bbox' are fractions of the image size: multiply them by its width and height",
    ),
    "boxes of both kinds": (
        Layout(
            {"image": PICTURES, "objects": objects([[[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 1, 2, 2]], []])},
            {"objects": OF_OBJECTS},
        ),
        r"boxes in 'objects\.bbox' could be two corners \(xmin, .*\), or x, y, width and height: add the columns",
    ),
    "boxes of no kind": (
        Layout(
            {"image": PICTURES, "objects": objects([SIZES[0], CORNERS[1], []]), "width": [9] * 3},
            {"objects": OF_OBJECTS},
        ),
        r"'objects\.bbox' are neither two corners \(\[30.* in row 1 of train.*\) nor x, y, width and height \(.* row 1",
    ),
    "boxes without labels": (
        Layout({"image": PICTURES, "objects": objects(SIZES, [[1], [2], []])}, {"objects": OF_OBJECTS}),
        "an image has 2 boxes, but 1 labels of boxes: write one label for each box",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_one_sentence_names_what_to_set(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    layout, message = SENTENCES[name]
    source = write(tmp_path, layout.columns, layout.features)
    with pytest.raises(SourceError, match=message):
        Found(source, str(tmp_path_factory.mktemp("copies")), kind="auto", **layout.settings)


EITHER = [[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], [[1.0, 1.0, 2.0, 2.0]], []]
"""Two corners, or x, y, width and height."""
NEGATIVE = [[[30.0, 40.0, 30.0, 50.0]], [[-1.0, 2.0, -0.5, 9.0]], []]
"""Two corners, because no width is negative."""


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("copies"))


def write_boxes(folder: Path, *files: list[Any]) -> Path:
    (folder / "data").mkdir()
    kind = pa.struct({"bbox": pa.list_(pa.list_(pa.float64())), "category": pa.list_(pa.string())})
    for number, boxes in enumerate(files):
        of_images = objects(boxes, [["x"] * len(each) for each in boxes])
        columns = {"image": PICTURES, "objects": pa.array(of_images, kind)}
        parquet.write_table(pa.table(columns), folder / "data" / f"{number}.parquet")
    return folder


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("telling", "of_either"),
    [
        (SIZES, (Box(1, 2, 4, 6, "x"), Box(5, 6, 12, 14, "x"))),
        (NEGATIVE, (Box(1, 2, 3, 4, "x"), Box(5, 6, 7, 8, "x"))),
    ],
)
def test_one_file_tells_the_form_of_the_boxes_of_all(
    telling: list[Any], of_either: tuple[Box, ...], first: bool, tmp_path: Path, copies: str
):
    files = [telling, EITHER] if first else [EITHER, [[], [], []], telling]  # A file without boxes tells nothing.
    found = Found(write_boxes(tmp_path, *files), copies, label_column="objects.category")
    either = f"data/{files.index(EITHER)}.parquet/00000000"
    assert next(each.boxes for key, each in found.images.items() if key.startswith(either)) == of_either


def test_row_groups_whose_boxes_have_different_forms_are_refused(
    tmp_path: Path, copies: str, monkeypatch: pytest.MonkeyPatch
):
    """The file is read in pieces, and no other file is there."""
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    rows = [{"bytes": jpeg(number) + bytes(700_000), "path": None} for number in range(3)] * 2
    boxes = [*SIZES, *NEGATIVE]
    columns = {"image": rows, "objects": objects(boxes, [["x"] * len(each) for each in boxes])}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=3, compression="none")
    message = r"a\.parquet cannot be read as a file of images: the boxes in 'objects\.bbox' are neither two corners"
    with pytest.raises(SourceError, match=message):
        Found(tmp_path / "a.parquet", copies, label_column="objects.category")


def test_files_whose_boxes_have_different_forms_are_refused(tmp_path: Path, copies: str):
    source = write_boxes(tmp_path, SIZES, EITHER, NEGATIVE)
    message = (
        r"2\.parquet does not fit the other files: the boxes in 'objects\.bbox' are neither two corners "
        r"\(\[30.* in row 1 of 0\.parquet\) nor x, y, width and height \(\[-1.* in row 2 of 2\.parquet\)"
    )
    with pytest.raises(SourceError, match=message):
        Found(source, copies, label_column="objects.category")


@pytest.mark.parametrize("count", [0, 2, 20])
def test_a_shard_may_have_no_image(count: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """A binary column is one of images by its content, which such a shard does not have."""
    full = {"image": [each["bytes"] for each in ROWS], "label": ["a", "b", "c"]}
    missing = pa.array([None] * count, pa.binary())
    source = write(tmp_path, full, {})
    parquet.write_table(
        pa.table({"image": missing, "label": pa.array(["a"] * count, pa.string())}),
        source / "data" / "validation-00001-of-00002.parquet",
    )
    late = pa.array([None] * 20 + full["image"], pa.binary())
    parquet.write_table(
        pa.table({"picture": late, "label": ["a"] * 23}), source / "data" / "validation-00002-of-00002.parquet"
    )
    found = Found(source, str(tmp_path_factory.mktemp("copies")))
    assert len(found.images) == 6
    assert list(found.skipped.values()) == ["no image"] * (20 + count)


def test_a_list_of_sounds_is_no_list_of_images(tmp_path: Path):
    """The Hub's library stores both as structs of `bytes` and `path`."""
    sounds = {"sounds": pa.array([ROWS, ROWS[:1], []], pa.list_(IMAGE)), "label": [0, 1, 2]}
    source = write(tmp_path, sounds, {"sounds": several({"_type": "Audio"})})
    with (source / PATH).open("rb") as file:
        assert not holds_images(file)


def test_a_file_that_is_only_recognized_takes_little_from_the_pool_of_arrow(tmp_path: Path):
    size = 1 << 20
    parquet.write_table(pa.table({"image": [bytes(size)]}), tmp_path / "a.parquet")
    before = pa.default_memory_pool().total_bytes_allocated()
    with (tmp_path / "a.parquet").open("rb") as file:
        assert not holds_images(file)
    # One copy, which the reader makes in the pool in any case. Two more would be kept there.
    assert pa.default_memory_pool().total_bytes_allocated() - before < 2 * size


def test_whole_numbers_of_a_box_are_those_of_a_list():
    """JSON writes 10 and 10.0 differently, and both must give the same version."""
    [box] = boxes_of([[10, 1, 18, 5]], ["a"])
    assert json.dumps(box) == '[10.0, 1.0, 18.0, 5.0, "a"]'
