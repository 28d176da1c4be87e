"""How a training is doing, in sentences and numbers, which a screen reader can read aloud."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas

from pipeline.evaluation.best_epoch import best_epoch
from pipeline.monitor.aggregation import ROWS
from pipeline.monitor.diagnosis import percent, three_digits
from pipeline.monitor.gpu_columns import busy_pct, gpus, without_use
from pipeline.monitor.limits import Limit
from pipeline.monitor.overview import SHARE
from pipeline.monitor.verdict import MIN_STEPS
from pipeline.report.drawing import format_count
from pipeline.report.figures import learning_sentence, spent_sentence
from pipeline.report.utilization import MAX_BOUNDARIES
from pipeline.runs.files import RunFiles
from pipeline.watch.tables import Intervals
from pipeline.watch.view import View

LATELY_S = 60.0
"""Numbers of a training under way are over this many seconds, if there is no verdict on its last steps."""
MAX_VERDICT_AGE_S = 120.0
"""A verdict that ended this many seconds before the last sample says nothing about the last steps. A training has a new
one each minute."""
SILENT_S = 45.0
"""Seconds without a sample after which something is wrong. A bucket has a new one at least every 18 s."""
MIN_LONG = 5.0
"""The longest step is named if it took at least this many times as long as usual ones."""
MAX_ROWS = 100
"""Tables of epochs have the newest rows only."""
Rows = list[list[str]]


def status(
    files: RunFiles, view: View, is_over: bool, silent_s: Mapping[int, float], is_copy: bool = False
) -> dict[str, Any]:
    """Return all that a page shows of a training beside its curves.

    `is_over` says whether Airflow has ended the run. `silent_s` has the seconds since the newest sample of each
    training server changed, by the index of the server. `is_copy` says whether the training is in a bucket.
    """
    step = last_step(view.batches)
    decision, last = files.decision, last_time(view.samples)
    judged = _with_current_verdict(files, last)
    return {
        "title": f"{files.settings.get('dataset_name', '')}: {files.settings.get('model') or ''}".strip(": "),
        **_state(files, view, step, is_over, silent_s[0], max_silent_s(view) if is_copy else SILENT_S),
        "progress": progress(files, step),
        "verdict": _verdict(files, view, is_over, now=last + silent_s[0]),
        "promotion": decision and {"outcome": decision.outcome, "name": decision.badge, "reason": decision.reason},
        "tiles": list(_tiles(judged, view, None if is_over else remaining_s(judged, view.batches, view.epochs, last))),
        "sentences": _sentences(judged, view),
        "tables": _tables(judged, view, silent_s),
        "bars": view.stages.bars if view.stages else [],
        "facts": _facts(files),
        "comet": str(files.result.get("comet") or ""),
    }


def last_step(batches: Intervals) -> int:
    """Return the number of the last step; 0 if there is none yet."""
    steps = batches.means["step"]
    return int(steps.iloc[-1]) if len(steps) else 0


def last_time(rows: Intervals) -> float:
    """Return the time of the newest sample or step (Unix s); 0 if there is none yet."""
    times = rows.means["time"]
    return float(times.iloc[-1]) if len(times) else 0.0


def progress(files: RunFiles, step: int) -> float | None:
    """Return the share of the steps that are done; None if their number is not known."""
    whole = files.epochs * files.steps_per_epoch
    if files.is_complete:
        return 1.0
    return min(1.0, step / whole) if whole else None


def max_silent_s(view: View) -> float:
    """Return the seconds without a sample after which something is wrong with a training in a bucket.

    Its copy has a new sample only when an interval of the overview is complete.
    """
    return max(SILENT_S, 2 * (last_time(view.samples) - view.start) / SHARE)


def state_of(files: RunFiles, step: int, silent_s: float, is_over: bool, limit_s: float = SILENT_S) -> str:
    """Return one of trained, stopped, starting, silent, evaluating and training.

    `step` is the last step, 0 before the first one. `silent_s` are the seconds since the newest sample changed, and
    `limit_s` is how long that may be.
    """
    if files.is_complete:
        return "trained"
    if is_over:
        return "stopped"
    if not step:
        return "starting"
    if silent_s > limit_s:
        return "silent"
    return "evaluating" if step >= files.epochs * files.steps_per_epoch > 0 else "training"


def _state(files: RunFiles, view: View, step: int, is_over: bool, silent_s: float, limit_s: float) -> dict[str, str]:
    state = state_of(files, step, silent_s, is_over, limit_s)
    ended = f"in {_position(files, step)}" if step else "before its first step was complete"
    sentences = {
        "trained": f"trained for {format_count(len(view.epochs), 'epoch')}",
        "stopped": f"the run ended {ended}, without a model",
        "starting": "loading TensorFlow, the model and the first batches",
        "silent": f"no sample for {duration(silent_s)}: Airflow may retry the task soon",
        "evaluating": "all epochs are done; the best model is being evaluated and exported",
        "training": f"{_position(files, step)}{_signs_of_life(view, limit_s)}",
    }
    return {"state": state, "words": sentences[state]}


def _signs_of_life(view: View, limit_s: float) -> str:
    """Return how old the last sample is, and the last step if that is long ago, as in a validation or a standstill.

    Nothing if the last sample is no sign of life, or if the clocks of machines differ.
    """
    now = time.time()
    age, without_step = now - last_time(view.samples), now - last_time(view.batches)
    if not 0 <= age <= limit_s:
        return ""
    step = f", and the last step ended {duration(without_step)} ago" if without_step > limit_s else ""
    return f"; the last sample came {age:.0f} s ago{step}"


def _position(files: RunFiles, step: int) -> str:
    if not files.steps_per_epoch:
        return f"step {step:,}"
    epoch = min((step - 1) // files.steps_per_epoch + 1, files.epochs)
    return f"epoch {epoch:,} of {files.epochs:,}, step {step:,} of {files.epochs * files.steps_per_epoch:,}"


def _with_current_verdict(files: RunFiles, last_sample: float) -> RunFiles:
    """Return the files without `verdict.json` if its verdict is unknown, or if it ended long before the last sample.

    Its numbers then say nothing about the last steps. `last_sample` is in Unix seconds.
    """
    is_known = files.verdict.get("limit") != Limit.UNKNOWN.value
    is_new = last_sample - float(files.verdict.get("time") or 0) <= MAX_VERDICT_AGE_S
    return files if is_known and is_new else replace(files, verdict={})


def _verdict(files: RunFiles, view: View, is_over: bool, now: float) -> str:
    """Return the verdict. That of a training under way begins with its interval. `now` is by the training's clock."""
    if sentence := files.result.get("verdict"):
        return str(sentence)
    if sentence := files.verdict.get("sentence"):
        seconds, ended, steps = (float(files.verdict.get(name) or 0) for name in ("seconds", "time", "steps"))
        begin, end = (exact_duration(time - view.start) for time in (ended - seconds, ended))
        of_steps = f"{format_count(int(steps), 'step')}, " if steps else ""
        ago = duration(max(0.0, now - ended))
        return f"From {begin} to {end} after the start ({of_steps}ended {ago} ago): {sentence}"
    if files.is_complete or is_over:
        return ""
    return f"The bottleneck appears after 20 seconds and {MIN_STEPS} steady steps, and is updated every minute."


