"""The page that tells a run: one HTML file that opens anywhere, drawn from the local record alone."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.dataset import Dataset
from pipeline.errors import DatasetError
from pipeline.storage import Place, move_whole, place_of, write_whole

SAMPLES = 48
CARD = "card.html"
REPORT = "report.html"
RECORDED = ("run.json", "result.json", "evaluation.json", "promotion.json", "record/")
"""What the report of a run is drawn from, in its folder."""


def report_run(run: Place) -> Place:
    """Write the report of a run, with sample images of its data set; return where it is.

    Raises DatasetError where the folder holds no run, or its data set is not there any more.
    """
    if isinstance(run, Path):
        return _report_run(run)
    from pipeline.mirror import fetch

    with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
        folder = Path(name)
        fetch(folder, run, RECORDED)
        if not (folder / "run.json").exists():
            raise DatasetError(f"{run} holds no run: there is no run.json")
        move_whole(_report_run(folder), run / REPORT)
    return run / REPORT


def _report_run(run_folder: Path) -> Path:
    from pipeline.dataset import images_at, load, sample_images
    from pipeline.report.run import read_json
    from pipeline.runs import load_run

    folder = place_of(load_run(run_folder).dataset)
    dataset = load(folder)
    most_wrong = [row["position"] for row in read_json(run_folder / "evaluation.json").get("most_wrong", [])]
    images = images_at(folder, dataset, "validation", most_wrong)
    return write_report(run_folder, sample_images(folder, dataset, SAMPLES), images)


def write_card(
    folder: Place, dataset: Dataset, rejected: Sequence[Mapping[str, Any]], duplicates: Sequence[Mapping[str, Any]]
) -> None:
    """Write the data set card into the folder of a data set whose shards stand there, and that need not be committed.

    ``rejected`` and ``duplicates`` are the rows of the files of these names.
    """
    from pipeline.dataset import sample_images, to_json
    from pipeline.report import card

    content = json.loads(to_json(dataset))
    card.write_card(folder / CARD, content, sample_images(folder, dataset, SAMPLES), rejected, duplicates)


def write_report(
    run_folder: Path, samples: Sequence[tuple[str, bytes]] = (), most_wrong: Sequence[tuple[str, bytes]] = ()
) -> Path:
    """Write ``run_folder/report.html`` and return its path; the page before it stays until the new one is whole.

    ``samples`` are (label, encoded image) to show, ``most_wrong`` (name, encoded image) of those that evaluation.json
    lists as the most wrong, in its order. Whatever a run that was killed did not come to write is said on the page to
    be missing. Raises OSError where the folder cannot be written.
    """
    from pipeline.report.page import render
    from pipeline.report.run import load

    path = run_folder / REPORT
    with write_whole(path) as file:
        file.write(render(load(run_folder), samples, most_wrong).encode("utf-8", "backslashreplace"))
    return path
