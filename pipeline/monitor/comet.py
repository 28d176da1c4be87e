"""Comet as a sink. It gets means over intervals of time, so that a run of any length stays within Comet's limits."""

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.monitor import comet_internals
from pipeline.monitor.aggregation import Intervals
from pipeline.monitor.archives import Attempt, archives, recover, upload_command
from pipeline.monitor.row import Row

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CometOptions:
    """The experiment of a run: its project, name and parameters.

    Runs with the same `identity` are one experiment: every retry passes the same text and continues the experiment.
    """

    project: str
    identity: str
    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


def experiment_key(identity: str) -> str:
    """Return 40 letters and digits, as Comet wants (32 to 50), always the same for the same identity."""
    return hashlib.blake2b(identity.encode(), digest_size=20).hexdigest()


class Session:
    """The open experiment of a run. Until end(), Comet writes into a folder `try-<n>` of its own.

    The experiment is online if Comet finds an API key and the server answers, otherwise offline. Opening it may take
    30 s. First, the constructor packs what killed attempts left in `folder`. With `is_addition`, an offline session
    becomes part of the newest archive, unless that is old: it logs what belongs to the same attempt.
    """

    def __init__(self, folder: Path, options: CometOptions, *, is_addition: bool = False) -> None:
        _recover(folder)
        _comet()
        key = comet_internals.setting("comet.api_key")
        self._attempt = _new_attempt(folder, options)
        online = _online(options, self._attempt.open) if key else None
        if key and online is None:  # Threads of the experiment that failed to start may still write there.
            self._attempt.discard()
            self._attempt = _new_attempt(folder, options)
        self.folder = self._attempt.open
        """A folder for files that are made to be logged. `end` removes it."""
        self._is_online, self._is_addition = online is not None, is_addition
        self.experiment: Any = online or _begin(options, self._attempt.open, online=False)

    def end(self) -> str:
        """Send or pack the rest, and return the path of the archive if one was written, else the URL."""
        url = str(self.experiment.url or self.experiment.get_key())
        is_delivered = False
        try:
            # Comet itself would forget what it could not send at the very end.
            self.experiment.end()
            is_delivered = comet_internals.is_delivered(self.experiment)
        except Exception as error:  # noqa: BLE001 - a file that was refused, for instance; the archive has everything
            _log.warning("the Comet experiment could not be ended: %s", error_text(error))
        if is_delivered:
            self._attempt.discard()
            return url
        if self._is_online:
            _log.warning("Comet's server may not have all values of this attempt; an archive keeps them")
        return str(self._attempt.close(extends=self._is_addition) or url)


class CometSink:
    """Sends intervals of samples and batches, and the epochs, to one Comet experiment.

    Comet starts on a thread of its own, and rows wait here until it has started. Comet stamps a value with the time at
    which it gets it: the times of these rows are late in Comet, and their steps are right.

    `before_s` are the seconds that earlier attempts of the run took. `location` is None until close(): then the
    archive's path, or the URL.
    """

    def __init__(self, folder: Path, options: CometOptions, before_s: float = 0.0) -> None:
        self.location: str | None = None
        self._folder, self._options = folder, options
        self._intervals = Intervals(all_epochs=False, before_s=before_s)
        self._pending: list[Row] = []
        self._session: Session | None = None
        # Comet may take 30 s to start, and training must not wait for it.
        self._starter = threading.Thread(target=self._start, name="monitor-comet", daemon=True)
        self._starter.start()

    def write(self, row: Row) -> None:
        """Add a row, and send the intervals that are complete now."""
        self._pending += self._intervals.add(row)
        self._send()

    def close(self, timeout: float = 60.0) -> None:
        """Send the rest and end the experiment; give up with a warning after `timeout` seconds."""
        if not finish_within(timeout, "the Comet experiment", self._finish):
            _log.warning(
                "the values that Comet did not take are in %s: pack them with `python -m pipeline comet recover`",
                self._folder,
            )

    def _finish(self) -> None:
        self._starter.join()
        # The reporter is closed by now, so no other thread adds rows.
        self._pending += self._intervals.take()
        self._send()
        if self._session is not None:
            self.location = self._session.end()

    def _send(self) -> None:
        if self._session is None and self._starter.is_alive():
            return
        pending, self._pending = self._pending, []
        if self._session is None:  # It failed to start, with a warning.
            return
        for row in pending:
            epoch = row.step if row.kind == "epochs" else None
            for name, value in row.values.items():
                self._session.experiment.log_metric(name, value, step=row.step, epoch=epoch)

    def _start(self) -> None:
        try:
            session = Session(self._folder, self._options)
            session.experiment.log_parameters(dict(self._options.parameters))
            # Last, because the thread of the writer uses the session from then on.
            self._session = session
        except Exception as error:  # noqa: BLE001 - whatever Comet does, training and the local record go on
            _log.warning("this training is not logged to Comet: %s", error_text(error))


