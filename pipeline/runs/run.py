"""A run: the folder of one training, and what lies in it. Imports no TensorFlow.

The folder is a local one, which is mirrored where the workspace is a bucket (pipeline/runs/mirror.py).

run.json        what is trained: settings, dataset, host, software
record/         the local record of the monitor
overview/       windows of that, to be drawn while it trains
verdict.json    what has limited the training lately
checkpoints/    to go on from
best.json       the best epochs so far, the last one the best, and the files of their models
model.keras     the best model, once the training is complete
predictions.npz what it says of the validation examples, a row each
evaluation.json how good that is (pipeline/evaluation/metrics.py)
export/         the same for those who use it: a SavedModel that takes image files
callbacks/      what callbacks of the user's own write
tensorboard/    what was measured for TensorBoard if that is wanted
comet/          offline archives, a folder a try (pipeline/monitor/archives.py)
result.json     written last: the training is complete
failure.json    why the last try failed
micro_batches.json  how many examples a device takes at once, since a try ran out of memory
stacks.txt      what each thread was at when a try was taken for stuck
cluster/        where the servers of a training meet (pipeline/rendezvous)
servers/1/      run.json, record/ and failure.json of the second server, and so on; the first one has those above
"""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from pipeline import storage
from pipeline.config import Decides, Settings, settings_from, settings_that_decide
from pipeline.errors import (
    DatasetError,
    Preempted,
    SourceError,
    TenfoldError,
    TrainingError,
    error_from_json,
    error_to_json,
)
from pipeline.evaluation.metrics import metrics_of
from pipeline.monitor import last_row, read
from pipeline.monitor.archives import archives
from pipeline.monitor.verdict import Verdict, diagnose_run, numbers
from pipeline.rendezvous.servers import SERVERS, Server
from pipeline.runs.files import BEST, FAILURE, MICRO_BATCHES, RESULT, RUN, read_optional, read_required
from pipeline.storage import Place, crc32c_of
from pipeline.workspace import place_hash, run_folder

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h
LOCK_WAIT_S = 60.0
EXPORT, ABOUT = "export", "about.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """What one training is made of."""

    folder: Path
    run_id: str
    dataset: str
    dataset_version: str
    settings: Settings
    host: dict[str, Any]
    software: dict[str, str]
    index: int = 0
    """Of the training server that it is for. `folder` is its own."""
    dag: str = ""
    """Id of the DAG that trains: another one may have the same run ids."""
    steps_per_epoch: int = 0
    """0 if a run of an earlier version did not say."""

    @property
    def server(self) -> Server:
        """The training server that it is for, of how many."""
        return Server(self.index, self.settings.num_training_servers)

    @property
    def training(self) -> Place:
        """Where server 0 has the run, for all workers: its folder, or what that is mirrored to."""
        first = self.folder if self.server.is_chief else self.folder.parent.parent
        folder = run_folder(self.settings, self.run_id)
        return first if isinstance(folder, Path) else folder / first.name

    @property
    def place(self) -> Place:
        """Where the run of this server is kept for all workers."""
        return self.training / _of_server(self.index)

    @property
    def model_path(self) -> Path:
        """Where the best model is kept."""
        return self.folder / "model.keras"

    @property
    def export_folder(self) -> Path:
        """Where the best model is for those who use it."""
        return self.folder / EXPORT


def training_folder(settings: Settings, run_id: str, dataset_version: str, index: int = 0) -> Path:
    """Return the folder of a training on this worker. The run and all settings that decide the training name it.

    A run that is cleared with other settings keeps its id; in one folder it would go on from a foreign checkpoint.
    """
    first = local_run_folder(settings, run_id) / _key(settings, dataset_version)
    return first / _of_server(index)


def _of_server(index: int) -> str:
    """Return the folder of a server below that of the run."""
    return f"{SERVERS}/{index}" if index else ""


def training_place(settings: Settings, run_id: str, dataset_version: str) -> Place:
    """Return the place of a training for all workers: the folder of server 0, or the place it is mirrored to."""
    return run_folder(settings, run_id) / _key(settings, dataset_version)


def _key(settings: Settings, dataset_version: str) -> str:
    """Return the identity of a training: a hash of the dataset and of the settings that decide the training."""
    content = {name: getattr(settings, name) for name in settings_that_decide(Decides.TRAINING)}
    content["dataset"] = dataset_version
    if settings.weights:
        content["weights"] = f"{crc32c_of(Path(settings.weights)):08x}"  # The content decides, not the path.
    # Only if it is set, so that trainings of earlier releases keep their folders.
    if not settings.simulated_step_ms:
        del content["simulated_step_ms"]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=6).hexdigest()


def local_run_folder(settings: Settings, run_id: str) -> Path:
    """Return the folder of a run on this worker: in the workspace, or for a bucket in the local folder."""
    folder = run_folder(settings, run_id)
    if isinstance(folder, Path):
        return folder
    return Path(settings.local_folder) / "runs" / place_hash(settings.workspace) / folder.name


def find_training(place: Place) -> Place:
    """Return the training at a place, or the only one of the run there. Raises DatasetError if there is not one.

    In a bucket the place has to be that of the training.
    """
    if not isinstance(place, Path) or (place / RUN).exists():
        return place
    trainings = sorted(path.parent for path in place.glob(f"*/{RUN}"))
    if len(trainings) > 1:
        names = ", ".join(path.name for path in trainings)
        raise DatasetError(f"{place} has {len(trainings)} trainings: name one of them ({names})")
    if not trainings:
        raise DatasetError(f"{place} is not the folder of a run: neither it nor a folder in it has a run.json")
    return trainings[0]


def save_run(run: Run) -> None:
    """Write `run.json`."""
    content = {**asdict(run), "folder": str(run.folder), "settings": run.settings.model_dump()}
    _write(run.folder / RUN, content)


def load_run(folder: Path) -> Run:
    """Return the run that lies in `folder`.

    Raises DatasetError if none does.
    """
    try:
        content = read_required(folder / RUN)
    except FileNotFoundError as error:
        raise DatasetError(f"{folder} is not the folder of a run: it has no run.json") from error
    return Run(**{**content, "folder": folder, "settings": settings_from(content["settings"])})


@dataclass(frozen=True)
class Best:
    """The best epoch (from 1) so far, as the task judges it, its values, and the file of its model."""

    epoch: int
    model: str
    metrics: dict[str, float]
    crc32c: str = ""
    """Of the file of the model. Empty if an earlier release wrote it."""


def save_best(run: Run, best: Best) -> None:
    """Say which model is the best: from one rename on, its values and its file are the new ones together.

    Those before it stay for as long as a checkpoint from which the training would go on without it may be kept: each
    epoch writes one.
    """
    _save_bests(run, [*_bests(run), best][-run.settings.checkpoints_kept - 1 :])


def rewind_best_epochs(run: Run, epochs_done: int) -> None:
    """Go back to the best of so many epochs: those after them are done again, and may not come out the same.

    If the model of the best epoch is missing or damaged, the best epoch before it takes its place.
    """
    bests = _bests(run)
    left = [best for best in bests if best.epoch <= epochs_done]
    while left and not _has_model(run, left[-1]):
        left.pop()
    if left != bests:
        _save_bests(run, left)


def _save_bests(run: Run, bests: Sequence[Best]) -> None:
    _write(run.folder / BEST, [asdict(best) for best in bests])
    _remove_models(run, but={best.model for best in bests})


def load_best(run: Run) -> Best | None:
    """Return the best epoch so far, if one has ended."""
    bests = _bests(run)
    return bests[-1] if bests else None


def _bests(run: Run) -> list[Best]:
    """Return the epochs that are better than all before them."""
    try:
        return [Best(**content) for content in read_required(run.folder / BEST)]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        _log.warning("%s is damaged (%s), so the best epochs so far are unknown", run.folder / BEST, error)
        return []


def find_best_model(run: Run) -> Path:
    """Return the file of the best model, once all epochs are done. Raises TrainingError if none is known."""
    return _model_of(run, _required_best(run))


def find_exported_model(place: Place) -> Place:
    """Return the exported model of a run, by the folder of either. Raises SourceError if there is none."""
    for folder in (place, place / EXPORT):
        if (folder / ABOUT).is_file():
            return folder
    raise SourceError(f"{place} has no exported model: give the folder of a complete run, or its {EXPORT}/")


def _has_model(run: Run, best: Best) -> bool:
    path = _model_of(run, best)
    is_whole = path.exists() and (f"{crc32c_of(path):08x}" == best.crc32c if best.crc32c else is_zipfile(path))
    if not is_whole:
        _log.warning(
            "%s, the best model at epoch %d, is damaged: the next best model is used instead", path, best.epoch
        )
    return is_whole


def _model_of(run: Run, best: Best) -> Path:
    named = run.folder / best.model
    return named if named.exists() else run.model_path  # a try that was killed in `save_result` gave it its name


def _required_best(run: Run) -> Best:
    best = load_best(run)
    if best is None:
        raise TrainingError(
            f"{run.folder} has no best.json, although all epochs are done: remove the folder and train again"
        )
    return best


def save_result(run: Run, comet: str, advised: Callable[[Verdict], str]) -> None:
    """Give the best model its name and write `result.json`: the training is complete from then on.

    `advised` puts the verdict into words, with the next thing to do.
    """
    best = _required_best(run)
    find_best_model(run).replace(run.model_path)
    storage.sync_folder(run.folder)  # before `result.json` promises the model
    _remove_models(run, but=set())
    metrics = {**best.metrics, **metrics_of(run.folder)}
    verdict = diagnose_run(run.folder, os.cpu_count())
    # The folder of the archives, one for each try and one for the results, or a URL.
    comet_place = str(run.folder / "comet") if archives(run.folder / "comet") else comet
    result = {
        "run": str(run.place),
        "metrics": {"best_epoch": best.epoch, **{name: round(value, 6) for name, value in metrics.items()}},
        "model": str(run.place / run.model_path.name),
        "export": str(run.place / run.export_folder.name),
        "comet": comet_place.replace(str(run.folder), str(run.place)),
        "verdict": advised(verdict),
        "limit": verdict.limit.value,
        "limits": [limit.value for limit in verdict.limits],
        **numbers(verdict),
        "epochs": len(read(run.folder / "record", "epochs")),
    }
    _write(run.folder / RESULT, result)


def _remove_models(run: Run, but: Collection[str]) -> None:
    """Remove the models of other epochs, those of a try that was killed before it could say so among them."""
    for path in run.folder.glob("model-*.keras"):
        if path.name not in but:
            path.unlink()


def load_result(folder: Place) -> dict[str, Any] | None:
    """Return the result of a complete training, else None."""
    result: dict[str, Any] | None = read_optional(folder / RESULT)
    return result


def result_of(run: Run) -> dict[str, Any] | None:
    """Return the result of a complete training, which server 0 writes for all; else None."""
    return load_result(run.folder if run.server.is_chief else run.training)


def save_failure(folder: Path, error: TenfoldError, attempt: str = "") -> None:
    """Say, for whoever started the process, why it failed."""
    _write(folder / FAILURE, {**error_to_json(error), "attempt": attempt})


def take_failure(folder: Path, attempt: str = "") -> TenfoldError | None:
    """Return the error that `save_failure` wrote for this attempt, if it did, and remove it.

    The failure of another attempt stays, because the process that started that attempt may not have read it yet.
    """
    path = folder / FAILURE
    content = read_optional(path)
    if content is None or content.get("attempt", "") != attempt:
        return None
    path.unlink(missing_ok=True)
    return error_from_json(content["kind"], content["message"])


def save_micro_batch_limit(folder: Path, examples: int) -> None:
    """Have the next tries take no more than so many examples at once on each device."""
    _write(folder / MICRO_BATCHES, {"examples": examples})


def load_micro_batch_limit(folder: Path) -> int | None:
    """Return what `save_micro_batch_limit` wrote, if a try ran out of memory."""
    content = read_optional(folder / MICRO_BATCHES)
    return None if content is None else int(content["examples"])


@contextmanager
def run_lock(folder: Path, stopping: Callable[[], bool]) -> Iterator[None]:
    """Hold the run's lock. The trainer of a killed task may still be writing its checkpoint when the retry starts.

    Raises TrainingError if it does not leave within a minute, Preempted if `stopping` says so meanwhile.
    """
    with open(folder / "lock", "wb") as lock:
        deadline = time.monotonic() + LOCK_WAIT_S
        if not _locked(lock.fileno()):
            _log.info("another process is training in %s: waiting for it", folder)
        while not _locked(lock.fileno()):
            if stopping():
                raise Preempted("the training was asked to stop before it began")
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"another process is training in {folder}, and has not ended within a minute: stop that process "
                    "and run again"
                )
            time.sleep(0.2)
        yield


def describe_progress(places: Mapping[str, Any], run_id: str) -> str:
    """Return the progress of the newest training of a run; empty if there is nothing to say yet, or not here.

    `places` are the settings `workspace` and `local_folder`, where they differ from the defaults.
    """
    folders = local_run_folder(settings_from(places), run_id).glob(f"*/{RUN}")
    newest = max(folders, key=lambda path: path.stat().st_mtime, default=None)
    row = last_row(newest.parent / "record", "epochs") if newest else None
    if newest is None or row is None:
        return ""
    epochs = load_run(newest.parent).settings.epochs
    return f"epoch {row['step']:.0f}/{epochs}, loss {row['loss']:.3f}, validation accuracy {row['val_accuracy']:.1%}"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, content: Any) -> None:
    with storage.write_whole(path, synced=True) as file:
        file.write(json.dumps(content, indent=1).encode())
    storage.sync_folder(path.parent)
