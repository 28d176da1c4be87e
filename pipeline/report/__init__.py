"""The page that tells a run: one HTML file that opens anywhere, drawn from the local record alone."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.dataset.manifest import CARD, Dataset
from pipeline.errors import DatasetError
from pipeline.rendezvous.servers import SERVERS
from pipeline.runs.files import PROMOTION, RESULT, RUN, read_or_empty
from pipeline.storage import Place, move_whole, place_of, write_whole

SAMPLES = 48
REPORT = "report.html"
RECORDED = (RUN, RESULT, "evaluation.json", PROMOTION, "record/", f"{SERVERS}/")
"""What the report of a run is drawn from, in its folder: `servers/` has the records of the other training servers."""
COMPARED = (RUN, "evaluation.json", "predictions.npz", "record/")


def report_run(run: Place) -> Place:
    """Write the report of a run, with sample images of its data set; return where it is.

    Raises DatasetError where the folder holds no run, or its data set is not there any more.
    """
    with _at_hand(run, RECORDED) as folder:
        report = _report_run(folder)
        if isinstance(run, Path):
            return report
        move_whole(report, run / REPORT)
    return run / REPORT


def compare_runs(a: Place, b: Place, to: Path) -> dict[str, Any]:
    """Write the page that lays two runs side by side; return the table, as JSON has it.

    Raises DatasetError where a folder holds no run, and OSError where `to` cannot be written.
    """
    from pipeline.report import compare_page
    from pipeline.report.compare import compared
    from pipeline.runs.recorded_run import load_answers, load_recorded_run

    with _at_hand(a, COMPARED) as of_a, _at_hand(b, COMPARED) as of_b:
        runs = load_recorded_run(of_a), load_recorded_run(of_b)
        comparison = compared(*runs, (load_answers(of_a), load_answers(of_b)))
    with write_whole(to) as file:
        file.write(compare_page.render(runs, (str(a), str(b)), comparison).encode("utf-8", "backslashreplace"))
    return {"comparison": str(to), "a": str(a), "b": str(b), **comparison.as_json()}


@contextmanager
def _at_hand(run: Place, names: tuple[str, ...]) -> Iterator[Path]:
    """The folder of a run, or for the time being one with copies of these files of it.

    Raises DatasetError where it holds no run.
    """
    with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
        folder = run if isinstance(run, Path) else Path(name)
        if not isinstance(run, Path):
            from pipeline.runs.mirror import fetch

            fetch(folder, run, names)
        if not (folder / RUN).exists():
            raise DatasetError(f"{run} holds no run: there is no run.json")
        yield folder


def _report_run(run_folder: Path) -> Path:
    from pipeline.dataset.manifest import images_at, load, sample_images
    from pipeline.evaluation.metrics import EVALUATION
    from pipeline.runs.run import load_run

    folder = place_of(load_run(run_folder).dataset)
    dataset = load(folder)
    most_wrong = [row["position"] for row in read_or_empty(run_folder / EVALUATION).get("most_wrong", [])]
    images = images_at(folder, dataset, "validation", most_wrong)
    return write_report(run_folder, sample_images(folder, dataset, SAMPLES), images)


def write_card(
    folder: Place,
    dataset: Dataset,
    rejected: Sequence[Mapping[str, Any]],
    duplicates: Sequence[Mapping[str, Any]],
    skipped: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the data set card into the folder of a data set that need not be committed, as `WriteCard` says."""
    from pipeline.dataset.manifest import sample_images, to_json
    from pipeline.report import card

    content = json.loads(to_json(dataset))
    card.write_card(folder / CARD, content, sample_images(folder, dataset, SAMPLES), rejected, duplicates, skipped)


def write_report(
    run_folder: Path, samples: Sequence[tuple[str, bytes]] = (), most_wrong: Sequence[tuple[str, bytes]] = ()
) -> Path:
    """Write `run_folder/report.html` and return its path; the page before it stays until the new one is whole.

    `samples` are (label, encoded image) to show, `most_wrong` (name, encoded image) of those that evaluation.json
    lists as the most wrong, in its order. Whatever a run that was killed did not come to write is said on the page to
    be missing. Raises OSError where the folder cannot be written.
    """
    from pipeline.report.page import render
    from pipeline.runs.recorded_run import load_recorded_run

    path = run_folder / REPORT
    with write_whole(path) as file:
        file.write(render(load_recorded_run(run_folder), samples, most_wrong).encode("utf-8", "backslashreplace"))
    return path
