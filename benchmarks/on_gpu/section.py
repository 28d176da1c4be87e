"""The process of a section: `python -m benchmarks.on_gpu.section NAME JOB`, where JOB is a JSON object.

Prints a line of JSON for each row as soon as it is known, and at the end one with the error, if any. All other output
goes to stderr.
"""

import importlib
import json
import os
import sys
import traceback
from dataclasses import asdict

from benchmarks.on_gpu import Row
from pipeline.training.tensorflow_start import remove_generated_files

MODULES = {
    "machine": "data",
    "datasets": "data",
    "steps": "steps",
    "training": "trainings",
    "two_trainings": "trainings",
}
"""The module of each section. Only the section that runs is imported: the packages that others need may be missing."""


def main(name: str, job: str) -> None:
    """Run a section."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # TensorFlow and others print to stdout as they like.

    def report(row: Row) -> None:
        print(json.dumps(asdict(row)), file=answers, flush=True)

    try:
        getattr(importlib.import_module(f"benchmarks.on_gpu.{MODULES[name]}"), name)(json.loads(job), report)
    except Exception as error:  # noqa: BLE001 - a section that fails must not end the others
        traceback.print_exc()
        print(json.dumps({"error": in_words(error)}), file=answers, flush=True)
    remove_generated_files()
    # Everything is reported. An ordinary exit waits for all threads, and TensorFlow's can deadlock.
    os._exit(0)


def in_words(error: Exception) -> str:
    """Return an error in one line."""
    if isinstance(error, ModuleNotFoundError):
        return f"this Python has no module {error.name!r}: install its package there, or add it to PYTHONPATH"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}"


if __name__ == "__main__":
    main(*sys.argv[1:])
