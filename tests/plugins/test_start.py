"""The page that starts a training: what the server says about a form, to whom, and what a browser makes of it."""

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route

from pipeline.sources import look
from pipeline.watch.questions import MAX_PER_BUCKET, Questions
from standins.fake_gcs import FakeGcs
from tests.axe import SIZES, serious
from tests.browser import Seen, browser, patient
from tests.conftest import MakeImages
from tests.plugins.test_trainings import MARKUP, Client, client, logged_in
from tests.waiting import until

__all__ = ["browser", "client"]
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
IMAGES, TABLE = "image_training", "tabular_training"
PATIENT_S = 60.0


def check(form: Mapping[str, Any], dag_id: str = IMAGES, patience_s: float = PATIENT_S) -> dict[str, Any]:
    from plugins.training_monitor.start import check_form

    return check_form(dag_id, form, Questions(patience_s))


def test_a_sound_form_has_no_problem(make_images: MakeImages) -> None:
    source = make_images({"cats": 3, "dogs": 2})
    answer = check({"source_uri": str(source), "epochs": 3, "model": None})
    assert answer["problems"] == {}
    assert answer["source"]["words"].startswith("5 images, 2 classes, ")
    assert (answer["source"]["kind"], answer["dataset_name"]) == ("images", "source")


@pytest.mark.parametrize(
    ("form", "field", "sentence"),
    [
        ({"dataset_name": "my flowers"}, "dataset_name", "must have at most 100 letters, digits, dots, hyphens"),
        ({"dataset_name": "my flowers"}, "dataset_name", "got 'my flowers': my-flowers would do"),
        ({"epochs": 0}, "epochs", "must be greater than or equal to 1, got 0"),
        ({"epochs": "three"}, "epochs", "must be a whole number, got 'three'"),
        ({"batch_size": 2.5}, "batch_size", "must be a whole number, got 2.5"),
        ({"model": "small_cnm"}, "model", "did you mean small_cnn?"),
        ({"model": "InceptionResNetV2", "image_size": 40}, "image_size", "must be at least 75"),
        ({"source_uri": "gs:/bucket"}, "source_uri", "must be a local path or gs://bucket/prefix"),
        ({"nonsense": 1}, "nonsense", "is not a setting"),
    ],
)
def test_each_wrong_field_has_a_sentence(form: dict[str, Any], field: str, sentence: str) -> None:
    [(found, words)] = check({"source_uri": "/", **form})["problems"].items()
    assert found == field
    assert words.startswith(f"{field} ")
    assert sentence in words


def test_a_wrong_field_does_not_hide_the_source(make_images: MakeImages) -> None:
    answer = check({"source_uri": str(make_images({"cats": 2})), "epochs": 0, "dataset_name": "a b"})
    assert answer["problems"].keys() == {"epochs", "dataset_name"}
    assert answer["source"]["words"].startswith("2 images")


