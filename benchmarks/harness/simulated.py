"""The record of a training on 8 GPUs with 20 ms steps, with realistic noise."""

import random
from collections.abc import Iterator

from pipeline.monitor.row import Row

GPUS, SAMPLES_A_S, BATCHES_A_S = 8, 5, 50
_PERCENT = (
    *("cpu_pct", "cpu_max_core_pct", "cpu_iowait_pct", "mem_pct", "disk_busy_pct", "children_cpu_pct"),
    *("cpu_some_pct", "io_some_pct", "io_full_pct", "memory_some_pct", "memory_full_pct", "cpu_throttled_pct"),
    *("limit_pct", "limit_mem_pct"),
)
_RATES = ("disk_read_Bps", "disk_write_Bps", "net_recv_Bps", "net_sent_Bps", "read_Bps", "tick_late_ms", "sample_ms")
_BYTES = ("mem_used_bytes", "limit_mem_used_bytes", "rss_bytes", "children_rss_bytes")
_STEADY = ("load_1min", "limit_cores", "used_cores", "mem_limit_bytes", "children", "dropped")


def samples(count: int) -> Iterator[Row]:
    """Yield samples of the host and all GPUs."""
    noise = random.Random(1)
    for number in range(count):
        yield Row("samples", _jittered(number / SAMPLES_A_S, noise), number * 10, {**_host(noise), **_gpus(noise)})


def batches(count: int) -> Iterator[Row]:
    """Yield the rows of some steps."""
    noise = random.Random(2)
    for number in range(count):
        wait, compute, host = noise.expovariate(1), noise.gauss(18, 1), noise.gauss(0.6, 0.1)
        yield Row(
            "batches",
            _jittered(number / BATCHES_A_S, noise),
            number + 1,
            {
                "input/wait_ms": wait,
                "step/compute_ms": compute,
                "step/host_ms": host,
                "step/checkpoint_ms": 0.0,
                "step/time_ms": wait + compute + host,
                "input/examples": 256.0,
                "epoch": 1.0 + number // 5000,
                "first": float(number == 0),
            },
        )


def _jittered(seconds: float, noise: random.Random) -> float:
    return 1.7e9 + seconds + noise.gauss(0, 0.002)


def _host(noise: random.Random) -> dict[str, float]:
    return {
        **{f"sys/{name}": min(100.0, abs(noise.gauss(40, 15))) for name in _PERCENT},
        **{f"sys/{name}": noise.lognormvariate(15, 1) for name in _RATES},
        **{f"sys/{name}": 1e11 + 4096 * noise.randrange(1_000_000) for name in _BYTES},
        **{f"sys/{name}": 64.0 for name in _STEADY},
    }


def _gpus(noise: random.Random) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for index in range(GPUS):
        of_one = {
            "util_pct": noise.randrange(80, 101),
            "mem_used_bytes": 7e10 + 2**21 * noise.randrange(100),
            "mem_total_bytes": 85_899_345_920,
            "power_w": round(noise.gauss(600, 40), 3),
            "power_limit_w": 700.0,
            "temperature_c": noise.randrange(60, 75),
            "sm_clock_mhz": 15 * noise.randrange(100, 132),
            "mem_clock_mhz": 2619,
            "throttled_power": noise.randrange(2),
            "throttled_thermal": 0,
            "pcie_rx_Bps": 1000 * noise.randrange(10_000_000),
            "pcie_tx_Bps": 1000 * noise.randrange(10_000_000),
        }
        metrics |= {f"gpu/{index}/{name}": float(value) for name, value in of_one.items()}
    return metrics
