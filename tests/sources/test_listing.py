import gzip
import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.errors import SourceError
from pipeline.sources import MISSING, Box, Found, Listed, Skipped, SourceOptions, list_rows, listing
from pipeline.sources.key_range import EVERYTHING, KeyRange
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from tests.damage import DAMAGES


def entries_of(place: Path, **options: Any) -> list[Found]:
    return list(listing.list_range(place, SourceOptions(copies=str(place.parent / "copies"), **options), EVERYTHING))


def csv(folder: Path, text: str | bytes, name: str = "list.csv") -> Path:
    place = folder / name
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def json_lines(folder: Path, *rows: dict[str, Any]) -> Path:
    return csv(folder, "".join(json.dumps(row) + "\n" for row in rows), "list.jsonl")


def parquet_file(folder: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), folder / "list.parquet")
    return folder / "list.parquet"


def listed(place: Path, **options: Any) -> list[tuple[str, tuple[str, ...], str, str]]:
    images = [item for item in entries_of(place, **options) if isinstance(item, Listed)]
    return [(item.key, item.labels, item.split, item.group) for item in images]


def test_a_list_states_splits_by_their_usual_words(tmp_path: Path):
    words = ["train", "dev", "Eval", " valid ", "testing", "Split-test"]
    rows = "".join(f"{number}.jpg,cat,{word}\n" for number, word in enumerate(words))
    splits = [split for _, _, split, _ in listed(csv(tmp_path, f"path,label,split\n{rows}"))]
    assert splits == ["train", "validation", "validation", "validation", "test", "test"]


def test_each_format_gives_the_same_images(tmp_path: Path):
    rows = [("b.jpg", "dog", "val", "g 2"), ("a.jpg", "cat", "Train", ""), ("ä.jpg", "cat", "", "7")]
    table = [dict(zip(("path", "label", "split", "group"), row, strict=True)) for row in rows]
    expected = [
        ("a.jpg", ("cat",), "train", ""),
        ("b.jpg", ("dog",), "validation", "g 2"),
        ("ä.jpg", ("cat",), "", "7"),
    ]
    head, lines = "path,label,split,group\n", "".join(",".join(row) + "\n" for row in rows)
    assert listed(csv(tmp_path, head + lines)) == expected
    assert listed(csv(tmp_path, (head + lines).replace(",", "\t"), "list.TSV")) == expected
    assert listed(json_lines(tmp_path, *table)) == expected
    assert listed(parquet_file(tmp_path, **{name: [row[name] for row in table] for name in table[0]})) == expected


@pytest.mark.parametrize(
    ("text", "key", "label"),
    [
        (b"\xef\xbb\xbfpath,label\r\na.jpg,cat\r\n", "a.jpg", "cat"),
        (b"path,label\na.jpg,cat", "a.jpg", "cat"),
        (b'path,label\n"a, b.jpg","cat, ""tom"""\n', "a, b.jpg", 'cat, "tom"'),
        (b'path,label\n"new\nline.jpg",cat\n', "new\nline.jpg", "cat"),
        (b"path,label\n\xff\xfe.jpg,cat\n", os.fsdecode(b"\xff\xfe.jpg"), "cat"),
        (b"path,label\n007.jpg,007\n", "007.jpg", "007"),
        (b"path,label\nNA,NA\n", "NA", "NA"),
        (b"path,label\n#?%.jpg, cat \n", "#?%.jpg", "cat"),
        (b"x,path,label\n1,a.jpg,2012-01-01\n", "a.jpg", "2012-01-01"),
    ],
)
def test_csv_files_of_common_programs(text: bytes, key: str, label: str, tmp_path: Path):
    assert [(item.key, item.labels) for item in entries_of(csv(tmp_path, text))] == [(key, (label,))]


