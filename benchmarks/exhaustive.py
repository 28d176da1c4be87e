"""Compare the change that the advice chooses with all that it may propose: an exhaustive search in 12 jobs.

    make bench-exhaustive
    python -m benchmarks.exhaustive [--only NAME] [--two] [--again] [--table] [--quick]

Each job of `benchmarks.known_limits.candidates` is trained as it is, and with each change of a setting that `tenfold
advise` may propose, whatever limits the job. With `--two`, it is also trained with the best of these changes together
with each other one, which takes about twice as long. The job, the changes that come close to the best, and the one that
the advice chooses are trained again, in alternating order.

Only a few epochs of each training are run. Trainings of EPOCHS epochs are compared: the epochs that are not run count
as long as those after the first. The advice predicts for EPOCHS epochs, too.

The trainings are those of `benchmarks.advice`: both store each of them in `.bench/advice/slices.jsonl` at once, and use
the slices of each other. The result of each job is stored in `.bench/advice/searches.jsonl`.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import advice, verdicts
from benchmarks.advice import (
    ROUNDS,
    Rounds,
    add_line,
    advice_on,
    kept,
    lines_of,
    load_slices,
    measure,
    rates_of,
    surroundings_of,
)
from benchmarks.harness.machine import say
from benchmarks.harness.origin import UNKNOWN, Origin, origin_of, parsed
from benchmarks.known_limits.candidates import alone, searched_jobs, together
from benchmarks.known_limits.jobs import Job
from benchmarks.known_limits.pairs import Pair
from benchmarks.known_limits.surroundings import NotPossible
from benchmarks.verdicts import DISTURBED_CORES, dataset_of, description
from pipeline.commands.advise import facts_of_run
from pipeline.config.allowed import open_unless_set
from pipeline.dataset.manifest import load
from pipeline.runs.run import load_run
from pipeline.tuning.predictions import CORES, GIGABYTES, Facts, predictions
from pipeline.tuning.result import MIN_GAIN

NOTHING = "nothing"
"""What is chosen if no change gains anything."""
CLOSE = 0.85
"""A change that reaches this share of the best one may be the best one. So it is trained again."""
ENOUGH, MIN_JOBS, JOBS_WANTED = 0.9, 11, 12
"""The share of the best change that the chosen one should reach, and in how many of the jobs it should."""
LONGER = 5
"""If the change that would gain most is not sure, the advice gets a record of this many times the epochs."""
EPOCHS = 100
"""Trainings of this many epochs are compared. For the few epochs that are run, the advice would rightly avoid a cost
that comes once: the preparation of a dataset takes about as long as an epoch."""


@dataclass(frozen=True)
class Search:
    """The changes of a job, and the chosen one."""

    job: str
    limits: Sequence[str] = ()
    chosen: str = NOTHING
    factors: Mapping[str, float] = field(default_factory=dict)
    """How many times more examples per second the job trains with each change, or with two of them."""
    train_s: float = 0.0
    """Seconds of EPOCHS epochs without a change."""
    once_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the advice names for the preparation of the dataset, by the change."""
    other_cores: float = 0.0
    """Cores that other programs kept busy, in the slice in which they kept most of them busy."""
    reason: str = ""
    slices: int = 0
    """Slices of the job, or of one of the changes that come close to the best if it has fewer."""
    with_two: bool = False
    """Whether the best change was also tried together with each other one."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a change was not tried, by its name."""
    origin: Origin = UNKNOWN

    @property
    def is_sound(self) -> bool:
        """Whether it counts."""
        return not self.reason and self.other_cores <= DISTURBED_CORES

    @property
    def best(self) -> str:
        """The change, or the two changes, with which it trains fastest."""
        return max(self.factors, key=lambda name: self.factors[name])

    @property
    def share(self) -> float:
        """The share of the best speed that the chosen change reaches."""
        return self.factors[self.chosen] / self.factors[self.best]

    @property
    def share_of_time(self) -> float:
        """The shortest time of any change as a share of that of the chosen one, both with the one-time preparation."""
        seconds = {name: self.train_s / factor + self.once_s.get(name, 0.0) for name, factor in self.factors.items()}
        return min(seconds.values()) / seconds[self.chosen]


