"""Comet as a sink: means and maxima of windows go out, so that a run of any length stays within Comet's limits."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.monitor.row import Row

log = logging.getLogger(__name__)

_BATCH_SERIES = ("input/wait_ms", "step/compute_ms", "step/time_ms")


@dataclass(frozen=True)
class CometOptions:
    """What the experiment is called and what it was made with.

    ``identity`` says which runs are one experiment: every retry passes the same text and continues it.
    """

    project: str
    identity: str
    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


def experiment_key(identity: str) -> str:
    """40 letters and digits, as Comet wants (32 to 50), always the same for the same identity."""
    return hashlib.blake2b(identity.encode(), digest_size=20).hexdigest()


class Window:
    """Mean and maximum of the rows of a few seconds.

    A window lasts max(2 s, elapsed / 1000, series / 50), where elapsed is the time since the first row, so that
    Comet's limits (15,000 values a metric, 12,000 a minute) hold for a run of any length:
    - A metric gets 1,000 values in the first 2,000 s and 1,000 ln(T / 2,000 s) after T seconds from there: 3,900 after
      10 hours, and 15,000 not within a lifetime.
    - A window sends 2 series values (mean and maximum), so at most 2 series / (series / 50 s) = 100 values a second,
      half of what Comet takes. 8 GPUs and the host are 52 series: 3,120 values a minute.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._opened = 0.0
        self._sums: dict[str, tuple[int, float, float]] = {}
        self._step = 0

    def add(self, row: Row) -> tuple[int, dict[str, float]] | None:
        """Take a row; gives (step, metrics) of the window that ended before it, if one did."""
        if self._begin is None:
            self._begin = self._opened = row.time
        ended = None
        if row.time - self._opened >= self._width(row.time):
            ended = self.take()
            self._opened = row.time
        self._step = row.step
        for name, value in row.values.items():
            if math.isfinite(value):
                count, total, highest = self._sums.get(name, (0, 0.0, -math.inf))
                self._sums[name] = count + 1, total + value, max(highest, value)
        return ended

    def take(self) -> tuple[int, dict[str, float]] | None:
        """End the window now: (step of its last row, mean as NAME and maximum as NAME/max), None if it is empty."""
        if not self._sums:
            return None
        metrics = {name: total / count for name, (count, total, _) in self._sums.items()}
        metrics |= {f"{name}/max": highest for name, (_, _, highest) in self._sums.items()}
        self._sums = {}
        return self._step, metrics

    def _width(self, time: float) -> float:
        return max(2.0, (time - (self._begin or time)) / 1000, len(self._sums) / 50)


class CometSink:
    """Sends windows of samples and batches, and every epoch, to one Comet experiment.

    Online where Comet finds an API key, otherwise, or where the server does not answer, into an archive in a folder
    ``try-<n>`` of its own in ``folder`` (the same key in the same folder would overwrite the archive of the try
    before). Comet starts on a thread of its own, since that may take 30 s: what comes meanwhile waits here. Comet
    stamps a value when it gets it: only in that time is its clock late, and only its clock; the step is right.

    ``location`` is None until close(): then the archive's path, or the URL.
    """

    def __init__(self, folder: Path, options: CometOptions) -> None:
        self.location: str | None = None
        self._folder, self._options = folder, options
        self._windows = {"samples": Window(), "batches": Window()}
        self._pending: list[tuple[int, int | None, dict[str, float]]] = []
        self._experiment: Any = None
        self._archives: Path | None = None
        self._starter = threading.Thread(target=self._start, name="monitor-comet", daemon=True)
        self._starter.start()

    def write(self, row: Row) -> None:
        if row.kind == "epochs":
            self._pending.append((row.step, row.step, dict(row.values)))
        else:
            self._keep(self._windows[row.kind].add(_selected(row)))
        self._send()

    def close(self, timeout: float = 60.0) -> None:
        """Send what is left and end the experiment; after ``timeout`` seconds give up with a warning."""
        ending = threading.Thread(target=self._end, name="monitor-comet-end", daemon=True)
        ending.start()
        ending.join(timeout)
        if ending.is_alive():
            log.warning("Comet did not take the rest within %g s; the local record is complete", timeout)

    def _end(self) -> None:
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - as in _start
            log.warning("the Comet experiment did not end well: %s: %s", type(error).__name__, error)

    def _finish(self) -> None:
        self._starter.join()
        for window in self._windows.values():
            self._keep(window.take())
        self._send()
        if self._experiment is not None:
            self._experiment.end()
            self.location = self._where()

    def _keep(self, ended: tuple[int, dict[str, float]] | None) -> None:
        if ended is not None:
            self._pending.append((ended[0], None, ended[1]))

    def _send(self) -> None:
        if self._experiment is None and self._starter.is_alive():
            return
        pending, self._pending = self._pending, []
        if self._experiment is None:  # it never started, which was said: nothing to keep
            return
        for step, epoch, metrics in pending:
            for name, value in metrics.items():
                self._experiment.log_metric(name, value, step=step, epoch=epoch)

    def _start(self) -> None:
        try:
            experiment = _online(self._options, self._folder)
            if experiment is None:
                self._archives = new_try(self._folder)
                experiment = _begin(self._options, self._archives, online=False)
            experiment.log_parameters(dict(self._options.parameters))
            self._experiment = experiment
        except Exception as error:  # noqa: BLE001 - whatever Comet does, training and the local record go on
            log.warning("no Comet experiment is written: %s: %s", type(error).__name__, error)

    def _where(self) -> str | None:
        if self._archives is None:
            return str(self._experiment.url or self._experiment.get_key())
        archives = sorted(self._archives.glob("*.zip"))
        return str(archives[-1]) if archives else None


