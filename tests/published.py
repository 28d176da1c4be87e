"""Datasets for tests: small datasets of every kind, functions that build them stage by stage, and readers."""

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.index_files import crc32c_text, has_index, index_name
from pipeline.dataset.manifest import Dataset, load, save
from pipeline.dataset.partitions import newest_partitions
from pipeline.dataset.shard_lists import Shard
from pipeline.gate.decide import Ask
from pipeline.plan.merge import merged_lines, read_pieces
from pipeline.plan.plan import load_plan
from pipeline.records import example, tfrecord
from pipeline.records.record_index import index_of
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.snapshot.raw_example import RawExample, from_line
from pipeline.stages.shard import plan_shards
from pipeline.stages.upload import commit_planned, dataset_of_partitions
from pipeline.storage import Place, crc32c_of, place_of
from tests.conftest import jpeg
from tests.snapshots import take_snapshot

CHRYSANTHEMUM, DAISY, ROSE = LABELS = ["Chrysanthème 菊", "daisy #2", "red rose"]
"""Realistic folder names with spaces and special characters, ordered by id."""
LEAF = "leaf"  # Only boxes have this label.
WIDE, HIGH = (32, 16), (16, 32)

CASES = {
    "keep": {},
    "raw": {"prepare": "raw"},
    "plain": {"feature_keys": "plain"},
    "label_offset": {"label_offset": 1},
    "few shards": {"num_shards": 2},
    "gzip": {"compression": "gzip", "prepare": "raw", "feature_keys": "plain", "label_offset": 1},
    "boxes": {},
    "plain boxes": {"feature_keys": "plain", "label_offset": 1},
}
"""Settings of each dataset. Datasets with boxes come from a list, the others from class folders."""


@dataclass(frozen=True)
class SourceImage:
    """One image of a source: the file, its labels, and labeled boxes in pixels (xmin, ymin, xmax, ymax)."""

    encoded: bytes
    labels: Sequence[str]
    boxes: Sequence[tuple[int, int, int, int]] = ()
    box_labels: Sequence[str] = ()


IN_FOLDERS = [SourceImage(jpeg(number, WIDE), [LABELS[number % 3]]) for number in range(7)]
WITH_BOXES = [
    SourceImage(jpeg(20, WIDE), [ROSE, DAISY], [(0, 0, 32, 16), (8, 4, 16, 12)], [ROSE, LEAF]),
    SourceImage(jpeg(21, HIGH), [DAISY], [(4, 8, 12, 16)], [DAISY]),
    SourceImage(jpeg(22, WIDE), [DAISY, CHRYSANTHEMUM], [(8, 8, 16, 12)], [LEAF]),
    SourceImage(jpeg(23, HIGH), [CHRYSANTHEMUM, ROSE, DAISY], [(0, 16, 8, 32)], [ROSE]),
    SourceImage(jpeg(24, WIDE), [ROSE]),
]


def png(seed: int, size: tuple[int, int]) -> bytes:
    """Return a small RGB PNG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(seed, size))).save(buffer, "PNG")
    return buffer.getvalue()


def gray(seed: int, size: tuple[int, int], form: str) -> bytes:
    """Return a small gray JPEG or PNG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(seed, size))).convert("L").save(buffer, form)
    return buffer.getvalue()


IN_FOLDERS += [
    SourceImage(png(9, HIGH), [ROSE]),
    SourceImage(gray(10, WIDE, "JPEG"), [DAISY]),
    SourceImage(gray(11, HIGH, "PNG"), [CHRYSANTHEMUM]),
]


def make_folders(folder: Path, images: Sequence[SourceImage]) -> Path:
    """Write the images into one subfolder per class, and return the folder."""
    for number, image in enumerate(images):
        path = folder / image.labels[0] / f"{number}.{'png' if b'PNG' in image.encoded[:8] else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image.encoded)
    return folder


def make_list(folder: Path, images: Sequence[SourceImage]) -> Path:
    """Write a list in JSON Lines next to its images, and return its path."""
    folder.mkdir(parents=True)
    rows = []
    for number, image in enumerate(images):
        (folder / f"{number}.jpg").write_bytes(image.encoded)
        rows.append(
            {"path": f"{number}.jpg", "label": image.labels, "boxes": image.boxes, "box_labels": image.box_labels}
        )
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "list.jsonl"


def commit(plan_path: Place, settings: Settings, ask: Ask | None = None) -> Dataset:
    """Commit a dataset with its card, as all callers do."""
    return commit_planned(plan_path, settings, ask)


def newest_dataset(settings: Settings, ask: Ask | None = None) -> Place:
    """Return the newest dataset, with its card, as all callers do."""
    return dataset_of_partitions(settings, newest_partitions(name_folder(settings), settings.window), ask)


# --- build ------------------------------------------------------------------------------------------------------------


def changed(settings: Settings, **values: object) -> Settings:
    """Return a validated copy of the settings with some values changed."""
    return settings_from({**settings.model_dump(), **values})


def set_options(**values: object) -> list[str]:
    """Return settings as options of the command line."""
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def build_command(settings: Settings) -> list[str]:
    """Return the command that builds the same dataset as `build(settings)`."""
    places = {name: getattr(settings, name) for name in ("source_uri", "workspace", "dataset_name")}
    return [sys.executable, "-m", "pipeline", "build", *set_options(**places)]


