"""Metrics of a process and its children, from generated files and from real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from pipeline.monitor import process_tree
from pipeline.monitor.sampler import Source
from pipeline.monitor.threads import Threads
from pipeline.system.kernel import File
from tests.monitor.trees import Clock, grow
from tests.waiting import until

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(pid: int, seconds: float, pages: int, name: str = "python", faults: int = 0) -> str:
    ticks = int(seconds * TICKS)
    return f"{pid} ({name}) S 1 1 1 0 -1 0 0 0 {faults} 0 {ticks - 1} 1 55 55 20 0 1 0 777 4096 {pages} 0 0\n"


def tree(seconds: float = 0.0, children: str = "") -> dict[str, str]:
    return {
        "proc/10/stat": stat(10, 5 + seconds, 3, name="a (very) 9 odd) name"),
        "proc/10/io": f"rchar: 9\nread_bytes: {int(1000 * seconds)}\nwrite_bytes: 8\n",
        "proc/10/task/10/children": "",
        "proc/10/task/11/children": children,
    }


def child(pid: int, seconds: float, pages: int = 2, children: str = "") -> dict[str, str]:
    """Return the files of a child that reads 1 MB and has ten major faults in each second of its work."""
    return {
        f"proc/{pid}/stat": stat(pid, seconds, pages, faults=int(10 * seconds)),
        f"proc/{pid}/io": f"rchar: 9\nread_bytes: {int(1e6 * seconds)}\n",
        f"proc/{pid}/task/{pid}/children": children,
    }


def reader(root: Path, clock: Clock) -> Source:
    """Return one source with the values of all sources of process 10."""
    collected = process_tree.sources(10, root, clock)
    return lambda: {name: value for source in collected.values() for name, value in source().items()}


def test_the_usage_of_a_process_and_its_children_is_reported(tmp_path: Path) -> None:
    """The child of a thread and its child count as children. The process itself does not."""
    clock = Clock()
    grow(tmp_path, tree(children="20 ") | child(20, 1, children="30 ") | child(30, 1, pages=4))
    read = reader(tmp_path, clock)
    assert read() == {
        "proc/rss_bytes": 3.0 * PAGE,
        "proc/children": 2.0,
        "proc/children_rss_bytes": 6.0 * PAGE,
    }
    clock.now += 2
    grow(tmp_path, tree(seconds=1.0) | child(20, 2) | child(30, 4))
    assert read() == {
        "proc/cpu_pct": 50.0,
        "proc/major_faults_per_s": 0.0,
        "proc/rss_bytes": 3.0 * PAGE,
        "proc/read_Bps": 500.0,
        "proc/children": 2.0,
        "proc/children_cpu_pct": 200.0,
        "proc/children_read_Bps": 2e6,
        "proc/children_major_faults_per_s": 20.0,
        "proc/children_rss_bytes": 4.0 * PAGE,
    }


def test_a_child_counts_without_the_bytes_that_it_reads(tmp_path: Path) -> None:
    """Some kernels do not count them, and have no file `io`."""
    clock = Clock()
    grow(tmp_path, tree(children="20") | child(20, 1))
    (tmp_path / "proc/20/io").unlink()
    read = reader(tmp_path, clock)
    read()
    clock.now += 2
    grow(tmp_path, {"proc/20/stat": stat(20, 2, 2)})
    found = read()
    assert (found["proc/children"], found["proc/children_cpu_pct"]) == (1.0, 50.0)


def test_the_list_of_children_is_refreshed_every_five_seconds(tmp_path: Path) -> None:
    clock = Clock()
    grow(tmp_path, tree(children=""))
    read = reader(tmp_path, clock)
    read()
    grow(tmp_path, tree(children="20") | child(20, 1))
    counts = []
    for _ in range(6):
        clock.now += 1
        counts.append(read()["proc/children"])
    assert counts == [0, 0, 0, 0, 1, 1]


def test_a_kernel_without_lists_of_children_has_no_child_metrics(tmp_path: Path) -> None:
    grow(tmp_path, {"proc/10/stat": stat(10, 5, 3)})
    assert list(process_tree.sources(10, tmp_path)) == ["process", "reading of the process"]


SHELL = """
"$0" -c "while True: pass" &
read line
kill -9 $!
wait $! 2>/dev/null
echo gone
read line
"""


def test_a_real_child_process_is_measured_until_it_ends() -> None:
    clock = Clock()
    command, pipe = ["/bin/sh", "-c", SHELL, sys.executable], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        source = process_tree.Children(Path("/proc"), shell.pid, clock)

        def works() -> bool:
            clock.now += process_tree.REFRESH_S
            return source().get("proc/children_cpu_pct", 0) > 0

        until(works)
        collected = source()
        assert collected["proc/children"] == 1
        assert collected["proc/children_rss_bytes"] > 1e6
        shell.stdin.write("kill it\n")
        assert shell.stdout.readline() == "gone\n"
        clock.now += 0.01  # the list of children is not refreshed
        assert set(source().values()) == {0.0}


READER = """
import mmap, os, sys
file, block = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
while True:
    os.preadv(file, [block], 0)
"""


def test_the_reads_of_a_living_child_are_counted(tmp_path: Path) -> None:
    """The child reads from the disk, not from the page cache. The shell that started it only waits."""
    (tmp_path / "data").write_bytes(os.urandom(1 << 20))
    command = ["/bin/sh", "-c", '"$0" -c "$1" "$2"; exit 0', sys.executable, READER, str(tmp_path / "data")]
    shell, clock = subprocess.Popen(command, start_new_session=True), Clock()
    threads = Threads(Path("/proc"), shell.pid, clock)

    def reads() -> bool:
        """Return whether the child reads, and one of its threads waits for the disk."""
        clock.now += process_tree.REFRESH_S
        waits = threads()["proc/disk_wait_pct"] > 0  # At each look, because it needs several measurements.
        return source().get("proc/children_read_Bps", 0) > 0 and waits

    try:
        source = process_tree.Children(Path("/proc"), shell.pid, clock)
        until(reads)
        assert process_tree.read_bytes(File(Path(f"/proc/{shell.pid}/io")))["proc/read_Bps"] < 1 << 20
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
