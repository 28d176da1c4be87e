"""A run: the folder of one training, and its files. Imports no TensorFlow.

The folder is local. If the workspace is a bucket, the folder is mirrored there (pipeline/runs/mirror.py).

run.json        what is trained: settings, dataset, host, software
record/         the local record of the monitor
overview/       means over intervals of the record, for the pages of a training under way
metrics.prom    the newest values, for Prometheus, while the training runs
verdict.json    the verdict on the last steps
checkpoints/    the last checkpoints
best.json       the best epochs so far, the last one the best, and the files of their models
early_end.json  the last epoch, if the training ended early
offers.json     changes that the tab offers while the training runs
changes.jsonl   settings that changed while it ran, and from which epoch on (pipeline/runs/changes.py)
model.keras     the best model, once the training is complete
predictions.npz the answers of the best model to the test (else validation) examples, one row for each
evaluation.json the metrics of these answers (pipeline/evaluation/metrics.py)
export/         the best model as a SavedModel that takes image files
callbacks/      files of the user's own callbacks
tensorboard/    event files, if the setting tensorboard is on
comet/          offline archives, one folder for each attempt (pipeline/monitor/archives.py)
result.json     the result, written last: the training is complete
failure.json    why the last attempt failed
micro_batches.json  how many examples a device takes at once, after an attempt ran out of memory
stacks.txt      the stack of each thread of an attempt that was stuck
cluster/        files by which the servers of a training find each other (pipeline/rendezvous)
servers/1/      run.json, record/ and failure.json of the second server, and so on
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.config.allowed import require_allowed, require_folder
from pipeline.config.automatic import TrainingSettings, deciding_values, training_settings
from pipeline.config.workspace import place_hash, run_folder
from pipeline.errors import (
    DatasetError,
    Preempted,
    SourceError,
    TenfoldError,
    TrainingError,
    error_from_json,
    error_to_json,
    require_format,
)
from pipeline.evaluation.best_epoch import epoch_metric
from pipeline.evaluation.metrics import EVALUATION, figures_in, headline_in, over_baseline
from pipeline.monitor import last_row
from pipeline.monitor.archives import archives
from pipeline.monitor.verdict import Verdict, diagnose_run, numbers
from pipeline.rendezvous.servers import SERVERS, Server
from pipeline.runs.files import (
    BEST,
    EARLY_END,
    FAILURE,
    MICRO_BATCHES,
    RESULT,
    RUN,
    RUN_FORMAT,
    load_files,
    read_optional,
    read_required,
    require_run_format,
    with_moved_addresses,
    with_moved_dataset,
)
from pipeline.storage import Place, crc32c_of
from pipeline.system.flock import try_lock

EXIT_PREEMPTED = 75
"""Exit code of a training that was stopped after a checkpoint: EX_TEMPFAIL of sysexits.h."""
CHECKPOINTS_KEPT = 3
"""The last checkpoint can be damaged, so the ones before it are kept, too."""
LOCK_WAIT_S = 60.0
"""A retry waits this many seconds for the trainer of a killed task to finish its checkpoint."""
EXPORT, ABOUT = "export", "about.json"
TABLE_FACTS = "table.json"
"""A file beside `about.json`: the field `table` of the `dataset.json` that a model of a table learned from."""
EXPORT_FORMAT = 4
"""The format of an exported model, which `about.json` states."""
SIMULATED_QUALITY: Mapping[str, Any] = {
    "split": "validation",
    "metrics": {},
    "baselines": {},
    "headline": "simulated accelerator: the model learned nothing",
    "baseline": "",
}
"""The part of `result.json` that says how good the model is, of a training with `simulated_step_ms`."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """What one training is made of."""

    folder: Path
    run_id: str
    dataset: str
    dataset_version: str
    settings: TrainingSettings
    host: dict[str, Any]
    software: dict[str, str]
    steps_per_epoch: int
    index: int = 0
    """Index of the training server. `folder` is the folder of that server."""
    dag: str = ""
    """Id of the DAG that trains. Another DAG may have the same run ids."""

    @property
    def server(self) -> Server:
        """The training server of this run, and the number of servers."""
        return Server(self.index, self.settings.num_training_servers)

    @property
    def training(self) -> Place:
        """The place of server 0 for all workers: its folder, or the place in the bucket that mirrors it."""
        first = self.folder if self.server.is_chief else self.folder.parent.parent
        folder = run_folder(self.settings.workspace, self.run_id)
        return first if isinstance(folder, Path) else folder / first.name

    @property
    def place(self) -> Place:
        """The place of this server for all workers: its folder, or the place in the bucket that mirrors it."""
        return self.training / _of_server(self.index)

    def require_allowed(self) -> None:
        """Refuse places and functions that the administrator does not allow, and links to such places.

        Another user of the folder may have changed `run.json`, or made a link. Raises SettingsError.
        """
        for folder in filter(None, (self.folder, self.continued_folder)):
            require_folder(folder)
        require_allowed(self.settings.model_copy(update={"dataset": self.dataset}))

    @property
    def continued_folder(self) -> Path | None:
        """The folder on this worker of the training that this one continues; None if it continues none."""
        if not self.settings.continues:
            return None
        place = storage.place_of(self.settings.continues)
        return local_run_folder(self.settings.workspace, self.settings.local_folder, self.run_id).parent.joinpath(
            place.parent.name, place.name
        )

    @property
    def model_path(self) -> Path:
        """The file of the best model, once the training is complete."""
        return self.folder / "model.keras"

    @property
    def export_folder(self) -> Path:
        """The folder of the exported model."""
        return self.folder / EXPORT


def training_folder(settings: TrainingSettings, run_id: str, dataset_version: str, index: int = 0) -> Path:
    """Return the folder of a training on this worker. The run and all settings that decide the training name it.

    A run that is cleared with other settings keeps its id. In the same folder, it would go on from a checkpoint of
    another training.
    """
    folder = local_run_folder(settings.workspace, settings.local_folder, run_id)
    return folder / _key(settings, dataset_version) / _of_server(index)


def _of_server(index: int) -> str:
    """Return the folder of a server below that of the run."""
    return f"{SERVERS}/{index}" if index else ""


def training_place(settings: TrainingSettings, run_id: str, dataset_version: str) -> Place:
    """Return the place of a training for all workers: the folder of server 0, or the place it is mirrored to."""
    return run_folder(settings.workspace, run_id) / _key(settings, dataset_version)


def _key(settings: TrainingSettings, dataset_version: str) -> str:
    """Return the identity of a training: a hash of the dataset and of the settings that decide the training.

    It also depends on RUN_FORMAT, so that a training never continues in a folder with files of another format.
    """
    content = deciding_values(settings)
    content |= {"dataset": dataset_version, "format": RUN_FORMAT}
    if not settings.continues:
        del content["continues"]  # A training that was started before this setting existed keeps its folder.
    if settings.weights:
        content["weights"] = f"{crc32c_of(Path(settings.weights)):08x}"  # The content decides, not the path.
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=6).hexdigest()


def checkpoint_name(epochs_done: int, step: int) -> str:
    """Return the name of a checkpoint, in the folder `checkpoints` of a training.

    It has both numbers: the end of an epoch has the step of its last training step, before the validation.
    """
    return f"checkpoint-{epochs_done:06d}-{step:010d}.npz"


def local_run_folder(workspace: str, local_folder: str, run_id: str) -> Path:
    """Return the folder of a run on this worker: in the workspace, or for a bucket in the local folder."""
    folder = run_folder(workspace, run_id)
    if isinstance(folder, Path):
        return folder
    return Path(local_folder) / "runs" / place_hash(workspace) / folder.name


def find_training(place: Place) -> Place:
    """Return the training at a place, or the only training of the run there.

    In a bucket, the place must be that of the training itself.

    Raises:
        DatasetError: If there is no training, or more than one.
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
    content = {"format": RUN_FORMAT, **asdict(run), "folder": str(run.folder), "settings": run.settings.model_dump()}
    _write(run.folder / RUN, content)


