"""Facts about this machine and its software."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from pipeline import __version__
from pipeline.system.resources import usable_cores

NVIDIA = Path("/proc/driver/nvidia/gpus")
"""The driver of NVIDIA lists the GPUs of the machine here."""


def host_facts() -> dict[str, Any]:
    """Return what decides how fast a training is here: the machine, and the versions of the software."""
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        # As whole GB, because a kernel reserves a little more or less with each start.
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "gpus": [_first_value(path, "Model") for path in sorted(NVIDIA.glob("*/information"))],
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
        "tenfold": __version__,
    }


def processor_name() -> str:
    """Return the name of the processor; empty if the system does not tell."""
    return _first_value(Path("/proc/cpuinfo"), "model name")


def _first_value(path: Path, name: str) -> str:
    """Return the first value of a name in a file with lines of `name: value`; empty if there is none."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
