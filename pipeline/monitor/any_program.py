"""The verdict on a program of any kind, as far as it can be seen from outside."""

from collections.abc import Iterator

from pipeline.monitor.diagnosis import Table
from pipeline.monitor.limits import Limit, find_limits_from_outside
from pipeline.monitor.load import Load, load_of
from pipeline.monitor.verdict import Verdict, about_reading

UNKNOWN_FROM_OUTSIDE = (
    "The time of a step, and the part of it that is waiting for data, cannot be measured from outside: only the "
    "monitor in the training loop knows them"
)
_WORDS = {
    Limit.COMPUTE: "the GPU",
    Limit.DECODING: "its own work on all cores",
    Limit.READING: "the disk",
    Limit.ONE_CORE: "its own work on one core",
    Limit.SERIAL: "its own work on one core",
    Limit.OTHER_PROGRAMS: "other programs",
    Limit.CPU_QUOTA: "the CPU quota of its container",
    Limit.MEMORY: "too little memory",
}


def diagnose_from_outside(samples: Table) -> Verdict:
    """Return the verdict on a program by samples of the machine and of its processes, as a record has them.

    It has no limits if nothing on the machine is used up.
    """
    load = load_of(samples)
    if load.busy is None:
        return Verdict((), "Not enough samples to say what limits this program.", load)
    limits = tuple(find_limits_from_outside(load))
    if limits:
        head = f"Limited by {' and '.join(_WORDS[limit] for limit in limits)}"
    else:
        head = (
            "Nothing on this machine limits this program, so it waits for a server, a lock or a timer, or its own "
            "threads or processes wait for each other"
        )
    return Verdict(limits, f"{head}: {'; '.join(_facts(load))}. {UNKNOWN_FROM_OUTSIDE}.", load)


def _facts(load: Load) -> Iterator[str]:
    if load.gpu is not None:
        yield f"the GPU was {load.gpu:.0f}% busy"
    if load.own_cores is not None and load.usable_cores is not None:
        yield f"it kept {load.own_cores:.1f} of {load.usable_cores:g} cores busy"
    if load.busiest_thread is not None:
        yield f"its busiest thread was busy {load.busiest_thread:.0f}% of the time"
    if load.other_cores is not None:
        yield f"other programs kept {load.other_cores:.1f} cores busy"
    yield from about_reading(load)
