"""What the monitor takes: of a core, source by source, and from a loop that it watches.

    make bench-monitoring
    python -m benchmarks.monitoring [--seconds N] [--rounds N] [--only SECTION] [--json FILE]

The cost of a source is that of a thread that sleeps between its samples, as the sampler does: what is in the caches
then is another's, and a call takes several times as long as in a loop. Psutil is asked the same in the same ticks. The
loop multiplies matrices for 2 or 20 ms a step, in turns of two seconds and more, with and without a monitor, whose
start-up is apart. Both have one and the same core: on a second one the monitor would take nothing from the loop. What
counts is steps by seconds in which the core was theirs, so that neighbors on the machine take less part in it. They
still change how fast a core is, by more than the monitor takes: beside those ratios is the time by the clocks
of its threads, and of the loop while it tells of a step.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import psutil

from benchmarks.harness.machine import machine_line, measure_sections, new_folder, say
from benchmarks.harness.rounds import turned
from pipeline.monitor import StepTimes, open_monitor
from pipeline.monitor import machine as system
from pipeline.system.kernel import File

HZ = 5.0
WANTED_CPU_PCT, WANTED_LOSS = 0.5, 0.01
BARE, SAMPLED, WATCHED = "bare", "sampled", "sampled, every step recorded"
STEPS_MS = (2, 20)


class Turn(NamedTuple):
    """Steps a second of the core, and the share of it that the monitor took."""

    rate: float
    taken: float


Rounds = Sequence[Mapping[str, Turn]]
"""Without a monitor, beside one, and telling it of each step, of each round."""


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    chosen = {name: measure for name, measure in SECTIONS.items() if options.only in ("", name)}
    measure_sections([machine_line("numpy", "psutil")], chosen, options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitoring", description="What the monitor takes.")
    parser.add_argument("--seconds", type=float, default=20, help="of sampling, to see its cost")
    parser.add_argument("--rounds", type=int, default=9, help="of the loops; each has a turn with and one without")
    parser.add_argument("--turn", type=float, default=3, help="seconds of a turn, two at least")
    parser.add_argument("--only", default="", choices=SECTIONS, help="of the sections")
    parser.add_argument("--json", type=Path, help="file for every figure")
    options = parser.parse_args(arguments)
    if options.turn < 2:
        parser.error(f"--turn must be 2 at least, got {options.turn}: a shorter one has too few samples")
    return options


# --- of a core --------------------------------------------------------------------------------------------------------


def cost_results(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the whole monitor, and each source alone."""
    say(f"cost: {options.seconds:.0f} s of the monitor, and as long of its sources one by one")
    whole = whole_cost(options.seconds)
    seen = {"whole_pct": whole, "sources_us": source_costs(options.seconds), "many_us": many_costs()}
    print("\n".join(["", *cost_table(seen)]), flush=True)
    return seen


def whole_cost(seconds: float) -> float:
    """Percent of a core of an open monitor: sampling, and writing the record."""
    with open_monitor(new_folder("cost"), HZ):
        time.sleep(1)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        return 100 * (time.process_time() - begin_cpu) / (time.perf_counter() - begin)


def source_costs(seconds: float) -> dict[str, dict[str, float]]:
    """Microseconds of a core that a call takes, ours and psutil's, by name."""
    process = psutil.Process()
    calls: dict[str, dict[str, Callable[[], object]]] = {
        "ours": dict(system.sources()),
        "psutil": {
            "processors": lambda: psutil.cpu_times_percent(percpu=True),
            "memory": psutil.virtual_memory,
            "disks": lambda: psutil.disk_io_counters(perdisk=True),
            "network": lambda: psutil.net_io_counters(pernic=True),
            "process": lambda: psutil_process(process),
            "children": lambda: process.children(recursive=True),
        },
    }
    taken: dict[str, dict[str, list[float]]] = {who: {name: [] for name in each} for who, each in calls.items()}
    for number in range(max(3, int(seconds * HZ))):
        time.sleep(1 / HZ)
        for who in turned(list(calls), number):
            for name in turned(list(calls[who]), number):  # the first after a sleep pays for waking up
                taken[who][name].append(cpu_us(calls[who][name]))
    # The first calls open files.
    return {who: {name: mean(each[1:]) for name, each in found.items()} for who, found in taken.items()}


