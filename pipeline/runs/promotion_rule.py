"""The rule of promotion: how the answers of two models to the same examples become a decision. No TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any

from pipeline.evaluation.answers import Answers, Metric
from pipeline.evaluation.estimates import Estimate
from pipeline.runs.decision import Decision
from pipeline.system.wording import type_words

EQUAL = 1e-6
"""Scores whose difference is a smaller share are equal: a model that runs again gives slightly other probabilities."""


@dataclass(frozen=True)
class Rules:
    """When a model is promoted: the settings of the same names."""

    promote: str
    max_worse: float
    seed: int

    @property
    def needs_proof(self) -> bool:
        """Whether a model is refused only if it is surely worse than the champion."""
        return self.promote == "unless_surely_worse"


def compare(ours: Answers, theirs: Answers, other: str, rules: Rules, split: str = "validation") -> Decision:
    """Return the decision between a model and a champion, which a sentence calls `other`, on the same examples.

    `split` is that of the examples. If a score is no number, a person must decide.
    """
    if undefined := _undefined(ours, "this model", split) or _undefined(theirs, other, split):
        return Decision("asked", undefined)
    estimate, metric = ours.difference(theirs, rules.seed), ours.scored_by
    comparison = _comparison(ours, theirs, other, split, estimate)
    gain = _gain(metric, estimate)
    # An error can be of any size, so the limit is a share of it.
    limit = rules.max_worse * (theirs.score if metric.lower_is_better else 1)
    is_worse = gain.value < 0 and not isclose(ours.score, theirs.score, rel_tol=EQUAL)
    chance = ", but this may be chance" if gain.high >= 0 else ""
    if is_worse and (gain.high if rules.needs_proof else gain.value) < -limit:
        interval = " over the whole interval" if rules.needs_proof else ""
        allowed = f", by more than max_worse={rules.max_worse:g} allows" if rules.max_worse else ""
        return Decision("kept", f"{comparison}. The model is worse{interval}{allowed}{chance}")
    worse = ". It is worse" + (chance or f", by no more than max_worse={rules.max_worse:g}") if is_worse else ""
    return Decision("promoted", comparison + worse)


def judge_first(ours: Answers, what: str, rules: Rules, split: str = "validation") -> Decision:
    """Return the decision on a model without a champion. It is promoted if it surely beats the baseline.

    The baseline gives the same answer to every example. `what` is how a sentence calls the model, such as "the first
    model of 'flowers'".
    """
    if undefined := _undefined(ours, what, split):
        return Decision("asked", undefined)
    baseline = ours.baseline()
    estimate = ours.difference(baseline, rules.seed)
    comparison = _comparison(ours, baseline, "the baseline", split, estimate)
    if _gain(ours.scored_by, estimate).low > 0:
        return Decision("promoted", f"{what}, {comparison}")
    return Decision("asked", f"{what} does not surely beat the baseline: {comparison}")


def _undefined(answers: Answers, of: str, split: str) -> str:
    """Return that the score of a model is no number; empty if it is one."""
    if isfinite(answers.score):
        return ""
    return f"the {answers.scored_by.title} of {of} on these {split} {answers.noun}s is no number"


def _gain(metric: Metric, difference: Estimate) -> Estimate:
    """Return how much better a model is than another one, with the interval of that gain."""
    negated = Estimate(-difference.value, low=-difference.high, high=-difference.low)
    return negated if metric.lower_is_better else difference


def _comparison(ours: Answers, theirs: Answers, other: str, split: str, estimate: Estimate) -> str:
    metric = ours.scored_by
    return (
        f"{metric.title} {metric.text(ours.score)} against {metric.text(theirs.score)} of {other} on the same "
        f"{len(ours.label):,} {split} {ours.noun}s, a difference of {metric.difference_text(estimate)}"
    )


def why_incomparable(ours: Mapping[str, Any], theirs: Mapping[str, Any], champion: str) -> str:
    """Return why a champion cannot be compared, from about.json of both models; empty if it can be."""
    apart = "so they cannot be compared"
    if bool(ours["labels"]) != bool(theirs["labels"]):
        learned = "class" if theirs["labels"] else "number"
        return f"the champion {champion} predicts a {learned}, and this model does not, {apart}"
    # Label maps only grow, so the shorter list must be the beginning of the longer one.
    if any(label != other for label, other in zip(ours["labels"], theirs["labels"], strict=False)):
        return (
            f"some ids have other labels than in the champion {champion}, which can break programs that use the "
            "champion"
        )
    if ("columns" in ours) != ("columns" in theirs):
        takes = ["images", "the rows of a table"]
        one, other = takes if "columns" in ours else reversed(takes)
        return f"the champion {champion} takes {one}, and this model takes {other}, {apart}"
    # A model takes all features of its table, so these are the columns of the rows of the comparison.
    known = {column["name"]: column for column in ours.get("columns", ())}
    for column in theirs.get("columns", ()):
        name, here = column["name"], known.get(column["name"])
        if here is None:
            is_other = "which is no input of this model"
        elif not _takes(column, here):
            is_other = f"which holds {_words_of(here)} values in this model's table"
        else:
            continue
        return f"the champion {champion} takes the {_words_of(column)} column {name!r}, {is_other}, {apart}"
    return ""


def _takes(column: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a column of a model takes the values of one of another model. Lists without a length take all lengths."""
    is_of_type = (other["type"], other["is_list"]) == (column["type"], column["is_list"])
    return is_of_type and column["length"] in (None, other["length"])


def _words_of(column: Mapping[str, Any]) -> str:
    return type_words(column["type"], column["is_list"], column["length"])
