"""The DAG retrain: datasets of several dates become one training."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pipeline import storage
from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.dataset.partitions import LATEST, Partition, save_partition, withdraw_partition
from pipeline.errors import DatasetError, SettingsError
from pipeline.runs.champion import PROMOTE, Entry, move, pointer_of
from pipeline.runs.choices import Choice, save_choice
from pipeline.runs.dates import DateState, dates_of
from pipeline.runs.run import training_place
from pipeline.runs.training_settings import settings_of_training
from tests.conftest import MakeImages, jpeg
from tests.dags.conftest import RunDag
from tests.published import newest_dataset, publish

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings

DATE = datetime(2026, 1, 1, tzinfo=UTC)
UnderWay = Callable[..., None]
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


@pytest.mark.long
def test_retrain_fails_without_a_dataset(run_dag: RunDag, capfd: pytest.CaptureFixture):
    ran = run_dag("retrain", {})
    assert (ran.tasks["choose"], ran.tries["choose"]) == ("failed", 1)
    assert "dataset_name is empty, but " in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("given", "new", "trained"),
    [
        ("", ["flowers"], "flowers"),
        ("", ["flowers", "flowers"], "flowers"),  # several dates of a backfill
        ("flowers", ["cars", "flowers"], "flowers"),
        ("", ["cars", "flowers"], "refused"),
        ("flowers", ["cars"], "skipped"),
    ],
)
def test_the_dataset_name_comes_from_the_asset_events(
    given: str, new: list[str], trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The context is fake. The long tests have real events."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    events = [announced_in(tmp_path, name) for name in new]
    use_context(monkeypatch, events, "first")
    settings = settings_from({"dataset_name": given, "workspace": str(tmp_path)})
    errors = {"skipped": AirflowSkipException, "refused": SettingsError}
    with pytest.raises(errors[trained], match="cars") if trained in errors else nullcontext():
        assert retrain._with_name(settings).dataset_name == trained


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def announced_in(
    workspace: Path, name: str, timestamp: datetime = NOON, extra: Mapping[str, Any] = MappingProxyType({})
) -> SimpleNamespace:
    """Return the event of a new dataset, as the task `commit` makes it."""
    dataset = str(workspace / "datasets" / name / NEW)
    return SimpleNamespace(timestamp=timestamp, extra={"dataset_name": name, "dataset": dataset, **extra})


@pytest.mark.parametrize(
    ("given", "trained"), [("", "flowers"), ("flowers", "flowers"), ("cars", "skipped"), ("trucks", "skipped")]
)
def test_datasets_in_another_workspace_are_left_to_the_runs_there(
    given: str, trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another team publishes under the same names. Its workspace has no dataset of this one."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"dataset_name": given, "workspace": str(tmp_path / "ours")})
    events = [announced_in(tmp_path / folder, name) for folder, name in (("ours", "flowers"), ("theirs", "cars"))]
    use_context(monkeypatch, events, "first")
    with pytest.raises(AirflowSkipException, match="are of") if trained == "skipped" else nullcontext():
        assert retrain._with_name(settings).dataset_name == trained
    use_context(monkeypatch, events[1:], "second")
    with pytest.raises(AirflowSkipException, match=f"are in {tmp_path / 'theirs' / 'datasets'}, but"):
        retrain._with_name(settings)


def test_a_link_that_a_move_left_behind_leads_to_the_same_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from dags import retrain

    (tmp_path / "new").mkdir()
    (tmp_path / "old").symlink_to(tmp_path / "new")
    for here, there in (("new", "old"), ("old", "new")):
        use_context(monkeypatch, [announced_in(tmp_path / there, "flowers")], "first")
        assert retrain._with_name(settings_from({"workspace": str(tmp_path / here)})).dataset_name == "flowers"


@pytest.mark.parametrize("extra", [{"from_rest_api": True}, {"dataset": 5}, {"dataset": "gs://"}])
@pytest.mark.parametrize("beside", [False, True])
def test_an_event_that_a_person_made_in_the_ui_starts_a_run_as_by_hand(
    extra: dict[str, Any], beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also if a dataset of another team was published just before."""
    from dags import retrain

    settings = settings_from({"workspace": str(tmp_path)})
    add_partition(settings, "flowers", DAYS[0], NEW)
    events = [SimpleNamespace(timestamp=NOON, extra=extra), *([announced_in(tmp_path / "theirs", "cars")] * beside)]
    use_context(monkeypatch, events, "first")
    assert retrain._with_name(settings).dataset_name == "flowers"


