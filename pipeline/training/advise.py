"""Measures on request what a prediction needs: the stages of the input, as it is and with other settings."""

import logging
import time
from dataclasses import asdict, replace

from pipeline.config.example_kinds import IMAGES, TABLE
from pipeline.dataset.manifest import Dataset
from pipeline.images.examine import Rules
from pipeline.input.options import batch_options
from pipeline.input.stage_costs import sample_of
from pipeline.runs.run import Run
from pipeline.storage import place_of, write_json
from pipeline.training.stages import MAX_CPU_S, measure_stages, prepared_records
from pipeline.tuning.contenders import prepared_size
from pipeline.tuning.predictions import FURTHER, PREPARED
from pipeline.tuning.stages import load_stages, save_stages

TIMED = 64
"""Images that are prepared to see how long that takes."""
_log = logging.getLogger(__name__)


def measure_missing(run: Run, dataset: Dataset, max_cpu_s: float = MAX_CPU_S) -> None:
    """Measure the stages of a training that were not measured, and write them into its folder.

    Each measurement takes at most `max_cpu_s` seconds of processor time, and images are prepared before.
    """
    folder, servers = place_of(run.dataset), run.settings.num_training_servers
    options = replace(batch_options(run.settings), batch_size=run.settings.batch_size // servers)
    if load_stages(run.folder) is None:
        _log.info("measuring the stages of the input")
        if costs := measure_stages(folder, dataset, options, max_cpu_s):
            save_stages(run.folder, costs)
    if (run.folder / PREPARED).exists():
        return
    found = {}
    if dataset.kind == TABLE:
        _log.info("measuring the stages of batches of twice the size")
        twice = replace(options, batch_size=2 * options.batch_size)
        if costs := measure_stages(folder, dataset, twice, max_cpu_s):
            found["batch_size"] = {"costs": asdict(costs), "core_s": 0.0}
    prepare_now = dataset.settings.get("prepare", run.settings.prepare) if dataset.kind == IMAGES else ""
    for prepare in FURTHER.get(prepare_now, ()):
        _log.info("measuring the stages of a dataset with prepare=%s", prepare)
        size = prepared_size(run.settings.image_size)
        if costs := measure_stages(folder, dataset, options, max_cpu_s, prepare=prepare, prepare_size=size):
            rules = Rules(check="header", prepare=prepare, prepare_size=size)
            found[prepare] = {"costs": asdict(costs), "core_s": _core_s(run, dataset, rules)}
    if found:
        write_json(run.folder / PREPARED, found, indent=1)


def _core_s(run: Run, dataset: Dataset, rules: Rules) -> float:
    """Return the processor seconds that it takes to prepare an image."""
    records = sample_of(place_of(run.dataset), dataset).records[:TIMED]
    began = time.process_time()
    for _ in prepared_records(dataset, records, rules):
        pass
    return (time.process_time() - began) / max(len(records), 1)