def finish_within(seconds: float, what: str, work: Callable[[], object]) -> bool:
    """Run `work`, and return whether it ended within this time. Warnings call it `what`.

    An error of `work` becomes a warning. If `work` does not end in time, a warning says so, and it goes on in a thread
    that keeps no process alive.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - as in CometSink._start
            _log.warning("%s could not be ended: %s", what, error_text(error))

    thread = threading.Thread(target=run, name="monitor-comet-end", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _log.warning("%s did not end within %g s; the local record is complete", what, seconds)
    return not thread.is_alive()


def error_text(error: Exception) -> str:
    """Return an error of Comet's as text, without the API key, which may be part of an address."""
    text = f"{type(error).__name__}: {error}"
    key = comet_internals.setting("comet.api_key")
    return text.replace(key, "(the key)") if key else text


def log_upload_command(folder: Path) -> None:
    """Log the command that uploads all archives of a run, if there are any."""
    if paths := archives(folder):
        _log.info("to upload this run to Comet, run: %s", upload_command(paths))


def _recover(folder: Path) -> None:
    try:
        recovered = recover(folder)
    except OSError as error:  # A full disk, for instance: this attempt may have more luck.
        _log.warning("the values that a killed attempt could not send to Comet cannot be packed: %s", error)
        return
    for archive in recovered:
        _log.info("packed the values that a killed attempt could not send to Comet: %s", archive)


def _new_attempt(folder: Path, options: CometOptions) -> Attempt:
    workspace = comet_internals.setting("comet.workspace")
    return Attempt(folder, experiment_key(options.identity), options.project, workspace)


def _comet() -> Any:
    """Return the module comet_ml, configured to patch nothing and not to wait forever."""
    comet_internals.configure()
    import comet_ml

    return comet_ml


def _online(options: CometOptions, opened: Path) -> Any:
    """Return the running experiment; None, with a warning, if the server cannot be used."""
    try:
        experiment = _begin(options, opened, online=True)
        if comet_internals.is_running(experiment):
            return experiment
        experiment.end()
        reason = "the server did not answer or refused the key"
    except Exception as error:  # noqa: BLE001 - comet_ml raises many kinds, also bare ones of requests
        reason = error_text(error)
    _log.warning("Comet cannot be used online (%s): an offline archive is written instead", reason)
    return None


def _begin(options: CometOptions, opened: Path, online: bool) -> Any:
    """Start an experiment.

    Comet stores in `opened` what it has not sent or packed, and packs it there, also if an online experiment loses its
    server.
    """
    comet_ml = _comet()
    # Comet would log all of this by itself. It would patch Keras, and sample the machine every 30 s only.
    config = comet_ml.ExperimentConfig(
        name=options.name,
        offline_directory=str(opened),
        log_code=False,
        log_graph=False,
        parse_args=False,
        log_git_metadata=False,
        log_git_patch=False,
        log_env_details=False,
        # Comet derives these two from the one above only if its own configuration does not set them.
        log_env_network=False,
        log_env_disk=False,
        auto_output_logging=False,
        auto_param_logging=False,
        auto_metric_logging=False,
        auto_log_co2=False,
        auto_histogram_epoch_rate=0,
        display_summary_level=0,
    )
    with comet_internals.temporary_folders_in(opened):
        return comet_ml.start(
            project_name=options.project,
            experiment_key=experiment_key(options.identity),
            mode="get_or_create",  # A retry continues the experiment of the attempt before.
            online=online,
            experiment_config=config,
        )
