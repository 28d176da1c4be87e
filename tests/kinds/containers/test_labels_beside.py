"""Files beside the images of an archive: which of them are labels, and of which images."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import SourceError
from tests.conftest import jpeg
from tests.kinds.containers.examples import Found, drawn, write_tar, write_zip


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("copies"))


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)], ids=["up", "down"])
def test_a_sample_ends_at_the_first_point_after_the_last_slash(
    order: Callable[[list[str]], list[str]], tmp_path: Path, copies: str
):
    files = {}
    for number, label in enumerate(("cat", "dog")):
        stem = f"a.b/00012{number}"
        files |= {f"{stem}.jpg": jpeg(number), f"{stem}.seg.png": jpeg(9), f"{stem}.cls": label.encode()}
    # Between the image and its label, another image of the sample follows in both orders.
    files |= {"a.b/7.cls": b"eel", "a.b/7.depth.png": jpeg(8), "a.b/7.jpg": jpeg(7)}
    found = Found(write_tar(tmp_path / "a.tar", {name: files[name] for name in order(list(files))}), copies)
    assert found.labels == {"a.b/000120.jpg": ("cat",), "a.b/000121.jpg": ("dog",), "a.b/7.jpg": ("eel",)}
    other = "additional image of a sample, such as a mask"
    names = ["a.b/000120.seg.png", "a.b/000121.seg.png", "a.b/7.depth.png"]
    assert found.skipped == {f"a.tar/{name}": other for name in names}


def test_names_with_a_point_have_labels_of_their_own(tmp_path: Path, copies: str):
    files = {}
    for number in range(40):
        files |= {
            f"img.{number:04d}.jpg": jpeg(number),
            f"img.{number:04d}.txt": b"even" if number % 2 == 0 else b"odd",
        }
    found = Found(write_tar(tmp_path / "a.tar", files), copies)
    assert [found.labels[f"img.{number:04d}.jpg"][0] for number in range(4)] == ["even", "odd", "even", "odd"]
    assert len(found.labels) == 40


def test_the_views_of_a_sample_share_its_label(tmp_path: Path, copies: str):
    files = {"1.left.jpg": jpeg(1), "1.right.jpg": jpeg(2), "1.cls": b"cat", "2.left.jpg": jpeg(3), "2.cls": b"dog"}
    found = Found(write_tar(tmp_path / "a.tar", files), copies)
    assert found.labels == {"1.left.jpg": ("cat",), "1.right.jpg": ("cat",), "2.left.jpg": ("dog",)}


def test_images_of_one_name_without_labels_beside_them_keep_their_folder(tmp_path: Path, copies: str):
    files = {"cats/1.jpg": jpeg(1), "cats/1.small.jpg": jpeg(2), "dogs/1.jpg": jpeg(3)}
    found = Found(write_zip(tmp_path / "a.zip", files), copies)
    assert found.labels == {"cats/1.jpg": ("cats",), "cats/1.small.jpg": ("cats",), "dogs/1.jpg": ("dogs",)}


def texts(count: int, text: Callable[[int], str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for number in range(count):
        files |= {f"{number:04d}.jpg": jpeg(number % 9), f"{number:04d}.txt": text(number).encode()}
    return files


CAPTIONS: dict[str, tuple[dict[str, bytes], str]] = {
    "a few captions": (
        texts(3, lambda number: f"a photo of cat number {number} on a mat"),
        r"a\.tar .*: 3 of 3 \.txt files beside its images differ: they look like captions, not labels\. If",
    ),
    "many texts of three words": (
        texts(40, lambda number: f"cat on mat{number}"),
        r"40 of 40 \.txt files .* set label_column to txt\. Otherwise, set label_column to the field",
    ),
    "a long text": (texts(1, lambda number: "a cat " * 50), r"0000\.txt has 300 characters: they look like captions"),
    "boxes": (
        texts(2, lambda number: f"{number} 0.5 0.5 0.25 0.125\n17 0.1 0.2 1e-3 0.1\n"),
        r"0000\.txt holds boxes in YOLO format, not a label: write a list .* path, label, xmin, ymin, xmax and ymax in",
    ),
    "boxes with tabs": (texts(2, lambda number: f"{number}\t0.5\t0.5\t0.25\t0.125\n"), "holds boxes in YOLO format"),
    "outlines": (texts(2, lambda number: f"{number} 0.5 0.5 0.25 0.125 0.3 0.9"), "holds boxes in YOLO format"),
    # Its form must be found out in a time that does not double with each number.
    "many numbers and a word": (texts(30, lambda number: f"{number} " + "1 " * 60 + "nan"), "look like captions"),
    "0 or 1 for each class": (
        {"1.jpg": jpeg(1), "1.json": b'{"label": [0, 1, 0]}'},
        r"1\.json, .* the label \[0, 1, 0\] looks like a vector with 0 or 1 for each class",
    ),
    "an object": (
        {"1.jpg": jpeg(1), "1.json": b'{"label": {"id": 3, "name": "cat"}}'},
        r"1\.json, .* holds no label: its label is an object \(id, name\): write the label itself",
    ),
}


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_text_that_is_no_label_is_refused(name: str, tmp_path: Path, copies: str):
    files, message = CAPTIONS[name]
    with pytest.raises(SourceError, match=message):
        Found(write_tar(tmp_path / "a.tar", files), copies)


@pytest.mark.parametrize(
    "files",
    [
        texts(40, lambda number: f"great white shark, Carcharodon carcharias {number % 4}"),
        texts(6, lambda number: f"class {number}"),
        texts(30, lambda number: str(number % 10)),
        texts(30, lambda number: f"tree{number} frog"),
    ],
    ids=["long names", "few images", "numbers", "more classes than images"],
)
def test_the_names_of_classes_are_labels(files: dict[str, bytes], tmp_path: Path, copies: str):
    found = Found(write_tar(tmp_path / "a.tar", files), copies)
    assert {key: label for key, [label] in found.labels.items()} == {
        name: files[name.replace(".jpg", ".txt")].decode() for name in files if name.endswith(".jpg")
    }


def test_suffixes_in_capitals_are_found(tmp_path: Path, copies: str):
    files = {"1.JPG": jpeg(1), "1.TXT": b"cat", "2.JPG": jpeg(2), "2.Cls": b"dog"}
    found = Found(write_tar(tmp_path / "a.tar", files), copies)
    assert found.labels == {"1.JPG": ("cat",), "2.JPG": ("dog",)}


@pytest.mark.parametrize("suffix", ["cls", "txt", "json"])
def test_a_mark_before_a_text_is_no_part_of_a_label(suffix: str, tmp_path: Path, copies: str):
    """Programs of Windows write it."""
    text = {"json": '{"label": "cat"}'}.get(suffix, "cat")
    files = {"1.jpg": jpeg(1), f"1.{suffix}": text.encode("utf-8-sig"), "2.jpg": jpeg(2), f"2.{suffix}": text.encode()}
    assert set(Found(write_tar(tmp_path / "a.tar", files), copies).labels.values()) == {("cat",)}


def test_captions_are_labels_if_a_setting_says_so(tmp_path: Path, copies: str):
    files = texts(3, lambda number: f"a photo of cat number {number} on a mat")
    found = Found(write_tar(tmp_path / "a.tar", files), copies, label_column="txt")
    assert found.labels["0001.jpg"] == ("a photo of cat number 1 on a mat",)


def test_a_field_of_json_comes_before_captions_and_classes(tmp_path: Path, copies: str):
    files = texts(3, lambda number: f"a photo of cat number {number} on a mat")
    files = dict(
        sorted((files | {f"{number:04d}.json": b'{"kind": "cat", "label": 7}' for number in range(3)}).items())
    )
    found = Found(write_tar(tmp_path / "a.tar", files), copies, label_column="kind")
    assert set(found.labels.values()) == {("cat",)}


def write_zst(path: Path, files: dict[str, bytes]) -> Path:
    content = write_tar(path.with_suffix(""), files).read_bytes()
    path.with_suffix("").unlink()
    path.write_bytes(pa.compress(content, "zstd", asbytes=True))
    return path


def test_a_tar_file_compressed_by_zstd_is_read(tmp_path: Path, copies: str):
    found = Found(write_zst(tmp_path / "a.tar.zst", drawn()), copies)
    assert found.labels == {key: (key.split("/")[0],) for key in drawn()}


@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda content: content[: len(content) // 2]])
def test_a_tar_file_compressed_by_zstd_that_is_cut_off_is_refused(
    damage: Callable[[bytes], bytes], tmp_path: Path, copies: str
):
    path = write_zst(tmp_path / "a.tar.zst", drawn())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match=r"a\.tar\.zst cannot be read as a tar file of images: ."):
        Found(path, copies)


def samples_with(fields: str, count: int = 4, image: bytes = b"") -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for number in range(count):
        content = fields.replace("NAME", ("cat", "dog")[number % 2]).replace("SPLIT", ("train", "val")[number % 2])
        files |= {f"pets/{number}.jpg": jpeg(number) + image, f"pets/{number}.json": content.encode()}
    return files


WRITERS = {"tar": write_tar, "zip": write_zip}


@pytest.mark.parametrize("suffix", WRITERS)
def test_fields_beside_an_image_can_be_its_split_and_group(suffix: str, tmp_path: Path, copies: str):
    files = samples_with('{"label": "NAME", "part": "SPLIT", "person": 7}')
    place = WRITERS[suffix](tmp_path / f"a.{suffix}", files)
    found = Found(place, copies, split_column="part", group_column="person")
    assert found.labels == {f"pets/{number}.jpg": (("cat", "dog")[number % 2],) for number in range(4)}
    assert found.splits == {f"pets/{number}.jpg": ("train", "validation")[number % 2] for number in range(4)}
    assert {item.group for item in found.images.values()} == {"7"}


@pytest.mark.parametrize("suffix", WRITERS)
def test_fields_named_split_and_group_need_no_setting(suffix: str, tmp_path: Path, copies: str):
    files = samples_with('{"label": "NAME", "split": "SPLIT", "group": "p1"}')
    found = Found(WRITERS[suffix](tmp_path / f"a.{suffix}", files), copies)
    assert found.splits == {f"pets/{number}.jpg": ("train", "validation")[number % 2] for number in range(4)}
    assert {item.group for item in found.images.values()} == {"p1"}


def test_a_field_split_without_a_split_is_not_used(tmp_path: Path, copies: str, caplog: pytest.LogCaptureFixture):
    found = Found(write_tar(tmp_path / "a.tar", samples_with('{"label": "NAME", "split": "fold1"}')), copies)
    assert set(found.splits.values()) == {""}
    assert "a.tar has the split 'fold1', which is none of train, validation and test: the splits" in caplog.text


def test_a_file_beside_a_label_need_not_be_json(tmp_path: Path, copies: str):
    files = {"1.jpg": jpeg(1), "1.cls": b"cat", "1.json": b"{bad"}
    assert Found(write_tar(tmp_path / "a.tar", files), copies).labels == {"1.jpg": ("cat",)}


ABSENT: dict[str, tuple[dict[str, bytes], dict[str, str], str]] = {
    "label": (
        samples_with('{"kind": "NAME", "label": "NAME"}'),
        {"label_column": "kidn"},
        r"label_column is 'kidn', but no file beside an image in .*a\.(zip|tar) has it: name one of the fields "
        r"\(kind, label\), or none",
    ),
    "empty label": (
        samples_with('{"kind": null}'),
        {"label_column": "kind"},
        "label_column is 'kind', but no file beside",
    ),
    "split": (
        samples_with('{"label": "NAME", "part": "SPLIT"}'),
        {"split_column": "prat"},
        "split_column is 'prat', but no file beside",
    ),
    "group": (
        samples_with('{"label": "NAME"}'),
        {"label_column": "label", "group_column": "person"},
        "group_column is 'person', but no file beside",
    ),
    "no fields": (drawn(), {"split_column": "part"}, r"split_column is 'part', but no .* has it: leave it empty"),
    "no files of a suffix": (drawn(), {"label_column": "cls"}, "label_column is 'cls', but no .* leave it empty"),
    "no split": (
        samples_with('{"label": "NAME", "part": "unseen"}'),
        {"split_column": "part"},
        r"pets/0\.jpg has the split 'unseen': it must be train, validation or test",
    ),
    "no json": (
        samples_with("{bad") | {f"pets/{number}.cls": b"cat" for number in range(4)},
        {"split_column": "part"},
        r"pets/0\.json, which is beside an image, cannot be read: .",
    ),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", ABSENT)
def test_a_setting_that_names_no_field_beside_an_image_is_refused(name: str, suffix: str, tmp_path: Path, copies: str):
    files, options, message = ABSENT[name]
    place = WRITERS[suffix](tmp_path / f"a.{suffix}", dict(sorted(files.items())))
    with pytest.raises(SourceError, match=message):
        Found(place, copies, **options)


def test_all_pieces_of_an_archive_decide_whether_it_has_a_field(
    tmp_path: Path, copies: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    # Only the first image has the field.
    files = samples_with('{"label": "NAME"}', 50, bytes(60_000)) | {"pets/0.json": b'{"label": "cat", "part": "val"}'}
    place = write_tar(tmp_path / "a.tar", files)
    found = Found(place, copies, split_column="part")
    assert len(list(Path(copies).glob("*.arrow"))) > 3
    assert [key for key, split in found.splits.items() if split] == ["pets/0.jpg"]
    with pytest.raises(SourceError, match=r"has it: name one of the fields \(label, part\), or none"):
        Found(place, copies, split_column="prat")


def test_a_container_without_images_needs_no_fields(tmp_path: Path, copies: str):
    write_tar(tmp_path / "0.tar", samples_with('{"label": "NAME", "part": "SPLIT"}'))
    write_tar(tmp_path / "1.tar", {"notes.md": b"no image"})
    assert len(Found(tmp_path, copies, split_column="part").images) == 4
