"""Commands that train, or recover what a killed training left."""

import argparse
import logging
import sys
from pathlib import Path

import psutil

from pipeline.commands.command import RUN_ID, Result, argument, command, printer_at, program
from pipeline.commands.options import reachable, settings_of
from pipeline.config.settings import Settings
from pipeline.errors import SettingsError
from pipeline.storage import Place, is_bucket, place_of
from pipeline.storage.local import FULL

_log = logging.getLogger(__name__)


_OUTCOME = printer_at("pipeline.runs.outcome:outcome_text")


@command(
    "run",
    "--set source_uri=/data/flowers --set epochs=30",
    extra="training",
    warns_if_open=True,
    printer=_OUTCOME,
)
def run(options: argparse.Namespace) -> Result:
    """Build a dataset from images or a table, then train on it."""
    from pipeline.stages.build import build

    settings = settings_of(options)
    built = build(settings, for_training=True)
    return {**built, **_trained(settings, place_of(built["dataset"]))}


@command(
    "train",
    "--set dataset=workspace/datasets/flowers/4766e75c17183005 --set epochs=30",
    extra="training",
    warns_if_open=True,
    printer=_OUTCOME,
)
def train(options: argparse.Namespace) -> Result:
    """Train on a published dataset (--set dataset=...)."""
    settings = settings_of(options)
    if not settings.dataset:
        raise SettingsError("dataset is empty: name the folder of a published dataset, with --set dataset=...")
    return {"dataset": settings.dataset, **_trained(settings, place_of(settings.dataset))}


def _trained(settings: Settings, dataset: Place) -> Result:
    from pipeline.runs.launch import train
    from pipeline.runs.promotion import promote_if_better

    result = train(settings, dataset, RUN_ID)
    folder = place_of(result["run"])
    # This comes before the report, which shows the result.
    promotion = promote_if_better(folder, settings, sys.stderr.fileno())
    return {**result, "promotion": promotion["why"], "champion": promotion["champion"], "report": report_of(folder)}


def report_of(run: Place) -> str:
    """Write the report of a run and return its path; if the disk is full, return "" with a warning."""
    from pipeline.report import report_run

    try:
        return str(report_run(run))
    except OSError as error:
        # The training is complete and its result is stored, so a full disk must not make the command fail.
        if error.errno not in FULL:
            raise
        _log.warning(
            "the training is complete, but its report cannot be written (%s): free some disk space, then write it "
            "with `%s report %s`",
            *(error, program(), run),
        )
        return ""


@command(
    "apply",
    "workspace/runs/RUN prefetch_batches=16",
    argument("run", help="folder of a run that is training, local or gs://"),
    argument("changes", metavar="FIELD=VALUE", nargs="+", help="a setting, and its value from the next epoch on"),
    printer=lambda result: "\n".join(result["changes"]),
)
def apply(options: argparse.Namespace) -> Result:
    """Change settings of a training under way, from its next epoch on."""
    from pipeline.runs.changes import request_changes
    from pipeline.runs.run import find_training

    training = find_training(reachable("run", options.run))
    pairs = [change.partition("=") for change in options.changes]
    if unclear := [field for field, equals, _ in pairs if not equals]:
        raise SettingsError(f"{unclear[0]!r} has no value: write FIELD=VALUE, such as prefetch_batches=16")
    values = {field.strip(): value.strip() for field, _, value in pairs}
    requested = request_changes(training, values, by=psutil.Process().username())
    return {"run": str(training), "changes": [str(change) for change in requested]}


def _format_recovered(result: Result) -> str:
    packed = "\n".join(result["recovered"]) or "nothing: no killed training left values that are not packed yet"
    upload = result["upload"] or "nothing: there are no archives"
    return f"packed: {packed}\nto upload: {upload}"


@command(
    "comet recover",
    "workspace",
    argument("folder", help="folder of a run, of a training, or a workspace"),
    printer=_format_recovered,
)
def comet_recover(options: argparse.Namespace) -> Result:
    """Pack the values that killed trainings could not send to Comet, and print the command that uploads them."""
    from pipeline.monitor.archives import archives_below, recover_below, upload_command

    if is_bucket(options.folder):
        raise SettingsError(
            f"{options.folder} is in a bucket, but these values are stored in local_folder on the worker that trained: "
            "run this command there"
        )
    folder = Path(options.folder)
    recovered = recover_below(folder)
    every = archives_below(folder)
    return {"recovered": [str(path) for path in recovered], "upload": upload_command(every) if every else ""}
