"""From a pile of raw images to a trained model. Nothing in here imports Airflow."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.2.0"

MOVED = {
    "pipeline.advice": "pipeline.tuning.advice",
    "pipeline.approval": "pipeline.sharding.approval",
    "pipeline.champion": "pipeline.runs.champion",
    "pipeline.choices": "pipeline.runs.choices",
    "pipeline.content_hashes": "pipeline.dataset.content_hashes",
    "pipeline.cores": "pipeline.system.cores",
    "pipeline.crc32c": "pipeline.storage.crc32c",
    "pipeline.csv_quotes": "pipeline.sources.csv_quotes",
    "pipeline.estimates": "pipeline.evaluation.estimates",
    "pipeline.example": "pipeline.records.example",
    "pipeline.expected_size": "pipeline.sharding.expected_size",
    "pipeline.experiment": "pipeline.training.experiment",
    "pipeline.extract": "pipeline.snapshot.extract",
    "pipeline.fetch": "pipeline.snapshot.fetch",
    "pipeline.find_source": "pipeline.sources.detection",
    "pipeline.fingerprint": "pipeline.snapshot.fingerprint",
    "pipeline.groups": "pipeline.snapshot.groups",
    "pipeline.labels": "pipeline.dataset.labels",
    "pipeline.malloc": "pipeline.system.malloc",
    "pipeline.match_groups": "pipeline.snapshot.match_groups",
    "pipeline.memory": "pipeline.system.memory",
    "pipeline.mirror": "pipeline.runs.mirror",
    "pipeline.monitor.kernel": "pipeline.system.kernel",
    "pipeline.monitor.outside": "pipeline.monitor.any_program",
    "pipeline.monitor.processes": "pipeline.monitor.process_tree",
    "pipeline.monitor.servers": "pipeline.monitor.all_servers",
    "pipeline.monitor.system": "pipeline.monitor.machine",
    "pipeline.monitor.window": "pipeline.monitor.aggregation",
    "pipeline.multilabel": "pipeline.evaluation.multilabel",
    "pipeline.os_errors": "pipeline.system.os_errors",
    "pipeline.own_model": "pipeline.runs.own_model",
    "pipeline.parallel": "pipeline.system.parallel",
    "pipeline.partitions": "pipeline.dataset.partitions",
    "pipeline.plan": "pipeline.sharding.plan",
    "pipeline.plan_files": "pipeline.sharding.plan_files",
    "pipeline.process": "pipeline.system.process",
    "pipeline.progress": "pipeline.system.progress",
    "pipeline.promotion": "pipeline.runs.promotion",
    "pipeline.proxies": "pipeline.system.proxies",
    "pipeline.quality": "pipeline.images",
    "pipeline.quality.appearance": "pipeline.images.appearance",
    "pipeline.quality.codecs": "pipeline.images.codecs",
    "pipeline.quality.coding": "pipeline.images.coding",
    "pipeline.quality.duplicates": "pipeline.sharding.duplicates",
    "pipeline.quality.examine": "pipeline.images.examine",
    "pipeline.quality.facts": "pipeline.sharding.quality_facts",
    "pipeline.quality.gate": "pipeline.sharding.gate",
    "pipeline.quality.header": "pipeline.images.header",
    "pipeline.quality.jpeg_decoder": "pipeline.images.jpeg_decoder",
    "pipeline.quality.prepare": "pipeline.images.prepare",
    "pipeline.quality.profiles": "pipeline.images.profiles",
    "pipeline.quality.rejection": "pipeline.images.rejection",
    "pipeline.quality.shared": "pipeline.sharding.shared_images",
    "pipeline.quality.statistics": "pipeline.sharding.statistics",
    "pipeline.quality.wellformed": "pipeline.images.wellformed",
    "pipeline.ranges": "pipeline.sharding.ranges",
    "pipeline.raw": "pipeline.snapshot.raw_image",
    "pipeline.raw_reader": "pipeline.snapshot.raw_reader",
    "pipeline.rendezvous.gang": "pipeline.rendezvous.cluster",
    "pipeline.report.evaluation": "pipeline.report.evaluation_section",
    "pipeline.report.parts": "pipeline.report.components",
    "pipeline.report.run": "pipeline.runs.recorded_run",
    "pipeline.results": "pipeline.sharding.results",
    "pipeline.samples": "pipeline.sources.samples",
    "pipeline.servers": "pipeline.rendezvous.servers",
    "pipeline.shard": "pipeline.sharding.write",
    "pipeline.shard_cache": "pipeline.dataset.shard_cache",
    "pipeline.shard_reader": "pipeline.dataset.shard_reader",
    "pipeline.skipped": "pipeline.snapshot.skipped",
    "pipeline.tfds_metadata": "pipeline.dataset.tfds_metadata",
    "pipeline.tfrecord": "pipeline.records.tfrecord",
    "pipeline.train": "pipeline.runs.launch",
    "pipeline.training.blame": "pipeline.training.bad_batch",
    "pipeline.training.keeper": "pipeline.training.saved_state",
    "pipeline.training.memory": "pipeline.training.device_memory",
    "pipeline.training.own": "pipeline.training.user_functions",
    "pipeline.training.parts": "pipeline.training.microbatches",
    "pipeline.training.python_calls": "pipeline.input.tensorflow_internals",
    "pipeline.training.quiet": "pipeline.training.tensorflow_start",
    "pipeline.upload": "pipeline.sharding.publish",
    "pipeline.verify": "pipeline.dataset.verify",
    "pipeline.watch.data": "pipeline.watch.page_data",
    "pipeline.watch.figures": "pipeline.watch.live_figures",
    "pipeline.window": "pipeline.sharding.window",
}
"""Modules that moved into a room, by their old names. Code of users may import them."""


class _MovedModules(MetaPathFinder, Loader):
    """Imports a module by its old name, and warns with the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # Below this frame are frames of importlib, which `warnings` skips.
        warnings.warn(f"{name} is now {MOVED[name]}", DeprecationWarning, stacklevel=2)
        sys.modules[name] = importlib.import_module(MOVED[name])


def moved_name(package: str, module: str, name: str) -> Any:
    """Return a name that was in a module which is now a room, for the room's `__getattr__`, and warn.

    Raises AttributeError if the module has no such name, or the name is that of a file of the room.
    """
    room = Path(__file__).parent / package.partition(".")[2]
    # The names are compared, because some file systems take `Run.py` for `run.py`.
    if name.startswith("_") or any(file.stem == name for file in room.glob("*.py")):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    warnings.warn(f"{name} of {package} is now in {module}", DeprecationWarning, stacklevel=3)
    return value


# First, because Python would find the modules of a room that has an old name twice, as modules of their own.
sys.meta_path.insert(0, _MovedModules())
