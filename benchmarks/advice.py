"""Compare predicted gains with measured ones: a training, the advice on it, and the training with the change.

    make bench-advice
    python -m benchmarks.advice [--only NAME] [--predict] [--table [FILE ...]] [--again] [--quick]

Each pair is a job and a change. The job is trained once, `tenfold advise` predicts what the change gains, and then the
job and all of its changes are trained in turn, in alternating order. Each training is a slice of `.bench/advice/
slices.jsonl`, and each pair a result of `.bench/advice/results.jsonl`. So a stopped benchmark goes on with the next
slice. A slice that other programs disturbed does not count. If the slices of a job differ, there are more of them. Only
slices and results of this code, this machine and these jobs count (`benchmarks.harness.origin`).

The record of one training of each job is kept. `--predict` predicts again from these records, which takes seconds for
each job, and measures only what is missing. `--table` prints the stored results, together with those of further files,
which may be of other machines.
The models and datasets are those of `benchmarks.verdicts`.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import hypot, inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import verdicts
from benchmarks.harness.machine import HOME, say
from benchmarks.harness.origin import PREDICTING, UNKNOWN, Origin, origin_of, parsed
from benchmarks.harness.rounds import turned
from benchmarks.known_limits.jobs import Job
from benchmarks.known_limits.pairs import PAIRS, Pair
from benchmarks.known_limits.surroundings import NotPossible
from benchmarks.verdicts import (
    DISTURBED_CORES,
    SURROUNDINGS,
    Place,
    answer,
    command,
    dataset_of,
    description,
    images_per_s,
)
from pipeline.config.automatic import training_settings
from pipeline.monitor.epochs import usual_epochs, whole_epochs
from pipeline.monitor.load import load_of
from pipeline.monitor.record import read
from pipeline.monitor.verdict import diagnose_run
from pipeline.tuning.predictions import GIGABYTES, Facts, predictions

FOLDER = HOME / "advice"
NOT_PREDICTED = "not predicted"
"""The reason of a pair whose change has no prediction. It counts as a miss."""
CLOSE, CLOSE_SHARE, MAX_ERROR = 0.25, 0.9, 0.10
"""CLOSE_SHARE of the predictions must have an error of at most CLOSE. Their median error must be at most MAX_ERROR."""
ROUNDS, MORE_ROUNDS = 2, 2
"""Slices of each job, and how many more there are if some were disturbed or are not steady."""
STEADY = 0.05
"""The slices of a job are steady if they reach this far to both sides of their median, as a share of it."""
LARGE = ("model.keras", "export", "comet", "checkpoints", "report.html")
"""What is not kept of a training."""


@dataclass(frozen=True)
class Result:
    """What was predicted and measured of a pair. `reason` says why it was not run, or not predicted."""

    name: str
    limits: Sequence[str] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)
    """The factor with its interval: value, low, high."""
    measured: float = 0.0
    spread: float = 0.0
    """How far the slices reach to both sides of the measured factor, as a share of it."""
    before_per_s: float = 0.0
    after_per_s: float = 0.0
    other_cores: float = 0.0
    """Cores that other programs kept busy, in the slice in which they kept most of them busy."""
    reason: str = ""
    slices: int = 0
    """Slices of the job, or of the changed job if it has fewer."""
    origin: Origin = UNKNOWN

    @property
    def is_sound(self) -> bool:
        """Whether it counts."""
        return not self.reason and self.other_cores <= DISTURBED_CORES

    @property
    def is_new(self) -> bool:
        """Whether it takes the place of any earlier result: it is sound, or says that nothing is predicted any more."""
        return self.is_sound or self.reason == NOT_PREDICTED

    @property
    def error(self) -> float:
        """How far the prediction is from the measured factor, as a share of it."""
        return self.predicted["value"] / self.measured - 1


@dataclass(frozen=True)
class Slice:
    """One training of a job."""

    job: str
    per_s: float
    """Examples per second over whole epochs, which is what the advice predicts."""
    with_first_per_s: float
    """The same with the first epoch, which fills a cache."""
    limits: Sequence[str]
    other_cores: float
    took_s: float
    """With its start and its end, which do not count for the examples per second."""
    training: str = ""
    """Folder of the training, if its record is kept."""
    origin: Origin = UNKNOWN

    @property
    def is_sound(self) -> bool:
        """Whether it counts."""
        return self.other_cores <= DISTURBED_CORES


def main() -> int:
    """Measure the missing pairs, and print all as Markdown. Return 1 unless the predictions are as close as wanted."""
    options = parse(sys.argv[1:])
    FOLDER.mkdir(parents=True, exist_ok=True)
    verdicts.FOLDER.mkdir(parents=True, exist_ok=True)
    if options.again:
        for file in results_file(), slices_file():
            file.unlink(missing_ok=True)
        shutil.rmtree(FOLDER / "kept", ignore_errors=True)
    pairs = [pair for pair in PAIRS if options.only in pair.name][: 1 if options.quick else None]
    rounds = Rounds(1, 0) if options.quick else Rounds()
    for job in dict.fromkeys(pair.job.name for pair in pairs if options.table is None):
        missing = [pair for pair in pairs if pair.job.name == job and (options.predict or not is_done(pair))]
        begin = time.perf_counter()
        for result in results_of(missing, rounds) if missing else []:
            add_line(results_file(), result)
            found = result.reason or f"predicted {result.predicted['value']:.2f}, measured {result.measured:.2f}"
            is_disturbed = not result.reason and not result.is_sound
            others = f"; disturbed by others on {result.other_cores:.1f} cores" if is_disturbed else ""
            say(f"{result.name}: {found}{others} ({time.perf_counter() - begin:.0f} s)")
    results = load_results(pairs, *(options.table or []))
    shown = [each for pair in pairs if (each := results.get(pair.name))]
    print("\n".join([*dict.fromkeys(each.origin.line for each in shown), "", *report(shown)]), flush=True)
    return int(not are_close(pairs, results))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="NAME", help="run only pairs with this in their name")
    parser.add_argument("--predict", action="store_true", help="predict again, from the records that are kept")
    parser.add_argument(
        "--table", nargs="*", type=Path, metavar="FILE", help="print the stored results, and those of further files"
    )
    parser.add_argument("--again", action="store_true", help="delete the stored results and slices first")
    parser.add_argument("--quick", action="store_true", help="run one pair, to see that it works")
    return parser.parse_args(arguments)


# --- files ------------------------------------------------------------------------------------------------------------


def results_file() -> Path:
    """Return the file of the results: a line of JSON for each. The last result of a pair that `is_new` counts."""
    return FOLDER / "results.jsonl"


def slices_file() -> Path:
    """Return the file of the slices: a line of JSON for each."""
    return FOLDER / "slices.jsonl"


def add_line(path: Path, line: Any) -> None:
    """Add a dataclass to a file."""
    with open(path, "a") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def load_results(pairs: Sequence[Pair], *further: Path) -> dict[str, Result]:
    """Return the results of pairs so far, by their names.

    Those of further files may be of other machines.
    """
    origins = {pair.name: result_origin(pair) for pair in pairs}
    found: dict[str, Result] = {}
    for path in (*further, results_file()):
        for result in (parsed(Result, line) for line in lines_of(path) if line["name"] in origins):
            now = origins[result.name]
            is_of_code = result.origin.is_like(replace(now, machine=result.origin.machine) if path in further else now)
            is_better = result.is_new or result.name not in found or not found[result.name].is_new
            if is_of_code and is_better:
                found[result.name] = result
    return found


def load_slices(job: Job) -> list[Slice]:
    """Return the slices of a job: the sound ones, or all if none is sound."""
    now = slice_origin(job)
    found = [parsed(Slice, line) for line in lines_of(slices_file()) if line["job"] == job.name]
    found = [each for each in found if each.origin.is_like(now)]
    return [each for each in found if each.is_sound] or found


def slice_origin(job: Job) -> Origin:
    """Return the origin of a slice that is measured now. The code that predicts does not matter for it."""
    return origin_of(description(job), without=PREDICTING)


def result_origin(pair: Pair) -> Origin:
    """Return the origin of a result that is predicted and measured now."""
    return origin_of(description(pair.job), description(pair.changed))


def is_done(pair: Pair) -> bool:
    """Whether there is a sound result of a pair, of as many slices as it needs."""
    result = load_results([pair]).get(pair.name)
    return result is not None and result.is_sound and result.slices >= ROUNDS


# --- trainings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """Number of slices of each job, and of further ones if some were disturbed or are not steady."""

    count: int = ROUNDS
    more: int = MORE_ROUNDS


def measure(jobs: Sequence[Job], rounds: Rounds) -> dict[str, str]:
    """Run the missing slices of jobs, in alternating order. Return why some are not possible, by their names."""
    reasons: dict[str, str] = {}
    for job in jobs:
        try:
            if not job.own_input:
                dataset_of(job)
        except NotPossible as error:
            reasons[job.name] = str(error)
    os.sync()  # A disk that still writes the datasets would slow down the first slices.
    for number in range(rounds.count + rounds.more):
        for job in turned(jobs, number):
            sound = [each for each in load_slices(job) if each.is_sound]
            is_missing = len(sound) < rounds.count or spread_of(rates_of(sound)) > STEADY
            if job.name in reasons or len(sound) > number or not is_missing:
                continue
            try:
                add_line(slices_file(), run(job, is_kept=not sound))
            except NotPossible as error:
                reasons[job.name] = str(error)
    return reasons


def rates_of(slices: Sequence[Slice], *, with_first: bool = False) -> list[float]:
    """Return the examples per second of slices. `with_first` counts the first epoch, too."""
    return [each.with_first_per_s if with_first else each.per_s for each in slices]


def spread_of(rates: Sequence[float]) -> float:
    """Return how far rates reach to both sides of their median, as a share of it."""
    return (max(rates) - min(rates)) / 2 / median(rates)


def run(job: Job, *, is_kept: bool) -> Slice:
    """Run a job. Raises NotPossible."""
    begin = time.perf_counter()
    with ExitStack() as stack:
        origin = slice_origin(job)
        # Costs of stages that other code measured are not in this folder.
        folder = FOLDER / "kept" / "-".join([*re.findall(r"\w+", job.name), origin.digest])
        if is_kept:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER)))
        place = stack.enter_context(SURROUNDINGS[job.around](job, folder))
        result = answer(job.name, [*place.prefix, *command(job, place, folder)], place)
        trained = Path(result["run"])
        found = Slice(
            job=job.name,
            per_s=images_per_s(trained) if job.own_input else examples_per_s(trained, with_first=False),
            with_first_per_s=images_per_s(trained) if job.own_input else examples_per_s(trained, with_first=True),
            limits=result["limits"],
            other_cores=load_of(read(trained / "record", "samples")).other_cores or 0.0,
            took_s=time.perf_counter() - begin,
            training=str(trained) if is_kept else "",
            origin=origin,
        )
        for large in (folder / "local", *(trained / name for name in LARGE)):
            large.unlink() if large.is_file() else shutil.rmtree(large, ignore_errors=True)
        return found


def examples_per_s(trained: Path, *, with_first: bool) -> float:
    """Return the examples per second over whole epochs, which is what the advice predicts.

    Nothing says when the first epoch began. So it counts only if there is no other epoch, or `with_first`. Raises
    NotPossible if no epoch is whole.
    """
    epochs = whole_epochs(trained / "record")
    if epochs.empty:
        raise NotPossible(f"the record in {trained} has no whole epoch")
    counted = epochs if with_first else usual_epochs(epochs)
    return float(counted["examples"].sum() / counted["whole_s"].sum())


def advice_on(job: Job, *options: str) -> dict[str, Any]:
    """Return what `tenfold advise` says of the kept training of a job. The first call measures its stages.

    Raises NotPossible.
    """
    training = kept(job)
    with surroundings_of(job) as place:
        command = [*place.prefix, sys.executable, "-m", "pipeline", "advise", str(training), "--json", *options]
        return answer(f"advice on {job.name}", command, place)


@contextmanager
def surroundings_of(job: Job) -> Iterator[Place]:
    """Set up the surroundings of a job, in which the dataset of its kept training exists. Raises NotPossible."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, SURROUNDINGS[job.around](job, Path(folder)) as place:
        yield place


