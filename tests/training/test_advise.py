"""The advice on a real training: its stages are measured on request, and its changes have predictions."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import advise as advise_command
from pipeline.commands.advise import _answer, advise, facts_of_run
from pipeline.config.automatic import training_settings
from pipeline.config.example_kinds import TABLE
from pipeline.dataset.manifest import Dataset, load
from pipeline.errors import SettingsError
from pipeline.evaluation.estimates import Estimate
from pipeline.images.examine import Rules, examine
from pipeline.input.cache import cached_bytes
from pipeline.input.options import BatchOptions, batch_options
from pipeline.monitor.limits import Limit
from pipeline.runs.changes import Change
from pipeline.runs.files import CHANGES
from pipeline.runs.launch import prepare_run
from pipeline.runs.promises import machine_of, save_promises
from pipeline.runs.run import load_result, load_run
from pipeline.system.host import host_facts
from pipeline.training import stages
from pipeline.training.advise import _core_s, measure_missing, measure_prepared_at_start
from pipeline.training.job import run_job
from pipeline.tuning.predictions import PREPARED, Hardware, facts_of
from pipeline.tuning.stages import StageCosts, load_stages, save_stages
from tests.monitor.epoch_records import record_epochs
from tests.tuning.test_predictions import DECODING, KEPT, epochs, facts, with_shares


def advised(run: Path, **options: Any) -> dict[str, Any]:
    """Return what the command says without measuring."""
    given = {"cores": None, "step_ms": None, "gigabytes_per_second": None, "from_record": True, **options}
    return advise.run(argparse.Namespace(run=str(run), **given))


@pytest.fixture
def trained(tmp_path: Path, published: Path) -> Path:
    """A training whose steps of 150 ms hide its input."""
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "batch_size": 2, "simulated_step_ms": 150}
    settings = training_settings({**values, "image_size": 32, "epochs": 3, "cache": "off", "promote": "never"})
    run = prepare_run(settings, published, "run")
    run_job(run, lambda: False)
    return run.folder


@pytest.mark.long
def test_a_training_is_advised_from_its_record_and_from_measured_stages(trained: Path, published: Path, tmp_path: Path):
    result = load_result(trained)
    assert result is not None
    assert result["verdict"].endswith("No setting makes it faster: the limit is compute.")
    before = advised(trained)
    assert [[*each["change"]] for each in before["predictions"]] == [["cores"]]
    assert "were not measured" in before["sentence"]

    measure_missing(load_run(trained), load(published), max_cpu_s=6.0)
    found = advised(trained)
    changes = [json.dumps(each["change"]) for each in found["predictions"]]
    stored = json.loads((trained / PREPARED).read_text())
    assert all(each["core_s"] > 0 for each in stored.values())
    assert {'{"prepare": "resize", "prepare_size": 37}', '{"prepare": "raw", "prepare_size": 37}'} <= {*changes}
    # The simulated accelerator limits it, so nothing gains.
    assert all(each["factor"]["value"] == pytest.approx(1, abs=0.05) for each in found["predictions"])
    assert found["advice"] == "No setting makes it faster: the limit is compute."
    assert "the limit is compute." in advise.printer(found)
    of, options = facts_of_run(load_run(trained), is_measured=False), batch_options(load_run(trained).settings)
    assert of.decoded_bytes == cached_bytes(load(published), options)
    measured = (trained / PREPARED).stat().st_mtime_ns
    measure_missing(load_run(trained), load(published), max_cpu_s=6.0)
    assert (trained / PREPARED).stat().st_mtime_ns == measured  # once

    change = Change("cache", "memory", 1.0, "Ada", epoch=2, promised=(2.0, 1.9, 2.1), measured=1.5)
    (trained / CHANGES).write_text(json.dumps(asdict(change)) + "\n")
    save_promises(tmp_path, "runs/other/1", machine_of(host_facts()), [change])
    save_promises(tmp_path, "runs/other/2", "another machine", [change])
    of = facts_of_run(load_run(trained), is_measured=False)
    assert of.settings.cache == "memory"
    assert [each.training for each in of.kept] == ["runs/other/1"]
    (trained / CHANGES).unlink()

    fast = advised(trained, step_ms=0.01)
    assert fast["limit"] != "compute"
    assert fast["examples_per_s"]["value"] > 2 * found["examples_per_s"]["value"]


def test_the_time_to_prepare_an_image_is_measured(published: Path, monkeypatch: pytest.MonkeyPatch):
    """Also if a measurement of their stages would take fewer images, because stored pixels are large."""
    dataset, examined = load(published), []

    def examine_one_second_long(*given: Any) -> Any:
        examined.append(1)
        return examine(*given)

    monkeypatch.setattr(stages, "MAX_BYTES", 1)
    monkeypatch.setattr(stages, "examine", examine_one_second_long)
    monkeypatch.setattr("time.process_time", lambda: float(len(examined)))
    assert _core_s(published, dataset, Rules(check="header", prepare="raw", prepare_size=37)) == 1
    assert len(examined) > 1


@pytest.mark.parametrize(
    ("prepare", "spent_s", "expected"),
    [
        ("keep", 8.0, {"resize": 6.0, "raw": 8.0}),
        ("keep", 12.0, {"resize": 5.0}),
        ("keep", 16.0, {}),
        ("keep", None, {}),
        ("resize", 8.0, {"raw": 12.0}),
        ("raw", 8.0, {}),
    ],
)
def test_what_the_stages_leave_of_20_s_is_for_other_datasets(
    tmp_path: Path,
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: str,
    spent_s: float | None,
    expected: dict[str, float],
):
    """Each measurement here takes two thirds of what it may, 4 s."""
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "image_size": 32}
    run = prepare_run(training_settings(values), published, "run")
    costs = StageCosts({"decode": Estimate(9, 8, 10)}, 100, examples=10, cpu_s=spent_s or 0)
    if spent_s is not None:
        save_stages(run.folder, costs)
    given: dict[str, float] = {}

    def measure(*options: Any, prepare: str, **_: Any) -> StageCosts:
        given[prepare] = options[3]
        return costs

    monkeypatch.setattr("pipeline.training.advise.measure_stages", measure)
    monkeypatch.setattr("pipeline.training.advise._core_s", lambda *_: 0.5)
    monkeypatch.setattr("time.process_time", lambda: 4.0 * len(given))
    content = load(published)
    dataset = replace(content, settings={**content.settings, "prepare": prepare})
    measure_prepared_at_start(run, published, dataset, go_on=lambda: True)
    assert given == expected
    stored = json.loads((run.folder / PREPARED).read_text()) if expected else {}
    assert {name: each["core_s"] for name, each in stored.items()} == dict.fromkeys(expected, 0.5)
    given.clear()
    measure_prepared_at_start(run, published, dataset, go_on=lambda: True)
    assert not (given and expected)  # A retry measures nothing.


def test_other_datasets_that_cannot_be_measured_cost_a_warning(
    tmp_path: Path, published: Path, caplog: pytest.LogCaptureFixture
):
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "image_size": 32}
    run = prepare_run(training_settings(values), published, "run")
    save_stages(run.folder, StageCosts({"decode": Estimate(9, 8, 10)}, 100, examples=10, cpu_s=1.0))
    measure_prepared_at_start(run, tmp_path / "missing", load(published), go_on=lambda: True)
    assert "what a new dataset would gain is unknown: FileNotFoundError" in caplog.text
    assert not (run.folder / PREPARED).exists()


def test_on_another_machine_nothing_is_measured(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its cores may be others, and what earlier predictions came to is that of the machine of the training."""
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "image_size": 32}
    run, measured = prepare_run(training_settings(values), published, "run"), []
    record_epochs(run.folder / "record", [(5.0, 5.0)] * 3)
    monkeypatch.setattr("pipeline.training.advise.measure_missing", lambda *_: measured.append(1))
    monkeypatch.setattr(advise_command, "_measure_steps", lambda _: None)
    change = Change("cache", "memory", 1.0, "Ada", epoch=2, promised=(2.0, 1.9, 2.1), measured=1.5)
    elsewhere = replace(run, host={**run.host, "processor": "Other"})
    save_promises(tmp_path, "runs/other/1", machine_of(elsewhere.host), [change])
    assert facts_of_run(run, is_measured=True).kept == []
    assert len(measured) == 1
    assert [each.training for each in facts_of_run(elsewhere, is_measured=True).kept] == ["runs/other/1"]
    assert len(measured) == 1
    assert "the training ran on another machine (Other, " in caplog.text


