"""From dates to data sets to one training."""

import shutil
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.config import settings_from
from pipeline.dataset import load
from pipeline.errors import SettingsError
from tests.conftest import MakeImages, jpeg
from tests.dags.conftest import RunDag
from tests.published import publish

pytestmark = pytest.mark.filterwarnings("default")  # Airflow warns itself of much

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]


@pytest.fixture
def photos(make_images: MakeImages) -> Path:
    """A folder of images for each of three days."""
    return make_images({f"{day}/{label}": 10 for day in DAYS for label in ("cats", "dogs")})


def _build(run_dag: RunDag, photos: Path, day: str) -> dict:
    ran = run_dag("image_dataset", {"source_uri": str(photos / "{date}")}, datetime.fromisoformat(day + "T00:00+00:00"))
    assert ran.state == "success"
    made: dict = ran.returned("upload.commit")
    return made


def test_without_a_data_set_there_is_nothing_to_train_on(run_dag: RunDag, capfd: pytest.CaptureFixture):
    ran = run_dag("retrain", {})
    assert (ran.tasks["choose"], ran.tries["choose"]) == ("failed", 1)
    assert "dataset_name is empty, and " in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("given", "new", "trained"),
    [
        ("", ["flowers"], "flowers"),
        ("", ["flowers", "flowers"], "flowers"),  # dates of a backfill
        ("flowers", ["cars", "flowers"], "flowers"),
        ("", ["cars", "flowers"], "refused"),
        ("flowers", ["cars"], "skipped"),
    ],
)
def test_the_name_is_that_of_the_dataset_that_is_new(
    given: str, new: list[str], trained: str, monkeypatch: pytest.MonkeyPatch
):
    """With a context of its own: a run of `dag.test` has no asset events. The long tests have real ones."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    events = [SimpleNamespace(extra={"dataset_name": name}) for name in new]
    context = {"triggering_asset_events": {retrain.DATASETS: events}}
    monkeypatch.setattr(retrain, "get_current_context", lambda: context)
    settings = settings_from({"dataset_name": given})
    errors = {"skipped": AirflowSkipException, "refused": SettingsError}
    with pytest.raises(errors[trained], match="cars") if trained in errors else nullcontext():
        assert retrain._with_name(settings).dataset_name == trained


def test_a_setting_of_the_other_dag_is_refused(run_dag: RunDag, capfd: pytest.CaptureFixture):
    ran = run_dag("retrain", {"source_uri": "/data"})
    assert (ran.tasks["choose"], ran.tries["choose"]) == ("failed", 1)
    assert "source_uri is not a setting of retrain" in "".join(capfd.readouterr())


def test_a_window_that_would_train_on_its_validation_images_stops_before_the_training(
    run_dag: RunDag, make_images: MakeImages, tmp_path: Path, capfd: pytest.CaptureFixture
):
    classes = ("cats", "dogs")
    source = make_images({f"{DAYS[0]}/{split}/{label}": 4 for split in ("train", "validation") for label in classes})
    shutil.copytree(source / DAYS[0] / "train", source / DAYS[1] / "validation")
    shutil.copytree(source / DAYS[0] / "validation", source / DAYS[1] / "train")
    for day in DAYS[:2]:
        publish(source / "{date}", tmp_path / "workspace", data_date=day)
    ran = run_dag("retrain", {"window": 2})
    assert (ran.tasks["choose"], ran.tries["choose"]) == ("failed", 1)
    assert "16 of 16 (100%) validation and test images are in training too" in "".join(capfd.readouterr())


@pytest.mark.long
def test_the_newest_dates_are_trained_on_as_one_data_set_and_only_once(run_dag: RunDag, photos: Path):
    made = [_build(run_dag, photos, day) for day in DAYS]
    assert len({each["version"] for each in made}) == 3
    assert len({each["labels"]["crc32c"] for each in made}) == 1

    first = run_dag("retrain", {"window": 2})
    assert first.state == "success"
    window = load(Path(first.returned("choose")))
    assert dict(window.window) == {day: each["version"] for day, each in zip(DAYS[1:], made[1:], strict=True)}
    assert sum(split.examples for split in window.splits.values()) == 40
    trained = first.returned("train")
    assert Path(trained["model"]).exists()

    again = run_dag("retrain", {"window": 2})
    assert again.state == "success"
    assert again.tasks == dict.fromkeys(("choose", "servers", "train", "promote", "report"), "skipped")

    (photos / DAYS[2] / "cats" / "new.jpg").write_bytes(jpeg(77))
    assert _build(run_dag, photos, DAYS[2])["version"] != made[2]["version"]
    changed = run_dag("retrain", {"window": 2})
    assert changed.returned("train")["run"] != trained["run"]


def test_the_asset_learns_what_was_published(run_dag: RunDag, photos: Path):
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    made = _build(run_dag, photos, DAYS[0])
    with create_session() as session:
        event = session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc())).first()
        assert event is not None
        assert event.source_dag_id == "image_dataset"
        assert event.extra == {"dataset_name": "source", "data_date": DAYS[0], **made}
    assert (sum(made["examples"].values()), made["labels"]["count"]) == (20, 2)
