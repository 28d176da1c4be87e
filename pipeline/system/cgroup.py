"""The control groups of this process: their limits and their use.

A limit may be set for the group of the process or for any group above it. The tightest limit counts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pipeline.system.kernel import File, number

BASE = "sys/fs/cgroup"


class Group(Protocol):
    """The limit and the use of one resource. Both raise OSError or ValueError if the group has no such file.

    Some groups at the top have none.
    """

    def limit(self) -> float | None:
        """Return cores or bytes; None if there is no limit."""

    def use(self) -> Mapping[str, float]:
        """Return `used` of memory (bytes), or `used` (seconds), `periods` and `throttled` of processors since boot."""


def core_limits(root: Path) -> list[float]:
    """Return the numbers of cores that the groups of this process allow, such as 1.5."""
    base = root / BASE
    # Only limits are read. In version 1, the use may be counted in another tree, in a group with another name.
    groups: list[Group] = [
        *(_ProcessorsV2(base, path) for path in _paths(root, "")),
        *(_ProcessorsV1(base, path) for path in _paths(root, "cpu")),
    ]
    return [limit for group in groups if (limit := limit_of(group)) is not None]


def memory_groups(root: Path) -> list[Group]:
    """Return the groups that limit the memory of this process and report their use, its own group first."""
    return _groups(root, "", _memory_v2) or _groups(root, "memory", _memory_v1)


def processor_groups(root: Path) -> list[Group]:
    """Return the groups that limit the cores of this process and report their use, its own group first."""
    return _groups(root, "", _ProcessorsV2) or _groups(root, "cpu", _ProcessorsV1)


def _groups(root: Path, controller: str, kind: Callable[[Path, str], Group]) -> list[Group]:
    """Return the group of the process and those above it that report their use. "" is the controller of version 2."""
    groups = []
    for path in _paths(root, controller):
        group = kind(root / BASE, path)
        with suppress(OSError, ValueError):
            group.use()
            groups.append(group)
    return groups


def _paths(root: Path, controller: str) -> list[str]:
    """Return the paths of the group of the process and of all above it, up to "", the top that is visible here."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    # A line is such as "4:cpu,cpuacct:/machine/one" in version 1, and "0::/machine/one" in version 2.
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controller in controllers.split(","):
            parts = Path(path.lstrip("/")).parts
            return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
    return []


def tightest(groups: Sequence[Group]) -> tuple[Group, float | None] | None:
    """Return the group with the smallest limit, and the limit; None if there is no group.

    If no group has a limit, return the group of the process, and None instead of a limit.
    """
    limits = [(limit, group) for group in groups if (limit := limit_of(group)) is not None]
    if limits:
        limit, group = min(limits, key=lambda each: each[0])
        return group, limit
    return (groups[0], None) if groups else None


def limit_of(group: Group) -> float | None:
    """Return the limit of a group; None if it has none."""
    try:
        return group.limit()
    except (OSError, ValueError):  # The group at the top has no such file.
        return None


class _ProcessorsV2:
    def __init__(self, base: Path, path: str) -> None:
        self._max, self._stat = File(base / path / "cpu.max"), File(base / path / "cpu.stat")

    def limit(self) -> float | None:
        quota, period = self._max.read().split()
        return None if quota == b"max" else int(quota) / int(period)

    def use(self) -> Mapping[str, float]:
        statistics = self._stat.read()
        return {"used": number(statistics, "usage_usec") / 1e6, **_periods(statistics)}


class _ProcessorsV1:
    """The processors of a group of version 1, in which limit and use are two controllers, often in one folder."""

    def __init__(self, base: Path, path: str) -> None:
        folder = base / "cpu" / path
        self._quota, self._period = (File(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        self._stat, self._usage = File(folder / "cpu.stat"), File(base / "cpuacct" / path / "cpuacct.usage")

    def limit(self) -> float | None:
        quota = int(self._quota.read())
        # A quota of -1 means no limit.
        return None if quota <= 0 else quota / int(self._period.read())

    def use(self) -> Mapping[str, float]:
        periods = _periods(self._stat.read())
        try:
            return {"used": int(self._usage.read()) / 1e9, **periods}
        except OSError:  # The two controllers may be mounted apart, with groups of other names.
            return periods


def _periods(statistics: bytes) -> dict[str, float]:
    """Return the number of periods, and of those in which the limit was reached. Empty if there is no limit."""
    if b"nr_periods" not in statistics:
        return {}
    return {"periods": number(statistics, "nr_periods"), "throttled": number(statistics, "nr_throttled")}


class _Memory:
    """The memory of a group of either version. The use excludes cached files, which the kernel can drop.

    A file that was read twice is active. The kernel drops it, too, before it kills a process.
    """

    def __init__(self, limit: Path, use: Path, prefix: str = "") -> None:
        self._limit, self._use, self._stat = File(limit), File(use), File(limit.with_name("memory.stat"))
        self._cached = [f"{prefix}{state}_file" for state in ("active", "inactive")]

    def limit(self) -> float | None:
        limit = self._limit.read().strip()
        # In version 1, a limit of at least this size means that there is no limit.
        return None if limit == b"max" or int(limit) >= 1 << 60 else float(limit)

    def use(self) -> Mapping[str, float]:
        used = float(self._use.read())
        with suppress(OSError):  # The group may not report them.
            statistics = self._stat.read()
            for name in self._cached:
                with suppress(ValueError):
                    used -= number(statistics, name)
        return {"used": max(0.0, used)}


def _memory_v2(base: Path, path: str) -> _Memory:
    folder = base / path
    return _Memory(folder / "memory.max", folder / "memory.current")


def _memory_v1(base: Path, path: str) -> _Memory:
    limit, use = (base / "memory" / path / f"memory.{name}_in_bytes" for name in ("limit", "usage"))
    return _Memory(limit, use, "total_")
