"""Tables: rows into shards and out of them, a training, and the memory of tasks, beside what a user would pick instead.

    make bench-tables
    python -m benchmarks.tables [--rounds N] [--rows N] [--columns N ...] [--formats csv parquet] [--no-peers] [--large]
        [--only SECTION] [--models] [--json FILE] [--resume]

All contenders of a section are measured in alternating rounds, with a warm page cache. Compare the ratios, whose
intervals are the lowest and the highest of all rounds. The tables are random, with a fixed seed, and are kept in
.bench/tables. The other packages are in .bench/peers (`make bench-env`).
"""

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.machine import (
    HOME,
    PEERS_PYTHON,
    has_peers,
    job_file,
    logs,
    machine_line,
    new_folder,
    say,
    versions_in,
)
from benchmarks.harness.rounds import Contender, as_json, measure_whole, measure_work, whole
from benchmarks.harness.tables import KEY, LABEL, feature_names, table_file
from benchmarks.table_models import compare_models, models_as_json
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.stages.build import build

ROWS = 200_000
"""Rows of a table with NARROW columns. A wider table has fewer rows, so that all have as many cells."""
NARROW = 20
COLUMNS = (NARROW, 200)
BATCH_SIZE, SHARDS = 256, 10
FORMATS = ("csv", "parquet")
TASKS = ("extract", "extract_range", "plan", "write")
TASK_ROWS, LARGE_TASK_ROWS = (100_000, 1_000_000), 10_000_000
HERE = Path(sys.executable)

OURS = "**Tenfold**"
PANDAS, TFDS = "pandas, `tf.train.Example`, `TFRecordWriter`", "TFDS"
SINGLE, CSV = "the same shards, `parse_single_example`", "`make_csv_dataset`"
FRAME, PYTORCH = "pandas, slices of a frame in memory", "PyTorch `DataLoader` on Arrow, 2 workers"


@dataclass(frozen=True)
class Section:
    """The results of a section: what `--json` stores, and a table in Markdown."""

    figures: Any
    lines: Sequence[str]


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    logging.disable(logging.WARNING)  # Small tables give advice on the size of shards.
    machine = [
        machine_line("tensorflow", "pyarrow", "pandas"),
        versions_in(PEERS_PYTHON, "tensorflow-datasets", "tensorflow", "torch", "pyarrow"),
    ]
    print(*machine, sep="\n", flush=True)
    results = {"machine": machine} | (load_results(options.json) if options.resume else {})
    try:
        for name, measure in sections(options).items():
            if name not in results:
                section = measure()
                results[name] = {"figures": section.figures, "lines": section.lines}
                save_results(results, options.json)
            print("", *results[name]["lines"], sep="\n", flush=True)
    finally:
        shutil.rmtree(HOME / "work", ignore_errors=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description="Tables.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; of whole processes, a third of them")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of the table with {NARROW} columns")
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS, help="numbers of columns")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, help="formats of the tables to write")
    parser.add_argument("--no-peers", action="store_true", help="leave out the writers in .bench/peers, which are slow")
    parser.add_argument("--large", action="store_true", help=f"also measure tasks with {LARGE_TASK_ROWS:,} rows")
    parser.add_argument("--models", action="store_true", help="only how good the default model is, in half an hour")
    parser.add_argument("--only", default="", metavar="SECTION", help="write, read, train or memory")
    parser.add_argument("--json", type=Path, help="file for every figure, written after each section")
    parser.add_argument("--resume", action="store_true", help="skip the sections that the file of --json has")
    return parser.parse_args(arguments)


def load_results(file: Path | None) -> dict[str, Any]:
    """Return the results of an earlier call, of which this one has the rest."""
    results: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    return results


def save_results(results: Mapping[str, Any], file: Path | None) -> None:
    """Write the results of all sections so far."""
    if file:
        file.write_text(json.dumps(results, indent=1))


def sections(options: argparse.Namespace) -> dict[str, Callable[[], Section]]:
    """Return the chosen sections by their names."""
    if options.models:
        return {"models": models_section}
    all_of_them: dict[str, Callable[[], Section]] = {}
    for columns in options.columns:
        all_of_them[f"write, {columns} columns"] = partial(write_section, options, columns)
        all_of_them[f"read, {columns} columns"] = partial(read_section, options, columns)
    all_of_them["train"] = partial(train_section, options)
    all_of_them["memory"] = partial(memory_section, options)
    return {name: measure for name, measure in all_of_them.items() if name.startswith(options.only)}


