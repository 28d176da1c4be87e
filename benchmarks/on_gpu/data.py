"""The machine, and its datasets: drawn photographs as they are, and as pixels."""

import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.on_gpu import Report, Row

PACKAGES = {
    "google_crc32c": "google-crc32c",
    "keras": "keras",
    "numpy": "numpy",
    "pandas": "pandas",
    "PIL": "pillow",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pynvml": "nvidia-ml-py",
    "scipy": "scipy",
    "simplejpeg": "simplejpeg",
    "tensorflow": "tensorflow",
    "xxhash": "xxhash",
}
"""The packages that the sections import, by module. Whatever these import in turn comes with them."""


def machine(job: dict[str, Any], report: Report) -> None:
    """Report what is missing, and the GPU that TensorFlow finds."""
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        report(Row("missing packages", f"{', '.join(missing)}: the sections that need them fail", {"missing": missing}))
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    name = details.get("device_name", "unknown GPU") if gpus else ""
    capability = ".".join(map(str, details.get("compute_capability", ()))) or "unknown"
    versions = {package: found for package in PACKAGES.values() if (found := _version(package))}
    text = f"{name} (compute capability {capability})" if gpus else "none: tiny sizes on the CPU"
    report(Row("GPU", text, {"gpu": name, "capability": capability, "versions": versions}))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def datasets(job: dict[str, Any], report: Report) -> None:
    """Draw photographs, and build both datasets.

    The job names the `folder`, the number of `drawn` photographs, of `copies` of each, and the side of `prepared`
    pixels. The rows hold the paths of the datasets.
    """
    from benchmarks.harness.images import linked, make_source, photograph

    begin, folder = time.perf_counter(), Path(job["folder"])
    source, count = make_source(folder / "source", job["drawn"], photograph), job["drawn"] * job["copies"]
    copied = linked(folder / "copies", count, source / "train")
    drawn_s = time.perf_counter() - begin
    report(Row("photographs", f"{job['drawn']} drawn, {count} with copies, {drawn_s:.1f} s", {"drawn_s": drawn_s}))
    for name, settings in {
        "photographs": {},
        "pixels": {"prepare": "raw", "prepare_size": job["prepared"]},
    }.items():
        begin = time.perf_counter()
        path = _built({**settings, "source_uri": str(copied / "train"), "workspace": str(folder / "workspace")}, name)
        built_s = time.perf_counter() - begin
        numbers = {"kind": name, "dataset": str(path), "built_s": built_s}
        report(Row(f"dataset of {name}", f"{count / built_s:,.0f} images/s, {built_s:.1f} s", numbers))


def _built(values: dict[str, Any], name: str) -> Path:
    """Return the folder of a dataset, without its card, which needs another package."""
    from pipeline.config.allowed import open_unless_set
    from pipeline.config.settings import settings_from
    from pipeline.config.workspace import build_folders
    from pipeline.gate.decide import Gate
    from pipeline.gate.findings import gate_options
    from pipeline.plan.options import partition_of
    from pipeline.plan.plan import load_plan
    from pipeline.sharding.commit import commit
    from pipeline.stages.extract import extract
    from pipeline.stages.shard import write_shards
    from pipeline.stages.upload import copy_planned

    open_unless_set()
    fixed = {"dataset_name": name, "check": "header", "on_leak": "continue", "validation_fraction": 0.1}
    settings = settings_from(values | fixed)
    plan_path = write_shards(settings, extract(settings), None)
    plan = load_plan(plan_path)
    copy_planned(plan)
    gate = Gate(gate_options(settings), None)
    commit(plan_path, build_folders(settings), partition_of(settings), gate, lambda *_, **__: None)
    return Path(plan.dataset)
