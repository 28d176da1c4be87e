"""The report of a run: complete, self-contained, escaped, and explicit about missing files."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.harness.rounds import ROOT
from benchmarks.long_record import DAY_S, write_training
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row
from pipeline.report import write_report
from pipeline.report.components import thumbnail
from pipeline.report.mistakes import THUMBNAIL
from pipeline.runs.files import RUN_FORMAT
from pipeline.tuning.stages import StageCosts, save_stages
from tests.report.evaluated import evaluated

SCRIPTS = 3
"""Number of scripts of a page: Bokeh, the figures, and the links."""
EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The tags with attributes, and the text outside of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def jpeg(color: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), color).save(out, "JPEG")
    return out.getvalue()


def picture(color: str) -> str:
    """Return such an image as a page shows it."""
    uri = thumbnail(jpeg(color), THUMBNAIL)
    assert uri
    return uri


def record(folder: Path, epochs: int = 3, steps: int = 20, gpus: int = 1) -> None:
    """Write a record: steps wait 10 ms and compute 30 ms. The first step of each epoch waits a second more."""
    sink = RecordSink(folder / "record")
    step = 0
    for epoch in range(1, epochs + 1):
        for batch in range(steps):
            step += 1
            wait = 10.0 if batch else 1010.0
            times = {"input/wait_ms": wait, "step/compute_ms": 30.0, "step/time_ms": wait + 30}
            sink.write(
                Row("batches", 1e9 + step, step, times | {"input/examples": 8, "epoch": epoch, "first": step == 1})
            )
            usage = {"sys/cpu_pct": 40.0 + 20 * (batch % 2), "sys/cpu_max_core_pct": 90.0, "sys/mem_pct": 30.0 + epoch}
            for gpu in range(gpus):
                usage[f"gpu/{gpu}/util_pct"] = 80.0 + 10 * gpu
                usage[f"gpu/{gpu}/mem_used_bytes"], usage[f"gpu/{gpu}/mem_total_bytes"] = 2e10, 8e10
            sink.write(Row("samples", 1e9 + step, step, usage))
        losses = {"loss": 1 / epoch, "accuracy": 0.3 * epoch, "val_loss": 2 / epoch, "val_accuracy": 0.25 * epoch}
        sink.write(Row("epochs", 1e9 + step, epoch, losses | {"epoch/time_s": 1.8}))
    sink.close()


def split(classes: dict[str, int], shards: int) -> dict[str, Any]:
    return {
        "examples": sum(classes.values()),
        "bytes": 1_500_000,
        "classes": classes,
        "shards": [{"bytes": 1_500_000 // shards}] * shards,
    }


def describe(folder: Path, name: str = "shapes", labels: tuple[str, ...] = ("circle", "square")) -> None:
    """Write run.json, result.json and dataset.json. Two labels have 30 and 10 training, 6 and 4 validation examples."""
    dataset = folder / "dataset"
    dataset.mkdir(parents=True)
    made = (("train", (30, 10), 10), ("validation", (6, 4), 1))
    splits = {name: split(dict(zip(labels, counts, strict=True)), shards) for name, counts, shards in made}
    content = {
        "name": name,
        "version": "v1",
        "labels": labels,
        "source": {"uri": "/data/" + name, "listed": 53, "skipped": {"not an image": 2}},
        "rejected": {"count": 3, "file": "rejected.jsonl"},
        "splits": splits,
        "quality": {"unit": "image"},
    }
    (dataset / "dataset.json").write_text(json.dumps(content))
    reasons = ("cannot be decoded: truncated", "cannot be decoded: no pixels", "too large")
    rows = [{"path": f"{number}.jpg", "reason": reason, "advice": ""} for number, reason in enumerate(reasons)]
    (dataset / "rejected.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = {
        "format": RUN_FORMAT,
        "run_id": "run 7",
        "dataset": str(dataset),
        "dataset_version": "v1",
        "settings": {"epochs": 3, "model": name},
        "host": {"cores": 2},
        "software": {"python": "3.11"},
    }
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "result.json").write_text(json.dumps({"metrics": {"accuracy": 0.75}, "model": "m.keras", "comet": None}))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    record(folder)
    describe(folder)
    evaluated(folder, ["circle", "square"])
    return write_report(folder, [("circle/1.jpg", picture("red")), ("square/2.jpg", "")])


def test_the_page_is_a_single_small_file_in_the_run_folder(complete: Path) -> None:
    assert complete.name == "report.html"
    assert not [path for path in complete.parent.iterdir() if path.suffix == ".html" and path != complete]
    assert complete.stat().st_size < 5e6


def test_the_page_describes_the_run_in_numbers(complete: Path) -> None:
    text = " ".join(Page(complete).text.split())  # a space at each tag separates the cells
    for phrase in (
        "Input-bound (a serial stage): 25% of the step time is waiting for data (10 of 40 ms a step, 57 steps)",
        "Training loss went from 1 to 0.333 in 3 epochs; validation accuracy was best in epoch 3 with 75.0%.",
        "The processor was 50% busy on average, the GPU 80%, host memory was at most 33% full (60 samples)",
        "Of the 57 steady steps, half took less than 40 ms",
        (
            "the first step of the process, which took 1,040 ms (tracing); the wait for the first batch of a later "
            "epoch was 1,010 ms"
        ),
        "Each epoch took 1.8 s.",
        "An average second of the training consists of 667 ms waiting for data, 333 ms computing",
        "shapes, version v1, made from /data/shapes",
        "53 images were listed. Skipped, because they are not images of a class: 2 (not an image).",
        "train 40 80.0% 1.5 MB 10",
        "circle 30 6",
        "square 10 4",
        "has 3 times the training images of the smallest",
        "3 images were rejected. All are listed in rejected.jsonl. Rejected images by reason",
        "cannot be decoded 2",
        "Epoch 1.8 s 1.8 s 0 s 1.8 s",
        "run 7",
        "m.keras",
    ):
        assert phrase in text, phrase


def test_what_predictions_came_to_is_that_of_the_machine_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker of Airflow may write the report."""
    record(tmp_path)
    describe(tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    run |= {"settings": {"epochs": 3}, "host": {"processor": "Other", "usable_cores": 4}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    asked = []
    monkeypatch.setattr("pipeline.report.page.promises_on", lambda _, machine: [asked.append(machine)][:0])
    write_report(tmp_path)
    assert asked == ["Other, 4 cores"]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_the_page_does_not_need_the_file_of_rejected_images(tmp_path: Path, damage: str) -> None:
    describe(tmp_path)
    path = tmp_path / "dataset" / "rejected.jsonl"
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-20])
    text = " ".join(Page(write_report(tmp_path)).text.split())
    assert "3 images were rejected" in text
    assert "cannot be decoded" not in text


