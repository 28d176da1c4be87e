"""The lists of all ranges of a source, one after another, equal the list of the whole source."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import SourceError
from pipeline.sources import Classes, Found, Listed, Skipped, SourceOptions, folder
from pipeline.sources.detection import images_of, key_ranges, layout_of
from pipeline.sources.key_range import (
    EVERYTHING,
    MIN_IMAGES,
    KeyRange,
    OrderedSample,
    bytes_of,
    in_order,
    ranges_between,
)
from pipeline.storage import Place, place_of
from standins.fake_gcs import FakeGcs
from tests.sources.examples import EXAMPLES, containers, imagenet, listing, options_of, write_images
from tests.sources.examples import folder as folder_with_splits
from tests.sources.test_contract import own_kind  # noqa: F401 - a fixture

RAW = os.fsdecode(b"\xff\x80.jpg")
"""The name of a file that is not UTF-8."""
NAMES = (
    "cats/b.jpg",
    "cats/notes.txt",
    "cats-2/a.jpg",
    "cats.jpg",
    "cats/deep/er/a.jpg",
    "cats/deep/z.jpg",
    "cats/deep0/a.jpg",
    "cats0/a.jpg",
    "cats/0.jpg",
    f"cats/{RAW}",
    "dogs/ä.jpg",
    "dogs/花.jpg",
    "dogs/\ue000.jpg",
    ".git/objects/a.jpg",
)


def folder_without_splits(root: Path) -> Path:
    write_images(root, *NAMES)
    (root / "cats" / "loop").symlink_to(root)
    (root / "cats" / "loop-1.jpg").symlink_to(root / "cats.jpg")
    (root / "cats" / "gone.jpg").symlink_to(root / "nowhere")
    (root / "linked").symlink_to(root / "dogs")
    (root / "outside").symlink_to("/usr")
    os.mkfifo(root / "dogs" / "pipe.jpg")
    return root


def kaggle(root: Path) -> Path:
    imagenet(root / "ILSVRC/Data/CLS-LOC")
    (root / "outside").symlink_to("/usr")
    (root / "ILSVRC/Data/CLS-LOC/validation").symlink_to("/usr")
    return root


ROWS = [
    {"path": path, "label": label, "group": group}
    for path, label, group in [
        ("cats/b.jpg", "cat", "g1"),
        ("", "cat", "g1"),
        ("cats/a.jpg", "dog", ""),
        ("cats0/a.jpg", "dog", "g2"),
        ("cats-2/ä.jpg", "", "g1"),
        ("cats/b.jpg", "cat", "g1"),
        ("./cats/c.jpg", "bird", "g3"),
        ("", "", ""),
    ]
]


def csv_list(root: Path) -> Path:
    lines = [",".join(row.values()) for row in ROWS]
    text = "\n".join(["path,label,group", *lines, f"cats/{RAW},cat,g4", ""])
    (root / "list.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    return root / "list.csv"


def json_list(root: Path) -> Path:
    (root / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return root / "list.jsonl"


def parquet_list(root: Path) -> Path:
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    parquet.write_table(pa.table(columns), root / "list.parquet", row_group_size=3)
    return root / "list.parquet"


SOURCES: dict[str, Callable[[Path], Path]] = {
    "folder with splits": folder_with_splits,
    "folder without splits": folder_without_splits,
    "imagenet": imagenet,
    "imagenet of kaggle": kaggle,
    "example list": listing,
    "csv list": csv_list,
    "json list": json_list,
    "parquet list": parquet_list,
    "containers": containers,
}


@pytest.fixture
def only_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow only the source of the test, so that a link to another folder is skipped."""
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", str(tmp_path))


def source_at(place: object, kind: str = "auto") -> tuple[Place, SourceOptions]:
    return place_of(str(place)), options_of(kind)


def without_classes(items: Sequence[Found]) -> list[Found]:
    return [item for item in items if not isinstance(item, Classes)]