def test_a_quoted_newline_can_be_at_the_border_of_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_rows, "_BLOCK", 100)  # With small blocks, a few rows reach every border.
    keys = [f"new\nline\n{number}\n.jpg" for number in range(100, 200)]
    place = csv(tmp_path, "path,label\n" + "".join(f'"{key}",cat\n' for key in keys))
    assert [image[0] for image in listed(place)] == keys


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("cat|dog", ("cat", "dog")),
        (" cat | |cat", ("cat",)),
        (["cat", "dog", "cat"], ("cat", "dog")),
        ([3, 1], ("3", "1")),
        (3, ("3",)),
        (0, ("0",)),
        (3.0, ("3",)),
        ("2012-01-01", ("2012-01-01",)),
        (["2012-01-01"], ("2012-01-01",)),
    ],
)
def test_labels_are_parsed_from_a_cell(cell: Any, labels: tuple[str, ...], tmp_path: Path):
    assert listed(json_lines(tmp_path, {"path": "a.jpg", "label": cell})) == [("a.jpg", labels, "", "")]


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([1.0, 20.0]), ["1", "20"]),
        (pa.array([date(2012, 1, 1), date(2013, 1, 1)]), ["2012-01-01", "2013-01-01"]),
        (pa.array([b"a", b"b"]), ["a", "b"]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (pa.array([["a"], ["b"]], pa.list_(pa.string_view())), ["a", "b"]),
    ],
)
def test_labels_are_parsed_from_parquet_columns(column: pa.Array, labels: list[str], tmp_path: Path):
    place = parquet_file(tmp_path, image=pa.array(["x", "y"]).dictionary_encode(), category=column)
    assert [item[1] for item in listed(place)] == [(label,) for label in labels]


@pytest.mark.parametrize("cell", ["", " ", "|", None, [], [""], float("nan")])
def test_an_image_without_a_label_is_skipped(cell: Any, tmp_path: Path):
    place = parquet_file(tmp_path, path=["a.jpg"], label=[cell])
    assert entries_of(place) == [Skipped("a.jpg", "no label")]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("a.jpg", "a.jpg"),
        ("./x//a.jpg", "x/a.jpg"),
        ("x/../a.jpg", "a.jpg"),
        ("{folder}/x/a.jpg", "x/a.jpg"),
        ("../{name}/a.jpg", "a.jpg"),
        ("../other/a.jpg", "../other/a.jpg"),
        ("/other/../a.jpg", "/a.jpg"),
        ("{folder}2/a.jpg", "{folder}2/a.jpg"),
        ("file://{folder}/a%20b%FF.jpg", "a b\udcff.jpg"),
        ("file://localhost/other/a.jpg", "/other/a.jpg"),
        ("C:\\a.jpg", "C:\\a.jpg"),
    ],
)
def test_the_key_of_a_path(path: str, key: str, tmp_path: Path):
    names = {"folder": str(tmp_path), "name": tmp_path.name}
    place = csv(tmp_path, f"path,label\n{path.format(**names)},cat\n")
    assert [item.key for item in entries_of(place)] == [key.format(**names)]


@pytest.mark.parametrize("uri", ["s3://bucket/a.jpg", "https://host/a.jpg", "file://host/a.jpg"])
def test_a_uri_of_another_machine_is_refused(uri: str, tmp_path: Path):
    with pytest.raises(SourceError, match=rf"list\.csv lists '{uri}', but images are read only from paths and gs://"):
        entries_of(csv(tmp_path, f"path,label\n{uri},cat\n"))


def test_normalized_keys_are_sorted_by_their_bytes(tmp_path: Path):
    paths = ["b.jpg", "./a.jpg", "a/x.jpg", "a.b/x.jpg", "x/../A.jpg", "ä.jpg", "z.jpg"]
    place = csv(tmp_path, "path,label\n" + "".join(f"{path},cat\n" for path in paths))
    expected = ["A.jpg", "a.b/x.jpg", "a.jpg", "a/x.jpg", "b.jpg", "z.jpg", "ä.jpg"]
    assert [item.key for item in entries_of(place)] == expected


