"""Compare verdicts with the known limits of real trainings, alone and beside other programs, and measure the advice.

    make bench-verdicts
    python -m benchmarks.verdicts [--only NAME] [--load alone|beside] [--again] [--quick]

Each job runs once alone, and once beside three programs for each core that compute all the time. Its result is stored
in `.bench/verdicts/results.jsonl` at once, so a stopped benchmark goes on with the next job. `--again` begins from the
first job. If other programs disturb a job that should run alone, its result is left out, and the next call measures it
again. A job that this machine does not allow (a control group, a loop device) is listed with the reason. The jobs as if
on 64 cores are not run: their numbers are computed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import CORES, HOME, logs, machine_line, say
from benchmarks.harness.origin import PREDICTING, UNKNOWN, Origin, origin_of, parsed
from benchmarks.harness.rounds import ENVIRONMENT, ROOT
from benchmarks.known_limits import surroundings
from benchmarks.known_limits.datasets import DATA, Data, built, command_of
from benchmarks.known_limits.jobs import CHANGES, COMMON, COMMON_OF_ROWS, EACH_EPOCH, JOBS, Change, Job
from benchmarks.known_limits.many_cores import CORES as MANY
from benchmarks.known_limits.many_cores import MANY_CORES, ManyCores
from benchmarks.known_limits.own_inputs import MAPPED, MAPPED_MB
from benchmarks.known_limits.surroundings import NotPossible
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import load_of
from pipeline.monitor.record import read

FOLDER = HOME / "verdicts"
ALONE, BESIDE = "alone", "beside"
"""The loads of a job: without other programs, and beside them."""
DISTURBED_CORES = 0.35
"""Cores that other programs kept busy beside a job that should run alone. From here on, its result does not count."""
SLOWED = 1.25
"""How many times slower a job must be beside other programs, so that these are a second limit of it."""
TIMEOUT_S = 1200
DISK_BPS = 3_000_000
SLOW_BUCKET_S, PAUSING_BUCKET_S = (2.5,), (0.02, 4.0)
SMALL_GROUP_MB = 750


@dataclass(frozen=True)
class Place:
    """The surroundings of a job, as its command needs them: a prefix, the dataset, and environment variables."""

    prefix: Sequence[str] = ()
    dataset: str = ""
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Seen:
    """The result of a job. `reason` says why it was not run."""

    name: str
    load: str
    limits: Sequence[str] = ()
    verdict: str = ""
    images_per_s: float = 0.0
    """From the first step to the end of the training, with validation, checkpoints and callbacks."""
    other_cores: float = 0.0
    reason: str = ""
    origin: Origin = UNKNOWN

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs kept cores busy beside a job that should run alone."""
        return self.load == ALONE and self.other_cores > DISTURBED_CORES

    @property
    def is_sound(self) -> bool:
        """Whether it counts."""
        return not self.reason and not self.is_disturbed


Row = tuple[Job, Seen]
"""A job and its result."""


def main() -> int:
    """Measure the missing results, and print all as Markdown. Return 1 unless all verdicts are sound and correct."""
    options = parse(sys.argv[1:])
    FOLDER.mkdir(parents=True, exist_ok=True)
    if options.again:
        results_file().unlink(missing_ok=True)
    jobs = [job for job in JOBS if options.only in job.name]
    loads = [options.load] if options.load else [ALONE, BESIDE]
    if options.quick:
        jobs, loads = jobs[:1], [ALONE]
    for number, job in enumerate(jobs, 1):
        for load in loads:
            measured(job.name, load, f"{number} of {len(jobs)}, {job.name}, {load}", partial(run, job, load))
    for change in [] if options.quick else CHANGES:
        if options.only in change.job and ALONE in loads:
            name = changed_name(change)
            measured(name, ALONE, name, partial(run_changed, change))
    print(machine_line("tensorflow"))
    results = load_results()
    print("\n".join(["", *report(results, jobs, loads)]), flush=True)
    return int(not all_correct(results, jobs, loads))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    summary = "Compare verdicts with the known limits of trainings."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=summary)
    parser.add_argument("--only", default="", metavar="NAME", help="run only jobs with this in their name")
    parser.add_argument("--load", choices=[ALONE, BESIDE], help="run only under this load (default: both)")
    parser.add_argument("--again", action="store_true", help="delete the stored results first")
    parser.add_argument("--quick", action="store_true", help="run one job, to see that it works")
    return parser.parse_args(arguments)


# --- results ----------------------------------------------------------------------------------------------------------