def load_run(folder: Path) -> Run:
    """Return the run in `folder`.

    Raises:
        DatasetError: If there is none.
        FormatError: If another version of Tenfold wrote it.
    """
    try:
        content = read_required(folder / RUN)
    except FileNotFoundError as error:
        raise DatasetError(f"{folder} is not the folder of a run: it has no run.json") from error
    require_run_format(content, folder)
    del content["format"]
    # The folder itself counts, not the stored one: a run may have been moved, or fetched to another worker.
    current = {"folder": folder, "settings": training_settings(content["settings"])}
    return Run(**{**with_moved_dataset(content, folder), **current})


@dataclass(frozen=True)
class Best:
    """The best epoch (from 1) so far, as the task judges it, its values, and the file of its model."""

    epoch: int
    model: str
    metrics: dict[str, float]
    crc32c: str
    """Checksum of the file of the model, as 8 hex digits."""


def save_best(run: Run, best: Best) -> None:
    """Store which model is the best. One rename changes its values and its file together.

    Earlier best models stay for as long as a checkpoint from before the new one may be kept: a training that goes on
    from it needs them. Each epoch writes a checkpoint.
    """
    _save_bests(run, [*_bests(run), best][-CHECKPOINTS_KEPT - 1 :])


def rewind_best_epochs(run: Run, epochs_done: int) -> None:
    """Go back to the best of the first `epochs_done` epochs: later ones are trained again, and may differ then.

    If the model of the best epoch is missing or damaged, the best epoch before it takes its place.
    """
    bests = _bests(run)
    left = [best for best in bests if best.epoch <= epochs_done]
    while left and not _has_model(run, left[-1]):
        left.pop()
    if left != bests:
        _save_bests(run, left)


