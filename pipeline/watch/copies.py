"""The folder of a training at hand: its own one, or a copy of what a bucket has of it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from pipeline.mirror import fetch
from pipeline.monitor.overview import OVERVIEW
from pipeline.monitor.record import first_time
from pipeline.report.run import read_json
from pipeline.runs import VERDICT
from pipeline.servers import SERVERS
from pipeline.storage import BucketPath, Place, objects
from pipeline.watch.tables import KINDS_OVER_TIME, Span, of_span

FILES = ("run.json", "result.json", "evaluation.json", "promotion.json", VERDICT, f"{OVERVIEW}/")
AGAIN_S = 8.0
"""A training mirrors what is new every ten seconds."""
MOST = 40
"""Trainings of buckets that are kept here; the one that was looked at least lately goes first."""


class Copies:
    """Folders of trainings; those in buckets are copied, and again every few seconds while somebody looks.

    Any number of threads may use it. Raises StorageError or AccessError where a bucket cannot be used.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tenfold-watch-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._fetched: dict[str, float] = {}
        self._lock = threading.Lock()

    def at_hand(self, training: Place) -> Path:
        """A local folder with all that is drawn of a training."""
        if isinstance(training, Path):
            return training
        with self._lock:
            folder = self._copy_of(str(training))
            if time.monotonic() > self._fetched.get(str(training), -AGAIN_S) + AGAIN_S:
                fetch(folder, training, FILES)
                fetch(folder, training, tuple(f"{other}{OVERVIEW}/" for other in _servers(folder)[1:]))
                self._remember(str(training))
        return folder

    def bring(self, training: Place, span: Span) -> None:
        """Have the rows of a span at hand too: of a long record, the few segments that hold them."""
        if isinstance(training, Path):
            return
        with self._lock:
            folder = self._copy_of(str(training))
            for record in (f"{server}record" for server in _servers(folder)):
                for kind in KINDS_OVER_TIME:
                    _bring(folder, training, f"{record}/{kind}-", span)

    def _copy_of(self, name: str) -> Path:
        folder = self._folder / name.replace("/", "|")
        folder.mkdir(exist_ok=True)
        return folder

    def _remember(self, name: str) -> None:
        self._fetched.pop(name, None)
        self._fetched[name] = time.monotonic()
        if len(self._fetched) > MOST:
            oldest = next(iter(self._fetched))
            del self._fetched[oldest]
            shutil.rmtree(self._copy_of(oldest))


def _servers(folder: Path) -> list[str]:
    """Where each training server has its files, below the folder of a training: that of server 0 first."""
    count = (read_json(folder / "run.json").get("settings") or {}).get("num_training_servers", 1)
    return ["", *(f"{SERVERS}/{index}/" for index in range(1, count))]


def _bring(folder: Path, training: BucketPath, before: str, span: Span) -> None:
    """Fetch those segments whose names begin so that have rows of the span."""

    def begin(name: str) -> float | None:
        fetch(folder, training, (name,))
        return first_time(folder / name.removesuffix(".gz"))

    for name in of_span(sorted(_names(training, before)), span, begin):
        fetch(folder, training, (name,))


def _names(training: BucketPath, before: str) -> Iterator[str]:
    at, _, start = before.rpartition("/")
    return (f"{at}/{found.key}" for found in objects(training / at) if found.key.startswith(start))