def results_file() -> Path:
    """Return the file of the results: a line of JSON for each. The last result of a job counts."""
    return FOLDER / "results.jsonl"


def load_results() -> dict[tuple[str, str], Seen]:
    """Return the results so far, by name and load."""
    if not results_file().exists():
        return {}
    found = (parsed(Seen, json.loads(line)) for line in results_file().read_text().splitlines())
    now = result_origin()
    return {(seen.name, seen.load): seen for seen in found if seen.origin.is_like(now)}


def result_origin() -> Origin:
    """Return the origin of a result that is measured now."""
    return origin_of(*map(description, JOBS), without=PREDICTING)


def measured(name: str, load: str, title: str, work: Callable[[], Seen]) -> None:
    """Do some work and store its result, unless there is a valid one."""
    before = load_results().get((name, load))
    if before and before.is_sound:
        return
    begin = time.perf_counter()
    try:
        seen = work()
    except NotPossible as error:
        seen = Seen(name, load, reason=str(error))
    with open(results_file(), "a") as file:
        file.write(json.dumps(asdict(replace(seen, origin=result_origin()))) + "\n")
    disturbed = f"; disturbed by others on {seen.other_cores:.1f} cores" if seen.is_disturbed else ""
    found = seen.reason or " and ".join(seen.limits)
    say(f"{title}: {found}{disturbed} ({time.perf_counter() - begin:.0f} s)")


# --- jobs -------------------------------------------------------------------------------------------------------------


def run(job: Job, load: str) -> Seen:
    """Run a job, alone or beside other programs. Raises NotPossible."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER)))
        place = stack.enter_context(SURROUNDINGS[job.around](job, folder))
        if load == BESIDE:
            stack.enter_context(surroundings.other_programs(3 * CORES))
        result = answer(job.name, [*place.prefix, *command(job, place, folder)], place)
        other_cores = load_of(read(Path(result["run"]) / "record", "samples")).other_cores
        speed = images_per_s(Path(result["run"]))
    return Seen(
        name=job.name,
        load=load,
        limits=result["limits"],
        verdict=result["verdict"],
        images_per_s=speed,
        other_cores=other_cores or 0.0,
    )


def images_per_s(run_folder: Path) -> float:
    """Return the images a second that a training learned from, from its first step to its end."""
    batches, epochs = (read(run_folder / "record", kind) for kind in ("batches", "epochs"))
    end = max(batches["time"].iloc[-1], epochs["time"].max() if len(epochs) else 0.0)
    took_s = end - batches["time"].iloc[0]
    return float(batches["input/examples"].iloc[1:].sum() / took_s)


def command(job: Job, place: Place, folder: Path) -> list[str]:
    """Return the command that trains."""
    if job.own_input:
        (folder / "run").mkdir()
        step_ms = "20"
        numbers = [str(job.steps), step_ms, str(job.prefetched)]
        own = ["-m", "benchmarks.known_limits.own_inputs", job.own_input, str(folder / "run"), *numbers]
        return [sys.executable, *own]
    settings = {
        "workspace": folder,
        "local_folder": folder / "local",
        "dataset": place.dataset,
        **(COMMON if isinstance(DATA[job.data], Data) else COMMON_OF_ROWS),
        **job.settings,
    }
    return command_of("train", settings)


def answer(name: str, command: Sequence[str], place: Place) -> dict[str, Any]:
    """Return the JSON in the last line that a command prints. Its stderr goes to the log. Raises NotPossible."""
    environment = {**ENVIRONMENT, "COMET_LOGGING_CONSOLE": "ERROR", **(place.environment or {})}
    with open(logs() / "verdicts.log", "ab") as log:
        log.write(f"\n=== {name}\n".encode())
        log.flush()
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, timeout=TIMEOUT_S, check=True
            )
        except subprocess.SubprocessError as error:
            raise NotPossible(f"{error}; see {logs() / 'verdicts.log'}") from error
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def run_changed(change: Change) -> Seen:
    """Run the job of a change with this change."""
    job = next(job for job in JOBS if job.name == change.job)
    changed = Job(
        name=changed_name(change),
        limits=job.limits,
        data=change.data or job.data,
        settings={**job.settings, **change.settings},
        own_input=job.own_input,
        steps=job.steps,
        prefetched=change.prefetched,
        around=job.around,
    )
    return run(changed, ALONE)


def changed_name(change: Change) -> str:
    """Return the name of a change's result."""
    return f"{change.job}, with {change.advice}"