def save_early_end(run: Run, epoch: int) -> None:
    """Store that the training ended early after an epoch (from 1); 0 if it goes on, as a retry may do."""
    if epoch or (run.folder / EARLY_END).exists():
        _write(run.folder / EARLY_END, {"epoch": epoch})


def _save_bests(run: Run, bests: Sequence[Best]) -> None:
    _write(run.folder / BEST, [asdict(best) for best in bests])
    # After the list is written: a kill in between leaves a file too many, not a missing one.
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


def load_about(export: Place) -> dict[str, Any]:
    """Return what `about.json` says about an exported model.

    Raises:
        FormatError: If another version of Tenfold exported it.
    """
    about: dict[str, Any] = storage.read_json(export / ABOUT)
    mend = "train the model again, or if it is the champion, promote another run by hand"
    require_format(about.get("format"), EXPORT_FORMAT, export / ABOUT, mend)
    return about


def _has_model(run: Run, best: Best) -> bool:
    path = _model_of(run, best)
    is_whole = path.exists() and f"{crc32c_of(path):08x}" == best.crc32c
    if not is_whole:
        _log.warning(
            "%s, the best model at epoch %d, is damaged: the next best model is used instead", path, best.epoch
        )
    return is_whole


def _model_of(run: Run, best: Best) -> Path:
    named = run.folder / best.model
    # An attempt that was killed in `save_result` may have given the model its last name.
    return named if named.exists() else run.model_path


def _required_best(run: Run) -> Best:
    best = load_best(run)
    if best is None:
        raise TrainingError(
            f"{run.folder} has no best.json, although all epochs are done: remove the folder and train again"
        )
    return best


def save_result(run: Run, comet: str, advised: Callable[[Verdict], str]) -> None:
    """Give the best model its last name, and write `result.json`: the training is then complete.

    `comet` is the URL of the experiment, or the path of its archive. `advised` returns the verdict as a sentence, with
    the next thing to do.
    """
    best = _required_best(run)
    find_best_model(run).replace(run.model_path)
    storage.sync_folder(run.folder)  # Before `result.json` promises the model.
    _remove_models(run, but=set())
    verdict = diagnose_run(run.folder)
    # The folder of the archives, one for each attempt, or a URL.
    comet_place = str(run.folder / "comet") if archives(run.folder / "comet") else comet
    result = {
        "run": str(run.place),
        **(SIMULATED_QUALITY if run.settings.simulated_step_ms else _quality(run, best)),
        "model": str(run.place / run.model_path.name),
        "export": str(run.place / run.export_folder.name),
        "comet": comet_place.replace(str(run.folder), str(run.place)),
        "verdict": advised(verdict),
        "limit": verdict.limit.value,
        "limits": [limit.value for limit in verdict.limits],
        **numbers(verdict),
        # Not from the record: it may lack epochs, and another training may have done the first ones.
        "epochs": load_files(run.folder).epochs,
    }
    _write(run.folder / RESULT, result)


