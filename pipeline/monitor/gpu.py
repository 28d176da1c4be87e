"""Sources for the NVIDIA GPUs that CUDA shows this process, measured by NVML.

`gpu/<i>` is CUDA's number, that of TensorFlow's `/GPU:<i>`: `CUDA_VISIBLE_DEVICES` hides and orders GPUs. An index in
that variable is taken as NVML's index, which follows the PCI bus. That is right with `CUDA_DEVICE_ORDER=PCI_BUS_ID`,
and with CUDA's own order ("fastest first") if all GPUs are of one kind. Without that setting, name GPUs of different
kinds by UUID.
"""

import importlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.monitor.sampler import Source

_log = logging.getLogger(__name__)

MASK = "CUDA_VISIBLE_DEVICES"
PCIE_EVERY_S = 1.0
"""No PCIe counter is read more often, because each reading blocks for 20 ms."""
KB = 1000
"""NVML counts PCIe traffic in "KB"."""
PART_WORDS = ", a part of a GPU (MIG): only its memory is measured, because all other values describe the whole GPU"

Reading = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Device:
    """A GPU, or a part of a divided GPU (MIG). `index` is NVML's index of the GPU."""

    index: int
    uuid: str
    handle: Any
    is_part: bool = False


def sources(nvml: Any = None, environment: Mapping[str, str] = os.environ) -> dict[str, Source]:
    """Return one source for each GPU, and one for the PCIe traffic of all. Without a GPU, log that and return none.

    `nvml` is a stand-in for the module pynvml. `environment` has CUDA_VISIBLE_DEVICES.
    """
    nvml = nvml or importlib.import_module("pynvml")
    try:
        shown = _shown(nvml, environment)
    except nvml.NVMLError as error:
        _log.info("monitor: no GPU metrics: %s", error)
        return {}
    if not shown:
        _log.info("monitor: no GPU metrics: %s shows no GPU", MASK if MASK in environment else "NVML")
        return {}
    for number, device in enumerate(shown):
        _log.info("monitor: gpu/%d is %s%s", number, device.uuid, PART_WORDS if device.is_part else "")
    of_gpus: dict[str, Source] = {
        f"gpu {number}": Gpu(nvml, number, readings(nvml, device)) for number, device in enumerate(shown)
    }
    whole = {number: device.handle for number, device in enumerate(shown) if not device.is_part}
    # PCIe comes last, because its reading blocks, and the sources after it would be late.
    return {**of_gpus, "PCIe": Pcie(nvml, whole)} if whole else of_gpus


