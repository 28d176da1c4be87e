"""The data gate: each check limits one fact about the examples, by two settings and a sentence.

To add a check, add its function and its row of `CHECKS` to this file. The settings, the findings, the questions to a
person, the form and the documentation follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from pipeline.config.declarations import GATE, Decides, Fraction, OnlyFor, UsedBy
from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.system.wording import MAX_EXAMPLES, counted, first_of, share, such_as

Action = Literal["continue", "ask", "fail"]
"""The data gate does this if the examples exceed a threshold."""

_ACTIONS = "What happens above the {}: continue logs a warning, ask asks a person, and fail stops the run."

_COMPARE = "look at the dataset cards of both, and go on if the change is meant"

MAX_SHOWN = 10
"""A sentence names at most this many columns."""


@dataclass(frozen=True)
class Setting:
    """What one setting of a check declares."""

    name: str
    title: str
    default: Any


@dataclass(frozen=True)
class Check:
    """A check of all examples.

    Attributes:
        action: The setting that decides what happens above the threshold.
        threshold: The setting that holds the threshold.
        unit: Type and range of the threshold.
        measure: Describes the threshold: what is measured.
        sentence: Takes `quality` of `dataset.json` and the threshold, and says what exceeds the threshold. The text is
            empty if nothing does, or if the facts are not known yet.
        declares: What both settings declare, beside those of all checks.
        thresholds: The threshold for each kind of examples, if that of the setting is empty. Other kinds have that of
            images.
    """

    action: Setting
    threshold: Setting
    unit: Any
    measure: str
    # An approval stores the whole sentence. If the wording changes, the same finding becomes a new question.
    sentence: Callable[[Mapping[str, Any], float], str]
    declares: tuple[Any, ...] = (UsedBy.BUILD,)
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def threshold_of(self, value: float | None, kind: str) -> float:
        """Return the threshold for a kind of examples. `value` is that of the setting."""
        return self.thresholds.get(kind, self.thresholds[IMAGES]) if value is None else value


def settings_of_checks() -> dict[str, Any]:
    """Return the annotation and the field of both settings of each check, by the name of the setting."""
    fields = {}
    for check in CHECKS:
        title = check.threshold.title
        for setting, unit, description in (
            (check.action, Action, _ACTIONS.format(title[0].lower() + title[1:])),
            (check.threshold, check.unit, check.measure),
        ):
            annotation: Any = Annotated[unit, Decides.NOTHING, *check.declares, GATE]
            fields[setting.name] = (annotation, Field(setting.default, title=setting.title, description=description))
    return fields


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
    unit = quality["unit"]
    # Only a window, and a version whose source states the split, count these.
    by_group = leaks.get("only_by_group", 0)
    or_group = f" or share a group with a training {unit} ({by_group} only by group)" if by_group else ""
    return (
        f"{share(leaked, of)} validation and test {unit}s are in training too{or_group}, more than "
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
        f"{smallest!r}, more than max_imbalance={threshold:g}: add {quality['unit']}s to the small classes, or "
        "remove these classes"
    )


def _advice(quality: Mapping[str, Any], advice: str) -> str:
    """Return what to do about a change since the last version. If that has another source, the name comes first."""
    if not (source := quality.get("other_source")):
        return advice[0].upper() + advice[1:]
    what = "table" if quality["unit"] == "row" else "images"
    return (
        f"That version has another source, {source}. If these are not the same {what}, choose another dataset_name. "
        f"Otherwise, {advice}"
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
        f"max_drift={threshold:g}. {_advice(quality, _COMPARE)}"
    )


def _columns(quality: Mapping[str, Any], threshold: float) -> str:
    changes = quality.get("table_changes") or {}
    columns = changes.get("columns") or {}
    if len(columns) <= threshold:
        return ""
    shown = first_of((f"{name!r} {what}" for name, what in columns.items()), MAX_SHOWN)
    return (
        f"{counted(len(columns), 'column')} of version {changes['against']} changed, more than "
        f"max_changed_columns={threshold}: {shown}. "
        + _advice(quality, "repair the table, correct columns and drop_columns, or go on if the change is meant")
    )


def _new_values(quality: Mapping[str, Any], threshold: float) -> str:
    changes = quality.get("table_changes") or {}
    over = {name: new for name, new in (changes.get("new_values") or {}).items() if new["fraction"] > threshold}
    if not over:
        return ""
    shown = first_of(
        (
            f"{name!r} in {new['fraction']:.3g} of the training rows (such as {new['values'][0]!r})"
            for name, new in over.items()
        ),
        MAX_SHOWN,
    )
    return (
        f"{counted(len(over), 'column')} with texts that no training row of version {changes['against']} has, in more "
        f"than max_new_values_fraction={threshold:g} of the training rows: {shown}. "
        + _advice(quality, "train again, because a model of that version knows none of them")
    )


def _means(quality: Mapping[str, Any], threshold: float) -> str:
    changes = quality.get("table_changes") or {}
    means = changes.get("means") or {}
    over = sorted((name for name, shift in means.items() if shift > threshold), key=lambda name: -means[name])
    if not over:
        return ""
    shown = first_of((f"{name!r} by {means[name]:.2f}" for name in over), MAX_SHOWN)
    return (
        f"the means of {counted(len(over), 'column')} moved since version {changes['against']} by more than "
        f"max_mean_drift={threshold:g} standard deviations: {shown}. {_advice(quality, _COMPARE)}"
    )


_OF_TABLES = (UsedBy.BUILD, OnlyFor(TABLE))

CHECKS = (
    Check(
        Setting("on_rejected", "Action on rejected examples", "fail"),
        Setting("max_rejected_fraction", "Maximum rejected fraction", None),
        Fraction | None,
        "Share of the listed examples that may be rejected. Empty: 0.5 for images, and 0.05 for the rows of a table.",
        _rejected,
        thresholds={IMAGES: 0.5, TABLE: 0.05},
    ),
    Check(
        Setting("on_leak", "Action on leaks", "fail"),
        Setting("max_leaked_fraction", "Maximum leaked fraction", 0.01),
        Fraction,
        "Share of the validation and test examples that may also be in training, in a version or in a window of "
        "several dates.",
        _leaked,
        (UsedBy.BUILD | UsedBy.TRAIN,),
    ),
    Check(
        Setting("on_contradiction", "Action on contradictory labels", "continue"),
        Setting("max_contradictory_fraction", "Maximum contradictory fraction", 0.0),
        Fraction,
        "Share of the listed examples that may be equal to one with different labels.",
        _contradictions,
    ),
    Check(
        Setting("on_imbalance", "Action on class imbalance", "continue"),
        Setting("max_imbalance", "Maximum class imbalance", 100.0),
        Annotated[float, Field(ge=1)],
        "Training examples of the largest class divided by those of the smallest.",
        _imbalance,
    ),
    Check(
        Setting("on_drift", "Action on drift", "continue"),
        Setting("max_drift", "Maximum drift (PSI)", 0.25),
        NonNegativeFloat,
        "The largest population stability index since the previous version, of class shares and, for images, of sizes "
        "and brightness. 0.1 is a small drift, 0.25 a large one.",
        _drift,
    ),
    Check(
        Setting("on_columns", "Action on changed columns", "fail"),
        Setting("max_changed_columns", "Maximum changed columns", 0),
        NonNegativeInt,
        "Number of columns of the previous version that may be missing or have another type.",
        _columns,
        _OF_TABLES,
    ),
    Check(
        Setting("on_new_values", "Action on new values", "continue"),
        Setting("max_new_values_fraction", "Maximum fraction of new values", 0.0),
        Fraction,
        "Share of the training rows that may have a text that no training row of the previous version has, in any "
        "column.",
        _new_values,
        _OF_TABLES,
    ),
    Check(
        Setting("on_mean", "Action on drifted means", "continue"),
        Setting("max_mean_drift", "Maximum drift of a mean", 0.25),
        NonNegativeFloat,
        "How far the mean of a column may move since the previous version, in standard deviations. What chance "
        "explains does not count.",
        _means,
        _OF_TABLES,
    ),
)
"""All checks, in the order in which the gate reports what they find."""
