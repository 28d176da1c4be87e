"""The surroundings of a job of `benchmarks.verdicts`: container limits, a slow disk, a slow bucket, other programs.

All of them are real: control groups and loop devices of this machine, processes, and a server. If the machine does not
allow one, it raises `NotPossible` with the reason.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from standins.fake_gcs import FakeGcs

GROUPS = Path("/sys/fs/cgroup")
NAME = "tenfold-benchmark"
BUCKET = "bench-bucket"
SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""It ends with the benchmark, even if that is killed."""
SLOW_FOR_S = 45.0
"""Time for which a bucket is slow. Reads after the training are not measured, and need not wait."""


class NotPossible(Exception):
    """This machine does not allow a surrounding. The message says why."""


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    """Run programs that each keep one core busy."""
    # Each in a session of its own, as programs of others are: Linux shares out the cores among sessions first.
    programs = [subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextmanager
def control_group(controller: str, limits: dict[str, str]) -> Iterator[list[str]]:
    """Yield a command prefix that runs a command within these limits of a control group, version 1.

    Raises:
        NotPossible: There is no such controller, or this user may not make a group.
    """
    group = GROUPS / controller / NAME
    if not (GROUPS / controller / "cgroup.procs").exists():
        raise NotPossible(f"no controller {controller} of version 1 of control groups is mounted")
    try:
        group.mkdir(exist_ok=True)
        for name, value in limits.items():
            (group / name).write_text(value)
    except OSError as error:
        raise NotPossible(f"no control group can be made: {error}") from error
    try:
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        with suppress(OSError):  # A process that is still ending keeps the group. The next job uses it again.
            group.rmdir()


@contextmanager
def slow_disk(folder: Path, megabytes: int, bytes_per_s: int) -> Iterator[list[str]]:
    """Mount a file system on `folder`. Yield a command prefix that reads from it at no more than this rate.

    Its files outlive the mount. When it is mounted again, they are no longer in the page cache.
    """
    image = folder.with_suffix(".img")
    folder.mkdir(parents=True, exist_ok=True)
    if not image.exists():
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", str(image))
    if folder.is_mount():  # A benchmark that was killed left it.
        _run("umount", str(folder))
    _run("mount", "-o", "loop", str(image), str(folder))
    try:
        device = folder.stat().st_dev
        rate = f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"
        with control_group("blkio", {"blkio.throttle.read_bps_device": rate}) as prefix:
            yield prefix
    finally:
        _run("umount", str(folder))


def _run(*command: str) -> None:
    if not shutil.which(command[0]):
        raise NotPossible(f"there is no command {command[0]}")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NotPossible(f"{command[0]} failed: {ended.stderr.strip()}")


def object_prefix(dataset: Path) -> str:
    """Return the prefix of a published dataset in the bucket: datasets/NAME/VERSION."""
    return "/".join(dataset.parts[-3:])


@contextmanager
def slow_bucket(dataset: Path, pauses_s: Sequence[float]) -> Iterator[str]:
    """Serve a published dataset from a bucket. Yield its `STORAGE_EMULATOR_HOST`.

    Args:
        dataset: Folder of the dataset, which is `gs://bench-bucket/datasets/NAME/VERSION` afterwards.
        pauses_s: Seconds that the answer with a training shard waits. The values take turns, every two seconds.
    """
    with FakeGcs() as bucket, ExitStack() as stack:
        bucket.create_bucket(BUCKET)
        bucket.put_folder(BUCKET, f"{object_prefix(dataset)}/", dataset)
        slow = bucket.fail("stall", on="download", matches="train-", times=None, seconds=pauses_s[0])
        ended = threading.Event()

        def change() -> None:
            for number in range(1, int(SLOW_FOR_S / 2)):
                if ended.wait(2):
                    return
                slow.seconds = pauses_s[number % len(pauses_s)]
            slow.release()

        changing = threading.Thread(target=change)
        changing.start()
        stack.callback(changing.join)
        stack.callback(ended.set)
        yield bucket.url
