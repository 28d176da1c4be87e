"""The result of a comparison of inputs as an experiment of Comet: its settings, its verdict and its table."""

from functools import partial
from pathlib import Path

from pipeline.monitor.comet import CometOptions, Session, finish_within
from pipeline.storage import write_json
from pipeline.tuning.measurement import Comparison
from pipeline.tuning.result import Result

LOGGED = "comet/logged.json"
"""Exists once the result is logged. Writing the page again does not log it again."""
LOGGED_WITHIN_S = 120.0
COLUMNS = (
    *("input", "images_per_s", "images_per_s_low", "images_per_s_high", "ratio", "ratio_low", "ratio_high"),
    *("wait_fraction", "first_epoch_s", "epoch_mean_s", "epoch_median_s", "epoch_std_s", "epoch_p95_s"),
    *("batch_mean_ms", "batch_p95_ms", "cold_per_s", "warm_per_s"),
)


def log_inputs(folder: Path, comparison: Comparison, result: Result) -> None:
    """Log a result, once: online if Comet finds an API key, otherwise into an archive in `comet/` of the folder.

    An error, or more than LOGGED_WITHIN_S, costs a warning only.
    """
    if not (folder / LOGGED).exists():
        finish_within(LOGGED_WITHIN_S, "logging the comparison to Comet", partial(_log, folder, comparison, result))


def table(result: Result) -> list[list[object]]:
    """Return a row for each contender, with the values of COLUMNS. The first contender has the ratio 1."""
    return [
        [
            row.title,
            *(row.examples_per_s.value, row.examples_per_s.low, row.examples_per_s.high),
            *((row.ratio.value, row.ratio.low, row.ratio.high) if row.ratio else (1.0, 1.0, 1.0)),
            *(row.wait_fraction, row.first_epoch_s, row.epoch_s.mean, row.epoch_s.median, row.epoch_s.std),
            *(row.epoch_s.p95, row.step_ms.mean, row.step_ms.p95, row.cold_per_s, row.warm_per_s),
        ]
        for row in result.rows
    ]


def _log(folder: Path, comparison: Comparison, result: Result) -> None:
    settings = comparison.training_settings()
    options = CometOptions(
        project=settings.comet_project,
        identity=f"inputs/{folder}/{comparison.created}",
        name=f"{settings.dataset_name} inputs",
        parameters={
            **comparison.settings,
            **comparison.options.model_dump(),
            **{f"dataset_{name}": place for name, place in comparison.datasets.items()},
        },
    )
    session = Session(folder / "comet", options)
    session.experiment.log_parameters(dict(options.parameters))
    session.experiment.log_other("verdict", result.verdict)
    session.experiment.log_table("inputs.csv", table(result), headers=list(COLUMNS))
    write_json(folder / LOGGED, {"comet": session.end()})
