"""Commands on trained models: promotion and prediction."""

import argparse
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.commands.command import Result, argument, command, format_result, printer_at, program
from pipeline.commands.options import published_settings, reachable, settings_of
from pipeline.commands.spooled import Spooled
from pipeline.config.preflight import require_buckets
from pipeline.errors import TenfoldError
from pipeline.storage import Place, place_of, read_json
from pipeline.training.tensorflow_start import tensorflow_on_the_cpu

if TYPE_CHECKING:
    from pipeline.runs.champion import Pointer

_STDERR = 2
"""File descriptor for the output of the processes that log to Comet."""
_log = logging.getLogger(__name__)


def _format_champion(result: Result) -> str:
    champion = result["champion"] or {"export": "none: no model has been promoted yet"}
    history = [f"{each['at']}  {each['action']:<8}  {each['run']}  ({each['why']})" for each in result["history"]]
    return format_result({"pointer": result["pointer"], "champion": champion["export"], "history": history})


@command("champion", "--set dataset_name=flowers", printer=_format_champion)
def champion(options: argparse.Namespace) -> Result:
    """Show the champion of a dataset name (its promoted model) and the history of promotions."""
    pointer = _pointer(options)
    champion = asdict(pointer.champion) if pointer.champion else None
    return {"pointer": str(pointer.place), "champion": champion, "history": [asdict(each) for each in pointer.history]}


@command("promote", "workspace/runs/RUN", argument("run", help="folder of the run, local or gs://"))
def promote(options: argparse.Namespace) -> Result:
    """Make the model of a run the champion of its dataset name, without a comparison."""
    from pipeline.runs.promotion import promote_by_hand

    run = reachable("run", options.run)
    promotion = promote_by_hand(run, _STDERR)
    _draw_report(run)
    return promotion


@command("rollback", "--set dataset_name=flowers")
def rollback(options: argparse.Namespace) -> Result:
    """Make the previous champion of a dataset name the champion again."""
    from pipeline.runs.promotion import roll_back

    pointer = _pointer(options)
    champion, taken_back = roll_back(pointer, _STDERR)
    _draw_report(place_of(taken_back.run))
    return {"champion": champion.run, "model": champion.export, "pointer": str(pointer.place)}


def _draw_report(run: Place) -> None:
    """Write the report of a run again, because it shows the promotion. A failure costs a warning only."""
    from pipeline.report import REPORT, report_run

    if not (run / REPORT).is_file():
        return
    try:
        report_run(run)
    except (TenfoldError, OSError, ImportError) as error:
        advice = f"write it again with `{program()} report {run}`"
        _log.warning("the report of %s does not show this promotion (%s): %s", run, error, advice)


def _pointer(options: argparse.Namespace) -> "Pointer":
    from pipeline.runs.champion import pointer_of

    settings = published_settings(options)
    require_buckets({"workspace": place_of(settings.workspace)})
    return pointer_of(place_of(settings.workspace), settings.dataset_name)


@command(
    "predict",
    "--model workspace/models/flowers photo.jpg",
    argument(
        "--model",
        required=True,
        metavar="RUN",
        help="folder of a run, of its export, or of a champion (WORKSPACE/models/NAME); also gs://",
    ),
    argument(
        "files", nargs="+", metavar="FILE", help="image file; for a model of a table, a table file or a folder of them"
    ),
    printer=printer_at("pipeline.training.served.predict:prediction_lines"),
    extra="training",
)
def predict(options: argparse.Namespace) -> Result:
    """Predict labels of images, or of the rows of a table, with the model of a run."""
    from pipeline.gate.findings import gate_options
    from pipeline.gate.new_rows import NewRows, sentences_of
    from pipeline.runs.champion import find_promoted_model
    from pipeline.runs.run import TABLE_FACTS, load_about

    # A wrong folder or setting is reported before TensorFlow is loaded.
    settings = settings_of(options)
    thresholds = gate_options(settings).thresholds
    model = find_promoted_model(reachable("model", options.model))
    about = load_about(model)
    new_rows = NewRows(read_json(model / TABLE_FACTS), about["dataset_version"]) if "columns" in about else None
    with tensorflow_on_the_cpu():
        from pipeline.training.served.predict import each_prediction
    predictions = Spooled(each_prediction(model, [Path(file) for file in options.files], new_rows, settings))
    result: Result = {"ok": not any("rejected" in each for each in predictions), "predictions": predictions}
    if new_rows is None:
        return result
    changes = new_rows.changes()
    warnings = sentences_of(changes, thresholds)
    for warning in warnings:
        _log.warning("%s", warning)
    return {**result, "table_changes": changes, "warnings": warnings}
