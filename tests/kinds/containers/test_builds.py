"""The same images give the same dataset, whatever holds them: a folder, or containers of any format."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.errors import SourceError
from pipeline.stages.build import build
from pipeline.storage import place_of
from standins.fake_gcs import FakeGcs
from standins.fake_gcs.api import Answer, Api, Call
from tests.conftest import jpeg
from tests.kinds.containers.examples import FORMS, Found, drawn, folder, photographs, write_tar, write_zip


def built(source: object, workspace: object, **settings: Any) -> dict[str, Any]:
    return build(
        settings_from({"source_uri": str(source), "workspace": str(workspace), "dataset_name": "x", **settings})
    )


def content_of(result: dict[str, Any]) -> dict[str, bytes]:
    """Return the bytes of the shards, and of the lists of rejected and equal images."""
    place = place_of(result["dataset"])
    shards = [shard.name for split in load(place).splits.values() for shard in split.shards]
    return {name: (place / name).read_bytes() for name in [*shards, "rejected.jsonl", "duplicates.jsonl"]}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, Any]:
    """The dataset of the folder of the images."""
    result = built(folder(tmp_path / "folder", drawn()), tmp_path / "expected")
    assert (result["rejected"], sum(result["examples"].values())) == (2, 25)
    return result


def place(form: str, root: Path) -> Path:
    root.mkdir()
    return FORMS[form](root, drawn())


def assert_equal(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["version"] == expected["version"]
    assert content_of(result) == content_of(expected)
    assert verify(place_of(result["dataset"])) == {"ok": True, "records": 25, "problems": []}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_dataset_of_the_folder(form: str, expected: dict[str, Any], tmp_path: Path):
    source = place(form, tmp_path / "source")
    result = built(source, tmp_path / "w")
    assert_equal(result, expected)
    assert load(place_of(result["dataset"])).source["kind"] == "containers"
    assert built(source, tmp_path / "w") == {**result, "already_complete": True}


class Served:
    """Counts the bytes that the bucket serves of the objects below each folder, and of the copies of images."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        carry_out = Api.carry_out

        def counted(api: Api, call: Call) -> Answer:
            answer = carry_out(api, call)
            if call.operation == "download":
                name = call.parts[1]
                self.bytes["copies" if name.endswith(".images") else name.split("/")[0]] += answer.end - answer.start
            return answer

        monkeypatch.setattr(Api, "carry_out", counted)


PROBED = 6 * 65_536
"""A build asks a few times what a container holds, and reads its first or last bytes for it, however large it is."""


