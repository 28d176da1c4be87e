"""GPU metrics from a fake NVML, because the tests run without a GPU. Its names, errors and structures are pynvml's."""

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from pipeline.monitor import gpu
from pipeline.monitor.sampler import Sampler
from tests.monitor.trees import Clock

UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-89aa0000-1111-4106-c12f-20bd9faed9f6", "GPU-71cc0000-0000")
PARTS = ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-aaaaaaaa-42e4-5de3-91c7-45d71c87eb3f")


class FakeNvml:
    """A fake of the module pynvml with up to three GPUs.

    Args:
        count: Number of GPUs.
        divided: Indices of the GPUs with MIG.
        broken: The error number that a function raises, by function name; "all" stands for all functions.
    """

    def __init__(
        self, count: int = 2, divided: set[int] | None = None, broken: Mapping[str, int] | None = None
    ) -> None:
        self.count, self.divided, self.broken = count, divided or set(), dict(broken or {})
        self.buffer: list[tuple[int, int]] = []
        """Utilization samples: a time stamp in microseconds, and percent."""
        self.pcie_calls: list[tuple[Any, int]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)  # AttributeError for names that pynvml lacks
        if not name.startswith("nvml") or not callable(value):
            return value
        return self._raising(name, getattr(FakeNvml, f"_{name}"))

    def _raising(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if name in self.broken or "all" in self.broken:
                raise pynvml.NVMLError(self.broken.get(name, self.broken.get("all")))
            return function(self, *arguments)

        return called

    def _nvmlInit(self) -> None:
        pass

    def _nvmlDeviceGetCount(self) -> int:
        return self.count

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return index

    def _nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle if isinstance(handle, str) else UUIDS[handle]

    def _nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if not self.divided:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(handle in self.divided), 0]

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, number: int) -> str:
        if number >= len(PARTS):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return PARTS[number]

    def _nvmlDeviceGetSamples(self, handle: Any, kind: int, since: int) -> tuple[int, list[Any]]:
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        newer = [(stamp, percent) for stamp, percent in self.buffer if stamp > since]
        if not newer:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        samples = [
            pynvml.c_nvmlSample_t(timeStamp=stamp, sampleValue=pynvml.c_nvmlValue_t(uiVal=percent))
            for stamp, percent in newer
        ]
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, samples

    def _nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return pynvml.c_nvmlUtilization_t(gpu=97, memory=12)

    def _nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return pynvml.c_nvmlMemory_t(total=80_000_000_000, used=5_000_000_000)

    def _nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 312_500

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        return 700_000

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return 61

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> list[int]:
        return [8, 6]

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind]

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return pynvml.nvmlClocksEventReasonSwPowerCap

    def _nvmlDeviceGetPcieThroughput(self, handle: Any, counter: int) -> int:
        self.pcie_calls.append((handle, counter))
        return {pynvml.NVML_PCIE_UTIL_TX_BYTES: 20, pynvml.NVML_PCIE_UTIL_RX_BYTES: 30}[counter]


def sources(nvml: FakeNvml, mask: str | None = None) -> dict[str, Any]:
    return gpu.sources(nvml, {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask})


def test_a_gpu_has_all_metrics() -> None:
    available = sources(FakeNvml())
    assert list(available) == ["gpu 0", "gpu 1", "PCIe"]
    assert available["gpu 1"]() == {
        "gpu/1/util_pct": 97.0,
        "gpu/1/mem_used_bytes": 5e9,
        "gpu/1/mem_total_bytes": 8e10,
        "gpu/1/power_w": 312.5,
        "gpu/1/power_limit_w": 700.0,
        "gpu/1/temperature_c": 61.0,
        "gpu/1/sm_clock_mhz": 1980.0,
        "gpu/1/compute_capability": 8.6,
        "gpu/1/mem_clock_mhz": 2619.0,
        "gpu/1/throttled_power": 1.0,
        "gpu/1/throttled_thermal": 0.0,
    }


