"""Let an engine call a function of cases.py: `python -m tests.engines.call ENGINE FUNCTION FOLDER PLACES SOURCES`.

Prints {"count", "kind", "message"}: what the calls returned together, and the class and the text of the error, if any.
"""

import json
import sys
from pathlib import Path

from pipeline.config.allowed import SOURCES
from pipeline.engines import engine_named
from pipeline.engines.task import Task
from pipeline.errors import TenfoldError
from tests.engines import cases


def main(engine: str, function: str, folder: str, places: str, sources: str) -> None:
    """Call the engine and print the count and the error."""
    counts: list[int] = []
    result = {"kind": "", "message": ""}
    names = [str(Path(folder) / f"{number:05d}.txt") for number in range(int(places))]
    try:
        task = Task(getattr(cases, function), {SOURCES: sources})
        engine_named(engine)(task, names, lambda count, _size=0: counts.append(count))
    except TenfoldError as error:
        result = {"kind": type(error).__name__, "message": str(error)}
    print(json.dumps({"count": sum(counts), **result}))


if __name__ == "__main__":
    main(*sys.argv[1:])
