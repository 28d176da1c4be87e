"""The OpenMetrics file of a training, as the parsers of Prometheus's own Python client read it."""

from pathlib import Path
from typing import Any

from prometheus_client import parser as prometheus
from prometheus_client.openmetrics import parser as openmetrics

from pipeline.monitor.open_metrics import EVERY_S, OpenMetricsSink, open_metrics
from pipeline.monitor.row import Row

LABELS = {"dag": "image_training", "run": 'a "quoted" \\ run\nof two lines', "server": "0"}


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Return the values by the name of the metric and the GPU. Both text formats must give the same."""
    found: list[Any] = []
    for parser in (openmetrics, prometheus):
        families = list(parser.text_string_to_metric_families(text))
        assert {family.type for family in families} == {"gauge"}
        assert len({family.name for family in families}) == len(families)
        samples = [sample for family in families for sample in family.samples]
        assert all(LABELS.items() <= sample.labels.items() for sample in samples)
        values: dict[str, dict[str, float]] = {}
        for sample in samples:
            values.setdefault(sample.name, {})[sample.labels.get("gpu", "")] = sample.value
        found.append(values)
    assert found[0] == found[1]
    return dict(found[0])


def test_values_have_names_and_labels_of_their_own():
    values = {"gpu/0/util_pct": 93.5, "sys/cpu_pct": 12.0, "gpu/11/util_pct": 7.0, "epoch/val-loss": 1e-7}
    text = open_metrics({**values, "sys/lost": float("nan"), "sys/endless": float("inf")}, LABELS)
    assert parsed(text) == {
        "tenfold_gpu_util_pct": {"0": 93.5, "11": 7.0},
        "tenfold_sys_cpu_pct": {"": 12.0},
        "tenfold_epoch_val_loss": {"": 1e-7},
    }
    assert text.endswith("# EOF\n")


def test_the_file_has_the_newest_means_and_the_last_epoch(tmp_path: Path):
    file = tmp_path / "metrics.prom"
    sink = OpenMetricsSink(file, LABELS)
    sink.write(Row("samples", 1000.0, 0, {"sys/cpu_pct": 50.0}))
    assert not file.exists()
    sink.write(Row("epochs", 1000.5, 1, {"loss": 2.0, "epoch/time_s": 9.0, "input/examples_per_s": 7.0}))
    for tick in range(200):
        now = 1001 + tick / 4
        sink.write(Row("samples", now, tick, {"sys/cpu_pct": 50.0 if tick < 100 else 70.0, "gpu/0/util_pct": 90.0}))
        times = {"input/wait_ms": 5.0, "step/time_ms": 20.0, "input/examples": 32, "epoch": 2, "first": 0}
        sink.write(Row("batches", now, tick, times))
        sink.write(Row("servers", now, tick, {"1/cpu_pct": 1.0}))
    values = parsed(file.read_text())
    only = {name: next(iter(by_gpu.values())) for name, by_gpu in values.items()}
    assert only["tenfold_sys_cpu_pct"] == 70.0
    assert (only["tenfold_input_wait_ratio"], only["tenfold_input_examples_per_s"]) == (0.25, 1600.0)
    assert {only[f"tenfold_epoch_{name}"] for name in ("loss", "time_s", "input_examples_per_s")} == {2.0, 9.0, 7.0}
    assert only["tenfold_training_epochs_done"] == 1
    assert 150 < only["tenfold_training_step"] < 200
    assert 1051 - EVERY_S - 1 < only["tenfold_training_last_step_time_seconds"] <= 1051
    assert not any(name.endswith("max") for name in only)


def test_a_training_that_is_stuck_keeps_the_time_of_its_last_step(tmp_path: Path):
    file = tmp_path / "metrics.prom"
    sink = OpenMetricsSink(file, LABELS)
    sink.write(Row("batches", 1000.0, 1, {"input/wait_ms": 5.0, "step/time_ms": 20.0}))
    for tick in range(100):
        sink.write(Row("samples", 1001.0 + tick, tick, {"sys/cpu_pct": 50.0}))
    assert parsed(file.read_text())["tenfold_training_last_step_time_seconds"] == {"": 1000.0}


def test_the_file_is_written_seldom_and_removed_at_the_end(tmp_path: Path):
    file = tmp_path / "metrics.prom"
    sink = OpenMetricsSink(file, LABELS)
    written = set()
    for tick in range(500):
        sink.write(Row("samples", 1000 + tick / 5, tick, {"sys/cpu_pct": 1.0}))
        written.add(file.read_text() if file.exists() else "")
    assert len(written) <= 1 + 100 / EVERY_S
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.prom"]
    sink.close()
    assert not any(tmp_path.iterdir())
    sink.close()
