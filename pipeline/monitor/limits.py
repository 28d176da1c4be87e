"""Finds what limits a training, from the shares of its time and the load of the machine.

Its own cores, its container's limits and its own threads are judged first, because the figures of the whole machine
depend on other programs as well. If several limits are reached at once, all are named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.monitor.load import Load

FINE, BOUND = 0.05, 0.20
"""Shares of the time. These are the thresholds of TensorBoard's input-pipeline analyzer."""
MIN_HOST = 0.10
"""Share of the time. Below it, the loop itself is no bottleneck: it takes 0.5 ms of any step, 5% of one of 10 ms."""
BUSY, HALF_BUSY = 0.80, 0.50
"""Shares of the usable cores. From the first on, nothing is left: some is always lost between two tasks."""
BUSY_PERCENT = 80.0
"""Percent of the time of one core, one thread or one disk."""
THROTTLED = 20.0
"""Percent of the time. From here on, the CPU limit of the container holds the training back."""
MEMORY_STALLS, MAJOR_FAULTS = 10.0, 5.0
"""Percent of the time, and pages a second. From both on, the memory is too small for what is in use."""
OTHERS = 0.25
"""Share of the cores. From here on, other programs have enough of them to slow a training down."""
UNMET = 0.25
"""Cores that the training waits for because of other programs: this number, and this share of what it could use."""
DEMANDED = 0.9
"""Share of a part's time in which threads of the training must run or wait for a core. Below it, the training slept."""
ONE_CORE = (0.8, 1.3)
"""Cores in use if one stage works all the time, and one thread at a time: one, and a little for all other code."""
LATE_MS = 2.5
"""The monitor's thread wakes up later than this on average if Python code holds the lock.

The lock changes hands every 5 ms.
"""
CALM = 0.5
"""Share of the steps that hardly wait. From here on, the wait of the other steps comes in bursts."""
IDLE_GPU = 60.0
"""Percent. A GPU that is less busy than this while the training computes is held up by the host."""
STALLED = 0.5
"""Share of the time in which readers wait for a disk. From here on, the disk limits a program of any kind."""
OWN_READING_BPS = 100_000
"""Bytes a second. Below this, a training does not read, and the stalls on a disk are those of other programs."""
BPS_PER_CORE = 1_000_000
"""Bytes a second from the network for each busy core, and for one at least. Below this, an input does not read from the
network: a core decodes about 15 MB a second, and other programs receive some bytes, too."""


class Limit(StrEnum):
    """What limits a training."""

    UNKNOWN = "unknown"
    COMPUTE = "compute"
    DECODING = "decoding"
    ONE_CORE = "one core"
    SERIAL = "serial stage"
    WAITING = "waiting"
    READING = "reading"
    BUFFER = "buffer"
    HOST = "host"
    CHECKPOINTS = "checkpoints"
    VALIDATION = "validation"
    CALLBACKS = "callbacks"
    BETWEEN_EPOCHS = "work between epochs"
    OTHER_PROGRAMS = "other programs"
    CPU_QUOTA = "CPU quota"
    MEMORY = "memory"
    PYTHON = "Python code"
    LATE_KERNELS = "late kernels"


class Part(StrEnum):
    """A part of the time of a training after its first step."""

    INPUT = "input"
    COMPUTE = "compute"
    HOST = "host"
    CHECKPOINTS = "checkpoints"
    VALIDATION = "validation"
    CALLBACKS = "callbacks"


_MIN_SHARES = {
    Part.INPUT: FINE,
    Part.HOST: MIN_HOST,
    Part.CHECKPOINTS: FINE,
    Part.VALIDATION: BOUND,
    Part.CALLBACKS: BOUND,
}
"""Share of the time from which on a part is a bottleneck."""
Shares = dict[Part, float]
"""Share (0 to 1) of the time after the first step, by part."""


@dataclass(frozen=True)
class Supply:
    """How the batches came.

    `wait` is the share of the step time that is waiting, `calm` the share of the steps that hardly wait, and
    `full` the share of the time in which all batches that the input may keep ready were ready; None if unknown.
    """

    wait: float
    calm: float
    full: float | None = None


