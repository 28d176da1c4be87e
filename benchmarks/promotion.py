"""Simulate ten rounds of retraining by both rules of promotion: the accuracy of the champion over the rounds.

    make bench-promotion
    python -m benchmarks.promotion [--simulations 2000] [--examples 200] [--json FILE]

All models are trained in the same way, so they are equally good apart from the chance of a training. The true accuracy
of a model is its mean over all images. Each round trains one model, and the code that decides on real promotions
decides on it. All rounds judge the models on the same images, or each round on new ones.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.machine import machine_line, say
from pipeline.evaluation.estimates import Array
from pipeline.evaluation.one_label import Predictions
from pipeline.runs.champion import PROMOTE, Entry, Pointer
from pipeline.runs.promotion_rule import Rules, compare

RULES = ("unless_surely_worse", "if_not_worse")
ROUNDS = 10
SHOWN = (1, 2, 5, 10)
"""The rounds in the table, from 1. Round 1 trains the first champion."""
MEAN, DEVIATION = 0.60, 0.015
"""Mean and standard deviation of the true accuracy of a model."""
HARDNESS = 1.5
"""Standard deviation of how hard the images are, in logits. Models agree on easy and on hard images."""
FELL = 0.01
"""A champion has fallen if its true accuracy is this much below that of the first one."""


@dataclass(frozen=True)
class Simulated:
    """The champions of all simulations with one rule, in each round."""

    rule: str
    new_examples: bool
    """Whether each round judges on new images."""
    accuracy: list[float]
    """Mean of the true accuracy, by round."""
    low: list[float]
    """5th percentile of the true accuracy, by round."""
    measured: list[float]
    """Mean of the accuracy on the images that judged the promotion, by round."""
    promotions: float
    """Mean number of models that were promoted after the first one."""
    fallen: float
    """Share of the simulations whose last champion has fallen."""


def main() -> None:
    """Simulate, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2000, help="simulations of each rule")
    parser.add_argument("--examples", type=int, default=200, help="images that judge a model")
    parser.add_argument("--json", type=Path, help="also write the figures into a file")
    options = parser.parse_args()
    results = []
    for new_examples in (False, True):
        for rule in RULES:
            say(f"{rule}, {'new' if new_examples else 'the same'} images in each round")
            results.append(simulated(rule, new_examples, options.simulations, options.examples))
    print(machine_line(), "", *table(results), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=1))


def table(results: Sequence[Simulated]) -> list[str]:
    """Return the lines of the table."""
    head = ["images", "rule", *(f"round {shown}" for shown in SHOWN)]
    head += ["5% are below, round 10", "on the images, round 10", "promoted", "fell by a point"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for each in results:
        cells = ["new ones" if each.new_examples else "the same", f"`{each.rule}`"]
        cells += [f"{each.accuracy[shown - 1]:.1%}" for shown in SHOWN]
        cells += [
            f"{each.low[-1]:.1%}",
            f"{each.measured[-1]:.1%}",
            f"{each.promotions:.1f} of 9",
            f"{each.fallen:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def simulated(rule: str, new_examples: bool, simulations: int, examples: int) -> Simulated:
    """Simulate the rounds many times. Simulations of both rules have the same models and images."""
    rules = Rules(rule, max_worse=0.0, seed=0)
    histories = [Rounds(rules, new_examples, examples, seed).run() for seed in range(simulations)]
    accuracy, measured = (np.array(values) for values in zip(*histories, strict=True))
    return Simulated(
        rule=rule,
        new_examples=new_examples,
        accuracy=accuracy.mean(axis=0).tolist(),
        low=np.percentile(accuracy, 5, axis=0).tolist(),
        measured=measured.mean(axis=0).tolist(),
        promotions=float((np.diff(accuracy, axis=1) != 0).sum(axis=1).mean()),
        fallen=float((accuracy[:, -1] < accuracy[:, 0] - FELL).mean()),
    )


class Rounds:
    """One simulation. A model is a number: its true accuracy."""

    def __init__(self, rules: Rules, new_examples: bool, examples: int, seed: int) -> None:
        self._rules, self._new_examples, self._examples = rules, new_examples, examples
        self._models, self._images, self._chance = np.random.default_rng(seed).spawn(3)
        self._ease = self._images.normal(0, HARDNESS, examples)
        self._answers: dict[float, Predictions] = {}

    def run(self) -> tuple[list[float], list[float]]:
        """Return the true accuracy of the champion, and the one on the images that judged the promotion, by round."""
        accuracy: list[float] = []
        measured: list[float] = []
        pointer = Pointer(Path("champion.json"), None, ())
        for model in self._models.normal(MEAN, DEVIATION, ROUNDS).tolist():
            if self._new_examples:
                self._ease, self._answers = self._images.normal(0, HARDNESS, self._examples), {}
            ours = self._answers_of(model)
            if all(
                compare(ours, self._answers_of(other), "", self._rules).is_promoted for other in self._others(pointer)
            ):
                pointer = Pointer(pointer.place, None, (*pointer.history, entry(model, ours.score)))
            champion = _model(pointer.champion)
            accuracy.append(champion)
            measured.append(self._answers_of(champion).score)
        return accuracy, measured

    def _others(self, pointer: Pointer) -> set[float]:
        """Return the models with which a new one is compared, as `pipeline/runs/promotion.py` chooses them."""
        if pointer.champion is None:
            return set()
        best = [] if self._rules.needs_proof else pointer.best_first(lower_is_better=False)[:1]
        return {_model(each) for each in (pointer.champion, *best)}

    def _answers_of(self, model: float) -> Predictions:
        """Return the answers of a model to the images of this round, always the same."""
        if model not in self._answers:
            # A normal distribution of logits, shifted and then wrapped into a probability, has about this mean.
            logits = self._ease + shift_of(model)
            self._answers[model] = answers(self._chance.random(self._examples) < 1 / (1 + np.exp(-logits)))
        return self._answers[model]


def shift_of(accuracy: float) -> float:
    """Return the shift of the logits of all images with which a model has this true accuracy."""
    return float(np.interp(accuracy, _ACCURACIES, _SHIFTS))


def _accuracy_of(shift: float) -> float:
    # The mean over many images: the nodes and weights of a Gauss-Hermite quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    return float((weights / (1 + np.exp(-(HARDNESS * nodes + shift)))).sum() / weights.sum())


_SHIFTS = np.linspace(-4, 4, 801)
_ACCURACIES = np.array([_accuracy_of(shift) for shift in _SHIFTS])


def answers(is_right: Array) -> Predictions:
    """Return the answers of a model that is right for these images."""
    label, sure = np.zeros(len(is_right), np.int32), np.ones(len(is_right), np.float32)
    return Predictions(label, (~is_right).astype(np.int32), sure, sure, is_right)


def entry(model: float, score: float) -> Entry:
    """Return the promotion of a model."""
    return Entry(PROMOTE, repr(model), "", "", {}, score, "", "", "")


def _model(promotion: Entry | None) -> float:
    assert promotion is not None
    return float(promotion.run)


if __name__ == "__main__":
    main()
