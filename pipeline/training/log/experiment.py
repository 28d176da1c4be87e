"""A training as an experiment of Comet: its identity, and the results that are logged once it is complete."""

import io
import logging
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.dataset.manifest import COMMIT, images_at, load, sample_images
from pipeline.evaluation.metrics import EVALUATION, figures_in, over_baseline
from pipeline.monitor import CometOptions
from pipeline.monitor.comet import Session, error_text, finish_within
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import of_segment, record_folders, segments
from pipeline.monitor.row import KINDS
from pipeline.plan.example_kind import kind_of
from pipeline.runs.files import COMET_LOGGED, read_required
from pipeline.runs.run import Run, load_result
from pipeline.storage import crc32c_of, place_of

LOGGED_WITHIN_S = 120.0
"""Time limit for logging the results, in seconds. The training must not wait for an outage of Comet."""
MAX_ASSET_BYTES = 200_000_000
"""Larger files stay in the folder of the run."""
RECORD = "record.zip"
"""Name of the asset with the records in the folder of the run. In a bucket, it has only that of server 0."""
MAX_IMAGES = 24
"""This many images of each kind are logged."""
MAX_CLASSES = 500
"""Limit for a confusion matrix, which Comet gets as a square."""
SHOWN_CLASSES = 30
"""Comet draws this many classes of a confusion matrix."""
_log = logging.getLogger(__name__)


def comet_options(run: Run) -> CometOptions:
    """Return the experiment of a run: the same for every retry, and another one for other settings or data.

    Raises OSError or StorageError if the dataset cannot be read.
    """
    marks = ["simulated"] if run.settings.simulated_step_ms else []
    checksum = f"{crc32c_of(place_of(run.dataset) / COMMIT):08x}"
    origin = {"dag": run.dag, "run_id": run.run_id, "dataset_version": run.dataset_version, "dataset_crc32c": checksum}
    return CometOptions(
        project=run.settings.comet_project,
        # With the workspace, because all runs of the command line have the same id.
        identity=f"{run.dag}/{run.run_id}/{run.settings.workspace}/{run.dataset_version}/{run.folder.name}",
        name=" ".join([run.settings.dataset_name, run.settings.model, run.run_id, *marks]),
        parameters={**run.settings.model_dump(), **origin},
    )


def log_results(run: Run) -> None:
    """Log model, report, record, evaluation and sample images of a complete run, once.

    An error, or more than LOGGED_WITHIN_S, costs a warning only.
    """
    if not (run.folder / COMET_LOGGED).exists():
        finish_within(LOGGED_WITHIN_S, "logging the results to Comet", partial(_log_results, run))


def _log_results(run: Run) -> None:
    session = Session(run.folder / "comet", comet_options(run), is_addition=True)
    # On a simulated accelerator, no model is evaluated.
    of_model = () if run.settings.simulated_step_ms else (_log_figures, _log_confusions, _log_images, _log_evaluation)
    log_record = partial(_log_record, session.folder / RECORD)
    for log in (_log_summary, _log_stages, *of_model, _log_report, _log_model, log_record):
        try:
            log(session.experiment, run)
        except Exception as error:  # noqa: BLE001 - the other results may be there
            _log.warning("some results could not be logged to Comet: %s", error_text(error))
    storage.write_json(run.folder / COMET_LOGGED, {"comet": session.end()})


def _log_summary(experiment: Any, run: Run) -> None:
    result = load_result(run.folder) or {}
    experiment.log_other("verdict", result.get("verdict", ""))
    experiment.log_other("headline", result.get("headline", ""))
    experiment.log_other("best_epoch", result.get("metrics", {}).get("best_epoch", 0))
    experiment.log_other("run", str(run.place))


def _log_stages(experiment: Any, run: Run) -> None:
    from pipeline.report.input_stages import input_stages  # Needs Bokeh, which a training can do without.

    stages = input_stages(run.folder)
    if not stages:
        return
    experiment.log_other("stages", stages.sentence)
    for server, costs in stages.servers.items():
        of_server = f"stages/server_{server}" if len(stages.servers) > 1 else "stages"
        for stage, us in costs.us.items():
            experiment.log_metric(f"{of_server}/{stage}_ms", us.value / 1000)


