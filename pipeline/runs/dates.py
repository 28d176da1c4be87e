"""The state of all dates of a dataset name, from the files of the workspace and of the published datasets alone.

A command prints it, and a page in Airflow shows it. It needs no database of Airflow, so it survives the loss of one.
"""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pipeline.config.allowed import require_folder
from pipeline.config.settings import Settings
from pipeline.config.workspace import allowed_name_folder, build_folders, champion_folder, plan_folders, require_name
from pipeline.dataset.manifest import PARALLEL_REQUESTS, Dataset, is_committed, load_allowed
from pipeline.dataset.partitions import Listed, Partition, dated_partitions, listed_dates, load_partition
from pipeline.errors import BadInput, SettingsError
from pipeline.runs.backfill_command import arguments_of, backfill_command, schedule_note
from pipeline.runs.champion import pointer_of
from pipeline.runs.date_trend import Date, trend_words
from pipeline.runs.gaps import Gap, Steps, gap_until, gaps_between, missing_days, usual_steps
from pipeline.runs.mends import Mend, mends_of
from pipeline.storage import Place, place_of
from pipeline.system.parallel import ordered_map


class LastRun(NamedTuple):
    """What another program knows of the last run of a date, such as Airflow."""

    state: Literal["failed", "running", "success"]
    words: str
    """Why it failed; empty if it did not, or if the caller may not know."""


STATES: Mapping[str, str] = MappingProxyType(
    {
        "failed": "not published",
        "missing": "missing",
        "running": "not published yet, a run is under way",
        "outdated": "an older version is published, because the newest run published nothing",
        "withdrawn": "withdrawn by a person; windows leave it out",
        "drift": "published, drifted",
        "published": "published",
        "seen": "published, and the champion was trained on it",
    }
)
"""What each state means, the worst first. A day with several dates has the worst of their states."""
PUBLISHED = ("outdated", "drift", "published", "seen")
"""States of dates that windows use."""
PROBLEMS = ("failed", "missing", "outdated")
"""States that a backfill mends."""
_NO_RUNS: Mapping[str, LastRun] = MappingProxyType({})
MAX_DAYS = 36_525
"""A calendar has at most this many days, the newest: a hundred years."""
_MAX_DRIFT = "max_drift"
"""The setting above which a date counts as drifted. The checks of the data gate declare it."""
_VERSION = re.compile("[0-9a-f]{16}")
DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""What a file of a date may raise that is no file of Tenfold: others may have written it."""


@dataclass(frozen=True)
class DateState:
    """What is known of one date."""

    date: str
    state: str
    """One of STATES, except "missing"."""
    words: str = ""
    """Why it is not published, why the newest run was not, or what drifted; empty if there is nothing to say."""
    version: str = ""
    """The published version; empty if there is none."""
    examples: int | None = None
    rejected: int | None = None
    drift: float | None = None
    """The largest population stability index since the previous version; None if there was none."""
    last_run: str = ""
    """When the last run listed the source of this date, in UTC, in ISO 8601; empty if unknown."""
    champion: str = ""
    """Whether the champion was trained on this date: "seen", "another version" or "not seen"; empty if unknown."""
    command: str = ""
    """The command that brings a withdrawn date back; empty in other states, or if its version cannot be read."""

    @property
    def is_problem(self) -> bool:
        """Whether a backfill mends it."""
        return self.state in PROBLEMS


@dataclass(frozen=True)
class Dates:
    """The state of all dates of a dataset name."""

    dataset_name: str
    folder: str
    unit: str
    """What the examples are called: "images" or "rows"."""
    step: str
    """The usual step between dates like the newest one, such as "day"; empty if there are fewer than two of them."""
    champion: str
    """The folder of the run of the champion; empty if no model has been promoted, or if it is unknown."""
    note: str
    """Why the champion is unknown; empty if it is known."""
    trend: str
    """Whether the data gets worse over its dates, in a sentence."""
    dates: tuple[DateState, ...]
    """Sorted by date. Missing dates are in `gaps`."""
    gaps: tuple[Gap, ...]
    days: Mapping[str, str]
    """The worst state of each day with an expected date, sorted by day. Only the newest MAX_DAYS are included."""
    mends: tuple[Mend, ...]
    later: tuple[Mend, ...]
    """The commands for the dates after the newest one. A run that fails before it lists its source leaves no file, so
    its date is not in `dates`."""
    mends_note: str
    """What Airflow needs for the commands of `mends`; empty if it needs nothing."""
    later_note: str
    """What Airflow needs for the commands of `later`; empty if it needs nothing."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of dates in each state, the worst first. States without a date are left out."""
        counts = Counter(each.state for each in self.dates)
        counts["missing"] = sum(gap.dates for gap in self.gaps)
        return {state: counts[state] for state in STATES if counts[state]}

    def to_json(self) -> dict[str, Any]:
        """Return the content for programs."""
        return {**asdict(self), "counts": self.counts, "published": sum(self.counts.get(each, 0) for each in PUBLISHED)}