def cuts_of(items: Sequence[Found]) -> list[str]:
    """Return keys at which mistakes are likely: each key, its folders with and without a slash, and beginnings."""
    keys = [item.key for item in items if not isinstance(item, Classes)]
    folders = [key[:end] for key in keys for end in range(len(key)) if key[end] == "/"]
    cuts = {*keys, *folders, *(folder + "/" for folder in folders), *(folder + "0" for folder in folders)}
    cuts |= (
        {key[: len(key) // 2] for key in keys}
        | {key + end for key in keys for end in ("\0", "/", "/x")}
        | {folder + "/0" for folder in folders}
    )
    return sorted(cuts - {""}, key=bytes_of)


def assert_ranges_equal_everything(at: tuple[Place, SourceOptions], boundaries: Sequence[str]) -> None:
    whole = list(images_of(*at))
    parts = [list(images_of(*at, keys)) for keys in ranges_between(boundaries)]
    assert [item for part in parts for item in without_classes(part)] == without_classes(whole), boundaries
    for part in parts:
        assert part[:1] == whole[:1] or not isinstance(whole[0], Classes)


@pytest.mark.usefixtures("only_inside")
@pytest.mark.parametrize("source", SOURCES)
class TestRanges:
    @pytest.mark.long
    def test_each_cut_divides_a_source(self, source: str, tmp_path: Path):
        at = source_at(SOURCES[source](tmp_path))
        cuts = cuts_of(list(images_of(*at)))
        assert len(cuts) > 10
        for cut in cuts:
            assert_ranges_equal_everything(at, [cut])

    @pytest.mark.parametrize(
        "step", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 9]
    )
    def test_many_cuts_divide_a_source(self, source: str, step: int, tmp_path: Path):
        at = source_at(SOURCES[source](tmp_path))
        cuts = cuts_of(list(images_of(*at)))
        assert_ranges_equal_everything(at, cuts[::step])

    @pytest.mark.parametrize("most", [1, 2, 3, 100])
    def test_key_ranges_divide_a_source(self, source: str, most: int, tmp_path: Path):
        at = source_at(SOURCES[source](tmp_path))
        ranges = key_ranges(*at, most, min_images=1)
        assert min(most, 3) <= len(ranges) <= most
        assert ranges == ranges_between([keys.first for keys in ranges[1:]])
        assert_ranges_equal_everything(at, [keys.first for keys in ranges[1:]])

    def test_a_small_source_is_one_range(self, source: str, tmp_path: Path):
        assert key_ranges(*source_at(SOURCES[source](tmp_path)), 10, MIN_IMAGES) == [EVERYTHING]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["folder", "imagenet", "listing"])
@pytest.mark.parametrize("prefix", ["", "raw/photos/"])
def test_the_ranges_of_a_bucket(kind: str, prefix: str, tmp_path: Path, gcs: FakeGcs):
    gcs.create_bucket("photos")
    place = EXAMPLES[kind](tmp_path)
    gcs.put_folder("photos", prefix, tmp_path)
    for name in ("zz/a.jpg", "zz//b.jpg", "photos0/a.jpg", "raw/photos0/a.jpg"):
        gcs.put("photos", name, b"x")
    at = source_at(f"gs://photos/{prefix}{'' if place == tmp_path else place.name}".rstrip("/"))
    for cut in cuts_of(list(images_of(*at))):
        assert_ranges_equal_everything(at, [cut])
    ranges = key_ranges(*at, 3, min_images=1)
    assert len(ranges) > 1
    assert_ranges_equal_everything(at, [keys.first for keys in ranges[1:]])


def test_a_range_reads_only_its_folders(tmp_path: Path, scanned: list[str]):
    write_images(tmp_path, "a/1/x.jpg", "b/1/x.jpg", "b/2/x.jpg", "b/3/x.jpg", "c/1/x.jpg")
    # To detect the kind, some names of other folders are looked at, too.
    found = list(images_of(*source_at(tmp_path, "folder"), KeyRange("b/2/", "b/3/")))
    assert [item.key for item in found if isinstance(item, Listed)] == ["b/2/x.jpg"]
    below = {str(Path(folder).relative_to(tmp_path)) for folder in scanned if Path(folder).is_relative_to(tmp_path)}
    assert below == {".", "b", "b/2"}


