"""The state of the dates that runs of Airflow made: what the server answers, and to whom."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route

from pipeline.config.settings import settings_from
from pipeline.config.workspace import name_folder
from pipeline.dataset.partitions import move_partition, withdraw_partition
from pipeline.runs.dates import STATES
from tests.browser import Seen, browser
from tests.contrast import MIN_CONTRAST, contrast
from tests.plugins.test_badges import PLUGIN, themes
from tests.plugins.test_trainings import MARKUP, Client, allow, client, logged_in
from tests.runs.test_dates import build_date, make_date, promote, settings_of

__all__ = ["allow", "browser", "client"]
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
SOURCE = {"source_uri": "/data/{date}"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with three dates, of which the gate refused the second, and no date between the second and third."""
    folder = tmp_path_factory.mktemp("dates")
    for day, broken in ((1, 0), (2, 3), (4, 0)):
        make_date(folder / "birds", f"2026-01-{day:02d}", broken=broken)
        build_date(folder / "birds", folder / "w", f"2026-01-{day:02d}", refused=bool(broken))
    return folder / "w"


@pytest.fixture
def runs(airflow_database: None, workspace: Path) -> Iterator[None]:
    """Runs of a DAG of one team that made these dates, and one that failed in its first task."""
    from tests.plugins.airflow_runs import add_dag, remove_all

    add_dag("ours", "us")
    add_dag("theirs", "them")
    for day, state in ((1, "success"), (2, "failed"), (4, "success")):
        add_dated_run(f"run {day}", workspace, f"2026-01-{day:02d}", state)
    yield
    remove_all()


def add_dated_run(
    run_id: str,
    workspace: Path,
    date: str,
    state: str,
    stored: bool = True,
    dag_id: str = "ours",
    name: str = "birds",
    error: str = "the gate stopped it",
    conf: dict[str, str] = SOURCE,
) -> None:
    """Add a run of a date. If its first task has stored its settings, the run has an XCom with them."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import insert, select

    from tests.plugins.airflow_runs import add_run, store

    failed = {"upload.commit" if stored else "extract": 1} if state == "failed" else {}
    add_run(dag_id, run_id, None, state=state, pool="default_pool", failed=failed, error=error if failed else "")
    settings = {**settings_of(workspace).model_dump(), "dataset_name": name, "data_date": date}
    with create_session() as session:
        run = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).one()
        run.conf = conf
        if not stored:
            run.logical_date = datetime.fromisoformat(date).replace(tzinfo=UTC)
        else:
            task = {"dag_id": dag_id, "run_id": run_id, "task_id": "extract"}
            session.execute(insert(TaskInstance).values(**task, pool="d"))
            store(session, task, "settings", settings)


def answer(client: Client, who: dict[str, str], query: str = "") -> Any:
    response = client.get(f"/dates.json{query}", headers=who)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_newest_dataset_is_shown_with_the_last_run_of_each_date(client: Client, runs: None) -> None:
    shown = answer(client, logged_in("viewer", "us"))
    assert [each["dataset_name"] for each in shown["names"]] == ["birds"]
    assert (shown["words"], shown["shown"], shown["looked_up"]) == ("", 0, None)
    assert {each["date"]: each["state"] for each in shown["dates"]} == {
        "2026-01-01": "published", "2026-01-02": "failed", "2026-01-04": "published",
    }  # fmt: skip
    assert shown["counts"] == {"failed": 1, "missing": 1, "published": 2}
    assert [mend["first"] + mend["last"] for mend in shown["mends"]] == ["2026-01-022026-01-03"]
    assert shown["runs"]["2026-01-02"] == {"dag_id": "ours", "run_id": "run 2", "state": "failed"}
    assert shown["states"] == dict(STATES)


@pytest.fixture
def two_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the two newest runs are looked up."""
    from plugins.training_monitor import app
    from plugins.training_monitor.dates import DatasetRuns

    monkeypatch.setattr(app, "DatasetRuns", partial(DatasetRuns, max_runs=2))