@pytest.mark.parametrize(
    ("reason", "power", "thermal"),
    [
        ("None", 0, 0),
        ("GpuIdle", 0, 0),
        ("SwPowerCap", 1, 0),
        ("HwPowerBrakeSlowdown", 1, 0),
        ("SwThermalSlowdown", 0, 1),
        ("HwThermalSlowdown", 0, 1),
    ],
)
def test_throttling_reasons_are_power_or_thermal(reason: str, power: int, thermal: int) -> None:
    reasons = getattr(pynvml, f"nvmlClocksEventReason{reason}") | pynvml.nvmlClocksEventReasonGpuIdle
    assert gpu.throttling(pynvml, reasons) == {"throttled_power": power, "throttled_thermal": thermal}


def test_each_utilization_reading_is_reported_once() -> None:
    nvml = FakeNvml(count=1)
    busy = gpu.Utilization(nvml, 0)
    values = []
    for buffer in ([(1, 10)], [(1, 10)], [(1, 10), (2, 40), (3, 60)], [(3, 60)]):
        nvml.buffer = buffer
        values.append(busy())
    assert values == [{"util_pct": 10}, {}, {"util_pct": 50}, {}]


def test_an_old_reading_returned_again_is_ignored() -> None:
    old = pynvml.c_nvmlSample_t(timeStamp=5, sampleValue=pynvml.c_nvmlValue_t(uiVal=10))
    nvml = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        NVMLError_NotFound=pynvml.NVMLError_NotFound,
        NVML_GPU_UTILIZATION_SAMPLES=1,
        nvmlDeviceGetSamples=lambda handle, kind, since: (1, [old]),
    )
    busy = gpu.Utilization(nvml, 0)
    assert [busy(), busy()] == [{"util_pct": 10}, {}]


def test_readings_continue_after_the_clock_is_set_back() -> None:
    """The driver uses the wall clock for its samples, and keeps earlier samples for a while."""
    nvml, hour = FakeNvml(count=1), 3600 * 10**6
    busy = gpu.Utilization(nvml, 0)
    before, after = [(2 * hour, 10), (2 * hour + 1, 20)], [(hour, 70), (hour + 1, 90)]
    values = []
    for buffer in (before, before + after[:1], before + after, before + after):
        nvml.buffer = buffer
        values.append(busy())
    assert values == [{"util_pct": 15}, {"util_pct": 70}, {"util_pct": 90}, {}]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND])
def test_the_last_utilization_is_reported_if_there_is_no_buffer(code: int) -> None:
    busy = gpu.Utilization(FakeNvml(broken={"nvmlDeviceGetSamples": code}), 0)
    assert [busy(), busy()] == [{"util_pct": 97.0}] * 2


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("2,0", [2, 0]),
        ("0, 2", [0, 2]),
        ("0,-1,1", [0]),
        ("0,3,1", [0]),
        ("1,1", [1]),
        (UUIDS[1], [1]),
        ("GPU-893,GPU-7", [0, 2]),
        ("GPU-89,2", []),  # matches two GPUs
        ("gpu-893", []),
        ("0x1", []),
    ],
)
def test_cuda_visible_devices_selects_the_gpus(mask: str | None, shown: list[int]) -> None:
    devices = [gpu.Device(index, uuid, index) for index, uuid in enumerate(UUIDS)]
    assert [device.index for device in gpu.visible(devices, mask)] == shown


def test_gpu_numbers_are_those_of_cuda() -> None:
    available = sources(FakeNvml(count=3), "2,0")
    assert list(available) == ["gpu 0", "gpu 1", "PCIe"]
    handles = [handle for handle, _ in pcie_calls(available["PCIe"], calls=4)]
    assert handles == [2, 2, 0, 0]


def pcie_calls(source: Any, calls: int) -> list[tuple[Any, int]]:
    for _ in range(calls):
        source()
    calls_seen: list[tuple[Any, int]] = source._nvml.pcie_calls
    return calls_seen


def test_an_entry_that_names_no_gpu_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert list(sources(FakeNvml(), "1,7")) == ["gpu 0", "PCIe"]
    [message] = warnings_of(caplog)
    assert message == (
        "monitor: CUDA_VISIBLE_DEVICES lists '7', which is not a GPU or is listed twice: the rest of the list "
        "is ignored"
    )