def _selected(row: Row) -> Row:
    if row.kind == "samples":
        return row
    return Row(row.kind, row.time, row.step, {name: row.values[name] for name in _BATCH_SERIES if name in row.values})


def _comet() -> Any:
    """The module comet_ml, told to patch nothing, to report no errors of its own and not to wait for ever."""
    os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")
    os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
    os.environ.setdefault("COMET_DISABLE_ANNOUNCEMENT", "1")
    os.environ.setdefault("COMET_LOGGING_CONSOLE", "WARNING")  # the run ends with the place of the archive anyway
    os.environ.setdefault("COMET_TIMEOUT_CLEANING", "50")  # at the end it would else wait up to an hour for its server
    import comet_ml

    return comet_ml


def _online(options: CometOptions, folder: Path) -> Any:
    """The running experiment; None without a key, or, with a warning, where the server cannot be used."""
    comet_ml = _comet()
    key = comet_ml.get_config("comet.api_key")
    if not key:
        return None
    try:
        experiment = _begin(options, folder, online=True)
        if experiment.alive:
            return experiment
        experiment.end()
        reason = "the server did not answer or refused the key"
    except Exception as error:  # noqa: BLE001 - comet_ml raises many kinds, also bare ones of requests
        reason = f"{type(error).__name__}: {error}".replace(str(key), "(the key)")  # it may stand in an address
    log.warning("Comet cannot be used online (%s): an offline archive is written instead", reason)
    return None


def new_try(folder: Path) -> Path:
    """Make and return the first folder try-<n> (from 1) that nobody has."""
    number = 1
    while True:
        try:
            (folder / f"try-{number}").mkdir(parents=True)
            return folder / f"try-{number}"
        except FileExistsError:
            number += 1


def _begin(options: CometOptions, archives: Path, online: bool) -> Any:
    """Start; Comet puts its archive into ``archives``, online too when it loses its server in mid-run."""
    comet_ml = _comet()
    config = comet_ml.ExperimentConfig(
        name=options.name,
        offline_directory=str(archives),
        log_code=False,
        log_graph=False,
        parse_args=False,
        log_git_metadata=False,
        log_git_patch=False,
        log_env_details=False,
        log_env_gpu=False,
        log_env_host=False,
        log_env_cpu=False,
        log_env_network=False,
        log_env_disk=False,
        auto_output_logging=False,
        auto_param_logging=False,
        auto_metric_logging=False,
        auto_log_co2=False,
        auto_histogram_epoch_rate=0,
        display_summary_level=0,
    )
    return comet_ml.start(
        project_name=options.project,
        experiment_key=experiment_key(options.identity),
        mode="get_or_create",  # a retry continues the experiment of the try before
        online=online,
        experiment_config=config,
    )