def test_a_list_can_have_more_rows_than_a_batch(tmp_path: Path):
    place = csv(
        tmp_path, "path,label\n" + "".join(f"{number:06d},{number % 3}\n" for number in reversed(range(40_000)))
    )
    images = listed(place)
    assert [image[0] for image in images] == [f"{number:06d}" for number in range(40_000)]
    assert [image[1] for image in images] == [(str(number % 3),) for number in range(40_000)]


@pytest.mark.parametrize("path", ["gone.jpg", "folder", "pipe", "zero\0byte", "."])
def test_a_path_without_a_regular_file_is_listed_as_missing(path: str, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (image,) = entries_of(json_lines(tmp_path, {"path": path, "label": "cat"}))
    assert image == Listed(path, ("cat",), "", MISSING, 0)


def test_a_row_without_a_path_is_skipped(tmp_path: Path):
    assert entries_of(json_lines(tmp_path, {"path": None, "label": "cat"})) == [Skipped("", "no path")]


def test_a_repeated_row_counts_once(tmp_path: Path):
    place = csv(tmp_path, "path,label\na.jpg,cat\nb.jpg,dog\n./a.jpg,cat\na.jpg,\n")
    assert [(item.key, type(item)) for item in entries_of(place)] == [
        ("a.jpg", Listed),
        ("a.jpg", Skipped),
        ("a.jpg", Skipped),
        ("b.jpg", Listed),
    ]
    assert Skipped("a.jpg", "listed twice") in entries_of(place)


@pytest.mark.parametrize(
    ("columns", "one", "other", "advice"),
    [
        (
            "label",
            "cat",
            "dog",
            (
                r"labels \('cat',\) and again with \('dog',\): list each image once, with all its labels .* "
                r"separated by \|"
            ),
        ),
        ("label,split", "cat,train", "cat,test", "split 'train' and again with 'test': an image belongs to one split"),
        ("label,group", "cat,1", "cat,2", "group '1' and again with '2'"),
        (
            "label,xmin,ymin,xmax,ymax",
            "cat,0,0,1,1",
            "cat,,,,",
            r"boxes \[\[0\.0, 0\.0, 1\.0, 1\.0\]\] and again with \[\]",
        ),
        ("label,split,xmin,ymin,xmax,ymax", "cat,train,0,0,1,1", "cat,test,2,2,3,3", "'train' and again with 'test'"),
    ],
)
def test_rows_that_disagree_on_an_image_are_refused(columns: str, one: str, other: str, advice: str, tmp_path: Path):
    with pytest.raises(SourceError, match=rf"list\.csv lists 'a\.jpg' with .*{advice}"):
        entries_of(csv(tmp_path, f"path,{columns}\na.jpg,{one}\nb.jpg,{one}\na.jpg,{other}\n"))


def test_rows_that_are_boxes_of_one_image_are_joined(tmp_path: Path):
    head, rows = "path,label,group,xmin,ymin,xmax,ymax\n", ["a.jpg,cat,g,1,1,9,9", "b.jpg,cat,g,0,0,1,1"]
    rows += ["./a.jpg,cat,g,20,20,40,40", "a.jpg,cat,g,1,1,9,9"]
    place = csv(tmp_path, head + "\n".join(rows) + "\n")
    joined = Listed("a.jpg", ("cat",), "", MISSING, 0, group="g", boxes=(Box(1, 1, 9, 9), Box(20, 20, 40, 40)))
    assert entries_of(place)[:2] == [joined, Skipped("a.jpg", "listed twice")]
    options = SourceOptions(copies=str(tmp_path / "copies"))
    ranges = [list(listing.list_range(place, options, KeyRange(*keys))) for keys in (("", "b"), ("b", ""))]
    assert ranges[0] + ranges[1] == entries_of(place)


def test_boxes_of_one_image_can_have_different_labels(tmp_path: Path):
    rows = "a.jpg,cat,1,1,9,9\na.jpg,dog,2,2,8,8\na.jpg,cat,3,3,7,7\n"
    [image] = entries_of(csv(tmp_path, f"path,label,xmin,ymin,xmax,ymax\n{rows}"))
    assert isinstance(image, Listed)
    assert image.labels == ("cat", "dog")
    assert image.boxes == (Box(1, 1, 9, 9, "cat"), Box(2, 2, 8, 8, "dog"), Box(3, 3, 7, 7, "cat"))


def test_lists_of_boxes_that_differ_are_refused(tmp_path: Path):
    rows = [{"path": "a.jpg", "label": "cat", "boxes": [[0, 0, side, side]]} for side in (1, 2)]
    with pytest.raises(
        SourceError, match=r"boxes \[\[0\.0, 0\.0, 1\.0, 1\.0\]\] and again with .*one box into each row"
    ):
        entries_of(json_lines(tmp_path, *rows))


def test_settings_name_the_columns(tmp_path: Path):
    place = csv(tmp_path, "path,label,split,group,p,l,s,g\nx.jpg,x,train,x,a.jpg,cat,test,g\n")
    names = {"path_column": "p", "label_column": "l", "split_column": "s", "group_column": "g"}
    assert listed(place) == [("x.jpg", ("x",), "train", "x")]
    assert listed(place, **names) == [("a.jpg", ("cat",), "test", "g")]


@pytest.mark.parametrize(
    "header",
    ["filename,class", "file,category", "uri,labels", "image,label,labels,file", "file_name,label", "image_path,cls"],
)
def test_columns_are_recognized_by_their_usual_names(header: str, tmp_path: Path):
    place = csv(tmp_path, f"{header}\na.jpg,cat" + ",x" * (header.count(",") - 1) + "\n")
    assert listed(place) == [("a.jpg", ("cat",), "", "")]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (
            "p;label\n",
            {},
            "no column path or .* or uri. Its columns are 'p;label'.*not with ';'$",
        ),
        (
            "path,l\na,b\n",
            {},
            "no column label or .* or cls. Its columns are 'path', 'l'.*label in label_column",
        ),
        (
            "path,label\na,b\n",
            {"split_column": "fold"},
            "no column fold. Its columns are 'path', 'label'.*split in split_column",
        ),
        ("path,label,label\na,b,c\n", {}, "two columns 'label'"),
        ("path,label,split\na.jpg,b,holdout\n", {}, "'a.jpg' with split 'holdout': it must be train, validation"),
        ("", {}, "cannot be read as a .csv list of images: Empty CSV file$"),
        ("path,label\na,b,c\n", {}, "cannot be read as a .csv list of images: CSV parse error: Expected 2 columns"),
    ],
)
def test_an_incomplete_csv_file_is_refused(text: str, settings: dict[str, str], message: str, tmp_path: Path):
    with pytest.raises(SourceError, match=rf"list\.csv .*{message}"):
        entries_of(csv(tmp_path, text), **settings)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("path;label\na.jpg;cat\n", r"separate the columns with a comma \(\.csv\) or a tab \(\.tsv\), not with ';'"),
        ("path\tlabel\na.jpg\tcat\n", r"not with '\\t'"),
        ("a.jpg,cat\nb.jpg,dog\n", "the first line of the list names the columns"),
    ],
)
def test_the_error_for_missing_columns_gives_advice(text: str, advice: str, tmp_path: Path):
    with pytest.raises(SourceError, match=rf"list\.csv has no column path .*{advice}"):
        entries_of(csv(tmp_path, text))