def test_the_page_counts_shards_in_lists(tmp_path: Path) -> None:
    describe(tmp_path)
    path = tmp_path / "dataset" / "dataset.json"
    content = json.loads(path.read_bytes())
    del content["splits"]["train"]["shards"]
    lists = [(10_000, 10, 2_000_000), (9_000, 20, 1_500_000)]
    content["splits"]["train"]["shard_lists"] = [
        {"shards": shards, "min_bytes": smallest, "max_bytes": largest} for shards, smallest, largest in lists
    ]
    path.write_text(json.dumps(content))
    text = " ".join(Page(write_report(tmp_path)).text.split())
    assert "train 40 80.0% 1.5 MB 19,000 10 bytes to 2 MB" in text


def test_the_page_loads_no_external_resources(complete: Path) -> None:
    page = Page(complete)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert tag == "a" or (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    style = complete.read_text().split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_the_content_security_policy_allows_only_scripts_of_the_page(complete: Path) -> None:
    page = Page(complete)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert [a.get("nonce") for t, a in page.tags if t == "script"] == [nonce] * SCRIPTS
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_shows_the_stages_of_the_input_and_names_the_slow_server(tmp_path: Path) -> None:
    record(tmp_path)
    describe(tmp_path)
    assert "What the input does" not in Page(write_report(tmp_path)).text
    for folder, read in ((tmp_path, 400.0), (tmp_path / "servers/1", 3100.0)):
        record(folder)
        save_stages(folder, StageCosts({"decode": Estimate(1100, 1000, 1200)}, 1e5, 64, 1.0, {"read": read}))
    page = Page(write_report(tmp_path))
    text = " ".join(page.text.split())
    assert (
        "What the input does Of 1.1 ms of processor time per image on server 0, decoding takes 1.1 ms. The input of "
        "server 1 is slower than that of the others: reading takes 3.1 ms per image, and 400 µs on the others."
    ) in text
    assert [attributes["id"] for _, attributes in page.tags if attributes.get("id") == "stages-0"] == ["stages-0"]


def test_wrong_images_are_thumbnails_and_broken_ones_are_left_out(complete: Path) -> None:
    pictures = [attributes for tag, attributes in Page(complete).tags if tag == "img"]
    assert [picture["alt"] for picture in pictures] == ["square, predicted as circle"]
    assert all(len(picture["src"] or "") < 5000 for picture in pictures)


def test_html_in_names_is_escaped(tmp_path: Path) -> None:
    record(tmp_path)
    describe(tmp_path, EVIL, (EVIL, "b"))
    sink = RecordSink(tmp_path / "record")
    sink.write(Row("epochs", 2e9, 4, {EVIL: 1.0, "loss": 1.0}))
    sink.close()
    evaluated(tmp_path, [EVIL, "b"])
    page = Page(write_report(tmp_path, [(EVIL, picture("red"))]))
    assert page.count("script") == SCRIPTS
    assert page.count("img") == 1
    assert EVIL in page.text


def test_the_page_of_an_empty_folder_names_what_is_missing(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path))
    for phrase in (
        "Not enough steps for a verdict",
        "No epoch was completed",
        "No samples were recorded",
        "Fewer than two steady steps",
        "dataset.json was not found",
        "run.json was not found",
    ):
        assert phrase in page.text, phrase
    assert page.count("script") == 0