@pytest.mark.parametrize(
    ("served", "expected"), [(["cars"], "flowers"), (["flowers"], "cars"), (["cars", "flowers"], "skipped")]
)
def test_events_served_by_another_run_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[str], expected: str
):
    """Airflow may pass an event to a second run, together with an event of another dataset."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"workspace": str(tmp_path)})
    events = [announced_in(tmp_path, name) for name in ("cars", "flowers")]
    for name in served:
        of_name = settings.model_copy(update={"dataset_name": name})
        save_choice(of_name.workspace, f"retrain-{name}", Choice("first", NOON.timestamp() + 1, NOON.timestamp(), {}))
    use_context(monkeypatch, events, "second")
    with pytest.raises(AirflowSkipException, match="other runs") if expected == "skipped" else nullcontext():
        assert retrain._with_name(settings).dataset_name == expected


def use_context(
    monkeypatch: pytest.MonkeyPatch,
    events: list[SimpleNamespace],
    run_id: str,
    run_type: str = "asset_triggered",
    looks: int = 0,
) -> None:
    """Give the tasks a fake context after some looks, because a run of `dag.test` has no asset events."""
    from dags import retrain

    of_run = {"run_id": run_id, "ti": SimpleNamespace(dag_id="retrain"), "dag_run": SimpleNamespace(run_type=run_type)}
    events_of = {retrain.DATASETS: events}
    context = {"triggering_asset_events": events_of, "task_reschedule_count": looks, **of_run}
    monkeypatch.setattr(retrain, "get_current_context", lambda: context)


def add_partition(settings: Settings, name: str, day: str, version: str) -> None:
    """Publish the partition of a day, without an event. The version itself is missing."""
    folder = settings.datasets_folder / name
    save_partition(folder, Partition(day, version, 1), lambda _: 0)


@pytest.mark.long
def test_a_setting_of_another_dag_is_refused(run_dag: RunDag, capfd: pytest.CaptureFixture):
    ran = run_dag("retrain", {"source_uri": "/data"})
    assert (ran.tasks["choose"], ran.tries["choose"]) == ("failed", 1)
    assert "source_uri is not a setting of retrain" in "".join(capfd.readouterr())


@pytest.mark.core
def test_a_window_with_leaked_validation_images_fails_before_the_training(
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


@pytest.fixture
def under_way(airflow_database: None) -> Iterator[UnderWay]:
    """A function that adds an active run of `image_dataset`, or another DAG, until the end of the test."""
    from airflow.models import DagRun
    from airflow.utils.session import create_session

    made: list[str] = []

    def start(conf: dict[str, Any], date: datetime | None, state: str, maker: str = "image_dataset") -> None:
        made.append(f"under_way_{len(made)}")
        now = datetime.now(UTC)
        with create_session() as session:
            run = DagRun(maker, made[-1], run_after=now, run_type="manual", state=state, conf=conf)
            run.logical_date, run.start_date, run.queued_at = date, now, now
            session.add(run)

    yield start
    with create_session() as session:
        session.query(DagRun).filter(DagRun.run_id.in_(made)).delete()


@pytest.fixture
def waits(run_dag: RunDag, dags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], bool]:
    """A function that returns whether `choose` would wait. Its timeout is over at once, and there is no dataset."""
    of_dag = (
        dags["retrain"].get_task("choose").python_callable.__globals__
    )  # Airflow loads a DAG file as a separate module
    monkeypatch.setitem(of_dag, "WAIT", timedelta(seconds=-1))
    waited: list[str] = []
    log = SimpleNamespace(info=lambda *_: None, warning=lambda message, *values: waited.append(message % values))
    monkeypatch.setitem(of_dag, "_log", log)

    def run(conf: dict[str, Any]) -> bool:
        assert run_dag("retrain", conf).tasks["choose"] == "failed"
        return any("this run has waited" in message for message in waited)

    return run


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("form", "date", "state", "expected"),
    [
        ({"source_uri": "/data/flowers/{date}"}, DATE, "running", True),
        ({"source_uri": "/data/cars/{date}"}, DATE, "running", False),
        ({"source_uri": "/data/cars/{date}", "dataset_name": "flowers"}, DATE, "queued", True),
        ({"source_uri": "/data/flowers/{date}", "publish_uri": "/elsewhere"}, DATE, "queued", False),
        ({"no such": "setting"}, DATE, "queued", False),
        # Airflow reports only that such a run exists.
        ({"source_uri": "/data/cars/{date}"}, None, "running", True),
    ],
)
def test_choose_waits_only_for_runs_that_build_this_dataset(
    waits: Callable[[dict[str, Any]], bool], under_way: UnderWay, tmp_path: Path, form: dict[str, Any],
    date: datetime | None, state: str, expected: bool,
):  # fmt: skip
    workspace = {"workspace": str(tmp_path / "workspace")}
    under_way({"source_uri": "/data/trucks"}, datetime(2026, 2, 2, tzinfo=UTC), state)
    under_way({**workspace, **form}, date, state)
    assert waits({**workspace, "dataset_name": "flowers"}) == expected


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/data/flowers/{date}.csv", True),
        ("/flowers/data/{date}.csv", False),
    ],
)
def test_choose_waits_for_runs_that_build_this_dataset_of_a_table(
    waits: Callable[[dict[str, Any]], bool], under_way: UnderWay, tmp_path: Path, source: str, expected: bool
):
    workspace = {"workspace": str(tmp_path / "workspace")}
    under_way({**workspace, "source_uri": source}, DATE, "running", "tabular_dataset")
    assert waits({**workspace, "dataset_name": "flowers"}) == expected


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("state", ["queued", "running"])
def test_choose_does_not_wait_for_many_runs_of_another_dataset(
    waits: Callable[[dict[str, Any]], bool], under_way: UnderWay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    state: str,
):  # fmt: skip
    monkeypatch.setattr("dags.under_way.MAX_LOOKS", 2)
    for day in (1, 2, 3):
        under_way({"source_uri": "/data/trucks"}, datetime(2026, 2, day, tzinfo=UTC), state)
    assert not waits({"workspace": str(tmp_path / "workspace"), "dataset_name": "flowers"})


def test_a_run_whose_events_an_earlier_run_served_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"dataset_name": "flowers", "workspace": str(tmp_path)})
    chosen_at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    an_hour_before = chosen_at.timestamp() - 3600
    save_choice(settings.workspace, "retrain-flowers", Choice("first", chosen_at.timestamp(), an_hour_before, {}))

    def skips(run_id: str, minutes: list[int]) -> bool:
        times = [chosen_at + timedelta(minutes=each) for each in minutes]
        use_context(monkeypatch, [announced_in(tmp_path, "flowers", time) for time in times], run_id)
        try:
            retrain._skip_if_served(settings)
        except AirflowSkipException:
            return True
        return False

    assert skips("second", [-30, -10])
    assert not skips("second", [-30, -1])  # within the tolerance for different clocks
    assert not skips("second", [-30, 1])
    assert not skips("second", [])  # triggered by a person
    assert not skips("first", [-10])  # cleared or retried


OLD, NEW = 16 * "a", 16 * "b"
"""Two versions."""


@pytest.mark.parametrize("announced", [["flowers"], ["cars", "flowers"]])
@pytest.mark.parametrize(("published", "is_skipped"), [({DAYS[0]: OLD}, True), ({DAYS[0]: OLD, DAYS[1]: NEW}, False)])
def test_a_run_with_served_events_trains_if_the_event_of_a_newer_partition_was_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, announced: list[str], published: dict[str, str], is_skipped: bool
):
    """Airflow 3.3.2 left the last of five events in no run, while a run with older events was queued."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"window": 2, "workspace": str(tmp_path)})
    for day, version in published.items():
        add_partition(settings, "flowers", day, version)
    for name, chosen in {"cars": {}, "flowers": {DAYS[0]: OLD}}.items():
        choice = Choice("first", NOON.timestamp() + 3600, NOON.timestamp(), chosen)
        save_choice(settings.workspace, f"retrain-{name}", choice)
    events = [announced_in(tmp_path, name) for name in announced]
    use_context(monkeypatch, events, "second")
    with pytest.raises(AirflowSkipException, match=r"trains? on") if is_skipped else nullcontext():
        named = retrain._with_name(settings)
        retrain._skip_if_served(named)
        assert named.dataset_name == "flowers"


