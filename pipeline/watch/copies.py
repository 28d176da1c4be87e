"""A local folder for each training: its own folder, or a copy of its files in a bucket."""

import logging
import shutil
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.evaluation.metrics import EVALUATION
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import first_time, record_folders, segments
from pipeline.runs.files import (
    CHANGES,
    EARLY_END,
    OFFERS,
    OTHER_SERVERS,
    PROMOTION,
    RESULT,
    RUN,
    STAGES,
    VERDICT,
    load_files,
)
from pipeline.runs.mirror import fetch
from pipeline.storage import BucketPath, Place, objects
from pipeline.watch.questions import Questions
from pipeline.watch.tables import KINDS_OVER_TIME, MAX_FILE_BYTES, Span, segments_of_span

FILES = (RUN, RESULT, EVALUATION, PROMOTION, VERDICT, EARLY_END, CHANGES, OFFERS, STAGES, f"{OVERVIEW}/")
REFRESH_S = 8.0
"""Seconds after which a copy is refreshed. A training mirrors its changes every ten seconds."""
MAX_AGE_S = 300.0
"""Seconds for which an old copy is shown if its bucket does not answer, or while a span is being fetched."""
MAX_COPIES = 40
"""Maximum number of copies. The one that was used least recently is removed first."""
MAX_SEGMENTS = 40
"""Maximum number of segments of the record that a span reads. Each has 2 MB and takes up to a tenth of a second."""
_log = logging.getLogger(__name__)


@dataclass
class _Copy:
    folder: Path
    fetched: float = -REFRESH_S
    """Time of the last fetch, by the monotonic clock in seconds."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the folder is written or removed."""


class Copies:
    """Local folders of trainings. Those in buckets are copied, again and again while a page shows them.

    Any number of threads may use it. One training never waits for another. Raises StorageError or AccessError if a
    bucket cannot be used, or does not answer within PATIENCE_S, and SizeError if a file is larger than MAX_FILE_BYTES.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._folder = Path(tempfile.mkdtemp(prefix="tenfold-watch-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()

    def local_folder(self, training: Place) -> Path:
        """Return a folder with all that is drawn of a training, up to MAX_AGE_S old if its bucket is slow."""
        if isinstance(training, Path):
            return training
        copy = self._copy_of(str(training))
        if time.monotonic() > copy.fetched + REFRESH_S:
            try:
                self._questions.ask(training.bucket, training, lambda: _fetch(copy, training))
            except StorageError as error:
                if time.monotonic() > copy.fetched + MAX_AGE_S or not (copy.folder / RUN).exists():
                    raise
                _log.warning("%s cannot be refreshed, so its last copy is shown: %s", training, error)
        return copy.folder

    def fetch_span(self, training: Place, span: Span) -> Span:
        """Fetch the segments of the record that hold the rows of a span.

        Returns the span, which is shown from the overview if more than MAX_SEGMENTS hold its rows.
        """
        if isinstance(training, Path):
            records = record_folders(training).values()
            paths = [
                path
                for folder in records
                for kind in KINDS_OVER_TIME
                for path in segments_of_span(segments(folder, kind), span, first_time)
            ]
            return span._replace(is_close=len(paths) <= MAX_SEGMENTS)
        copy = self._copy_of(str(training))
        is_close = self._questions.ask(training.bucket, (training, span), lambda: _fetch_span(copy, training, span))
        return span._replace(is_close=is_close)

    def _copy_of(self, name: str) -> _Copy:
        with self._lock:
            copy = self._copies.pop(name, None) or _Copy(self._folder / name.replace("/", "|"))
            # A cleaner of temporary files may have removed the folder since.
            copy.folder.mkdir(parents=True, exist_ok=True)
            self._copies[name] = copy  # The last one was used most recently.
            for oldest in [*self._copies][:-MAX_COPIES]:
                self._remove(oldest)
            return copy

    def _remove(self, name: str) -> None:
        copy = self._copies[name]
        if copy.lock.acquire(blocking=False):  # Otherwise a thread writes the copy, and a later call removes it.
            try:
                del self._copies[name]
                # A cleaner of temporary files may remove it at the same time.
                shutil.rmtree(copy.folder, ignore_errors=True)
            finally:
                copy.lock.release()


def _fetch(copy: _Copy, training: BucketPath) -> None:
    with copy.lock:
        # First, because `run.json` says how many servers there are.
        fetch(copy.folder, training, FILES, MAX_FILE_BYTES)
        others = _servers(copy.folder)[1:]
        names = tuple(f"{other}{name}" for other in others for name in (STAGES, f"{OVERVIEW}/"))
        fetch(copy.folder, training, names, MAX_FILE_BYTES)
        copy.fetched = time.monotonic()


def _fetch_span(copy: _Copy, training: BucketPath, span: Span) -> bool:
    """Fetch the segments that have rows of the span if they are few enough. Return whether they are."""

    def begin(segment: str) -> float | None:
        # Only the few segments that the bisection opens are fetched for their first row.
        fetch(copy.folder, training, (segment,), MAX_FILE_BYTES)
        return first_time(copy.folder / f"{segment}csv")

    with copy.lock:
        found = [
            segment
            for server in _servers(copy.folder)
            for kind in KINDS_OVER_TIME
            for segment in segments_of_span(_segments(training, f"{server}record/{kind}-"), span, begin)
        ]
        is_close = len(found) <= MAX_SEGMENTS
        for segment in found if is_close else ():
            fetch(copy.folder, training, (segment,), MAX_FILE_BYTES)
    return is_close


def _servers(folder: Path) -> list[str]:
    """Return the folder of each training server's files, below that of the training. Server 0 comes first."""
    return ["", *(f"{OTHER_SERVERS}{index}/" for index in range(1, load_files(folder).num_training_servers))]


def _segments(training: BucketPath, before: str) -> list[str]:
    """Return the segments whose names begin with `before`, up to the dot: the ending changes when one is closed."""
    folder, _, start = before.rpartition("/")
    keys = {each.key.partition(".")[0] for each in objects(training / folder) if each.key.startswith(start)}
    return sorted(f"{folder}/{key}." for key in keys)
