"""Commands that train, or recover what a killed training left."""

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from pipeline.commands.command import RUN_ID, Result, argument, command, printer_at, program
from pipeline.commands.options import reachable, settings_of
from pipeline.config.declarations import ChangesDataset
from pipeline.config.settings import Settings, declared
from pipeline.errors import BadInput, Preempted, SettingsError, TrainingError
from pipeline.storage import Place, is_bucket, place_of
from pipeline.storage.local import FULL
from pipeline.system.process import command_of, end_with_parent, environment_of_tensorflow, stop_process

if TYPE_CHECKING:
    from pipeline.runs.run import Run

POLL_S = 1.0
"""Seconds between two looks at a training that is about to end."""
STARTS_IN_S = 60.0
"""The command waits this many seconds for a training that is not running, because it may be starting again."""
ENDS_IN_S = 7 * 86_400.0
"""The same for a training in a bucket, which may be running on another machine."""
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
    from pipeline.runs.continuation import announced
    from pipeline.stages.build import build

    settings = settings_of(options)
    with announced(settings, psutil.Process().username()):
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
    from pipeline.runs.advised import AdvisedDataset
    from pipeline.runs.launch import train
    from pipeline.runs.promotion import promote_if_better

    if settings.continues:
        _end_continued(settings, dataset, psutil.Process().username())
    with _Continued() as continued:
        advised = AdvisedDataset(continued.start).look if settings.advice == "apply" else None
        result = train(settings, dataset, RUN_ID, advised)
        folder = place_of(result["run"])
        # This comes before the report, which shows the result.
        promotion = promote_if_better(folder, settings, sys.stderr.fileno())
        promoted = {"promotion": promotion["why"], "champion": promotion["champion"], "report": report_of(folder)}
        return continued.result(folder) or {**result, **promoted}


class _Continued:
    """The command that continues a training under way on a new dataset, once it is started. It ends with the block."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._repeat = ""
        """What a person types to repeat it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            stop_process(self._process)

    def start(self, run: "Run", values: Mapping[str, Any]) -> None:
        """Start the command for a run. `values` are settings of the new dataset."""
        self._run(run.training, values)

    def _run(self, training: Place, values: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
        arguments = ["apply", str(training), *(f"{name}={value}" for name, value in values.items())]
        self._repeat = shlex.join([program(), *arguments])
        _log.info("the advice: continue the training on a new dataset, as with `%s`", self._repeat)
        self._process = subprocess.Popen(
            command_of("pipeline", *arguments, "--json", "--parent", str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment_of_tensorflow(),
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the other one.
        )
        return self._process

    def result(self, training: Place) -> Result | None:
        """Return the result of the command; None if the training has not ended for it. Raises TrainingError."""
        from pipeline.runs.changes import ADVICE, load_changes, requested_dataset
        from pipeline.runs.run import EXIT_PREEMPTED

        change = requested_dataset(load_changes(training))
        if change is None or not change.epoch or change.by != ADVICE:
            if self._process and self._process.poll() is None:
                _log.warning("the training was over before its new dataset was built, so it is not continued")
            return None
        # Without one, an earlier command was stopped when the training had ended already.
        process = self._process or self._run(training, change.dataset_values)
        content, _ = process.communicate()
        if process.returncode == EXIT_PREEMPTED:
            raise Preempted("the training that continues was asked to stop: run the same command to continue it")
        if process.returncode:
            raise TrainingError(
                "the training has ended to be continued on a new dataset, and that has failed, as the message above "
                f"says: once it is mended, continue with `{self._repeat}`"
            )
        result: Result = json.loads(content)
        return result


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


def _format_applied(result: Result) -> str:
    changes = "\n".join(result["changes"])
    return f"{changes}\n{_OUTCOME(result)}" if "metrics" in result else changes


@command(
    "apply",
    "workspace/runs/RUN prefetch_batches=16",
    argument("run", help="folder of a run that is training, local or gs://"),
    argument("changes", metavar="FIELD=VALUE", nargs="+", help="a setting, and its value from an epoch on"),
    # The id of the process that starts this command because its advice says so.
    argument("--parent", type=int, help=argparse.SUPPRESS),
    printer=_format_applied,
)
def apply(options: argparse.Namespace) -> Result:
    """Change settings of a training under way from an epoch on, if necessary by a new dataset and a new training."""
    from pipeline.runs.changes import ADVICE, request_changes
    from pipeline.runs.run import find_training

    if options.parent:
        end_with_parent(options.parent, signal.SIGTERM)
    training = find_training(reachable("run", options.run))
    pairs = [change.partition("=") for change in options.changes]
    if unclear := [field for field, equals, _ in pairs if not equals]:
        raise SettingsError(f"{unclear[0]!r} has no value: write FIELD=VALUE, such as prefetch_batches=16")
    by = ADVICE if options.parent else psutil.Process().username()
    values = {field.strip(): value.strip() for field, _, value in pairs}
    if any(field in declared(ChangesDataset) for field in values):
        return _continued(training, values, by)
    requested = request_changes(training, values, by)
    return {"run": str(training), "changes": [str(change) for change in requested]}


def _continued(training: Place, values: Mapping[str, str], by: str) -> Result:
    """Build the dataset with other settings, end the training under way, and continue it on that dataset.

    If the command is killed, the same command goes on.
    """
    from pipeline.runs.changes import load_changes
    from pipeline.runs.continuation import announced, continued_settings
    from pipeline.stages.build import build

    settings = continued_settings(training, values)
    with announced(settings, by):
        built = build(settings, for_training=True)
        dataset = place_of(built["dataset"])
        _end_continued(settings, dataset, by)
    # Again, with the changes that the training has taken meanwhile.
    settings = continued_settings(training, values)
    result = {**built, **_trained(settings, dataset)}
    return {**result, "changes": [str(change) for change in load_changes(place_of(result["run"]))]}


def _end_continued(settings: Settings, dataset: Place, by: str) -> None:
    """Request that the training `settings.continues` ends, and wait for it. Raises BadInput if it is not running."""
    from pipeline.runs.continuation import end_of, needs_end, request_continuation
    from pipeline.runs.requirements import require_startable
    from pipeline.runs.run import is_running, load_run

    training = place_of(settings.continues)
    # First, because the other training must not end for one that cannot start.
    content = require_startable(settings, dataset)
    if not needs_end(settings, content, RUN_ID):
        return
    _log.info("%s", request_continuation(settings, content, by))
    seen_at = time.monotonic()
    while end_of(training) is None:
        if isinstance(training, Path) and is_running(training):
            seen_at = time.monotonic()
        if time.monotonic() - seen_at >= (STARTS_IN_S if isinstance(training, Path) else ENDS_IN_S):
            in_airflow = isinstance(training, Path) and load_run(training).dag
            again = "clear its task `train` in Airflow" if in_airflow else "run it again with its own command"
            raise BadInput(
                f"the training {training} is not running on this machine, so it does not end its epoch: {again}, and "
                "repeat this command meanwhile"
            )
        time.sleep(POLL_S)


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