@pytest.fixture
def scanned() -> Iterator[list[str]]:
    """The folders that this process reads."""
    folders: list[str] = []
    is_on = [True]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.scandir" and is_on:
            folders.append(os.fspath(arguments[0]))  # type: ignore[call-overload]

    sys.addaudithook(hook)
    yield folders
    is_on.clear()  # A hook cannot be removed.


def test_a_range_examines_only_its_files(tmp_path: Path):
    write_images(tmp_path, *(f"cats/{number}.jpg" for number in range(4)))
    for name in ("cats/0.jpg", "cats/3.jpg"):
        (tmp_path / name).unlink()
        # A loop of links is an error when it is examined.
        (tmp_path / name).symlink_to(Path(name).name)
    keys = [item.key for item in images_of(*source_at(tmp_path), KeyRange("cats/1", "cats/3"))]
    assert keys == ["cats/1.jpg", "cats/2.jpg"]


def test_errors_while_counting_are_left_to_the_listing(tmp_path: Path):
    write_images(tmp_path, *(f"cats/{number}.jpg" for number in range(10)))
    (tmp_path / "cats" / "a").symlink_to("a")
    (tmp_path / "dogs").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    # If the loop did not end, there would be more than twelve names.
    assert len(key_ranges(*source_at(tmp_path), 10, min_images=5)) == 2


def sizes_of(keys: Sequence[str], ranges: Sequence[KeyRange]) -> list[int]:
    return [sum(keys_of_range.contains(key) for key in keys) for keys_of_range in ranges]


def balance(keys: Sequence[str], ranges: Sequence[KeyRange]) -> float:
    """Return the size of the largest range, divided by the average."""
    sizes = sizes_of(keys, ranges)
    assert sum(sizes) == len(keys)
    return max(sizes) * len(sizes) / len(keys)


SKEWED = {
    "one flat folder": [f"cats/{number}.jpg" for number in range(3000)],
    "padded numbers": [f"cats/{number:09d}.jpg" for number in range(3000)],
    "most in one folder": [f"cats/{n % 7}/{n}.jpg" for n in range(2970)] + [f"{n:02d}/a.jpg" for n in range(30)],
    "hexadecimal": [f"{number * 2654435761 % 2**32:08x}/a.jpg" for number in range(500)],
}


@pytest.mark.parametrize("names", SKEWED.values(), ids=SKEWED)
def test_the_ranges_of_a_folder_are_about_equal(names: list[str], tmp_path: Path):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    ranges = key_ranges(*source_at(tmp_path), 10, min_images=10)
    assert len(ranges) == 10
    assert balance(names, ranges) < 1.2


@pytest.mark.parametrize("names", SKEWED.values(), ids=SKEWED)
def test_the_ranges_of_a_list_are_about_equal(names: list[str], tmp_path: Path):
    place = tmp_path / "list.csv"
    place.write_text("path,label\n" + "".join(f"{name},cat\n" for name in names))
    ranges = key_ranges(*source_at(place), 10, min_images=10)
    assert len(ranges) == 10
    assert balance(names, ranges) < 1.3


def test_a_range_has_at_least_the_smallest_number_of_images(tmp_path: Path):
    place = tmp_path / "list.csv"
    place.write_text("path,label\n" + "".join(f"{number}.jpg,cat\n" for number in range(1000)))
    assert len(key_ranges(*source_at(place), 10, min_images=400)) == 2
    (tmp_path / "cats").mkdir()
    for number in range(1000):
        (tmp_path / "cats" / f"{number}.jpg").touch()
    assert len(key_ranges(*source_at(tmp_path), 10, min_images=400)) == 2


