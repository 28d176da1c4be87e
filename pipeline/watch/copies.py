"""The folder of a training at hand: its own one, or a copy of what a bucket has of it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

from pipeline.mirror import fetch
from pipeline.monitor.overview import OVERVIEW
from pipeline.report.run import read_json
from pipeline.servers import SERVERS
from pipeline.storage import Place

FILES = ("run.json", "result.json", "verdict.json", "evaluation.json", "promotion.json", f"{OVERVIEW}/")
AGAIN_S = 8.0
"""A training mirrors what is new every ten seconds."""
MOST = 40
"""Trainings of buckets that are kept here; the one that was looked at least lately goes first."""


class Copies:
    """Folders of trainings; those in buckets are copied, and again every few seconds while somebody looks."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tenfold-watch-")
        self._fetched: dict[str, float] = {}
        self._lock = threading.Lock()

    def at_hand(self, training: Place, *names: str) -> Path:
        """A local folder with what is drawn of a training, and with files of these ``names`` too, where there are any.

        Raises StorageError or AccessError where the bucket cannot be used.
        """
        if isinstance(training, Path):
            return training
        folder = self._copy_of(str(training))
        with self._lock:
            if time.monotonic() > self._fetched.get(str(training), -AGAIN_S) + AGAIN_S or names:
                fetch(folder, training, (*FILES, *names))
                if others := _of_the_others(folder):
                    fetch(folder, training, others)
                self._remember(str(training))
        return folder

    def _copy_of(self, name: str) -> Path:
        folder = Path(self._folder.name) / name.replace("/", "|")
        folder.mkdir(exist_ok=True)
        return folder

    def _remember(self, name: str) -> None:
        self._fetched.pop(name, None)
        self._fetched[name] = time.monotonic()
        if len(self._fetched) > MOST:
            oldest = next(iter(self._fetched))
            del self._fetched[oldest]
            shutil.rmtree(self._copy_of(oldest))


def _of_the_others(folder: Path) -> tuple[str, ...]:
    servers = (read_json(folder / "run.json").get("settings") or {}).get("num_training_servers", 1)
    return tuple(f"{SERVERS}/{index}/{OVERVIEW}/" for index in range(1, servers))
