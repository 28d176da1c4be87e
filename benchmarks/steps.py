"""What a step costs beside the accelerator's work: steps of a small table, and gaps of a simulated accelerator.

    make bench-steps BENCH='--beside ../another-checkout'
    python -m benchmarks.steps [--beside CHECKOUT] [--rounds N] [--quick] [--only SECTION] [--json FILE]

Each round runs the code of each checkout in a process of its own, in alternating order. The table trains on the CPU
with `python -m pipeline train`, and its rate comes from the record: the fastest epoch after the first. The gaps are
those between two steps, by the clock of the accelerator.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from benchmarks.harness.machine import OtherLoad, machine_line, measure_sections, new_folder, say
from benchmarks.harness.rounds import ENVIRONMENT, ROOT, turned
from benchmarks.harness.tables import table_file
from benchmarks.tables import build_settings
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.stages.build import build

COLUMNS, ROWS, BATCH_SIZE, EPOCHS = 5, 40_000, 32, 5
"""Of the table: a number, an integer and a text beside its key and its label."""
STEP_S, STEPS = 0.003, 1500
"""Of the simulated accelerator."""
WANTED_RATE, WANTED_GAP_MS = 2.0, 0.2
OURS = "this checkout"
Measured = Mapping[str, list[Any]]
"""The results of all rounds, by checkout."""


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    chosen = {name: measure for name, measure in SECTIONS.items() if options.only in ("", name)}
    measure_sections([machine_line("tensorflow", "keras")], chosen, options)


RATES = """
import json, sys
from pathlib import Path
from pipeline.monitor.record import read
print(json.dumps(read(Path(sys.argv[1]), "epochs")["input/examples_per_s"].tolist()))
"""
"""Prints the examples per second of each epoch of a record, which only the code that wrote it can read."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description="The cost of a step.")
    parser.add_argument("--beside", type=Path, help="folder of another checkout, such as the one before a change")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all of it runs")
    parser.add_argument("--only", default="", choices=SECTIONS, help="of the sections")
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def in_rounds(measure: Callable[[Path], Any], options: argparse.Namespace) -> Measured:
    """Return what `measure` returns for each checkout, round by round."""
    checkouts = {OURS: ROOT} | ({str(options.beside): options.beside.resolve()} if options.beside else {})
    found: dict[str, list[Any]] = {name: [] for name in checkouts}
    with OtherLoad() as load:
        for number in range(1 if options.quick else options.rounds):
            for name in turned(list(checkouts), number):
                found[name].append(measure(checkouts[name]))
                say(f"round {number + 1}: {name}")
    print("", load.sentence(), "", sep="\n")
    return found


def run(checkout: Path, *arguments: str) -> str:
    """Return the last line that Python prints with the code of a checkout."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()[-1]


def table_results(options: argparse.Namespace) -> Measured:
    """Measure the steps per second of a table."""
    rows, epochs = (2_000, 2) if options.quick else (ROWS, EPOCHS)
    table = table_file(new_folder("tables"), rows, COLUMNS, "csv")
    dataset = build(settings_from(build_settings(table, new_folder("workspace"))))["dataset"]

    def rate(checkout: Path) -> float:
        values = {"dataset": dataset, "batch_size": BATCH_SIZE, "epochs": epochs, "workspace": new_folder("run")}
        settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        trained = json.loads(run(checkout, "-m", "pipeline", "train", "--json", *settings))
        of_epochs = json.loads(run(checkout, "-c", RATES, str(Path(trained["run"]) / "record")))
        return float(max(of_epochs[1:])) / BATCH_SIZE

    found = in_rounds(rate, options)
    print(f"| steps of a table, batches of {BATCH_SIZE} | steps per second | a step, ms | to this checkout |")
    print("|---|---|---|---|")
    for name, rates in found.items():
        share = median(each / ours for each, ours in zip(rates, found[OURS], strict=True))
        print(
            f"| {name} | {median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | {cell(rates)} | {share:.2f} |"
        )
    print(f"\nPromised: at least {WANTED_RATE} times the steps per second of the code that sends one step at a time.")
    return found


def cell(rates: list[float]) -> str:
    """Return the milliseconds of a step at the median rate."""
    return f"{1000 / median(rates):.2f}"


def gap_results(options: argparse.Namespace) -> Measured:
    """Measure the gaps between the steps of a simulated accelerator."""
    worker = str(ROOT / "benchmarks" / "contenders" / "gaps.py")
    steps = 200 if options.quick else STEPS

    def gaps_ms(checkout: Path) -> list[float]:
        found = json.loads(run(checkout, worker, str(STEP_S), str(steps), str(new_folder("gaps"))))
        return [1000 * each for each in found]

    found = in_rounds(gaps_ms, options)
    print(f"| gaps between steps of {1000 * STEP_S:g} ms | median, ms | mean | 95th percentile |")
    print("|---|---|---|---|")
    figures: list[Callable[[list[float]], float]] = [median, mean, partial(percentile, 95)]
    for name, rounds in found.items():
        cells = [f"{median([figure(gaps) for gaps in rounds]):.3f}" for figure in figures]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\nPromised: at most {WANTED_GAP_MS} ms.")
    return found


def percentile(number: int, values: list[float]) -> float:
    """Return a percentile."""
    return quantiles(values, n=100, method="inclusive")[number - 1]


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {"table": table_results, "gaps": gap_results}

if __name__ == "__main__":
    main()