# --- surroundings -----------------------------------------------------------------------------------------------------


def dataset_of(job: Job) -> Path:
    """Return the dataset of a job, which is built once. Raises NotPossible."""
    try:
        return built(job.data, FOLDER)
    except subprocess.CalledProcessError as error:
        raise NotPossible(f"the dataset {job.data} cannot be built: {error}") from error


def description(job: Job) -> str:
    """Return all that decides how fast the training of a job is, beside Tenfold and the machine, as JSON."""
    around = SURROUNDINGS[job.around]
    known: dict[str, Any] = {"around": job.around, "numbers": getattr(around, "args", ())}
    known |= {"own_input": job.own_input, "steps": job.steps, "prefetched": job.prefetched}
    if job.own_input:
        known["code"] = Path(surroundings.__file__).with_name("own_inputs.py").read_text()
    else:
        data = DATA[job.data]
        known["settings"] = {**(COMMON if isinstance(data, Data) else COMMON_OF_ROWS), **job.settings}
        known["data"] = {**vars(data), **({"image": data.image.__name__} if isinstance(data, Data) else {})}
    if EACH_EPOCH in str(job.settings):
        known["code"] = Path(surroundings.__file__).with_name("own_models.py").read_text()
    return json.dumps(known, sort_keys=True, default=str)


@contextmanager
def nothing(job: Job, folder: Path) -> Iterator[Place]:
    """Yield the machine as it is."""
    yield Place(dataset="" if job.own_input else str(dataset_of(job)))


@contextmanager
def cpu_quota(cores: float, job: Job, folder: Path) -> Iterator[Place]:
    """Yield a place with a CPU quota of this many cores."""
    quota = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": f"{100_000 * cores:.0f}"}
    with surroundings.control_group("cpu", quota) as prefix:
        yield Place(prefix, str(dataset_of(job)))


@contextmanager
def little_memory(megabytes: int, job: Job, folder: Path) -> Iterator[Place]:
    """Yield a place with memory for a part of a file that the input reads at random places."""
    size = MAPPED_MB << 20
    with open(folder / MAPPED, "wb") as file:
        for _ in range(MAPPED_MB):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
    with surroundings.control_group("memory", {"memory.limit_in_bytes": f"{megabytes}M"}) as prefix:
        yield Place(prefix)


@contextmanager
def slow_disk(bytes_per_s: int, job: Job, folder: Path) -> Iterator[Place]:
    """Yield a place whose dataset is on a disk that reads this much, and is not in the page cache."""
    dataset, disk = dataset_of(job), FOLDER / "disk"
    copy = disk / surroundings.object_prefix(dataset)
    with surroundings.slow_disk(disk, 500, bytes_per_s):
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", str(dataset), str(copy)], check=True)
    with surroundings.slow_disk(disk, 500, bytes_per_s) as prefix:
        yield Place(prefix, str(copy))


@contextmanager
def slow_bucket(pauses_s: Sequence[float], job: Job, folder: Path) -> Iterator[Place]:
    """Yield a place whose dataset is in a bucket that answers late."""
    dataset = dataset_of(job)
    with surroundings.slow_bucket(dataset, pauses_s) as url:
        uri = f"gs://{surroundings.BUCKET}/{surroundings.object_prefix(dataset)}"
        yield Place(dataset=uri, environment={"STORAGE_EMULATOR_HOST": url})


Surroundings = dict[str, Callable[[Job, Path], AbstractContextManager[Place]]]
SURROUNDINGS: Surroundings = {
    "": nothing,
    "half a core": partial(cpu_quota, 0.5),
    "one core": partial(cpu_quota, 1.0),
    "little memory": partial(little_memory, SMALL_GROUP_MB),
    "slow disk": partial(slow_disk, DISK_BPS),
    "disk of twice the speed": partial(slow_disk, 2 * DISK_BPS),
    "slow bucket": partial(slow_bucket, SLOW_BUCKET_S),
    "bucket that pauses": partial(slow_bucket, PAUSING_BUCKET_S),
}

# --- tables -----------------------------------------------------------------------------------------------------------


