"""A quick look at a place that may become a source."""

import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline import storage
from pipeline.errors import SourceError, StorageError
from pipeline.sources.look import SourceLook, look_at
from pipeline.storage import BucketPath
from pipeline.system.wording import format_size
from standins.fake_gcs import FakeGcs
from tests.conftest import MakeImages


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        ({"cats": 3, "dogs": 2}, "5 images, 2 classes, "),
        ({"train/cats": 3, "train/dogs": 2, "test/cats": 1}, "6 images, 2 classes, "),
        ({"cats": 1}, "1 image, 1 class, "),
    ],
)
def test_a_folder_is_counted(make_images: MakeImages, folders: dict[str, int], words: str) -> None:
    source = make_images(folders)
    (source / "README.md").write_text("about")
    look = look_at(source)
    assert look.words.startswith(words)
    assert (look.is_usable, look.kind) == (True, "images")


def test_the_size_is_that_of_the_images(make_images: MakeImages) -> None:
    source = make_images({"cats": 2})
    (source / "notes.csv").write_text("a,b\n" * 1000)
    size = sum(each.stat().st_size for each in source.glob("cats/*"))
    assert look_at(source).words == f"2 images, 1 class, {format_size(size)}"


def test_images_without_a_folder_of_their_class_are_no_source(make_images: MakeImages) -> None:
    look = look_at(make_images({".": 2}))
    assert (look.is_usable, look.kind) == (False, "images")
    assert "none is in a folder of its class" in look.words


def test_counting_ends_after_a_second(make_images: MakeImages, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0.0, 0.3)
    monkeypatch.setattr("pipeline.sources.look.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert look_at(make_images({"cats": 9})).words.startswith("more than 3 images: the first 3 have 1 class and ")


def test_a_bucket_is_looked_at_by_one_page(gcs: FakeGcs) -> None:
    for number in range(5):
        gcs.put("bucket", f"pets/{'cat' if number < 2 else 'dog'}/{number}.jpg", b"12345")
    assert look_at(BucketPath.of("gs://bucket/pets")).words == "5 images, 2 classes, 25 bytes"
    gcs.api.page_sizes = repeat(3)
    gcs.requests.clear()
    look = look_at(BucketPath.of("gs://bucket/pets"))
    assert look == SourceLook("more than 3 images: the first 3 have 2 classes and 15 bytes", kind="images")
    assert gcs.requests == {"list": 2}  # of this name, and of the names below it


def test_a_page_with_one_split_is_a_part_of_a_source(gcs: FakeGcs) -> None:
    for split in ("test", "train"):
        for number in range(3):
            gcs.put("bucket", f"pets/{split}/cat/{number}.jpg", b"12345")
    gcs.api.page_sizes = repeat(2)
    assert look_at(BucketPath.of("gs://bucket/pets")).words.startswith("more than 2 images: the first 2 have 1 class")


@pytest.mark.parametrize(
    ("name", "content", "kind", "columns"),
    [
        ("sales.csv", "age,income,churn\n1,2,yes\n", "table", ("age", "income", "churn")),
        ("sales.tsv", "\ufeffage\tincome\n1\t2\n", "table", ("age", "income")),
        ("images.csv", "path,label\na.jpg,cat\n", "images", ("path", "label")),
        ("sales.jsonl", '{"age": 1}\n', "", ()),
    ],
)
def test_the_columns_of_a_table_are_named(
    tmp_path: Path, gcs: FakeGcs, name: str, content: str, kind: str, columns: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(content)
    gcs.put("bucket", f"data/{name}", content.encode())
    for place in (tmp_path / name, tmp_path, BucketPath.of(f"gs://bucket/data/{name}"), BucketPath.of("gs://bucket")):
        look = look_at(place)
        assert (look.kind, look.columns, look.is_usable) == (kind, columns, True), place
        assert (f"{len(columns)} columns: " in look.words) is bool(columns)


def test_the_rows_of_a_parquet_file_are_counted(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"age": [1, 2, 3], "churn": ["a", "b", "a"]}), tmp_path / "sales.parquet")
    look = look_at(tmp_path / "sales.parquet")
    assert look.words.startswith("a .parquet file, 3 rows, ")
    assert look.words.endswith("2 columns: age, churn")