def _quality(run: Run, best: Best) -> dict[str, Any]:
    """Return the part of `result.json` that says how good the best model is."""
    evaluation = read_required(run.folder / EVALUATION)
    figures, split, headline = figures_in(evaluation), evaluation["split"], headline_in(evaluation)
    # The best epoch comes twice: first for the order of the keys, and last because its values win.
    metrics = best.metrics | {each.metric.key_on(split): each.estimate.value for each in figures} | best.metrics
    return {
        "split": split,
        "metrics": {"best_epoch": best.epoch, **{name: round(value, 6) for name, value in metrics.items()}},
        "baselines": {each.metric.key_on(split): each.baseline for each in figures if each.baseline is not None},
        "headline": headline.text if headline else "",
        "baseline": over_baseline(evaluation),
    }


def _remove_models(run: Run, but: Collection[str]) -> None:
    """Remove the models of other epochs, also those of attempts that were killed before they changed `best.json`."""
    for path in run.folder.glob("model-*.keras"):
        if path.name not in but:
            path.unlink()


def load_result(folder: Place) -> dict[str, Any] | None:
    """Return the result of a complete training, else None."""
    result: dict[str, Any] | None = read_optional(folder / RESULT)
    return result


def result_of(run: Run) -> dict[str, Any] | None:
    """Return the result of a complete training, which server 0 writes for all; else None."""
    result = load_result(run.folder if run.server.is_chief else run.training)
    return result and with_moved_addresses(result, run.training)


def save_failure(folder: Path, error: TenfoldError, attempt: str = "") -> None:
    """Store why the training failed, for the process that started it."""
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
    """Limit the examples that each device takes at once in the next attempts."""
    _write(folder / MICRO_BATCHES, {"examples": examples})


def load_micro_batch_limit(folder: Path) -> int | None:
    """Return the limit that `save_micro_batch_limit` stored; None if no attempt ran out of memory."""
    content = read_optional(folder / MICRO_BATCHES)
    return None if content is None else int(content["examples"])


@contextmanager
def run_lock(folder: Path, stopping: Callable[[], bool]) -> Iterator[None]:
    """Hold the run's lock. The trainer of a killed task may still be writing its checkpoint when the retry starts.

    Raises:
        TrainingError: If the other process holds the lock for longer than LOCK_WAIT_S.
        Preempted: If `stopping` returns true meanwhile.
    """
    # The kernel releases the lock with the file, however the process ends.
    with open(folder / "lock", "wb") as lock:
        deadline = time.monotonic() + LOCK_WAIT_S
        if not try_lock(lock.fileno()):
            _log.info("another process is training in %s: waiting for it", folder)
        while not try_lock(lock.fileno()):
            if stopping():
                raise Preempted("the training was asked to stop before it began")
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"another process is training in {folder}, and has not ended within a minute: stop that process "
                    "and run again"
                )
            time.sleep(0.2)
        yield


def is_running(folder: Path) -> bool:
    """Return whether a process on this machine is training in a folder."""
    with open(folder / "lock", "ab") as lock:
        return not try_lock(lock.fileno())


def describe_progress(places: Mapping[str, Any], run_id: str) -> str:
    """Return the progress of the newest training of a run. Empty before the first epoch, or if another worker trains.

    `places` are the settings `workspace` and `local_folder`, if they differ from the defaults.
    """
    settings = training_settings(places)
    folders = local_run_folder(settings.workspace, settings.local_folder, run_id).glob(f"*/{RUN}")
    newest = max(folders, key=lambda path: path.stat().st_mtime, default=None)
    row = last_row(newest.parent / "record", "epochs") if newest else None
    if newest is None or row is None:
        return ""
    epochs = load_run(newest.parent).settings.epochs
    metric = epoch_metric(row)
    validated = f"{metric.title} {metric.text(row[metric.validation_key])}"
    return f"epoch {row['step']:.0f}/{epochs}, loss {row['loss']:.3f}, validation {validated}"


def _write(path: Path, content: Any) -> None:
    storage.write_json(path, content, indent=1, synced=True)
    storage.sync_folder(path.parent)
