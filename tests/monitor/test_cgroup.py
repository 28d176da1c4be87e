"""Control groups of both versions, as files in a folder: limits of a container and of its parent groups."""

import logging
from pathlib import Path

import pytest

from pipeline.monitor import cgroup
from tests.monitor.trees import Clock, grow

GIB = 1 << 30


def v2(folder: str, cores: str, used_s: float, periods: int, throttled: int, memory: str, used: int) -> dict[str, str]:
    stat = f"usage_usec {used_s * 1e6:.0f}\nuser_usec 1\nnr_periods {periods}\nnr_throttled {throttled}\n"
    return {
        f"{folder}/cpu.max": f"{cores}\n",
        f"{folder}/cpu.stat": stat,
        f"{folder}/memory.max": f"{memory}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\nfile 2\ninactive_file {GIB}\n",
    }


def v1(folder: str, quota: int, used_s: float, periods: int, throttled: int, memory: int, used: int) -> dict[str, str]:
    base = "sys/fs/cgroup"
    return {
        f"{base}/cpu/{folder}/cpu.cfs_quota_us": f"{quota}\n",
        f"{base}/cpu/{folder}/cpu.cfs_period_us": "100000\n",
        f"{base}/cpu/{folder}/cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 1\n",
        f"{base}/cpuacct/{folder}/cpuacct.usage": f"{used_s * 1e9:.0f}\n",
        f"{base}/memory/{folder}/memory.limit_in_bytes": f"{memory}\n",
        f"{base}/memory/{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{base}/memory/{folder}/memory.stat": f"cache 1\ninactive_file 5\ntotal_inactive_file {GIB}\n",
    }


LIMITED = {
    "cgroup/cpu_used_cores": 1.5,
    "cgroup/cpu_limit_cores": 2.0,
    "cgroup/cpu_pct": 75.0,
    "cgroup/cpu_throttled_pct": 50.0,
    "cgroup/mem_used_bytes": 3.0 * GIB,
    "cgroup/mem_limit_bytes": 4.0 * GIB,
    "cgroup/mem_pct": 75.0,
}
UNLIMITED = {"cgroup/cpu_used_cores": 1.5, "cgroup/mem_used_bytes": 3.0 * GIB}


def metrics_of(root: Path, before: dict[str, str], after: dict[str, str]) -> dict[str, float]:
    """Return the metrics of the second of two samples, two seconds apart."""
    clock = Clock()
    sources = cgroup.sources(grow(root, before), clock)
    for source in sources.values():
        source()
    clock.now += 2
    grow(root, after)
    return {name: value for source in sources.values() for name, value in source().items()}


def container(root: Path) -> Path:
    """Write the view of a process in a container with version 2: its own group is at the root. Return the root."""
    return grow(root, {"proc/self/cgroup": "0::/\n"})


def test_cgroup_v2_limits_of_a_container(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    before = v2(top, "200000 100000", 10, 100, 10, str(4 * GIB), 4 * GIB)
    after = v2(top, "200000 100000", 13, 120, 20, str(4 * GIB), 4 * GIB)
    assert metrics_of(container(tmp_path), before, after) == LIMITED


def test_cgroup_v1_limits_of_a_container(tmp_path: Path) -> None:
    """As in Docker, the path is that of the host, but the group itself is mounted."""
    paths = "7:memory:/docker/one\n3:cpu,cpuacct:/docker/one\n1:name=systemd:/docker/one\n"
    grow(tmp_path, {"proc/self/cgroup": paths})
    before = v1("", 200_000, 10, 100, 10, 4 * GIB, 4 * GIB)
    after = v1("", 200_000, 13, 120, 20, 4 * GIB, 4 * GIB)
    assert metrics_of(tmp_path, before, after) == LIMITED


def test_cgroup_v2_without_limits_has_no_percentages(tmp_path: Path) -> None:
    before = v2("sys/fs/cgroup", "max 100000", 10, 0, 0, "max", 4 * GIB)
    after = v2("sys/fs/cgroup", "max 100000", 13, 0, 0, "max", 4 * GIB)
    assert metrics_of(container(tmp_path), before, after) == UNLIMITED


def test_cgroup_v1_without_limits_has_no_percentages(tmp_path: Path) -> None:
    grow(tmp_path, {"proc/self/cgroup": "7:memory:/\n3:cpu:/\n2:cpuacct:/\n0::/\n"})
    before = v1("", -1, 10, 0, 0, 9223372036854771712, 4 * GIB)
    after = v1("", -1, 13, 0, 0, 9223372036854771712, 4 * GIB)
    assert metrics_of(tmp_path, before, after) == UNLIMITED


def test_a_cgroup_v1_limit_is_reported_without_the_usage(tmp_path: Path) -> None:
    """If the controller that counts the usage is mounted separately, it may have no group for this process."""
    grow(tmp_path, {"proc/self/cgroup": "7:memory:/\n3:cpu:/job\n2:cpuacct:/\n0::/\n"})
    before, after = (v1("job", 200_000, 0, *periods, 4 * GIB, 4 * GIB) for periods in ((100, 10), (120, 20)))
    for files in (before, after):
        del files["sys/fs/cgroup/cpuacct/job/cpuacct.usage"]
    limits = {
        name: value for name, value in metrics_of(tmp_path, before, after).items() if name.startswith("cgroup/cpu")
    }
    assert limits == {"cgroup/cpu_limit_cores": 2.0, "cgroup/cpu_throttled_pct": 50.0}


def test_the_tightest_limit_of_all_parent_groups_counts(tmp_path: Path) -> None:
    """Usage and throttling are those of the group with the limit, because other processes share it."""
    grow(tmp_path, {"proc/self/cgroup": "0::/pod/main\n"})
    own, pod = "sys/fs/cgroup/pod/main", "sys/fs/cgroup/pod"
    before = v2(own, "800000 100000", 1, 1, 0, "max", GIB) | v2(
        pod, "200000 100000", 10, 100, 10, str(4 * GIB), 4 * GIB
    )
    after = v2(own, "800000 100000", 2, 2, 0, "max", GIB) | v2(pod, "200000 100000", 13, 120, 20, str(4 * GIB), 4 * GIB)
    assert metrics_of(tmp_path, before, after) == LIMITED


def test_an_idle_group_is_not_throttled(tmp_path: Path) -> None:
    before = v2("sys/fs/cgroup", "200000 100000", 10, 100, 10, "max", 4 * GIB)
    metrics = metrics_of(container(tmp_path), before, before)
    assert (metrics["cgroup/cpu_pct"], metrics["cgroup/cpu_throttled_pct"]) == (0.0, 0.0)


def test_missing_control_groups_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert cgroup.sources(tmp_path) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "monitor: cgroup processors is left out: no control group reports it",
        "monitor: cgroup memory is left out: no control group reports it",
    ]