def main() -> int:
    """Search the missing jobs, and print all as Markdown. Return 1 unless the chosen changes are as fast as wanted."""
    options = parse(sys.argv[1:])
    open_unless_set()  # The facts of a training are read in this process.
    for folder in advice.FOLDER, verdicts.FOLDER:
        folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        searches_file().unlink(missing_ok=True)
    jobs = [job for job in searched_jobs() if options.only in job.name][: 1 if options.quick else None]
    for job in [] if options.table else jobs:
        before = load_searches([job]).get(job.name)
        if before and before.is_sound and before.slices >= ROUNDS and before.with_two == options.two:
            continue
        begin = time.perf_counter()
        search = searched(job, Rounds(1, 0) if options.quick else Rounds(), with_two=options.two)
        add_line(searches_file(), search)
        found = search.reason or f"chosen: {search.chosen}; best: {search.best}; {search.share:.0%}"
        disturbed = "" if search.is_sound or search.reason else f"; disturbed on {search.other_cores:.1f} cores"
        say(f"{job.name}: {found}{disturbed} ({time.perf_counter() - begin:.0f} s)")
    searches = load_searches(jobs)
    shown = [searches[job.name] for job in jobs if job.name in searches]
    print("\n".join([*dict.fromkeys(each.origin.line for each in shown), "", *report(shown)]), flush=True)
    return int(not are_fast(jobs, searches))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exhaustive", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="NAME", help="search only jobs with this in their name")
    parser.add_argument("--two", action="store_true", help="also try the best change together with each other one")
    parser.add_argument("--again", action="store_true", help="delete the stored results first, but not the slices")
    parser.add_argument("--table", action="store_true", help="print the stored results")
    parser.add_argument("--quick", action="store_true", help="search one job, with one slice of each change")
    return parser.parse_args(arguments)


def searches_file() -> Path:
    """Return the file of the results: a line of JSON for each. The last result of a job counts."""
    return advice.FOLDER / "searches.jsonl"


def load_searches(jobs: Sequence[Job]) -> dict[str, Search]:
    """Return the results of jobs so far, by their names. Those of other code or machines do not count."""
    found = [parsed(Search, line) for line in lines_of(searches_file())]
    origins = {job.name: search_origin(job) for job in jobs}
    return {each.job: each for each in found if each.job in origins and each.origin.is_like(origins[each.job])}


def search_origin(job: Job) -> Origin:
    """Return the origin of a search that is made now."""
    return origin_of(f"{EPOCHS} epochs", description(job), *(description(each.changed) for each in alone(job)))


# --- search -----------------------------------------------------------------------------------------------------------


def searched(job: Job, rounds: Rounds, *, with_two: bool) -> Search:
    """Train a job with each change, and `with_two` with pairs of them, and compare the chosen one with the best one."""
    first = Rounds(1, rounds.more)
    left_out: dict[str, str] = {}

    def possible(changes: Sequence[Pair], rounds: Rounds) -> list[Pair]:
        """Run the job and its changes in turn, and return the possible ones. Raises NotPossible if the job is not."""
        reasons = measure([job, *(each.changed for each in changes)], rounds)
        if job.name in reasons:
            raise NotPossible(reasons[job.name])
        left_out.update({_name(each): reasons[each.name] for each in changes if each.name in reasons})
        return [each for each in changes if each.name not in reasons]

    try:
        possible([], first)
        advised = advised_for(job)
        singles = possible([*alone(job)], first)
        if not singles:
            raise NotPossible(next(iter(left_out.values())))
        pairs = together(max(singles, key=_rate), singles) if with_two else []
        tried = [*singles, *possible(pairs, first)]
        chosen = _chosen(advised, singles)
        best = max(map(_rate, tried))
        close = possible([each for each in tried if each is chosen or _rate(each) >= CLOSE * best], rounds)
    except NotPossible as error:
        return Search(job.name, reason=str(error), with_two=with_two, origin=search_origin(job))
    slices = [*load_slices(job), *(one for each in tried for one in load_slices(each.changed))]
    rates = {NOTHING: rate_of(job), **{_name(each): _rate(each) for each in tried}}
    examples = load(dataset_of(job)).splits["train"].examples * EPOCHS
    return Search(
        job=job.name,
        limits=load_slices(job)[0].limits,
        chosen=_name(chosen) if chosen else NOTHING,
        factors={name: rate / rates[NOTHING] for name, rate in rates.items()},
        train_s=examples / rates[NOTHING],
        once_s={_name(each): seconds for each in tried if (seconds := _once_s(each, advised))},
        other_cores=max(each.other_cores for each in slices),
        slices=min(len(load_slices(each)) for each in (job, *(each.changed for each in close))),
        with_two=with_two,
        left_out=left_out,
        origin=search_origin(job),
    )


def advised_for(job: Job) -> list[dict[str, Any]]:
    """Return what `tenfold advise` predicts for a job, as if its training had EPOCHS epochs. Raises NotPossible.

    The record of a few seconds may say too little. Then the job is trained for longer first, as the docs recommend.
    """
    advised = _advised_by_record(job)
    first = next((each for each in advised if not _is_hardware(each) and each["factor"]["value"] >= MIN_GAIN), None)
    if first is None or first["is_gain"]:
        return advised
    epochs = LONGER * job.settings["epochs"]
    longer = replace(job, name=f"{job.name}, longer", settings={**job.settings, "epochs": epochs})
    if reasons := measure([longer], Rounds(1, 0)):
        raise NotPossible(reasons[longer.name])
    return _advised_by_record(longer)