def _log_figures(experiment: Any, run: Run) -> None:
    evaluation = read_required(run.folder / EVALUATION)
    experiment.log_other("evaluation/split", evaluation["split"])
    for figure in figures_in(evaluation):
        name = f"evaluation/{figure.metric.key}"
        experiment.log_metric(name, figure.estimate.value)
        experiment.log_other(f"{name}_interval", figure.interval_text)
        if figure.baseline is not None:
            experiment.log_metric(f"{name}_baseline", figure.baseline)
    experiment.log_other("baseline", over_baseline(evaluation))


def _log_confusions(experiment: Any, run: Run) -> None:
    evaluation = read_required(run.folder / EVALUATION)
    names = [row["name"] for row in evaluation.get("classes", ())]
    # Images of several labels have no confusions, nor has a regression. A larger matrix would be too much for Comet.
    if "confusions" not in evaluation or len(names) > MAX_CLASSES:
        return
    experiment.log_confusion_matrix(
        matrix=confusion_matrix(evaluation["confusions"], len(names)),
        labels=names,
        title=f"Confusions of the {evaluation['examples']:,} {evaluation['split']} examples",
        row_label="true class",
        column_label="taken for",
        max_categories=SHOWN_CLASSES,
    )


def confusion_matrix(confusions: Sequence[tuple[int, int, int]], classes: int) -> list[list[int]]:
    """Return the counts by true class, then predicted class, of triples (true class, predicted class, count)."""
    rows = [[0] * classes for _ in range(classes)]
    for label, predicted, count in confusions:
        rows[label][predicted] = count
    return rows


def _log_images(experiment: Any, run: Run) -> None:
    folder = place_of(run.dataset)
    dataset = load(folder)
    if not kind_of(dataset).has_pictures:
        return
    wrong = [row["position"] for row in read_required(run.folder / EVALUATION)["most_wrong"][:MAX_IMAGES]]
    shown = {
        "sample": sample_images(folder, dataset, MAX_IMAGES),
        "most wrong": images_at(folder, dataset, dataset.judged_split, wrong),
    }
    for kind, images in shown.items():
        for number, (name, encoded) in enumerate(images, start=1):
            experiment.log_image(io.BytesIO(encoded), name=image_name(f"{kind} {number:02d}: {name}", encoded))


def image_name(name: str, encoded: bytes) -> str:
    """Return a name with the ending of a JPEG or PNG."""
    ending = ".png" if encoded.startswith(b"\x89PNG") else ".jpg"
    return name if name.lower().endswith((ending, ".jpeg")) else name + ending


def _log_report(experiment: Any, run: Run) -> None:
    from pipeline.report import report_run

    # The current report. The task `report` draws it again, with the result of the promotion.
    experiment.log_asset(str(report_run(run.folder)), file_name="report.html", overwrite=True)


def _log_model(experiment: Any, run: Run) -> None:
    if _is_small_enough(run.model_path):
        experiment.log_model(run.settings.model, str(run.model_path), overwrite=True)


def _log_evaluation(experiment: Any, run: Run) -> None:
    if _is_small_enough(run.folder / EVALUATION):
        experiment.log_asset(str(run.folder / EVALUATION), file_name=EVALUATION, overwrite=True)


def _log_record(archive: Path, experiment: Any, run: Run) -> None:
    """Log the records in the folder of the run as one file: the thousands of segments would each be a request."""
    records = record_folders(run.folder).values()
    paths = [path for folder in records for path in _segments(folder)]
    size = sum(of_segment(path, lambda file: file.stat().st_size) for path in paths)
    if size > MAX_ASSET_BYTES:
        _log.warning(
            "the record (%d MB) is not logged to Comet, because it is larger than %d MB: it stays in %s, and Comet "
            "gets its means over intervals instead",
            size // 10**6,
            MAX_ASSET_BYTES // 10**6,
            run.folder / "record",
        )
        paths = [path for folder in records for path in _segments(folder.with_name(OVERVIEW))]
    with zipfile.ZipFile(archive, "w") as packed:
        for path in paths:
            of_segment(path, lambda file: packed.write(file, file.relative_to(run.folder)))
    experiment.log_asset(str(archive), file_name=RECORD, overwrite=True)


def _segments(folder: Path) -> list[Path]:
    return [path for kind in KINDS for path in segments(folder, kind)]


def _is_small_enough(path: Path) -> bool:
    size = path.stat().st_size
    if size > MAX_ASSET_BYTES:
        _log.warning(
            "%s (%d MB) is not logged to Comet, because it is larger than %d MB: the file stays where it is",
            path,
            size // 10**6,
            MAX_ASSET_BYTES // 10**6,
        )
    return size <= MAX_ASSET_BYTES
