"""Measure tables whose rows or keys repeat, beside one of distinct rows: the plan, and how well the rows are mixed.

    python -m benchmarks.equal_rows [--rows 1000000] [--cases distinct copies "one key"] [--json FILE]

- distinct: all rows differ.
- copies: 90% of the rows are copies of the others.
- one key: all rows have the same key, and differ. A column states their splits.

Each stage is a process of its own; its memory is that of its largest process. `extract` lists the table on all cores.
`plan` is one process. `mix` merges the rows of the training split in the order of the shards, and counts:

- the different rows in each 256 that follow each other, as many as in a batch if nothing shuffled, beside as many rows
  that are drawn at random;
- the smallest and the largest share of the positive class in a shard.

The files are in the temporary folder (TMPDIR), with about 0.6 kB per row.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from benchmarks.harness.machine import machine_line, say
from benchmarks.harness.rounds import ROOT
from benchmarks.harness.usage import usage_of
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import Settings, settings_from
from pipeline.plan.merge import merged_lines, read_pieces
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import open_range
from pipeline.snapshot.raw_example import only_label, record_of_line
from pipeline.stages.extract import extract
from pipeline.stages.shard import plan_shards
from pipeline.system.progress import log_to_stderr

CASES = ("distinct", "copies", "one key")
COPIES = 10
"""In `copies`, the table has this many rows for each different one."""
FEATURES = 5
BATCH = 256
SHARDS = 10
ROWS_AT_ONCE = 250_000


@dataclass(frozen=True)
class Measured:
    """A stage of a case: its seconds, the memory of its largest process, and what it found."""

    case: str
    rows: int
    stage: str
    seconds: float
    memory_mb: float
    found: Mapping[str, float] = field(default_factory=dict)


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of rows")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="kinds of tables")
    parser.add_argument("--json", type=Path, help="also write the figures into a file")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    open_unless_set()
    if options.stage:
        log_to_stderr()
        STAGES[options.stage](options.folder, options.cases[0], options.rows)
        return
    measured = []
    for case in options.cases:
        with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
            measured += [measure(stage, Path(folder), case, options.rows) for stage in STAGES]
    print(machine_line(), "", *table(measured), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in measured], indent=1))


def measure(stage: str, folder: Path, case: str, rows: int) -> Measured:
    """Run one stage in a process of its own."""
    say(f"{stage} of {rows:,} rows: {case}")
    command = [sys.executable, "-m", "benchmarks.equal_rows", "--rows", str(rows), "--cases", case, "--stage", stage]
    usage = usage_of([*command, "--folder", str(folder)], ROOT)
    if usage.exit_code:
        raise SystemExit(f"{stage} failed")
    found = folder / f"{stage}.json"
    content = json.loads(found.read_text()) if found.exists() else {}
    return Measured(case, rows, stage, usage.seconds, usage.peak_mb, content)


def table(measured: list[Measured]) -> Iterator[str]:
    """Yield the lines of the table."""
    head = ("case", "rows", *(f"{stage}, s" for stage in STAGES), "memory of plan, MB", f"different rows of {BATCH}")
    yield f"| {' | '.join((*head, 'drawn at random', 'share of a class per shard'))} |"
    yield "|---" * (len(head) + 2) + "|"
    for start in range(0, len(measured), len(STAGES)):
        stages = {each.stage: each for each in measured[start : start + len(STAGES)]}
        mix = stages["mix"].found
        yield (
            f"| {stages['mix'].case} | {stages['mix'].rows:,} | "
            f"{' | '.join(f'{each.seconds:.1f}' for each in stages.values())} | {stages['plan'].memory_mb:.0f} | "
            f"{mix['different']:.1f} | {mix['drawn']:.1f} | {mix['lowest']:.1%} to {mix['highest']:.1%} |"
        )


def settings_of(folder: Path, case: str) -> Settings:
    """Return the settings of the dataset of a case."""
    columns = {"key_column": "id", "split_column": "split"} if case == "one key" else {}
    return settings_from(
        {
            "example_kind": "table",
            "source_uri": str(folder / "table"),
            "workspace": str(folder / "w"),
            "label_column": "y",
            "num_shards": SHARDS,
            **columns,
        }
    )


def draw(folder: Path, case: str, rows: int) -> None:
    """Write the table as Parquet files."""
    (folder / "table").mkdir()
    for first in range(0, rows, ROWS_AT_ONCE):
        numbers = np.arange(first, min(first + ROWS_AT_ONCE, rows))
        # Copies are in all parts of the table.
        different = numbers % (rows // COPIES) if case == "copies" else numbers
        # The first half has one class, as in a table that is sorted by class.
        labels = np.where(different < (rows // COPIES if case == "copies" else rows) // 2, "no", "yes")
        columns = {f"x{number}": different * (number + 1) for number in range(FEATURES)}
        content = pa.table({**columns, "y": labels})
        if case == "one key":
            splits = np.where(numbers % 5 == 0, "validation", "train")
            content = content.append_column("id", pa.array(["all"] * len(numbers)))
            content = content.append_column("split", pa.array(splits))
        parquet.write_table(content, folder / "table" / f"{first:012d}.parquet")


def list_rows(folder: Path, case: str, _rows: int) -> None:
    """List the table."""
    (folder / "snapshot").write_text(str(extract(settings_of(folder, case))))


def plan(folder: Path, case: str, _rows: int) -> None:
    """Plan the dataset."""
    settings = settings_of(folder, case).model_copy(update={"shards_per_task": 1})
    (folder / "plan").write_text(str(plan_shards(settings, Path((folder / "snapshot").read_text()))))


def mix(folder: Path, _case: str, _rows: int) -> None:
    """Count the different rows and the classes of what each training shard holds."""
    different, shares, hashes = [], [], []
    for path in load_plan(Path((folder / "plan").read_text())).ranges:
        with open_range(Path(path)) as (planned, file):
            if planned.shards[0].split != "train":
                continue
            lines = merged_lines(read_pieces(file))
            of_shard, positive = [], 0
            while some := list(islice(lines, BATCH)):
                of_batch = [hash(record_of_line(line)) for line in some]
                of_shard += of_batch
                positive += sum(only_label(line) == b'"yes"' for line in some)
                if len(some) == BATCH:
                    different.append(len(set(of_batch)))
            shares.append(positive / planned.examples)
            hashes.append(np.array(of_shard))
    everything = np.concatenate(hashes)
    drawn = np.random.default_rng(0).choice(everything, (200, BATCH))
    found = {
        "different": float(np.mean(different)),
        "drawn": float(np.mean([len(np.unique(batch)) for batch in drawn])),
        "lowest": min(shares),
        "highest": max(shares),
    }
    (folder / "mix.json").write_text(json.dumps(found))


STAGES: dict[str, Callable[[Path, str, int], None]] = {"draw": draw, "extract": list_rows, "plan": plan, "mix": mix}

if __name__ == "__main__":
    main()