@dataclass(frozen=True)
class Bottleneck:
    """The parts that take the time, the largest first, and what limits the first of them (and the others)."""

    parts: tuple[Part, ...]
    limits: tuple[Limit, ...]


def find_bottleneck(
    shares: Shares,
    supply: Supply,
    load: Load,
    validation: Load | None = None,
    python_calls: float = 0.0,
    is_simulated: bool = False,
) -> Bottleneck:
    """Return what limits a training.

    `load` is that of the steps, and `validation` that of the validations. `python_calls` is the number of operations of
    a step that call Python code. `is_simulated` says whether the steps only waited, instead of using an accelerator.
    Such steps need no core.
    """
    lost = _lost_to_others(shares.get(Part.VALIDATION, 0.0), validation or Load())
    own = {**shares, Part.VALIDATION: shares.get(Part.VALIDATION, 0.0) - lost}
    parts = [part for part, min_share in _MIN_SHARES.items() if own.get(part, 0.0) >= min_share]
    if lost >= BOUND and Part.VALIDATION not in parts:
        parts.append(Part.VALIDATION)
    if not parts:
        compute = shares.get(Part.COMPUTE, 1.0)
        return Bottleneck((Part.COMPUTE,), tuple(_of_compute(compute, load, python_calls, is_simulated)))
    parts.sort(key=lambda part: -shares[part])
    # The part that takes most of the time besides computing, and all others that take a large share.
    parts = parts[:1] + [part for part in parts[1:] if shares[part] >= BOUND]
    limits: list[Limit] = []
    for part in parts:
        if part is Part.VALIDATION and lost >= BOUND:
            limits.append(Limit.OTHER_PROGRAMS)
        if own[part] >= _MIN_SHARES[part]:
            limits += _of_part(part, shares[part], supply, load, _step_cores(load, is_simulated))
    return Bottleneck(tuple(parts), tuple(dict.fromkeys(limits)))


def find_limits_from_outside(load: Load) -> list[Limit]:
    """Return what limits a program whose steps cannot be seen; empty if nothing on the machine is used up.

    A GPU that is busy most of the time needs nothing else. DECODING stands for any work on all cores.
    """
    if load.gpu is not None and load.gpu >= IDLE_GPU:
        return [Limit.COMPUTE]
    limits = list(_of_busy_machine(1.0, load))
    if not limits and (load.disk_wait or 0.0) >= STALLED:
        return [Limit.READING]
    return limits or ([Limit.SERIAL] if _works_in_turn(load) else [])


def _step_cores(load: Load, is_simulated: bool) -> float:
    """Return the cores that a step may keep busy while it computes: one if it uses a GPU."""
    if is_simulated:
        return 0.0
    return (load.usable_cores or load.cores or 1.0) if not load.has_gpu else 1.0


def _of_part(part: Part, share: float, supply: Supply, load: Load, step_cores: float) -> Iterator[Limit]:
    if part is Part.INPUT:
        yield from list(_of_busy_machine(supply.wait, load)) or _of_idle_machine(supply, load, step_cores)
    elif part is Part.HOST:
        yield from _of_surroundings(share, load)
        yield Limit.HOST
    else:
        yield Limit(part.value)  # Such a part is its own limit.


def _of_compute(share: float, load: Load, python_calls: float, is_simulated: bool) -> Sequence[Limit]:
    """Return what limits the compute. A GPU that is busy needs nothing from the host."""
    if is_simulated or (load.gpu is not None and load.gpu >= IDLE_GPU):
        return [Limit.COMPUTE]
    limits = list(_of_surroundings(share, load))
    if python_calls and not _uses_all_cores(load):
        limits.append(Limit.PYTHON)
    # The batches are ready, but the thread that starts the kernels waits for a core as all others do.
    if not limits and load.gpu is not None and _uses_all_cores(load):
        limits.append(Limit.LATE_KERNELS)
    return limits or [Limit.COMPUTE]