def test_the_layout_changes_with_the_source(tmp_path: Path):
    write_images(tmp_path, "folder/train/cats/a.jpg", "folder/val/cats/a.jpg")
    assert layout_of(*source_at(tmp_path / "folder")) == "folder with splits"
    write_images(tmp_path, "classes/cats/a.jpg")
    assert layout_of(*source_at(tmp_path / "classes")) == "folder without splits"
    place = imagenet(tmp_path / "imagenet")
    before = layout_of(*source_at(place))
    assert before.startswith("imagenet train/ and val/ with [(")
    labels = next(path for path in place.rglob("*.txt"))
    labels.write_text(labels.read_text() + "\n")
    assert layout_of(*source_at(place)) != before
    place = listing(tmp_path / "list")
    before = layout_of(*source_at(place))
    assert before == layout_of(*source_at(place))
    place.write_text(place.read_text() + "images/c.jpg,cat,,\n")
    assert layout_of(*source_at(place)).startswith("listing ")
    assert layout_of(*source_at(place)) != before


OWN = """'A folder of a test.'
from pipeline.sources import Listed
def recognizes(place): return True
def list_images(place, options): yield from (Listed(key, ('x',), '', 1, 1) for key in 'abcd')
"""


def test_a_kind_that_only_lists_everything_is_one_range(own_kind, tmp_path: Path):  # noqa: F811
    own_kind(OWN)
    at = source_at(tmp_path, "mine")
    assert key_ranges(*at, 10, min_images=1) == [EVERYTHING]
    assert layout_of(*at) == "mine"
    assert len(list(images_of(*at, EVERYTHING))) == 4
    with pytest.raises(SourceError, match="mine lacks `boundaries` or `list_range`"):
        list(images_of(*at, KeyRange("b")))


def test_a_kind_of_the_user_can_have_ranges(own_kind, tmp_path: Path):  # noqa: F811
    own_kind(
        OWN + "def boundaries(place, options, most, min_images): return ['b', 'd'][:most - 1]\n"
        "def list_range(place, options, keys):\n"
        "    return (item for item in list_images(place, options) if keys.contains(item.key))\n"
    )
    at = source_at(tmp_path, "mine")
    assert key_ranges(*at, 2, min_images=1) == [KeyRange("", "b"), KeyRange("b", "")]
    assert_ranges_equal_everything(at, ["b", "d"])


@pytest.mark.parametrize("name", ["boundaries", "list_range"])
def test_a_kind_with_one_of_the_functions_for_ranges_is_named(own_kind, name: str, tmp_path: Path):  # noqa: F811
    own_kind(f"def recognizes(place): return True\ndef {name}(*arguments): return []\n")
    at = source_at(tmp_path, "mine")
    assert key_ranges(*at, 10, min_images=1) == [EVERYTHING]
    with pytest.raises(SourceError, match="mine lacks a function: add `list_images`, or both `boundaries` and"):
        list(images_of(*at))


def test_a_kind_that_leaves_its_range_is_named(own_kind, tmp_path: Path):  # noqa: F811
    own_kind(
        OWN + "def boundaries(place, options, most, min_images): return ['b']\n"
        "def list_range(place, options, keys): return list_images(place, options)\n"
    )
    at = source_at(tmp_path, "mine")
    with pytest.raises(SourceError, match=r"mine\.py lists 'c', which is not in the range from '' to 'c'"):
        list(images_of(*at, KeyRange("", "c")))
    with pytest.raises(SourceError, match=r"mine\.py lists 'a', which is not in the range from 'b' to ''"):
        list(images_of(*at, KeyRange("b")))


@pytest.mark.parametrize(
    ("keys", "inside", "outside"),
    [
        (EVERYTHING, ["", "a", RAW], []),
        (KeyRange("b", "d"), ["b", "b/", "c", "czz"], ["", "a", "d", "d/", RAW]),
        (KeyRange("", "a/"), ["", "a", "a-1", "a."], ["a/", "a/b", "a0"]),
        (KeyRange("a/", "a0"), ["a/", "a/\U0010ffff", f"a/{RAW}"], ["a", "a0", "a."]),
        # As text, the name that is not UTF-8 comes before the other one. As bytes, it comes after it.
        (KeyRange("\ue000", ""), ["\ue000", "\U00010000", RAW], ["\ud7ff", "z"]),
    ],
)
def test_what_a_range_contains(keys: KeyRange, inside: list[str], outside: list[str]):
    assert [key for key in (*inside, *outside) if keys.contains(key)] == inside


