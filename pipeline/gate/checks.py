"""The checks of the data gate: each is a sentence about the examples that exceed a threshold.

To add a check, declare its two settings in `pipeline/config/settings.py`, and add its sentence and its row of
`CHECKS` to this file. The findings, the questions to a person, the form and the documentation follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.settings import Action, Settings
from pipeline.gate.wording import MAX_EXAMPLES, counted, share, such_as

MAX_SHOWN = 10
"""A sentence names at most this many columns."""


@dataclass(frozen=True)
class Check:
    """A check of all examples.

    Attributes:
        action_setting: Name of the setting that decides what happens above the threshold.
        threshold_setting: Name of the setting that holds the threshold.
        sentence: Takes `quality` of `dataset.json` and the threshold, and says what exceeds the threshold. The text is
            empty if nothing does, or if the facts are not known yet.
    """

    action_setting: str
    threshold_setting: str
    # An approval stores the whole sentence. If the wording changes, the same finding becomes a new question.
    sentence: Callable[[Mapping[str, Any], float], str]


@dataclass(frozen=True)
class Finding:
    """Facts that exceed a threshold, as a sentence, and the action that `setting` chooses."""

    setting: str
    sentence: str
    action: Action


@dataclass(frozen=True)
class GateOptions:
    """The action and the threshold of each check, by the name of its setting."""

    actions: Mapping[str, Action]
    thresholds: Mapping[str, float]


def gate_options(settings: Settings) -> GateOptions:
    """Return the options of the gate that the settings ask for. A stage makes them once, when it begins."""
    return GateOptions(
        actions={check.action_setting: getattr(settings, check.action_setting) for check in CHECKS},
        thresholds={check.threshold_setting: getattr(settings, check.threshold_setting) for check in CHECKS},
    )


def findings(quality: Mapping[str, Any], options: GateOptions) -> list[Finding]:
    """Return all known facts that exceed their threshold."""
    return [
        Finding(check.action_setting, sentence, options.actions[check.action_setting])
        for check in CHECKS
        if (sentence := check.sentence(quality, options.thresholds[check.threshold_setting]))
    ]


def _rejected(quality: Mapping[str, Any], threshold: float) -> str:
    rejected, listed = quality.get("rejected", 0), quality.get("listed", 0)
    if not listed or rejected <= threshold * listed:
        return ""
    return (
        f"{share(rejected, listed)} {quality['unit']}s were rejected, more than max_rejected_fraction={threshold:g}: "
        "rejected.jsonl says why and what could be done with each"
    )


def _leaked(quality: Mapping[str, Any], threshold: float) -> str:
    leaks = quality.get("leaks") or {}
    leaked, of = leaks.get("images", 0), leaks.get("of", 0)
    if leaked <= threshold * of:
        return ""
    return (
        f"{share(leaked, of)} validation and test {quality['unit']}s are in training too, more than "
        f"max_leaked_fraction={threshold:g}{such_as(leaks.get('names', []))}: remove them from one side, or the score "
        "flatters the model"
    )


def _contradictions(quality: Mapping[str, Any], threshold: float) -> str:
    contradictions = quality.get("contradictions") or {}
    contradictory, of = contradictions.get("images", 0), contradictions.get("of", 0)
    if contradictory <= threshold * of:
        return ""
    pairs = [
        " and ".join(
            f"{path!r} ({'|'.join(map(repr, labels))})"
            for path, labels in zip(pair["paths"], pair["labels"], strict=True)
        )
        for pair in contradictions["pairs"][:MAX_EXAMPLES]
    ]
    return (
        f"{share(contradictory, of)} {quality['unit']}s are equal to one with different labels, more than "
        f"max_contradictory_fraction={threshold:g}, such as {', '.join(pairs)}: keep one label, or remove the "
        f"{quality['unit']}s"
    )


def _imbalance(quality: Mapping[str, Any], threshold: float) -> str:
    # A class without images is reported separately. As the smallest class, it would always be too small.
    gone = set(quality.get("classes_gone") or ())
    counts = {label: count for label, count in (quality.get("classes") or {}).items() if label not in gone}
    if not counts:
        return ""
    smallest, largest = min(counts, key=lambda label: counts[label]), max(counts, key=lambda label: counts[label])
    if counts[largest] <= threshold * counts[smallest]:
        return ""
    times = f"{counts[largest] / counts[smallest]:.3g} times" if counts[smallest] else "against"
    return (
        f"class {largest!r} has {counts[largest]} training {quality['unit']}s, {times} the {counts[smallest]} of "
        f"{smallest!r}, more than max_imbalance={threshold:g}: add {quality['unit']}s to the small classes, or leave "
        "them out"
    )


def _drift(quality: Mapping[str, Any], threshold: float) -> str:
    drift = dict(quality.get("drift") or {})
    against = drift.pop("against", None)
    over = sorted((name for name, index in drift.items() if index > threshold), key=lambda name: -drift[name])
    if not over:
        return ""
    numbers = ", ".join(f"{name} by {drift[name]:.2f}" for name in over)
    return (
        f"the {quality['unit']}s differ from those of version {against} in {numbers}, more than "
        f"max_drift={threshold:g}: look at the dataset cards of both, and go on if the change is meant"
    )


def _columns(quality: Mapping[str, Any], threshold: float) -> str:
    changes = quality.get("table_changes") or {}
    columns = changes.get("columns") or {}
    if len(columns) <= threshold:
        return ""
    shown = ", ".join(f"{name!r} {what}" for name, what in list(columns.items())[:MAX_SHOWN])
    more = f" and {len(columns) - MAX_SHOWN} more" if len(columns) > MAX_SHOWN else ""
    return (
        f"{counted(len(columns), 'column')} of version {changes['against']} changed, more than "
        f"max_changed_columns={threshold}: {shown}{more}. Repair the table, or go on if the change is meant"
    )


def _new_values(quality: Mapping[str, Any], threshold: float) -> str:
    changes = quality.get("table_changes") or {}
    over = {name: new for name, new in (changes.get("new_values") or {}).items() if new["fraction"] > threshold}
    if not over:
        return ""
    shown = ", ".join(
        f"{name!r} in {new['fraction']:.3g} of the training rows (such as {new['values'][0]!r})"
        for name, new in list(over.items())[:MAX_SHOWN]
    )
    return (
        f"{counted(len(over), 'column')} have texts that version {changes['against']} did not have, more than "
        f"max_new_values_fraction={threshold:g}: {shown}. A model of that version knows none of them"
    )


def _means(quality: Mapping[str, Any], threshold: float) -> str:
    changes = quality.get("table_changes") or {}
    means = changes.get("means") or {}
    over = sorted((name for name, shift in means.items() if shift > threshold), key=lambda name: -means[name])
    if not over:
        return ""
    shown = ", ".join(f"{name!r} by {means[name]:.2f}" for name in over[:MAX_SHOWN])
    return (
        f"the means of {counted(len(over), 'column')} moved since version {changes['against']} by more than "
        f"max_mean_drift={threshold:g} standard deviations: {shown}. Look at the dataset cards of both, and go on if "
        "the change is meant"
    )


CHECKS = (
    Check("on_rejected", "max_rejected_fraction", _rejected),
    Check("on_leak", "max_leaked_fraction", _leaked),
    Check("on_contradiction", "max_contradictory_fraction", _contradictions),
    Check("on_imbalance", "max_imbalance", _imbalance),
    Check("on_drift", "max_drift", _drift),
    Check("on_columns", "max_changed_columns", _columns),
    Check("on_new_values", "max_new_values_fraction", _new_values),
    Check("on_mean", "max_mean_drift", _means),
)
"""All checks, in the order in which the gate reports what they find."""
