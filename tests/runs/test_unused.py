"""What nothing uses: a table of workspaces, each with one folder that is asked about."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from pipeline.errors import SettingsError
from pipeline.runs.unused import (
    ASKED,
    BUILDING,
    CHAMPION,
    CONTINUABLE,
    CONTINUED,
    COPY_USED,
    CURRENT,
    DAY_S,
    IN_WINDOW,
    LINK,
    NEWEST,
    OF_CHAMPION,
    OF_DATES,
    ONLY_HERE,
    TRAINED_ON,
    UNFINISHED_S,
    YOUNG,
    Contents,
    Kind,
    Promoted,
    Stored,
    reasons_to_keep,
)

NOW_S = 1000.0 * DAY_S
OLDER_THAN_S = 5.0 * DAY_S
NOTHING = Contents(stored=(), current=frozenset(), promoted={})


def stored(kind: Kind, path: str, days: float = 99, version: str = "", **values: object) -> Stored:
    """Return a folder of the dataset name `n` whose newest file is this many days old."""
    place = Path("/w") / path
    made = Stored(kind, place, 1, NOW_S - days * DAY_S, "n", version or place.name)
    return replace(made, **values)  # type: ignore[arg-type]


OLD, NEW = stored("version", "n/old"), stored("version", "n/new", 50)
RUN = stored("run", "runs/r/t", version="old")
WINDOW = stored("window", "n/windows/w", parts=frozenset({"old", "new"}))
PLAN = stored("plan", "work/n/old-1", version="old")
IMAGES = stored("images", "raw")
COPY = stored("copy of a run", "local/r/t")
LATER = stored("run", "runs/s/t", 50, version="new")
STARTED = replace(RUN, is_complete=False)
CONTINUING = stored("run", "runs/c/t", version="new", is_complete=False, continues="r/t")
STARTED_COPY = stored("copy of a run", "local/r/t", version="old", is_complete=False, can_continue=True)
OF_R, OF_S = Promoted("r/t", "old"), Promoted("s/t", "other")


def of(*folders: Stored, current: tuple[str, ...] = (), promoted: tuple[Promoted, ...] = ()) -> Contents:
    return Contents(folders, frozenset(current), {"n": promoted})


@pytest.mark.parametrize(
    ("contents", "asked", "why"),
    [
        # Versions.
        (of(OLD, NEW), OLD, ""),
        (of(OLD, NEW), NEW, CURRENT),
        (of(OLD), OLD, CURRENT),
        (of(OLD, NEW, current=("old",)), OLD, CURRENT),
        (of(OLD, replace(NEW, is_complete=False)), OLD, CURRENT),
        (of(OLD, replace(NEW, name="m")), OLD, CURRENT),
        (of(recent := stored("version", "n/old", 4), replace(NEW, changed_s=NOW_S)), recent, YOUNG),
        (of(OLD, NEW, replace(PLAN, changed_s=NOW_S - 6 * DAY_S)), OLD, BUILDING),
        (of(OLD, NEW, PLAN), OLD, ""),
        # A build that never ended.
        (of(replace(OLD, is_complete=False), NEW), replace(OLD, is_complete=False), ""),
        (of(unfinished := stored("version", "n/old", 6, is_complete=False), NEW), unfinished, YOUNG),
        (of(unfinished := stored("version", "n/old", 8, is_complete=False), NEW), unfinished, ""),
        # Trainings of versions.
        (of(OLD, NEW, RUN, LATER), OLD, ""),
        (of(OLD, NEW, RUN), OLD, TRAINED_ON),
        (of(OLD, NEW, replace(RUN, is_asked=True), LATER), OLD, TRAINED_ON),
        (of(OLD, NEW, STARTED_COPY), OLD, TRAINED_ON),
        (of(OLD, NEW, replace(COPY, version="old", changed_s=NOW_S), LATER), OLD, TRAINED_ON),
        (of(WINDOW, replace(STARTED_COPY, version="w")), WINDOW, TRAINED_ON),
        (of(OLD, NEW, replace(RUN, changed_s=NOW_S)), OLD, TRAINED_ON),
        (of(OLD, NEW, STARTED), OLD, ""),
        (of(OLD, NEW, replace(STARTED, can_continue=True)), OLD, TRAINED_ON),
        (of(OLD, NEW, RUN, promoted=(OF_R,)), OLD, OF_CHAMPION),
        (of(OLD, NEW, promoted=(OF_R,)), OLD, OF_CHAMPION),
        (of(OLD, NEW, RUN, LATER, promoted=(OF_R, OF_S)), OLD, ""),
        # Windows.
        (of(OLD, NEW, WINDOW), OLD, ""),
        (of(OLD, NEW, WINDOW), WINDOW, ""),
        (of(OLD, NEW, WINDOW, current=("new",)), WINDOW, ""),
        (of(OLD, NEW, WINDOW, current=("new", "old")), WINDOW, OF_DATES),
        (of(OLD, NEW, replace(WINDOW, parts=frozenset()), current=("new",)), replace(WINDOW, parts=frozenset()), ""),
        (of(OLD, NEW, young := stored("window", "n/windows/w", 1, parts=frozenset({"old"}))), OLD, IN_WINDOW),
        (of(OLD, NEW, young), young, YOUNG),
        (of(OLD, NEW, WINDOW, promoted=(Promoted("r/t", "w"),)), WINDOW, OF_CHAMPION),
        (of(OLD, NEW, WINDOW, promoted=(Promoted("r/t", "w"),)), OLD, IN_WINDOW),
        (of(replace(WINDOW, is_complete=False)), replace(WINDOW, is_complete=False), ""),
        # Trainings.
        (of(RUN, LATER), RUN, ""),
        (of(RUN, LATER), LATER, NEWEST),
        (of(RUN, replace(LATER, name="m")), RUN, NEWEST),
        (of(RUN, replace(LATER, is_complete=False)), RUN, NEWEST),
        (of(asked := replace(RUN, is_asked=True), LATER), asked, ASKED),
        (of(RUN, LATER, STARTED_COPY), RUN, COPY_USED),
        (of(RUN, LATER, replace(COPY, changed_s=NOW_S)), RUN, COPY_USED),
        (of(RUN, LATER, replace(CONTINUING, can_continue=True)), RUN, CONTINUED),
        (of(RUN, LATER, replace(CONTINUING, changed_s=NOW_S)), RUN, CONTINUED),
        (of(OLD, NEW, RUN, LATER, replace(CONTINUING, changed_s=NOW_S)), OLD, TRAINED_ON),
        (of(RUN, LATER, CONTINUING), RUN, ""),
        (of(RUN, LATER, replace(CONTINUING, is_complete=True, changed_s=NOW_S)), RUN, ""),
        (of(linked := replace(RUN, stays=LINK), LATER), linked, LINK),
        (of(young := replace(RUN, changed_s=NOW_S - DAY_S), replace(LATER, changed_s=NOW_S)), young, YOUNG),
        (of(STARTED), STARTED, ""),
        (of(replace(STARTED, can_continue=True)), replace(STARTED, can_continue=True), CONTINUABLE),
        (of(RUN, promoted=(OF_R,)), RUN, CHAMPION),
        (of(RUN, promoted=(OF_R, OF_S)), RUN, CHAMPION),
        (of(RUN, LATER, promoted=(OF_S,)), RUN, ""),
        # Intermediate files and copies.
        (of(OLD, NEW, PLAN), PLAN, ""),
        (of(OLD, NEW, PLAN, current=("old",)), PLAN, CURRENT),
        (of(replace(PLAN, changed_s=NOW_S - 6 * DAY_S)), replace(PLAN, changed_s=NOW_S - 6 * DAY_S), YOUNG),
        (of(division := stored("division", "work/n/snapshots/ranges/1-a", 6)), division, YOUNG),
        (of(division := stored("division", "work/n/snapshots/ranges/1-a", 8)), division, ""),
        (of(IMAGES), IMAGES, ""),
        (of(IMAGES, replace(PLAN, changed_s=NOW_S)), IMAGES, BUILDING),
        (of(IMAGES, stored("division", "work/n/snapshots/ranges/1-a", 6)), IMAGES, BUILDING),
        (of(COPY, RUN), COPY, ""),
        (of(COPY, STARTED), COPY, ONLY_HERE),
        (of(started := replace(COPY, is_complete=False)), started, ONLY_HERE),
        (of(COPY, LATER), COPY, ""),
        (of(COPY), COPY, NEWEST),
        (of(COPY, LATER, promoted=(OF_R,)), COPY, CHAMPION),
        (of(RUN, LATER, STARTED_COPY), STARTED_COPY, CONTINUABLE),
        (of(shards := stored("copies of shards", "local/shards/old", 6)), shards, ""),
        (of(shards := stored("copies of shards", "local/shards/old", 4)), shards, YOUNG),
        (of(decoded := stored("decoded images", "local/decoded/k", 6)), decoded, ""),
    ],
)
def test_a_folder_stays_for_one_reason_or_is_unused(contents: Contents, asked: Stored, why: str) -> None:
    reasons = reasons_to_keep(contents, NOW_S, OLDER_THAN_S)
    assert reasons[asked] == why
    assert reasons.keys() == {*contents.stored}


def test_an_empty_workspace_has_nothing_to_remove() -> None:
    assert reasons_to_keep(NOTHING, NOW_S, OLDER_THAN_S) == {}


def test_the_files_of_a_build_stay_for_a_day_longer_than_it_may_wait_for_a_person() -> None:
    with pytest.raises(SettingsError, match="ask_hours"):
        settings_from({"ask_hours": (UNFINISHED_S - DAY_S) / 3600 + 1})
