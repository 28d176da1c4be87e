"""`python -m scripts.airflow run | backfill | up | down | status | check`: Airflow on this machine and on loopback."""

import argparse
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime

import httpx

from pipeline.config.allowed import open_unless_set
from scripts.airflow import commands
from scripts.airflow.backfill import DAG, KINDS, MAKER, TABULAR, TABULAR_MAKER, TRAINER
from scripts.airflow.checks import check_schedule
from scripts.airflow.errors import Failed, Interrupted, Refused
from scripts.airflow.remote import URL, remote_from
from scripts.airflow.request import Backfill, Conf, read_backfill, read_request
from scripts.airflow.settings import Layout, layout_from
from scripts.airflow.signals import Signals

AT_ONCE_ELSEWHERE = 16
"""Runs of a backfill at the same time in an Airflow that is kept by others, on a database with many writers."""


def main() -> int:
    """Carry out one command. Returns its exit code: 0, 1 failed, 2 refused, 130 after Ctrl-C."""
    args = command_parser().parse_args()
    try:
        # Before the variables that are not set get values: the layout holds what the person has set.
        layout = layout_from(os.environ, args.dags)
        open_unless_set()
        try:
            with Signals() as signals:
                return _command(args, layout, signals)
        except httpx.HTTPError as error:
            raise Failed(f"Airflow gave an unexpected answer: {error}. Its logs are in {layout.logs}") from error
    except (Refused, Failed, Interrupted) as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return error.code


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.airflow", description=__doc__)
    parser.add_argument("command", choices=["run", "backfill", "up", "down", "status", "check"])
    for name, text in {
        "source": "folder of images, with one sub-folder for each class (default: by the settings file, or samples)",
        "table": "instead of images: a table (CSV, JSON lines, Parquet, Arrow, TFRecord), or a folder",
        "label": "the column of the table that the model learns",
        "params": "other settings of the run, as a JSON object",
        "from": "backfill: the first date, such as 2026-01-01, or the first hour, such as 2026-01-01T00",
        "to": "backfill: the last date or hour",
        "reprocess": "backfill: the dates that run again, failed (default) or all",
        "dag": f"the DAG to run (default: {DAG}, or {TABULAR} for a table; backfill: {MAKER}, or {TABULAR_MAKER})",
        "dags": "the folder of DAGs (default: dags)",
    }.items():
        parser.add_argument(f"--{name}", default="", help=text)
    return parser


def _command(args: argparse.Namespace, layout: Layout, signals: Signals) -> int:
    if args.command == "run":
        dag_id = args.dag or (TABULAR if args.table else DAG)
        return commands.run(layout, dag_id, _conf(args, dag_id), signals)
    if args.command == "backfill":
        return commands.backfill(layout, backfill_of(args, layout), signals)
    if args.command == "check":
        check_schedule(os.environ)
        return 0
    if args.command == "up":
        check_schedule(os.environ)
        return commands.up(layout, args.dag or DAG, signals)
    return commands.down(layout) if args.command == "down" else commands.status(layout)


def _conf(args: argparse.Namespace, dag_id: str) -> Conf:
    kind = "table" if args.table else KINDS.get(dag_id, "")
    has_other_disks = bool(os.environ.get(URL))
    return read_request(args.source, args.table, args.label, args.params, kind, has_other_disks=has_other_disks)


def backfill_of(args: argparse.Namespace, layout: Layout) -> Backfill:
    """Return the backfill of the options. Raises Refused if it cannot run."""
    dag_id = args.dag or (TABULAR_MAKER if args.table else MAKER)
    if args.table and KINDS.get(dag_id) == "images":
        raise Refused(f"DAG={dag_id} is for images, but TABLE={args.table} is given: set DAG={TABULAR_MAKER}")
    if dag_id == TRAINER or not (layout.dags / f"{dag_id}.py").exists():
        raise Refused(f"DAG must be {', '.join(KINDS)}, got {dag_id!r}")
    first, last = getattr(args, "from"), args.to
    request = read_backfill(dag_id, first, last, args.reprocess, _conf(args, dag_id), datetime.now(UTC))
    return replace(request, max_active_runs=AT_ONCE_ELSEWHERE) if remote_from(os.environ, layout) else request


if __name__ == "__main__":
    sys.exit(main())
