"""Starts the process that measures the inputs of a comparison, and waits for it."""

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from pipeline.allowed import require_allowed
from pipeline.config import Settings, settings_from
from pipeline.dataset.manifest import load
from pipeline.errors import Preempted, SettingsError, SourceError, TenfoldError, TrainingError
from pipeline.preflight import require_weights
from pipeline.runs.run import EXIT_PREEMPTED, take_failure
from pipeline.storage import is_bucket, place_of
from pipeline.system.process import environment_of_tensorflow
from pipeline.tuning.contenders import ACCELERATORS, require_comparable
from pipeline.tuning.measurement import COMPARISON, RESULT, Comparison, save_comparison
from pipeline.workspace import run_folder

GRACE_S = 30.0
"""Seconds that the process has to end when a stop is requested."""


def require_measurable(settings: Settings) -> None:
    """Refuse settings that a comparison cannot follow, before anything is built.

    Raises:
        SettingsError: A setting does not suit a comparison, or the administrator does not allow its value.
    """
    require_allowed(settings)
    require_comparable(settings)
    require_weights(settings)
    for name in ("workspace", "publish_uri"):
        if is_bucket(value := getattr(settings, name)):
            raise SettingsError(
                f"{name} must be a local folder for a comparison of inputs, got {value}: it measures the disk of this "
                "machine"
            )


def training_settings(settings: Settings) -> Settings:
    """Return the settings of the trainings, with the step time of the simulated accelerator."""
    accelerator = ACCELERATORS.get(settings.accelerator)
    if accelerator is None:
        return settings
    return settings.model_copy(update={"simulated_step_ms": accelerator.step_ms(settings.batch_size)})


def comparison_of(settings: Settings, built: Sequence[Mapping[str, str]]) -> Comparison:
    """Return what is compared on this machine.

    Args:
        settings: Settings of the comparison.
        built: What `build_input` returned for each dataset that the contenders need.

    Raises:
        SourceError: If the datasets hold different images.
    """
    datasets = {each["prepare"]: each["dataset"] for each in built}
    contents = [load(place_of(place)) for place in datasets.values()]
    if len({(each.source["fingerprint"], each.splits["train"].examples, each.labels) for each in contents}) > 1:
        raise SourceError(
            f"the images of {settings.source_uri} changed while the datasets of the comparison were built: run it again"
        )
    return Comparison(
        settings=training_settings(settings).model_dump(),
        datasets=datasets,
        source_root=built[0]["source_root"],
        host=host_facts(),
        created=time.time(),
    )


def start_comparison(comparison: Comparison, run_id: str) -> Path:
    """Return the folder of a comparison, with what is compared in it. It may be complete already.

    Other settings, datasets, machines or software have another folder, so that their measurements never mix.
    """
    folder = _folder_of(comparison, run_id)
    if not (folder / COMPARISON).exists():
        save_comparison(folder, comparison)
    return folder


def start_another_comparison(comparison: Comparison, run_id: str) -> Path:
    """Do the same as `start_comparison`, but never return a complete one: all is measured once more."""
    first = _folder_of(comparison, run_id)
    folders = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in count(1))
    folder = next(each for each in folders if not (each / RESULT).exists())
    if not (folder / COMPARISON).exists():
        save_comparison(folder, comparison)
    return folder


def _folder_of(comparison: Comparison, run_id: str) -> Path:
    versions = {prepare: load(place_of(place)).version for prepare, place in comparison.datasets.items()}
    decisive = [versions, comparison.settings, comparison.source_root, comparison.host]
    digest = hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=6).hexdigest()
    return Path(str(run_folder(settings_from(dict(comparison.settings)), run_id))) / f"inputs-{digest}"


def measure(folder: Path, output: int) -> None:
    """Measure all contenders of a comparison; those that are measured already are not measured again.

    Args:
        folder: Folder of the comparison.
        output: File descriptor that gets the output of the process.

    Raises:
        Preempted: If the process was asked to stop.
        TenfoldError: If it failed.
    """
    take_failure(folder)  # That of an earlier attempt.
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.training.compare_inputs", str(folder), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment_of_tensorflow(),
        start_new_session=True,  # A Ctrl-C in the terminal is for this process, which then asks the other to stop.
    )
    try:
        code = process.wait()
    finally:
        _stop(process)
    if code == EXIT_PREEMPTED:
        raise Preempted("the comparison was stopped: run it again, and it continues after the last measurement")
    if code:
        raise take_failure(folder) or _unexplained(code)


def host_facts() -> dict[str, Any]:
    """Return what the page says about this machine and its software."""
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
    }


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _unexplained(code: int) -> TenfoldError:
    ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return TrainingError(
        f"the process that measures ended with {ending}: see its last lines above, and run it again; complete "
        "measurements are kept"
    )