def no_progress(_count: int, _size: int = 0) -> None:
    """Ignore the progress of a stage."""


def planned(settings: Settings, ask: Ask | None = None) -> tuple[Place, list[Place]]:
    """List the source and plan the shards. Return the plan, and its plan files."""
    plan_path = plan_shards(settings, take_snapshot(settings), ask)
    return plan_path, [place_of(path) for path in load_plan(plan_path).ranges]


def rows_of_plan(path: Place) -> list[RawExample]:
    """Return the rows of a plan file, in the order of its shards."""
    with path.open("rb") as file:
        file.readline()
        return [from_line(line) for line in merged_lines(read_pieces(file))]


def write_and_copy(ranges: Iterable[Place]) -> None:
    """Write the shards of all plan files, then publish them."""
    ranges = list(ranges)
    for stage in (write_range, copy_range):
        for path in ranges:
            stage(path, no_progress)


def build_in_stages(settings: Settings) -> Place:
    """Build a dataset as the tasks of the DAG do, but in this process. Starting a pool would take a second.

    Returns the folder of the dataset.
    """
    plan_path, ranges = planned(settings)
    write_and_copy(ranges)
    commit(plan_path, settings)
    return place_of(load_plan(plan_path).dataset)


def publish(source: Path, workspace: Path | str, **values: object) -> Place:
    """Build a dataset named `images`, and return its folder."""
    places = {"source_uri": str(source), "workspace": str(workspace)}
    return build_in_stages(settings_from({**places, "dataset_name": "images", **values}).dated())


def publish_case(name: str, folder: Path) -> tuple[Path, Sequence[SourceImage]]:
    """Publish the dataset of one of CASES. Return its folder, and the images of its source. Some shards are empty."""
    make, images = (make_list, WITH_BOXES) if "boxes" in name else (make_folders, IN_FOLDERS)
    return publish(make(folder / "source", images), folder / "workspace", **CASES[name]), images


def replace_record(folder: Path, shard: str, number: int, content: bytes) -> None:
    """Replace record `number` (from 0) of a shard. All sizes and checksums are those of the new content."""
    path, dataset = folder / shard, load(folder)
    records = list(tfrecord.read_records(path))
    records[number] = content
    framed = [tfrecord.frame(record) for record in records]
    path.write_bytes(gzip.compress(b"".join(framed)) if shard.endswith(".gz") else b"".join(framed))
    index = index_of(map(len, framed)) if has_index(shard) else b""
    if (folder / index_name(shard)).exists():
        (folder / index_name(shard)).write_bytes(index)

    def of_shard(each: Shard) -> Shard:
        if each.name != shard:
            return each
        facts = {"bytes": path.stat().st_size, "crc32c": f"{crc32c_of(path):08x}", "ends": tfrecord.ends_of(path).hex()}
        of_index = {"index_bytes": len(index), "index_crc32c": crc32c_text(index)} if each.index_crc32c else {}
        return replace(each, **facts, **of_index)

    splits = {}
    for name, split in dataset.splits.items():
        shards = tuple(map(of_shard, split.shards))
        splits[name] = replace(split, shards=shards, bytes=sum(each.bytes for each in shards))
    (folder / "dataset.json").unlink()
    save(folder, replace(dataset, splits=splits), {})


# --- read -------------------------------------------------------------------------------------------------------------


def files_of(folder: Place) -> dict[str, bytes]:
    """Return the content of all files of a dataset, by name."""
    # `index` is the only folder in it. Each name of a file has a dot.
    return {path.name: path.read_bytes() for pattern in ("*.*", "index/*") for path in folder.glob(pattern)}


def files_of_version(folder: Place) -> dict[str, bytes]:
    """Return the files that are equal in all datasets of one version, by name. The other two files name the source."""
    return {name: content for name, content in files_of(folder).items() if name not in ("dataset.json", "card.html")}


def examples(folder: Path, split: str) -> Iterator[dict]:
    """Yield the features of all examples of a split, in the order of its shards."""
    for shard in load(folder).splits[split].shards:
        for record in tfrecord.read_records(folder / shard.name):
            yield example.decode(record)


def indexes_by_tfrecord2idx(folder: Path) -> dict[str, bytes]:
    """Return the index of each shard, by the name of the shard without its suffix, as the package `tfrecord` makes it.

    It runs in a process of its own, because the package declares the same messages as TensorFlow.
    """
    subprocess.run([sys.executable, "-m", "tfrecord.tools.tfrecord2idx", str(folder)], check=True)
    made = {path.stem: path.read_bytes() for path in folder.glob("*.tfindex")}
    for name in made:
        (folder / f"{name}.tfindex").unlink()
    return made


def keys_of(folder: Path, split: str) -> set[bytes]:
    """Return the keys of the images of a split."""
    return {features["image/filename"][0] for features in examples(folder, split)}


def temporary_files(settings: Settings) -> list[Path]:
    """Return the temporary files that a build left in its workspace."""
    return list(Path(settings.workspace).rglob("*.tmp"))