@pytest.mark.parametrize(
    ("given", "published", "chosen", "expected"),
    [
        ("", {}, {}, "skipped: no dataset is published"),
        ("flowers", {"cars": NEW}, {}, "skipped: no dataset 'flowers' is published"),
        ("", {"flowers": NEW}, {}, "flowers"),
        ("flowers", {"cars": NEW, "flowers": OLD}, {"cars": (OLD, 1)}, "flowers"),
        ("", {"cars": NEW, "flowers": NEW}, {}, "refused: of several names \\(cars, flowers\\)"),
        # Of several names, those count that new datasets have started a training of.
        ("", {"cars": NEW, "flowers": NEW, "samples": NEW}, {"cars": (NEW, 1), "flowers": (OLD, 2)}, "flowers"),
        ("", {"cars": NEW, "flowers": NEW}, {"cars": (OLD, 1), "flowers": (OLD, 2)}, "cars"),
        ("", {"cars": NEW, "flowers": NEW}, {"cars": (NEW, 2), "flowers": (NEW, 1)}, "flowers"),
    ],
)
def test_a_scheduled_run_looks_at_what_is_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, published: dict[str, str],
    chosen: dict[str, tuple[str, int]], expected: str,
):  # fmt: skip
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"dataset_name": given, "workspace": str(tmp_path)})
    for name, version in published.items():
        add_partition(settings, name, DAYS[0], version)
    for name, (version, at) in chosen.items():
        save_choice(settings.workspace, f"retrain-{name}", Choice("first", at, 0, {DAYS[0]: version}))
    use_context(monkeypatch, [], "second", "scheduled")
    outcome, _, message = expected.partition(": ")
    errors = {"skipped": AirflowSkipException, "refused": SettingsError}
    with pytest.raises(errors[outcome], match=message) if outcome in errors else nullcontext():
        assert retrain._with_name(settings).dataset_name == outcome