def psutil_process(process: psutil.Process) -> None:
    """Read what the sources of a process tell."""
    with process.oneshot():
        process.cpu_percent()
        process.memory_info()
        process.io_counters()


def cpu_us(call: Callable[[], object]) -> float:
    """Microseconds of a core, of this thread."""
    begin = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begin) / 1000


def many_costs(cores: int = 128, calls: int = 50) -> dict[str, float]:
    """Return the same for the use of many cores, from a made-up /proc/stat, in a loop: so rather too little."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as back:
        lines = [f"cpu{core} 123456 12 234567 1234567890 12345 0 12345 0 0 0" for core in ("", *range(cores))]
        Path(name, "stat").write_text("\n".join([*lines, "intr 1 0", "btime 1"]) + "\n")
        ours = system.Processors(File(Path(name, "stat")))
        back.callback(setattr, psutil, "PROCFS_PATH", psutil.PROCFS_PATH)
        psutil.PROCFS_PATH = name
        calls_of: dict[str, Callable[[], object]] = {
            "ours": ours,
            "psutil": lambda: psutil.cpu_times_percent(percpu=True),
        }
        return {who: median(cpu_us(call) for _ in range(calls)) for who, call in calls_of.items()}


def cost_table(seen: Mapping[str, Any]) -> list[str]:
    """Return a line each source."""
    ours, psutils = seen["sources_us"]["ours"], seen["sources_us"]["psutil"]
    lines = ["| source | µs a sample | % of a core at 5 Hz | psutil, µs |", "|---|---|---|---|"]
    for name, taken in ours.items():
        other = f"{psutils[name]:,.0f}" if name in psutils else ""
        lines.append(f"| {name} | {taken:,.0f} | {share(taken):.3f} | {other} |")
    lines.append(f"| all of them | {sum(ours.values()):,.0f} | {share(sum(ours.values())):.3f} | |")
    many = seen["many_us"]
    lines.append(
        f"| processors, were there 128 | {many['ours']:,.0f} | {share(many['ours']):.3f} | {many['psutil']:,.0f} |"
    )
    promise = f"Promised: at most {WANTED_CPU_PCT}% of a core, with the record; seen: {seen['whole_pct']:.2f}%."
    return [*lines, "", "psutil lists the children in each tick, ours every 5 s.", promise]


def share(microseconds: float) -> float:
    """Percent of a core at 5 Hz."""
    return 100 * HZ * microseconds / 1e6


# --- from a loop ------------------------------------------------------------------------------------------------------


def loop_results(options: argparse.Namespace) -> dict[str, Rounds]:
    """Measure the loop with steps of each length."""
    if hasattr(os, "sched_setaffinity"):  # before NumPy is imported, which takes as many threads as there are cores
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    seen = {f"{ms} ms": loop_rounds(ms, options.rounds, options.turn) for ms in STEPS_MS}
    print("\n".join(["", *loop_table(seen)]), flush=True)
    return seen


def loop_rounds(step_ms: float, rounds: int, turn: float) -> Rounds:
    """Measure rounds: one of each kind, by turns in another order."""
    step = step_of(step_ms)
    say(f"loop, steps of {step_ms} ms: {rounds} rounds of three turns of {turn:g} s")
    runs: dict[str, Callable[[], Turn]] = {
        BARE: lambda: looped(step, turn),
        SAMPLED: lambda: sampled(step, turn),
        WATCHED: lambda: watched(step, turn),
    }
    for run in runs.values():
        run()
    return [{name: runs[name]() for name in turned(list(runs), number)} for number in range(rounds)]


def sampled(step: Callable[[], object], turn: float) -> Turn:
    """Beside an open monitor, which began before the first step."""
    with open_monitor(new_folder("loop"), HZ):
        time.sleep(0.5)
        return looped(step, turn)


def watched(step: Callable[[], object], turn: float) -> Turn:
    """As in a training: the monitor also gets each step, and records it."""
    with open_monitor(new_folder("loop"), HZ) as monitor:
        time.sleep(0.5)
        numbers = iter(range(1, sys.maxsize))

        def tell(seconds: float) -> None:
            times = StepTimes(wait_s=0.0, compute_s=seconds)
            monitor.batch(step=next(numbers), epoch=1, times=times, examples=32)

        return looped(step, turn, tell)


def looped(step: Callable[[], object], seconds: float, tell: Callable[[float], None] = lambda _: None) -> Turn:
    """Take steps for so many seconds, and tell how long each took; of this process with all its threads."""
    end, begin_cpu, begin_thread, count, telling = time.perf_counter() + seconds, time.process_time(), now(), 0, 0.0
    while (begin := time.perf_counter()) < end:
        step()
        took, before = time.perf_counter() - begin, now()
        tell(took)
        telling += now() - before
        count += 1
    whole = time.process_time() - begin_cpu
    return Turn(count / whole, (whole - (now() - begin_thread) + telling) / whole)


def now() -> float:
    """Return seconds in which this thread had a core."""
    return time.thread_time()


def step_of(milliseconds: float) -> Callable[[], object]:
    """Return a product of matrices that takes about so long here."""
    side = 64
    while taken(product(side)) < milliseconds / 1000:
        side = int(side * 1.1) + 1
    return product(side)


def product(side: int) -> Callable[[], object]:
    """Of two square matrices, into a third that is there."""
    import numpy as np

    random = np.random.default_rng(0)
    left, right = (random.random((side, side), dtype=np.float32) for _ in range(2))
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out)


def taken(call: Callable[[], object], times: int = 9) -> float:
    """Return seconds, by the median of some calls."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return median(once() for _ in range(times))


