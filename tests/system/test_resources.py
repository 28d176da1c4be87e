import os
from pathlib import Path

import psutil
import pytest

from pipeline.system.resources import available_memory, usable_cores
from tests.monitor.trees import grow

OWN_GROUP = {"proc/self/cgroup": "4:memory:/\n0::/\n"}

V1_NONE = 2**63 - 4096
"""The value that version 1 reports if there is no limit."""
CASES = {
    # files -> bytes that a container can still use of 1,000, or None for the free memory of the host
    "no container": ({}, None),
    "version 2": ({"memory.max": "1000\n", "memory.current": "300\n"}, 700),
    "version 2 without a limit": ({"memory.max": "max\n", "memory.current": "300\n"}, None),
    "version 2, a limit and no use": ({"memory.max": "1000\n"}, None),
    "version 2, over the limit": ({"memory.max": "1000\n", "memory.current": "1200\n"}, 0),
    "version 2, full of files that were read": (
        {
            "memory.max": "1000",
            "memory.current": "990",
            "memory.stat": "anon 100\ninactive_file 500\nactive_file 300\nfile 870\n",
        },
        810,
    ),
    "version 2, statistics of something else": (
        {"memory.max": "1000", "memory.current": "400", "memory.stat": "anon 100\n"},
        600,
    ),
    "version 2, statistics that are none": (
        {"memory.max": "1000", "memory.current": "400", "memory.stat": "no statistics here\n"},
        600,
    ),
    "more reclaimable than used": (
        {"memory.max": "1000", "memory.current": "400", "memory.stat": "inactive_file 500\n"},
        1000,
    ),
    "version 1": ({"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "1"}, 999),
    "version 1 without a limit": (
        {"memory/memory.limit_in_bytes": str(V1_NONE), "memory/memory.usage_in_bytes": "300"},
        None,
    ),
    "version 1, full of files that were read": (
        {
            "memory/memory.limit_in_bytes": "1000",
            "memory/memory.usage_in_bytes": "1000",
            "memory/memory.stat": "inactive_file 1\nactive_file 2\ntotal_inactive_file 400\ntotal_active_file 200\n",
        },
        600,
    ),
}


CPU = "sys/fs/cgroup/cpu"
QUOTAS = {
    # files -> cores that may be used, of 64
    "no container": ({}, 64),
    "no quota": ({"sys/fs/cgroup/cpu.max": "max 100000"}, 64),
    "a core and a half": ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
    "a fifth of a core": ({"sys/fs/cgroup/cpu.max": "20000 100000"}, 1),
    "more than the machine has": ({"sys/fs/cgroup/cpu.max": "9900000 100000"}, 64),
    "version 1": ({f"{CPU}/one/cpu.cfs_quota_us": "250000", f"{CPU}/one/cpu.cfs_period_us": "100000"}, 3),
    "version 1 without a quota": ({f"{CPU}/one/cpu.cfs_quota_us": "-1", f"{CPU}/one/cpu.cfs_period_us": "100000"}, 64),
    "version 1, a group above": ({f"{CPU}/cpu.cfs_quota_us": "100000", f"{CPU}/cpu.cfs_period_us": "100000"}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_available_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    files, free = CASES[name]
    grow(tmp_path, {f"sys/fs/cgroup/{file}": content for file, content in files.items()} | OWN_GROUP)
    host = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: host)  # it changes from one call to the next
    assert available_memory(tmp_path) == (host.available if free is None else free)


def test_available_memory_is_the_minimum_over_the_parent_groups(tmp_path: Path):
    files = {"memory.max": "1000", "memory.current": "900", "one/memory.max": "500", "one/memory.current": "100"}
    grow(tmp_path, {f"sys/fs/cgroup/{file}": content for file, content in files.items()})
    grow(tmp_path, {"proc/self/cgroup": "0::/one\n"})
    assert available_memory(tmp_path) == 100


def test_available_memory_is_limited_by_the_host(tmp_path: Path):
    files = {"memory.max": str(2**59), "memory.current": "0"}
    grow(tmp_path, {f"sys/fs/cgroup/{file}": content for file, content in files.items()} | OWN_GROUP)
    assert 0 < available_memory(tmp_path) < psutil.virtual_memory().total


def test_this_machine_has_available_memory():
    assert available_memory() > 0


@pytest.mark.parametrize("name", QUOTAS)
def test_usable_cores_respects_the_quota_of_the_container(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    files, cores = QUOTAS[name]
    assert usable_cores(grow(tmp_path, {"proc/self/cgroup": "1:cpu:/one\n2:cpuacct:/\n0::/\n", **files})) == cores