@pytest.mark.parametrize("name", ["list.jsonl", "list.ndjson", "list.parquet", "list.csv"])
@pytest.mark.parametrize("content", [b"", b'{"path": "a"', b"junk\n\xff", b"PAR1" * 9, bytes(range(256)) * 50])
def test_broken_files_are_refused_with_a_one_line_error(name: str, content: bytes, tmp_path: Path):
    with pytest.raises(SourceError, match=rf"{name} (cannot be read as a|has no column)") as refused:
        entries_of(csv(tmp_path, content, name))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl", "list.parquet"])
def test_a_compressed_list_is_called_compressed(name: str, tmp_path: Path):
    with pytest.raises(SourceError, match=rf"{name} cannot be read .*: the file is compressed by gzip: decompress it"):
        entries_of(csv(tmp_path, gzip.compress(b"path,label\na.jpg,cat\n"), name))


def test_the_checksums_of_parquet_pages_are_verified(tmp_path: Path):
    path = tmp_path / "list.parquet"
    table = pa.table({"path": [f"{number:04}.jpg" for number in range(4000)], "label": ["cat", "dog"] * 2000})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[9000] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"list.parquet cannot be read as a .parquet list of images: .*CRC"):
        entries_of(path)


def test_json_lines_that_are_not_utf_8_are_refused(tmp_path: Path):
    line = '{"path": "a.jpg", "label": "café"}\n'.encode("latin-1")
    with pytest.raises(SourceError, match=r"list\.jsonl holds b'caf\\xe9', which is not UTF-8"):
        entries_of(csv(tmp_path, line, "list.jsonl"))


