"""Commands that build a dataset, at once, stage by stage or from its dates, and the sample images for it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.commands.command import Result, argument, command
from pipeline.commands.options import file_at, published_settings, settings_of
from pipeline.errors import SettingsError
from pipeline.system.arrow import leave_out_pandas, never_import_pandas
from pipeline.system.malloc import share_one_arena

if TYPE_CHECKING:  # Takes 0.2 s.
    from pipeline.config.settings import Settings


@command("build", "--set source_uri=gs://bucket/flowers --set workspace=gs://bucket/tenfold --json", warns_if_open=True)
def build(options: argparse.Namespace) -> Result:
    """Build and publish a dataset: extract, shard and upload."""
    from pipeline.stages.build import build

    return build(_tuned(settings_of(options)))


@command("extract", "--set source_uri=/data/flowers", warns_if_open=True)
def extract(options: argparse.Namespace) -> Result:
    """List the source with its checksums, as a frozen snapshot."""
    from pipeline.stages.extract import extract

    return {"snapshot": str(extract(_tuned(settings_of(options))))}


def _tuned(settings: "Settings") -> "Settings":
    """Save memory in this process, which runs nothing but this build.

    A Python program that calls Tenfold keeps its own settings.
    """
    share_one_arena()
    if settings.example_kind == "images":
        never_import_pandas()  # Most sources of images need no Arrow, which takes 0.3 s to load.
    else:
        leave_out_pandas()
    return settings


@command(
    "shard",
    "workspace/work/flowers/snapshots/SNAPSHOT.json --set source_uri=/data/flowers",
    argument("snapshot", help="the file that `extract` returned"),
)
def shard(options: argparse.Namespace) -> Result:
    """Write the shards of a snapshot."""
    from pipeline.gate.decide import ask_terminal
    from pipeline.stages.shard import write_shards

    return {"plan": str(write_shards(settings_of(options), file_at("snapshot", options.snapshot), ask_terminal()))}


@command(
    "write",
    "workspace/work/flowers/PLAN/plan.json --set source_uri=/data/flowers",
    argument("plan", help="plan.json of the stopped command, in WORKSPACE/work/NAME/..."),
    warns_if_open=True,
)
def write(options: argparse.Namespace) -> Result:
    """Write the missing shards of a plan after `build` or `shard` was stopped. The engine can be another one."""
    from pipeline.stages.shard import write_planned

    plan = file_at("plan", options.plan)
    write_planned(plan, settings_of(options))
    return {"plan": str(plan)}


@command(
    "upload",
    "workspace/work/flowers/PLAN/plan.json --set source_uri=/data/flowers",
    argument("plan", help="the file that `shard` returned for the same settings"),
)
def upload(options: argparse.Namespace) -> Result:
    """Verify and publish the shards of a plan."""
    from pipeline.gate.decide import ask_terminal
    from pipeline.stages.upload import publish

    return publish(file_at("plan", options.plan), settings_of(options), ask_terminal())


@command("window", "--set dataset_name=flowers --set window=7")
def window(options: argparse.Namespace) -> Result:
    """Combine the newest dates of a dataset name into one dataset (--set window=7), without copying shards."""
    from pipeline.config.workspace import allowed_name_folder
    from pipeline.dataset.partitions import newest_partitions
    from pipeline.gate.decide import ask_terminal
    from pipeline.stages.upload import dataset_of_partitions

    settings = published_settings(options)
    partitions = newest_partitions(allowed_name_folder(settings), settings.window)
    return {"dataset": str(dataset_of_partitions(settings, partitions, ask_terminal())), "partitions": partitions}


@command(
    "partition",
    "2026-01-31 4766e75c17183005 --set dataset_name=flowers",
    argument("partition", help="a date, such as 2026-01-31, or `latest`"),
    argument("version", nargs="?", default="", help="name of the version's folder, without its path"),
    argument(
        "--withdraw",
        action="store_true",
        help="instead of a version: leave the date out of windows until it has another version",
    ),
)
def partition(options: argparse.Namespace) -> Result:
    """Use another version of the dataset for a date until its source is listed again.

    Or leave the date out of windows until it has another version.
    """
    from pipeline.config.workspace import allowed_name_folder, require_name
    from pipeline.dataset.partitions import move_partition, withdraw_partition

    if bool(options.version) == options.withdraw:
        raise SettingsError(f"give either a version of {options.partition} or --withdraw")
    settings = published_settings(options)
    require_name(settings)
    folder = allowed_name_folder(settings)
    if options.withdraw:
        withdrawn = withdraw_partition(folder, options.partition)
        return {"partition": options.partition, "withdrawn": withdrawn.version}
    file = move_partition(folder, options.partition, options.version)
    return {"partition": options.partition, "version": options.version, "file": str(file)}


@command(
    "samples",
    "shapes --count 600",
    argument("folder", help="new folder; or a new file of the suffix .csv or .parquet"),
    argument("--count", type=int, default=600, help="number of images, or of rows (default: %(default)s)"),
    argument("--seed", type=int, default=0, help="seed of the drawing (default: %(default)s)"),
)
def samples(options: argparse.Namespace) -> Result:
    """Draw a folder of sample images, or write a sample table."""
    from pipeline.sources.samples import draw_samples
    from pipeline.tables.samples import write_sample_table

    folder = Path(options.folder)
    if folder.exists():
        raise SettingsError(f"{options.folder} exists already: name a new folder")
    if options.count < 1:
        raise SettingsError(f"--count must be at least 1, got {options.count}")
    draw = write_sample_table if folder.suffix in (".csv", ".parquet") else draw_samples
    draw(folder, options.count, options.seed)
    return {"folder": options.folder}
