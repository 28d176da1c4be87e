"""The result of a comparison of inputs: the table, the ratios to the first contender, and what is worth changing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from pipeline.errors import BadInput
from pipeline.evaluation.blocks import geometric_mean
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor import read
from pipeline.monitor.diagnosis import Spread, is_steady, mean_of, percent, spread, three_digits
from pipeline.monitor.gpu_columns import busy_pct, columns_of_gpus
from pipeline.tuning.contenders import ACCELERATORS, CONTENDERS
from pipeline.tuning.measurement import Comparison, Failure, Measurement, load_measurement, turn_folder, turns
from pipeline.tuning.options import ComparisonOptions

MIN_GAIN = 1.05
"""An input is worth a change if the whole interval of its gain is above this."""


@dataclass(frozen=True)
class Row:
    """One contender in the table."""

    name: str
    title: str
    first_epoch_s: float
    """Mean time of the first epoch, which reads from the disk."""
    cached_fraction: float | None
    """Largest share of the files that stayed in the page cache before a first epoch; None if it is not known."""
    epoch_s: Spread
    """Times of the later epochs of all rounds; of the first ones if there are no later ones."""
    step_ms: Spread
    """Times of the steady steps of all rounds."""
    examples_per_s: Estimate
    """In the later epochs."""
    wait_fraction: float
    """Share of the time of the later epochs that the training waited for data."""
    utilization: float
    """Share of the time of the later epochs in which the accelerator, real or simulated, computed."""
    cpu_pct: float | None
    """Use of all cores in the later epochs."""
    gpu_pct: float | None
    """Use of the GPUs in the later epochs."""
    ratio: Estimate | None
    """Rate of this contender over that of the first contender; None for the first one."""
    kept_fraction: float | None
    """Smallest share of the files that was in the page cache after the epochs from memory; None if it is not known."""
    cold_per_s: float
    warm_per_s: float
    accelerators: Mapping[str, float]
    """How many simulated accelerators the input can feed from memory, by name."""
    cold_accelerators: Mapping[str, float]
    """The same from the disk."""
    other_cores: float | None
    """Cores that other programs kept busy, as mean over the measurements."""
    disturbed: int
    """Number of measurements in which other programs kept too many cores busy, also in the last attempt."""
    repeated: int
    """Number of earlier attempts that other programs disturbed, and that were discarded."""


@dataclass(frozen=True)
class Result:
    """The result of a comparison."""

    verdict: str
    rows: Sequence[Row]
    left_out: Sequence[Failure]
    step_alone_ms: float
    """Median time of a step on one batch that is in memory."""
    batch_size: int
    epochs: int
    rounds: int
    notes: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        content = asdict(self)
        for row in content["rows"]:  # JSON has no named tuples.
            row["examples_per_s"] = row["examples_per_s"]._asdict()
            row["ratio"] = row["ratio"] and row["ratio"]._asdict()
        return content


def load_result(folder: Path, comparison: Comparison) -> Result:
    """Return the result of all measurements in `folder`. Raises BadInput if fewer than two contenders were measured."""
    settings, options = comparison.settings, comparison.options
    folders = [turn_folder(folder, turn) for turn in turns(options)]
    found = {each: load_measurement(each) for each in folders}
    failures = {each.contender: each for each in found.values() if isinstance(each, Failure)}
    complete = {at: each for at, each in found.items() if isinstance(each, Measurement)}
    of_names = [{at: each for at, each in complete.items() if each.contender == name} for name in options.names]
    measured = [own for name, own in zip(options.names, of_names, strict=True) if own and name not in failures]
    if len(measured) < 2:
        reasons = "; ".join(f"{CONTENDERS[each.contender].title}: {each.why}" for each in failures.values())
        raise BadInput(f"fewer than two contenders could be measured ({reasons}): set other contenders")
    rows = [_row(own, measured[0]) for own in measured]
    return Result(
        verdict=verdict(rows, bool(settings["simulated_step_ms"])),
        rows=rows,
        left_out=list(failures.values()),
        step_alone_ms=float(np.median([each.step_alone_ms for own in measured for each in own.values()])),
        batch_size=settings["batch_size"],
        epochs=settings["epochs"],
        rounds=options.rounds,
        notes=notes(rows, options, settings),
    )


def steady_ms(batches: pandas.DataFrame) -> NDArray[np.float64]:
    """Return the times of the steady steps of the later epochs, in ms.

    Of the only epoch if there is one; of all its steps if none is steady.
    """
    times, epochs = (batches[name].to_numpy(dtype=float) for name in ("step/time_ms", "epoch"))
    later = epochs > 1 if (epochs > 1).any() else np.ones(len(times), bool)
    steady = is_steady(batches) & later
    return times[steady] if steady.any() else times[later]


def _row(own: Mapping[Path, Measurement], first: Mapping[Path, Measurement]) -> Row:
    """Return the row of a contender, from its measurements by folder, and from those of the first contender."""
    steps, cpu, gpu = [], [], []
    for folder in own:
        batches, samples, epochs = (read(folder / "record", kind) for kind in ("batches", "samples", "epochs"))
        steps.append(steady_ms(batches))
        chosen = np.ones(len(samples), bool) if len(epochs) < 2 else samples["time"].to_numpy() > epochs["time"].iloc[0]
        cpu.append(mean_of(samples, "sys/cpu_pct", chosen))
        has_gpu = bool(columns_of_gpus(samples, "util_pct")) and chosen.any()
        gpu.append(float(np.nanmean(busy_pct(samples)[chosen])) if has_gpu else None)
    one = [*own.values()]
    later = [seconds for measurement in one for seconds in _later(measurement.epoch_s)]
    waits = [seconds for measurement in one for seconds in _later(measurement.epoch_wait_s)]
    wait_fraction = sum(waits) / sum(later)
    cold, warm = (float(np.median([getattr(m, name) for m in one])) for name in ("cold_per_s", "warm_per_s"))
    return Row(
        name=one[0].contender,
        title=CONTENDERS[one[0].contender].title,
        first_epoch_s=float(np.mean([measurement.epoch_s[0] for measurement in one])),
        cached_fraction=_if_all_known(max, [measurement.cached_fraction for measurement in one]),
        epoch_s=_spread(later),
        step_ms=_spread(np.concatenate(steps)),
        examples_per_s=geometric_mean(_rates(one)),
        wait_fraction=wait_fraction,
        utilization=1 - wait_fraction,
        cpu_pct=_mean(cpu),
        gpu_pct=_mean(gpu),
        ratio=None if own is first else geometric_mean(_rates(one) / _rates([*first.values()])),
        kept_fraction=_if_all_known(min, [measurement.kept_fraction for measurement in one]),
        cold_per_s=cold,
        warm_per_s=warm,
        accelerators={name: warm / accelerator.per_s for name, accelerator in ACCELERATORS.items()},
        cold_accelerators={name: cold / accelerator.per_s for name, accelerator in ACCELERATORS.items()},
        other_cores=_mean([measurement.other_cores for measurement in one]),
        disturbed=sum(measurement.disturbed for measurement in one),
        repeated=sum(measurement.repeated for measurement in one),
    )


def _rates(measurements: Sequence[Measurement]) -> NDArray[np.float64]:
    """Return the examples per second of each round, in the later epochs."""
    return np.array([len(_later(each.epoch_s)) * each.examples / sum(_later(each.epoch_s)) for each in measurements])


def verdict(rows: Sequence[Row], is_simulated: bool) -> str:
    """Say which input is worth a change on this host, that none is, or that the rounds cannot decide."""
    first = rows[0]
    open_rows = [row for row in rows[1:] if row.ratio and row.ratio.value > MIN_GAIN]
    gains = [row for row in rows[1:] if row.ratio and row.ratio.low > MIN_GAIN]
    step = "simulated steps" if is_simulated else "steps of this model"
    if not gains and open_rows:
        likely = max(open_rows, key=lambda row: row.examples_per_s.value)
        return (
            f"Not decided: with the {step}, {likely.title} may be faster than {first.title}, with a ratio of "
            f"{estimate_text(likely.ratio)} in images per second, but the interval is too wide to be sure. Set more "
            "rounds, and stop other programs on the machine."
        )
    if not gains:
        return (
            f"Nothing is worth changing: with the {step}, no input was faster than {first.title} by more than "
            f"{percent(MIN_GAIN - 1)}. The accelerator waits for data {percent(first.wait_fraction)} of "
            "the time."
        )
    best = max(gains, key=lambda row: row.examples_per_s.value)
    # A cheaper input that is as fast, as far as the intervals tell, is the better choice. They come first in the table.
    choice = next(row for row in gains if row.ratio and best.ratio and row.ratio.high >= best.ratio.value)
    assert choice.ratio is not None
    setting = f" ({CONTENDERS[choice.name].choice})" if CONTENDERS[choice.name].choice else ""
    return (
        f"Use {choice.title}{setting}: with the {step}, it trains {choice.ratio.value:.3g} times as many images per "
        f"second as {first.title} (95% interval {choice.ratio.low:.3g} to {choice.ratio.high:.3g}). The accelerator "
        f"then waits {percent(choice.wait_fraction)} of the time, instead of {percent(first.wait_fraction)}."
    )


def notes(rows: Sequence[Row], options: ComparisonOptions, settings: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know to trust the table."""
    sentences = [
        "Contenders took turns in alternating order (a b c, then c b a), so that a slow minute of the machine meets "
        f"all of them. All intervals are 95% intervals over {options.rounds} rounds.",
        "Raw files are read in a different random order than shards, and TensorFlow chooses their crops. Number of "
        "examples, image size, batch size, kind of crop, flips, model and initial weights are the same for all.",
        "Raw files are decoded whole, then cropped and resized. From shards, only the crop is decoded, at the smallest "
        "scale of libjpeg that the image size allows. Part of the ratio comes from this, and not from how the images "
        "are stored.",
    ]
    if settings["epochs"] == 1:
        sentences.append("There is one epoch, so all rates are those of the first epoch, which reads from the disk.")
    kept = _if_all_known(max, [row.cached_fraction for row in rows])
    if kept is None:
        sentences.append(
            "How much of the files stayed in the page cache before a first epoch could not be checked, because some "
            "files belong to another user. First epochs may not have read everything from the disk."
        )
    elif kept > 0.05:
        sentences.append(
            f"Up to {percent(kept)} of the files stayed in the page cache before a first epoch, so first epochs did "
            "not read everything from the disk."
        )
    if too_large := [row.title for row in rows if row.kept_fraction is not None and row.kept_fraction < 0.9]:
        sentences.append(
            f"The files of these inputs do not fit in memory: {', '.join(too_large)}. Their rates from memory include "
            "reads from the disk."
        )
    if repeated := sum(row.repeated for row in rows):
        sentences.append(f"Attempts that were discarded because other programs disturbed them: {repeated}.")
    if disturbed := sum(row.disturbed for row in rows):
        sentences.append(
            f"Measurements that were still disturbed in the last attempt: {disturbed}. Their times are in the table, "
            "and may be too long."
        )
    simulated = ACCELERATORS.get(options.accelerator)
    shown = simulated or ACCELERATORS["h100"]
    fed = ", ".join(f"{row.warm_per_s / shown.per_s:.2g} from {row.title}" for row in rows)
    sentences.append(
        f"Number of {shown.title}s with {shown.model} ({shown.per_s:,.0f} images per second, as {shown.source}) that "
        f"this host feeds, if the files are in memory: {fed}."
    )
    if settings["simulated_step_ms"]:
        passed = [row.title for row in rows if row.utilization >= shown.min_utilization]
        of_mlperf = ", as MLPerf Storage requires" if "MLPerf" in shown.source else ""
        sentences.append(
            f"Inputs with which the accelerator computes at least {percent(shown.min_utilization)} of the "
            f"time{of_mlperf}: {', '.join(passed) or 'none'}."
        )
    return sentences


def estimate_text(estimate: Estimate | None) -> str:
    """Return an estimate with its interval, or 1 for the ratio of the first contender, which has none."""
    if estimate is None:
        return "1"
    value, low, high = map(three_digits, estimate)
    return f"{value} ({low} to {high})"


def _later(values: Sequence[float]) -> Sequence[float]:
    """Return the values of the epochs after the first one; of the first one if it is the only one."""
    return values[1:] or values


def _spread(values: Any) -> Spread:
    found = spread(np.asarray(values, dtype=float))
    assert found is not None
    return found


def _if_all_known(function: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    """Return a function of the values; None if one is not known."""
    known = [value for value in values if value is not None]
    return function(known) if len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
