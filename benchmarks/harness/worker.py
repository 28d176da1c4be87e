"""A process that does one kind of work on command, so that its imports, memory and time are its own.

    python -m benchmarks.harness.worker NAME JOB.json          do the job and end, timed from outside
    python -m benchmarks.harness.worker NAME JOB.json serve    do it each time a line comes on stdin

Each time it answers with a line of JSON on what was its stdout: {"peak_mb": ...}, with {"seen": ...} where the work
returned what it measured itself, or {"error": ...} where the writer is not installed or failed. It imports next to
nothing itself: what a process costs is its writer's doing.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Do the job of the command line, once or for each line of stdin."""
    name, job_file, *serve = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # writers print to stdout as they like
    with open(job_file) as file:
        job = json.load(file)
    # What the first time is to do instead: enough to import all and to connect.
    now = job | job.pop("first") if "first" in job else job
    for _ in sys.stdin if serve else [""]:
        print(json.dumps(answer(name, now)), file=answers, flush=True)
        now = job


def answer(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Do the job, and return the answer."""
    try:
        from benchmarks.contenders.loops import TRAININGS
        from benchmarks.contenders.readers import READERS
        from benchmarks.contenders.rival_writers import RIVAL_WRITERS
        from benchmarks.contenders.table_models import TABLE_MODELS
        from benchmarks.contenders.tables import TABLES
        from benchmarks.contenders.transfers import TRANSFERS
        from benchmarks.contenders.writers import WRITERS

        if "url" in job:
            os.environ["STORAGE_EMULATOR_HOST"] = job["url"]  # before a client is loaded
        works: dict[str, Callable[[dict[str, Any]], Any]] = {
            **WRITERS,
            **RIVAL_WRITERS,
            **TRANSFERS,
            **READERS,
            **TRAININGS,
            **TABLES,
            **TABLE_MODELS,
        }
        seen = works[name](job)
    except ImportError as error:
        return {"error": f"not installed ({error})"}
    except Exception as error:  # noqa: BLE001 - one writer that fails must not end the measurement of the others
        text = " ".join(str(error).split())  # one line, for a cell of a table
        return {"error": f"failed ({type(error).__name__}: {text})"}
    return {"peak_mb": peak_mb()} | ({} if seen is None else {"seen": seen})


def peak_mb() -> float:
    """Return the most memory that this process has had, in MB. `ru_maxrss` would count the parent's before exec."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmHWM"))
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes if there is no /proc


if __name__ == "__main__":
    main()