def test_a_scheduled_run_names_the_datasets_whose_first_event_may_be_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    from dags import retrain

    settings = settings_from({"workspace": str(tmp_path)})
    for name, partition in {"birds": DAYS[0], "cars": DAYS[0], "flowers": DAYS[0], "samples": LATEST}.items():
        add_partition(settings, name, partition, NEW)
    save_choice(settings.workspace, "retrain-cars", Choice("first", 1, 0, {DAYS[0]: NEW}))
    use_context(monkeypatch, [], "second", "scheduled")
    assert retrain._with_name(settings).dataset_name == "cars"
    warning = "dates of birds, flowers are published, but no new dataset has started a training"
    assert caplog.text.count(warning) == 1
    use_context(monkeypatch, [], "second", "scheduled", looks=1)
    assert retrain._with_name(settings).dataset_name == "cars"
    assert caplog.text.count(warning) == 1


def test_a_damaged_partition_does_not_stop_scheduled_runs_for_other_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    from dags import retrain

    settings = settings_from({"workspace": str(tmp_path)})
    for at, name in enumerate(("cars", "flowers")):
        add_partition(settings, name, DAYS[0], OLD)
        save_choice(settings.workspace, f"retrain-{name}", Choice("first", at, 0, {DAYS[0]: OLD}))
    damaged = settings.datasets_folder / "cars" / "partitions" / f"{DAYS[0]}.json"
    damaged.write_bytes(b"{")
    use_context(monkeypatch, [], "second", "scheduled")
    assert retrain._with_name(settings).dataset_name == "flowers"
    use_context(monkeypatch, [], "second", "scheduled", looks=1)
    assert retrain._with_name(settings).dataset_name == "flowers"
    assert caplog.text.count("this run does not look at cars") == 1
    (settings.datasets_folder / "flowers" / "partitions" / f"{DAYS[0]}.json").write_bytes(b"{")
    assert retrain._with_name(settings).dataset_name == "cars"  # Its error says what is damaged.