def _tiles(files: RunFiles, view: View, left_s: float | None) -> Iterator[tuple[str, str]]:
    batches = _rows_judged(files, view.batches)
    if files.steps_judged or ("step/time_ms" in batches and len(batches)):
        wait, whole = _wait_and_step(files, batches)
        yield "data wait", percent(wait / whole) if whole else "-"
        yield "step time", f"{three_digits(whole)} ms"
        speed = files.steps_judged.get("examples_per_s")
        if not speed and whole:
            speed = 1000 * _per_step(batches, "input/examples") / whole
        yield "examples per second", three_digits(speed) if speed else "-"
    yield from _busy_tile(files, view)
    if files.is_simulated:
        yield "accelerator", "simulated"
    if best := best_epoch(view.epochs):
        yield best.title, best.text
        yield from files.judged(best.metric)
    if len(view.samples.means):
        yield "duration" if files.is_complete else "elapsed", duration(last_time(view.samples) - view.start)
    if left_s is not None:
        yield "remaining, about", duration(left_s)


def _busy_tile(files: RunFiles, view: View) -> Iterator[tuple[str, str]]:
    """Yield how busy the GPUs were, or the processor of a machine without GPUs. The verdict's number comes first."""
    for label, name in (("GPU busy", "gpu_pct"), ("processor busy", "cpu_pct")):
        if isinstance(busy := files.steps_judged.get(name), float):
            yield label, f"{busy:.0f}%"
            return
    samples = _rows_judged(files, view.samples)
    if "sys/cpu_pct" in samples and len(samples):
        label = "GPU busy" if len(gpus(samples, "util_pct").columns) else "processor busy"
        yield label, f"{_busy_pct(samples):.0f}%"


