"""Measures what a prediction needs: the stages of the input, as it is and with other settings."""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.config.kept_images import can_keep, kept_bytes
from pipeline.dataset.manifest import Dataset
from pipeline.images.examine import Rules
from pipeline.input.options import BatchOptions, batch_options
from pipeline.input.stage_costs import sample_of
from pipeline.runs.files import read_or_empty
from pipeline.runs.measured_caches import load_caches, save_caches
from pipeline.runs.run import Run
from pipeline.storage import Place, place_of, write_json
from pipeline.training.cache_costs import measured_caches
from pipeline.training.stages import FOLDER, MAX_CPU_S, MIN_CPU_S, measure_stages, only_warned, prepared_records
from pipeline.tuning.contenders import prepared_size
from pipeline.tuning.predictions import FURTHER, PREPARED
from pipeline.tuning.stages import load_stages, save_stages

TIMED = 64
"""Images that are prepared to see how long that takes."""
_log = logging.getLogger(__name__)


def measure_missing(run: Run, dataset: Dataset, max_cpu_s: float = MAX_CPU_S) -> None:
    """Measure on request the stages of a training that were not measured, and write them into its folder.

    Each measurement takes at most `max_cpu_s` seconds of processor time, and images are prepared before.
    """
    folder, servers = place_of(run.dataset), run.settings.num_training_servers
    options = replace(batch_options(run.settings), batch_size=run.settings.batch_size // servers)
    if load_stages(run.folder) is None:
        _log.info("measuring the stages of the input")
        if costs := measure_stages(folder, dataset, options, max_cpu_s):
            save_stages(run.folder, costs)
    known = read_or_empty(run.folder / PREPARED)
    found = _of_prepared(run, folder, dataset, options, known, lambda _: max_cpu_s)
    if dataset.kind == IMAGES and can_keep(run.settings) and load_caches(run.folder) is None:
        _log.info("measuring caches of decoded images")
        size = kept_bytes(run.settings.image_size, run.settings.crop, train=1, validation=0)
        save_caches(run.folder, measured_caches(size, Path(run.settings.local_folder) / FOLDER))
    if dataset.kind == TABLE and "batch_size" not in known:
        _log.info("measuring the stages of batches of twice the size")
        twice = replace(options, batch_size=2 * options.batch_size)
        if costs := measure_stages(folder, dataset, twice, max_cpu_s):
            found["batch_size"] = {"costs": asdict(costs), "core_s": 0.0}
    if found:
        write_json(run.folder / PREPARED, {**known, **found}, indent=1)


def measure_prepared_at_start(run: Run, folder: Place, dataset: Dataset, go_on: Callable[[], bool]) -> None:
    """Measure the stages as if the dataset had been prepared, for a training that may change its dataset by itself.

    It takes about what the stages of the training have left of MAX_CPU_S seconds. If they were not measured, or there
    are several servers, nothing would be predicted. `go_on` is called after each block, and returns whether to go on.
    An error costs a warning only.
    """
    costs = load_stages(run.folder)
    if costs is None or run.server.count > 1 or (run.folder / PREPARED).exists():
        return
    end = time.process_time() + MAX_CPU_S - costs.cpu_s

    def budget(left: int) -> float:
        left_s = end - time.process_time()
        # Rather one measurement than none.
        return min(max(left_s / left, MIN_CPU_S), left_s)

    with only_warned("what a new dataset would gain is unknown"):
        if found := _of_prepared(run, folder, dataset, batch_options(run.settings), {}, budget, go_on):
            write_json(run.folder / PREPARED, found, indent=1)


def _of_prepared(
    run: Run,
    folder: Place,
    dataset: Dataset,
    options: BatchOptions,
    known: Collection[str],
    budget: Callable[[int], float],
    go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Return the costs if the dataset had been prepared in each further way that is not `known`.

    `budget` takes the number of ways that are left, and returns the CPU seconds for the next one.
    """
    found: dict[str, Any] = {}
    prepare_now = dataset.settings.get("prepare", run.settings.prepare) if dataset.kind == IMAGES else ""
    further = [prepare for prepare in FURTHER.get(prepare_now, ()) if prepare not in known]
    size = prepared_size(run.settings.image_size)
    for left, prepare in zip(range(len(further), 0, -1), further, strict=True):
        if (cpu_s := budget(left)) < MIN_CPU_S:
            break
        _log.info("measuring the stages of a dataset with prepare=%s", prepare)
        costs = measure_stages(folder, dataset, options, cpu_s, prepare=prepare, prepare_size=size, go_on=go_on)
        if costs:
            rules = Rules(check="header", prepare=prepare, prepare_size=size)
            found[prepare] = {"costs": asdict(costs), "core_s": _core_s(folder, dataset, rules)}
    return found


def _core_s(folder: Place, dataset: Dataset, rules: Rules) -> float:
    """Return the processor seconds that it takes to prepare an image."""
    records = sample_of(folder, dataset).records[:TIMED]
    began = time.process_time()
    for _ in prepared_records(dataset, records, rules):
        pass
    return (time.process_time() - began) / max(len(records), 1)
