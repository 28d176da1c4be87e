"""What nothing in a workspace uses any more. Decides over listings: reads no file, and removes nothing.

A folder stays if it is young, or if one of these needs it: a date, the newest version of a name, a window that stays,
the champion, a training that may be used again, or a build that is under way. A folder also stays if it is not certain
that Tenfold made it, or if nobody can tell what it uses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.storage import Place

Kind = Literal[
    "version", "window", "run", "plan", "division", "images", "copy of a run", "copies of shards", "decoded images"
]
DAY_S = 86_400
UNFINISHED_S = 7 * DAY_S
"""A build may wait for a person for six days (`ask_hours`), so its files stay for at least a week."""

YOUNG = "younger than the limit"
CURRENT = "the version of a date, or the newest version of its name"
IN_WINDOW = "a window uses it"
OF_DATES = "all its versions are those of dates, so a run that waits may have chosen it"
CHAMPION = "the champion, or a model that a rollback may return to"
OF_CHAMPION = "the champion was trained on it"
TRAINED_ON = "a training that is young, the newest of its name, undecided, or can be continued uses it"
CONTINUABLE = "a training that can be continued"
CONTINUED = "a training that is not complete continues it"
NEWEST = "the newest complete training of its name"
ASKED = "a person must decide whether to promote its model"
COPY_USED = "its copy on this machine is young, or can be continued"
BUILDING = "a build uses it"
ONLY_HERE = "the bucket does not have all of it"
LINK = "a link, so its files are elsewhere"
FOREIGN = "nothing shows that Tenfold wrote all of it"
UNREADABLE = "its files are damaged, so nobody knows what it uses"
LISTINGS = "it says when the sources of dates were listed, and why versions were refused"
_IN_USE = frozenset({YOUNG, CONTINUABLE, CONTINUED, NEWEST, ASKED, COPY_USED})
"""A training that stays for one of these reasons may need its version again."""


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
    continues: str = ""
    """The `short_name` of the training that it continues; empty if there is none."""
    is_asked: bool = False
    """Whether a person must decide on the promotion of a complete training."""
    parts: frozenset[str] = frozenset()
    """The versions whose shards a window has."""
    stays: str = ""
    """Why the folder stays even if nothing uses it; empty if it may be removed then."""

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

    runs, copies, windows, versions, plans, divisions = (
        _all(contents, kind) for kind in ("run", "copy of a run", "window", "version", "plan", "division")
    )
    current = contents.current | _newest(versions)
    standing = {each.run for promoted in contents.promoted.values() for each in promoted}
    champions = [promoted[-1] for promoted in contents.promoted.values() if promoted]
    reasons = _of_trainings(runs, copies, age)
    # Of two reasons for one version, the later one counts.
    trained_on = {
        run.version: TRAINED_ON for run in (*runs, *copies) if reasons[run] in _IN_USE or age(run) or run.stays
    }
    trained_on |= {champion.version: OF_CHAMPION for champion in champions}
    in_workspace = {run.short_name for run in runs}
    only_copies = [copy for copy in copies if copy.short_name not in in_workspace]
    reasons |= {each: CHAMPION for each in (*runs, *only_copies) if each.short_name in standing}
    # A run that chooses an old window again writes nothing, and its training may wait for hours before it begins.
    choosable = {window.version: OF_DATES for window in windows if window.parts and window.parts <= contents.current}
    reasons |= {
        window: trained_on.get(window.version) or age_of_built(window) or choosable.get(window.version, "")
        for window in windows
    }
    used = {part: IN_WINDOW for window in windows if reasons[window] or window.stays for part in window.parts}
    used |= trained_on
    used |= {plan.version: BUILDING for plan in plans if age(plan, UNFINISHED_S)}
    used |= dict.fromkeys(current, CURRENT)
    reasons |= {version: used.get(version.version) or age_of_built(version) for version in versions}
    reasons |= {plan: CURRENT if plan.version in current else age(plan, UNFINISHED_S) for plan in plans}
    reasons |= {division: age(division, UNFINISHED_S) for division in divisions}
    is_building = any(age(each, UNFINISHED_S) for each in (*plans, *divisions))
    for each in contents.stored:
        reasons.setdefault(each, BUILDING if each.kind == "images" and is_building else age(each))
    return {each: reasons[each] or each.stays for each in contents.stored}


def _of_trainings(runs: Sequence[Stored], copies: Sequence[Stored], age: Callable[[Stored], str]) -> dict[Stored, str]:
    """Return trainings and their copies, each with the reason why it stays, promoted or not; empty if there is none."""
    in_bucket = {run.short_name: run.is_complete for run in runs}
    only = [*runs, *(copy for copy in copies if copy.short_name not in in_bucket)]
    complete = sorted((each for each in only if each.is_complete), key=lambda each: each.changed_s)
    newest = set({each.name: each.short_name for each in complete}.values())

    def own(each: Stored) -> str:
        if each.can_continue:
            return CONTINUABLE
        if each.is_asked:
            return ASKED
        return NEWEST if each.is_complete and each.short_name in newest else age(each)

    used_copies = {copy.short_name for copy in copies if copy.can_continue or age(copy)}
    reasons = {run: own(run) or (COPY_USED if run.short_name in used_copies else "") for run in runs}
    for copy in copies:
        if in_bucket.get(copy.short_name):
            reasons[copy] = CONTINUABLE if copy.can_continue else age(copy)
        elif copy.is_complete and copy.short_name not in in_bucket:
            reasons[copy] = own(copy)  # Its run was removed from the bucket.
        else:
            reasons[copy] = CONTINUABLE if copy.can_continue else ONLY_HERE
    # An attempt without a checkpoint of its own begins with that of the training that it continues.
    continued = {each.continues for each, why in reasons.items() if (why or each.stays) and not each.is_complete}
    return {each: why or (CONTINUED if each.short_name in continued else "") for each, why in reasons.items()}


def _all(contents: Contents, kind: Kind) -> list[Stored]:
    return [each for each in contents.stored if each.kind == kind]


def _newest(versions: Sequence[Stored]) -> set[str]:
    """Return the newest complete version of each dataset name."""
    ordered = sorted((each for each in versions if each.is_complete), key=lambda each: each.changed_s)
    return set({each.name: each.version for each in ordered}.values())