def test_a_name_whose_partitions_cannot_be_one_dataset_does_not_stop_scheduled_runs_for_other_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from dags import retrain

    settings = settings_from({"workspace": str(tmp_path)})
    for at, name in enumerate(("cars", "flowers")):
        add_partition(settings, name, DAYS[0], NEW)
        save_choice(settings.workspace, f"retrain-{name}", Choice("first", at, 0, {DAYS[0]: OLD}))
    use_context(monkeypatch, [], "second", "scheduled")
    cars = retrain._with_name(settings)
    assert cars.dataset_name == "cars"
    with pytest.raises(DatasetError, match=f"{NEW} has no dataset"):
        retrain._newest(cars)
    use_context(monkeypatch, [], "third", "scheduled")
    assert retrain._with_name(settings).dataset_name == "flowers"


def test_a_run_is_skipped_if_all_partitions_are_withdrawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"dataset_name": "flowers", "workspace": str(tmp_path)})
    add_partition(settings, "flowers", DAYS[0], OLD)
    withdraw_partition(settings.datasets_folder / "flowers", DAYS[0])
    use_context(monkeypatch, [], "first", "scheduled")
    with pytest.raises(AirflowSkipException, match="all partitions of 'flowers' are withdrawn"):
        retrain._newest(settings)


