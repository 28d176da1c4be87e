"""What nothing in a workspace uses any more. Decides over listings: reads no file, and removes nothing.

A folder stays if it is young, or if one of these needs it: a date, the newest version of a name, a window that stays,
the champion, a training that stays or can be continued, or a build that is under way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.storage import Place

Kind = Literal[
    "version", "window", "run", "plan", "division", "images", "copy of a run", "copies of shards", "decoded images"
]
DAY_S = 86_400
UNFINISHED_S = 7 * DAY_S
"""A build may wait for a person, so its files stay for at least a week."""

YOUNG = "younger than the limit"
CURRENT = "the version of a date, or the newest version of its name"
IN_WINDOW = "a window uses it"
CHAMPION = "the champion, or a model that a rollback may return to"
OF_CHAMPION = "the champion was trained on it"
TRAINED_ON = "a training that is young, or can be continued, uses it"
CONTINUABLE = "a training that can be continued"
BUILDING = "a build uses it"
ONLY_HERE = "the bucket does not have all of it"


@dataclass(frozen=True)
class Stored:
    """A folder with files that belong together."""

    kind: Kind
    folder: Place
    size: int
    """The bytes of all files."""
    changed_s: float
    """When its newest file was written, in Unix seconds."""
    name: str = ""
    """The dataset name that it belongs to; empty for copies on this machine."""
    version: str = ""
    """The version or window that it holds, plans, copies or was trained on."""
    is_complete: bool = True
    """Whether its last file is there: `dataset.json` or `result.json`."""
    can_continue: bool = False
    """Whether an incomplete training has a checkpoint."""
    parts: frozenset[str] = frozenset()
    """The versions whose shards a window has."""

    @property
    def short_name(self) -> str:
        """The last two parts of its path. They identify a training, wherever its workspace is."""
        return f"{self.folder.parent.name}/{self.folder.name}"


@dataclass(frozen=True)
class Promoted:
    """A promotion that stands: the training as `Stored.short_name`, and the version that it was trained on."""

    run: str
    version: str


@dataclass(frozen=True)
class Contents:
    """What a workspace has."""

    stored: Sequence[Stored]
    current: frozenset[str]
    """The versions to which dates point."""
    promoted: Mapping[str, Sequence[Promoted]]
    """The promotions that stand, by dataset name, the champion last."""


def reasons_to_keep(contents: Contents, now_s: float, older_than_s: float) -> dict[Stored, str]:
    """Return each folder with the reason why it stays; empty if nothing uses it.

    Args:
        contents: What the workspace has.
        now_s: The time in Unix seconds.
        older_than_s: Only a folder whose newest file is at least this old, in seconds, can be unused.
    """

    def age(each: Stored, at_least_s: float = 0.0) -> str:
        return YOUNG if now_s - each.changed_s < max(older_than_s, at_least_s) else ""

    def age_of_built(each: Stored) -> str:
        return age(each, 0.0 if each.is_complete else UNFINISHED_S)

    runs, windows, versions, plans = (_all(contents, kind) for kind in ("run", "window", "version", "plan"))
    current = contents.current | _newest(versions)
    standing = {each.run for promoted in contents.promoted.values() for each in promoted}
    champions = [promoted[-1] for promoted in contents.promoted.values() if promoted]
    # Of two reasons for one version, the later one counts.
    trained_on = {run.version: TRAINED_ON for run in runs if run.can_continue or age(run)}
    trained_on |= {champion.version: OF_CHAMPION for champion in champions}
    reasons = {run: CONTINUABLE if run.can_continue else age(run) for run in runs}
    reasons |= {run: CHAMPION for run in runs if run.short_name in standing}
    reasons |= {window: trained_on.get(window.version) or age_of_built(window) for window in windows}
    used = {part: IN_WINDOW for window in windows if reasons[window] for part in window.parts}
    used |= trained_on
    used |= {plan.version: BUILDING for plan in plans if age(plan, UNFINISHED_S)}
    used |= dict.fromkeys(current, CURRENT)
    reasons |= {version: used.get(version.version) or age_of_built(version) for version in versions}
    # A plan says when the source of a date was last listed, which decides between two versions of the date.
    reasons |= {plan: CURRENT if plan.version in current else age(plan, UNFINISHED_S) for plan in plans}
    is_building = any(age(plan, UNFINISHED_S) for plan in plans)
    in_bucket = {run.short_name for run in runs if run.is_complete}
    for each in contents.stored:
        if each.kind == "division":
            reasons[each] = age(each, UNFINISHED_S)
        elif each.kind == "images":
            reasons[each] = BUILDING if is_building else age(each)
        elif each.kind == "copy of a run" and each.short_name not in in_bucket:
            reasons[each] = ONLY_HERE
        else:
            reasons.setdefault(each, age(each))
    return reasons


def _all(contents: Contents, kind: Kind) -> list[Stored]:
    return [each for each in contents.stored if each.kind == kind]


def _newest(versions: Sequence[Stored]) -> set[str]:
    """Return the newest complete version of each dataset name."""
    ordered = sorted((each for each in versions if each.is_complete), key=lambda each: each.changed_s)
    return set({each.name: each.version for each in ordered}.values())
