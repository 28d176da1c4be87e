"""The report of a run: one HTML file that opens anywhere, drawn from the local record alone."""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import DatasetError, StorageError
from pipeline.plan.example_kind import kind_of
from pipeline.runs.files import (
    CHANGES,
    OTHER_SERVERS,
    PROMOTION,
    RESULT,
    RUN,
    STAGES,
    read_required,
    with_moved_dataset,
)
from pipeline.storage import Place, move_whole, place_of, write_json, write_whole

if TYPE_CHECKING:
    from pipeline.dataset.manifest import Dataset
    from pipeline.evaluation.answers import Answers
    from pipeline.report.compared_run import ComparedRun

REPORT = "report.html"
REPORT_FILES = (RUN, RESULT, CHANGES, "evaluation.json", "predictions.npz", PROMOTION, STAGES, "record/", OTHER_SERVERS)
"""Files and folders of a run that its report reads. `servers/` has the records of the other training servers."""
COMPARISON_FILES = (RUN, RESULT, "evaluation.json", "predictions.npz", "record/", OTHER_SERVERS)
"""Files and folders of a run that a comparison reads."""
_log = logging.getLogger(__name__)


def report_run(run: Place) -> Place:
    """Write the report of a run, with the wrong answers of its model beside it, and return its place.

    Raises:
        DatasetError: The folder holds no run, or the dataset of the run does not exist any more.
        SettingsError: The administrator does not allow the dataset.
    """
    from pipeline.dataset.manifest import load_allowed
    from pipeline.report.mistakes import FILE
    from pipeline.runs.recorded_run import load_answers
    from pipeline.runs.run import load_run

    with _local_folder(run, REPORT_FILES) as folder:
        place = place_of(load_run(folder).dataset)
        dataset, answers = load_allowed(place), load_answers(folder)
        pictures: Sequence[tuple[str, str]] = ()
        rows: Sequence[Mapping[str, str]] = ()
        if answers is not None:
            _write_mistakes(folder / FILE, answers, place, dataset)
            # A complete training must get its page, so a lost dataset only costs the examples.
            with _warned("the report shows no examples"):
                if kind_of(dataset).has_pictures:
                    pictures = _pictures(answers, place, dataset)
                elif dataset.table:
                    rows = _rows(answers, place, dataset)
        write_report(folder, pictures, rows)
        for file in (folder / FILE, folder / REPORT):
            if not isinstance(run, Path) and file.exists():
                move_whole(file, run / file.name)
    return run / REPORT


def _pictures(answers: "Answers", place: Place, dataset: "Dataset") -> list[tuple[str, str]]:
    """Return key and thumbnail of each wrong image that the page shows. Both are empty if it cannot be read."""
    from pipeline.dataset.manifest import named_image, readable_at
    from pipeline.report.components import thumbnail
    from pipeline.report.mistakes import THUMBNAIL, shown_positions

    def picture(record: bytes) -> tuple[str, str]:
        key, encoded = named_image(dataset, record)
        return key, thumbnail(encoded, THUMBNAIL) or ""

    positions = shown_positions(answers).tolist()
    found = readable_at(place, dataset, dataset.judged_split, positions, picture)
    return [found.get(position, ("", "")) for position in positions]


def _rows(answers: "Answers", place: Place, dataset: "Dataset") -> list[Mapping[str, str]]:
    """Return the values of each wrong row that the page shows. There are none if the row cannot be read."""
    from pipeline.dataset.manifest import readable_at
    from pipeline.report.mistakes import shown_positions
    from pipeline.report.table_columns import texts_of
    from pipeline.tables.read import read_row
    from pipeline.tables.schema import Schema

    schema, positions = Schema.from_json(dataset.table), shown_positions(answers).tolist()

    def texts(record: bytes) -> Mapping[str, str]:
        return texts_of(read_row(record, schema), schema)

    found = readable_at(place, dataset, dataset.judged_split, positions, texts)
    return [found.get(position, {}) for position in positions]


def _write_mistakes(path: Path, answers: "Answers", place: Place, dataset: "Dataset") -> None:
    """Write the wrong answers with the keys of their examples; no file if a key cannot be read."""
    from pipeline.dataset.keys import keys_at
    from pipeline.report.mistakes import listed_positions, write_csv

    path.unlink(missing_ok=True)  # The page links to any file that is there. An older one may be of another model.
    positions = listed_positions(answers).tolist()
    with _warned(f"{path.name} is not written"), write_whole(path) as file:
        write_csv(file, answers, dataset.names, keys_at(place, dataset, dataset.judged_split, positions))


@contextmanager
def _warned(effect: str) -> Iterator[None]:
    """Log an error of reading the dataset with its effect, and go on."""
    try:
        yield
    except (DatasetError, StorageError, OSError) as error:
        _log.warning("%s: %s", effect, error)


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
    comparison = Comparison([load_compared_run(place) for place in places])
    page = render(comparison, [Named(str(place)) for place in places])
    with write_whole(to) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    named = {letter.lower(): str(place) for letter, place in zip(LETTERS, places, strict=False)}
    return {"comparison": str(to), **named, **as_json(comparison)}


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
        if not isinstance(run, Path):
            # Readers of the copy cannot know where its workspace is now.
            write_json(folder / RUN, with_moved_dataset(read_required(folder / RUN), run))
        yield folder


def write_report(
    run_folder: Path, pictures: Sequence[tuple[str, str]] = (), rows: Sequence[Mapping[str, str]] = ()
) -> Path:
    """Write `run_folder/report.html` and return its path. An older page stays until the new one is complete.

    The page says which files of a run are missing, for example because the run was killed.

    Args:
        run_folder: The folder of the run.
        pictures: Key and data URI of the wrong images that the page shows, in the order of `shown_positions`. The URI
            is empty if the image cannot be read.
        rows: For a table, the values of the wrong rows that the page shows, by column; empty if the row cannot be read.

    Raises:
        OSError: The folder cannot be written.
    """
    # Not at the top: pandas and Bokeh take long to import, and the dataset card needs neither.
    from pipeline.report.input_stages import input_stages
    from pipeline.report.mistakes import FILE
    from pipeline.report.page import load, render
    from pipeline.runs.recorded_run import load_answers

    path = run_folder / REPORT
    with write_whole(path) as file:
        has_csv = (run_folder / FILE).is_file()
        stages = input_stages(run_folder)
        page = render(load(run_folder), load_answers(run_folder), pictures, rows, has_csv, stages)
        file.write(page.encode("utf-8", "backslashreplace"))
    return path