class _Champion(NamedTuple):
    run: str
    partitions: Mapping[str, str]
    """The versions by date on which it was trained, if it was trained on several."""
    versions: frozenset[str]

    def has_seen(self, name: str, version: str) -> str:
        if version in self.versions:
            return "seen"
        return "another version" if name in self.partitions else "not seen"


class _Published(NamedTuple):
    """What a date points to."""

    partition: Partition | None
    dataset: Dataset | None
    error: str


def dates_of(settings: Settings, runs: Mapping[str, LastRun] = _NO_RUNS, now: datetime | None = None) -> Dates:
    """Return the state of all dates of a dataset name. `runs` adds what another program knows of them.

    Without `now`, the clock says which dates are over.

    Each date takes two or three small files: that of the partition, that of its newest listing, and `dataset.json`. In
    a bucket, they are read in parallel.

    Raises:
        SettingsError: There is no such dataset name, or its source has no dates, or the administrator does not allow a
            place.
    """
    folder = allowed_name_folder(settings)
    require_folder(champion_folder(place_of(settings.workspace), settings.dataset_name))
    listings = _listings(settings)
    if not listings:
        require_name(settings)
    # A run that failed before its plan left nothing in the workspace.
    unpublished = {name for name, run in runs.items() if run.state != "success"}
    known = sorted({*filter(_is_date, dated_partitions(folder)), *listings})
    names = sorted({*known, *unpublished})
    if not names:
        raise SettingsError(
            f"the dataset {settings.dataset_name!r} in {folder} has no dates: its source has no placeholder such as "
            "{date}, or no run of a date has listed its source yet"
        )
    champion, note = _champion_of(settings, folder)
    read = ordered_map(partial(_read, folder), names, PARALLEL_REQUESTS)
    published = dict(zip(names, read, strict=True))
    state_of = partial(_state_of, settings, champion)
    states = tuple(state_of(name, found, listings.get(name, ()), runs.get(name)) for name, found in published.items())
    # A schedule may run on days without data. These runs fail, and are no dates of the source.
    steps = usual_steps(known)
    gaps = tuple(gaps_between(names, steps))
    datasets = {name: found.dataset for name, found in published.items() if found.dataset}
    unit = next((each.unit for each in datasets.values()), "examples")
    command = partial(backfill_command, arguments=_arguments_of(settings, datasets))
    now = now or datetime.now(UTC)
    mends = mends_of((each.date for each in states if each.is_problem), gaps, steps, command, now)
    since = gap_until(now, names[-1], steps)
    later = mends_of((), (since,) if since else (), steps, command, now)
    return Dates(
        dataset_name=settings.dataset_name,
        folder=str(folder),
        unit=unit,
        step=str(steps.of(names[-1]) or ""),
        champion=champion.run if champion else "",
        note=note,
        trend=trend_words([*_published_dates(states)], unit),
        dates=states,
        gaps=gaps,
        days=_days(states, gaps, steps),
        mends=mends,
        later=later,
        mends_note=_note_of(mends),
        later_note=_note_of(later),
    )


def _note_of(mends: Iterable[Mend]) -> str:
    return schedule_note([date for mend in mends for date in (mend.first, mend.last)])


def _published_dates(states: Iterable[DateState]) -> Iterator[Date]:
    for each in states:
        if each.state in PUBLISHED and each.examples is not None and each.rejected is not None:
            yield Date(each.examples, each.rejected, each.drift)


def _arguments_of(settings: Settings, datasets: Mapping[str, Dataset]) -> str:
    try:
        return arguments_of(settings, datasets)
    except DAMAGED:
        return arguments_of(settings, {})


def _is_date(name: str) -> bool:
    try:
        datetime.fromisoformat(name)
    except ValueError:  # Another program may have left a file such as 2026-13-01.json.
        return False
    return True


def _listings(settings: Settings) -> dict[str, list[Listed]]:
    """Return the newest listing of each version of a date, the newest one last, by date."""
    found, folders = defaultdict(list), build_folders(settings)
    for listed_in_plan in ordered_map(listed_dates, plan_folders(settings), PARALLEL_REQUESTS):
        for name, listed in listed_in_plan.items():
            # The same workspace may publish to several places.
            if _is_date(name) and listed.dataset == folders.address_of(_version_of(listed)):
                found[name].append(listed)
    return {name: sorted(of_date, key=lambda each: each.listed_ns) for name, of_date in found.items()}


def _read(folder: Place, name: str) -> _Published:
    partition = None
    try:
        partition = load_partition(folder, name)
        if partition is None:
            return _Published(None, None, "")
        # The file of the partition names it, and others may have written that file.
        return _Published(partition, load_allowed(folder / partition.version), "")
    except BadInput as error:
        return _Published(partition, None, str(error))