def kept(job: Job) -> Path:
    """Return the folder of the training of a job whose record is kept."""
    return Path(next(each.training for each in reversed(load_slices(job)) if each.training))


# --- pairs ------------------------------------------------------------------------------------------------------------


def results_of(pairs: Sequence[Pair], rounds: Rounds) -> Iterator[Result]:
    """Yield the results of pairs with the same job, whose trainings alternate. Predict before the changes are run."""
    job = pairs[0].job
    reasons = {pair.name: reason for reason in measure([job], Rounds(1, rounds.more)).values() for pair in pairs}
    predictions_of: dict[str, Mapping[str, float]] = {}
    for pair in pairs if not reasons else []:
        try:
            predictions_of[pair.name] = predicted(pair)
        except NotPossible as error:
            reasons[pair.name] = str(error)
    tried = [pair for pair in pairs if predictions_of.get(pair.name)]
    failed = measure([job, *(pair.changed for pair in tried)], rounds) if tried else {}
    before = load_slices(job)
    limits = before[0].limits if before else ()
    for pair in pairs:
        if reason := reasons.get(pair.name) or failed.get(job.name) or failed.get(pair.changed.name):
            yield Result(pair.name, limits, reason=reason, origin=result_origin(pair))
            continue
        if pair not in tried:
            yield Result(pair.name, limits, reason=NOT_PREDICTED, origin=result_origin(pair))
            continue
        after = load_slices(pair.changed)
        old, new = (rates_of(slices, with_first="cache" in pair.change) for slices in (before, after))
        yield Result(
            name=pair.name,
            limits=limits,
            predicted=predictions_of[pair.name],
            measured=median(new) / median(old),
            spread=hypot(spread_of(old), spread_of(new)),
            before_per_s=median(old),
            after_per_s=median(new),
            other_cores=max(each.other_cores for each in (*before, *after)),
            slices=min(len(old), len(new)),
            origin=result_origin(pair),
        )


