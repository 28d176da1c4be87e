"""Sources for what NVML sees of NVIDIA GPUs."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from pipeline.monitor.sampler import Source

log = logging.getLogger(__name__)


def sources(nvml: Any = None) -> dict[str, Source]:
    """One source a GPU; empty, and said in one line, where there is none. ``nvml`` is the module pynvml or its like."""
    nvml = nvml or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        log.info("monitor: no GPU metrics: %s", error)
        return {}
    return {f"gpu {index}": Gpu(nvml, index, handle) for index, handle in enumerate(handles)}


class Gpu:
    """Metrics ``gpu/<index>/...`` of one device; one that fails is noted once and left out, never zero."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self._nvml, self._index = nvml, index
        self._readings = _readings(nvml, handle)
        self._noted: set[str] = set()

    def __call__(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, reading in self._readings.items():
            try:
                metrics |= {f"gpu/{self._index}/{key}": value for key, value in reading().items()}
            except self._nvml.NVMLError as error:
                self._note(name, error)
        return metrics

    def _note(self, name: str, error: Exception) -> None:
        if name not in self._noted:
            self._noted.add(name)
            log.warning("monitor: %s of GPU %d is left out: %s", name, self._index, error)


def _readings(nvml: Any, handle: Any) -> dict[str, Callable[[], dict[str, float]]]:
    def memory() -> dict[str, float]:
        use = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"mem_used_bytes": float(use.used), "mem_total_bytes": float(use.total)}

    return {
        "utilization": lambda: {"util_pct": float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)},
        "memory": memory,
        "power": lambda: {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
        "temperature": lambda: {
            "temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        },
    }
