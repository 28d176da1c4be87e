"""Measure planning without images: sort the parts of a huge snapshot, join its listings, plan, and merge the rows.

    make bench-planning
    python -m benchmarks.planning [--images 5000000 10000000 20000000] [--json FILE]

The rows are simulated. Each stage is a process of its own; its memory is that of its largest process. `list` only
writes the simulated rows. `sort` and `merge` use all cores, as the tasks that list a source and that write its shards
do. The files are in the temporary folder (TMPDIR), with about 0.25 kB per row.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.machine import machine_line, say
from benchmarks.harness.rounds import ROOT
from benchmarks.harness.usage import usage_of
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import Settings, settings_from
from pipeline.config.workspace import snapshots_folder
from pipeline.engines import engine_named
from pipeline.engines.task import Task
from pipeline.plan.merge import merged_lines, read_pieces
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import open_range
from pipeline.plan.sort import SplitRule, sorted_part
from pipeline.snapshot.extract import join_listings
from pipeline.snapshot.listing import Listing, load_listing, save_listing
from pipeline.snapshot.options import extract_options
from pipeline.snapshot.part import PART_LIMITS, blocks_of, write_parts
from pipeline.snapshot.raw_example import RawExample
from pipeline.stages.shard import plan_shards
from pipeline.storage import place_of
from pipeline.system.progress import log_to_stderr

IMAGES = (5_000_000, 10_000_000, 20_000_000)
CLASSES = 1000
ROWS_PER_LISTING = 1_000_000


@dataclass(frozen=True)
class Measured:
    """A stage: its seconds, and the memory of its largest process."""

    images: int
    stage: str
    seconds: float
    memory_mb: float


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=IMAGES, help="numbers of simulated images")
    parser.add_argument("--json", type=Path, help="also write the figures into a file")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    open_unless_set()
    if options.stage:
        log_to_stderr()
        STAGES[options.stage](options.folder, options.images[0])
        return
    measured, lines = [], []
    for images in options.images:
        with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
            stages = [measure(stage, Path(folder), images) for stage in STAGES]
            measured += stages
            lines.append(row(stages, bytes_by_suffix(Path(folder)), images))
    head = ["images", *(f"{stage}, s" for stage in STAGES), "without list, s", "memory, MB", "bytes per row"]
    print(machine_line(), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in measured], indent=1))


def measure(stage: str, folder: Path, images: int) -> Measured:
    """Run one stage in a process of its own."""
    say(f"{stage} of {images:,} images")
    command = [sys.executable, "-m", "benchmarks.planning", "--images", str(images), "--stage", stage]
    usage = usage_of([*command, "--folder", str(folder)], ROOT)
    if usage.exit_code:
        raise SystemExit(f"{stage} failed")
    return Measured(images, stage, usage.seconds, usage.peak_mb)


def row(stages: Sequence[Measured], sizes: Mapping[str, int], images: int) -> str:
    """Return a row of the table."""
    seconds = [f"{each.seconds:.0f}" for each in stages]
    total = sum(each.seconds for each in stages[1:])
    memory = max(each.memory_mb for each in stages[1:])
    per_row = ", ".join(f"{suffix} {size / images:.0f}" for suffix, size in sizes.items() if size > images / 10)
    return f"| {images:,} | {' | '.join(seconds)} | {total:.0f} | {memory:.0f} | {per_row} |"


def bytes_by_suffix(folder: Path) -> dict[str, int]:
    """Return the bytes of all files by the last suffix of their names, the largest first."""
    sizes: dict[str, int] = {}
    for path in folder.rglob("*.*"):
        kind = "plan files" if path.parent.name == "plans" else path.suffix
        sizes[kind] = sizes.get(kind, 0) + path.stat().st_size
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def settings_of(folder: Path, images: int) -> Settings:
    """Return the settings of a dataset with shards of 1,500 images."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    return settings_from(
        {"source_uri": str(source), "workspace": str(folder / "w"), "num_shards": max(10, images // 1500)}
    )


def listing_paths(folder: Path, images: int) -> list[str]:
    """Return the files of the listings."""
    return [str(folder / f"{first}.listing") for first in range(0, images, ROWS_PER_LISTING)]


def list_images(folder: Path, images: int) -> None:
    """Write the simulated rows, with one listing for each million."""
    folder_of_parts = snapshots_folder(settings_of(folder, images))
    (folder / "job.json").write_text(json.dumps({"images": images, "folder": str(folder_of_parts)}))
    engine_named("local")(Task(list_range, {}), listing_paths(folder, images), ignore)


def list_range(path: str) -> int:
    """Write one listing."""
    place = Path(path)
    job = json.loads((place.parent / "job.json").read_text())
    first, count = int(place.stem), job["images"]
    last = min(first + ROWS_PER_LISTING, count)
    listing = Listing("simulated")
    rows = simulated(listing, range(first, last), count)
    listing.parts += write_parts(blocks_of(rows), place_of(job["folder"]), PART_LIMITS)
    save_listing(listing, place)
    return listing.listed


def simulated(listing: Listing, numbers: range, count: int) -> Iterator[RawExample]:
    """Yield rows of images that do not exist. No two of them have an equal size and CRC32C."""
    for number in numbers:
        label = f"c{number * CLASSES // count:03d}"
        key, crc32c = f"{label}/{number:010d}.jpg", (number * 2_654_435_761 & 0xFFFFFFFF) or 1
        row_ = RawExample(key, [label], "", 110_000, crc32c, "", [], 1_700_000_000_000_000_000)
        listing.add([row_])
        yield row_


def sort(folder: Path, images: int) -> None:
    """Sort the parts of all listings."""
    engine_named("local")(Task(sort_listing, {}), listing_paths(folder, images), ignore)


def sort_listing(path: str) -> int:
    """Sort the parts of one listing."""
    listing = load_listing(Path(path))
    for part in listing.parts:
        sorted_part(part, SplitRule(0, 0.2))
    return listing.listed


def join(folder: Path, images: int) -> None:
    """Join the listings into a snapshot."""
    listings = (load_listing(Path(path)) for path in listing_paths(folder, images))
    path = join_listings(extract_options(settings_of(folder, images)), 1, listings)
    (folder / "snapshot").write_text(str(path))


def plan(folder: Path, images: int) -> None:
    """Plan the dataset."""
    path = plan_shards(settings_of(folder, images), Path((folder / "snapshot").read_text()))
    (folder / "plan").write_text(str(path))


def merge(folder: Path, images: int) -> None:
    """Merge the rows of all plan files."""
    found = 0

    def count(rows: int, _size: int = 0) -> None:
        nonlocal found
        found += rows

    engine_named("local")(Task(merge_rows, {}), load_plan(Path((folder / "plan").read_text())).ranges, count)
    if found != images:
        raise SystemExit(f"the plan files have {found:,} rows instead of {images:,}")


def merge_rows(path: str) -> int:
    """Merge the rows of one plan file."""
    with open_range(Path(path)) as (planned, file):
        rows = sum(1 for _ in merged_lines(read_pieces(file)))
    if rows != planned.examples:
        raise SystemExit(f"{path} has {rows:,} rows instead of {planned.examples:,}")
    return rows


def ignore(_count: int, _size: int = 0) -> None:
    """Show no progress."""


STAGES: dict[str, Callable[[Path, int], None]] = {
    "list": list_images,
    "sort": sort,
    "join": join,
    "plan": plan,
    "merge": merge,
}

if __name__ == "__main__":
    main()