@pytest.mark.parametrize("workspace", ["disk", "bucket"])
@pytest.mark.parametrize("form", ["zip", "tar.gz", "tar, with .cls", "parquet of the hub", "tfrecord"])
def test_a_bucket_gives_the_dataset_of_the_folder(
    form: str, workspace: str, tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    expected = built(folder(tmp_path / "folder", photographs(32)), tmp_path / "expected")
    (tmp_path / "source").mkdir()
    local = FORMS[form](tmp_path / "source", photographs(32))
    gcs.put_folder("bucket", "raw/", tmp_path / "source")
    source = "gs://bucket/raw" if local.is_dir() else f"gs://bucket/raw/{local.name}"
    work = str(tmp_path / "w") if workspace == "disk" else "gs://bucket/work"
    served, listed = Served(monkeypatch), Counter[str]()
    with monkeypatch.context() as only_once:
        changed_before_writing(only_once, lambda: listed.update(served.bytes))
        result = built(source, work)
    assert result["version"] == expected["version"]
    assert content_of(result) == content_of(expected)
    size = sum(path.stat().st_size for path in (tmp_path / "source").rglob("*") if path.is_file())
    assert size <= listed["raw"] <= 1.2 * size + PROBED
    # Then, images are read from the workspace, unless the bucket holds them as they are.
    is_read_again = workspace == "bucket" and form in ("zip", "tar, with .cls", "tfrecord")
    assert served.bytes["raw"] - listed["raw"] <= 1.2 * size * is_read_again
    assert served.bytes["copies"] <= 1.2 * size
    before = served.bytes["raw"]
    built(source, work, num_shards=3)
    # Nothing is listed again, apart from the schema of a Parquet file or the first record.
    assert served.bytes["raw"] - before <= 1.2 * size * is_read_again + PROBED


@pytest.mark.parametrize("form", ["zip", "tar.gz", "parquet of the hub"])
def test_ranges_and_parts_give_the_same_dataset(
    form: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "5")
    assert_equal(built(place(form, tmp_path / "source"), tmp_path / "w"), expected)
    assert len(list((tmp_path / "w").rglob("*.listing"))) > 2


@pytest.mark.parametrize("form", ["zip", "zip, compressed", "tar.gz", "parquet of the hub"])
def test_a_build_that_was_killed_continues(form: str, expected: dict[str, Any], tmp_path: Path):
    source = place(form, tmp_path / "source")
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pipeline import storage\n"
        "from pipeline.sources import container_index\n"
        "write_json, left = storage.write_json, int(sys.argv[3])\n"
        "def killed(place, *args, **options):\n"
        "    global left\n"
        "    left -= 'containers' in str(place)\n"
        "    if left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    write_json(place, *args, **options)\n"
        "storage.write_json = killed\n"
        "from tests.kinds.containers.test_builds import built\n"
        "built(sys.argv[1], sys.argv[2])\n"
    )
    for writes in range(2):
        done = subprocess.run([sys.executable, "-c", code, source, tmp_path / "w", str(writes)], check=False)
        assert done.returncode == -signal.SIGKILL
    assert_equal(built(source, tmp_path / "w"), expected)
    assert not list((tmp_path / "w" / "raw").rglob("*.tmp"))


