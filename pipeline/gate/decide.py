"""The data gate: find what exceeds a threshold, say it in one sentence each, and decide whether the run continues.

All facts about the images are in one mapping, `quality` in `dataset.json`. It grows during a build. The gate runs once
after planning, before anything is written, and once before the commit. Facts that are not known yet are skipped.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config import Action, Settings
from pipeline.errors import GateError
from pipeline.snapshot.skipped import SKIPPED, suffix_counts

MAX_EXAMPLES = 3
MAX_SHOWN = 10
"""A sentence names at most this many columns."""
MANY_SKIPPED = 0.1
"""If more than this share of the files was skipped because of their suffix, a warning appears."""
_log = logging.getLogger(__name__)

Kind = Literal["rejected", "leak", "contradiction", "imbalance", "drift", "columns", "new_values", "mean"]
Ask = Callable[[str], bool]


@dataclass(frozen=True)
class Finding:
    """A fact that exceeds its threshold, as a sentence, and the action that the settings ask for."""

    kind: Kind
    sentence: str
    action: Action


def actions(settings: Settings) -> set[Action]:
    """Return the actions that the settings choose for all thresholds."""
    return {
        settings.on_rejected,
        settings.on_leak,
        settings.on_contradiction,
        settings.on_imbalance,
        settings.on_drift,
        settings.on_columns,
        settings.on_new_values,
        settings.on_mean,
    }


def findings(quality: Mapping[str, Any], settings: Settings) -> list[Finding]:
    """Return all known facts that exceed their threshold in `settings`."""
    checks: tuple[tuple[Kind, str, Action], ...] = (
        ("rejected", _rejected(quality, settings.max_rejected_fraction), settings.on_rejected),
        ("leak", _leaked(quality, settings.max_leaked_fraction), settings.on_leak),
        (
            "contradiction",
            _contradictions(quality, settings.max_contradictory_fraction),
            settings.on_contradiction,
        ),
        ("imbalance", _imbalance(quality, settings.max_imbalance), settings.on_imbalance),
        ("drift", _drift(quality, settings.max_drift), settings.on_drift),
        ("columns", _columns(quality, settings.max_changed_columns), settings.on_columns),
        ("new_values", _new_values(quality, settings.max_new_values_fraction), settings.on_new_values),
        ("mean", _means(quality, settings.max_mean_drift), settings.on_mean),
    )
    return [Finding(kind, sentence, action) for kind, sentence, action in checks if sentence]


def notices(quality: Mapping[str, Any]) -> list[str]:
    """Return facts about the examples that have no threshold, one sentence each."""
    unit = _unit(quality)
    sentences = (
        _duplicates(quality.get("duplicates"), "equal to another one", unit),
        _duplicates(quality.get("near_duplicates"), "almost the same as another one", unit),
        _shared(quality.get("shared"), unit),
        _near_leaks(quality.get("near_duplicates") or {}),
        _skipped_by_name(quality.get("skipped_by_name") or {}),
        _misnamed(quality.get("misnamed", 0)),
        _ignored_profiles(quality.get("profiles", {}).get("ignored", 0)),
        _classes(quality.get("classes_new"), "new and got the next ids"),
        _gone(quality.get("classes_gone"), unit),
        _unused(quality.get("classes_unused"), unit),
        _classes(
            quality.get("classes_without_training"),
            f"without training {unit}s, so no model can learn them (the split never moves {_a(unit)} to change this)",
        ),
        _classes(
            quality.get("classes_without_validation"), f"without validation {unit}s, so the scores do not cover them"
        ),
    )
    return [sentence for sentence in sentences if sentence]


def _unit(quality: Mapping[str, Any]) -> str:
    """Return the word for an example."""
    return str(quality["unit"])


def _a(unit: str) -> str:
    return f"an {unit}" if unit == "image" else f"a {unit}"


def decide(findings: Sequence[Finding], ask: Ask | None) -> None:
    """Log each finding, and continue or stop as its action says. `ask` asks a person, and returns their answer.

    Raises GateError with all sentences that stop the run, and the settings that would let it continue.
    """
    for finding in findings:
        if finding.action == "continue":  # The others are in the error or in the question.
            _log.warning("%s", finding.sentence)
    # This comes before any question, because the run stops whatever the answer is.
    if failing := [finding for finding in findings if finding.action == "fail"]:
        raise GateError(_stopped(failing))
    asking = [finding for finding in findings if finding.action == "ask"]
    if asking and ask is None:
        raise GateError(f"{_stopped(asking)}, or run this in a terminal or in Airflow, where a person can be asked")
    for finding in asking:
        if ask is not None and not ask(finding.sentence):
            raise GateError(f"a person answered no: {_stopped([finding])}")


def ask_terminal() -> Ask | None:
    """Return a function that asks the person at the terminal; None if there is no terminal."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def ask_later(sentence: str) -> bool:
    """Continue for now. In a DAG, a person is asked once, by a task before anything is published."""
    _log.warning("%s. A person is asked about this when the shards are written", sentence)
    return True


