"""Imports Airflow as a process that parses DAGs has it, then the modules named on the command line.

    python -m benchmarks.harness.dag_import MODULE ...

A process of its own, since a module is imported once. Prints a JSON object: seconds, and what came in with the modules.
"""

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence


def main(names: Sequence[str]) -> None:
    """Import, and print what it took."""
    airflow = timed("airflow", import_airflow)
    known = set(sys.modules)
    # Else the garbage collector may go over all of Airflow in our time; Airflow freezes its objects for tasks, too.
    gc.collect()
    gc.freeze()
    ours = timed("ours", lambda: [importlib.import_module(name) for name in names])
    print(json.dumps({**airflow, **ours, "modules": sorted(set(sys.modules) - known)}))


def timed(name: str, work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of some work, by the clock and on a core. Other programs make only the first longer."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    work()
    return {f"{name}_s": time.perf_counter() - begin, f"{name}_cpu_s": time.process_time() - begin_cpu}


def import_airflow() -> None:
    """Import all that any DAG needs: much of Airflow is imported when the first one is made."""
    import airflow.dag_processing.processor  # noqa: F401 - and all that it imports
    from airflow.sdk import Param, dag, task, task_group

    @dag(schedule=None, params={"field": Param("")})
    def least() -> None:
        @task
        def numbers() -> list[int]:
            return []

        @task
        def one(number: int) -> None:
            pass

        @task_group
        def group(values: list[int]) -> None:
            one.expand(number=values)

        group(numbers())

    least()


if __name__ == "__main__":
    main(sys.argv[1:])