@pytest.mark.parametrize("mask", ["", "-1"])
def test_hidden_gpus_are_logged_and_have_no_metrics(mask: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert sources(FakeNvml(), mask) == {}
    assert [r.getMessage() for r in caplog.records] == ["monitor: no GPU metrics: CUDA_VISIBLE_DEVICES shows no GPU"]


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        (None, [UUIDS[0], *PARTS]),
        ("1", [PARTS[0]]),  # CUDA uses the first MIG device of a divided GPU
        (PARTS[1], [PARTS[1]]),
        ("MIG-c6d4,0", [PARTS[0], UUIDS[0]]),
    ],
)
def test_mig_devices_are_selected_by_cuda_visible_devices(mask: str | None, shown: list[str]) -> None:
    devices = gpu.devices(FakeNvml(count=2, divided={1}))
    assert [device.uuid for device in gpu.visible(devices, mask)] == shown


def test_a_mig_device_reports_only_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        available = sources(FakeNvml(count=1, divided={0}), PARTS[1])
    assert list(available) == ["gpu 0"]
    assert available["gpu 0"]() == {"gpu/0/mem_used_bytes": 5e9, "gpu/0/mem_total_bytes": 8e10}
    [message] = caplog.messages
    assert message.startswith(f"monitor: gpu/0 is {PARTS[1]}, a part of a GPU (MIG): only its memory is measured")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_unsupported_metric_is_logged_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    source = sources(FakeNvml(broken={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NOT_SUPPORTED}))["gpu 0"]
    assert all("gpu/0/power_w" not in row and "gpu/0/util_pct" in row for row in (source(), source()))
    assert warnings_of(caplog) == ["monitor: power of gpu/0 is left out: Not Supported"]


def test_a_lost_gpu_is_logged_once_and_other_sources_continue(caplog: pytest.LogCaptureFixture) -> None:
    nvml, rows, waits = FakeNvml(count=1), [], iter([False, False, False, True])

    def stopped(seconds: float) -> bool:
        if len(rows) == 1:
            nvml.broken["all"] = pynvml.NVML_ERROR_GPU_IS_LOST
        return next(waits)

    available = {"gpu 0": sources(nvml)["gpu 0"], "other": lambda: {"other": 5.0}}
    Sampler(available, rows.append, 5.0, stopped=stopped).run()

    assert [row.get("gpu/0/power_w") for row in rows] == [312.5, None, None]
    assert [row["other"] for row in rows] == [5.0] * 3
    assert warnings_of(caplog) == ["monitor: gpu 0 is left out: NVMLError_GpuIsLost: GPU is lost"]


def test_missing_nvml_is_logged_and_gives_no_gpu_metrics(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert sources(FakeNvml(broken={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})) == {}
    assert [r.getMessage() for r in caplog.records] == ["monitor: no GPU metrics: NVML Shared Library Not Found"]


def test_pcie_reads_one_value_per_call_and_each_value_once_per_second() -> None:
    """Each reading blocks for 20 ms. All four readings of two GPUs at once would delay a tick at 20 Hz."""
    nvml, clock = FakeNvml(), Clock()
    source = gpu.Pcie(nvml, {0: "a", 1: "b"}, clock)
    values = []
    for _ in range(10):
        values.append(source())
        clock.now += 0.2
    one_second = [
        {"gpu/0/pcie_tx_Bps": 20_000.0},
        {"gpu/0/pcie_rx_Bps": 30_000.0},
        {"gpu/1/pcie_tx_Bps": 20_000.0},
        {"gpu/1/pcie_rx_Bps": 30_000.0},
        {},
    ]
    assert values == one_second * 2


def test_missing_pcie_traffic_is_logged_once_per_gpu(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(broken={"nvmlDeviceGetPcieThroughput": pynvml.NVML_ERROR_NOT_SUPPORTED})
    clock = Clock()
    source = gpu.Pcie(nvml, {0: "a"}, clock)
    for _ in range(4):
        clock.now += 0.6
        assert source() == {}
    assert warnings_of(caplog) == ["monitor: PCIe traffic of gpu/0 is left out: Not Supported"]


def test_all_nvml_functions_of_the_fake_exist() -> None:
    """Each function of the fake exists in pynvml, so the monitor calls no renamed function."""
    for name in (name for name in vars(FakeNvml) if name.startswith("_nvml")):
        assert callable(getattr(pynvml, name[1:]))