def _ask(sentence: str) -> bool:
    """Ask on stderr, because the last line of stdout is for programs. An empty line or no line means no."""
    sys.stderr.write(f"{sentence}\nContinue? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _stopped(findings: Sequence[Finding]) -> str:
    settings = " ".join(f"on_{finding.kind}=continue" for finding in findings)
    return f"{'; '.join(finding.sentence for finding in findings)}. To continue, set {settings}"


def _rejected(quality: Mapping[str, Any], threshold: float) -> str:
    rejected, listed = quality.get("rejected", 0), quality.get("listed", 0)
    if not listed or rejected <= threshold * listed:
        return ""
    return (
        f"{_share(rejected, listed)} {_unit(quality)}s were rejected, more than max_rejected_fraction={threshold:g}: "
        "rejected.jsonl says why and what could be done with each"
    )


def _leaked(quality: Mapping[str, Any], threshold: float) -> str:
    leaks = quality.get("leaks") or {}
    leaked, of = leaks.get("images", 0), leaks.get("of", 0)
    if leaked <= threshold * of:
        return ""
    return (
        f"{_share(leaked, of)} validation and test {_unit(quality)}s are in training too, more than "
        f"max_leaked_fraction={threshold:g}{_such_as(leaks.get('names', []))}: remove them from one side, or the score "
        "flatters the model"
    )


def _contradictions(quality: Mapping[str, Any], threshold: float) -> str:
    contradictions = quality.get("contradictions") or {}
    contradictory, of = contradictions.get("images", 0), contradictions.get("of", 0)
    if contradictory <= threshold * of:
        return ""
    pairs = [
        f"{one!r} ({_joined(one_labels)}) and {other!r} ({_joined(other_labels)})"
        for (one, other), (one_labels, other_labels) in (
            (pair["paths"], pair["labels"]) for pair in contradictions["pairs"][:MAX_EXAMPLES]
        )
    ]
    return (
        f"{_share(contradictory, of)} {_unit(quality)}s are equal to one with different labels, more than "
        f"max_contradictory_fraction={threshold:g}, such as {', '.join(pairs)}: keep one label, or remove the "
        f"{_unit(quality)}s"
    )


def _joined(labels: Sequence[str]) -> str:
    return "|".join(map(repr, labels))


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
        f"class {largest!r} has {counts[largest]} training {_unit(quality)}s, {times} the {counts[smallest]} of "
        f"{smallest!r}, more than max_imbalance={threshold:g}: add {_unit(quality)}s to the small classes, or leave "
        "them out"
    )


def _drift(quality: Mapping[str, Any], threshold: float) -> str:
    drift = dict(quality.get("drift") or {})
    against = drift.pop("against", None)
    over = sorted((name for name, index in drift.items() if index > threshold), key=lambda name: -drift[name])
    if not over:
        return ""
    numbers = ", ".join(f"{name} by {drift[name]:.2f}" for name in over)
    # An approval stores the whole sentence. If the wording changes, the same finding becomes a new question.
    return (
        f"the {_unit(quality)}s differ from those of version {against} in {numbers}, more than "
        f"max_drift={threshold:g}: look at the dataset cards of both, and go on if the change is meant"
    )