def test_a_scheduled_run_still_serves_the_events_of_the_run_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The events may come within the tolerance for different clocks."""
    from dags import retrain

    settings = settings_from({"dataset_name": "flowers", "workspace": str(tmp_path)})
    monkeypatch.setattr("pipeline.stages.upload.dataset_of_partitions", lambda *_: tmp_path / "dataset")
    monkeypatch.setattr("pipeline.runs.launch.load_trained_result", lambda *_: None)
    just_now = [announced_in(tmp_path, "flowers", datetime.now(UTC))]
    use_context(monkeypatch, just_now, "first")
    retrain._newest(settings)
    use_context(monkeypatch, [], "second", "scheduled")
    retrain._newest(settings)
    use_context(monkeypatch, just_now, "third")
    assert retrain._server_of(settings) == "second"


@pytest.mark.parametrize(("run_type", "is_saved"), [("scheduled", True), ("manual", False)])
def test_a_scheduled_run_serves_older_events_and_a_run_of_a_person_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_type: str, is_saved: bool
):
    from dags import retrain

    settings = settings_from({"dataset_name": "flowers", "workspace": str(tmp_path)})
    monkeypatch.setattr("pipeline.stages.upload.dataset_of_partitions", lambda *_: tmp_path / "dataset")
    monkeypatch.setattr("pipeline.runs.launch.load_trained_result", lambda *_: None)
    use_context(monkeypatch, [], "first", run_type)
    assert retrain._newest(settings)["training"] == "retrain-flowers"
    use_context(monkeypatch, [announced_in(tmp_path, "flowers")], "second")
    assert retrain._server_of(settings) == ("first" if is_saved else "")


def test_a_run_without_a_new_dataset_still_serves_its_events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Otherwise, the dataset name would be new in a second run that gets the same events."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"dataset_name": "flowers", "workspace": str(tmp_path)})
    monkeypatch.setattr("pipeline.stages.upload.dataset_of_partitions", lambda *_: tmp_path / "dataset")
    monkeypatch.setattr("pipeline.runs.launch.load_trained_result", lambda *_: {"run": "an earlier run"})
    events = [announced_in(tmp_path, "flowers")]
    use_context(monkeypatch, events, "first")
    with pytest.raises(AirflowSkipException, match="an earlier run"):
        retrain._newest(settings)
    use_context(monkeypatch, events, "second")
    assert retrain._server_of(settings) == "first"


@pytest.mark.parametrize(("champions_version", "says_how"), [("with the bad date", True), ("without it", False)])
def test_a_run_skipped_after_a_withdrawal_says_how_to_promote_the_earlier_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, champions_version: str, says_how: bool
):
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    settings = settings_from({"dataset_name": "flowers", "workspace": str(tmp_path)})
    monkeypatch.setattr("pipeline.stages.upload.dataset_of_partitions", lambda *_: tmp_path / "without it")
    monkeypatch.setattr("pipeline.runs.launch.load_trained_result", lambda *_: {"run": "earlier"})
    champion = str(tmp_path / "runs" / "champion")
    promoted = Entry(PROMOTE, champion, f"{champion}/export", champions_version, {}, None, "", "", "")
    move(pointer_of(tmp_path, "flowers"), promoted)
    use_context(monkeypatch, [announced_in(tmp_path, "flowers")], "first")
    with pytest.raises(AirflowSkipException, match=r"^earlier was already trained on") as skipped:
        retrain._newest(settings)
    advice = f"{champion}, which was trained on version with the bad date. To make the earlier run the champion, run "
    assert (f"{advice}`tenfold promote earlier`" in str(skipped.value)) is says_how


@pytest.mark.parametrize(
    ("announced", "window", "is_served"),
    [
        ([(DAYS[2], "c")], 2, True),
        ([(DAYS[2], "old"), (DAYS[2], "c"), (DAYS[1], "b")], 2, True),
        ([(DAYS[2], "c"), (DAYS[2], "new")], 2, False),
        ([(DAYS[0], "older than the chosen dates")], 2, True),
        ([(DAYS[0], "older, but the window has room")], 3, False),
        ([("", "c")], 2, False),
        ([(None, None)], 2, False),
    ],
)
def test_events_of_chosen_versions_do_not_stop_a_run_for_another_dataset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, announced: list[tuple[str, str]], window: int, is_served: bool
):
    """Airflow hands an event that came after the first one to the next run only, however soon it came."""
    from dags import retrain

    settings = settings_from({"window": window, "workspace": str(tmp_path)})
    chosen, own = {DAYS[1]: "b", DAYS[2]: "c"}, settings.model_copy(update={"dataset_name": "flowers"})
    save_choice(own.workspace, "retrain-flowers", Choice("first", NOON.timestamp() + 10, NOON.timestamp(), chosen))
    events = [
        announced_in(tmp_path, "flowers", NOON + timedelta(seconds=1 + number), {"data_date": day, "version": version})
        for number, (day, version) in enumerate(announced)
    ]
    use_context(monkeypatch, [*events, announced_in(tmp_path, "cars")], "second")
    with nullcontext() if is_served else pytest.raises(SettingsError, match="cars, flowers"):
        assert retrain._with_name(settings).dataset_name == "cars"
    # Alone, they start a training: the settings may have changed.
    use_context(monkeypatch, events, "second")
    retrain._skip_if_served(own)


@pytest.mark.long
def test_after_the_loss_of_airflows_database_nothing_is_built_or_trained_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The workspace is also moved. All that a new Airflow knows are its own events."""
    from airflow.sdk.exceptions import AirflowSkipException

    from dags import retrain

    def build_all(workspace: Path) -> None:
        for day in DAYS:
            publish(photos / "{date}", workspace, data_date=day)

    def states(settings: Settings) -> list[DateState]:
        return [replace(date, last_run="") for date in dates_of(settings).dates]

    before, after = (
        settings_from({"dataset_name": "images", "window": 3, "workspace": str(tmp_path / name)}) for name in "wv"
    )
    build_all(tmp_path / "w")
    window = newest_dataset(before)
    training = training_place(settings_of_training(before, load(window)), "retrain-images", window.name)
    storage.write_json(training / "result.json", {"run": str(training)})
    storage.write_json(training / "export" / "about.json", {})
    promoted = Entry(PROMOTE, str(training), str(training / "export"), window.name, {}, None, "", "", "")
    move(pointer_of(tmp_path / "w", "images"), promoted)
    save_choice(before.workspace, "retrain-images", Choice("lost", NOON.timestamp(), NOON.timestamp(), {}))
    known = states(before)
    assert {date.state for date in known} == {"seen"}

    shutil.move(tmp_path / "w", tmp_path / "v")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "v" / "datasets").rglob("*")}
    build_all(tmp_path / "v")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "v" / "datasets").rglob("*")} == written
    assert states(after) == known
    use_context(monkeypatch, [announced_in(tmp_path / "v", "images", NOON + timedelta(days=1))] * 3, "restored")
    with pytest.raises(AirflowSkipException, match=f"{tmp_path}/v/runs/retrain-images/.* was already trained on"):
        retrain._newest(retrain._with_name(after))


