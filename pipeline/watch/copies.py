"""The folder of a training at hand: its own one, or a copy of what a bucket has of it."""

import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.evaluation.metrics import EVALUATION
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import first_time, record_folders, segments
from pipeline.rendezvous.servers import SERVERS
from pipeline.runs.files import PROMOTION, RESULT, RUN, VERDICT, load_files
from pipeline.runs.mirror import fetch
from pipeline.storage import BucketPath, Place, objects
from pipeline.watch.questions import Questions
from pipeline.watch.tables import KINDS_OVER_TIME, Span, of_span

FILES = (RUN, RESULT, EVALUATION, PROMOTION, VERDICT, f"{OVERVIEW}/")
AGAIN_S = 8.0
"""A training mirrors what is new every ten seconds."""
KEPT_S = 300.0
"""Seconds for which an old copy is shown if its bucket does not answer, or if a closer look is being fetched."""
MOST = 40
"""Trainings of buckets that are kept here; the one that was looked at least lately goes first."""
MAX_SEGMENTS = 40
"""Most segments of the record that a closer look reads. Each has 2 MB and takes up to a tenth of a second."""
_log = logging.getLogger(__name__)


@dataclass
class _Copy:
    folder: Path
    fetched: float = -AGAIN_S
    """Time of the last fetch, by the monotonic clock in seconds."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the folder is written or removed."""


class Copies:
    """Folders of trainings; those in buckets are copied, and again every few seconds while somebody looks.

    Any number of threads may use it. One training never waits for another. Raises StorageError or AccessError if a
    bucket cannot be used, or does not answer within PATIENCE_S.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._folder = Path(tempfile.mkdtemp(prefix="tenfold-watch-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()

    def at_hand(self, training: Place) -> Path:
        """A local folder with all that is drawn of a training, as it was up to KEPT_S ago if its bucket is slow."""
        if isinstance(training, Path):
            return training
        copy = self._copy_of(str(training))
        if time.monotonic() > copy.fetched + AGAIN_S:
            try:
                self._questions.ask(training.bucket, training, lambda: _fetch(copy, training))
            except StorageError as error:
                if time.monotonic() > copy.fetched + KEPT_S or not (copy.folder / RUN).exists():
                    raise
                _log.warning("%s is shown as it was before: %s", training, error)
        return copy.folder

    def bring(self, training: Place, span: Span) -> Span:
        """Fetch the segments of the record that hold the rows of a span.

        Returns the span, for a look at the overview alone if more than MAX_SEGMENTS hold its rows.
        """
        if isinstance(training, Path):
            records = record_folders(training).values()
            found = [
                path
                for folder in records
                for kind in KINDS_OVER_TIME
                for path in of_span(segments(folder, kind), span, first_time)
            ]
            return span if len(found) <= MAX_SEGMENTS else span._replace(is_close=False)
        copy = self._copy_of(str(training))
        is_close = self._questions.ask(training.bucket, (training, span), lambda: _bring(copy, training, span))
        return span._replace(is_close=is_close)

    def _copy_of(self, name: str) -> _Copy:
        with self._lock:
            copy = self._copies.pop(name, None) or _Copy(self._folder / name.replace("/", "|"))
            copy.folder.mkdir(parents=True, exist_ok=True)
            self._copies[name] = copy  # the last one is the newest
            for oldest in [*self._copies][:-MOST]:
                self._remove(oldest)
            return copy

    def _remove(self, name: str) -> None:
        copy = self._copies[name]
        if copy.lock.acquire(blocking=False):  # else a thread writes it, and the next call removes it
            try:
                del self._copies[name]
                # Who cleans the folder of temporary files may remove it at the same time.
                shutil.rmtree(copy.folder, ignore_errors=True)
            finally:
                copy.lock.release()


def _fetch(copy: _Copy, training: BucketPath) -> None:
    with copy.lock:
        fetch(copy.folder, training, FILES)
        fetch(copy.folder, training, tuple(f"{other}{OVERVIEW}/" for other in _servers(copy.folder)[1:]))
        copy.fetched = time.monotonic()


def _bring(copy: _Copy, training: BucketPath, span: Span) -> bool:
    """Fetch the segments that have rows of the span if they are few enough. Return whether they are."""

    def begin(name: str) -> float | None:
        fetch(copy.folder, training, (name,))
        return first_time(copy.folder / name.removesuffix(".gz"))

    with copy.lock:
        found = [
            name
            for server in _servers(copy.folder)
            for kind in KINDS_OVER_TIME
            for name in of_span(sorted(_names(training, f"{server}record/{kind}-")), span, begin)
        ]
        is_close = len(found) <= MAX_SEGMENTS
        for name in found if is_close else ():
            fetch(copy.folder, training, (name,))
    return is_close


def _servers(folder: Path) -> list[str]:
    """Return the folder of each training server's files, below that of the training. Server 0 comes first."""
    return ["", *(f"{SERVERS}/{index}/" for index in range(1, load_files(folder).num_training_servers))]


def _names(training: BucketPath, before: str) -> Iterator[str]:
    at, _, start = before.rpartition("/")
    return (f"{at}/{found.key}" for found in objects(training / at) if found.key.startswith(start))
