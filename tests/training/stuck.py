"""The training process, whose main thread gets stuck in one phase: `stuck.py PHASE RUN_FOLDER PARENT ATTEMPT`.

It prints `stuck`, and is then within C code that never returns, as in a compilation. Python calls no handler of a
signal meanwhile.
"""

import builtins
import ctypes
import runpy
import sys
from collections.abc import Callable
from typing import Any

from pipeline.training import stop


def stuck(*_: object) -> None:
    print("stuck", flush=True)  # The import holds stderr back.
    mutex = ctypes.create_string_buffer(64)  # zeros: an unlocked mutex
    for _ in range(2):  # The second call waits forever.
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def importing(load: Callable[..., Any]) -> Callable[..., Any]:
    def loading(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "tensorflow":
            stuck()
        return load(name, *arguments, **named)

    return loading


def main(phase: str) -> None:
    stop.NOTICE_S = 0.5
    if phase == "import":
        builtins.__import__ = importing(builtins.__import__)
    else:
        from pipeline.training import fit
        from pipeline.training.step.loop import EpochLoop

        places = {
            "compile": (EpochLoop, "_result"),
            "validation": (EpochLoop, "evaluate"),
            "export": (fit, "export"),
        }
        owner, name = places[phase]
        assert hasattr(owner, name), "the product has another name for this phase"
        setattr(owner, name, stuck)
    runpy.run_module("pipeline.training", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv.pop(1))
