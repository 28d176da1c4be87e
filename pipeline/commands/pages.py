"""Commands that write pages: reports and comparisons."""

import argparse
import sys
from pathlib import Path

from pipeline.commands.command import RUN_ID, Result, argument, command, printer_at
from pipeline.commands.options import reachable, settings_of
from pipeline.config.settings import validated
from pipeline.errors import SettingsError
from pipeline.storage import Place, is_bucket
from pipeline.tuning.options import ComparisonOptions

_RUN_FOLDER = "folder of the run, local or gs://"


@command("report", "workspace/runs/RUN", argument("run", help=_RUN_FOLDER), extra="report")
def report(options: argparse.Namespace) -> Result:
    """Write the report of a run again."""
    from pipeline.report import report_run

    return {"report": str(report_run(_training("run", options.run)))}


def _training(what: str, uri: str) -> Place:
    from pipeline.runs.run import find_training

    return find_training(reachable(what, uri))


@command(
    "report compare",
    "workspace/runs/RUN_A workspace/runs/RUN_B --to compare.html",
    argument("runs", metavar="RUN", nargs="+", help="folders of 2 to 20 runs, local or gs://"),
    argument("--to", metavar="FILE", default="compare.html", help="page to write (default: %(default)s)"),
    printer=printer_at("pipeline.report.compare_words:format_comparison"),
    extra="report",
)
def report_compare(options: argparse.Namespace) -> Result:
    """Compare 2 to 20 runs on one page: which model is the best, which run is the fastest, and whether that is sure."""
    from pipeline.report import compare_runs
    from pipeline.report.compare import LETTERS, require_count

    if is_bucket(options.to) or not options.to.endswith(".html") or not Path(options.to).parent.is_dir():
        raise SettingsError(
            f"--to must be a local file that ends in .html, in a folder that exists, got {options.to!r}"
        )
    require_count(len(options.runs))
    places: dict[Place, str] = {}
    for letter, uri in zip(LETTERS, options.runs, strict=False):
        place = _training(f"run {letter}", uri)
        if place in places:
            raise SettingsError(f"run {places[place]} and run {letter} are the same run, {place}: name different runs")
        places[place] = letter
    return compare_runs([*places], Path(options.to))


@command(
    "compare-inputs",
    "--set source_uri=/data/flowers --contenders files,shards,resized",
    *(
        argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"{each.description} (default: {each.default})")
        for name, each in ComparisonOptions.model_fields.items()
    ),
    argument("--again", action="store_true", help="measure a complete comparison once more"),
    printer=printer_at("pipeline.report.inputs_table:format_result"),
    extra="training",
    warns_if_open=True,
)
def compare_inputs(options: argparse.Namespace) -> Result:
    """Train the same model from raw files and from shards in turn, and say what is worth changing on this host."""
    from pipeline.stages.build import build_input
    from pipeline.tuning.contenders import dataset_settings
    from pipeline.tuning.measure import (
        comparison_of,
        measure,
        require_measurable,
        start_comparison,
    )

    settings = settings_of(options)
    given = {name: getattr(options, name) for name in ComparisonOptions.model_fields}
    compared = validated(ComparisonOptions, given, strict=False)
    require_measurable(settings, compared)
    built = [build_input(own) for own in dataset_settings(settings, compared.names).values()]
    comparison = comparison_of(settings, compared, built)
    folder = start_comparison(comparison, RUN_ID, options.again)
    measure(folder, sys.stderr.fileno())
    # Not before: it draws, with packages whose memory the measured trainings would lack.
    from pipeline.report import inputs_page

    return inputs_page.write(folder)