def test_of_a_table_batches_of_twice_the_size_are_measured(
    tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch
):
    values = {"workspace": str(tmp_path), "local_folder": str(tmp_path), "image_size": 32, "batch_size": 8}
    run, sizes = prepare_run(training_settings(values), published, "run"), []

    def measure_stages(folder: Path, dataset: Dataset, options: BatchOptions, max_cpu_s: float) -> StageCosts:
        sizes.append(options.batch_size)
        return KEPT

    monkeypatch.setattr("pipeline.training.advise.measure_stages", measure_stages)
    for _ in range(2):  # The second call measures nothing again.
        measure_missing(run, replace(load(published), kind=TABLE))
    assert sizes == [8, 16]
    assert load_stages(run.folder) == KEPT
    of = facts_of(DECODING, run.settings, {}, {"train": 900, "validation": 100}, folder=run.folder)
    assert of.prepared == {"batch_size": KEPT}


@pytest.mark.parametrize(("callbacks", "limit"), [(0.0, Limit.BETWEEN_EPOCHS), (0.4, Limit.CALLBACKS)])
def test_work_between_epochs_is_named_after_callbacks_only_if_they_do_most_of_it(callbacks: float, limit: Limit):
    """Half of the time passes between two epochs, without a validation."""
    of = facts(with_shares(DECODING, callbacks=callbacks), epochs=epochs(0.45))
    assert _answer(of, Hardware(step_ms=0.001, cores=1000))["limit"] == limit.value


def test_hardware_must_be_some(tmp_path: Path):
    with pytest.raises(SettingsError, match="--step-ms must be more than 0, got -1"):
        advised(tmp_path, step_ms=-1.0)
