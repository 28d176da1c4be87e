"""Measure contenders in alternating rounds.

All of them are measured in turn, again and again, so that a slow minute of the machine meets each of them alike.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import IO, Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]
_T = TypeVar("_T")
ENDS_WITHIN_S = 30
"""A process that takes longer is killed, because TensorFlow's threads can deadlock when they end."""
OPEN = {f"TENFOLD_ALLOWED_{what}": "*" for what in ("SOURCES", "WORKSPACES", "PUBLISH", "MODELS")}
"""Variables of a process that may use every place, as a command that a person runs."""
# No contender may use a GPU or print much, because that would cost time. The bytecode of our modules is cached, as that
# of an installed package is.
ENVIRONMENT = {
    **OPEN,
    **os.environ,
    "PYTHONDONTWRITEBYTECODE": "",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclass
class Contender:
    """A function of `benchmarks.contenders` that is measured, with one process for each job, and its results."""

    title: str
    writer: str
    python: Path
    jobs: Sequence[Path]
    """Files; each process gets one."""
    images: int
    """In all jobs together."""
    makes: Sequence[Path]
    """Folders that the work makes; removed after every round, outside of the timed part."""
    check: Callable[[], str] | None = None
    """Looks at what a round of the work made, outside of the timed part; says what is wrong with it."""
    work_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    """The most that its processes had together."""
    seen: list[Any] = field(default_factory=list)
    """Values that its processes reported for each round that they measured themselves."""
    error: str = ""

    @property
    def images_per_s(self) -> float | None:
        """Of the work alone, by the median round."""
        return self.images / median(self.work_s) if self.work_s else None

    @property
    def spread(self) -> float | None:
        """Half of the distance between the quartiles of the rounds, as a share of the median."""
        if len(self.work_s) < 2:
            return None
        first, middle, third = quantiles(self.work_s, n=4, method="inclusive")
        return (third - first) / 2 / middle

    def command(self, job: Path, *, serve: bool) -> list[str]:
        """Return what starts one of its processes."""
        mode = ["serve"] if serve else []
        return [str(self.python), "-m", "benchmarks.harness.worker", self.writer, str(job), *mode]


class Team:
    """The living processes of one contender."""

    def __init__(self, contender: Contender, log: Path) -> None:
        self._contender = contender
        self._log = open(log, "wb")  # noqa: SIM115 - closed by __exit__
        self._processes = [start(contender.command(job, serve=True), self._log) for job in contender.jobs]

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            pipes(process).stdin.close()
            pipes(process).stdout.close()
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

    def work(self) -> float:
        """Let all processes do their jobs once, and check what they made; the seconds until the last was done."""
        seconds = self._together()
        if self._contender.check:
            self._contender.error = self._contender.error or self._contender.check()
        clean(self._contender)
        return seconds

    def warm_up(self) -> None:
        """Have all processes import and connect."""
        self._together()
        self._contender.seen.clear()
        clean(self._contender)

    def _together(self) -> float:
        make_room(self._contender)
        begin = time.perf_counter()
        for process in self._processes:
            tell(process)
        answers = [pipes(process).stdout.readline() for process in self._processes]
        seconds = time.perf_counter() - begin
        note(self._contender, answers)
        return seconds


def measure_work(contenders: Sequence[Contender], rounds: int, logs: Path) -> None:
    """Time the work of all, each in processes that stay alive and have imported everything in a round before."""
    with ExitStack() as stack:
        teams = {
            contender.title: stack.enter_context(Team(contender, logs / f"{contender.writer}.log"))
            for contender in contenders
        }
        for team in teams.values():
            team.warm_up()
        for number in range(rounds):
            for contender in turned(sound(contenders), number):
                contender.work_s.append(teams[contender.title].work())


def measure_whole(contenders: Sequence[Contender], rounds: int, logs: Path) -> None:
    """Time whole processes of all, from the start of the interpreter to its end."""
    for contender in contenders:
        contender.peak_mb = 0.0  # a process that stays alive keeps more than one that does its work once
    for number in range(rounds):
        for contender in turned(sound(contenders), number):
            contender.whole_s.append(whole(contender, logs / f"{contender.writer}.log"))
            # A section of slow contenders takes many minutes, and prints its table only at its end.
            result = contender.error or f"{contender.whole_s[-1]:.2f} s"
            print(f"round {number + 1}: {contender.title}: {result}", file=sys.stderr, flush=True)


def whole(contender: Contender, log: Path) -> float:
    """Return seconds of the contender's processes, all at once, from start to end."""
    make_room(contender)
    with open(log, "ab") as log_file:
        begin = time.perf_counter()
        processes = [start(contender.command(job, serve=False), log_file) for job in contender.jobs]
        answers = [process.communicate()[0] for process in processes]
        seconds = time.perf_counter() - begin
    note(contender, answers)
    clean(contender)
    return seconds


class Pipes(NamedTuple):
    """The pipes of a worker."""

    stdin: IO[bytes]
    stdout: IO[bytes]


def pipes(process: "subprocess.Popen[bytes]") -> Pipes:
    """Return the pipes of a worker, which `start` always opens."""
    assert process.stdin
    assert process.stdout
    return Pipes(process.stdin, process.stdout)


def start(command: Sequence[str], log: Any) -> "subprocess.Popen[bytes]":
    """Return a worker. Its output goes into the log, its answers into the pipe."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=log)


def tell(process: "subprocess.Popen[bytes]") -> None:
    """Have a worker begin; one that died is found out by its silence."""
    try:
        pipes(process).stdin.write(b"\n")
        pipes(process).stdin.flush()
    except BrokenPipeError:
        pass


def note(contender: Contender, answers: Sequence[bytes]) -> None:
    """Store the reports of the workers."""
    reports: list[dict[str, Any]] = [
        json.loads(answer) if answer else {"error": "failed (it died: see the log)"} for answer in answers
    ]
    contender.error = contender.error or next((each["error"] for each in reports if "error" in each), "")
    contender.peak_mb = max(contender.peak_mb, sum(each.get("peak_mb", 0.0) for each in reports))
    contender.seen.extend(each["seen"] for each in reports if "seen" in each)


def sound(contenders: Sequence[Contender]) -> list[Contender]:
    """Those that did not fail so far."""
    return [contender for contender in contenders if not contender.error]


def turned(contenders: Sequence[_T], by: int) -> list[_T]:
    """Return the contenders in another order for each round. Each leaves the caches to another successor.

    Each order is followed by its reverse, so that two contenders change places as well.
    """
    start = by // 2 % max(len(contenders), 1)
    order = [*contenders[start:], *contenders[:start]]
    return order[::-1] if by % 2 else order


def make_room(contender: Contender) -> None:
    """Empty folders for what comes."""
    clean(contender)
    for folder in contender.makes:
        folder.mkdir(parents=True)


def clean(contender: Contender) -> None:
    """Remove what was written before it reaches the disk, or its way there would slow down the next."""
    for folder in contender.makes:
        shutil.rmtree(folder, ignore_errors=True)


def rate_cells(each: Contender | None, base: Contender | None) -> tuple[str, str]:
    """Images a second with the spread, and the share of the limit."""
    if each is None:
        return "", ""
    if each.error:
        return each.error, ""
    share = f"{each.images_per_s / base.images_per_s:.0%}" if base and each.images_per_s and base.images_per_s else ""
    return f"{each.images_per_s:,.0f} ±{each.spread:.0%}", share


def as_json(contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Every round of every contender."""
    plain = [asdict(replace(each, check=None)) for each in contenders]
    rounds: list[dict[str, Any]] = json.loads(json.dumps(plain, default=str))
    return rounds