def predicted(pair: Pair) -> Mapping[str, float]:
    """Return the factor that is predicted for the change of a pair; empty if it is not predicted."""
    job = pair.job
    if job.own_input:  # It has no settings, and its stages are not those of Tenfold.
        settings = training_settings({"prefetch_batches": job.prefetched})
        found = [each.as_json() for each in predictions(Facts(diagnose_run(kept(job)), settings))]
    else:
        # Of a simulated accelerator, the other changes follow from the record, and measuring takes half a minute.
        of_record = "simulated_step_ms" in job.settings and not (
            pair.is_hardware or {"prepare", "cache"} & pair.change.keys()
        )
        advised = advice_on(job, *(["--from-record"] if of_record else []))
        if pair.is_hardware and GIGABYTES not in pair.change:
            options = [
                word for name, value in pair.change.items() for word in (f"--{name.replace('_', '-')}", str(value))
            ]
            other = advice_on(job, *options)
            now = advised["examples_per_s"]["value"]
            return {name: rate / now for name, rate in other["examples_per_s"].items()}
        found = advised["predictions"]
    # The kernel lets more bytes through than its limit says, so a disk of twice the limit is one of twice the speed in
    # the record, which is what the advice predicts.
    change = {} if GIGABYTES in pair.change else pair.change
    of_change = (each for each in found if pair.change.keys() <= each["change"].keys())
    return next((each["factor"] for each in of_change if change.items() <= each["change"].items()), {})