def test_the_delimiter_of_the_settings_divides_the_header(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("age;income\n1;2\n")
    assert look_at(tmp_path / "sales.csv", delimiter=";").columns == ("age", "income")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b'a,"b'], ids=["empty", "compressed", "torn"])
def test_a_file_that_cannot_be_understood_is_still_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sales.csv").write_bytes(content)
    assert look_at(tmp_path / "sales.csv").words.startswith("a .csv file, ")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("flwers", "flowers"),
        ("Flowers", "flowers"),
        ("flwers/cats", "flowers/cats"),
        ("flwers/x", "flowers"),
        ("zz", ""),
    ],
)
def test_a_similar_name_is_suggested(tmp_path: Path, given: str, meant: str) -> None:
    (tmp_path / "flowers" / "cats").mkdir(parents=True)
    (tmp_path / ".flwers").mkdir()
    look = look_at(tmp_path / given)
    assert (look.meant, look.is_usable) == (meant and str(tmp_path / meant), False)
    assert look.words == f"There is nothing at {tmp_path / given}."


def test_a_similar_name_in_a_bucket_is_suggested(gcs: FakeGcs) -> None:
    gcs.put("bucket", "data/flowers/cat/1.jpg", b"1")
    look = look_at(BucketPath.of("gs://bucket/data/flwers"))
    assert look.meant == "gs://bucket/data/flowers"


def test_only_allowed_places_are_looked_at(tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "secret").mkdir()
    gcs.put("bucket", "secret/cat/1.jpg", b"1")
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", f"{tmp_path / 'allowed'},gs://bucket/allowed")
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    for place in (tmp_path / "secret", tmp_path / "allowed" / "link", tmp_path / "allowed" / ".." / "secret"):
        with pytest.raises(SourceError, match="outside what TENFOLD_ALLOWED_SOURCES allows"):
            look_at(place)
    with pytest.raises(SourceError, match="outside what TENFOLD_ALLOWED_SOURCES allows"):
        look_at(BucketPath.of("gs://bucket/secret"))
    assert gcs.requests == {}


def test_no_name_beside_the_allowed_places_is_suggested(
    tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flowers").mkdir()
    gcs.put("bucket", "flowers/cat/1.jpg", b"1")
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", f"{tmp_path / 'flowers2'},gs://bucket/flowers2")
    for place in (tmp_path / "flowers2", BucketPath.of("gs://bucket/flowers2")):
        assert look_at(place).meant == ""


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("age;income\n1;2\n", ("age", "income")),
        ("age\tincome\n1\t2\n", ("age", "income")),
        ("Read this first,\nthen the rest.\n", ()),
    ],
)
def test_the_first_lines_of_a_text_file_show_its_delimiter(
    tmp_path: Path, content: str, columns: tuple[str, ...]
) -> None:
    (tmp_path / "sales.txt").write_text(content)
    assert look_at(tmp_path / "sales.txt").columns == columns


def test_a_header_that_is_cut_off_has_no_columns(tmp_path: Path) -> None:
    header = ",".join(f"column_{number}" for number in range(10_000))
    (tmp_path / "sales.csv").write_text(f"{header}\n{'1,' * 9_999}1\n")
    assert look_at(tmp_path / "sales.csv").columns == ()


def test_a_compressed_record_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    monkeypatch.setattr(storage, "open_ranges", lambda _: pytest.fail("the file was opened"))
    look = look_at(tmp_path)
    assert (look.is_usable, look.kind) == (True, "")


def test_the_schema_of_a_parquet_file_shows_images(tmp_path: Path) -> None:
    image = pa.array([{"bytes": b"no image", "path": "a.jpg"}])
    parquet.write_table(pa.table({"image": image, "label": [1]}), tmp_path / "train.parquet")
    assert look_at(tmp_path / "train.parquet").kind == "images"


