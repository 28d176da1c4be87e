"""`python -m scripts.airflow run | backfill | up | down | status | check`: Airflow on this machine and on loopback."""

import argparse
import os
import sys
from dataclasses import replace

import httpx

from pipeline.allowed import open_unless_set
from scripts.airflow import commands
from scripts.airflow.dates import Backfill, read_backfill, require_dated, today
from scripts.airflow.errors import Failed, Interrupted, Refused
from scripts.airflow.remote import remote_from
from scripts.airflow.request import Conf, check_settings, read_request, read_table_request
from scripts.airflow.retraining import MAKER, TABULAR_MAKER, TRAINER
from scripts.airflow.schedules import check_schedule, default_settings
from scripts.airflow.settings import Layout, folders, layout_from
from scripts.airflow.signals import Signals

DAG = "image_training"
TABULAR = "tabular_training"
KINDS = {DAG: "images", MAKER: "images", TABULAR: "table", TABULAR_MAKER: "table"}
"""The kind of examples of each DAG. The settings of other DAGs are checked by their first task."""
AT_ONCE_ELSEWHERE = 16
"""Runs of a backfill at the same time in an Airflow that is kept by others, on a database with many writers."""


def main() -> int:
    """Carry out one command. Returns its exit code: 0, 1 failed, 2 refused, 130 after Ctrl-C."""
    args = command_parser().parse_args()
    open_unless_set()
    try:
        return _carry_out(args, layout_from(os.environ, args.dags))
    except (Refused, Failed, Interrupted) as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return error.code


def _carry_out(args: argparse.Namespace, layout: Layout) -> int:
    try:
        with Signals() as signals:
            return _command(args, layout, signals)
    except httpx.HTTPError as error:
        raise Failed(f"Airflow gave an unexpected answer: {error}. Its logs are in {layout.logs}") from error


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.airflow", description=__doc__)
    parser.add_argument("command", choices=["run", "backfill", "up", "down", "status", "check"])
    parser.add_argument(
        "--source", default="", help="folder of images with one sub-folder for each class (default: sample images)"
    )
    parser.add_argument("--table", default="", help="instead of images: a table (CSV, Parquet, TFRecord), or a folder")
    parser.add_argument("--label", default="", help="the column of the table that the model learns")
    parser.add_argument("--params", default="", help="other settings of the run, as a JSON object")
    parser.add_argument("--from", dest="first", default="", help="backfill: the first date, such as 2026-01-01")
    parser.add_argument("--to", dest="last", default="", help="backfill: the last date")
    parser.add_argument("--reprocess", default="", help="backfill: the dates that run again, failed (default) or all")
    parser.add_argument(
        "--dag",
        default="",
        help=f"the DAG to run (default: {DAG}, or {TABULAR} for a table; backfill: {MAKER}, or {TABULAR_MAKER})",
    )
    parser.add_argument("--dags", default="", help="the folder of DAGs (default: dags)")
    return parser


def _command(args: argparse.Namespace, layout: Layout, signals: Signals) -> int:
    if args.command == "run":
        if args.table:
            return commands.run(layout, args.dag or TABULAR, _table_conf(args), signals)
        return commands.run(layout, args.dag or DAG, _conf(args, args.dag or DAG), signals)
    if args.command == "backfill":
        return commands.backfill(layout, dag_of_backfill(args), backfill_of(args, layout), signals)
    if args.command == "check":
        check_schedule(os.environ)
        return 0
    if args.command == "up":
        check_schedule({**os.environ, **folders(layout)})
        return commands.up(layout, args.dag or DAG, signals)
    return commands.down(layout) if args.command == "down" else commands.status(layout)


def _conf(args: argparse.Namespace, dag_id: str) -> Conf:
    conf = read_request(args.source, args.params)
    if dag_id not in KINDS:
        return conf
    if KINDS[dag_id] == "table":
        conf = {"label_column": args.label, **conf} if args.label else conf
        defaults = default_settings(os.environ.get("TENFOLD_SETTINGS", ""))
        if not (conf.get("label_column") or defaults.label_column):
            raise Refused(
                f"label_column is missing, and {dag_id} needs it: name the column that the model learns, such as "
                "LABEL=churn"
            )
    return check_settings(conf, KINDS[dag_id])


def _table_conf(args: argparse.Namespace) -> Conf:
    if args.source:
        raise Refused("SOURCE and TABLE are both given: give only one of them")
    return check_settings(read_table_request(args.table, args.label, args.params), "table")


def _require_dates(dag_id: str, layout: Layout) -> None:
    """Refuse a DAG that has no dates, before Airflow is started."""
    if dag_id == TRAINER or not (layout.dags / f"{dag_id}.py").exists():
        raise Refused(f"DAG must be {', '.join(KINDS)}, got {dag_id!r}")


def dag_of_backfill(args: argparse.Namespace) -> str:
    """Return the DAG of a backfill. Raises Refused if it does not fit the source."""
    dag_id = args.dag or (TABULAR_MAKER if args.table else MAKER)
    if args.table and KINDS.get(dag_id) == "images":
        raise Refused(f"DAG={dag_id} is for images, but TABLE={args.table} is given: set DAG={TABULAR_MAKER}")
    return dag_id


def backfill_of(args: argparse.Namespace, layout: Layout) -> Backfill:
    """Return the backfill of the options. Raises Refused if it cannot run."""
    dag_id = dag_of_backfill(args)
    _require_dates(dag_id, layout)
    conf = _table_conf(args) if args.table else _conf(args, dag_id)
    require_dated(conf, os.environ)
    request = read_backfill(args.first, args.last, args.reprocess, conf, today())
    return replace(request, max_active_runs=AT_ONCE_ELSEWHERE) if remote_from(os.environ, layout) else request


if __name__ == "__main__":
    sys.exit(main())