def test_a_run_killed_in_its_first_epoch_has_a_page(tmp_path: Path) -> None:
    describe(tmp_path)
    record(tmp_path)
    (tmp_path / "record" / "epochs-00000.parquet").unlink()
    (tmp_path / "result.json").write_text('{"metrics": ')  # torn
    text = Page(write_report(tmp_path)).text
    assert "No epoch was completed" in text
    assert "The processor was 50% busy" in text


def test_a_failed_report_keeps_the_previous_page(complete: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = complete.read_bytes()

    def broken(*arguments: Any) -> str:
        raise RuntimeError("no page")

    monkeypatch.setattr("pipeline.report.page.render", broken)  # a patch, because no input makes the page fail
    with pytest.raises(RuntimeError, match="no page"):
        write_report(complete.parent)
    assert complete.read_bytes() == before


@pytest.mark.long
def test_the_page_of_ten_hours_is_small(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    times = np.arange(0, 36_000, 0.2)
    lines = "\n".join(f"{1e9 + t:.3f},1,{50 + 40 * np.sin(t):.1f},30,70" for t in times)
    (tmp_path / "record" / "samples-00000.csv").write_text(
        "time,step,sys/cpu_pct,sys/mem_pct,gpu/0/util_pct\n" + lines + "\n"
    )
    assert write_report(tmp_path).stat().st_size < 2e6


def test_the_page_shows_the_mean_and_range_over_gpus(tmp_path: Path) -> None:
    record(tmp_path, gpus=2)
    assert "the GPU 85% (from 80% to 90% by GPU)" in Page(write_report(tmp_path)).text


def test_no_number_of_a_page_is_written_with_an_exponent(tmp_path: Path) -> None:
    """The steps take seconds, and the training takes two days."""
    describe(tmp_path)
    sink = RecordSink(tmp_path / "record")
    for step in range(1, 31):
        times = {"input/wait_ms": 270.4, "step/compute_ms": 6_000_000.0, "step/time_ms": 6_000_270.4}
        sink.write(Row("batches", 1e9 + 6000 * step, step, {**times, "input/examples": 8, "epoch": 1, "first": 0}))
    sink.close()
    text = Page(write_report(tmp_path)).text
    assert "6,000,270 ms" in text
    assert not re.findall(r"[0-9.]+e[+][0-9]+", text)


@pytest.mark.parametrize(
    ("waits_ms", "sentence"),
    [
        ((1.0, 9.0), "The figure shows server 0. The numbers above are those of server 1, which waits most."),
        ((9.0, 1.0), "The figure and the numbers above are those of server 0, which waits most."),
    ],
)
def test_the_page_names_the_server_of_its_figure(waits_ms: tuple[float, float], sentence: str, tmp_path: Path) -> None:
    describe(tmp_path)
    for folder, wait_ms in zip((tmp_path, tmp_path / "servers" / "1"), waits_ms, strict=True):
        sink = RecordSink(folder / "record")
        for step in range(1, 31):
            times = {"input/wait_ms": wait_ms, "step/compute_ms": 20.0, "step/time_ms": 20.0 + wait_ms}
            sink.write(Row("batches", 1e9 + step, step, {**times, "input/examples": 8, "epoch": 1, "first": 0}))
        sink.close()
    assert sentence in " ".join(Page(write_report(tmp_path)).text.split())


@pytest.mark.long
def test_the_end_of_a_long_training_fits_into_memory(tmp_path: Path) -> None:
    """A day on two servers with 8 GPUs. As a table, the samples and batches of each server take half a GB."""
    write_training(tmp_path, DAY_S, servers=2, gpus=8)
    for part, limit_mb in (("verdict", 350), ("report", 450), ("page", 350)):
        command = [sys.executable, "-m", "benchmarks.long_record", "--folder", str(tmp_path), "--part", part]
        found = json.loads(subprocess.check_output(command, cwd=ROOT))
        assert found["peak_mb"] < limit_mb, found
    assert "432,000 samples" in (tmp_path / "report.html").read_text()