def report(results: Mapping[tuple[str, str], Seen], jobs: Sequence[Job], loads: Sequence[str]) -> list[str]:
    """Return the confusion tables, the verdict on each job, and the effect of the advice, as lines of Markdown."""
    lines: list[str] = []
    for load in loads:
        rows = [(job, seen) for job in jobs if (seen := results.get((job.name, load)))]
        sound = [(job, seen) for job, seen in rows if seen.is_sound]
        correct = {job.name for job, seen in sound if is_correct(job, seen, results.get((job.name, ALONE)))}
        lines += section(load.capitalize(), rows, sound, load, correct)
    made = [(each.job, seen_on(each)) for each in MANY_CORES]
    correct = {job.name for job, seen in made if is_correct(job, seen)}
    lines += section(f"As if on {MANY} cores", made, made, ALONE, correct)
    return [*lines, *worth(results)]


def section(title: str, rows: Sequence[Row], sound: Sequence[Row], load: str, correct: Collection[str]) -> list[str]:
    """Return the confusion table of the `sound` rows, and the verdict on the job of each row."""
    lines = [f"### {title}", "", *confusion(sound, load), ""]
    lines += [f"{len(correct)} of {len(sound)} verdicts name the limit and no wrong one.", ""]
    return [*lines, *of_each(rows, load, correct), ""]


def seen_on(many: ManyCores) -> Seen:
    """Return the result of a job as if on many cores."""
    verdict = many.verdict()
    return Seen(many.job.name, ALONE, [limit.value for limit in verdict.limits], verdict.sentence)


def is_correct(job: Job, seen: Seen, alone: Seen | None = None) -> bool:
    """Return whether the verdict on a job names its limit, and no other.

    Other programs are a limit of a job, too, if it is `SLOWED` times slower beside them than `alone`.
    """
    if alone and seen.images_per_s * SLOWED <= alone.images_per_s:
        if job.names_all:
            job = replace(job, also=job.also | {Limit.OTHER_PROGRAMS})
        else:
            job = replace(job, limits=job.limits | {Limit.OTHER_PROGRAMS})
    return job.is_named_by(frozenset(map(Limit, seen.limits)), seen.load == BESIDE)


def all_correct(results: Mapping[tuple[str, str], Seen], jobs: Sequence[Job], loads: Sequence[str]) -> bool:
    """Return whether the verdict on each job is sound and correct under each load, and as if on many cores."""
    found = [(job, results.get((job.name, load)), results.get((job.name, ALONE))) for load in loads for job in jobs]
    found += [(each.job, seen_on(each), None) for each in MANY_CORES]
    return bool(jobs) and all(seen and seen.is_sound and is_correct(job, seen, alone) for job, seen, alone in found)


def confusion(rows: Sequence[Row], load: str) -> list[str]:
    """Return how often each limit was named for each known one. A verdict that names two counts in two columns."""
    counts = Counter((expected(job, load), named) for job, seen in rows for named in seen.limits)
    names = sorted({name for _, name in counts})
    known = list(dict.fromkeys(expected(job, load) for job, _ in rows))
    lines = [f"| limit (number of jobs) | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for limit in known:
        jobs = sum(expected(job, load) == limit for job, _ in rows)
        lines.append(f"| {limit} ({jobs}) | {' | '.join(str(counts[limit, name] or '') for name in names)} |")
    return lines


def expected(job: Job, load: str) -> str:
    """Return the limit of a job, in words."""
    if load == BESIDE and job.needs_cores:
        return f"{Limit.OTHER_PROGRAMS.value}"
    return " and ".join(sorted(limit.value for limit in job.limits))


def of_each(rows: Sequence[Row], load: str, correct: Collection[str]) -> list[str]:
    """Return a line for each job: its name, its limit, the limits that were named, and whether that is correct."""
    lines = ["| job | limit | named | |", "|---|---|---|---|"]
    for job, seen in rows:
        named = (seen.reason and f"not run: {seen.reason}") or " and ".join(seen.limits)
        mark = (
            "" if seen.reason else "disturbed" if seen.is_disturbed else "correct" if job.name in correct else "WRONG"
        )
        lines.append(f"| {job.name} | {expected(job, load)} | {named} | {mark} |")
    return lines


def worth(results: Mapping[tuple[str, str], Seen]) -> list[str]:
    """Return a line for each change that a verdict advises: the images a second before and after it."""
    lines = ["### Advice, alone", "", "| job | advice | images/s before | with it | times |", "|---|---|---|---|---|"]
    for change in CHANGES:
        before, after = results.get((change.job, ALONE)), results.get((changed_name(change), ALONE))
        if before and after and before.images_per_s and after.images_per_s:
            times = after.images_per_s / before.images_per_s
            cells = f"{before.images_per_s:,.0f} | {after.images_per_s:,.0f} | {times:.2f}"
            lines.append(f"| {change.job} | `{change.advice}` | {cells} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