def _of_surroundings(share: float, load: Load) -> Iterator[Limit]:
    """Yield what keeps a training from its machine, in a part that takes this share of the time."""
    if (load.throttled or 0.0) >= THROTTLED:
        yield Limit.CPU_QUOTA
    # If faults were not counted, the stalls alone decide.
    faults = MAJOR_FAULTS if load.major_faults is None else load.major_faults
    if (load.memory_stalls or 0.0) >= MEMORY_STALLS and faults >= MAJOR_FAULTS:
        yield Limit.MEMORY
    if _is_starved(share, load):
        yield Limit.OTHER_PROGRAMS


def _of_busy_machine(wait: float, load: Load) -> Iterator[Limit]:
    """Yield what is used up while a training waits for this share of the time."""
    surroundings = list(_of_surroundings(wait, load))
    yield from surroundings
    # If other programs hold the cores, the threads that wait for a core might decode, or might only wait for the lock
    # of Python's interpreter. The numbers cannot tell these apart until the other programs are gone. Only a single
    # thread is clear.
    is_clear = Limit.OTHER_PROGRAMS not in surroundings
    uses_all_cores = _uses_all_cores(load)
    if is_clear and uses_all_cores:
        yield Limit.DECODING
    if _stalls_on_disk(wait, load):
        yield Limit.READING
    if not uses_all_cores and (is_clear or _demanded_cores(load) <= ONE_CORE[1]):
        if _holds_lock(load):
            yield Limit.ONE_CORE
        elif _has_busy_thread(load):
            yield Limit.SERIAL


def _of_idle_machine(supply: Supply, load: Load, step_cores: float) -> list[Limit]:
    """Return what the input waits for if this machine is not busy."""
    if supply.calm >= CALM and _buffer_would_help(supply):
        # If the ready batches were not counted, the input may be too slow as well.
        slow = _of_slow_input(supply.wait, load, step_cores) if supply.full is None else []
        return [*slow, Limit.BUFFER]
    return _of_slow_input(supply.wait, load, step_cores)


def _of_slow_input(wait: float, load: Load, step_cores: float) -> list[Limit]:
    """Return what keeps an input slow beside idle cores: what it reads, or a stage that works on one core at a time.

    Steps wait for this share of the time. In the rest, they may keep `step_cores` cores busy themselves.
    """
    own = load.own_cores or 0.0
    if _has_stalled_readers(load):
        return [Limit.READING]
    works_in_turn = _works_in_turn(load)
    if (load.own_share or 0.0) >= HALF_BUSY and not works_in_turn:
        if (load.busy or 0.0) >= BUSY_PERCENT:
            return [Limit.DECODING]
        return [Limit.DECODING, *_of_reading(load, is_working=True), Limit.SERIAL]
    if works_in_turn or own - (1 - wait) * step_cores >= ONE_CORE[0]:  # The input itself works all the time.
        return [*_of_reading(load, is_working=True), Limit.SERIAL]
    if reading := _of_reading(load, is_working=False):
        return reading
    return [Limit.WAITING] if own < ONE_CORE[0] else [Limit.SERIAL, Limit.WAITING]


def _of_reading(load: Load, *, is_working: bool) -> list[Limit]:
    """Return READING if the input may wait for a disk or the network.

    If the input works all the time, a disk can only hold it up if its readers wait most of the time.
    """
    may_stall = not is_working or _may_reach(load.disk_wait, STALLED)
    from_disk = may_stall and _may_reach(load.own_read_Bps, OWN_READING_BPS)
    from_network = _may_reach(load.inflow_Bps, BPS_PER_CORE * max(1.0, load.own_cores or 0.0))
    return [Limit.READING] if from_disk or from_network else []


def _may_reach(value: float | None, least: float) -> bool:
    """Return whether a number may be high enough. A number that nothing measured may be anything."""
    return value is None or value >= least


