"""Compare predicted gains with measured ones: a training, the advice on it, and the training with the change.

    make bench-advice
    python -m benchmarks.advice [--only NAME] [--again] [--quick]

Each pair runs its job, asks `tenfold advise` for the prediction, and runs the changed job. The result is stored in
`.bench/advice/results.jsonl` at once, so a stopped benchmark goes on with the next pair. A pair that other programs
disturb, or that this machine does not allow, is measured again by the next call. The models and datasets are those of
`benchmarks.verdicts`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import verdicts
from benchmarks.harness.machine import HOME, machine_line, say
from benchmarks.known_limits.jobs import Job
from benchmarks.known_limits.pairs import PAIRS, Pair
from benchmarks.known_limits.surroundings import NotPossible
from benchmarks.verdicts import DISTURBED_CORES, SURROUNDINGS, Place, answer, command, images_per_s
from pipeline.config.automatic import training_settings
from pipeline.monitor.epochs import usual_epochs, whole_epochs
from pipeline.monitor.load import load_of
from pipeline.monitor.record import read
from pipeline.monitor.verdict import diagnose_run
from pipeline.tuning.predictions import Facts, predictions

FOLDER = HOME / "advice"
NOT_PREDICTED = "not predicted"
"""The reason of a pair whose change has no prediction. It counts as a miss."""
CLOSE, MAX_ERROR = 0.25, 0.10
"""Errors of a prediction: most must be below the first, and their median below the second."""


@dataclass(frozen=True)
class Result:
    """What was predicted and measured of a pair. `reason` says why it was not run, or not predicted."""

    name: str
    limits: Sequence[str] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)
    """The factor with its interval: value, low, high."""
    measured: float = 0.0
    before_per_s: float = 0.0
    after_per_s: float = 0.0
    other_cores: float = 0.0
    """Cores that other programs kept busy, in the run in which they kept more of them busy."""
    reason: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether it counts."""
        return not self.reason and self.other_cores <= DISTURBED_CORES

    @property
    def error(self) -> float:
        """How far the prediction is from the measured factor, as a share of it."""
        return self.predicted["value"] / self.measured - 1


@dataclass(frozen=True)
class Ran:
    """A training that ended."""

    per_s: float
    limits: Sequence[str]
    other_cores: float
    factor: Mapping[str, float] = field(default_factory=dict)