def test_a_place_or_package_that_is_not_allowed_is_refused_and_not_looked_at(
    make_images: MakeImages, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_images({"cats": 2})
    gcs.put("bucket", "cats/1.jpg", b"1")
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", str(source / "other"))
    monkeypatch.setenv("TENFOLD_ALLOWED_MODELS", "ours")
    for place in (str(source), "gs://bucket/cats"):
        answer = check({"source_uri": place, "model": "theirs:model"})
        assert answer["problems"].keys() == {"source_uri", "model"}
        assert "is outside what TENFOLD_ALLOWED_SOURCES allows" in answer["problems"]["source_uri"]
        assert answer["source"] is None
    assert gcs.requests == {}


def test_a_silent_bucket_is_given_up(gcs: FakeGcs) -> None:
    check({"source_uri": "gs://bucket/flowers"})  # The first request of a process also loads the client.
    stall = gcs.fail("stall", on="list", times=None)
    try:
        answer = check({"source_uri": "gs://bucket/flowers"}, patience_s=0.2)
    finally:
        stall.release()
    assert stall.fired
    assert answer["problems"] == {}
    assert answer["source"]["words"] == "gs://bucket/flowers has not answered within 2 s."
    assert not answer["source"]["is_usable"]


def test_a_missing_bucket_is_named(gcs: FakeGcs) -> None:
    answer = check({"source_uri": "gs://absent/flowers"})
    assert "gs://absent does not exist" in answer["source"]["words"]


def test_the_date_is_filled_into_the_source(make_images: MakeImages) -> None:
    source = make_images({"2026-01-02/cats": 2})
    answer = check({"source_uri": f"{source}/{{date}}", "data_date": "2026-01-02"})
    assert answer["source"]["words"].startswith(f"{source}/2026-01-02: 2 images")


def test_a_source_is_needed_unless_there_are_sample_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENFOLD_SAMPLES", raising=False)
    assert check({})["problems"]["source_uri"].startswith("source_uri is empty: set it to the folder of raw images")
    monkeypatch.setenv("TENFOLD_SAMPLES", "/samples")
    assert check({})["problems"] == {}
    assert check({}, TABLE)["problems"]["source_uri"].startswith("source_uri is empty: set it to the table")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "sales.csv").write_text("age,income,churn\n1,2,yes\n")
    return tmp_path / "sales.csv"


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"label_column": "churn"}, ""),
        ({"label_column": "chrun"}, "label_column is 'chrun', but the table has no such column: did you mean 'churn'?"),
        ({}, "label_column must be set to the column to learn. The columns are 'age', 'income', 'churn'"),
        ({"label_column": "geo.lat", "csv_skip_lines": 1}, ""),
    ],
)
def test_the_label_is_a_column_of_the_table(table: Path, form: dict[str, Any], sentence: str) -> None:
    answer = check({"source_uri": str(table), **form}, TABLE)
    assert answer["source"]["columns"] == ("age", "income", "churn")
    assert answer["problems"].get("label_column", "").startswith(sentence)
    assert bool(answer["problems"]) is bool(sentence)


# --- who may ask ------------------------------------------------------------------------------------------------------


def test_a_text_file_without_rows_has_no_columns_that_could_be_wrong(tmp_path: Path) -> None:
    (tmp_path / "about.txt").write_text("Read this first,\nthen the rest.\n")
    answer = check({"source_uri": str(tmp_path / "about.txt"), "label_column": "churn"}, TABLE)
    assert (answer["problems"], answer["source"]["columns"]) == ({}, ())


def test_few_columns_of_a_wide_table_are_sent(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(1000)]
    (tmp_path / "wide.csv").write_text(f"{','.join(names)}\n")
    answer = check({"source_uri": str(tmp_path / "wide.csv"), "label_column": "c999"}, TABLE)
    assert (answer["problems"], len(answer["source"]["columns"])) == ({}, 500)


def test_a_silent_disk_does_not_hold_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.training_monitor.start import check_form

    ended, look_at = Event(), look.look_at

    def slow(place: Any, *options: str) -> look.SourceLook:
        if str(place).startswith("/mnt/silent"):
            ended.wait(PATIENT_S)
        return look_at(place, *options)

    monkeypatch.setattr(look, "look_at", slow)
    monkeypatch.setattr("pipeline.watch.questions.MAX_AT_ONCE", MAX_PER_BUCKET + 1)
    looks = Questions(0.1)
    try:
        for number in range(MAX_PER_BUCKET + 1):
            found = check_form(IMAGES, {"source_uri": f"/mnt/silent/{number}"}, looks)["source"]
            assert found["words"] == f"/mnt/silent/{number} has not answered within 2 s."
        monkeypatch.setattr(looks, "_own_patience_s", PATIENT_S)
        assert "neither images" in check_form(IMAGES, {"source_uri": str(tmp_path)}, looks)["source"]["words"]
        monkeypatch.setattr(looks, "_own_patience_s", 0.1)
        monkeypatch.setattr("pipeline.watch.questions.MAX_AT_ONCE", MAX_PER_BUCKET)
        words = check_form(IMAGES, {"source_uri": "/mnt/other"}, looks)["source"]["words"]
        assert words.startswith("/mnt/other was not read, because 4 other requests have no answer yet")
    finally:
        ended.set()