def test_only_the_newest_runs_are_looked_up(client: Client, runs: None, two_newest: None) -> None:
    shown = answer(client, logged_in("viewer", "us"))
    assert (shown["looked_up"], set(shown["runs"])) == (2, {"2026-01-02", "2026-01-04"})


def test_a_run_without_settings_is_known_by_its_form(client: Client, runs: None, workspace: Path) -> None:
    add_dated_run("run 3", workspace, "2026-01-03", "failed", stored=False, error="source_uri is no folder")
    add_dated_run("run 5", workspace, "2026-01-05", "running", stored=False)
    in_the_form = {**SOURCE, "data_date": "2026-01-07"}
    add_dated_run("by hand", workspace, "2026-01-01", "failed", stored=False, conf=in_the_form)
    add_dated_run("another source", workspace, "2026-01-06", "failed", stored=False, conf={"source_uri": "/else"})
    shown = answer(client, logged_in("viewer", "us"))
    states = {each["date"][8:]: (each["state"], each["words"]) for each in shown["dates"]}
    assert states["03"] == ("failed", "Task extract failed: source_uri is no folder")
    assert states["05"] == ("running", "")
    assert states["07"][0] == "failed"
    assert "06" not in states
    assert shown["counts"] == {"failed": 3, "missing": 1, "running": 1, "published": 2}


@pytest.mark.parametrize(
    ("source", "moment", "date"),
    [
        ("/data/{date}", "2026-01-02T23:00+00:00", "2026-01-03"),
        ("/data/{date}", "2026-07-02T22:00+00:00", "2026-07-03"),
        ("/data/{date}/{hour}", "2026-01-02T23:00+00:00", "2026-01-02T23:00"),
        ("", "2026-01-02T23:00+00:00", "2026-01-03"),
    ],
    ids=["day in winter", "day in summer", "hour", "source of the settings file"],
)
@pytest.mark.parametrize("is_due", [False, True], ids=["logical date", "due"])
def test_a_run_without_settings_has_the_date_that_its_first_task_would_give_it(
    client: Client,
    runs: None,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    moment: str,
    date: str,
    is_due: bool,
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    monkeypatch.setenv("TENFOLD_TIMEZONE", "Europe/Berlin")
    form = {"source_uri": source}
    add_dated_run("with the form", workspace, "2026-01-01", "success", conf=form)
    add_dated_run("waits", workspace, "2026-01-01", "running", stored=False, conf=form)
    at = datetime.fromisoformat(moment)
    times = {"logical_date": None, "run_after": at} if is_due else {"logical_date": at}
    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.run_id == "waits").values(times))
    shown = answer(client, logged_in("viewer", "us"))
    assert [day for day, run in shown["runs"].items() if run["run_id"] == "waits"] == [date]
    if source:
        at_first_task = settings_from({"source_uri": source}).dated(at)
        assert at_first_task.data_date == date


@pytest.fixture
def withdrawn(workspace: Path) -> Iterator[str]:
    """The version of 1 January, which a person has withdrawn."""
    folder = name_folder(settings_of(workspace))
    version = withdraw_partition(folder, "2026-01-01").version
    yield version
    move_partition(folder, "2026-01-01", version)


def test_a_withdrawn_date_names_the_command_back(client: Client, runs: None, withdrawn: str, workspace: Path) -> None:
    shown = answer(client, logged_in("viewer", "us"))
    assert (shown["dates"][0]["state"], shown["dates"][0]["command"]) == ("withdrawn", back(withdrawn, workspace))
    assert shown["counts"] == {"failed": 1, "missing": 1, "withdrawn": 1, "published": 1}
    assert [mend["first"] + mend["last"] for mend in shown["mends"]] == ["2026-01-022026-01-03"]


def back(version: str, workspace: Path) -> str:
    """Return the command that brings 1 January back."""
    return f"python -m pipeline partition 2026-01-01 {version} --set dataset_name=birds --set workspace={workspace}"


def test_the_newest_run_of_a_date_counts(client: Client, runs: None, workspace: Path) -> None:
    add_dated_run("again", workspace, "2026-01-02", "running")
    shown = answer(client, logged_in("viewer", "us"))
    assert (shown["dates"][1]["state"], shown["runs"]["2026-01-02"]["run_id"]) == ("running", "again")