def main() -> None:
    """Measure the missing pairs, and print all as Markdown."""
    options = parse(sys.argv[1:])
    FOLDER.mkdir(parents=True, exist_ok=True)
    verdicts.FOLDER.mkdir(parents=True, exist_ok=True)
    if options.again:
        results_file().unlink(missing_ok=True)
    pairs = [pair for pair in PAIRS if options.only in pair.name][: 1 if options.quick else None]
    for number, pair in enumerate(pairs, 1):
        before = load_results().get(pair.name)
        if before and before.is_sound:
            continue
        begin, result = time.perf_counter(), measured(pair)
        with open(results_file(), "a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        found = result.reason or f"predicted {result.predicted['value']:.2f}, measured {result.measured:.2f}"
        disturbed = (
            f"; disturbed by others on {result.other_cores:.1f} cores"
            if not result.reason and not result.is_sound
            else ""
        )
        say(f"{number} of {len(pairs)}, {pair.name}: {found}{disturbed} ({time.perf_counter() - begin:.0f} s)")
    print(machine_line("tensorflow"))
    print("\n".join(["", *report([each for pair in pairs if (each := load_results().get(pair.name))])]), flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="NAME", help="run only pairs with this in their name")
    parser.add_argument("--again", action="store_true", help="delete the stored results first")
    parser.add_argument("--quick", action="store_true", help="run one pair, to see that it works")
    return parser.parse_args(arguments)


def results_file() -> Path:
    """Return the file of the results: a line of JSON for each. The last result of a pair counts."""
    return FOLDER / "results.jsonl"


def load_results() -> dict[str, Result]:
    """Return the results so far, by the names of the pairs."""
    if not results_file().exists():
        return {}
    found = (Result(**json.loads(line)) for line in results_file().read_text().splitlines())
    return {result.name: result for result in found}


# --- pairs ------------------------------------------------------------------------------------------------------------


def measured(pair: Pair) -> Result:
    """Run both trainings of a pair, and compare them with the prediction."""
    try:
        is_kept = "cache" in pair.change
        before = run(pair.job, pair, with_first=is_kept)
        if not before.factor:
            return Result(pair.name, before.limits, reason=NOT_PREDICTED)
        after = run(pair.changed, with_first=is_kept)
    except NotPossible as error:
        return Result(pair.name, reason=str(error))
    return Result(
        name=pair.name,
        limits=before.limits,
        predicted=before.factor,
        measured=after.per_s / before.per_s,
        before_per_s=before.per_s,
        after_per_s=after.per_s,
        other_cores=max(before.other_cores, after.other_cores),
    )


def run(job: Job, pair: Pair | None = None, *, with_first: bool = False) -> Ran:
    """Run a job, and with a pair, ask what its change would gain. Raises NotPossible.

    With `with_first`, the first epoch counts, too: it fills a cache.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=verdicts.FOLDER)))
        place = stack.enter_context(SURROUNDINGS[job.around](job, folder))
        result = answer(job.name, [*place.prefix, *command(job, place, folder)], place)
        trained = Path(result["run"])
        return Ran(
            per_s=examples_per_s(trained, with_first=with_first),
            limits=result["limits"],
            other_cores=load_of(read(trained / "record", "samples")).other_cores or 0.0,
            factor=predicted(job, pair, trained, place) if pair else {},
        )


def examples_per_s(trained: Path, *, with_first: bool) -> float:
    """Return the examples per second over whole epochs, which is what the advice predicts.

    Nothing says when the first epoch began. So it counts only if there is no other epoch, or `with_first`.
    """
    epochs = whole_epochs(trained / "record")
    if epochs.empty:  # An own input has no epochs.
        return images_per_s(trained)
    counted = epochs if with_first else usual_epochs(epochs)
    return float(counted["examples"].sum() / counted["whole_s"].sum())


def predicted(job: Job, pair: Pair, trained: Path, place: Place) -> Mapping[str, float]:
    """Return the factor that is predicted for the change of a pair; empty if it is not predicted."""
    if job.own_input:  # It has no settings, and its stages are not those of Tenfold.
        settings = training_settings({"prefetch_batches": job.prefetched})
        found = [each.as_json() for each in predictions(Facts(diagnose_run(trained), settings))]
    else:
        # The other changes follow from the record, and measuring the stages takes a minute.
        of_stages = pair.is_hardware or {"prepare", "cache"} & pair.change.keys()
        advised = _advised(job, trained, place, *([] if of_stages else ["--from-record"]))
        if pair.is_hardware:
            options = [
                word for name, value in pair.change.items() for word in (f"--{name.replace('_', '-')}", str(value))
            ]
            other = _advised(job, trained, place, *options)
            now = advised["examples_per_s"]["value"]
            return {name: rate / now for name, rate in other["examples_per_s"].items()}
        found = advised["predictions"]
    return next((each["factor"] for each in found if pair.change.items() <= each["change"].items()), {})


def _advised(job: Job, trained: Path, place: Place, *options: str) -> dict[str, Any]:
    command = [*place.prefix, sys.executable, "-m", "pipeline", "advise", str(trained), "--json", *options]
    return answer(f"advice on {job.name}", command, place)


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
        factors = f"{value:.2f} ({low:.2f} to {high:.2f}) | {each.measured:.2f}"
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
        f"({close / (len(sound) + missed):.0%}) are within {CLOSE:.0%}, and {inside} measured factors are within the "
        "interval."
    )


if __name__ == "__main__":
    main()
