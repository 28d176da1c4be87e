"""The main job as a person does it, in one Airflow: images, a table and dates become models that all pages show."""

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Frame

from pipeline.dataset.manifest import load
from pipeline.dataset.verify import verify
from pipeline.runs.run import load_result
from scripts.airflow.keys import USER
from tests.browser import Seen, blank, browser, patient
from tests.scripts.live import Live, add_dates, add_images, backfill_of, first_of
from tests.waiting import until

__all__ = ["browser"]
pytestmark = [pytest.mark.core, pytest.mark.timeout(1800)]

IMAGES, ROWS = 40, 60
DATES = first_of("2026-01", 3)
OF_AIRFLOW = "An iframe which has both allow-scripts and allow-same-origin for its sandbox"
"""The only browser warning that Airflow causes, by the sandbox of its plugin frames."""


class Trained(NamedTuple):
    """The output of a command that trained one model, the name and folder of its dataset, and its own folder."""

    output: str
    name: str
    dataset: Path
    run: Path


def trained(live: Live, *arguments: str) -> Trained:
    """Run a command that trains one model."""
    code, output = live.command(*arguments)
    assert code == 0, output
    assert "Using the Airflow at" in output
    [model] = re.findall(r"^Model: +(\S+)/model\.keras$", output, re.MULTILINE)
    return training_in(Path(model), output)


def training_in(run: Path, output: str) -> Trained:
    content = json.loads((run / "run.json").read_text())
    return Trained(output, content["settings"]["dataset_name"], Path(content["dataset"]), run)


@pytest.fixture(scope="module")
def of_images(live: Live) -> Trained:
    """A training on images, from a folder with a broken one."""
    source = live.folder / "photos"
    add_images(source, IMAGES)
    (source / "cats" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return trained(live, "run", "--source", str(source), "--params", json.dumps({"num_shards": 4}))


@pytest.fixture(scope="module")
def of_table(live: Live) -> Trained:
    """A training on a table, whose column `color` decides the label."""
    generator = random.Random(0)
    rows = [(generator.random(), generator.choice(["red", "blue"])) for _ in range(ROWS)]
    lines = [f"{number},{color},{'yes' if color == 'red' else 'no'}" for number, color in rows]
    table = live.folder / "customers.csv"
    table.write_text("\n".join(["number,color,label", *lines]) + "\n")
    params = json.dumps({"epochs": 5, "learning_rate": 0.03})
    return trained(live, "run", "--table", str(table), "--label", "label", "--params", params)


@pytest.fixture(scope="module")
def of_dates(live: Live) -> Trained:
    """A training on a window of dates."""
    source = live.folder / "daily"
    add_dates(source, DATES)
    live.settle()
    return trained(live, *backfill_of(source, DATES))


def test_images_become_a_trained_model(of_images: Trained):
    assert verify(of_images.dataset) == {"ok": True, "records": IMAGES, "problems": []}
    assert f"Rejected:      1 of {IMAGES + 1} examples" in of_images.output
    # After two epochs, the model may be no better than always answering one class.
    assert re.search("(promoted|a person must decide): the first model of 'photos'", of_images.output)
    result = load_result(of_images.run)
    assert result["epochs"] == 2
    assert f"Validation:    accuracy {result['metrics']['val_accuracy']:.1%} (" in of_images.output
    for made in ("model.keras", "report.html", "evaluation.json"):
        assert (of_images.run / made).stat().st_size > 1000
    assert (of_images.dataset / "card.html").as_uri() in of_images.output


def test_a_table_becomes_a_trained_model(of_table: Trained):
    assert verify(of_table.dataset) == {"ok": True, "records": ROWS, "problems": []}
    dataset = load(of_table.dataset)
    assert [column["name"] for column in dataset.table["columns"]] == ["number", "color", "label"]
    assert load_result(of_table.run)["metrics"]["val_accuracy"] > 0.8
    # On a dozen rows, the model may not surely beat the baseline.
    assert re.search("(promoted|a person must decide): the first model of 'customers'", of_table.output)


def test_dates_become_datasets_and_one_trained_model(of_dates: Trained, live: Live):
    assert f"{len(DATES)} of {len(DATES)} dates run\n" in of_dates.output
    assert of_dates.output.count("  new\n") == len(DATES)
    assert [path.parent for path in (live.workspace / "runs" / "retrain-daily").glob("*/run.json")] == [of_dates.run]
    datasets = [load(path.parent) for path in (live.workspace / "datasets" / "daily").glob("*/dataset.json")]
    sources = {Path(dataset.source["uri"]).name for dataset in datasets if not dataset.window}
    assert sorted(sources) == DATES
    window = load(of_dates.dataset)
    assert sorted(window.window) == DATES
    assert sum(split.examples for split in window.splits.values()) == 8 * len(DATES)


@contextmanager
def logged_in(browser: Browser, live: Live) -> Iterator[BrowserContext]:
    """Yield a browser whose user has logged in on the page of Airflow."""
    with patient(browser.new_context(base_url=live.url, viewport={"width": 1400, "height": 1000})) as context:
        page = context.new_page()
        page.goto("/")
        page.fill("input[name=username]", USER)
        page.fill("input[name=password]", live.password)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda address: "login" not in address)
        page.close()
        yield context