def test_a_huge_cell_gives_a_short_error(tmp_path: Path):
    with pytest.raises(SourceError, match="separated by") as refused:
        entries_of(csv(tmp_path, f"path,label\na.jpg,{'x' * 100_000}\na.jpg,cat\n"))
    assert len(str(refused.value)) < 1000


def test_a_path_column_without_text_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match=r"holds struct<bytes: int64> in the column of paths, but paths must be text"):
        entries_of(parquet_file(tmp_path, image=[{"bytes": 1}], label=["cat"]))


@pytest.mark.parametrize(
    ("row", "boxes"),
    [
        ({"boxes": [[1, 2, 3, 4.5]]}, (Box(1, 2, 3, 4.5),)),
        (
            {"boxes": [[1, 2, 3, 4], [0, 0, 9, 9]], "box_labels": ["cat", "dog"]},
            (Box(1, 2, 3, 4, "cat"), Box(0, 0, 9, 9, "dog")),
        ),
        ({"boxes": [{"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4, "label": "cat"}]}, (Box(1, 2, 3, 4, "cat"),)),
        ({"boxes": [{"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}]}, (Box(1, 2, 3, 4),)),
        ({"boxes": []}, ()),
        ({"boxes": None}, ()),
        ({"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}, (Box(1, 2, 3, 4),)),
        ({"xmin": 1, "ymin": 2, "xmax": 3}, ()),
    ],
)
def test_boxes_are_parsed(row: dict[str, Any], boxes: tuple[Box, ...], tmp_path: Path):
    (image,) = entries_of(json_lines(tmp_path, {"path": "a.jpg", "label": "cat", **row}))
    assert isinstance(image, Listed)
    assert image.boxes == boxes


def test_a_box_in_a_csv_file_is_optional(tmp_path: Path):
    place = csv(tmp_path, "path,label,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,3,4.5\nb.jpg,cat,,,,\n")
    assert [item.boxes for item in entries_of(place) if isinstance(item, Listed)] == [(Box(1, 2, 3, 4.5),), ()]


@pytest.mark.parametrize(
    "row",
    [
        {"boxes": [[1, 2, 3]]},
        {"boxes": [[10, 0, 5, 9]]},
        {"boxes": [[0, 10, 9, 5]]},
        {"boxes": [["-inf", "0", "5", "9"]]},
        {"boxes": [[1, 2, 3, None]]},
        {"boxes": [["a", "b", "c", "d"]]},
        {"boxes": [{"xmin": 1}]},
        {"boxes": ["1 2 3 4"]},
        {"boxes": "[[1, 2, 3, 4]]"},
        {"boxes": [1, 2, 3, 4]},
        {"boxes": [[1, 2, 3, 4]], "box_labels": ["cat", "dog"]},
        {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": None},
        {"xmin": 0, "ymin": 0, "xmax": 0, "ymax": 0},
    ],
)
def test_invalid_boxes_are_refused(row: dict[str, Any], tmp_path: Path):
    with pytest.raises(SourceError, match=r"list\.jsonl lists 'a\.jpg' with boxes that cannot be read"):
        entries_of(json_lines(tmp_path, {"path": "a.jpg", "label": "cat", **row}))


def test_boxes_that_are_fractions_are_refused(tmp_path: Path):
    boxes = [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]]
    rows = [{"path": f"{number}.jpg", "label": "cat", "boxes": [box]} for number, box in enumerate(boxes)]
    with pytest.raises(SourceError, match=r"list\.jsonl has boxes that are fractions of the image size: multiply them"):
        entries_of(json_lines(tmp_path, *rows))
    # In pixels, boxes may be small, and have fractions.
    for more in ([[0, 0, 1, 1]], [[0.1, 0.2, 0.5, 0.6], [1, 2, 3, 4.5]]):
        rows = [{"path": f"{number}.jpg", "label": "cat", "boxes": [box]} for number, box in enumerate(more)]
        assert len(entries_of(json_lines(tmp_path, *rows))) == len(more)


@pytest.mark.parametrize("name", ["list.jsonl", "list.parquet"])
def test_a_vector_is_no_label(name: str, tmp_path: Path):
    vectors = [[0, 0, 1], [0, 1, 0]]
    if name == "list.parquet":
        place = parquet_file(tmp_path, path=["a.jpg", "b.jpg"], label=vectors)
    else:
        rows = [{"path": path, "label": vector} for path, vector in zip(("a.jpg", "b.jpg"), vectors, strict=True)]
        place = json_lines(tmp_path, *rows)
    with pytest.raises(SourceError, match=r"cannot be read as a list of images: the label \[0, 0, 1\] looks like"):
        entries_of(place)


@pytest.mark.parametrize("column", ["label", "box_labels"])
def test_a_cell_of_texts_that_are_not_utf_8_is_refused(tmp_path: Path, column: str):
    texts = {"label": [["cat"]], "box_labels": [["cat"]]} | {column: [[b"L\xf6we"]]}
    columns = {name: pa.array(cells, pa.list_(pa.binary())) for name, cells in texts.items()}
    place = parquet_file(tmp_path, path=["a.jpg"], boxes=[[[1.0, 2.0, 3.0, 4.0]]], **columns)
    with pytest.raises(SourceError, match=rf"a\.jpg' with {column} b'L\\xf6we', which is not UTF-8"):
        entries_of(place)


def test_a_list_is_read_once_for_all_ranges(tmp_path: Path):
    place = csv(tmp_path, "path,label\n" + "".join(f"{number:03}.jpg,cat\n" for number in range(100)))
    options = SourceOptions(copies=str(tmp_path / "copies"))
    first, *_ = listing.boundaries(place, options, 2, 1)
    [kept] = (tmp_path / "copies").glob("*.arrow")
    before = kept.stat()
    ranges = [list(listing.list_range(place, options, KeyRange(*keys))) for keys in (("", first), (first, ""))]
    assert [item.key for items in ranges for item in items] == [f"{number:03}.jpg" for number in range(100)]
    assert kept.stat() == before
    # A change gives other rows.
    place.write_text("path,label\nother.jpg,cat\n")
    assert [item.key for item in listing.list_range(place, options, EVERYTHING)] == ["other.jpg"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".arrow", ".json"])
def test_a_list_whose_rows_are_damaged_is_read_again(
    suffix: str, damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    place = csv(tmp_path, "path,label\n" + "".join(f"{number:03}.jpg,cat\n" for number in range(100)))
    expected = entries_of(place)
    [damaged] = (tmp_path / "copies").glob(f"*{suffix}")
    content = damaged.read_bytes()
    damaged.write_bytes(damage(content))
    assert entries_of(place) == expected
    assert caplog.text.count(f"{damaged} is damaged: it is made again") == 1
    assert damaged.read_bytes() == content


def test_a_list_without_a_folder_for_its_rows_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = csv(tmp_path, "path,label\na.jpg,cat\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="copies is empty: give a folder"):
        list(listing.list_range(place, SourceOptions(), EVERYTHING))
    assert list(tmp_path.iterdir()) == [place]


def test_a_list_in_a_bucket_is_fetched_once_for_all_ranges(tmp_path: Path, gcs: FakeGcs):
    gcs.put("bucket", "list.csv", b"path,label\n" + b"".join(b"%03d.jpg,cat\n" % number for number in range(100)))
    options = SourceOptions(copies=str(tmp_path / "copies"))
    place = place_of("gs://bucket/list.csv")
    first, *_ = listing.boundaries(place, options, 2, 1)
    ranges = [list(listing.list_range(place, options, KeyRange(*keys))) for keys in (("", first), (first, ""))]
    assert sum(map(len, ranges)) == 100
    assert gcs.requests["download"] == 1


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])
def test_a_row_that_cannot_be_read_is_named_by_its_number(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_rows, "_BLOCK", 200)
    rows = {"list.csv": (b"path,label\n", b"a.jpg,cat\n"), "list.jsonl": (b"", b'{"path": "a.jpg", "label": "cat"}\n')}
    head, row = rows[name]
    bad = {"list.csv": b"a.jpg,cat,x\n", "list.jsonl": b'{"path": "a.jpg"]\n'}[name]
    number = 101 if name == "list.jsonl" else 102  # The header is row 1.
    with pytest.raises(SourceError, match=rf"{name} cannot be read .* in row {number}\b"):
        entries_of(csv(tmp_path, head + row * 100 + bad + row * 5, name))


def test_the_blocks_of_json_lines_can_have_different_columns_and_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_rows, "_BLOCK", 100)
    first = [{"image": f"{number:03}.jpg", "label": "2012-01-01"} for number in range(20)]
    second = [{"image": f"{number:03}.jpg", "label": "cat", "group": None} for number in range(20, 40)]
    third = [{"path": f"{number:03}.jpg", "image": "x", "label": "cat", "group": 7} for number in range(40, 60)]
    images = listed(json_lines(tmp_path, *first, *second))
    assert [image[1:] for image in images] == [(("2012-01-01",), "", "")] * 20 + [(("cat",), "", "")] * 20
    # A column that only the last rows have decides for all.
    assert [image[0] for image in listed(json_lines(tmp_path, *first, *third))] == [
        f"{number:03}.jpg" for number in range(40, 60)
    ]
    mixed = [{"path": f"{number:03}.jpg", "label": "cat" if number else 1} for number in range(60)]
    with pytest.raises(SourceError, match=r"label.*write the column with one type"):
        entries_of(json_lines(tmp_path, *mixed))


def test_a_part_of_json_lines_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_rows, "_BLOCK", 20_000)
    place = json_lines(tmp_path, *({"path": f"{number:09}.jpg", "label": "cat"} for number in range(50_000)))
    before = pa.total_allocated_bytes()
    rows = list_rows._batches(place, "utf-8", lambda _: {"path": "path", "label": "label"})
    held = [pa.total_allocated_bytes() - before for _ in rows]
    assert max(held) < place.stat().st_size / 10


def test_each_group_of_rows_can_have_a_dictionary_of_its_own(tmp_path: Path):
    labels = pa.array([f"{number // 100}" for number in range(1000)]).dictionary_encode()
    table = pa.table({"path": [f"{number:04}.jpg" for number in range(1000)], "label": labels})
    parquet.write_table(table, tmp_path / "list.parquet", row_group_size=100)
    images = listed(tmp_path / "list.parquet")
    assert [image[1] for image in images] == [(f"{number // 100}",) for number in range(1000)]