def visible_uuids(nvml: Any = None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the UUIDs of the GPUs that CUDA shows this process, in its order. Without a driver, there are none."""
    nvml = nvml or importlib.import_module("pynvml")
    try:
        return [device.uuid for device in _shown(nvml, environment)]
    except nvml.NVMLError:
        return []


def _shown(nvml: Any, environment: Mapping[str, str]) -> list[Device]:
    nvml.nvmlInit()
    return visible(devices(nvml), environment.get(MASK))


def devices(nvml: Any) -> list[Device]:
    """Return all GPUs by NVML's index, with its parts in place of a divided GPU. Raises NVMLError."""
    listed: list[Device] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        mode = _answer(nvml, nvml.nvmlDeviceGetMigMode, gpu)  # It fails for a kind of GPU that cannot be divided.
        if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            listed.append(Device(index, nvml.nvmlDeviceGetUUID(gpu), gpu))
            continue
        # Numbers go up to the largest possible number of parts.
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            part = _answer(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
            if part is not None:
                listed.append(Device(index, nvml.nvmlDeviceGetUUID(part), part, is_part=True))
    return listed


def _answer(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of NVML returns; None if it fails."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def visible(devices: Sequence[Device], mask: str | None) -> list[Device]:
    """Return the devices that CUDA_VISIBLE_DEVICES shows, in its order; without a value, all.

    The value lists indices, UUIDs, or beginnings of UUIDs that fit one GPU. As in CUDA, the first entry that names no
    GPU ends the list (so "-1" and "" show none), and an index stands for the first part of a divided GPU.
    """
    if mask is None:
        return list(devices)
    shown: list[Device] = []
    for entry in map(str.strip, mask.split(",")):
        device = _named(devices, entry)
        if device is None or device in shown:
            if entry not in ("", "-1"):
                _log.warning(
                    "monitor: %s lists %r, which is not a GPU or is listed twice: the rest of the list is ignored",
                    MASK,
                    entry,
                )
            break
        shown.append(device)
    return shown


def _named(devices: Sequence[Device], entry: str) -> Device | None:
    if entry.isdecimal():
        return next((device for device in devices if device.index == int(entry)), None)
    fitting = [device for device in devices if entry and device.uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


class Gpu:
    """A source of the metrics `gpu/<number>/...` of one device. A metric that fails is logged once and left out."""

    def __init__(self, nvml: Any, number: int, readings: Mapping[str, Reading]) -> None:
        self._nvml, self._number, self._readings = nvml, number, readings
        self._noted: set[str] = set()

    def __call__(self) -> dict[str, float]:
        """Read the metrics. Raises NVMLError if all fail: the GPU is lost, or somebody is resetting it."""
        metrics: dict[str, float] = {}
        failed: dict[str, Exception] = {}
        for name, reading in self._readings.items():
            try:
                metrics |= {f"gpu/{self._number}/{key}": value for key, value in reading().items()}
            except self._nvml.NVMLError as error:
                failed[name] = error
        if failed and not metrics:
            raise next(iter(failed.values()))
        for name in failed.keys() - self._noted:
            self._noted.add(name)
            _log.warning("monitor: %s of gpu/%d is left out: %s", name, self._number, failed[name])
        return metrics


def readings(nvml: Any, device: Device) -> dict[str, Reading]:
    """Return what to read of a device, by name. Each reading may raise NVMLError."""
    handle = device.handle

    def memory() -> dict[str, float]:
        use = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"mem_used_bytes": float(use.used), "mem_total_bytes": float(use.total)}

    def clocks() -> dict[str, float]:
        kinds = {"sm_clock_mhz": nvml.NVML_CLOCK_SM, "mem_clock_mhz": nvml.NVML_CLOCK_MEM}
        return {name: float(nvml.nvmlDeviceGetClockInfo(handle, kind)) for name, kind in kinds.items()}

    def capability() -> dict[str, float]:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return {"compute_capability": major + minor / 10}

    if device.is_part:
        return {"memory": memory}
    return {
        "utilization": Utilization(nvml, handle),
        "memory": memory,
        "power": lambda: {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
        "power limit": lambda: {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000},
        "temperature": lambda: {
            "temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        },
        "clocks": clocks,
        "compute capability": capability,
        "throttling": lambda: throttling(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
    }


def throttling(nvml: Any, reasons: int) -> dict[str, float]:
    """Return whether power or heat limits the clocks, as 0 or 1, from NVML's mask of reasons."""
    power = nvml.nvmlClocksEventReasonSwPowerCap | nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
    heat = nvml.nvmlClocksEventReasonSwThermalSlowdown | nvml.nvmlClocksEventReasonHwThermalSlowdown
    return {"throttled_power": float(bool(reasons & power)), "throttled_thermal": float(bool(reasons & heat))}


class Utilization:
    """A reading of the share of the time in which a kernel ran, in percent: the mean since the last call.

    The driver measures about six times a second or less, and stores its samples in a buffer. If no sample is new,
    there is no value, so that none counts twice. A driver without a buffer gives its last value, which may be old.

    A sample is new if the buffer did not have its time stamp before. Time stamps come from the wall clock, so they are
    not compared with the newest one: after the clock is set back by an hour, no sample would be newer for that hour.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._known: frozenset[int] = frozenset()
        """Time stamps in the buffer at the last call."""

    def __call__(self) -> dict[str, float]:
        """Return the mean of the new samples, if there are any."""
        try:
            fresh = self._read_new()
        except self._nvml.NVMLError:
            return {"util_pct": float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)}
        return {"util_pct": sum(fresh) / len(fresh)} if fresh else {}

    def _read_new(self) -> list[int]:
        try:
            _, samples = self._nvml.nvmlDeviceGetSamples(self._handle, self._nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        except self._nvml.NVMLError_NotFound:  # The buffer is empty. If it always was, there is no buffer.
            if not self._known:
                raise
            return []
        fresh = [sample.sampleValue.uiVal for sample in samples if sample.timeStamp not in self._known]
        self._known = frozenset(sample.timeStamp for sample in samples)
        return fresh


class Pcie:
    """A source of bytes a second over PCIe, of whole GPUs.

    Each reading blocks for 20 ms, in which the driver counts. So each call reads one value, in turn, and no value more
    often than once a second: with eight GPUs at 5 Hz, each is read every three seconds. A GPU that fails is logged
    once, and is read again in its turn.
    """

    def __init__(self, nvml: Any, handles: Mapping[int, Any], now: Callable[[], float] = time.monotonic) -> None:
        directions = {"tx": nvml.NVML_PCIE_UTIL_TX_BYTES, "rx": nvml.NVML_PCIE_UTIL_RX_BYTES}
        self._nvml, self._now = nvml, now
        self._turns = deque((now(), number, direction) for number in handles for direction in directions)
        self._handles, self._directions = handles, directions
        self._noted: set[int] = set()

    def __call__(self) -> dict[str, float]:
        """Read the value whose turn it is, if it is due."""
        now = self._now()
        due, number, direction = self._turns[0]
        if now < due:
            return {}
        self._turns.rotate(-1)
        self._turns[-1] = now + PCIE_EVERY_S, number, direction
        try:
            kilobytes = self._nvml.nvmlDeviceGetPcieThroughput(self._handles[number], self._directions[direction])
        except self._nvml.NVMLError as error:
            if number not in self._noted:
                self._noted.add(number)
                _log.warning("monitor: PCIe traffic of gpu/%d is left out: %s", number, error)
            return {}
        return {f"gpu/{number}/pcie_{direction}_Bps": float(KB * kilobytes)}
