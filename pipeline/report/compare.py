"""The comparison of 2 to 20 runs as plain values: their figures, which run is the best, and what differs.

The models are compared example by example if they were evaluated on the same examples, as before a promotion.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from pipeline.config.declarations import ChangesStep
from pipeline.config.settings import declared
from pipeline.errors import SettingsError
from pipeline.evaluation.answers import Metric
from pipeline.evaluation.best_epoch import best_epoch, epoch_metric
from pipeline.evaluation.estimates import Estimate
from pipeline.evaluation.metrics import METRICS, evaluated_class, figures_in
from pipeline.evaluation.scales import four_digits
from pipeline.monitor.diagnosis import three_digits
from pipeline.report.compared_run import EPOCH_TIME, MEASURES, SPEED, ComparedRun, Measure
from pipeline.report.ranking import (
    Ranking,
    corrected_percent,
    difference,
    rank_groups,
    ranking_of,
    ratio,
    widened,
)
from pipeline.runs.files import facts

MAX_RUNS = 20
"""Maximum number of runs of a comparison."""
LETTERS = "ABCDEFGHIJKLMNOPQRST"
"""The names of the runs, in the order in which they were given."""


def require_count(count: int) -> None:
    """Raise SettingsError unless a comparison can have this number of runs."""
    if not 2 <= count <= MAX_RUNS:
        change = "more" if count < 2 else "fewer"
        raise SettingsError(f"a comparison has 2 to {MAX_RUNS} runs, got {count}: name {change} runs")


@dataclass(frozen=True)
class Row:
    """A figure of all runs."""

    name: str
    unit: str
    values: tuple[float | None, ...]
    """The figure of each run; None if it is unknown."""
    reference: int = 0
    """The number of the run from which the others differ."""
    intervals: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """The interval of the difference from the reference, by the number of the other run, if it is known."""
    metric: str = field(default="", kw_only=True)
    """The key of the metric; empty for a time or a speed."""

    def difference(self, number: int) -> float | None:
        """Return the value of a run less that of the reference; None if one of them is unknown."""
        value, base = self.values[number], self.values[self.reference]
        return None if value is None or base is None else value - base

    def text_of(self, value: float) -> str:
        """Write a value of the row."""
        if self.unit == "%":
            return f"{value:.2f}%"
        if self.metric and METRICS[self.metric].scale == "amount":
            return four_digits(value)
        return f"{three_digits(value)} {self.unit}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """Return the row for JSON. The values are named a, b, c and so on."""
        named = {LETTERS[number].lower(): value for number, value in enumerate(self.values)}
        differences = {
            name: dict(zip(("difference", "low", "high"), (self.difference(number), *self._ends(number)), strict=True))
            for number, name in enumerate(named)
            if number != self.reference
        }
        content = {"name": self.name, "unit": self.unit, **named, "metric": self.metric}
        if len(self.values) == 2:
            return content | differences["b"]
        return content | {"reference": LETTERS[self.reference].lower(), "differences": differences}

    def _ends(self, number: int) -> tuple[float | None, float | None]:
        return self.intervals.get(number, (None, None))


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed, with at least two seeds."""

    members: tuple[int, ...]
    """The numbers of the runs."""
    scores: tuple[float, ...]
    """The score of each seed whose models are compared: the mean of the runs with this seed."""

    @property
    def letters(self) -> str:
        """The names of the runs."""
        return names_of(self.members)