# --- tables -----------------------------------------------------------------------------------------------------------


def report(results: Sequence[Result]) -> Iterator[str]:
    """Yield the table of all pairs, and how often the predictions are right, as lines of Markdown."""
    yield "| pair | limits | predicted | measured | error |"
    yield "|---|---|---|---|---|"
    for each in results:
        if each.reason:
            yield f"| {each.name} | {' and '.join(each.limits)} | {each.reason} | | |"
            continue
        value, low, high = (each.predicted[name] for name in ("value", "low", "high"))
        error = f"{each.error:+.0%}" if each.is_sound else "disturbed"
        spread = f" ±{each.spread:.0%}" if each.slices > 1 else ""
        factors = f"{value:.2f} ({low:.2f} to {high:.2f}) | {each.measured:.2f}{spread}"
        yield f"| {each.name} | {' and '.join(each.limits)} | {factors} | {error} |"
    sound = [each for each in results if each.is_sound]
    missed = sum(each.reason == NOT_PREDICTED for each in results)
    if not sound:
        return
    errors = [abs(each.error) for each in sound]
    close = sum(error <= CLOSE for error in errors)
    inside = sum(each.predicted["low"] <= each.measured <= each.predicted["high"] for each in sound)
    yield ""
    yield (
        f"{len(sound) + missed} of {len(PAIRS)} pairs, {missed} of them without a prediction. The median error of the "
        f"others is {median(errors):.1%} (at most {MAX_ERROR:.0%} wanted). Of all of these pairs, {close} predictions "
        f"({close / (len(sound) + missed):.0%}) are within {CLOSE:.0%} ({CLOSE_SHARE:.0%} wanted), and {inside} "
        "measured factors are within the interval."
    )


def are_close(pairs: Sequence[Pair], results: Mapping[str, Result]) -> bool:
    """Return whether the predictions of pairs are as close as wanted. A pair without a sound result is a miss."""
    found = [results.get(pair.name) for pair in pairs]
    errors = [abs(each.error) if each and each.is_sound else inf for each in found]
    close = sum(error <= CLOSE for error in errors)
    return bool(errors) and median(errors) <= MAX_ERROR and close >= CLOSE_SHARE * len(errors)


if __name__ == "__main__":
    sys.exit(main())