def _state_of(
    settings: Settings,
    champion: _Champion | None,
    name: str,
    found: _Published,
    listings: Sequence[Listed],
    run: LastRun | None,
) -> DateState:
    try:
        return _readable_state(settings, champion, name, found, listings, run)
    except DAMAGED as error:
        return DateState(name, "failed", f"the files of this date are damaged ({error!r}): build the date again")


def _readable_state(
    settings: Settings,
    champion: _Champion | None,
    name: str,
    found: _Published,
    listings: Sequence[Listed],
    run: LastRun | None,
) -> DateState:
    partition, dataset = found.partition, found.dataset
    newest = listings[-1] if listings else None
    pointed_ns = partition.listed_ns if partition else 0
    is_withdrawn = partition is not None and partition.withdrawn
    # A person may have moved or withdrawn the date at `pointed_ns`: no run listed its source then.
    last_run = _at(newest.listed_ns if newest else 0 if is_withdrawn else pointed_ns)
    is_running = run is not None and run.state == "running"
    if partition is None or (dataset is None and not is_withdrawn):
        if is_running:
            return DateState(name, "running", last_run=last_run)
        words = found.error or (run.words if run else "") or _why_not(newest)
        return DateState(name, "failed", words, last_run=last_run)
    seen = champion.has_seen(name, partition.version) if champion else ""
    state = DateState(name, "published", last_run=last_run, champion=seen)
    if dataset:
        state = _state_of_dataset(state, dataset, getattr(settings, _MAX_DRIFT))
    is_newer = newest and newest.listed_ns > pointed_ns and (newest.refused or _version_of(newest) != partition.version)
    why_not = _why_not(newest) if is_newer and not is_running else ""
    if is_withdrawn:
        command = _command_back(settings, partition) if dataset else ""
        return replace(state, state="withdrawn", words=found.error or why_not, command=command)
    if why_not:
        return replace(state, state="outdated", words=why_not)
    return replace(state, state="seen") if (state.state, state.champion) == ("published", "seen") else state


def _state_of_dataset(state: DateState, dataset: Dataset, max_drift: float) -> DateState:
    indexes = dict(dataset.quality.get("drift") or {})
    against = indexes.pop("against", "")
    drift = {name: float(index) for name, index in indexes.items() if isfinite(index)}  # JSON for a page has no NaN.
    largest = max(drift, key=lambda each: drift[each], default="")
    state = replace(
        state,
        version=dataset.version,
        examples=sum(split.examples for split in dataset.splits.values()),
        rejected=dataset.rejected["count"],
        drift=drift.get(largest),
    )
    if not largest or drift[largest] <= max_drift:
        return state
    above = f"the drift of {largest} is {drift[largest]:.2f}, above {_MAX_DRIFT}={max_drift:g}"
    return replace(state, state="drift", words=f"{above}, compared with version {against}")


def _command_back(settings: Settings, withdrawn: Partition) -> str:
    """Return the command that brings a withdrawn date back."""
    places = {name: getattr(settings, name) for name in ("dataset_name", "workspace", "publish_uri")}
    given = "".join(f" --set {shlex.quote(f'{name}={value}')}" for name, value in places.items() if value)
    return f"python -m pipeline partition {withdrawn.partition} {withdrawn.version}{given}"


def _why_not(newest: Listed | None) -> str:
    """Return why the version of the newest listing is not published."""
    if newest is None:
        return ""
    return newest.refused or (
        f"version {_version_of(newest)} was planned, but is not published: its run is under way, or it was stopped"
    )


def _version_of(listed: Listed) -> str:
    return listed.dataset.rpartition("/")[2]


def _at(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="seconds") if unix_ns else ""


def _champion_of(settings: Settings, folder: Place) -> tuple[_Champion | None, str]:
    """Return the champion with the dates on which it was trained, or None and why it is unknown."""
    try:
        champion = pointer_of(place_of(settings.workspace), settings.dataset_name).champion
        if champion is None:
            return None, ""
        version = str(champion.dataset_version)
        # It becomes a part of a path.
        window = folder / "windows" / version if _VERSION.fullmatch(version) else None
        partitions = load_allowed(window).window if window and is_committed(window) else {}
    except BadInput as error:
        return None, str(error)
    return _Champion(champion.run, partitions, frozenset(partitions.values()) or frozenset({version})), ""


def _days(states: Sequence[DateState], gaps: Sequence[Gap], steps: Steps) -> dict[str, str]:
    known = [(each.date[:10], each.state) for each in states]
    missing = [(day, "missing") for gap in gaps if (step := steps.of(gap.first)) for day in missing_days(gap, step)]
    worst_last = sorted([*known, *missing], key=lambda pair: -list(STATES).index(pair[1]))
    return dict(sorted(dict(worst_last).items())[-MAX_DAYS:])
