"""`python -m scripts.airflow run | up | down | status`: Airflow on this machine, on loopback only."""

import argparse
import os
import sys

import httpx

from scripts.airflow import commands
from scripts.airflow.errors import Failed, Interrupted, Refused
from scripts.airflow.request import check_schedule, check_settings, read_request
from scripts.airflow.settings import Layout, layout_from
from scripts.airflow.signals import Signals

DAG = "image_training"


def main() -> int:
    """Carry out one command. Returns its exit code: 0, 1 failed, 2 refused, 130 after Ctrl-C."""
    args = _parser().parse_args()
    layout = layout_from(os.environ, args.dags)
    try:
        with Signals() as signals:
            return _command(args, layout, signals)
    except (Refused, Failed, Interrupted) as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return error.code
    except httpx.HTTPError as error:
        print(f"{args.command}: Airflow did not answer as it should: {error}; logs: {layout.logs}", file=sys.stderr)
        return Failed.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.airflow", description=__doc__)
    parser.add_argument("command", choices=["run", "up", "down", "status"])
    parser.add_argument("--source", default="", help="folder of images, one sub-folder a class (default: samples)")
    parser.add_argument("--params", default="", help="further settings of the run as a JSON object")
    parser.add_argument("--dag", default=DAG, help="the DAG to run (%(default)s)")
    parser.add_argument("--dags", default="", help="the folder of DAGs (default: dags)")
    return parser


def _command(args: argparse.Namespace, layout: Layout, signals: Signals) -> int:
    if args.command == "run":
        conf = read_request(args.source, args.params)
        if args.dag == DAG:
            conf = check_settings(conf)
        return commands.run(layout, args.dag, conf, signals)
    if args.command == "up":
        check_schedule(os.environ)
        return commands.up(layout, args.dag, signals)
    return commands.down(layout) if args.command == "down" else commands.status(layout)


if __name__ == "__main__":
    sys.exit(main())