def table_of(options: argparse.Namespace, columns: int, suffix: str) -> tuple[Path, int]:
    """Return the table of a section, and its number of rows."""
    rows = max(1000, options.rows * NARROW // columns)
    return table_file(HOME / "tables", rows, columns, suffix), rows


def build_settings(table: Path, workspace: Path) -> dict[str, Any]:
    """Return the settings of a build."""
    return {
        "example_kind": "table",
        "source_uri": str(table),
        "workspace": str(workspace),
        "label_column": LABEL,
        "key_column": KEY,
    }


# --- into shards ------------------------------------------------------------------------------------------------------


def write_section(options: argparse.Namespace, columns: int) -> Section:
    """Measure whole processes that turn a table into shards, and the stages of our own."""
    lines: list[str] = []
    figures: dict[str, Any] = {}
    for suffix in options.formats:
        table, rows = table_of(options, columns, suffix)
        rounds = max(2, options.rounds // 3)
        say(f"into shards: {rows:,} rows of {columns} columns from {suffix}, {rounds} rounds")
        contenders = writers(table, rows, with_peers=not options.no_peers)
        measure_whole(contenders, rounds, logs())
        seconds = stages(table)
        figures[suffix] = {"contenders": as_json(contenders), "stages": seconds}
        title = f"into shards, {rows:,} rows of {columns} columns, {suffix}"
        lines += [*ratio_table(title, contenders, "whole_s"), "", stages_line(seconds, rows), ""]
    return Section(figures, lines[:-1])


def writers(table: Path, rows: int, *, with_peers: bool) -> list[Contender]:
    """Return the writers of a table. The peers are those in .bench/peers."""
    workspace = new_folder("workspace")
    job = job_file({"settings": build_settings(table, workspace)})
    contenders = [Contender(OURS, "table_build", HERE, [job], rows, [workspace])]
    others = [(PANDAS, "table_pandas_writer", HERE)]
    if with_peers and has_peers():
        others.append((TFDS, "table_tfds_writer", PEERS_PYTHON))
    for title, writer, python in others:
        folder = new_folder("out")
        job = job_file({"table": str(table), "folder": str(folder), "shards": SHARDS})
        contenders.append(Contender(title, writer, python, [job], rows, [folder]))
    return contenders


def stages(table: Path) -> dict[str, float]:
    """Return the seconds of the stages of one build."""
    workspace = new_folder("workspace")
    job = job_file({"settings": build_settings(table, workspace)})
    task = Contender("stages", "table_stages", HERE, [job], 0, [workspace])
    run(task)
    seconds: dict[str, float] = task.seen[0]
    return seconds


def run(task: Contender) -> float:
    """Run a process once, and return its seconds."""
    log = logs() / f"{task.writer}.log"
    seconds = whole(task, log)
    if task.error:
        raise SystemExit(f"{task.title}: {task.error}; see {log}")
    return seconds


def stages_line(seconds: Mapping[str, float], rows: int) -> str:
    """Return the seconds of all stages of a build, and the microseconds of each row."""
    cells = [f"{name} {each:.2f} s ({each / rows * 1e6:.1f} µs)" for name, each in seconds.items()]
    return f"Stages of a build, with the time of each row (read and schema alone, too): {', '.join(cells)}."


# --- out of shards ----------------------------------------------------------------------------------------------------


def read_section(options: argparse.Namespace, columns: int) -> Section:
    """Measure epochs of batches, in processes that stay alive."""
    table, rows = table_of(options, columns, "csv")
    table_of(options, columns, "parquet")
    dataset = build(settings_from(build_settings(table, new_folder("workspace"))))
    train = dataset["examples"]["train"]
    job = reader_job(table, columns, dataset["dataset"])
    contenders = [
        reader(OURS, "read_tenfold_rows", job, train),
        reader(SINGLE, "read_single_examples", job, train),
        reader(CSV, "read_csv_dataset", job, rows),
        reader(FRAME, "read_pandas", job, rows),
    ]
    if has_peers():
        contenders.append(reader(PYTORCH, "read_pytorch_rows", job, rows, PEERS_PYTHON))
    say(f"out of shards: {train:,} rows of {columns} columns, {options.rounds} rounds")
    measure_work(contenders, options.rounds, logs())
    title = f"out of shards, {train:,} rows of {columns} columns, batches of {BATCH_SIZE}"
    return Section(as_json(contenders), ratio_table(title, contenders, "work_s"))


def reader_job(table: Path, columns: int, dataset: str) -> dict[str, Any]:
    """Return what an input pipeline must know."""
    features = feature_names(columns)
    return {"table": str(table), "dataset": dataset, "features": features, "batch_size": BATCH_SIZE}


def reader(title: str, name: str, job: Mapping[str, Any], rows: int, python: Path = HERE) -> Contender:
    """Return a process that reads `rows` rows in each epoch."""
    return Contender(title, name, python, [job_file({**job, "rows": rows})], rows, [])


# --- trainings --------------------------------------------------------------------------------------------------------


def train_section(options: argparse.Namespace) -> Section:
    """Measure epochs of one model on three inputs, after an epoch that compiles and fills caches."""
    table, _ = table_of(options, NARROW, "csv")
    dataset = build(settings_from(build_settings(table, new_folder("workspace"))))
    steps = dataset["examples"]["train"] // BATCH_SIZE
    job = reader_job(table, NARROW, dataset["dataset"]) | {"steps": steps}
    sources = {OURS: "fit_on_tenfold", SINGLE: "fit_on_single_examples", CSV: "fit_on_csv"}
    contenders = [reader(title, name, job, steps * BATCH_SIZE) for title, name in sources.items()]
    rounds = max(2, options.rounds // 2)
    say(f"trainings: {rounds} epochs of {steps} steps")
    measure_work(contenders, rounds, logs())
    title = (
        f"an epoch of `Model.fit` of `mlp`, {steps * BATCH_SIZE:,} rows of {NARROW} columns, batches of {BATCH_SIZE}"
    )
    return Section(as_json(contenders), ratio_table(title, contenders, "work_s"))


def models_section() -> Section:
    """Measure how good the default model is, beside models of scikit-learn in `.bench/models`."""
    compared, lines = compare_models()
    return Section(models_as_json(compared), lines)


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_section(options: argparse.Namespace) -> Section:
    """Measure the memory and the seconds of the tasks of a build by the number of rows.

    Of the tasks `extract_range` and `write`, which are many for a large table, one is measured.
    """
    head = " | ".join(f"{task}, MB | s" for task in TASKS)
    lines = [f"| rows of {NARROW} columns, csv | {head} |", f"|---|{'---|' * 2 * len(TASKS)}"]
    figures = []
    for rows in (*TASK_ROWS, *([LARGE_TASK_ROWS] if options.large else [])):
        table = table_file(HOME / "tables", rows, NARROW, "csv")
        workspace = new_folder("workspace")
        workspace.mkdir()
        tasks = [measured_task(task, table, workspace) for task in ("extract", "extract_range")]
        measured_task("other_ranges", table, workspace)
        tasks += [measured_task(task, table, workspace) for task in ("plan", "write")]
        cells = [f"{each['peak_mb']:.0f} | {each['seconds']:.1f}" for each in tasks]
        lines.append(f"| {rows:,} | {' | '.join(cells)} |")
        figures.append({"rows": rows, "tasks": dict(zip(TASKS, tasks, strict=True))})
        shutil.rmtree(workspace)
    return Section(figures, lines)


def measured_task(name: str, table: Path, workspace: Path) -> dict[str, float]:
    """Return the highest memory and the seconds of a task of a build in a process of its own."""
    say(f"memory: {name} of {table.name}")
    settings = build_settings(table, workspace) | {"shards_per_task": 1}
    job = {"task": name, "settings": settings, "folder": str(workspace)}
    task = Contender(name, "table_task", HERE, [job_file(job)], 0, [])
    seconds = run(task)
    return {"peak_mb": task.peak_mb, "seconds": seconds}


# --- tables -----------------------------------------------------------------------------------------------------------


def ratio_table(title: str, contenders: Sequence[Contender], what: str) -> list[str]:
    """Return a line for each contender: its rate, and how many times as fast the first one is."""
    lines = [f"| {title} | s | rows/s | Tenfold is faster by | memory, MB |", "|---|---|---|---|---|"]
    ours = contenders[0]
    for each in contenders:
        if each.error:
            lines.append(f"| {each.title} | {each.error} | | | |")
            continue
        seconds = median(getattr(each, what))
        faster = "" if each is ours or ours.error else interval(ratios(ours, each, what))
        lines.append(f"| {each.title} | {seconds:.2f} | {each.images / seconds:,.0f} | {faster} | {each.peak_mb:.0f} |")
    return lines


def ratios(ours: Contender, other: Contender, what: str) -> list[float]:
    """Return how many times as many rows as the other one we did per second, in each round."""
    rounds = zip(getattr(ours, what), getattr(other, what), strict=True)
    return [ours.images / our_s / (other.images / other_s) for our_s, other_s in rounds]


def interval(found: Sequence[float]) -> str:
    """Return the median, and the lowest and the highest."""
    return f"{median(found):.1f} ({min(found):.1f} to {max(found):.1f})"


if __name__ == "__main__":
    main()