@pytest.fixture
def dags(airflow_database: None) -> Iterator[None]:
    from tests.plugins.airflow_runs import add_dag, remove_all

    for dag_id in (IMAGES, TABLE, "retrain"):
        add_dag(dag_id, f"team of {dag_id}")
    yield
    remove_all()


def ours(role: str) -> dict[str, str]:
    """Return the request headers of a user whose teams have all three DAGs."""
    return logged_in(role, *(f"team of {dag_id}" for dag_id in (IMAGES, TABLE, "retrain")))


def ask(client: Client, who: dict[str, str], dag_id: str = IMAGES, content: bytes = b"{}") -> Any:
    return client.post(f"/start.json?dag_id={dag_id}", who, content)


def test_only_a_user_who_may_trigger_the_dag_may_ask(client: Client, dags: None) -> None:
    assert ask(client, {}).status_code == 401
    assert ask(client, ours("viewer")).status_code == 403
    assert ask(client, logged_in("user", "them")).status_code == 403
    assert ask(client, ours("user")).status_code == 200
    assert ask(client, ours("user"), "retrain").status_code == 404
    assert ask(client, ours("user"), "a%00b").status_code == 404


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"dag_id": 1', b"3"])
def test_what_is_no_form_is_refused(client: Client, dags: None, content: bytes) -> None:
    assert ask(client, ours("user"), content=content).status_code == 422


@pytest.mark.parametrize("value", ["/a\0b", "/\ud800", "/" + 5000 * "x", 3, ["/"], {"a": 1}, "gs://", MARKUP])
def test_any_source_gets_an_answer(client: Client, dags: None, value: Any) -> None:
    answer = ask(client, ours("user"), content=json.dumps({"source_uri": value}).encode())
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["problems"].get("source_uri") or not found["source"]["is_usable"]


# --- in a browser -----------------------------------------------------------------------------------------------------

AIRFLOW = "http://airflow"
RUN = {
    "dag_run_id": "manual__1",
    "note": "larger images\nand more",
    "conf": {"source_uri": "/nowhere", "epochs": 7, "crop": "whole", "flip": True},
}
OF_A_DATE = {"dag_run_id": "scheduled__1", "note": None, "conf": {"source_uri": "/data/{date}"}}


class AirflowApi:
    """What the page asks Airflow's own API. The runs that it starts are kept."""

    def __init__(self) -> None:
        from dags import image_training, tabular_training
        from dags.defaults import dag_defaults

        firsts = {IMAGES: image_training.FIRST, TABLE: tabular_training.FIRST}
        self._forms = {dag_id: dag_defaults(dag_id, first, 1)["params"] for dag_id, first in firsts.items()}
        self.started: list[dict[str, Any]] = []
        self.refused: dict[str, int] = {}
        """The status of the answer by a part of the address; 0 if there is no answer."""
        self.had_refusals = False

    def answer(self, method: str, path: str, body: str | None) -> Any:
        dag_id, _, rest = path.removeprefix("/api/v2/dags/").partition("/")
        if method == "POST":
            self.started.append({"dag_id": dag_id, **json.loads(body or "")})
            return {"dag_run_id": "manual__new"}
        if rest.endswith("/taskInstances/extract/xcomEntries/settings"):
            return {"value": {"source_uri": "/data/2026-01-15", "data_date": "2026-01-15"}}
        if rest == "details":
            params = {name: param.dump() for name, param in self._forms[dag_id].items()}
            return {"params": params, "is_paused": dag_id == TABLE}
        return {"dag_runs": [RUN, OF_A_DATE] if dag_id == IMAGES else []}


