"""Starts the process that measures the inputs of a comparison, and waits for it."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from pipeline.config.allowed import require_allowed, require_folder
from pipeline.config.automatic import with_automatic_values
from pipeline.config.preflight import require_weights
from pipeline.config.settings import Settings
from pipeline.config.workspace import run_folder
from pipeline.dataset.manifest import load_allowed
from pipeline.errors import Preempted, SettingsError, SourceError, TrainingError
from pipeline.runs.run import EXIT_PREEMPTED, take_failure
from pipeline.storage import is_bucket, place_of
from pipeline.system.host import host_facts
from pipeline.system.process import run_module
from pipeline.tuning.contenders import ACCELERATORS, require_comparable
from pipeline.tuning.measurement import COMPARISON, RESULT, Comparison, save_comparison
from pipeline.tuning.options import ComparisonOptions


def require_measurable(settings: Settings, options: ComparisonOptions) -> None:
    """Raise SettingsError for settings that a comparison cannot follow, or that the administrator does not allow."""
    require_allowed(settings)
    require_comparable(settings, options.accelerator)
    require_weights(settings)
    for name in ("workspace", "publish_uri"):
        if is_bucket(value := getattr(settings, name)):
            raise SettingsError(
                f"{name} must be a local folder for a comparison of inputs, got {value}: it measures the disk of this "
                "machine"
            )


def comparison_of(settings: Settings, options: ComparisonOptions, built: Sequence[Mapping[str, str]]) -> Comparison:
    """Return what is compared on this machine. A simulated accelerator sets the time of a step.

    `built` is what `build_input` returned for each dataset that the contenders need. Raises SourceError if the datasets
    hold different images, and SettingsError if the administrator does not allow a dataset or a place of the settings.
    """
    require_allowed(settings)
    datasets = {each["prepare"]: each["dataset"] for each in built}
    contents = [load_allowed(place_of(place)) for place in datasets.values()]
    if len({each.source["fingerprint"] for each in contents}) > 1:
        raise SourceError(
            f"the images of {settings.source_uri} changed while the datasets of the comparison were built: run it again"
        )
    if len({(each.splits["train"].examples, each.labels) for each in contents}) > 1:
        raise SourceError(
            f"some images of {settings.source_uri} can be copied, but not decoded, so the datasets of the comparison "
            "differ: set check=strict, which rejects these images everywhere"
        )
    settings = with_automatic_values(settings, contents[0].splits["train"].examples)
    if accelerator := ACCELERATORS.get(options.accelerator):
        settings = settings.model_copy(update={"simulated_step_ms": accelerator.step_ms(settings.batch_size)})
    return Comparison(
        settings=settings.model_dump(),
        options=options,
        datasets=datasets,
        source_root=built[0]["source_root"],
        host=host_facts(),
        created=time.time(),
    )


def start_comparison(comparison: Comparison, run_id: str, again: bool = False) -> Path:
    """Return the folder of the newest equal comparison, which may be complete, or a new one with what is compared.

    Other settings, datasets, software or hardware have another folder, so that their measurements never mix. If
    `again`, a complete comparison is not returned: all is measured once more.
    """
    versions = {prepare: load_allowed(place_of(place)).version for prepare, place in comparison.datasets.items()}
    # Not the name of the host: each pod has another one.
    machine = {name: value for name, value in comparison.host.items() if name not in ("name", "system")}
    decisive = [versions, comparison.settings, comparison.options.model_dump(), comparison.source_root, machine]
    digest = hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=6).hexdigest()
    folder = first = Path(str(run_folder(comparison.settings["workspace"], run_id))) / f"inputs-{digest}"
    newest = None
    for number in count(2):
        require_folder(folder)
        if not (folder / COMPARISON).exists():
            break
        newest, folder = folder, first.with_name(f"{first.name}-{number}")
    if newest and not (again and (newest / RESULT).exists()):
        return newest
    save_comparison(folder, comparison)
    return folder


def measure(folder: Path, output: int) -> None:
    """Measure all contenders of a comparison; those that are measured already are not measured again.

    `output` is the file descriptor that gets the output of the process.

    Raises:
        Preempted: If the process was asked to stop.
        TenfoldError: If it failed.
    """
    take_failure(folder)  # That of an earlier attempt.
    code = run_module("pipeline.training.compare.process", str(folder), str(os.getpid()), output=output)
    if code == EXIT_PREEMPTED:
        raise Preempted("the comparison was stopped: run the same command again, or clear the task measure")
    if code:
        ending = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        raise take_failure(folder) or TrainingError(
            f"the process that measures ended with {ending}: see its last lines above, and run it again; complete "
            "measurements are kept"
        )