def _advised_by_record(job: Job) -> list[dict[str, Any]]:
    advice_on(job)  # It measures the stages in the surroundings of the job.
    with surroundings_of(job):
        facts = facts_of_run(load_run(kept(job)), is_measured=False)
    return with_many_epochs(facts)


def with_many_epochs(facts: Facts) -> list[dict[str, Any]]:
    """Return what is predicted of a training, as if it had EPOCHS epochs."""
    facts = replace(facts, settings=facts.settings.model_copy(update={"epochs": EPOCHS}))
    return [each.as_json() for each in predictions(facts)]


def _chosen(advised: Sequence[Mapping[str, Any]], singles: Sequence[Pair]) -> Pair | None:
    """Return the change that the advice chooses; None if nothing gains. Raises NotPossible if it was not tried."""
    gains = [each["change"] for each in advised if each["is_gain"] and not _is_hardware(each)]
    if not gains:
        return None
    for each in singles:
        if each.change.items() <= gains[0].items():
            return each
    raise NotPossible(f"the advice chooses {gains[0]}, which was not tried")


def _is_hardware(prediction: Mapping[str, Any]) -> bool:
    return bool({CORES, GIGABYTES} & prediction["change"].keys())


def _once_s(pair: Pair, advised: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds that the advice names for a change of the dataset."""
    named = (each for each in advised if each["needs_dataset"] and pair.change.items() <= each["change"].items())
    return next((60 * float(each["costs"]["minutes"]) for each in named), 0.0)


def _rate(pair: Pair) -> float:
    return rate_of(pair.changed)


def rate_of(job: Job) -> float:
    """Return the examples per second of a job over EPOCHS epochs.

    Those after the epochs that were run are as fast as the ones after the first, which may fill a cache.
    """
    slices, run = load_slices(job), job.settings["epochs"]
    with_first, later = (median(rates_of(slices, with_first=each)) for each in (True, False))
    epochs = max(EPOCHS, run)
    return float(epochs / (run / with_first + (epochs - run) / later))


def _name(pair: Pair) -> str:
    return ", ".join(f"{name}={value}" for name, value in pair.change.items())


# --- table ------------------------------------------------------------------------------------------------------------


def report(searches: Sequence[Search]) -> Iterator[str]:
    """Yield the table of the jobs, and how often the chosen change is good enough, as lines of Markdown."""
    yield "| job | limits | chosen | times faster | best | times faster | share | share of the time |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in searches:
        limits = " and ".join(each.limits)
        without = "; ".join(f"{name}: {reason}" for name, reason in each.left_out.items())
        job = f"{each.job} (without {without})" if without else each.job
        if each.reason:
            yield f"| {job} | {limits} | {each.reason} | | | | | |"
            continue
        shares = f"{each.share:.0%} | {each.share_of_time:.0%}" if each.is_sound else "disturbed |"
        factors = (f"{name} | {each.factors[name]:.2f}" for name in (each.chosen, each.best))
        yield f"| {job} | {limits} | {' | '.join(factors)} | {shares} |"
    sound = [each for each in searches if each.is_sound]
    changes = sum(len(each.factors) - 1 for each in sound)
    kinds = "changes and pairs of changes" if any(each.with_two for each in sound) else "changes"
    enough, of_time = (sum(getattr(each, name) >= ENOUGH for each in sound) for name in ("share", "share_of_time"))
    yield ""
    yield (
        f"In {enough} of {len(searches)} jobs, the training of {EPOCHS} epochs with the chosen change reaches "
        f"{ENOUGH:.0%} of the speed of the best one of {changes} {kinds} ({MIN_JOBS} of {JOBS_WANTED} wanted). With "
        f"the time for the one-time preparation of the dataset, as the advice names it, it is {of_time}. Jobs without "
        f"a sound result: {len(searches) - len(sound)}."
    )


def are_fast(jobs: Sequence[Job], searches: Mapping[str, Search]) -> bool:
    """Return whether the chosen changes of jobs are as fast as wanted. A job without a sound result is a miss."""
    found = [searches.get(job.name) for job in jobs]
    enough = sum(bool(each and each.is_sound and each.share >= ENOUGH) for each in found)
    return enough >= max(1, ceil(len(jobs) * MIN_JOBS / JOBS_WANTED))


if __name__ == "__main__":
    sys.exit(main())
