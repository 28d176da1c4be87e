"""Small published data sets of every kind, for the tests of what others read."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pipeline.config import Settings, settings_from
from pipeline.dataset.manifest import Dataset
from pipeline.report import write_card
from pipeline.sharding import publish as publishing
from pipeline.sharding import window
from pipeline.sharding.gate import Ask
from pipeline.sharding.plan_files import load_plan, make_plan
from pipeline.sharding.publish import copy_range
from pipeline.sharding.write import write_range
from pipeline.snapshot.extract import take_snapshot
from pipeline.storage import Place, place_of
from tests.conftest import jpeg

CHRYSANTHEMUM, DAISY, ROSE = LABELS = ["Chrysanthème 菊", "daisy #2", "red rose"]
"""Ordered by id: what a person may call a folder."""
LEAF = "leaf"  # a label that only boxes have
WIDE, HIGH = (32, 16), (16, 32)

CASES = {
    "keep": {},
    "raw": {"prepare": "raw"},
    "plain": {"feature_keys": "plain"},
    "label_offset": {"label_offset": 1},
    "gzip": {"compression": "gzip", "prepare": "raw", "feature_keys": "plain", "label_offset": 1},
    "boxes": {},
    "plain boxes": {"feature_keys": "plain", "label_offset": 1},
}
"""Settings of each data set; those with boxes come from a list, the others from class folders."""


@dataclass(frozen=True)
class SourceImage:
    """What the source holds: a file, its labels, and boxes in pixels (xmin, ymin, xmax, ymax) with a label each."""

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
    """A small RGB PNG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(seed, size))).save(buffer, "PNG")
    return buffer.getvalue()


def gray(seed: int, size: tuple[int, int], form: str) -> bytes:
    """A small gray JPEG or PNG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(seed, size))).convert("L").save(buffer, form)
    return buffer.getvalue()


IN_FOLDERS += [
    SourceImage(png(9, HIGH), [ROSE]),
    SourceImage(gray(10, WIDE, "JPEG"), [DAISY]),
    SourceImage(gray(11, HIGH, "PNG"), [CHRYSANTHEMUM]),
]


def make_folders(folder: Path, images: Sequence[SourceImage]) -> Path:
    """One sub-folder a class."""
    for number, image in enumerate(images):
        path = folder / image.labels[0] / f"{number}.{'png' if b'PNG' in image.encoded[:8] else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image.encoded)
    return folder


def make_list(folder: Path, images: Sequence[SourceImage]) -> Path:
    """A list as JSON lines beside its images."""
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
    return publishing.commit(plan_path, settings, write_card, ask)


def newest_dataset(settings: Settings, ask: Ask | None = None) -> Place:
    """Return the newest dataset, with its card, as all callers do."""
    return window.newest_dataset(settings, write_card, ask)


def publish(source: Path, workspace: Path | str, **values: object) -> Place:
    """Build a data set as `pipeline.build` does, in this process: a pool would take a second to start."""
    places = {"source_uri": str(source), "workspace": str(workspace)}
    settings = settings_from({**places, "dataset_name": "images", **values}).dated()
    plan_path = make_plan(settings, take_snapshot(settings))
    plan = load_plan(plan_path)
    for path in map(place_of, plan.ranges):
        write_range(path, lambda *_: None)
        copy_range(path, lambda *_: None)
    commit(plan_path, settings)
    return place_of(plan.dataset)


def publish_case(name: str, folder: Path) -> tuple[Path, Sequence[SourceImage]]:
    """The data set of one of CASES, and what its source holds. Some shards are empty."""
    make, images = (make_list, WITH_BOXES) if "boxes" in name else (make_folders, IN_FOLDERS)
    return publish(make(folder / "source", images), folder / "workspace", **CASES[name]), images