def test_all_pages_show_the_trainings(
    browser: Browser, live: Live, of_images: Trained, of_table: Trained, of_dates: Trained
):
    """The list, the tab of each run, a comparison, the report and the card, without any error of a script."""
    trainings = {"image_training": of_images, "tabular_training": of_table, "retrain": of_dates}
    run_ids = {dag_id: live.run_of(dag_id, training.run) for dag_id, training in trainings.items()}
    with logged_in(browser, live) as context:
        seen = Seen(context.new_page())
        seen.page.goto("/plugin/training-monitor")
        rows = seen.page.frame_locator("iframe").locator(".list tbody tr")
        for run_id in run_ids.values():
            assert "Trained" in rows.filter(has_text=run_id).inner_text()

        for dag_id, training in trainings.items():
            seen.page.goto(f"/dags/{dag_id}/runs/{quote(run_ids[dag_id], safe=':+')}/plugin/training")
            seen.page.frame_locator("iframe").locator("article[data-state=trained]").wait_for()
            frame = next(each for each in seen.page.frames if "/tenfold/run" in each.url)
            until(lambda frame=frame: all_drawn(frame))
            assert frame.locator("h1").inner_text().startswith(training.name), dag_id
            assert "Loss and accuracy" in frame.locator("section h2").all_inner_texts(), dag_id
            assert blank(frame.locator(".plots > div")) == [], dag_id

        one = {"dag_id": "image_training", "run_id": run_ids["image_training"]}
        compared = [pair for dag_id, run_id in run_ids.items() for pair in (("dag_id", dag_id), ("run_id", run_id))]
        seen.page.goto(f"/tenfold/compare?{urlencode(compared)}")
        seen.until("Bokeh.documents.length && Bokeh.documents[0].is_idle")
        assert seen.page.locator("h1").inner_text() == "Comparison of 3 runs"
        ours = urlsplit(seen.page.url).netloc
        assert {urlsplit(each).netloc for each in seen.requests if each.startswith("http")} == {ours}

        for document in ("report", "card"):
            seen.page.goto(f"/tenfold/{document}?{urlencode(one)}")
            seen.until("document.readyState == 'complete'")
            assert of_images.name in seen.page.locator("h1").inner_text()
        assert [each for each in seen.complaints if OF_AIRFLOW not in each] == []


def all_drawn(frame: Frame) -> bool:
    """Return whether all figures of all trainings are drawn."""
    drawn = frame.locator("section[data-drawn]").count()
    return 0 < drawn == frame.locator("article section").count()