def _columns(quality: Mapping[str, Any], threshold: int) -> str:
    changes = quality.get("table_changes") or {}
    columns = changes.get("columns") or {}
    if len(columns) <= threshold:
        return ""
    shown = ", ".join(f"{name!r} {what}" for name, what in list(columns.items())[:MAX_SHOWN])
    more = f" and {len(columns) - MAX_SHOWN} more" if len(columns) > MAX_SHOWN else ""
    return (
        f"{_count(len(columns), 'column')} of version {changes['against']} changed, more than "
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
        f"{_count(len(over), 'column')} have texts that version {changes['against']} did not have, more than "
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
        f"the means of {_count(len(over), 'column')} moved since version {changes['against']} by more than "
        f"max_mean_drift={threshold:g} standard deviations: {shown}. Look at the dataset cards of both, and go on if "
        "the change is meant"
    )


def _duplicates(duplicates: Mapping[str, Any] | None, what: str, unit: str) -> str:
    if not duplicates or not duplicates["images"]:
        return ""
    return f"{_units(duplicates['images'], unit)} {what} ({_count(duplicates['groups'], 'group')})"


def _shared(shared: Mapping[str, Any] | None, unit: str) -> str:
    if not shared or not shared["images"]:
        return ""
    return (
        f"{_units(shared['images'], unit)} in several dates of the window. This accounts for {shared['examples']} of "
        f"its {shared['of']} examples, because each {unit} counts once per date: set window=1 if each date also "
        f"contains all {unit}s of the dates before it"
    )


def _near_leaks(near: Mapping[str, Any]) -> str:
    leaks = near.get("leaks") or {}
    if not leaks.get("images"):
        return ""
    share = _share(leaks["images"], leaks["of"])
    return f"{share} validation and test images look like a training image{_such_as(leaks.get('names', []))}"


def _skipped_by_name(skipped: Mapping[str, Any]) -> str:
    files, of = skipped.get("files", 0), skipped.get("of", 0)
    if files <= MANY_SKIPPED * of:
        return ""
    return (
        f"{_share(files, of)} files were skipped because their suffix is not that of an image format "
        f"({suffix_counts(skipped['suffixes'])}): if they are images, convert them to JPEG or PNG; {SKIPPED} lists them"
    )


def _misnamed(count: int) -> str:
    return f"{_units(count, 'image')} in another format than the file name says (read anyway)" if count else ""


def _ignored_profiles(count: int) -> str:
    return (
        f"{_units(count, 'image')} stored without conversion to sRGB, because the color profile is damaged or does "
        "not match the image"
        if count
        else ""
    )


def _classes(labels: Sequence[str] | None, what: str) -> str:
    if not labels:
        return ""
    shown = ", ".join(repr(label) for label in labels[:MAX_EXAMPLES])
    more = f" and {len(labels) - MAX_EXAMPLES} more" if len(labels) > MAX_EXAMPLES else ""
    return f"{_count(len(labels), 'class', 'classes')} {what}: {shown}{more}"


def _gone(labels: Sequence[str] | None, unit: str) -> str:
    sentence = _classes(labels, f"without {unit}s in this version, with unchanged ids")
    return f"{sentence}. If these are completely different {unit}s, choose another dataset_name" if sentence else ""


def _unused(labels: Sequence[str] | None, unit: str) -> str:
    sentence = _classes(labels, f"in the label map, but without {_a(unit)} in this version")
    return (
        f"{sentence}. If a failed build left them, `python -m pipeline labels --release` removes them, but only before "
        "a dataset with them is committed"
        if sentence
        else ""
    )


def _such_as(pairs: Sequence[Sequence[str]]) -> str:
    """Return up to three pairs of keys as text, quoted as in Python, because a key may contain any character."""
    shown = ", ".join(f"{other!r} (as {train!r})" for train, other in pairs[:MAX_EXAMPLES])
    return f", such as {shown}" if shown else ""


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.3g}%)"


def _units(count: int, unit: str) -> str:
    return f"1 {unit} is" if count == 1 else f"{count} {unit}s are"


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
