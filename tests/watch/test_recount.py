"""Each number that a page, Comet or `--json` shows of a training, counted again from its files with pandas alone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipeline.config.allowed import ALL, EVERYTHING
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.evaluation.metrics import evaluation_of, save
from pipeline.monitor.archives import archives
from pipeline.monitor.diagnosis import percent, three_digits
from pipeline.monitor.row import Row
from pipeline.report import compare_runs, report_run
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import Best, Run, load_result, load_run, save_best, save_result
from pipeline.stages.build import build
from pipeline.storage import read_json, write_json
from pipeline.watch.page_data import page_data
from pipeline.watch.status import duration
from pipeline.watch.summary import Training, summary
from scripts.airflow.settings import ROOT
from tests.conftest import jpeg
from tests.report.evaluated import predictions
from tests.report.rich import Records, sample
from tests.report.test_report import Page
from tests.training.log.test_experiment import Archive

EPOCHS, STEPS, BATCH = 6, 90, 32
SLOWEST = 1
"""The index of the training server that waits most, which the numbers are about."""
PARTS = {"waiting for data": "input/wait", "computing": "step/compute", "host": "step/host"}
PARTS |= {"checkpoints": "step/checkpoint"}


@dataclass(frozen=True)
class Count:
    """The numbers of a training, from its files."""

    folder: Path

    def table(self, kind: str, server: int = 0) -> pandas.DataFrame:
        record = self.folder / (f"servers/{server}" if server else "") / "record"
        return pandas.concat(map(pandas.read_parquet, sorted(record.glob(f"{kind}-*.parquet"))), ignore_index=True)

    @cached_property
    def steady(self) -> pandas.DataFrame:
        """The steps of the slowest server without the first one of each epoch."""
        batches = self.table("batches", SLOWEST)
        return batches[batches["epoch"] == batches["epoch"].shift()]

    @cached_property
    def steady_samples(self) -> pandas.DataFrame:
        """The samples of the slowest server that were taken within these steps."""
        begin = self.steady["time"] - self.steady["step/time_ms"] / 1000
        steps = pandas.DataFrame({"end": self.steady["time"], "begin": begin})
        samples = self.table("samples", SLOWEST)
        found = pandas.merge_asof(samples, steps, left_on="time", right_on="end", direction="forward")
        return found[found["begin"] <= found["time"]]

    @property
    def wait_ms(self) -> float:
        return float(self.steady["input/wait_ms"].mean())

    @property
    def step_ms(self) -> float:
        return float(self.steady["step/time_ms"].mean())

    @property
    def share(self) -> float:
        return float(self.steady["input/wait_ms"].sum() / self.steady["step/time_ms"].sum())

    @property
    def speed(self) -> float:
        return float(1000 * self.steady["input/examples"].sum() / self.steady["step/time_ms"].sum())

    @property
    def gpu_pct(self) -> float:
        return gpu_pct(self.steady_samples)

    @cached_property
    def accuracy(self) -> float:
        with np.load(self.folder / "predictions.npz") as answers:
            return float((answers["label"] == answers["predicted"]).mean())

    @cached_property
    def baseline(self) -> float:
        """The share of the most frequent class."""
        with np.load(self.folder / "predictions.npz") as answers:
            return float(pandas.Series(answers["label"]).value_counts(normalize=True).max())

    @cached_property
    def epochs(self) -> pandas.DataFrame:
        return self.table("epochs")

    @cached_property
    def spent(self) -> dict[str, float]:
        """The seconds of the training by the parts of its time."""
        batches = self.table("batches")
        steps = {part: float(batches[f"{column}_ms"].sum() / 1000) for part, column in PARTS.items()}
        between = {part: float(self.epochs[f"epoch/{part}_s"].sum()) for part in ("validation", "callbacks")}
        return {**steps, **between}


def gpu_pct(samples: pandas.DataFrame) -> float:
    return float(samples[["gpu/0/util_pct", "gpu/1/util_pct"]].mean().mean())


def rows_of(server: int, seed: int, compute_ms: float) -> Iterator[Row]:
    """Yield the rows of a training server in the order of their time: five samples a second, as the monitor takes."""
    random = np.random.default_rng((seed, server))
    now, step, ticks = 1e9, 0, 0
    for epoch in range(1, EPOCHS + 1):
        began = now
        for batch in range(STEPS):
            step += 1
            times = {
                "input/wait_ms": random.gamma(2, 18 if server == SLOWEST else 4),
                "step/compute_ms": 4000.0 if step == 1 else compute_ms + 3 * random.normal(),
                "step/host_ms": 2 + random.random(),
                "step/checkpoint_ms": 350.0 * (batch == STEPS // 2),
            }
            now += sum(times.values()) / 1000
            examples = 11 if batch == STEPS - 1 else BATCH
            whole = {"step/time_ms": sum(times.values()), "input/examples": examples, "epoch": epoch}
            yield Row("batches", now, step, {**times, **whole, "first": float(step == 1)})
            while 1e9 + ticks / 5 < now:
                values = sample(random, busy=80 - 30 * (server == SLOWEST) + 3 * random.normal())
                yield Row("samples", 1e9 + ticks / 5, step, {**values, "sys/cores": 4.0, "proc/cores": 4.0})
                ticks += 1
        learned = {"loss": 1 / epoch, "accuracy": 0.8 - 0.3 / epoch, "val_loss": 1.2 / epoch}
        learned["val_accuracy"] = 0.71234 - 0.01 * (epoch - 4) ** 2
        took = {"epoch/validation_s": 0.5 + random.random() / 10, "epoch/callbacks_s": 0.21}
        took["epoch/time_s"] = now - began
        now += took["epoch/validation_s"] + took["epoch/callbacks_s"]
        if not server:
            yield Row("epochs", now, epoch, learned | took)


def trained(folder: Path, dataset: Path, seed: int, compute_ms: float) -> Run:
    """Write a complete training with two servers, as the pipeline does, but without TensorFlow."""
    chosen = {"source_uri": str(folder), "workspace": str(folder), "seed": seed, "epochs": EPOCHS, "batch_size": BATCH}
    run = prepare_run(settings_from(chosen), dataset, f"run {seed}", dag="a_dag")
    write_json(run.folder / "run.json", {**read_json(run.folder / "run.json"), "steps_per_epoch": STEPS})
    for server in (0, SLOWEST):
        records = Records(run.folder / "servers" / str(server) if server else run.folder)
        for row in rows_of(server, seed, compute_ms):
            records.write(row)
        records.close()
    (run.folder / "model-00004.keras").write_bytes(b"the model")
    save_best(run, Best(4, "model-00004.keras", {"loss": 0.25, "val_accuracy": 0.71234}, "00000000"))
    held_back = load(dataset).splits["validation"].examples
    answers = predictions([(n % 2, int(n % 3 == 0), 0.6 + n / 100) for n in range(held_back)])
    save(run.folder, answers, evaluation_of(answers, ["a", "b"], seed=0))
    save_result(run, "", lambda verdict: verdict.sentence)
    return load_run(run.folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two trainings on 40 images in two classes. Steps of the second one compute longer."""
    folder = tmp_path_factory.mktemp("recounted")
    for number in range(40):
        path = folder / "source" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    built = build(settings_from({"source_uri": str(folder / "source"), "workspace": str(folder / "w")}))
    return [trained(folder, Path(built["dataset"]), seed, 48.0 + 12 * seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def count(runs: list[Run]) -> Count:
    return Count(runs[0].folder)


@pytest.fixture(scope="module")
def tab(runs: list[Run]) -> dict[str, Any]:
    return page_data(runs[0].folder, is_over=True)


@pytest.fixture(scope="module")
def report(runs: list[Run]) -> str:
    return text_of(Path(str(report_run(runs[0].folder))))


def text_of(page: Path) -> str:
    return " ".join(Page(page).text.split())


def spread(values: Any, unit: str) -> str:
    """Return mean, median, standard deviation and 95th percentile as a table has them."""
    numbers = (np.mean(values), np.median(values), np.std(values), np.percentile(values, 95))
    return " ".join(f"{three_digits(float(each))} {unit}" for each in numbers)


def test_the_tiles_of_the_tab(count: Count, tab: dict[str, Any]) -> None:
    samples = [count.table("samples", server)["time"] for server in (0, SLOWEST)]
    length = samples[0].iloc[-1] - min(each.iloc[0] for each in samples)
    assert dict(tab["status"]["tiles"]) == {
        "data wait": percent(count.share),
        "step time": f"{three_digits(count.step_ms)} ms",
        "examples per second": three_digits(count.speed),
        "GPU busy": f"{count.gpu_pct:.0f}%",
        "best validation accuracy": f"{count.epochs['val_accuracy'].max():.1%}",
        "its baseline": f"{count.baseline:.1%}",
        "duration": duration(length),
    }


def test_the_sentences_and_tables_of_the_tab(count: Count, tab: dict[str, Any]) -> None:
    samples, sentences, tables = count.table("samples"), tab["status"]["sentences"], tab["status"]["tables"]
    times = f"{three_digits(count.wait_ms)} of {three_digits(count.step_ms)} ms a step"
    assert f"{percent(count.share)} of the time was waiting for data ({times})" in sentences["waiting"]
    assert sentences["machine"] == (
        f"The processor was {samples['sys/cpu_pct'].mean():.0f}% busy on average, the GPU {gpu_pct(samples):.0f}%."
    )
    assert sentences["spent"].startswith(spent_words(count))
    assert sentences["learning"] == learned_words(count)
    assert [row[1] for row in tables["waiting"]["rows"]] == [three_digits(count.wait_ms), three_digits(count.step_ms)]
    of_epochs = count.epochs.set_index("step").iloc[::-1]
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert tables["learning"]["rows"] == [
        [f"{epoch}", *(f"{row[name]:.4g}" for name in names)] for epoch, row in of_epochs[names].iterrows()
    ]
    machine = {row[0]: row[1:3] for row in tables["machine"]["rows"]}
    assert machine == {title: [three_digits(mean), three_digits(highest)] for title, mean, highest in curves(samples)}


def curves(samples: pandas.DataFrame) -> Iterator[tuple[str, float, float]]:
    """Yield title, mean and highest value of each curve of the machine."""
    of_both = [f"gpu/{gpu}/" for gpu in (0, 1)]
    memory = [100 * samples[f"{gpu}mem_used_bytes"] / samples[f"{gpu}mem_total_bytes"] for gpu in of_both]

    def gpus(name: str) -> list[pandas.Series]:
        return [samples[gpu + name] for gpu in of_both]

    shown = {
        "Processor (%): busiest core": samples["sys/cpu_max_core_pct"],
        "Processor (%): all cores": samples["sys/cpu_pct"],
        "Processor (%): of the container's limit": samples["cgroup/cpu_pct"],
        "Cores used: the process": samples["proc/cpu_pct"] / 100,
        "Cores used: processes that the training started": samples["proc/children_cpu_pct"] / 100,
        "GPU (%): busy": sum(gpus("util_pct")) / 2,
        "GPU (%): memory": sum(memory) / 2,
        "GPU power (W): drawn": sum(gpus("power_w")),
        "GPU power (W): limit": sum(gpus("power_limit_w")),
        "Held back (% of the time): processor, by the container's limit": samples["cgroup/cpu_throttled_pct"],
        "Held back (% of the time): GPU, by its power limit": 100 * sum(gpus("throttled_power")) / 2,
        "Held back (% of the time): GPU, by its heat": 100 * sum(gpus("throttled_thermal")) / 2,
        "Tasks that wait (% of the time): for a core": samples["pressure/cpu_some_pct"],
        "Tasks that wait (% of the time): for a disk": samples["pressure/io_some_pct"],
        "Tasks that wait (% of the time): for memory": samples["pressure/memory_some_pct"],
        "Memory (%): host": samples["sys/mem_pct"],
        "Memory (%): of the container's limit": samples["cgroup/mem_pct"],
        "Disk (MB/s): read": samples["sys/disk_read_Bps"] / 1e6,
        "Disk (MB/s): written": samples["sys/disk_write_Bps"] / 1e6,
        "Network (MB/s): received": samples["sys/net_recv_Bps"] / 1e6,
        "Network (MB/s): sent": samples["sys/net_sent_Bps"] / 1e6,
    }
    yield from ((title, float(np.mean(values)), float(np.max(values))) for title, values in shown.items())


def spent_words(count: Count) -> str:
    whole = sum(count.spent.values())
    parts = ", ".join(f"{1000 * seconds / whole:.0f} ms {part}" for part, seconds in count.spent.items())
    return f"An average second of the training consists of {parts} ({three_digits(whole)} s in total"


def learned_words(count: Count) -> str:
    loss, accuracy = count.epochs["loss"], count.epochs["val_accuracy"]
    return (
        f"Training loss went from {three_digits(loss.iloc[0])} to {three_digits(loss.iloc[-1])} in {EPOCHS} epochs; "
        f"validation accuracy was best in epoch {accuracy.argmax() + 1} with {accuracy.max():.1%}."
    )


def test_the_report(count: Count, report: str) -> None:
    samples, steps, epochs = count.table("samples"), count.steady, count.epochs
    assert f"step time {three_digits(count.step_ms)} ms" in report
    assert f"examples per second {three_digits(count.speed)}" in report
    assert f"data wait {percent(count.share)}" in report
    assert f"Quality accuracy {count.accuracy:.1%}" in report
    assert learned_words(count) in report
    for title, values, unit in (
        ("Step", steps["step/time_ms"], "ms"),
        ("Data wait of a step", steps["input/wait_ms"], "ms"),
        ("Compute of a step", steps["step/compute_ms"], "ms"),
        ("Epoch", epochs["epoch/time_s"], "s"),
        ("Validation after an epoch", epochs["epoch/validation_s"], "s"),
    ):
        assert f"{title} {spread(values, unit)}" in report
    cpu_pct = samples["sys/cpu_pct"].mean()
    assert f"The processor was {cpu_pct:.0f}% busy on average, the GPU {gpu_pct(samples):.0f}%, drawing" in report
    assert f"({len(samples):,} samples)" in report


def test_the_verdict(count: Count, tab: dict[str, Any], report: str) -> None:
    times = f"{three_digits(count.wait_ms)} of {three_digits(count.step_ms)} ms a step, {len(count.steady):,} steps"
    own = count.steady_samples[["proc/cpu_pct", "proc/children_cpu_pct"]].mean().sum() / 100
    for sentence in (tab["status"]["verdict"], report):
        assert f"{percent(count.share)} of the step time is waiting for data ({times})" in sentence
        assert f"the GPU was {count.gpu_pct:.0f}% busy; this training kept {own:.1f} of 4 cores busy" in sentence


def test_the_result_that_train_prints_as_json(runs: list[Run], count: Count) -> None:
    result = load_result(runs[0].folder)
    assert result is not None
    counted = {"wait_fraction": count.share, "wait_ms": count.wait_ms, "step_ms": count.step_ms}
    counted |= {"examples_per_s": count.speed, "gpu_pct": count.gpu_pct}
    counted["cpu_pct"] = float(count.steady_samples["sys/cpu_pct"].mean())
    assert {name: result[name] for name in counted} == {name: float(f"{value:.7g}") for name, value in counted.items()}
    assert result["epochs"] == len(count.epochs)
    assert result["metrics"]["best_epoch"] == int(count.epochs["val_accuracy"].argmax()) + 1


def test_the_row_of_the_list(runs: list[Run], count: Count) -> None:
    row = summary(Training(runs[0].folder, is_over=True))
    assert (row.wait, row.speed) == pytest.approx((count.share, count.speed), rel=1e-6)
    assert row.validation.startswith(f"{row.accuracy:.1%} (baseline ")


def test_the_comparison_as_a_page_and_as_json(runs: list[Run], tmp_path: Path) -> None:
    counts = [Count(run.folder) for run in runs]
    printed = compare_runs([run.folder for run in runs], tmp_path / "compare.html")
    page = text_of(tmp_path / "compare.html")
    expected = {
        "examples a second": ([each.speed for each in counts], ""),
        "time of a step": ([each.step_ms for each in counts], " ms"),
        "data wait of a step": ([each.wait_ms for each in counts], " ms"),
        "compute of a step": ([float(each.steady["step/compute_ms"].mean()) for each in counts], " ms"),
        "time of an epoch, without validation": ([float(each.epochs["epoch/time_s"].mean()) for each in counts], " s"),
    }
    for name, (values, unit) in expected.items():
        [row] = [each for each in printed["rows"] if each["name"] == name]
        assert [row["a"], row["b"], row["difference"]] == pytest.approx([*values, values[1] - values[0]], rel=1e-9)
        cells = [f"{three_digits(value)}{unit}" for value in (*values, values[1] - values[0])]
        assert f"{name} {' '.join(cells)}" in page
    shares = [100 * each.share for each in counts]
    assert f"share of the step time that is data wait {shares[0]:.2f}% {shares[1]:.2f}%" in page
    bests = [each.epochs["val_accuracy"].max() for each in counts]
    assert f"best validation accuracy of an epoch {100 * bests[0]:.2f}% {100 * bests[1]:.2f}%" in page
    together = ", ".join(
        f"{letter} {three_digits(sum(each.spent.values()))} s" for letter, each in zip("AB", counts, strict=True)
    )
    assert f"In total: {together}." in page


REPLAY = """
import sys
from pathlib import Path
import pandas
from pipeline.monitor.comet import CometSink
from pipeline.monitor.row import Row
from pipeline.runs.run import load_run
from pipeline.training.log.experiment import comet_options, log_results
run = load_run(Path(sys.argv[1]))
sink = CometSink(run.folder / "comet", comet_options(run))
rows = []
for kind in ("samples", "batches", "epochs"):
    for path in sorted((run.folder / "record").glob(f"{kind}-*.parquet")):
        for row in pandas.read_parquet(path).to_dict("records"):
            rows.append(Row(kind, row.pop("time"), int(row.pop("step")), row))
for row in sorted(rows, key=lambda row: row.time):
    sink.write(row)
sink.close()
log_results(run)
"""
"""Sends the rows of a training to Comet once more, and then its results. Without a key, they are packed offline."""


@pytest.mark.long
def test_what_comet_gets(runs: list[Run], count: Count) -> None:
    folder = runs[0].folder
    known = {"PATH": "/usr/bin:/bin", "HOME": str(folder.parent), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", REPLAY, str(folder)]
    environment = known | dict.fromkeys(ALL, EVERYTHING)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=True)
    assert "Traceback" not in done.stderr
    [path] = archives(folder / "comet")
    archive = Archive(path)
    logged = [payload["metric"] for kind, payload in archive.messages if kind == "metric_msg"]
    sent = pandas.DataFrame([{key: each.get(key) for key in ("metricName", "metricValue", "step")} for each in logged])
    of_metrics = {str(name): rows for name, rows in sent.groupby("metricName", sort=False)}
    assert {"input/wait_ms", "step/time_ms", "gpu/0/util_pct", "sys/cpu_pct", "val_accuracy"} <= of_metrics.keys()
    batches = count.table("batches")
    for name in ("input/wait_ms", "step/time_ms", "step/compute_ms"):
        # Each value is the mean of the steps since the value before.
        intervals = pandas.IntervalIndex.from_breaks([0, *of_metrics[name]["step"].astype(int)])
        means = batches.groupby(pandas.cut(batches["step"], intervals), observed=True)[name].agg(["mean", "max"])
        assert of_metrics[name]["metricValue"].astype(float).tolist() == pytest.approx(means["mean"].tolist())
        assert of_metrics[f"{name}/max"]["metricValue"].astype(float).tolist() == pytest.approx(means["max"].tolist())
    for name in ("loss", "val_accuracy", "epoch/time_s"):
        assert of_metrics[name]["metricValue"].astype(float).tolist() == pytest.approx(count.epochs[name].tolist())
    highest = float(count.table("samples")["gpu/0/util_pct"].max())
    assert float(of_metrics["gpu/0/util_pct/max"]["metricValue"].astype(float).max()) == pytest.approx(highest)
    assert archive.metrics()["evaluation/accuracy"] == pytest.approx(count.accuracy)
    result = json.loads((folder / "result.json").read_text())
    assert {"verdict": result["verdict"], "headline": result["headline"]}.items() <= archive.others().items()
    assert f"accuracy {count.accuracy:.1%}" in archive.others()["headline"]
    assert archive.others()["best_epoch"] == int(count.epochs["val_accuracy"].argmax()) + 1