@contextmanager
def opened(
    browser: Browser, client: Client, query: str = "", refused: Mapping[str, int] | None = None, **options: Any
) -> Iterator[tuple[Page, AirflowApi]]:
    """Open the page in a browser, which gets the answers of the application in this process."""
    who, api = ours("user"), AirflowApi()
    api.refused |= refused or {}

    def answer_with(route: Route) -> None:
        request, address = route.request, urlsplit(route.request.url)
        refused = next((status for part, status in api.refused.items() if part in address.path), None)
        if refused is not None:
            api.had_refusals = True
            if request.method == "POST":
                api.answer(request.method, address.path, request.post_data)
            route.fulfill(status=refused, body="no") if refused else route.abort()
            return
        if address.path.startswith("/api/"):
            route.fulfill(json=api.answer(request.method, address.path, request.post_data))
            return
        if "/runs/" in address.path:
            route.fulfill(body="the page of a run")
            return
        target = f"{address.path.removeprefix('/tenfold')}?{address.query}"
        # The client has an event loop of its own, and so has Playwright in this thread.
        send = (client.post, target, who, request.post_data_buffer or b"") if request.method == "POST" else (
            client.get, target, who,
        )  # fmt: skip
        found = thread.submit(*send).result()
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    with ThreadPoolExecutor(1) as thread, patient(browser.new_context(**options)) as context:
        seen = Seen(context.new_page())
        seen.page.route(f"{AIRFLOW}/**", answer_with)
        seen.page.goto(f"{AIRFLOW}/tenfold/start{query}")
        seen.page.locator("#like option, [role=alert]:not([hidden])").first.wait_for(state="attached")
        yield seen.page, api
        assert [each for each in seen.complaints if "Failed to load resource" not in each or not api.had_refusals] == []
        assert {urlsplit(each).netloc for each in seen.requests} == {"airflow"}


def problem(page: Page, name: str) -> str:
    return page.locator(f"#{name}-problem").inner_text()


def test_a_run_is_started_with_the_fields_that_were_filled_in(
    browser: Browser, client: Client, dags: None, make_images: MakeImages
) -> None:
    source = make_images({"cats": 3, "dogs": 2})
    with opened(browser, client) as (page, api):
        assert page.locator(".field:visible input").count() == 8
        page.get_by_label("Source").fill(f"{source}x")
        page.get_by_role("button", name=f"Did you mean {source}?").click()
        until(lambda: page.locator(".look").inner_text().startswith("5 images, 2 classes, "))
        assert page.get_by_label("Dataset name").get_attribute("placeholder") == "source"
        page.get_by_label("Dataset name").fill("my flowers")
        page.get_by_label("Epochs").fill("0")
        page.get_by_label("Batch size").fill("many")
        until(lambda: problem(page, "batch_size").startswith("Must be a whole number, got 'many'"))
        assert problem(page, "dataset_name").startswith("Must have at most 100 letters")
        assert problem(page, "epochs").startswith("Must be greater than or equal to 1, got 0")
        page.get_by_role("button", name="Start", exact=True).click()
        until(lambda: page.evaluate("document.activeElement.id") == "dataset_name")
        assert api.started == []
        for label, value in (("Dataset name", "flowers"), ("Epochs", "3"), ("Batch size", "")):
            page.get_by_label(label).fill(value)
        page.get_by_label("Epochs").press("Enter")
        page.wait_for_url("**/dags/image_training/runs/manual__new/plugin/training")
        [run] = api.started
        assert run["conf"] == {"source_uri": str(source), "dataset_name": "flowers", "epochs": 3}
        assert (run["dag_id"], bool(run["logical_date"])) == (IMAGES, True)


def test_a_run_is_started_once(browser: Browser, client: Client, dags: None, make_images: MakeImages) -> None:
    """The first answer is lost. Airflow refuses a second run with the same id."""
    source = make_images({"cats": 3})
    with opened(browser, client) as (page, api):
        api.refused["/dagRuns"] = 0
        page.get_by_label("Source").fill(str(source))
        button = page.get_by_role("button", name="Start", exact=True)
        button.focus()
        page.keyboard.press("Enter")  # While the page still checks the new source.
        page.get_by_text("look at the list of runs before you try again").wait_for()
        assert button.evaluate("each => each === document.activeElement")
        del api.refused["/dagRuns"]
        page.evaluate("""() => {
          const form = document.querySelector("form");
          for (const _ of "123") form.requestSubmit();
        }""")
        page.wait_for_url("**/runs/**")
        assert len(api.started) == 2
        assert len({run["dag_run_id"] for run in api.started}) == 1
        assert len({run["logical_date"] for run in api.started}) == 1


