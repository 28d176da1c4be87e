"""Measure the overhead of each engine: its start, and its time for 1,000 plan files, compared with multiprocessing.

    make bench-engines
    python -m benchmarks.engines [--rounds N] [--json FILE]

The task only writes an empty file. In each round, every contender runs in a new process, once with few and once with
many places. The difference gives the time for each place. The remaining time is the start.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness.machine import machine_line, say
from benchmarks.harness.rounds import ROOT
from pipeline.engines import ENGINES, engine_named
from pipeline.engines.task import Task
from pipeline.system.progress import Advance
from pipeline.system.resources import usable_cores

FEW, MANY = 100, 2100
PLAIN = "multiprocessing"
PYTHON = ROOT / ".engines" / "bin" / "python"


@dataclass
class Contender:
    """One way to call a function for many places, and its seconds in each round."""

    name: str
    few_s: list[float] = field(default_factory=list)
    many_s: list[float] = field(default_factory=list)

    @property
    def start_s(self) -> float:
        """Seconds of a run that are not for its places."""
        return median(self.few_s) - FEW * self.per_1000_s / 1000

    @property
    def per_1000_s(self) -> float:
        """Seconds for 1,000 places."""
        return 1000 * (median(self.many_s) - median(self.few_s)) / (MANY - FEW)


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures into a file")
    options = parser.parse_args()
    contenders = [Contender(name) for name in (PLAIN, *ENGINES)]
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        # Every second round is in the opposite order, so that slow changes of the machine affect all contenders alike.
        for contender in contenders[:: 1 if number % 2 == 0 else -1]:
            contender.few_s.append(seconds_of(contender.name, FEW))
            contender.many_s.append(seconds_of(contender.name, MANY))
    print(machine_line(), "", *table(contenders), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in contenders], indent=1))


def table(contenders: Sequence[Contender]) -> list[str]:
    """Return the lines of the table."""
    rows = [f"| {each.name} | {each.start_s:.1f} | {each.per_1000_s:.2f} |" for each in contenders]
    return ["| engine | start, s | 1,000 plan files, s |", "|---|---|---|", *rows]


def seconds_of(name: str, count: int) -> float:
    """Return the seconds of a process that calls the function for `count` places."""
    python = sys.executable if name in (PLAIN, "local") else str(PYTHON)
    with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
        begin = time.monotonic()
        subprocess.run([python, "-m", "benchmarks.engines", name, str(count), folder], check=True, capture_output=True)
        seconds = time.monotonic() - begin
        assert len(list(Path(folder).iterdir())) == count
    return seconds


def call(name: str, count: int, folder: str) -> None:
    """Call the function for `count` places, in this process."""
    run = plain if name == PLAIN else engine_named(name)
    run(Task(touch, {}), [f"{folder}/{number}" for number in range(count)], lambda _count, _size=0: None)


def plain(task: Task, places: Sequence[str], advance: Advance) -> None:
    """Call the task for each place with a pool of the standard library."""
    with multiprocessing.get_context("spawn").Pool(usable_cores()) as pool:
        for count in pool.imap_unordered(task.function, places):
            advance(count)


def touch(place: str) -> int:
    """Write an empty file."""
    Path(place).touch()
    return 1


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in (PLAIN, *ENGINES):
        call(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
