"""What a command uses: its time, and the memory of its largest process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_LAUNCH = """
import json, os, sys, time
begin = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
seconds = time.perf_counter() - begin
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss], file)
"""


@dataclass(frozen=True)
class Usage:
    """What a command used, with all processes that it waited for."""

    exit_code: int
    seconds: float
    cpu_s: float
    peak_mb: float
    """Memory of the largest process."""


def usage_of(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> Usage:
    """Run a command to its end, and return what it used. Its output goes into a file if that is given."""
    # Linux counts the memory of the starting process as that of the command. So a small process starts it.
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH]
    with tempfile.NamedTemporaryFile("r") as found:
        subprocess.run(
            [*launch, found.name, *command],
            cwd=cwd,
            env=environment or os.environ,
            stdout=output,
            stderr=output,
            check=True,
        )
        exit_code, seconds, cpu_s, peak = json.load(found)
    return Usage(exit_code, seconds, cpu_s, peak * 1024 / 1e6)