def test_only_a_dag_that_the_user_may_not_see_is_left_out(browser: Browser, client: Client, dags: None) -> None:
    for status, is_left_out in ((403, True), (404, True), (502, False)):
        with opened(browser, client, refused={"tabular_training/details": status}) as (page, _):
            if is_left_out:
                assert page.get_by_role("radio").count() == 1
            else:
                page.get_by_text("Airflow answered 502").wait_for()


def test_a_table_is_recognized_and_its_columns_are_offered(
    browser: Browser, client: Client, dags: None, table: Path
) -> None:
    with opened(browser, client) as (page, api):
        page.get_by_label("Source").fill(str(table))
        page.get_by_label("Label column").wait_for()
        assert page.get_by_role("radio", name="A table").is_checked()
        assert page.evaluate("document.activeElement.id") == "source_uri"
        assert not page.get_by_label("Image size").is_visible()
        assert page.get_by_text("The DAG is paused").is_visible()
        until(lambda: page.locator("#label_column-list option").count() == 3)
        page.get_by_role("button", name="Start", exact=True).click()
        until(lambda: problem(page, "label_column").startswith("Must be set to the column to learn"))
        page.get_by_label("Label column").fill("churn")
        until(lambda: problem(page, "label_column") == "")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/runs/**")
        assert api.started[0]["conf"] == {"source_uri": str(table), "label_column": "churn"}


def test_a_run_like_another_one_has_its_other_settings(browser: Browser, client: Client, dags: None) -> None:
    with opened(browser, client, f"?dag_id={IMAGES}&run_id=manual__1") as (page, api):
        until(lambda: page.get_by_label("Epochs").input_value() == "7")
        assert page.locator("#like option").all_inner_texts() == ["none", "larger images · manual__1", "scheduled__1"]
        assert page.locator("li").all_inner_texts() == ['crop = "whole"']  # not flip, which has its default
        page.get_by_label("Epochs").fill("8")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/runs/**")
        assert api.started[0]["conf"] == {"source_uri": "/nowhere", "epochs": 8, "crop": "whole"}


def test_a_run_like_one_of_a_date_has_the_same_date(browser: Browser, client: Client, dags: None) -> None:
    with opened(browser, client, f"?dag_id={IMAGES}&run_id=scheduled__1") as (page, api):
        until(lambda: page.locator("li").all_inner_texts() == ['data_date = "2026-01-15"'])
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/runs/**")
        assert api.started[0]["conf"] == {"source_uri": "/data/{date}", "data_date": "2026-01-15"}


def test_the_address_has_the_chosen_run(browser: Browser, client: Client, dags: None) -> None:
    with opened(browser, client) as (page, _):
        page.get_by_label("Same as run").select_option("manual__1")
        until(lambda: parse_qs(urlsplit(page.url).query) == {"dag_id": [IMAGES], "run_id": ["manual__1"]})
        page.get_by_label("Same as run").select_option("")
        until(lambda: urlsplit(page.url).query == "")
        assert page.get_by_label("Epochs").input_value() == ""


def test_the_address_follows_what_is_learned_from(browser: Browser, client: Client, dags: None) -> None:
    with opened(browser, client) as (page, _):
        page.get_by_label("Same as run").select_option("manual__1")
        until(lambda: "run_id" in page.url)
        page.get_by_label("A table").check()
        until(lambda: parse_qs(urlsplit(page.url).query) == {"dag_id": [TABLE]})
        page.reload()
        page.get_by_label("Label column").wait_for()
        page.get_by_label("Images").check()
        until(lambda: urlsplit(page.url).query == "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_the_page_is_accessible_on_each_screen(
    browser: Browser, client: Client, dags: None, make_images: MakeImages, width: int, scheme: Any
) -> None:
    source = make_images({"cats": 3, "dogs": 2})
    with opened(browser, client, viewport={"width": width, "height": 900}, color_scheme=scheme) as (page, _):
        page.get_by_label("Source").fill(str(source.with_name(source.name[:-1])))
        page.get_by_label("Epochs").fill("0")
        until(lambda: problem(page, "epochs") != "")
        page.get_by_role("button", name=f"Did you mean {source}?").wait_for()
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if folder := os.environ.get("TENFOLD_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"ui-start-{width}-{scheme}.png", full_page=True)
