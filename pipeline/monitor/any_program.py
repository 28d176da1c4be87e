"""The verdict on a program of any kind, as far as it can be seen from outside."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.monitor.limits import Limit, find_limits_from_outside
from pipeline.monitor.load import Load, load_of

if TYPE_CHECKING:
    from pipeline.monitor.diagnosis import Table

UNKNOWN_FROM_OUTSIDE = (
    "The time of a step, and the part of it that is waiting for data, cannot be measured from outside: only the "
    "monitor in the training loop knows them"
)
_WORDS = {
    Limit.COMPUTE: "the GPU",
    Limit.DECODING: "its own work on all cores",
    Limit.READING: "the disk",
    Limit.ONE_CORE: "its own work on one core",
    Limit.OTHER_PROGRAMS: "other programs",
    Limit.CPU_QUOTA: "the CPU quota of its container",
    Limit.MEMORY: "too little memory",
}


@dataclass(frozen=True)
class OutsideVerdict:
    """What limits a program whose steps are not known."""

    limits: tuple[Limit, ...]
    """Empty if nothing on the machine is used up."""
    sentence: str


def diagnose_from_outside(samples: "Table") -> OutsideVerdict:
    """Return the verdict on a program by samples of the machine and of its processes.

    Args:
        samples: Rows of kind "samples", as a record has them.
    """
    load = load_of(samples)
    if load.busy is None:
        return OutsideVerdict((), "Not enough samples to say what limits this program.")
    limits = tuple(find_limits_from_outside(load))
    if limits:
        head = f"Limited by {' and '.join(_WORDS[limit] for limit in limits)}"
    else:
        head = "Nothing on this machine limits this program, so it waits for a server, a lock or a timer"
    facts = "; ".join(_facts(load))
    return OutsideVerdict(limits, f"{head}: {facts}. {UNKNOWN_FROM_OUTSIDE}.")


def _facts(load: Load) -> Iterator[str]:
    if load.gpu is not None:
        yield f"the GPU was {load.gpu:.0f}% busy"
    if load.own_cores is not None and load.usable_cores is not None:
        yield f"it kept {load.own_cores:.1f} of {load.usable_cores:g} cores busy"
    if load.busiest_thread is not None:
        yield f"its busiest thread was busy {load.busiest_thread:.0f}% of the time"
    if load.other_cores is not None:
        yield f"other programs kept {load.other_cores:.1f} cores busy"
    if load.disk_stalls is not None:
        yield f"tasks were stalled on disk I/O {load.disk_stalls:.0f}% of the time"
    elif load.disk is not None:
        yield f"the disk was {load.disk:.0f}% busy"
    if load.received_Bps is not None:
        yield f"{load.received_Bps / 1e6:.1f} MB a second came over the network"
