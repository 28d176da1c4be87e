"""The metrics of the host, from generated files and from this machine."""

import logging
from pathlib import Path

import pytest

from pipeline.monitor import machine
from pipeline.monitor.sampler import Rates
from pipeline.system.kernel import File
from tests.monitor.trees import Clock, grow


def test_rates_are_per_second_and_need_two_readings() -> None:
    counts, times = iter([1000.0, 1500.0, 100.0, 300.0]), iter([0.0, 2.0, 3.0, 4.0])
    rates = Rates(lambda: {"Bps": next(counts)}, lambda: next(times))
    assert [rates() for _ in range(4)] == [{}, {"Bps": 250.0}, {}, {"Bps": 200.0}]


def test_a_new_counter_has_no_rate_at_first() -> None:
    counts, times = iter([{"a": 1.0}, {"a": 2.0, "b": 9.0}, {"a": 3.0, "b": 10.0}]), iter([0.0, 1.0, 2.0])
    rates = Rates(lambda: next(counts), lambda: next(times))
    assert [rates() for _ in range(3)] == [{}, {"a": 1.0}, {"a": 1.0, "b": 1.0}]


def stat(*cores: tuple[int, int, int]) -> str:
    """Return /proc/stat for cores with these ticks of user, idle and iowait. All user ticks are listed as guest too."""
    lines = [f"cpu{i} {user} 0 0 {idle} {iowait} 0 0 0 {user} 0" for i, (user, idle, iowait) in enumerate(cores)]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 123 0 0", "ctxt 99", ""])


@pytest.mark.parametrize(
    ("before", "after", "metrics"),
    [
        (((100, 100, 0), (100, 100, 0)), ((120, 100, 0), (100, 120, 0)), (50.0, 100.0, 0.0)),
        (((100, 100, 0), (100, 100, 0)), ((105, 115, 0), (105, 105, 10)), (25.0, 25.0, 25.0)),
        # The idle counter decreased.
        (((100, 100, 9), (100, 100, 9)), ((120, 100, 8), (120, 99, 9)), (100.0, 100.0, 0.0)),
        # A new core counts from the next reading on.
        (((100, 100, 0),), ((110, 110, 0), (999, 1, 0)), (50.0, 50.0, 0.0)),
    ],
)
def test_processors_report_the_usage_of_cores(tmp_path: Path, before: tuple, after: tuple, metrics: tuple) -> None:
    source = machine.Processors(File(tmp_path / "stat"))
    grow(tmp_path, {"stat": stat(*before)})
    assert source() == {}
    grow(tmp_path, {"stat": stat(*after)})
    assert source() == dict(zip(("sys/cpu_pct", "sys/cpu_max_core_pct", "sys/cpu_iowait_pct"), metrics, strict=True))


def test_processors_report_nothing_if_no_tick_has_passed(tmp_path: Path) -> None:
    grow(tmp_path, {"stat": stat((100, 100, 0))})
    source = machine.Processors(File(tmp_path / "stat"))
    assert [source(), source()] == [{}, {}]


def test_memory_reports_used_bytes_and_percent(tmp_path: Path) -> None:
    grow(tmp_path, {"meminfo": "MemTotal:    1000 kB\nMemFree:   10 kB\nMemAvailable:  750 kB\n"})
    assert machine.memory(File(tmp_path / "meminfo")) == {"sys/mem_used_bytes": 256_000.0, "sys/mem_pct": 25.0}


def disks(**counters: tuple[int, int, int]) -> dict[str, str]:
    """Return the files of disks: sectors read, sectors written, and busy milliseconds."""
    return {
        f"sys/block/{name}/stat": f"  1 0 {read} 0 1 0 {written} 0 0 {busy_ms} 0 0 0 0 0 0 0\n"
        for name, (read, written, busy_ms) in counters.items()
    }


def with_disks(root: Path, *names: str) -> Path:
    """Write the files of a machine with idle disks. Return the folder of the disks."""
    idle = disks(**dict.fromkeys(names, (0, 0, 0)))
    grow(root, {**idle, **{f"sys/block/{name}/device/vendor": "" for name in names}})
    return root / "sys/block"