def test_the_run_of_a_date_that_was_queued_last_counts(client: Client, runs: None, workspace: Path) -> None:
    """A run that is cleared keeps its number."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    add_dated_run("run 2b", workspace, "2026-01-02", "failed", error="too many broken images")
    with create_session() as session:
        for minute, run_id in enumerate(("run 2b", "run 2")):
            queued = datetime(2026, 1, 3, 0, minute, tzinfo=UTC)
            session.execute(update(DagRun).where(DagRun.run_id == run_id).values(queued_at=queued))
    assert answer(client, logged_in("viewer", "us"))["runs"]["2026-01-02"]["run_id"] == "run 2"


def test_a_dataset_is_chosen_by_name_and_places(client: Client, runs: None, workspace: Path) -> None:
    add_dated_run("of cats", workspace, "2026-01-01", "failed", name="cats")
    who = logged_in("viewer", "us")
    assert [each["dataset_name"] for each in answer(client, who)["names"]] == ["cats", "birds"]
    assert answer(client, who, "?dataset_name=birds")["shown"] == 1
    whole = f"?dataset_name=birds&workspace={workspace}&publish_uri="
    assert answer(client, who, whole)["shown"] == 1
    for query in ("?dataset_name=dogs", f"?dataset_name=birds&workspace={workspace}/..&publish_uri="):
        assert answer(client, who, query)["words"] == "No run that you may see has made such a dataset."


def test_the_dates_require_a_login_and_the_right_to_read_runs(client: Client, runs: None) -> None:
    assert client.get("/dates").status_code == 401
    assert client.get("/dates.json").status_code == 401
    assert client.get("/dates.json", headers=logged_in(None)).status_code == 403
    assert client.get("/dates", headers=logged_in("viewer")).status_code == 200


def test_users_see_only_the_datasets_of_dags_that_they_can_read(client: Client, runs: None) -> None:
    for query in ("", "?dataset_name=birds", "?dag_id=theirs"):
        assert answer(client, logged_in("viewer", "them"), query)["names"] == []
    assert client.get("/dates.json?dag_id=theirs", headers=logged_in("viewer", "us")).status_code == 403


def test_reasons_are_shown_only_with_the_right_to_read_logs(
    client: Client, runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    who = logged_in("viewer", "us")
    assert "the gate stopped it" in answer(client, who)["dates"][1]["words"]
    before = SimpleAuthManager.is_authorized_dag

    def without_logs(self: Any, **options: Any) -> bool:
        is_of_logs = options.get("access_entity") == DagAccessEntity.TASK_LOGS
        return not is_of_logs and before(self, **options)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", without_logs)
    shown = answer(client, who)
    assert (shown["dates"][1]["state"], shown["dates"][1]["words"]) == ("failed", "")


def test_places_that_the_administrator_does_not_allow_are_not_read(
    client: Client, runs: None, tmp_path: Path, allow: Callable[..., None]
) -> None:
    allow(tmp_path)
    shown = answer(client, logged_in("viewer", "us"))
    assert "is outside what TENFOLD_ALLOWED_WORKSPACES allows" in shown["words"]
    assert "dates" not in shown


@pytest.mark.parametrize(
    "value", [7, {"data_date": "2026-13-01"}, {"data_date": MARKUP}, {"data_date": ["2026-01-01"]}]
)
def test_other_values_of_the_xcom_are_no_settings(client: Client, runs: None, value: Any) -> None:
    from airflow.utils.session import create_session

    from tests.plugins.airflow_runs import store

    with create_session() as session:
        store(session, {"dag_id": "ours", "run_id": "run 4", "task_id": "extract"}, "settings", value)
    assert set(answer(client, logged_in("viewer", "us"))["runs"]) == {"2026-01-01", "2026-01-02"}


def test_a_removed_workspace_is_named(client: Client, runs: None, workspace: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(workspace, tmp_path / "moved"))
    try:
        assert "has no dataset 'birds'" in answer(client, logged_in("viewer", "us"))["words"]
    finally:
        shutil.move(moved, workspace)


def test_each_state_of_a_day_has_contrast_in_each_theme() -> None:
    import re

    css = PLUGIN.read_text()
    rules = dict(re.findall(r"\.day\.([a-z]+) \{ ([^}]*) \}", css))
    assert rules.keys() == STATES.keys()
    for theme in themes(css):
        for state, rule in rules.items():
            parts = dict(re.findall(r"(?<![-a-z])(color|background): var\(--([a-z]+)\)", rule))
            ground = theme[parts.get("background", "page")]
            assert contrast(theme[parts["color"]], ground) >= MIN_CONTRAST, state
            assert f".badge.{state}" in css


def test_the_page_has_a_mark_for_each_state() -> None:
    import re

    from pipeline.commands.dates import MARKS

    [found] = re.findall(r"const MARKS = \{([^}]*)\}", (PLUGIN.parent / "dates.js").read_text())
    assert json.loads("{" + re.sub(r"(\w+):", r'"\1":', found) + "}") == dict(MARKS)


# --- in a browser -----------------------------------------------------------------------------------------------------

AIRFLOW = "http://airflow"
FILES = ("dates", "assets/dates.js", "assets/monitor.js", "assets/monitor.css")


@contextmanager
def opened(browser: Browser, client: Client, who: dict[str, str], **options: Any) -> Iterator[Seen]:
    """Open the page in a browser, which gets the answers of the application in this process."""
    names = [f"/{name}" for name in (*FILES, "dates.json")]
    # In another thread, because Playwright has an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        answers = dict(zip(names, thread.map(lambda name: client.get(name, headers=who), names), strict=True))

    def answer_with(route: Route) -> None:
        found = answers[urlsplit(route.request.url).path]
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    with browser.new_context(**options) as context:
        seen = Seen(context.new_page())
        seen.page.route(f"{AIRFLOW}/**", answer_with)
        seen.page.goto(f"{AIRFLOW}/dates")
        seen.page.locator("h1").wait_for()
        yield seen
        assert seen.complaints == []
        assert {urlsplit(each).netloc for each in seen.requests} == {"airflow"}


def marks(page: Page) -> str:
    """Return the marks of the days of the calendar."""
    return "".join(page.locator(".calendar tbody button").all_inner_texts())


def test_the_calendar_shows_each_day_and_the_commands(client: Client, runs: None, browser: Browser) -> None:
    with opened(browser, client, logged_in("viewer", "us")) as seen:
        page = seen.page
        assert marks(page) == "ox-o"
        assert page.get_by_role("button", name="2026-01-02: not published").get_attribute("title")
        assert page.get_by_role("table").first.get_by_role("rowheader").all_inner_texts() == ["2026-01"]
        assert (
            "2 of 4 dates published, from 2026-01-01 to 2026-01-04, one per day." in page.locator("main").inner_text()
        )
        legend = page.get_by_role("list", name="Number of dates by state").get_by_role("listitem").all_inner_texts()
        assert [each.split(" ", 1)[1] for each in legend] == ["not published: 1", "missing: 1", "published: 2"]
        looks = page.get_by_role("region", name="Dates with problems").get_by_role("row").all_inner_texts()[1:]
        assert looks[0].split("\t") == ["2026-01-03", "missing", "no dataset of this date"]
        assert "the gate stopped it" in looks[1]
        commands = page.get_by_role("region", name="Commands", exact=True).inner_text()
        assert commands.startswith("make backfill FROM=2026-01-02 TO=2026-01-03 REPROCESS=all SOURCE='/")
        later = page.get_by_role("region", name="Commands for later dates").inner_text()
        assert later.splitlines()[-1].startswith("make backfill FROM=2026-01-05 TO=20")
        assert (
            "No run listed the source of a date after 2026-01-04. If such dates should exist, find the cause, then run"
            in page.locator("main").inner_text()
        )
        page.get_by_role("button", name="2026-01-03: missing").click()
        assert page.locator("tr.chosen").inner_text().split("\t")[:3] == ["2026-01-03", "missing", ""]


def test_a_withdrawn_date_is_shown_with_its_command(
    client: Client, runs: None, withdrawn: str, browser: Browser, workspace: Path
) -> None:
    promote(workspace, withdrawn)
    try:
        with opened(browser, client, logged_in("viewer", "us")) as seen:
            page = seen.page
            assert marks(page) == "wx-o"
            assert "1 of 4 dates published" in page.locator("main").inner_text()
            looks = page.get_by_role("region", name="Dates with problems").get_by_role("row").all_inner_texts()
            state = "withdrawn by a person; windows leave it out; the champion was trained on it"
            assert looks[-1].split("\t")[:2] == ["2026-01-01", state]
            commands = page.get_by_role("region", name="Commands for withdrawn dates").inner_text()
            assert commands == back(withdrawn, workspace)
    finally:
        shutil.rmtree(workspace / "models")


def test_the_calendar_is_operated_with_the_keyboard(client: Client, runs: None, browser: Browser) -> None:
    with opened(browser, client, logged_in("viewer", "us")) as seen:
        page = seen.page
        page.get_by_role("region", name="Calendar of 2026").focus()
        for key, day in (("Tab", "01"), ("ArrowRight", "02"), ("ArrowRight", "03"), ("ArrowLeft", "02")):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.ariaLabel").startswith(f"2026-01-{day}: ")
        for key in ("ArrowUp", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):  # They do not leave the days.
            page.keyboard.press(key)
        assert page.evaluate("document.activeElement.ariaLabel").startswith("2026-01-04: ")
        page.keyboard.press("Enter")
        row = page.evaluate("document.activeElement.innerText").split("\t")
        assert (row[0], row[1], row[3:5]) == ("2026-01-04", "published", ["16", "0"])
        assert page.locator("tr.chosen").count() == 1
        assert page.get_by_role("region", name="All dates").get_by_role("link").all_inner_texts() == [
            "success", "failed", "success",
        ]  # fmt: skip


def test_the_page_says_if_there_may_be_older_runs(
    client: Client, runs: None, two_newest: None, browser: Browser
) -> None:
    with opened(browser, client, logged_in("viewer", "us")) as seen:
        assert "Only the newest 2 runs were searched" in seen.page.locator("main").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_days_have_the_colors_of_the_theme(client: Client, runs: None, browser: Browser, scheme: str) -> None:
    with opened(browser, client, logged_in("viewer", "us"), color_scheme=scheme) as seen:
        color = "getComputedStyle(document.querySelector('.calendar .failed')).backgroundColor"
        assert seen.page.evaluate(color) == {"light": "rgb(185, 28, 28)", "dark": "rgb(248, 113, 113)"}[scheme]
        ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(0, 0, 0)"}[scheme]
        if folder := os.environ.get("TENFOLD_SCREENSHOTS"):
            seen.page.screenshot(path=Path(folder) / f"ui-dates-{scheme}.png", full_page=True)


def test_markup_in_names_is_text(client: Client, runs: None, browser: Browser, workspace: Path) -> None:
    add_dated_run(MARKUP, workspace, "2026-01-02", "failed", error=MARKUP)
    add_dated_run("of another", workspace, "2026-01-01", "failed", name=MARKUP)
    with opened(browser, client, logged_in("viewer", "us")) as seen:
        assert "the dates cannot be read" in seen.page.get_by_role("alert").inner_text()
        assert MARKUP in seen.page.get_by_role("combobox").inner_text()
    add_dated_run("the newest", workspace, "2026-01-01", "success")
    with opened(browser, client, logged_in("viewer", "us")) as seen:
        looks = seen.page.get_by_role("region", name="Dates with problems").inner_text()
        assert MARKUP in looks
        assert seen.page.locator("script").count() == 1


def test_without_datasets_the_page_says_what_makes_one(client: Client, runs: None, browser: Browser) -> None:
    with opened(browser, client, logged_in("viewer", "them")) as seen:
        assert "No dataset has dates yet" in seen.page.get_by_role("alert").inner_text()