@pytest.mark.long
def test_the_newest_dates_are_trained_on_once_as_one_dataset(run_dag: RunDag, photos: Path):
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


COLUMNS = {DAYS[0]: ("x", "color", "y"), DAYS[1]: ("x", "y"), DAYS[2]: ("y", "x", "color")}
"""The columns of the table of each day. The second day lacks one."""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with a table for each of three days."""
    folder = tmp_path / "sales"
    folder.mkdir()
    for first, (day, names) in enumerate(COLUMNS.items()):
        rows = [
            {"x": number, "color": "red" if number % 3 else "blue", "y": "yes" if number % 2 else "no"}
            for number in range(40 * first, 40 * first + 40)
        ]
        lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
        (folder / f"{day}.csv").write_text("\n".join(lines))
    return folder


def _build_table(run_dag: RunDag, tables: Path, day: str) -> dict:
    form = {"source_uri": str(tables / "{date}.csv"), "label_column": "y", "on_columns": "continue", "num_shards": 2}
    ran = run_dag("tabular_dataset", form, datetime.fromisoformat(day + "T00:00+00:00"))
    assert ran.state == "success"
    made: dict = ran.returned("upload.commit")
    return made


@pytest.mark.long
def test_the_table_of_a_date_becomes_a_dataset_and_an_event(run_dag: RunDag, tables: Path):
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    made = _build_table(run_dag, tables, DAYS[1])
    dataset = load(Path(made["dataset"]))
    assert (dataset.name, dataset.table["rows"], sum(made["examples"].values())) == ("sales", 40, 40)
    with create_session() as session:
        event = session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc())).first()
        assert event is not None
        assert (event.source_dag_id, event.asset.name) == ("tabular_dataset", "dataset")
        assert event.extra == {"dataset_name": "sales", "data_date": DAYS[1], **made}


@pytest.mark.long
def test_the_asset_event_describes_the_published_dataset(run_dag: RunDag, photos: Path):
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