@pytest.mark.parametrize("form", ["zip", "parquet of the hub"])
def test_a_build_whose_tasks_are_killed_gives_the_same_dataset(
    form: str, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The build is killed while a container is read, while a range is listed, and while a shard is written."""
    monkeypatch.setenv("TENFOLD_RANGE_IMAGES", "5")
    source = place(form, tmp_path / "source")
    for function, calls in (
        ("pipeline.sources.container_rows._row", 10),
        ("pipeline.snapshot.part.block_of", 2),
        ("pipeline.snapshot.raw_reader._matches", 10),
    ):
        assert run_and_kill_in(function, calls, source, tmp_path / "w") == -signal.SIGKILL, function
    assert list((tmp_path / "w").rglob("*.listing"))  # The last build was killed after the listing.
    assert not list((tmp_path / "w").rglob("dataset.json"))
    assert_equal(built(source, tmp_path / "w"), expected)
    assert not list((tmp_path / "w" / "raw").rglob("*.tmp"))


@pytest.mark.parametrize("form", ["zip", "tar, with .cls", "tfrecord"])
def test_a_build_that_was_killed_in_a_piece_of_a_container_continues(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = built(folder(tmp_path / "folder", photographs(160)), tmp_path / "expected")
    (tmp_path / "source").mkdir()
    source = FORMS[form](tmp_path / "source", photographs(160))
    monkeypatch.setenv("TENFOLD_RANGE_MEGABYTES", "1")
    assert run_and_kill_in("pipeline.sources.container_rows._row", 110, source, tmp_path / "w") == -signal.SIGKILL
    known = {path: path.stat().st_ino for path in (tmp_path / "w" / "raw" / "containers").glob("*.json")}
    assert len(known) >= 2
    result = built(source, tmp_path / "w")
    assert result["version"] == expected["version"]
    assert content_of(result) == content_of(expected)
    assert {path: path.stat().st_ino for path in known} == known  # They are not read again.
    assert len(list((tmp_path / "w" / "raw" / "containers").glob("*.arrow"))) > 4


def run_and_kill_in(function: str, calls: int, source: Path, workspace: Path) -> int:
    """Build in a process of its own, and kill it in a call of a function. Returns the exit status."""
    # The engine calls each task in this process: it would start a worker again that is killed.
    code = (
        "import importlib, os, signal, sys\n"
        "from pipeline.engines import local\n"
        "local.Workers.outcomes = lambda _, task, places: (task.call(place) for place in places)\n"
        "module, _, name = sys.argv[3].rpartition('.')\n"
        "module, left = importlib.import_module(module), int(sys.argv[4])\n"
        "real = getattr(module, name)\n"
        "def killed(*args, **options):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if not left: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*args, **options)\n"
        "setattr(module, name, killed)\n"
        "from tests.kinds.containers.test_builds import built\n"
        "built(sys.argv[1], sys.argv[2])\n"
    )
    arguments = [sys.executable, "-c", code, source, workspace, function, str(calls)]
    return subprocess.run(arguments, check=False).returncode


def test_an_index_whose_copies_were_removed_is_made_again(expected: dict[str, Any], tmp_path: Path):
    source = place("zip, compressed", tmp_path / "source")
    built(source, tmp_path / "w", num_shards=3)
    for path in (tmp_path / "w" / "raw").rglob("*.images"):
        path.unlink()
    assert_equal(built(source, tmp_path / "w"), expected)


@pytest.mark.parametrize("is_in_bucket", [False, True])
def test_the_copies_of_an_earlier_state_are_removed_after_a_day(is_in_bucket: bool, tmp_path: Path, gcs: FakeGcs):
    copies = tmp_path / "w" / "raw" / "containers"

    def build_with(images: dict[str, bytes]) -> set[Path]:
        file = write_zip(tmp_path / "a.zip", images, zipfile.ZIP_DEFLATED)
        gcs.put("bucket", "raw/a.zip", file.read_bytes())
        return build_again(file)

    def build_again(file: Path) -> set[Path]:
        built("gs://bucket/raw/a.zip" if is_in_bucket else file, tmp_path / "w")
        return {path for path in copies.iterdir() if path.suffix in (".images", ".container")}

    built(write_zip(tmp_path / "other.zip", drawn(), zipfile.ZIP_DEFLATED), tmp_path / "w")
    others = {path for path in copies.iterdir() if path.suffix == ".images"}
    first = build_with(drawn(count=3)) - others
    second = build_with(drawn(count=4)) - others - first
    assert first < build_with(drawn(count=4))  # A run of the last day may need them.
    for path in copies.iterdir():
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    third = build_with(drawn(count=5))
    assert third > others
    assert not third & (first | second)
    fourth = build_with(drawn(count=6))
    assert fourth > third  # Those of the third state are new.
    for path in copies.iterdir():
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    assert build_again(tmp_path / "a.zip") == fourth - (third - others)  # Even if the index is known.


def test_what_no_listing_used_for_a_month_is_removed(tmp_path: Path):
    kept = tmp_path / "w" / "raw" / "containers"

    def files_after(source: Path, days: int = 0) -> dict[Path, int]:
        """Build after some days without a listing."""
        for path in kept.iterdir() if days else ():
            os.utime(path, (time.time() - days * 86_400,) * 2)
        built(source, tmp_path / "w")
        return {path: path.stat().st_ino for path in kept.iterdir()}

    archive = place("zip, compressed", tmp_path / "source")
    of_list = folder(tmp_path / "folder", drawn()) / "list.csv"
    of_list.write_text("\n".join(["path,label", *(f"{key},{key[:4]}" for key in drawn())]))
    of_archive = files_after(archive)
    assert {path.suffix for path in of_archive} == {".arrow", ".json", ".images"}
    everything = files_after(place("tar.gz", tmp_path / "other")) | files_after(of_list)
    assert files_after(archive, days=30) == everything
    assert files_after(archive, days=32) == of_archive
    assert {path.suffix for path in files_after(of_list, days=32)} == {".arrow", ".json"}


def changed_before_writing(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    from pipeline.stages import build as module

    write = module.write_shards

    def change_then_write(*args: Any) -> Any:
        change()
        return write(*args)

    monkeypatch.setattr(module, "write_shards", change_then_write)


def test_a_container_that_changed_after_its_listing_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = place("zip", tmp_path / "source")
    other = {key: jpeg(5000 + number) for number, key in enumerate(drawn())}
    changed_before_writing(monkeypatch, lambda: write_zip(source, other))
    with pytest.raises(SourceError, match=r"flowers\.zip changed or vanished after it was listed: run again"):
        built(source, tmp_path / "w")
    assert not list((tmp_path / "w").rglob("dataset.json"))
    monkeypatch.undo()
    assert built(source, tmp_path / "w")["rejected"] == 0  # The next run sees the new images.


def test_an_object_that_was_replaced_after_its_listing_stops_the_run(
    tmp_path: Path, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
):
    content = write_tar(tmp_path / "flowers.tar", drawn()).read_bytes()
    gcs.put("bucket", "raw/flowers.tar", content)
    # The same bytes: only the generation tells that it is another object.
    changed_before_writing(monkeypatch, lambda: gcs.put("bucket", "raw/flowers.tar", content))
    with pytest.raises(SourceError, match=r"flowers\.tar changed or vanished after it was listed"):
        built("gs://bucket/raw/flowers.tar", "gs://bucket/work")


def test_a_damaged_copy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def damage() -> None:
        [copies] = (tmp_path / "w" / "raw").rglob("*.images")
        copies.write_bytes(bytes(copies.stat().st_size))

    changed_before_writing(monkeypatch, damage)
    with pytest.raises(SourceError, match=r"\.images is missing or damaged: remove it, and run `extract` again"):
        built(place("tar.gz", tmp_path / "source"), tmp_path / "w")


def test_odd_names_in_a_bucket_change_no_version(tmp_path: Path, gcs: FakeGcs):
    """Markers of folders, and names with doubled slashes: each object is accounted for."""
    content = write_zip(tmp_path / "a.zip", drawn()).read_bytes()
    gcs.put("bucket", "plain/a.zip", content)
    for key in ("odd/a.zip", "odd//b.zip", "odd/sub//c.zip"):
        gcs.put("bucket", key, content)
    for key in ("odd/", "odd//", "odd/sub/"):
        gcs.put("bucket", key, b"")
    plain, odd = built("gs://bucket/plain/a.zip", tmp_path / "w"), built("gs://bucket/odd/", tmp_path / "w2")
    assert odd["version"] == plain["version"]
    skipped = map(json.loads, (place_of(odd["dataset"]) / "skipped.jsonl").read_text().splitlines())
    assert {each["path"] for each in skipped} == {"", "/", "sub/", "/b.zip", "sub//c.zip"}


def parquet_of_links(root: Path) -> Path:
    (root / "data").mkdir(parents=True)
    columns = {"url": ["https://example.org/1.jpg"], "caption": ["a cat"]}
    parquet.write_table(pa.table(columns), root / "data" / "train-00000-of-00001.parquet")
    return root


def test_boxes_of_the_hub_give_the_dataset_of_a_list_with_boxes(tmp_path: Path):
    images = {f"{number}.jpg": jpeg(number) for number in range(6)}
    objects = [
        {"bbox": [[10.0 + number, 1, 8, 4], [0, 0, 5, 5]], "category": [("cat", "dog")[number % 2], "eel"]}
        for number in range(6)
    ]
    rows = [{"bytes": content, "path": key} for key, content in images.items()]
    (tmp_path / "hub").mkdir()
    columns = {"image": pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()})), "objects": objects}
    parquet.write_table(pa.table(columns), tmp_path / "hub" / "a.parquet")
    source = folder(tmp_path / "list", images)
    with (source / "list.jsonl").open("w") as file:
        for key, of_image in zip(images, objects, strict=True):
            boxes = [[x, y, x + width, y + height] for x, y, width, height in of_image["bbox"]]
            row = {"path": key, "labels": of_image["category"], "boxes": boxes, "box_labels": of_image["category"]}
            file.write(json.dumps(row) + "\n")
    of_list = built(source / "list.jsonl", tmp_path / "w")
    of_hub = built(tmp_path / "hub", tmp_path / "w2", label_column="objects.category")
    assert of_hub["version"] == of_list["version"]
    assert content_of(of_hub) == content_of(of_list)
    assert any(b"image/object/bbox/xmin" in content for content in content_of(of_hub).values())


@pytest.mark.parametrize("feature_keys", ["model_garden", "plain"])
def test_a_dataset_with_boxes_is_a_source_with_boxes(feature_keys: str, tmp_path: Path):
    images = {f"{number}.jpg": jpeg(number) for number in range(6)}
    source = folder(tmp_path / "list", images)
    lines = [f"{key},{'cat' if '2' in key else 'dog'},1,2,9,8" for key in images]
    (source / "list.csv").write_text("\n".join(["path,label,xmin,ymin,xmax,ymax", *lines, "0.jpg,eel,0,0,5,5"]))
    first = built(source / "list.csv", tmp_path / "w", feature_keys=feature_keys, num_shards=1)
    found = Found(place_of(first["dataset"]), str(tmp_path / "copies"))
    boxes = {Path(key).name: each.boxes for key, each in found.images.items()}
    assert boxes.keys() == images.keys()
    assert [box.label for box in boxes["0.jpg"]] == ["dog", "eel"]
    assert found.labels["0.jpg"] == ("dog", "eel")
    assert [tuple(map(round, box[:4])) for box in boxes["0.jpg"]] == [(1, 2, 9, 8), (0, 0, 5, 5)]
    assert [box.label for box in boxes["2.jpg"]] == ["cat"]


def test_images_beside_their_list_say_what_else_to_set(tmp_path: Path):
    """The Hub has such folders, with a metadata.csv."""
    files = {"1.jpg": jpeg(1), "2.jpg": jpeg(2), "metadata.csv": b"file_name,label\n1.jpg,a\n2.jpg,b\n"}
    source = folder(tmp_path / "source", files)
    message = r"\(2 not in a class folder; 1 not an image by its name: \.csv 1\).* set SOURCE to one of these files"
    with pytest.raises(SourceError, match=message):
        built(source, tmp_path / "w")
    assert sum(built(source / "metadata.csv", tmp_path / "w")["examples"].values()) == 2


def test_an_archive_of_each_class_without_its_folder_says_how_to_pack_it(tmp_path: Path):
    (tmp_path / "source").mkdir()
    for name in ("cats", "dogs"):
        write_zip(tmp_path / "source" / f"{name}.zip", {"0.jpg": jpeg(0), f"{name}.jpg": jpeg(1)})
    message = r"\(4 not in a class folder\).* In zip and tar files, pack these folders, not only the images in them"
    with pytest.raises(SourceError, match=message):
        built(tmp_path / "source", tmp_path / "w")


@pytest.mark.parametrize(
    "write", [parquet_of_links, lambda root: write_zip(root.with_suffix(".zip"), {"a.csv": b"x,y\n1,2\n"})]
)
def test_files_of_rows_without_images_say_what_else_to_set(write: Callable[[Path], Path], tmp_path: Path):
    message = (
        "no images under .* set TABLE and LABEL instead of SOURCE. .* the paths of images, set SOURCE to one of these"
    )
    with pytest.raises(SourceError, match=message):
        built(write(tmp_path / "source"), tmp_path / "w")


@pytest.mark.parametrize("form", ["zip", "parquet of the hub"])
def test_images_that_are_too_large_are_rejected_unread(form: str, tmp_path: Path):
    root = tmp_path / "source"
    root.mkdir()
    large = {"cats/large.jpg": drawn()["cats/000.jpg"] + bytes(50_000)}
    result = built(FORMS[form](root, drawn() | large), tmp_path / "w", max_file_megabytes=0.04)
    [rejected] = [
        each
        for each in map(json.loads, (place_of(result["dataset"]) / "rejected.jsonl").read_text().splitlines())
        if "large" in each["path"]
    ]
    assert "more than 0.04 MB" in rejected["reason"]


def test_a_container_outside_of_the_allowed_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = place("zip files", tmp_path / "source")
    elsewhere = write_zip(tmp_path / "secret.zip", {"secret/a.jpg": b"secret"})
    (source / "c.zip").symlink_to(elsewhere)
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", str(source))
    result = built(source, tmp_path / "w")
    assert "secret" not in load(place_of(result["dataset"])).labels
    assert os.path.lexists(source / "c.zip")