def _rows_judged(files: RunFiles, rows: Intervals) -> pandas.DataFrame:
    """Return the intervals that the verdict is about. Of a complete training, those are all of them."""
    if files.is_complete:
        return rows.means
    if not (files.verdict.get("time") and files.verdict.get("seconds")):
        return without_first(lately(rows))
    end = float(files.verdict["time"])
    times = rows.means["time"]
    # The time of a row is the end of its interval, which may be longer than the interval of the verdict.
    return rows.means[(times > end - float(files.verdict["seconds"])) & (times.shift(fill_value=-np.inf) < end)]


def _wait_and_step(files: RunFiles, rows: pandas.DataFrame) -> tuple[float, float]:
    """Return the data wait of a step and the time of a step (ms).

    They are the numbers of the verdict and of the report, which leave out the first steps. In a short training these
    take as much time as many others, and two numbers for the same thing would make a reader doubt both.
    """
    if files.steps_judged:
        return files.steps_judged["wait_ms"], files.steps_judged["step_ms"]
    return _per_step(rows, "input/wait_ms"), _per_step(rows, "step/time_ms")


def _per_step(batches: pandas.DataFrame, name: str) -> float:
    """Return the mean over the steps. An interval with a stall has few steps, so it must weigh less than others."""
    steps = batches["steps"]
    return float((batches[name] * steps).sum() / steps.sum()) if steps.sum() else 0.0


def lately(rows: Intervals) -> pandas.DataFrame:
    """Return the means of the last minute that was measured."""
    times = rows.means["time"]
    return rows.means[times > times.iloc[-1] - LATELY_S] if len(times) else rows.means


