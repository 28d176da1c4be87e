"""Where stored results come from: results of other code, jobs or machines do not count beside those of today."""

import hashlib
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness.machine import machine_words
from benchmarks.harness.rounds import ROOT

PREDICTING = (
    *("tuning/advice.py", "tuning/predictions.py", "tuning/rates.py", "report/", "commands/", "training/advise.py"),
    *("training/step_times.py", "training/cache_costs.py", "runs/measured_steps.py", "runs/measured_caches.py"),
    "runs/advised.py",
)
"""Parts of `pipeline/` that do not change how fast a training is, or what its stages cost. If they
change, a kept training still has the steps and caches that an older version measured."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Origin:
    """The code, the machine and the day of a result."""

    digest: str = ""
    """Of the source of Tenfold, and of all that decides what is measured."""
    machine: str = ""
    commit: str = ""
    """For a person: commits that change neither have the same digest."""
    day: str = ""

    @property
    def line(self) -> str:
        """Say where and when it was measured."""
        return f"{self.day}, {self.machine}, commit {self.commit}."

    def is_like(self, other: "Origin") -> bool:
        """Whether results of both may be compared."""
        return (self.digest, self.machine) == (other.digest, other.machine)


UNKNOWN = Origin()


def origin_of(*measured: str, without: Collection[str] = ()) -> Origin:
    """Return the origin of a result that is measured now.

    Args:
        measured: Descriptions of what is measured.
        without: Files and folders of `pipeline/` that do not matter.
    """
    return Origin(
        digest=_digest(measured, ROOT / "pipeline", without),
        machine=machine_words("tensorflow"),
        commit=_commit(),
        day=datetime.now(UTC).date().isoformat(),
    )


def parsed(kind: type[_T], line: Mapping[str, Any]) -> _T:
    """Return a dataclass with an `origin` from its line of JSON. A line of another version may have other fields."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    known = {name: value for name, value in line.items() if name in names}
    return kind(**{**known, "origin": Origin(**line.get("origin", {}))})


def _digest(measured: Collection[str], source: Path, without: Collection[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).as_posix()
        if not name.startswith((*without,)):
            digest.update(f"{name}\n".encode() + path.read_bytes())
    for text in measured:
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()[:16]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty= with changes", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # An archive of the source has no commit.
        return "unknown"
