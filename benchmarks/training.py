"""Steps of the training loop beside what a user would write instead, what a checkpoint takes, and two devices.

    make bench-training
    python -m benchmarks.training [--rounds N] [--quick] [--only SECTION] [--json FILE]

The loops train the same model with the same optimizer on the same batch, which is in memory, on the CPU, in
alternating rounds in one process; what counts is the ratio to the bare step of the same round.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders.loops import BARE, LOOPS, ONE, OURS, TWO
from benchmarks.harness.machine import job_file, logs, machine_line, measure_sections, new_folder, say
from benchmarks.harness.rounds import Contender, whole

PACKAGES = ("tensorflow", "keras", "numpy")
WANTED = {OURS: 1.02}
"""To the bare step, at the size that it was promised for."""


@dataclass(frozen=True)
class Work:
    """A model, its batch, and how many steps are taken in a round."""

    title: str
    model: str
    image_size: int
    batch_size: int
    steps: int


# Turns of two seconds: each opens a monitor of its own, whose start would be a twentieth of one of 0.3 s.
SMALL, MEDIUM, LARGE = (
    Work("small", "benchmarks.contenders.loops:linear", 32, 16, 1500),
    Work("20 ms", "small_cnn", 64, 6, 100),
    Work("large", "small_cnn", 64, 48, 15),
)
PROMISED = MEDIUM
SAVED = (Work("small CNN", "small_cnn", 64, 6, 40), Work("ResNet50", "ResNet50", 64, 4, 10))
SCALED = Work("scaling", "small_cnn", 64, 32, 8)
Rounds = Sequence[Mapping[str, float]]
"""Seconds of a step by contender, of each round."""


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    chosen = {name: measure for name, measure in SECTIONS.items() if options.only in ("", name)}
    measure_sections([machine_line(*PACKAGES)], chosen, options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description="Steps of the training loop.")
    parser.add_argument("--rounds", type=int, default=7, help="of the loops; the other sections take a third of them")
    parser.add_argument("--quick", action="store_true", help="two short rounds, to see that all of it runs")
    parser.add_argument("--only", default="", choices=SECTIONS, help="of the sections")
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def measured(section: str, work: Work, rounds: int, options: argparse.Namespace) -> Any:
    """Return what a process of its own saw of some work."""
    rounds, steps = (2, max(3, work.steps // 10)) if options.quick else (rounds, work.steps)
    say(f"{section}, {work.title}: {rounds} rounds")
    job = asdict(work) | {"steps": steps, "rounds": rounds, "folder": str(new_folder("run"))}
    task = Contender(work.title, section, Path(sys.executable), [job_file(job)], work.batch_size, [])
    whole(task, logs() / f"{section}.log")
    if task.error:
        raise SystemExit(f"{section}, {work.title}: {task.error}; see {logs() / f'{section}.log'}")
    return task.seen[0]


# --- the loops --------------------------------------------------------------------------------------------------------


def overhead_results(options: argparse.Namespace) -> dict[str, Rounds]:
    """Measure all loops at each size of a step."""
    seen = {work.title: measured("overhead", work, options.rounds, options) for work in (SMALL, MEDIUM, LARGE)}
    print("\n".join(["", *overhead_table(seen)]), flush=True)
    return seen


def overhead_table(seen: Mapping[str, Rounds]) -> list[str]:
    """Return a line each loop: the time of a step by the median round, and how many times that of the bare step."""
    columns = [f"{title}, ms | to the bare step" for title in seen]
    lines = [f"| a step of | {' | '.join(columns)} |", f"|---|{'---|' * 2 * len(columns)}"]
    for name in LOOPS:
        cells = [cell for rounds in seen.values() for cell in (step_ms(rounds, name), times(rounds, name, BARE))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    limit, is_ = WANTED[OURS], median(ratios(seen[PROMISED.title], OURS, BARE))
    return [*lines, "", f"Promised at {PROMISED.title}: at most {limit}; seen: {is_:.3f}."]


def ratios(rounds: Rounds, name: str, base: str) -> list[float]:
    """Return how many times the base's, in each round."""
    return [each[name] / each[base] for each in rounds]


def times(rounds: Rounds, name: str, base: str) -> str:
    """Return the median ratio, and the least and the most of it."""
    if name == base:
        return "1"
    found = ratios(rounds, name, base)
    return f"{median(found):.3f} ({min(found):.2f} to {max(found):.2f})"


def step_ms(rounds: Rounds, name: str) -> str:
    """Return the median, in three digits."""
    return f"{1000 * median(each[name] for each in rounds):.3g}"


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoint_results(options: argparse.Namespace) -> dict[str, Any]:
    """Measure a checkpoint of a small and of a larger model."""
    seen = {work.title: measured("checkpoint", work, max(3, options.rounds // 3), options) for work in SAVED}
    print("\n".join(["", *checkpoint_table(seen)]), flush=True)
    return seen


def checkpoint_table(seen: Mapping[str, Any]) -> list[str]:
    """Return a line each model."""
    lines = [
        "| checkpoint of | weights | MB, with Adam | a step, ms | training stops, ms | loses in all, ms |",
        "|---|---|---|---|---|---|",
    ]
    for title, found in seen.items():
        step, call, lost = (of_rounds(found["rounds"], name) for name in ("step_s", "call_s", "lost_s"))
        size = f"{found['weights']:,} | {found['bytes'] / 1e6:,.1f}"
        lines.append(f"| {title} | {size} | {step} | {call} | {lost} |")
    return lines


def of_rounds(rounds: Rounds, name: str) -> str:
    """Return median, least and most, in ms."""
    found = [1000 * each[name] for each in rounds]
    return f"{median(found):.3g} ({min(found):.3g} to {max(found):.3g})"


# --- two devices ------------------------------------------------------------------------------------------------------


def scaling_results(options: argparse.Namespace) -> Rounds:
    """Measure one and two devices that share one processor."""
    seen: Rounds = measured("scaling", SCALED, max(3, options.rounds // 3), options)
    print("\n".join(["", *scaling_table(seen, SCALED.batch_size)]), flush=True)
    return seen


def scaling_table(rounds: Rounds, batch: int) -> list[str]:
    """Return a line each number of devices and global batch: its rate to that of one device with the smaller batch."""
    lines = [
        "| devices that share these cores | global batch | a step, ms | images/s | to one device, same global batch |",
        "|---|---|---|---|---|",
    ]
    for devices in (ONE, TWO):
        for size in (batch, 2 * batch):
            name = f"{devices}, {size}"
            rate = size / median(each[name] for each in rounds)
            of_one = faster(rounds, name, f"{ONE}, {size}")
            lines.append(f"| {devices} | {size} | {step_ms(rounds, name)} | {rate:,.0f} | {of_one} |")
    return lines


def faster(rounds: Rounds, name: str, base: str) -> str:
    """Return how many times as fast as the base, with the least and the most."""
    return times(rounds, base, name) if name != base else "1"


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "overhead": overhead_results,
    "checkpoint": checkpoint_results,
    "scaling": scaling_results,
}

if __name__ == "__main__":
    main()
