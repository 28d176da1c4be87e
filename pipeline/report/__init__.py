"""The report of a run: one HTML file that opens anywhere, drawn from the local record alone."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import DatasetError
from pipeline.plan.example_kind import kind_of
from pipeline.rendezvous.servers import SERVERS
from pipeline.runs.files import PROMOTION, RESULT, RUN, read_or_empty
from pipeline.storage import Place, move_whole, place_of, write_whole

if TYPE_CHECKING:
    from pipeline.report.compared_run import ComparedRun

SAMPLES = 48
"""Maximum number of sample images on a page."""
REPORT = "report.html"
REPORT_FILES = (RUN, RESULT, "evaluation.json", PROMOTION, "record/", f"{SERVERS}/")
"""Files and folders of a run that its report reads. `servers/` has the records of the other training servers."""
COMPARISON_FILES = (RUN, RESULT, "evaluation.json", "predictions.npz", "record/", f"{SERVERS}/")
"""Files and folders of a run that a comparison reads."""


def report_run(run: Place) -> Place:
    """Write the report of a run, with sample images of its dataset, and return its place.

    Raises:
        DatasetError: The folder holds no run, or the dataset of the run does not exist any more.
        SettingsError: The administrator does not allow the dataset.
    """
    from pipeline.dataset.manifest import images_at, load_allowed, rows_at, sample_images
    from pipeline.evaluation.metrics import EVALUATION
    from pipeline.report.table_columns import texts_of
    from pipeline.runs.run import load_run
    from pipeline.tables.schema import Schema

    with _local_folder(run, REPORT_FILES) as folder:
        place = place_of(load_run(folder).dataset)
        dataset = load_allowed(place)
        positions = [row["position"] for row in read_or_empty(folder / EVALUATION).get("most_wrong", [])]
        if kind_of(dataset).has_pictures:
            images = images_at(place, dataset, dataset.judged_split, positions)
            report = write_report(folder, sample_images(place, dataset, SAMPLES), images)
        elif dataset.table:
            schema = Schema.from_json(dataset.table)
            rows = rows_at(place, dataset, dataset.judged_split, positions)
            report = write_report(folder, wrong_rows=[texts_of(row, schema) for row in rows])
        else:
            report = write_report(folder)
        if not isinstance(run, Path):
            move_whole(report, run / REPORT)
    return run / REPORT


def compare_runs(places: Sequence[Place], to: Path) -> dict[str, Any]:
    """Write the page that compares runs, and return the comparison for JSON.

    Raises:
        SettingsError: There are too few or too many runs.
        DatasetError: A folder holds no run.
        OSError: The page cannot be written.
    """
    from pipeline.report.compare import LETTERS, Comparison, require_count
    from pipeline.report.compare_page import Named, render
    from pipeline.report.compare_words import as_json

    require_count(len(places))
    runs = [load_compared_run(place) for place in places]
    page = render(runs, [Named(str(place)) for place in places])
    with write_whole(to) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    named = {letter.lower(): str(place) for letter, place in zip(LETTERS, places, strict=False)}
    return {"comparison": str(to), **named, **as_json(Comparison(runs))}


def load_compared_run(place: Place) -> "ComparedRun":
    """Read what a comparison needs of a run. Raises DatasetError if the folder holds no run."""
    from pipeline.report.compared_run import load_compared

    with _local_folder(place, COMPARISON_FILES) as folder:
        return load_compared(folder)


@contextmanager
def _local_folder(run: Place, names: tuple[str, ...]) -> Iterator[Path]:
    """Provide a local folder with these files of a run, its own or a copy. Raises DatasetError if it holds no run."""
    with tempfile.TemporaryDirectory(prefix="tenfold-") as name:
        folder = run if isinstance(run, Path) else Path(name)
        if not isinstance(run, Path):
            from pipeline.runs.mirror import fetch

            fetch(folder, run, names)
        if not (folder / RUN).exists():
            raise DatasetError(f"{run} is not the folder of a run: it has no run.json")
        yield folder


def write_report(
    run_folder: Path,
    samples: Sequence[tuple[str, bytes]] = (),
    confident_mistakes: Sequence[tuple[str, bytes]] = (),
    wrong_rows: Sequence[Mapping[str, str]] = (),
) -> Path:
    """Write `run_folder/report.html` and return its path. An older page stays until the new one is complete.

    The page says which files of a run are missing, for example because the run was killed.

    Args:
        run_folder: The folder of the run.
        samples: (label, encoded image) of images to show.
        confident_mistakes: (key, encoded image) of the images that `most_wrong` in evaluation.json lists, in its order.
        wrong_rows: The values of the rows of a table that `most_wrong` lists, by column.

    Raises:
        OSError: The folder cannot be written.
    """
    # Not at the top: pandas and Bokeh take long to import, and the dataset card needs neither.
    from pipeline.report.page import load, render

    path = run_folder / REPORT
    with write_whole(path) as file:
        page = render(load(run_folder), samples, confident_mistakes, wrong_rows)
        file.write(page.encode("utf-8", "backslashreplace"))
    return path
