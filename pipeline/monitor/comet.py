"""Comet as a sink: windows go out, so that a run of any length stays within Comet's limits."""

import hashlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.monitor.aggregation import Windows
from pipeline.monitor.archives import Try, archives, recover, upload_command
from pipeline.monitor.row import Row

_log = logging.getLogger(__name__)

_MAKE_FOLDERS = ("comet_ml.experiment", "comet_ml.streamer.fallback")
"""Modules of Comet that make temporary folders for messages."""


@dataclass(frozen=True)
class CometOptions:
    """What the experiment is called and what it was made with.

    `identity` says which runs are one experiment: every retry passes the same text and continues it.
    """

    project: str
    identity: str
    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


def experiment_key(identity: str) -> str:
    """40 letters and digits, as Comet wants (32 to 50), always the same for the same identity."""
    return hashlib.blake2b(identity.encode(), digest_size=20).hexdigest()


class Session:
    """The experiment of a run, opened; what Comet writes until end() lies in a folder `try-<n>` of its own.

    Online where Comet finds an API key, otherwise, or where the server does not answer, offline. To open it may take
    30 s. What tries that were killed left in `folder` is packed first.
    """

    def __init__(self, folder: Path, options: CometOptions) -> None:
        _recover(folder)
        key = _comet().get_config("comet.api_key")
        self._try = _new_try(folder, options)
        online = _online(options, self._try.open) if key else None
        if key and online is None:  # threads of the experiment that did not come about may still write there
            self._try.discard()
            self._try = _new_try(folder, options)
        self._is_online = online is not None
        self.experiment: Any = online or _begin(options, self._try.open, online=False)

    def end(self) -> str:
        """Send or pack what is left; the path of the archive where one was written, else the URL."""
        url = str(self.experiment.url or self.experiment.get_key())
        if self._is_delivered():
            self._try.discard()
            return url
        if self._is_online:
            _log.warning("Comet's server may not have all of this try, which is kept in an archive")
        return str(self._try.close() or url)

    def _is_delivered(self) -> bool:
        """End; whether Comet has all that was logged. What it could not send at the very end it would only forget."""
        try:
            self.experiment.end()
            return bool(self.experiment.streamer.has_connection_to_server())  # an offline one has none
        except Exception as error:  # noqa: BLE001 - a file that was not taken, for instance; all is in the archive
            _log.warning("the Comet experiment did not end well: %s", in_words(error))
            return False


class CometSink:
    """Sends windows of samples and batches, and every epoch, to one Comet experiment.

    Comet starts on a thread of its own: what comes meanwhile waits here. Comet stamps a value when it gets it: only in
    that time is its clock late, and only its clock; the step is right.

    `location` is None until close(): then the archive's path, or the URL.
    """

    def __init__(self, folder: Path, options: CometOptions) -> None:
        self.location: str | None = None
        self._folder, self._options = folder, options
        self._windows = Windows()
        self._pending: list[Row] = []
        self._session: Session | None = None
        self._starter = threading.Thread(target=self._start, name="monitor-comet", daemon=True)
        self._starter.start()

    def write(self, row: Row) -> None:
        self._pending += self._windows.add(row)
        self._send()

    def close(self, timeout: float = 60.0) -> None:
        """Send what is left and end the experiment; after `timeout` seconds give up with a warning."""
        if not ended_within(timeout, "the Comet experiment", self._finish):
            _log.warning("what Comet did not take is in %s: `python -m pipeline comet recover` packs it", self._folder)

    def _finish(self) -> None:
        self._starter.join()
        self._pending += self._windows.take()
        self._send()
        if self._session is not None:
            self.location = self._session.end()

    def _send(self) -> None:
        if self._session is None and self._starter.is_alive():
            return
        pending, self._pending = self._pending, []
        if self._session is None:  # it never started, which was said: nothing to keep
            return
        for row in pending:
            epoch = row.step if row.kind == "epochs" else None
            for name, value in row.values.items():
                self._session.experiment.log_metric(name, value, step=row.step, epoch=epoch)

    def _start(self) -> None:
        try:
            session = Session(self._folder, self._options)
            session.experiment.log_parameters(dict(self._options.parameters))
            self._session = session
        except Exception as error:  # noqa: BLE001 - whatever Comet does, training and the local record go on
            _log.warning("no Comet experiment is written: %s", in_words(error))