def without_first(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Return intervals without the first one of the training, which compiles, if there are others."""
    return rows.iloc[1:] if len(rows) > 1 and rows.index[0] == 0 else rows


def remaining_s(files: RunFiles, batches: Intervals, epochs: pandas.DataFrame, last_sample: float) -> float | None:
    """Return the seconds until the last step, validations included; None if there is none, or its time is unknown.

    `last_sample` is the time of the newest sample (Unix s).
    """
    rows = _rows_judged(_with_current_verdict(files, last_sample), batches)
    missing = files.epochs * files.steps_per_epoch - last_step(batches)
    # A retry goes back to an earlier step. Then no speed can be computed yet.
    if files.is_complete or missing <= 0 or not rows["steps"].sum():
        return None
    # `_per_step` is the time of training steps only, so the validations that are left are added.
    # The first epoch of a training that continues another one is not number 1.
    done = int(epochs["step"].iloc[-1]) if len(epochs) else last_step(batches) // files.steps_per_epoch
    each = epochs["epoch/validation_s"].mean() if "epoch/validation_s" in epochs else 0.0
    return float(missing * _per_step(rows, "step/time_ms") / 1000 + (files.epochs - done) * each)


def duration(seconds: float) -> str:
    """Write a time as in 48 s, 12 min, 3 h 20 min, 2 d 4 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 36 else f"{hours // 24} d {hours % 24} h"


def exact_duration(seconds: float) -> str:
    """Write a time to the second, as in 48 s, 12 min 5 s, 3 h 20 min 5 s."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"))
    return " ".join([*(f"{number} {unit}" for number, unit in parts if number), f"{rest} s"])


def _sentences(files: RunFiles, view: View) -> dict[str, str]:
    """Return a sentence for each figure, by its name."""
    sentences = {
        "waiting": _waiting_sentence(files, view),
        "machine": _machine_sentence(view),
        "servers": _servers_sentence(view),
        "stages": view.stages.sentence if view.stages else "",
    }
    if len(view.epochs) and "loss" in view.epochs:
        sentences["learning"] = learning_sentence(view.epochs)
    whole = {str(name): float(seconds.sum()) for name, seconds in view.spent.items()}
    if sum(whole.values()):
        sentences["spent"] = spent_sentence(whole, len(view.spent))
    return sentences


def _waiting_sentence(files: RunFiles, view: View) -> str:
    rows = _rows_judged(files, view.batches)
    if not files.steps_judged and not ("step/time_ms" in rows and len(rows)):
        return "No step has been completed yet."
    wait, whole = _wait_and_step(files, rows)
    share = percent(wait / whole) if whole else "0%"
    judged = "In the steps of the verdict" if files.steps_judged else "In the last minute of steps"
    when = "Over the training" if files.is_complete else judged
    ends = "; dotted lines are the ends of epochs" if 0 < len(view.epochs) <= MAX_BOUNDARIES else ""
    return (
        f"{when}, {share} of the time was waiting for data ({three_digits(wait)} of {three_digits(whole)} ms a step)"
        f"{ends}.{_longest_step(view)}"
    )


def _longest_step(view: View) -> str:
    """Return when the longest step ended, as a sentence; empty unless it took far longer than others.

    The first step compiles, so the first interval is left out.
    """
    if "step/time_ms" not in view.batches.highest or len(view.batches.highest) < 2:
        return ""
    highest = view.batches.highest["step/time_ms"].fillna(0.0).to_numpy(dtype=float)[1:]
    usual = float(view.batches.means["step/time_ms"].iloc[1:].median())
    longest = int(np.argmax(highest))
    if not highest[longest] >= MIN_LONG * usual:
        return ""
    at = exact_duration(float(view.batches.means["time"].to_numpy()[1 + longest]) - view.start)
    return f" The longest step took {three_digits(highest[longest])} ms, and ended about {at} after the start."


def _machine_sentence(view: View) -> str:
    rows = view.samples.means
    if "sys/cpu_pct" not in rows or not len(rows):
        return "No sample has been taken yet."
    gpu = f", the GPU {_busy_pct(rows):.0f}%" if len(gpus(rows, "util_pct").columns) else without_use(rows)
    return f"The processor was {_mean(rows, 'sys/cpu_pct'):.0f}% busy on average{gpu}."


def _busy_pct(rows: pandas.DataFrame) -> float:
    """Return how busy the GPUs were in all samples of some intervals (%), or the processor without a GPU."""
    return _mean(rows.assign(busy=busy_pct(rows)), "busy")


def _mean(rows: pandas.DataFrame, name: str) -> float:
    """Return the mean of a metric over all samples of some intervals. An interval may have few samples."""
    values = rows[name].to_numpy(dtype=float)
    known = np.isfinite(values)
    return float(np.average(values[known], weights=rows[ROWS].to_numpy(dtype=float)[known])) if known.any() else np.nan


def _servers_sentence(view: View) -> str:
    busy = _busy_by_server(view)
    if not busy:
        return ""
    idlest = min(busy, key=lambda index: busy[index])
    least_busy = f"server {idlest} was the least busy, with {busy[idlest]:.0f}%"
    return f"In each step, all servers wait for the slowest one. In the last minute, {least_busy}."


def _busy_by_server(view: View) -> dict[int, float]:
    """Return how busy the GPUs of each training server were in the last minute (%), or its processor without a GPU."""
    return {
        index: _busy_pct(lately(samples))
        for index, samples in view.servers.items()
        if "sys/cpu_pct" in samples.means and len(samples.means)
    }


def _tables(files: RunFiles, view: View, silent_s: Mapping[int, float]) -> dict[str, dict[str, Any]]:
    """Return the numbers of each figure as a table, by its name."""
    tables = {"machine": _table(("", "mean", "highest", "last"), _machine_rows(view))}
    if "step/time_ms" in view.batches.means and len(view.batches.means):
        tables["waiting"] = _table(("", "mean", "last"), _waiting_rows(files, view))
    if view.stages:
        tables["stages"] = _table(view.stages.head, view.stages.rows)
    if len(view.spent):
        tables["spent"] = _spent_table(view.spent)
    if len(view.epochs):
        tables["learning"] = _learning_table(view.epochs)
    if len(view.servers) > 1:
        busy = _busy_by_server(view)
        rows = [[f"server {index}", f"{busy[index]:.0f}%", f"{duration(silent_s[index])} ago"] for index in busy]
        tables["servers"] = _table(("", "busy", "last sample"), rows)
    return tables


def _table(head: tuple[str, ...], rows: Rows) -> dict[str, Any]:
    return {"head": list(head), "rows": rows}


def _waiting_rows(files: RunFiles, view: View) -> Rows:
    last = view.batches.means.iloc[-1]
    means = view.batches.means
    of_all = _per_step(means, "input/wait_ms"), _per_step(means, "step/time_ms")
    wait, whole = _wait_and_step(files, means) if files.is_complete else of_all
    return [
        ["Waiting for data in a step (ms)", three_digits(wait), three_digits(last["input/wait_ms"])],
        ["Time of a step (ms)", three_digits(whole), three_digits(last["step/time_ms"])],
    ]


def _spent_table(seconds: pandas.DataFrame) -> dict[str, Any]:
    head = ("epoch", *(f"{name} (s)" for name in seconds.columns))
    newest = seconds.tail(MAX_ROWS).iloc[::-1]
    return _table(head, [[f"{epoch}", *map(three_digits, row)] for epoch, *row in newest.itertuples()])


def _machine_rows(view: View) -> Rows:
    rows = []
    for panel, curves in view.panels:
        for curve in curves:
            means, highest = view.samples.means, view.samples.highest[curve.column]
            values = (_mean(means, curve.column), highest.max(), means[curve.column].dropna().iloc[-1])
            numbers = [three_digits(float(value) / panel.per_unit) for value in values]
            rows.append([f"{panel.title}: {curve.label}", *numbers])
    return rows


def _learning_table(epochs: pandas.DataFrame) -> dict[str, Any]:
    shown = [
        str(name) for name in epochs.columns if "/" not in str(name) and name not in ("time", "step", "global_step")
    ]
    rows = [
        [f"{row['step']:.0f}", *(f"{row[name]:.4g}" for name in shown)]
        for row in epochs.tail(MAX_ROWS).iloc[::-1].to_dict("records")
    ]
    return _table(("epoch", *shown), rows)


def _facts(files: RunFiles) -> list[tuple[str, str]]:
    settings, host = files.settings, files.host
    facts = {
        "dataset": files.run.get("dataset"),
        "version": files.run.get("dataset_version"),
        "model": settings.get("model"),
        "epochs": settings.get("epochs"),
        "batch size": settings.get("batch_size"),
        "learning rate": settings.get("learning_rate"),
        "image size": None if settings.get("example_kind") == "table" else settings.get("image_size"),
        "training servers": settings.get("num_training_servers"),
        "host": host.get("name"),
        "folder": files.result.get("run") or files.run.get("folder"),
    }
    return [(label, str(value)) for label, value in facts.items() if value not in (None, "")]