def _buffer_would_help(supply: Supply) -> bool:
    """Return whether the mean supply is fast enough.

    The input stands still while all batches are ready. If that takes as long as the steps wait for batches, more room
    for batches can bridge the waits. If the steps wait most of the time, no buffer helps.
    """
    return supply.full >= supply.wait if supply.full is not None else supply.wait < 0.5


def _demanded_cores(load: Load) -> float:
    """Return the cores that the training had or waited for."""
    return (load.own_cores or 0.0) + (load.core_wait or 0.0)


def _unmet(load: Load) -> float:
    """Return the cores that the training waited for while other programs had them."""
    return min(load.core_wait or 0.0, load.other_cores or 0.0)


def _is_starved(share: float, load: Load) -> bool:
    """Return whether other programs hold the cores that a part of this share of the time needs."""
    # It has nearly all cores that it may use, so nobody keeps them from it.
    if (load.own_share or 0.0) >= BUSY:
        return False
    unmet, others, own = _unmet(load), load.other_cores or 0.0, load.own_cores or 0.0
    # The training slept in this part, so it did not miss a core.
    if (load.demand or 0.0) < DEMANDED * share:
        return False
    is_full = (load.busy or 0.0) >= BUSY_PERCENT and others >= OTHERS * (load.cores or 1.0)
    return is_full and unmet >= max(UNMET, share / 2) and unmet >= UNMET * (own + unmet)


def _lost_to_others(share: float, load: Load) -> float:
    """Return how much of the share of a part with this load is lost because other programs hold its cores."""
    if not _is_starved(1.0, load):
        return 0.0
    return share * _unmet(load) / ((load.own_cores or 0.0) + _unmet(load))


def _uses_all_cores(load: Load) -> bool:
    """Return whether the training would use all cores that it may use, if other programs left them."""
    if load.own_share is None:
        return False
    usable = load.usable_cores or load.cores
    return load.own_share + (_unmet(load) / usable if usable else 0.0) >= BUSY


def _stalls_on_disk(wait: float, load: Load) -> bool:
    """Return whether the training is stalled on a disk, or on a network file system.

    Stalls that take at least half as long as the waits count as their cause.
    """
    # The waits of its own threads say more than its bytes, which lack those of network file systems.
    is_own = _may_reach(load.own_read_Bps, OWN_READING_BPS) if load.disk_wait is None else _has_stalled_readers(load)
    return is_own and ((load.disk or 0.0) >= BUSY_PERCENT or (load.disk_stalls or 0.0) >= 100 * wait / 2)


def _has_stalled_readers(load: Load) -> bool:
    """Return whether the readers always wait for a disk. The slowest stage of an input never rests."""
    return 100 * (load.disk_wait or 0.0) >= BUSY_PERCENT


def _holds_lock(load: Load) -> bool:
    """Return whether Python code holds the interpreter's lock all the time."""
    own = load.own_cores or 0.0
    if own < ONE_CORE[0] or (load.late_ms or 0.0) < LATE_MS:
        return False
    # Beside the lock, TensorFlow's code may use more cores. If a core was idle all the time, the monitor's thread can
    # only have waited for the lock.
    return own <= ONE_CORE[1] or (load.idle_cores or 0.0) >= 1


def _has_busy_thread(load: Load) -> bool:
    """Return whether one thread works all the time, and does at least half of the work: it is not one of many."""
    if load.busiest_thread is not None:
        return load.busiest_thread >= BUSY_PERCENT and load.busiest_thread / 100 >= _demanded_cores(load) / 2
    own = load.own_cores
    return (load.busiest_core or 0.0) >= BUSY_PERCENT and (own is None or ONE_CORE[0] <= own <= 2)


def _works_in_turn(load: Load) -> bool:
    """Return whether about one core is in use all the time: threads that work one at a time, as in a serial map.

    TensorFlow runs a serial map on many threads. None of them is busy all the time, and no two of them work at once.
    """
    if load.own_cores is None or load.own_cores_peak is None:
        return False
    return load.own_cores >= ONE_CORE[0] and max(load.own_cores, load.own_cores_peak) <= ONE_CORE[1]
