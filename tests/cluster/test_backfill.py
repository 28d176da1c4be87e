"""Backfills of six dates on PostgreSQL: six datasets, one training, and repetitions."""

import time
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.storage import Place
from scripts.airflow.client import ACTIVE, Client
from standins.cluster.cluster import Cluster
from tests.cluster.asking import comes
from tests.cluster.conftest import SETTINGS
from tests.conftest import jpeg
from tests.published import newest_dataset
from tests.writes import writes

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

DATES = [date(2026, 1, 1) + timedelta(days) for days in range(6)]
IMAGES = 4
RUNS_AT_ONCE = 4
LIMIT_S = 900
LOOK_EVERY_S = 2.0
"""Listing many runs is slow in Airflow, and the runs need the cores."""


def add_images(source: Path, day: date, numbers: range) -> None:
    """Add images of two classes. Images of different dates and numbers differ."""
    for label, first in (("cats", 0), ("dogs", 500)):
        folder = source / day.isoformat() / label
        folder.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (folder / f"{number}.jpg").write_bytes(jpeg(1000 * day.toordinal() + first + number))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("dated")
    for day in DATES:
        add_images(source, day, range(IMAGES))
    return source


class Made(NamedTuple):
    """All published files, datasets and trainings."""

    files: dict[Place, object]
    """The last write of every file below the dataset name."""
    datasets: set[Path]
    trainings: set[Path]


def made(workspace: Path) -> Made:
    folder = workspace / "datasets" / "dated"
    return Made(
        writes(folder.rglob("*")),
        set(folder.glob("*/dataset.json")),
        set((workspace / "runs" / "retrain-dated").glob("*/result.json")),
    )


def backfill(image_dataset: Client, retrain: Client, source: Path, dates: Sequence[date]) -> None:
    """Run a backfill of consecutive dates, also of completed ones, and wait for the training that follows."""
    begin = time.monotonic()
    started = image_dataset.create_backfill(
        {
            "dag_id": image_dataset.dag_id,
            "from_date": f"{dates[0]}T00:00:00Z",
            "to_date": f"{dates[-1]}T23:59:59Z",
            "dag_run_conf": {"source_uri": f"{source}/{{date}}", "num_shards": 1, "shards_per_task": 100},
            "reprocess_behavior": "completed",
            "max_active_runs": RUNS_AT_ONCE,
        }
    )
    comes(lambda: not image_dataset.runs({"state": ACTIVE}), LIMIT_S, LOOK_EVERY_S)
    published = time.monotonic()
    image_dataset.close_backfill(started["id"])
    # In this order, because an asset event becomes a run. Otherwise, it could be missed between the two checks.
    comes(lambda: not retrain.has_events() and not retrain.runs({"state": ACTIVE}), LIMIT_S, LOOK_EVERY_S)
    runs = image_dataset.runs({"logical_date_gte": f"{DATES[0]}T00:00:00Z"})
    assert [run["state"] for run in runs] == ["success"] * len(DATES)
    print(f"{len(dates)} dates in {published - begin:.0f} s, then {time.monotonic() - published:.0f} s for retrain")


def test_six_dates_create_six_datasets_and_one_training(
    cluster: Cluster, image_dataset: Client, retrain: Client, source: Path
):
    workspace = cluster.workspace
    backfill(image_dataset, retrain, source, DATES)
    first = made(workspace)
    assert (len(first.datasets), len(first.trainings)) == (len(DATES), 1)

    backfill(image_dataset, retrain, source, DATES[:2])
    assert made(workspace) == first

    for day in (DATES[3], DATES[5]):
        add_images(source, day, range(IMAGES, IMAGES + 1))
    backfill(image_dataset, retrain, source, DATES[3:6])
    third = made(workspace)
    assert (len(third.datasets - first.datasets), len(third.trainings - first.trainings)) == (2, 1)
    assert first.datasets | first.trainings <= third.datasets | third.trainings
    shared = [path for path in first.files if "partitions" not in path.parts]
    assert {path: third.files[path] for path in shared} == {path: first.files[path] for path in shared}
    newest = load(newest_dataset(settings_from({**SETTINGS, "workspace": str(workspace)})))
    assert sum(split.examples for split in newest.splits.values()) == 2 * (len(DATES) * IMAGES + 2)
    assert {run["state"] for run in retrain.runs({})} == {"success"}
