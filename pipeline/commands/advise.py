"""The command that predicts what a change of a training would gain."""

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.commands.command import PACKAGES, Result, argument, command
from pipeline.commands.options import reachable
from pipeline.errors import SettingsError

if TYPE_CHECKING:
    from pipeline.runs.run import Run
    from pipeline.tuning.predictions import Facts, Hardware, Prediction

_log = logging.getLogger(__name__)


def _format_advice(result: Result) -> str:
    rows = [("change", "times faster", "costs")]
    rows += [(each["action"], each["times"], each["price"]) for each in result["predictions"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    shown = table if result["predictions"] else []
    return "\n".join([result["verdict"], "", *shown, "", result["sentence"], result["advice"]]).strip()


@command(
    "advise",
    "workspace/runs/RUN --cores 96 --step-ms 12 --gigabytes-per-second 2",
    argument("run", help="folder of the run, local"),
    argument("--cores", type=float, metavar="N", help="predict for this number of cores (default: as measured)"),
    argument(
        "--step-ms", type=float, metavar="X", help="predict for steps of X ms without waiting (default: as measured)"
    ),
    argument(
        "--gigabytes-per-second",
        type=float,
        metavar="Y",
        help="predict for a disk or network that reads this much (default: as measured)",
    ),
    argument(
        "--from-record",
        action="store_true",
        help="measure nothing. Otherwise, the stages of the input are measured once, in about a minute of processor "
        "time. So are the steps, unless they are simulated or a GPU waits for them",
    ),
    printer=_format_advice,
)
def advise(options: argparse.Namespace) -> Result:
    """Predict how much faster a training would be with other settings or other hardware, and what that costs."""
    from pipeline.monitor.limits import Limit
    from pipeline.runs.run import find_training, load_run
    from pipeline.tuning.advice import advice
    from pipeline.tuning.predictions import Hardware, predictions

    numbers = {"cores": options.cores, "step_ms": options.step_ms, "gigabytes_per_second": options.gigabytes_per_second}
    for name, value in numbers.items():
        if value is not None and not value > 0:
            raise SettingsError(f"--{name.replace('_', '-')} must be more than 0, got {value:g}")
    folder = find_training(reachable("run", options.run))
    if not isinstance(folder, Path):
        raise SettingsError(f"run must be a local folder, got {folder}: copy it from the bucket")
    run = load_run(folder)
    facts = facts_of_run(run, is_measured=not options.from_record)
    gigabytes = options.gigabytes_per_second
    hardware = Hardware(options.cores, options.step_ms, gigabytes and 1e9 * gigabytes)
    found, answered = predictions(facts, hardware), _answer(facts, hardware)
    # On other hardware, the limits of the verdict may be gone.
    judged = facts.verdict if hardware == Hardware() else replace(facts.verdict, limits=(Limit(answered["limit"]),))
    return {
        "run": str(folder),
        "verdict": facts.verdict.sentence,
        "limits": [limit.value for limit in facts.verdict.limits],
        **answered,
        "advice": advice(judged, facts.settings, {}, found),
        "predictions": [_row(each) for each in found],
    }


def _answer(facts: "Facts", hardware: "Hardware") -> dict[str, Any]:
    """Return how fast a training is on some hardware, and what limits it there, with a sentence."""
    import numpy as np

    from pipeline.config.example_kinds import IMAGES
    from pipeline.monitor.diagnosis import three_digits
    from pipeline.monitor.limits import Limit, Part
    from pipeline.tuning.predictions import Hardware, rates_on
    from pipeline.tuning.rates import estimate_of

    if not facts.is_predictable:
        several = "Nothing is predicted of a training on several servers."
        sentence = several if facts.settings.num_training_servers > 1 else ""
        return {"examples_per_s": None, "limit": facts.verdict.limit.value, "sentence": sentence}
    rates = rates_on(facts, hardware)
    rate = estimate_of(1e6 / rates.later_us())
    limit = facts.verdict.limit if hardware == Hardware() else rates.limit()
    # Other hardware does not change what lies between two epochs.
    measured_us = np.median(rates_on(facts, Hardware()).whole_us)
    callbacks_us = facts.verdict.shares.get(Part.CALLBACKS, 0.0) * measured_us
    if limit is Limit.BETWEEN_EPOCHS and 2 * callbacks_us > np.median(rates.between_us - rates.validation_us):
        limit = Limit.CALLBACKS
    value, low, high = map(three_digits, rate)
    unit = "images" if facts.settings.example_kind == IMAGES else "rows"
    sentence = f"It trains {value} {unit} per second ({low} to {high}), validation and callbacks included"
    if hardware != Hardware():
        sentence = f"With this hardware, it would train {value} {unit} per second ({low} to {high})"
    missing = "" if facts.stages else ". The stages of the input were not measured, so that less can be predicted"
    return {
        "examples_per_s": rate._asdict(),
        "limit": limit.value,
        "sentence": f"{sentence}; the limit is {limit.value}{missing}.",
    }


def _row(prediction: "Prediction") -> Mapping[str, Any]:
    value, low, high = (f"{each:.3g}" for each in prediction.factor)
    return {
        **prediction.as_json(),
        "action": prediction.action,
        "times": f"{value} ({low} to {high})",
        "price": "; ".join(filter(None, [prediction.price, prediction.costs.words])),
    }


def _measure_steps(run: "Run") -> None:
    """Measure the steps alone, and if they limit the training, with another precision and with XLA, too.

    In a process of its own, because this one hides the GPUs. If it fails, its log says why.
    """
    from pipeline.monitor.verdict import diagnose_run
    from pipeline.runs.files import STEPS
    from pipeline.runs.measured_steps import are_worth_measuring
    from pipeline.runs.run import is_running
    from pipeline.system.process import run_module

    if (run.folder / STEPS).exists() or not are_worth_measuring(diagnose_run(run.folder), run.settings):
        return
    if is_running(run.folder):
        _log.warning("the steps are not measured while the training runs: ask again when it is over")
        return
    run_module("pipeline.training.step_times", str(run.folder), str(os.getpid()), output=sys.stderr.fileno())


def facts_of_run(run: "Run", *, is_measured: bool) -> "Facts":
    """Return what is known of a training. With `is_measured`, the stages of its input are measured if they were not."""
    from pipeline.dataset.manifest import load_allowed
    from pipeline.monitor.verdict import diagnose_run
    from pipeline.runs.changes import load_changes, newest_settings
    from pipeline.runs.files import FREE_MEMORY
    from pipeline.runs.promises import machine_of, promises_on
    from pipeline.storage import place_of
    from pipeline.system.host import host_facts
    from pipeline.tuning.predictions import facts_of, since_change

    dataset, machine = load_allowed(place_of(run.dataset)), machine_of(run.host)
    if is_measured and find_spec(PACKAGES["training"]) is None:
        _log.warning("the stages of the input are not measured, because TensorFlow is not installed")
    elif is_measured and (here := machine_of(host_facts())) != machine:
        _log.warning(
            "the stages of the input are not measured, because the training ran on another machine (%s) than this one "
            "(%s): run the command there",
            machine,
            here,
        )
    elif is_measured:
        from pipeline.training.tensorflow_start import tensorflow_on_the_cpu

        with tensorflow_on_the_cpu():
            from pipeline.training.advise import measure_missing
        measure_missing(run, dataset)
        _measure_steps(run)
    examples = {name: split.examples for name, split in dataset.splits.items()}
    changes = load_changes(run.folder)
    facts = facts_of(
        diagnose_run(run.folder),
        newest_settings(run.settings, changes),
        dataset.settings,
        examples,
        folder=run.folder,
        memory_bytes=run.host.get(FREE_MEMORY, 0),
        kept=promises_on(run.folder, machine),
    )
    return since_change(facts, run.folder, changes)