def loop_table(seen: Mapping[str, Rounds]) -> list[str]:
    """Return a line each length of a step: the rate without a monitor, and the ratios to that of the same round."""
    lines = [
        f"| a step of | steps/s of the core, {BARE} | {SAMPLED}, to that | {WATCHED}, to that |"
        f" taken, {SAMPLED} | taken, {WATCHED} |",
        "|---|---|---|---|---|---|",
    ]
    for title, rounds in seen.items():
        rate = median(each[BARE].rate for each in rounds)
        ratios_seen = f"{spread(rounds, SAMPLED)} | {spread(rounds, WATCHED)}"
        lines.append(
            f"| {title} | {rate:,.1f} | {ratios_seen} | {taken_of(rounds, SAMPLED)} | {taken_of(rounds, WATCHED)} |"
        )
    return [*lines, "", f"Promised: the monitor takes less than {WANTED_LOSS:.0%} of steps of {STEPS_MS[-1]} ms."]


def taken_of(rounds: Rounds, name: str) -> str:
    """Return the share of the core, less that which the same clocks show without a monitor."""
    return f"{100 * (median(each[name].taken for each in rounds) - median(each[BARE].taken for each in rounds)):.2f}%"


def ratios(rounds: Rounds, name: str) -> list[float]:
    """To the bare loop, in each round."""
    return sorted(each[name].rate / each[BARE].rate for each in rounds)


def spread(rounds: Rounds, name: str) -> str:
    """Return the median ratio, and the least and the most."""
    found = ratios(rounds, name)
    return f"{median(found):.4f} ({found[0]:.3f} to {found[-1]:.3f})"


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {"cost": cost_results, "loop": loop_results}

if __name__ == "__main__":
    main()