def ended_within(seconds: float, what: str, work: Callable[[], object]) -> bool:
    """Whether `work` came to an end within so many seconds, well or with a warning; else that is warned of.

    It goes on in a thread that keeps no process alive.
    """
    thread = threading.Thread(target=_tried, args=(what, work), name="monitor-comet-end", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _log.warning("%s did not end within %g s; the local record is complete", what, seconds)
    return not thread.is_alive()


def _tried(what: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - as in _start
        _log.warning("%s did not end well: %s", what, in_words(error))


def in_words(error: Exception) -> str:
    """An error of Comet's without the key, which may stand in an address."""
    words = f"{type(error).__name__}: {error}"
    comet_ml = sys.modules.get("comet_ml")
    key = comet_ml.get_config("comet.api_key") if comet_ml else None
    return words.replace(key, "(the key)") if key else words


def say_archives(folder: Path) -> None:
    """Log the command that uploads all archives of a run, if there are any."""
    if found := archives(folder):
        _log.info("to bring this run to Comet: %s", upload_command(found))


def _recover(folder: Path) -> None:
    try:
        recovered = recover(folder)
    except OSError as error:  # a full disk: this try may have more luck
        _log.warning("what a killed try left for Comet cannot be packed: %s", error)
        return
    for archive in recovered:
        _log.info("packed what a killed try left for Comet: %s", archive)


def _new_try(folder: Path, options: CometOptions) -> Try:
    workspace = _comet().get_config("comet.workspace")
    return Try(folder, experiment_key(options.identity), options.project, workspace)


def _comet() -> Any:
    """The module comet_ml, told to patch nothing, to report no errors of its own and not to wait for ever."""
    os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")
    os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
    os.environ.setdefault("COMET_DISABLE_ANNOUNCEMENT", "1")
    # Of an outage it shows many tracebacks, and how to upload what is packed anew here, as another experiment.
    if os.environ.setdefault("COMET_LOGGING_CONSOLE", "CRITICAL") == "CRITICAL":
        # Comet's client tries again through urllib3, which warns of each try. The sink warns of the outcome.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    os.environ.setdefault("COMET_FALLBACK_STREAMER_KEEP_OFFLINE_ZIP", "1")
    os.environ.setdefault("COMET_TIMEOUT_CLEANING", "50")  # at the end it would else wait up to an hour for its server
    import comet_ml

    return comet_ml


def _online(options: CometOptions, opened: Path) -> Any:
    """The running experiment; None, with a warning, where the server cannot be used."""
    try:
        experiment = _begin(options, opened, online=True)
        if experiment.alive:
            return experiment
        experiment.end()
        reason = "the server did not answer or refused the key"
    except Exception as error:  # noqa: BLE001 - comet_ml raises many kinds, also bare ones of requests
        reason = in_words(error)
    _log.warning("Comet cannot be used online (%s): an offline archive is written instead", reason)
    return None


def _begin(options: CometOptions, opened: Path, online: bool) -> Any:
    """Start; Comet keeps in `opened` what it has not sent or packed, and packs it there, online too where it loses
    its server in mid-run.
    """
    comet_ml = _comet()
    config = comet_ml.ExperimentConfig(
        name=options.name,
        offline_directory=str(opened),
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
    with _temporary_folders_in(opened):
        return comet_ml.start(
            project_name=options.project,
            experiment_key=experiment_key(options.identity),
            mode="get_or_create",  # a retry continues the experiment of the try before
            online=online,
            experiment_config=config,
        )


@contextmanager
def _temporary_folders_in(opened: Path) -> Iterator[None]:
    """Have Comet make its temporary folders there: it has no setting for that, and TMPDIR would be everybody's."""
    modules = [import_module(name) for name in _MAKE_FOLDERS]
    before = [vars(module)["tempfile"] for module in modules]
    try:
        for module in modules:
            vars(module)["tempfile"] = _Folders(opened)
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            vars(module)["tempfile"] = original


class _Folders:
    """Stands for the module tempfile, as far as Comet's own modules use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mkdtemp(self) -> str:
        """A new folder in this one."""
        return tempfile.mkdtemp(dir=self._folder)
