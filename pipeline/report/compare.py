"""Comparison of two runs: which one is faster, which one is better, and how sure that is. A is the first one.

Neighboring steps take similar times, because a queue that ran empty stays empty for some steps. So blocks of
neighboring steps are resampled: otherwise the intervals would be far too narrow. The models are compared image by
image (or row by row) if they were evaluated on the same images (or rows), as before a promotion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.best_epoch import best_epoch, epoch_metric
from pipeline.evaluation.estimates import INTERVAL_PERCENT, RESAMPLES, Array, Estimate, interval
from pipeline.evaluation.metrics import METRICS, evaluated_class, figures_in
from pipeline.evaluation.scales import four_digits
from pipeline.monitor.diagnosis import Table, is_steady, three_digits
from pipeline.monitor.limits import OTHERS
from pipeline.monitor.load import during, load_of
from pipeline.monitor.verdict import MIN_STEPS
from pipeline.runs.files import facts
from pipeline.runs.recorded_run import RecordedRun

MIN_EPOCHS = 5
"""An interval for the time of an epoch needs at least this many epochs."""
_MS, _POINTS = "ms", "%"


@dataclass(frozen=True)
class Row:
    """A figure of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None
    low: float | None = None
    high: float | None = None
    """Ends of the interval of B minus A, if they are known."""
    metric: str = field(default="", kw_only=True)
    """The key of the metric; empty for a time or a speed."""

    @property
    def difference(self) -> float | None:
        """B minus A."""
        return None if self.a is None or self.b is None else self.b - self.a

    def text_of(self, value: float) -> str:
        """Write a value of the row."""
        if self.unit == _POINTS:
            return f"{value:.2f}%"
        if self.metric and METRICS[self.metric].scale == "amount":
            return four_digits(value)
        return f"{three_digits(value)} {self.unit}".rstrip()


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison of two runs."""

    verdict: str
    rows: Sequence[Row]
    differing: Mapping[str, tuple[Any, Any]]
    """Each setting or other fact that differs, by name, with both values."""
    note: str

    def as_json(self) -> dict[str, Any]:
        """Return what the option --json prints."""
        return {
            "verdict": self.verdict,
            "rows": [asdict(row) | {"difference": row.difference} for row in self.rows],
            "differing": {name: list(values) for name, values in self.differing.items()},
            "note": self.note,
        }


def compare(a: RecordedRun, b: RecordedRun, answers: tuple[Answers | None, Answers | None]) -> Comparison:
    """Compare two runs. `answers` are the answers of the models to the images that judge them, if they were stored."""
    why = why_unpaired(a, b, *answers)
    evaluated = evaluated_rows(a.evaluation, b.evaluation, {} if why else paired(*answers))
    speed, times = _speed(a, b)
    if _split(a) != _split(b):
        evaluated = [replace(row, name=f"{row.name} (A: {_split(a)}, B: {_split(b)})") for row in evaluated]
    elif _split(a) == "test":  # They stand below the best validation of an epoch.
        evaluated = [replace(row, name=f"test {row.name}") for row in evaluated]
    return Comparison(
        verdict=" ".join(filter(None, [speed, *map(model_sentence, evaluated[:1])])),
        rows=[*times, _epoch_row(a.epochs, b.epochs), _best_row(a.epochs, b.epochs), *evaluated],
        differing=differing(a.files.run, b.files.run),
        note=f"{_note(_noun(a, b))} {why}".rstrip(),
    )


def _speed(a: RecordedRun, b: RecordedRun) -> tuple[str, list[Row]]:
    """Return a sentence about the speed, and the figures of the steady steps."""
    steady = [is_steady(run.judged) for run in (a, b)]
    if min(each.sum() for each in steady) < MIN_STEPS:
        counts = " and ".join(f"{each.sum():,}" for each in steady)
        return f"Not enough steps to compare the speed: {counts} steady steps, {MIN_STEPS} of each run are needed.", []
    randoms = np.random.default_rng(0).spawn(2)  # With one generator, runs of equal length would be drawn in pairs.
    resampled = [
        {measure.name: _resampled(measure, run.judged, each, random) for measure in _MEASURES}
        for run, each, random in zip((a, b), steady, randoms, strict=True)
    ]
    rows = [_row(each.name, each.unit, *(figures[each.name] for figures in resampled)) for each in _MEASURES]
    sentence = speed_sentence(*(each["examples a second"] for each in resampled))
    return f"{sentence} {contention_sentence(a, b)}".rstrip(), rows


def contention_sentence(a: RecordedRun, b: RecordedRun) -> str:
    """Say how busy other programs kept the cores, if that may have slowed down a run; else return an empty text."""
    cores = [float(run.files.host.get("cores") or 0) for run in (a, b)]
    others = [_others(run) for run in (a, b)]
    if not any(busy > OTHERS * count for busy, count in zip(others, cores, strict=True)):
        return ""
    had = " and ".join(
        f"{busy:.1f} of {count:g} cores during {name}" for name, busy, count in zip("AB", others, cores, strict=True)
    )
    return f"But other programs kept {had} busy, which may explain the whole difference."


def _others(run: RecordedRun) -> float:
    samples = run.servers[run.slowest].rows
    return load_of(samples, during(samples, run.judged, is_steady(run.judged))).other_cores or 0.0


@dataclass(frozen=True)
class _Measure:
    """A figure of the steady steps: the sum of one column, divided by the sum of another one, times a factor."""

    name: str
    unit: str
    over: str
    under: str = ""
    """Empty for the number of steps."""
    factor: float = 1.0


_MEASURES = (
    _Measure("examples a second", "", "input/examples", "step/time_ms", 1000.0),
    _Measure("time of a step", _MS, "step/time_ms"),
    _Measure("data wait of a step", _MS, "input/wait_ms"),
    _Measure("compute of a step", _MS, "step/compute_ms"),
    _Measure("share of the step time that is data wait", _POINTS, "input/wait_ms", "step/time_ms", 100.0),
)


@dataclass(frozen=True)
class ResampledFigure:
    """A figure, and its value in each resample."""

    value: float
    resampled: Array


def _resampled(
    measure: _Measure, batches: Table, steady: NDArray[np.bool_], random: np.random.Generator
) -> ResampledFigure:
    over = np.asarray(batches[measure.over], dtype=float)[steady]
    under = np.asarray(batches[measure.under], dtype=float)[steady] if measure.under else np.ones(len(over))
    value = measure.factor * float(over.sum() / under.sum())
    return ResampledFigure(value, measure.factor * ratios_of_blocks(over, under, random))


def ratios_of_blocks(over: Array, under: Array, random: np.random.Generator) -> Array:
    """Return the ratio of the sums of two columns in each resample of blocks of neighboring rows, (RESAMPLES,).

    The length of a block is the square root of the number of rows. It is longer than the best for a mean, which is the
    careful choice, because how far neighbors depend on each other is not known. Blocks wrap around the end, so that all
    rows are drawn equally often.
    """
    length = max(1, round(len(over) ** 0.5))
    starts = random.integers(len(over), size=(RESAMPLES, -(-len(over) // length)))
    ratios: Array = _block_sums(over, length)[starts].sum(axis=1) / _block_sums(under, length)[starts].sum(axis=1)
    return ratios


def _block_sums(values: Array, length: int) -> Array:
    """Return the sum of the block that begins at each row."""
    sums = np.cumsum(np.concatenate([[0.0], values, values[: length - 1]]))
    of_blocks: Array = sums[length:] - sums[:-length]
    return of_blocks


def _row(name: str, unit: str, a: ResampledFigure, b: ResampledFigure) -> Row:
    return Row(name, unit, a.value, b.value, *map(float, interval(b.resampled - a.resampled)))


def speed_sentence(a: ResampledFigure, b: ResampledFigure) -> str:
    """Say which run is faster and by how much, or that no difference can be told."""
    slow, fast, name = (a, b, "B") if b.value >= a.value else (b, a, "A")
    low, high = interval(fast.resampled / slow.resampled)
    numbers = f"{three_digits(fast.value)} against {three_digits(slow.value)} examples a second in the steady steps"
    spread = f"{INTERVAL_PERCENT}% interval {low:.3g} to {high:.3g}"
    if low <= 1:
        return (
            f"The data shows no difference in speed: {name} is {fast.value / slow.value:.3g} times as fast ({spread})."
        )
    return f"{name} is {fast.value / slow.value:.3g} times as fast ({spread}): {numbers}."


def _epoch_row(a: pandas.DataFrame, b: pandas.DataFrame) -> Row:
    name, column = "time of an epoch, without validation", "epoch/time_s"
    times = [each[column].dropna().to_numpy(dtype=float) if column in each else np.empty(0) for each in (a, b)]
    if min(map(len, times)) < MIN_EPOCHS:
        return Row(name, "s", *(float(np.mean(each)) if len(each) else None for each in times))
    randoms = np.random.default_rng(1).spawn(2)
    resampled = [
        ResampledFigure(float(np.mean(each)), random.choice(each, (RESAMPLES, len(each))).mean(axis=1))
        for each, random in zip(times, randoms, strict=True)
    ]
    return _row(name, "s", *resampled)


def _best_row(a: pandas.DataFrame, b: pandas.DataFrame) -> Row:
    metric = epoch_metric({*a, *b})
    bests = [best_epoch(each) for each in (a, b)]
    of_a, of_b = (best.value if best and best.metric is metric else None for best in bests)
    return _metric_row(f"best validation {metric.title} of an epoch", metric, of_a, of_b)


def _note(noun: str) -> str:
    return (
        f"Each interval of a time or a speed contains {INTERVAL_PERCENT}% of {RESAMPLES:,} resamples: of blocks of "
        f"neighboring steps, and of epochs (if there are at least {MIN_EPOCHS}). The intervals of the models' figures "
        f"say how much these would differ with other {noun}s. All describe only these two runs: on another day, the "
        "same settings can give other values."
    )


def _noun(*runs: RecordedRun) -> str:
    """Return what the examples of the evaluations are."""
    return "row" if any(evaluated_class(run.evaluation).noun == "row" for run in runs) else "image"


def _split(run: RecordedRun) -> str:
    return str(run.evaluation.get("split", "validation"))


def why_unpaired(a: RecordedRun, b: RecordedRun, of_a: Answers | None, of_b: Answers | None) -> str:
    """Say why the two models cannot be compared example by example; return an empty text if they can."""
    noun = _noun(a, b)
    if missing := [name for name, answers in (("A", of_a), ("B", of_b)) if answers is None]:
        return f"The models are not compared {noun} by {noun}: {' and '.join(missing)} saved no predictions.npz."
    versions = [run.files.run.get("dataset_version") for run in (a, b)]
    if versions[0] != versions[1] or not _same_examples(of_a, of_b):
        return (
            f"The models are not compared {noun} by {noun}: they were evaluated on different {noun}s, or in "
            f"another order: A on the {_split(a)} {noun}s of dataset version {versions[0]}, B on the {_split(b)} "
            f"{noun}s of version {versions[1]}."
        )
    return ""


def _same_examples(a: Any, b: Any) -> bool:
    return type(a) is type(b) and np.array_equal(a.label, b.label)


def paired(a: Any, b: Any) -> dict[str, Estimate]:
    """Return the difference of each figure, B minus A, on the same examples, with its interval."""
    blocks = a.blocks(seed=0)
    # A model with more classes than the other may lack a figure.
    both = [metric for metric in a.metrics if None not in (metric.estimator.value(a), metric.estimator.value(b))]
    return {metric.key: metric.rounded(metric.estimator.difference(b, a, blocks)) for metric in both}


def evaluated_rows(a: Mapping[str, Any], b: Mapping[str, Any], differences: Mapping[str, Estimate]) -> list[Row]:
    """Return each figure that both contents of evaluation.json have, the score of the models first."""
    of_b = {figure.metric.key: figure.estimate.value for figure in figures_in(b)}
    score = evaluated_class(a).scored_by
    return [
        _metric_row(metric.title, metric, figure.estimate.value, of_b[metric.key], differences.get(metric.key))
        for figure in sorted(figures_in(a), key=lambda figure: figure.metric is not score)
        if (metric := figure.metric).key in of_b
    ]


def _metric_row(name: str, metric: Metric, a: float | None, b: float | None, difference: Estimate | None = None) -> Row:
    unit, factor = (_POINTS, 100) if metric.scale == "share" else ("", 1)
    is_known = difference is not None and np.isfinite(difference).all()
    ends = (difference.low, difference.high) if difference and is_known else (None, None)
    values = (None if value is None else factor * value for value in (a, b, *ends))
    return Row(name, unit, *values, metric=metric.key)


def model_sentence(row: Row) -> str:
    """Say which model is better, or that no difference can be told."""
    if row.difference is None or row.low is None or row.high is None:
        return ""
    sign = 1 if row.difference >= 0 else -1
    low, high = sorted((sign * row.low, sign * row.high))
    spread = f"{INTERVAL_PERCENT}% interval {low:.2g} to {high:.2g}"
    name, other = ("B", "A") if sign > 0 else ("A", "B")
    amount = f"{sign * row.difference:.2g}" + (" points" if row.unit == _POINTS else "")
    if low <= 0 <= high:
        return f"The data shows no difference in {row.name}: {name} minus {other} is {amount} ({spread})."
    if METRICS[row.metric].lower_is_better:
        return f"{other} is better: its {row.name} is {amount} lower ({spread})."
    return f"{name} is better: its {row.name} is {amount} higher ({spread})."


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs in two contents of run.json: by name, both values, None for a missing one."""
    facts_a, facts_b = (dict(facts(content)) for content in (a, b))
    names = list(dict.fromkeys((*facts_a, *facts_b)))
    pairs = {name: (facts_a.get(name), facts_b.get(name)) for name in names}
    return {name: values for name, values in pairs.items() if values[0] != values[1]}


def cells(row: Row) -> tuple[str, ...]:
    """Return name, A, B, difference and interval as text; "-" for an unknown value."""
    spread = "-" if row.low is None or row.high is None else f"{row.text_of(row.low)} to {row.text_of(row.high)}"
    values = ("-" if value is None else row.text_of(value) for value in (row.a, row.b, row.difference))
    return (row.name, *values, spread)


def format_comparison(result: Mapping[str, Any]) -> str:
    """Return the result of `as_json`, with the places of the runs, as lines for a terminal."""
    rows = [Row(**{name: value for name, value in row.items() if name != "difference"}) for row in result["rows"]]
    table = [("", "A", "B", "B minus A", f"{INTERVAL_PERCENT}% interval of that"), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    differing = [f"{name}: {a} | {b}" for name, (a, b) in result["differing"].items()]
    head = [result["verdict"], "", f"A  {result['a']}", f"B  {result['b']}", ""]
    return "\n".join(
        [*head, *lines, "", *(["what differs, A | B:", *differing, ""] if differing else []), result["comparison"]]
    )