def test_a_footer_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"age": [1]}), tmp_path / "sales.parquet")
    monkeypatch.setattr("pipeline.sources.look._MAX_FOOTER_BYTES", 10)
    assert look_at(tmp_path / "sales.parquet").columns == ()


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (("cars_train/1.jpg", "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"), "Stanford Cars"),
        (("train/n01440764/1.JPEG", "val/ILSVRC2012_val_00000001.JPEG", "val.txt"), "ImageNet"),
        (("ILSVRC/Data/CLS-LOC/train/n01440764/1.JPEG", "LOC_val_solution.csv"), "ImageNet"),
    ],
)
def test_a_known_layout_is_named(tmp_path: Path, gcs: FakeGcs, files: tuple[str, ...], name: str) -> None:
    for each in files:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_bytes(b"1")
        gcs.put("bucket", each, b"1")
    for place in (tmp_path, BucketPath.of("gs://bucket")):
        assert look_at(place) == SourceLook(f"images in the layout of {name}", kind="images")


def test_a_link_to_a_folder_above_it_is_not_followed(make_images: MakeImages) -> None:
    source = make_images({"cats": 2})
    (source / "cats" / "again").symlink_to(source)
    assert look_at(source).words.startswith("2 images, 1 class, ")


def test_the_time_for_counting_also_ends_between_entries_that_are_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
    listed: list[Path] = []
    scandir = os.scandir

    def noted(path: Path) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr("pipeline.sources.look.COUNTING_S", 0)
    monkeypatch.setattr("pipeline.sources.look.os.scandir", noted)
    assert look_at(tmp_path) == SourceLook("There are more files than a quick look can count.")
    assert listed == [tmp_path]


def test_a_place_that_the_file_system_refuses_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: File name too long"):
        look_at(tmp_path / ("x" * 300))


def test_nothing_is_suggested_if_a_folder_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a folder that users may only pass through."""
    (tmp_path / "flowers").mkdir()
    assert look_at(tmp_path / "flwers" / ("x" * 300)).meant == ""

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pipeline.sources.look.os.scandir", refused)
    look = look_at(tmp_path / "flwers")
    assert (look.words, look.meant) == (f"There is nothing at {tmp_path / 'flwers'}.", "")
    with pytest.raises(SourceError, match="flowers cannot be read: Permission denied"):
        look_at(tmp_path / "flowers")


def test_no_link_to_a_place_that_is_not_allowed_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, allowed = tmp_path / "secret", tmp_path / "allowed"
    (secret / "cats").mkdir(parents=True)
    (allowed / "flowers").mkdir(parents=True)
    (allowed / "flowers" / "cats").symlink_to(secret / "cats")
    (allowed / "birds").symlink_to(secret)
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", str(allowed))
    assert look_at(allowed / "flwers" / "cats").meant == str(allowed / "flowers")
    assert look_at(allowed / "brds").meant == ""


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sales.csv")
    assert look_at(tmp_path / "sales.csv").words == f"{tmp_path / 'sales.csv'} is neither a file nor a folder."


def test_a_silent_bucket_does_not_hold_the_thread(gcs: FakeGcs) -> None:
    stall = gcs.fail("stall", on="list", times=None)
    with pytest.raises(StorageError, match=r"no answer within 0\.1 s"):
        storage.first_page(BucketPath.of("gs://bucket/pets"), 0.1)
    assert stall.fired == 1


def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(200, "") as (target, asked), server(302, target) as (redirecting, redirected):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", redirecting)
        with pytest.raises(StorageError, match="TooManyRedirects"):
            look_at(BucketPath.of("gs://bucket/pets"))
        assert (len(redirected), asked) == (1, [])


@contextmanager
def server(status: int, location: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that gives all requests one answer, and the paths of the requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Location", f"{location}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", asked
        finally:
            http.shutdown()
            thread.join()