@pytest.mark.parametrize(
    ("keys", "prefix", "below"),
    [
        (EVERYTHING, "a/", EVERYTHING),
        (KeyRange("a", "b"), "a/", EVERYTHING),
        (KeyRange("a/", "b"), "a/", EVERYTHING),
        (KeyRange("a/x", "b"), "a/", KeyRange("x", "")),
        (KeyRange("a/x", "a/z"), "a/", KeyRange("x", "z")),
        (KeyRange("a/x", "a/z"), "", KeyRange("a/x", "a/z")),
        (KeyRange("", "a/"), "a/", None),
        (KeyRange("", "a/\0"), "a/", KeyRange("", "\0")),
        (KeyRange("a0", ""), "a/", None),
        (KeyRange("a/b/c", "a/b/d"), "a/b/", KeyRange("c", "d")),
        (KeyRange("a/b/c", "a/b/d"), "a/c/", None),
        (KeyRange("a/b/c", "a/b/d"), "a/a/", None),
    ],
)
def test_the_range_below_a_folder(keys: KeyRange, prefix: str, below: KeyRange | None):
    assert keys.below(prefix) == below
    assert keys.intersects(prefix) == (below is not None)


@pytest.mark.parametrize("keys", [[], ["b", "B/", "a"], ["é", "z", "\U0001f300", "\uffff", "\udcff", "\udc80a"]])
def test_keys_are_in_the_order_of_their_bytes(keys: list[str]):
    assert in_order(keys) == sorted(keys, key=os.fsencode)


def test_the_keys_of_a_large_folder_are_counted_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_images(tmp_path, *(f"cats/{number}.jpg" for number in range(7)), "dogs/0.jpg")
    expected = folder.boundaries_below(tmp_path, ("",), 4, 1)
    assert expected == ["cats/2.jpg", "cats/4.jpg", "cats/6.jpg"]
    add, sizes = OrderedSample.add, []

    def add_noted(sample: OrderedSample, keys: Sequence[str], prefix: str = "") -> None:
        sizes.append(len(keys))
        add(sample, keys, prefix)

    monkeypatch.setattr(OrderedSample, "add", add_noted)
    monkeypatch.setattr(folder, "_KEYS_AT_ONCE", 3)
    assert folder.boundaries_below(tmp_path, ("",), 4, 1) == expected
    assert sizes == [3, 3, 1, 1]


@pytest.mark.parametrize("at_once", [1, 7, 20_000])
@pytest.mark.parametrize("count", [0, 1, 9, 100, 12_345])
def test_the_sample_has_bounded_memory_and_equal_distances(count: int, at_once: int):
    keys = [f"{number:06d}" for number in range(count)]
    sample = OrderedSample(4)
    for start in range(0, count, at_once):
        sample.add(keys[start : start + at_once])
    step = sample._step
    assert sample._keys == keys[::step]
    assert step == 1 or len(keys[:: step // 2]) > 128
    assert len(sample._keys) <= 128
    assert sample.count == count
    boundaries = sample.boundaries(4, 2)
    assert len(boundaries) == (3 if count > 8 else 0)
    assert all(first < end for first, end in pairwise(boundaries))
    if count > 100:
        assert balance(keys, ranges_between(boundaries)) < 1.1


@pytest.mark.usefixtures("only_inside")
def test_skipped_files_are_counted_once(tmp_path: Path):
    at = source_at(folder_without_splits(tmp_path))
    reasons = [item for item in images_of(*at) if isinstance(item, Skipped)]
    assert len({item.key for item in reasons}) == len(reasons) > 5