@dataclass(frozen=True)
class Comparison:
    """The comparison of some runs. Runs are named by their numbers, from 0."""

    runs: Sequence[ComparedRun]

    @cached_property
    def metric(self) -> Metric | None:
        """The figure by which the models are compared: that of the most models. None if no model was evaluated."""
        scored_by = Counter(evaluated_class(_judged(run)).scored_by for run in self.runs if _judged(run))
        return next((metric for metric, _ in scored_by.most_common(1)), None)

    @cached_property
    def scores(self) -> dict[int, float]:
        """The figure of each model that has one, by the number of its run."""
        return {
            number: value
            for number, run in enumerate(self.runs)
            if self.metric and (value := _value_of(run, self.metric)) is not None
        }

    @cached_property
    def of_other_tasks(self) -> list[int]:
        """The runs whose models have another task than those with scores, so that no figure compares them."""
        return [
            number
            for number, run in enumerate(self.runs)
            if _judged(run) and evaluated_class(_judged(run)).scored_by is not self.metric
        ]

    @cached_property
    def quality(self) -> Ranking | None:
        """The models that can be compared example by example, the best first; None if fewer than two were evaluated.

        Of several sets of such models, it is the largest one. If no two models can be compared, all are ranked, and
        nothing is sure.
        """
        if self.metric is None:
            return None
        largest = max(self._comparable_models(), key=len, default=[])
        ranked = {number: self.scores[number] for number in (largest if len(largest) > 1 else self.scores)}
        return ranking_of(ranked, self.metric.lower_is_better, self._lead_of_model)

    def _comparable_models(self) -> list[list[int]]:
        sets: list[list[int]] = []
        for number in self.scores:
            run = self.runs[number]
            fitting = (each for each in sets if not why_unpaired(run, self.runs[each[0]]))
            if (found := next(fitting, None)) is not None:
                found.append(number)
            else:
                sets.append([number])
        return sets

    @cached_property
    def unranked(self) -> list[int]:
        """The runs with a score whose models are not ranked, because they answered other examples."""
        return [number for number in self.scores if self.quality and number not in self.quality.order]

    def _lead_of_model(self, best: int, other: int, percent: float) -> Estimate | None:
        assert self.metric is not None
        return difference_of_models(self.metric, self.runs[best], self.runs[other], percent)

    @cached_property
    def speed(self) -> Ranking | None:
        """The runs, the fastest first, with the ratios of their speeds; None if fewer than two have enough steps.

        The ratios are those to the fastest run, less 1.
        """
        speeds = {number: run.measures[SPEED] for number, run in enumerate(self.runs) if SPEED in run.measures}

        def lead_of(best: int, other: int, percent: float) -> Estimate | None:
            if not speeds[best].value or not speeds[other].value:
                return None
            return Estimate(*(each - 1 for each in ratio(speeds[best], speeds[other], percent)))

        return ranking_of({number: each.value for number, each in speeds.items()}, False, lead_of)

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of runs with at least two different seeds, in the order of their first run."""
        by_key: dict[Any, dict[str, list[int]]] = {}
        for number, run in enumerate(self.runs):
            by_key.setdefault(run.group_key, {}).setdefault(run.seed, []).append(number)
        return [
            Group(tuple(sorted(chain(*by_seed.values()))), tuple(self._scores_of_seeds(by_seed.values())))
            for by_seed in by_key.values()
            if len(by_seed) > 1
        ]

    def _scores_of_seeds(self, seeds: Iterable[Sequence[int]]) -> Iterator[float]:
        """Yield the mean score of the runs of each seed: a run that is repeated says nothing about other seeds."""
        for members in seeds:
            if scores := [self.scores[each] for each in members if each in self.scores]:
                yield sum(scores) / len(scores)

    @cached_property
    def quality_of_groups(self) -> Ranking | None:
        """The groups by the means of their scores; None if fewer than two of one dataset version have two scores."""
        versions = {self.runs[group.members[0]].files.run.get("dataset_version") for group in self.groups}
        if self.metric is None or len(versions) != 1:
            return None
        return rank_groups([group.scores for group in self.groups], self.metric.lower_is_better)

    @cached_property
    def rows(self) -> list[Row]:
        """All figures of the runs: those of the steps, of the epochs, and of the models."""
        return [*self._measured_rows(), self._best_epoch_row(), *self._model_rows()]

    def _measured_rows(self) -> Iterator[Row]:
        if any(SPEED in run.measures for run in self.runs):
            yield from (self._measured_row(each) for each in MEASURES)
        means = tuple(_mean_epoch_s(run) for run in self.runs)
        row = self._measured_row(EPOCH_TIME)
        yield Row(row.name, row.unit, means, row.reference, row.intervals)

    def _measured_row(self, measure: Measure) -> Row:
        figures = [run.measures.get(measure) for run in self.runs]
        reference = self._reference(self.speed)
        base, percent = figures[reference], corrected_percent(sum(figure is not None for figure in figures))
        intervals = {
            number: _ends(difference(figure, base, percent))
            for number, figure in enumerate(figures)
            if number != reference and figure and base
        }
        values = tuple(figure.value if figure else None for figure in figures)
        return Row(measure.name, measure.unit, values, reference, intervals)

    def _reference(self, ranking: Ranking | None) -> int:
        """Return the run from which the others differ: of two runs the first one, else the best one."""
        return ranking.best if ranking and len(self.runs) > 2 else 0

    def _best_epoch_row(self) -> Row:
        metric = epoch_metric({str(column) for run in self.runs for column in run.epochs})
        bests = [None if run.is_simulated else best_epoch(run.epochs) for run in self.runs]
        values = [best.value if best and best.metric is metric else None for best in bests]
        return _metric_row(f"best validation {metric.title} of an epoch", metric, values)

    def _model_rows(self) -> Iterator[Row]:
        if self.metric is None:
            return
        reference = self._reference(self.quality)
        figures = [{each.metric: each.estimate.value for each in figures_in(_judged(run))} for run in self.runs]
        for metric in sorted(dict.fromkeys(chain(*figures)), key=lambda each: each is not self.metric):
            values = [each.get(metric) for each in figures]
            if sum(value is not None for value in values) > 1:
                yield _metric_row(self._title(metric), metric, values, reference, self._differences(metric))

    def _differences(self, metric: Metric) -> dict[int, Estimate]:
        """Return the differences of a metric from that of the reference, by the number of the other run."""
        if len(self.runs) == 2:
            found = difference_of_models(metric, self.runs[1], self.runs[0], corrected_percent(2))
            return {1: found} if found else {}
        # The other metrics of many models would take minutes.
        leads = self.quality.leads if self.quality and metric is self.metric else {}
        return {number: Estimate(-lead.value, -lead.high, -lead.low) for number, lead in leads.items()}

    def _title(self, metric: Metric) -> str:
        """Return the title of a metric, with the split if it is not the validation."""
        splits = {run.split for run in self.runs if run.evaluation}
        if len(splits) > 1:
            named = ", ".join(f"{LETTERS[number]}: {run.split}" for number, run in enumerate(self.runs))
            return f"{metric.title} ({named})"
        # Figures of the test split stand below the best validation of an epoch.
        return f"test {metric.title}" if splits == {"test"} else metric.title

    @cached_property
    def differing(self) -> dict[str, tuple[Any, ...]]:
        """What differs: by name, the value of each run, None for a missing one.

        Settings that change the work of a step come first.
        """
        of_runs = [dict(facts(run.files.run)) for run in self.runs]
        names = dict.fromkeys(name for each in of_runs for name in each)
        values = {name: tuple(each.get(name) for each in of_runs) for name in names}
        found = [name for name in names if any(value != values[name][0] for value in values[name])]
        return {name: values[name] for name in sorted(found, key=lambda name: name not in declared(ChangesStep))}

    @cached_property
    def differing_work(self) -> dict[str, tuple[Any, ...]]:
        """The settings that differ and change the work of a step."""
        return {name: values for name, values in self.differing.items() if name in declared(ChangesStep)}


def _judged(run: ComparedRun) -> Mapping[str, Any]:
    """Return the evaluation of a model; empty if its steps were simulated, so that it says nothing."""
    return {} if run.is_simulated else run.evaluation


def _value_of(run: ComparedRun, metric: Metric) -> float | None:
    values = [each.estimate.value for each in figures_in(_judged(run)) if each.metric is metric]
    return next((value for value in values if np.isfinite(value)), None)


def _mean_epoch_s(run: ComparedRun) -> float | None:
    if EPOCH_TIME.over not in run.epochs:
        return None
    known = run.epochs[EPOCH_TIME.over].dropna()
    return float(known.mean()) if len(known) else None


def _ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def difference_of_models(metric: Metric, one: ComparedRun, other: ComparedRun, percent: float) -> Estimate | None:
    """Return a figure of one model less that of another on the same examples, with its interval.

    None if they were not evaluated on the same examples, or if one of them lacks the figure.
    """
    ours, theirs = one.answers, other.answers
    if ours is None or theirs is None or why_unpaired(one, other):
        return None
    # A model with more classes than the other may lack a figure.
    if metric not in ours.metrics or None in (metric.estimator.value(ours), metric.estimator.value(theirs)):
        return None
    blocks = ours.blocks(seed=0)
    estimate = metric.estimator.difference(ours, theirs, blocks)
    found = metric.rounded(widened(estimate, blocks.count - 1, percent))
    return found if np.isfinite(found).all() else None


def why_unpaired(one: ComparedRun, other: ComparedRun) -> str:
    """Say why two models cannot be compared example by example; return an empty text if they can."""
    ours, theirs = one.answers, other.answers
    if ours is None or theirs is None:
        return one.no_answers or other.no_answers or "saved no predictions.npz"
    versions = [run.files.run.get("dataset_version") for run in (one, other)]
    if versions[0] != versions[1] or type(ours) is not type(theirs) or not np.array_equal(ours.label, theirs.label):
        return "was evaluated on other examples, or in another order"
    return ""


def _metric_row(
    name: str,
    metric: Metric,
    values: Sequence[float | None],
    reference: int = 0,
    differences: Mapping[int, Estimate] | None = None,
) -> Row:
    unit, factor = ("%", 100) if metric.scale == "share" else ("", 1)
    intervals = {number: (factor * found.low, factor * found.high) for number, found in (differences or {}).items()}
    scaled = tuple(None if value is None else factor * value for value in values)
    return Row(name, unit, scaled, reference, intervals, metric=metric.key)


def names_of(numbers: Sequence[int]) -> str:
    """Return the names of runs as a part of a sentence: A; A and B; A, B and C."""
    *first, last = [LETTERS[number] for number in numbers]
    return f"{', '.join(first)} and {last}" if first else last