def test_disks_are_summed_once_and_the_busiest_is_reported(tmp_path: Path) -> None:
    clock = Clock()
    block = with_disks(tmp_path, "sda", "sdb")
    volumes = disks(loop0=(5, 5, 5), **{"dm-0": (9999, 9999, 9999), "sda/sda1": (9999, 9999, 9999)})
    source = machine.Disks(block, clock)
    assert source() == {}
    clock.now += 2
    grow(tmp_path, {**disks(sda=(100, 10, 500), sdb=(300, 30, 1500)), **volumes})
    assert source() == {"sys/disk_read_Bps": 102_400.0, "sys/disk_write_Bps": 10_240.0, "sys/disk_busy_pct": 75.0}


def test_a_removed_disk_does_not_affect_the_others(tmp_path: Path) -> None:
    clock = Clock()
    block = with_disks(tmp_path, "sda", "sdb")
    (block / "sdb/stat").unlink()  # not opened yet; for an open file, the kernel fails the read
    source = machine.Disks(block, clock)
    source()
    clock.now += 1
    grow(tmp_path, disks(sda=(2, 0, 100)))
    assert source() == {"sys/disk_read_Bps": 1024.0, "sys/disk_write_Bps": 0.0, "sys/disk_busy_pct": 10.0}


def test_a_machine_without_disks_raises_an_error(tmp_path: Path) -> None:
    grow(tmp_path, disks(loop0=(5, 5, 5)))
    with pytest.raises(OSError, match="shows no disks"):
        machine.Disks(tmp_path / "sys/block")()


NET = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
docker0: 700 1 0 0 0 0 0 0 70 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
"""


@pytest.mark.parametrize(
    ("devices", "received", "sent"), [({"eth0"}, 1000, 100), (set(), 1700, 170)], ids=["host", "container"]
)
def test_network_counters_exclude_loopback_and_bridges_of_devices(
    tmp_path: Path, devices: set[str], received: int, sent: int
) -> None:
    file = File(grow(tmp_path, {"dev": NET}) / "dev")
    assert machine.network_counters(file, devices) == {"sys/net_recv_Bps": received, "sys/net_sent_Bps": sent}


def pressure(some: int, full: int) -> str:
    averages = "avg10=77.00 avg60=66.00 avg300=55.00"
    return f"some {averages} total={some}\nfull {averages} total={full}\n"


def test_pressure_is_computed_from_the_growth_of_totals(tmp_path: Path) -> None:
    clock = Clock()
    source = machine.sources(tmp_path, clock)["pressure"]
    grow(tmp_path, {f"proc/pressure/{name}": pressure(1000, 500) for name in ("cpu", "io", "memory")})
    assert source() == {}
    clock.now += 0.2
    grow(tmp_path, {"proc/pressure/io": pressure(101_000, 50_500)})
    assert {name: round(value, 6) for name, value in source().items()} == {
        "pressure/cpu_some_pct": 0.0,
        "pressure/io_some_pct": 50.0,
        "pressure/io_full_pct": 25.0,
        "pressure/memory_some_pct": 0.0,
        "pressure/memory_full_pct": 0.0,
    }


def test_missing_files_raise_an_error_instead_of_zero(tmp_path: Path) -> None:
    sources = machine.sources(tmp_path)
    missing = {name for name in sources if name not in ("load", "cores")}
    assert {"processors", "memory", "disks", "network", "pressure", "process"} <= missing
    for name in missing:
        with pytest.raises(OSError, match=r"No such file|shows no disks|does not count"):
            sources[name]()


def test_the_sources_of_this_machine_report_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sources = machine.sources()
    for source in sources.values():
        source()
    sum(range(2_000_000))  # so that at least one kernel tick passes
    metrics = {name: value for source in sources.values() for name, value in source().items()}
    assert metrics["sys/mem_used_bytes"] > 1e7
    assert metrics["proc/rss_bytes"] > 1e7
    assert 0 <= metrics["sys/cpu_pct"] <= metrics["sys/cpu_max_core_pct"] <= 100
    assert 0 < metrics["sys/mem_pct"] <= 100
    assert metrics["proc/read_Bps"] >= 0
    assert metrics["sys/net_recv_Bps"] >= 0
