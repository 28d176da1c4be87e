"""What a comparison needs of one run, in a few megabytes, so that twenty long trainings fit into memory together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import pandas
from numpy.typing import NDArray

from pipeline.config.declarations import ChangesStep, Decides
from pipeline.config.settings import declared, settings_with
from pipeline.evaluation.answers import Answers
from pipeline.evaluation.best_epoch import best_epoch
from pipeline.evaluation.estimates import RESAMPLES, Array
from pipeline.evaluation.metrics import PREDICTIONS, figures_in
from pipeline.monitor.diagnosis import Table, is_steady, seconds_by_part
from pipeline.monitor.gpu_columns import busy_pct
from pipeline.monitor.load import during, load_of
from pipeline.monitor.verdict import MIN_STEPS
from pipeline.report.page import load as load_drawn
from pipeline.report.utilization import can_draw
from pipeline.runs.files import RunFiles, facts
from pipeline.runs.recorded_run import RecordedRun, load_answers

MIN_EPOCHS = 5
"""An interval for the time of an epoch needs at least this many epochs."""
MAX_BINS = 150
"""Maximum number of points of a curve over the time of a training."""
MIN_GAP_S = 60.0
"""A curve is broken where nothing was measured for this long, and for ten times as long as usual."""
QUANTILES = 1001
"""Number of quantiles that stand for the distribution of the times of the steps."""


@dataclass(frozen=True)
class Measured:
    """A measured figure, and how sure it is."""

    value: float
    deviation: float
    """The standard deviation of the figure: what it would be with other steps of the same training."""
    freedom: float
    """The degrees of freedom from which the deviation was estimated."""


@dataclass(frozen=True)
class Measure:
    """A figure of the steady steps: the sum of one column, divided by the sum of another one, times a factor."""

    name: str
    unit: str
    over: str
    under: str = ""
    """Empty for the number of steps."""
    factor: float = 1.0


SPEED = Measure("examples a second", "", "input/examples", "step/time_ms", 1000.0)
MEASURES = (
    SPEED,
    Measure("time of a step", "ms", "step/time_ms"),
    Measure("data wait of a step", "ms", "input/wait_ms"),
    Measure("compute of a step", "ms", "step/compute_ms"),
    Measure("share of the step time that is data wait", "%", "input/wait_ms", "step/time_ms", 100.0),
)
EPOCH_TIME = Measure("time of an epoch, without validation", "s", "epoch/time_s")
TIMES = {"step/time_ms": "Time of a step", "input/wait_ms": "Data wait of a step"}
"""The columns of the steps whose distributions are drawn, with their titles."""


@dataclass(frozen=True)
class ComparedRun:
    """A run without its record. A mapping is empty if its file is missing."""

    files: RunFiles
    evaluation: Mapping[str, Any]
    """The content of `evaluation.json`."""
    answers: Answers | None
    """The answers of the model to the examples that judge it; None if they were not stored."""
    epochs: pandas.DataFrame
    steady_steps: int
    measures: Mapping[Measure, Measured]
    """Empty if fewer than MIN_STEPS steps are steady. EPOCH_TIME is left out if there are fewer than MIN_EPOCHS."""
    seconds: Mapping[str, float]
    """The seconds of the training by the parts of its time."""
    quantiles: Mapping[str, Array]
    """QUANTILES quantiles of each column of TIMES over the steady steps; empty if fewer than two are steady."""
    speed: pandas.DataFrame
    """Over the time of the training, in at most MAX_BINS rows: `seconds` since its start, `rate` in examples a second,
    and `wait`, the data wait in percent of the step time."""
    busy: pandas.DataFrame | None
    """Over the same time and likewise: `busy`, the use of the GPUs, or of the processor if there is no GPU, in percent.
    None if there are no samples."""
    cores: float
    """Cores of the machine; 0 if unknown."""
    usable_cores: float
    """Cores that the training could use; 0 if unknown."""
    other_cores: float
    """Number of cores that other programs kept busy during the steady steps."""
    gpus: int
    """Number of GPUs of the server that waits most."""
    no_answers: str = ""
    """Why there are no answers, behind the name of the run; empty if there are."""

    @property
    def answers_bytes(self) -> int:
        """Size of the answers in memory."""
        return sum(column.nbytes for column in self.answers.columns.values()) if self.answers else 0

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return str(self.files.run.get("run_id", ""))

    @property
    def split(self) -> str:
        """The split whose examples judge the model."""
        return str(self.evaluation.get("split", "validation"))

    @property
    def is_simulated(self) -> bool:
        """Whether its steps were simulated, so that its model learned nothing."""
        return self.files.is_simulated

    @property
    def seed(self) -> str:
        """The seed as text."""
        return repr(self.files.settings.get("seed"))

    @property
    def group_key(self) -> tuple[Any, ...]:
        """What runs of a group have in common: the dataset version, and all that decides a training but its seed."""
        deciding = dict.fromkeys((*settings_with(Decides.TRAINING), *declared(ChangesStep)))
        values = [repr(self.files.settings.get(name)) for name in deciding if name != "seed"]
        return (self.files.run.get("dataset_version"), *values)


def load_compared(folder: Path, max_answers_bytes: float = inf) -> ComparedRun:
    """Read what a comparison needs of the run in a folder. Answers that take more than a limit are left out.

    Raises ValueError, TypeError, LookupError or AttributeError if files of the run have values that cannot be compared.
    """
    run = load_drawn(folder)
    if _unpacked_bytes(folder / PREDICTIONS) > max_answers_bytes:
        return replace(compared(run, None), no_answers="has predictions that are too large for a page")
    answers = load_answers(folder)
    if answers is not None and not _is_sound(answers):
        return replace(compared(run, None), no_answers="has a damaged predictions.npz")
    return compared(run, answers)


def _unpacked_bytes(predictions: Path) -> int:
    try:
        with ZipFile(predictions) as packed:
            return sum(each.file_size for each in packed.infolist())
    except (OSError, BadZipFile):
        return 0  # `load_answers` finds none.


def _is_sound(answers: Answers) -> bool:
    """Return whether answers have numbers for each example, so that another model can be compared with them."""
    try:
        lengths = {len(column) for name, column in answers.columns.items() if name != "group" or len(column)}
        are_numbers = all(column.dtype.kind in "biuf" for column in answers.columns.values())
        return are_numbers and len(lengths) == 1 and answers.scored_by.estimator.value(answers) is not None
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return False


def _require_comparable(run: ComparedRun) -> None:
    """Raise an error if a file of the run has values of other types: the page of all runs would fail."""
    for figure in figures_in(run.evaluation):
        np.isfinite(figure.estimate)
    run.epochs.to_numpy(dtype=float)
    best_epoch(run.epochs)
    dict(facts(run.files.run))
    _ = run.group_key, run.files.epochs


def compared(run: RecordedRun, answers: Answers | None) -> ComparedRun:
    """Return what a comparison needs of a run. Raises the errors of `load_compared`."""
    judged, steady = run.judged, is_steady(run.judged)
    samples = run.servers[run.slowest].rows
    load = load_of(samples, during(samples, judged, steady))
    found = ComparedRun(
        files=run.files,
        evaluation=run.evaluation,
        answers=answers,
        epochs=run.epochs,
        steady_steps=int(steady.sum()),
        measures={**_measures_of_steps(judged, steady), **_epoch_time(run.epochs)},
        seconds=seconds_by_part(run.steps[0], run.epochs),
        quantiles=_quantiles(judged, steady),
        speed=_over_time(judged, steady),
        busy=_busy(run.servers[0].rows) if can_draw(run.servers[0]) else None,
        cores=float(run.files.host.get("cores") or 0),
        usable_cores=load.usable_cores or 0.0,
        other_cores=load.other_cores or 0.0,
        gpus=load.gpus,
        no_answers="" if answers else "saved no predictions.npz",
    )
    _require_comparable(found)
    return found


def _measures_of_steps(judged: Table, steady: NDArray[np.bool_]) -> dict[Measure, Measured]:
    if steady.sum() < MIN_STEPS:
        return {}
    random = np.random.default_rng(0)
    return {each: _measured(each, judged, steady, random) for each in MEASURES}


def _measured(measure: Measure, judged: Table, steady: NDArray[np.bool_], random: np.random.Generator) -> Measured:
    over = np.asarray(judged[measure.over], dtype=float)[steady]
    under = np.asarray(judged[measure.under], dtype=float)[steady] if measure.under else np.ones(len(over))
    deviation = float(ratios_of_blocks(over, under, random).std())
    value = measure.factor * float(over.sum() / under.sum())
    # As many blocks do not depend on each other as there are blocks without overlap.
    return Measured(value, measure.factor * deviation, max(1.0, len(over) / block_length(len(over)) - 1))


def block_length(rows: int) -> int:
    """Return the length of the blocks of neighboring rows that are resampled.

    It is longer than the best for a mean, which is the careful choice, because how far neighbors depend on each other
    is not known.
    """
    return max(1, round(sqrt(rows)))


def ratios_of_blocks(over: Array, under: Array, random: np.random.Generator) -> Array:
    """Return the ratio of the sums of two columns in each resample of blocks of neighboring rows, (RESAMPLES,).

    Neighboring steps take similar times, because a queue that ran empty stays empty for some steps. Resampled one by
    one, they would seem to be far more sure than they are. Blocks wrap around the end, so that all rows are drawn
    equally often.
    """
    length = block_length(len(over))
    starts = random.integers(len(over), size=(RESAMPLES, -(-len(over) // length)))
    ratios: Array = _block_sums(over, length)[starts].sum(axis=1) / _block_sums(under, length)[starts].sum(axis=1)
    return ratios


def _block_sums(values: Array, length: int) -> Array:
    """Return the sum of the block that begins at each row."""
    sums = np.cumsum(np.concatenate([[0.0], values, values[: length - 1]]))
    of_blocks: Array = sums[length:] - sums[:-length]
    return of_blocks


def _epoch_time(epochs: pandas.DataFrame) -> dict[Measure, Measured]:
    times = epochs[EPOCH_TIME.over].dropna().to_numpy(dtype=float) if EPOCH_TIME.over in epochs else np.empty(0)
    if len(times) < MIN_EPOCHS:
        return {}
    deviation = float(times.std(ddof=1)) / sqrt(len(times))
    return {EPOCH_TIME: Measured(float(times.mean()), deviation, len(times) - 1)}


def _quantiles(judged: Table, steady: NDArray[np.bool_]) -> dict[str, Array]:
    if steady.sum() < 2:
        return {}
    shares = np.linspace(0, 1, QUANTILES)
    return {column: np.quantile(np.asarray(judged[column], dtype=float)[steady], shares) for column in TIMES}


def _over_time(judged: Table, steady: NDArray[np.bool_]) -> pandas.DataFrame:
    """Return speed and data wait of the steady steps over the time since the first step."""
    if not steady.any():
        return pandas.DataFrame({name: [] for name in ("seconds", "rate", "wait")})
    times = np.asarray(judged["time"], dtype=float)
    time_ms, wait_ms, examples = (
        np.asarray(judged[name], dtype=float)[steady] for name in ("step/time_ms", "input/wait_ms", "input/examples")
    )
    means = _means(times[steady] - times[0], {"time": time_ms, "wait": wait_ms, "examples": examples})
    with np.errstate(divide="ignore", invalid="ignore"):
        rate, wait = 1000 * means["examples"] / means["time"], 100 * means["wait"] / means["time"]
    return means[["seconds"]].assign(rate=rate, wait=wait)


def _busy(samples: pandas.DataFrame) -> pandas.DataFrame:
    times = samples["time"].to_numpy(dtype=float)
    return _means(times - times[0], {"busy": busy_pct(samples)})


def _means(seconds: Array, columns: Mapping[str, Array]) -> pandas.DataFrame:
    """Return the means of up to MAX_BINS equal parts of some rows. A row without values marks a gap in time."""
    starts = np.unique(np.linspace(0, len(seconds), MAX_BINS + 1).astype(int))[:-1]

    def mean(values: Array) -> Array:
        known = np.isfinite(values)
        sums, counts = (np.add.reduceat(each, starts) for each in (np.where(known, values, 0.0), known.astype(float)))
        means: Array = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
        return means

    means = {name: mean(values) for name, values in {"seconds": seconds, **columns}.items()}
    steps = np.diff(means["seconds"])
    usual = float(np.median(steps)) if len(steps) else 0.0
    gaps = np.flatnonzero(steps > max(MIN_GAP_S, 10 * usual)) + 1
    return pandas.DataFrame({name: np.insert(values, gaps, np.nan) for name, values in means.items()})
