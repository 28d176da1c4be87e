"""Objects up and down: this project beside what a user would pick instead, and beside the limit.

    make bench-storage
    python -m benchmarks.storage [--rounds N] [--quick] [--only PATTERN] [--sizes SIZE ...] [--json FILE]

A server on this machine stands in for Cloud Storage, a process of its own that answers after 30 ms, as a bucket does.
All are measured in alternating rounds in one run; after each round every byte is checked. What counts is the ratio.
The other packages lie in .bench/storage.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import HOME, job_file, logs, machine_line, new_folder, say, versions_in
from benchmarks.harness.rounds import ROOT, Contender, as_json, measure_work
from pipeline import storage
from pipeline.snapshot.raw_example import RawExample, content_of, to_line
from pipeline.storage import BucketPath

PEERS_PYTHON = HOME / "storage" / "bin" / "python"
LATENCY_MS = 30
BUCKET = BucketPath("bench")
WARM = "warm"
DOWN, UP = "down", "up"
OURS, OURS_READ, LOOP, LIMIT = "**Tenfold**", "**Tenfold**, into memory", "plain loop of the client", "limit: `curl`"
WITH_PEERS = "transfer_manager, {}"
CHECKED = {OURS: "yes", OURS_READ: "yes", LOOP: "yes", LIMIT: "no"} | {
    WITH_PEERS.format("threads"): "yes",
    WITH_PEERS.format("processes"): "yes",
    "gcsfs": "no",
}
"""Which side checks the CRC32C of the data, of uploads and of downloads, by default."""


@dataclass(frozen=True)
class Size:
    """Objects of one size."""

    name: str
    count: int
    bytes: int
    of_the_loop: int
    """So many of them are enough to time a plain loop, which would take minutes for all."""

    @property
    def of_the_processes(self) -> int:
        """The same for the slow processes of the transfer manager."""
        return min(self.count, 10 * self.of_the_loop)

    @property
    def large(self) -> bool:
        """Whether the rate is in MB a second, not in objects."""
        return self.bytes > 1 << 24

    def rate(self, contender: Contender) -> str:
        """Return what is read off: objects a second of small ones, MB a second of large ones."""
        assert contender.images_per_s is not None
        value = contender.images_per_s * (self.bytes / 1e6 if self.large else 1)
        spread = "" if contender.spread is None else f" ±{contender.spread:.0%}"
        return f"{value:,.0f}{spread}"


SIZES = (
    Size("small", 10_000, 2_000, 200),
    Size("photographs", 1_000, 100_000, 100),
    Size("shards", 4, 128 << 20, 4),
)
QUICK = (Size("small", 500, 2_000, 50), Size("photographs", 100, 100_000, 20), Size("shards", 4, 32 << 20, 4))
Measured = dict[tuple[str, str], list[Contender]]
"""By name of the size and direction."""


class Server:
    """`python -m standins.fake_gcs`: its files are served from a folder, or it begins empty."""

    def __init__(self, folder: Path | None = None) -> None:
        self._options = ["--folder", str(folder)] if folder else ["--bucket", BUCKET.bucket]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> "Server":
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "standins.fake_gcs", "--port", port, "--latency-ms", str(LATENCY_MS)]
        log = open(logs() / "server.log", "ab")
        self._process = subprocess.Popen(
            [*command, *self._options], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        )
        log.close()
        assert self._process.stdout
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process
        self._process.terminate()
        self._process.communicate()

    def empty(self) -> None:
        """Begin again at the same address: deleting 10,000 objects would take longer than creating them."""
        self.__exit__()
        self.__enter__()


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    try:
        results = results_of(options)
    finally:
        shutil.rmtree(HOME / "work", ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description="Objects up and down.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few objects and two rounds, to see that all of it runs")
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], default=[s.name for s in SIZES])
    parser.add_argument("--only", default="", metavar="PATTERN", help='of the table, such as "Tenfold|loop"')
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def results_of(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes in both directions, and print it."""
    sizes = [size for size in (QUICK if options.quick else SIZES) if size.name in options.sizes]
    rounds = 2 if options.quick else options.rounds
    measured: Measured = {}
    for size in sizes:
        for direction, contenders in contenders_of(size):
            chosen = [each for each in contenders if re.search(options.only, each.title)]
            say(f"{size.count:,} {size.name} {direction}: {rounds} rounds of {len(chosen)}")
            measure_work(chosen, rounds, logs())
            measured[size.name, direction] = chosen
    lines = [line for size in sizes for line in ["", *table(size, measured)]]
    machine = [machine_line("google-crc32c"), versions_in(PEERS_PYTHON, "google-cloud-storage", "gcsfs")]
    print("\n".join([*machine, *lines]))
    return {f"{name}, {direction}": as_json(all_) for (name, direction), all_ in measured.items()}


def contenders_of(size: Size) -> Iterator[tuple[str, list[Contender]]]:
    """Yield all who bring objects of one size down, then all who bring them up; a server runs meanwhile."""
    files = new_folder("served") / BUCKET.bucket
    names = make_files(files, size)
    with Server(files.parent) as server:
        rows = listing(server, files.parent.parent)
        yield DOWN, list(down(size, server, names, rows))
    with Server() as server:
        yield UP, list(up(size, server, names, files))
    shutil.rmtree(files.parent)


def make_files(folder: Path, size: Size) -> list[str]:
    """Make files of random bytes, and one more to warm up with. Return their names."""
    folder.mkdir(parents=True)
    names = [f"{number:05d}.bin" for number in range(size.count)]
    for number, name in enumerate([*names, WARM]):
        (folder / name).write_bytes(np.random.default_rng(number).bytes(size.bytes))
    return names


def listing(server: Server, folder: Path) -> dict[str, bytes]:
    """Return what the bucket lists of each object, as a line of a snapshot; the bucket has then hashed all of them."""
    os.environ["STORAGE_EMULATOR_HOST"] = server.url
    found = (
        (name, RawExample(name, ["0"], "", s.st_size, s.crc32c, "", [], s.generation, s.md5)) for name, s in stats()
    )
    return {name: to_line(content_of(row), row) for name, row in found}


def stats() -> Iterator[tuple[str, storage.ObjectStat]]:
    """Name and description of each object of the bucket."""
    return ((found.key, found.stat) for found in storage.objects(BUCKET))


def down(size: Size, server: Server, names: list[str], rows: dict[str, bytes]) -> Iterator[Contender]:
    """Those who download."""
    expected = Counter(json.loads(rows[name])[4] for name in names)

    def contender(title: str, way: str, count: int = size.count, check: bool = True, **more: Any) -> Contender:
        folder = new_folder("down")
        taken = names[:count]
        job = {"url": server.url, "bucket": BUCKET.bucket, "folder": str(folder), "names": taken} | more
        job |= {"rows": rows_file(rows, taken), "first": {"names": [WARM], "rows": rows_file(rows, [WARM])}}
        wanted = expected if count == size.count else Counter(json.loads(rows[name])[4] for name in taken)
        look = partial(missing_below, folder, wanted) if check else None
        return Contender(title, way, python_of(title), [job_file(job)], count, [folder], check=look)

    if size.large:
        yield contender(OURS, "tenfold_fetch_shards")
    else:
        yield contender(OURS, "tenfold_fetch")
        yield contender(OURS_READ, "tenfold_read", check=False)
    yield contender(LOOP, "loop_download", size.of_the_loop)
    manager = "manager_download_chunks" if size.large else "manager_download"
    yield contender(WITH_PEERS.format("threads"), manager, workers="thread")
    yield contender(WITH_PEERS.format("processes"), manager, size.of_the_processes, workers="process")
    yield contender("gcsfs", "gcsfs_download")
    yield contender(LIMIT, "curl_download")


def up(size: Size, server: Server, names: list[str], files: Path) -> Iterator[Contender]:
    """Those who upload."""
    crcs = {name: storage.crc32c_of(files / name) for name in names}

    def contender(title: str, way: str, count: int = size.count, **more: Any) -> Contender:
        taken = names[:count]
        job = {"url": server.url, "bucket": BUCKET.bucket, "folder": str(files), "names": taken} | more
        job |= {"first": {"names": [WARM]}}
        look = partial(missing_in_bucket, server, {name: crcs[name] for name in taken})
        return Contender(title, way, python_of(title), [job_file(job)], count, [], check=look)

    yield contender(OURS, "tenfold_upload_shards" if size.large else "tenfold_upload")
    yield contender(LOOP, "loop_upload", size.of_the_loop)
    yield contender(WITH_PEERS.format("threads"), "manager_upload", workers="thread")
    yield contender(WITH_PEERS.format("processes"), "manager_upload", size.of_the_processes, workers="process")
    yield contender("gcsfs", "gcsfs_upload")
    yield contender(LIMIT, "curl_upload")


def python_of(title: str) -> Path:
    """Whose environment it runs in."""
    return Path(sys.executable) if title in (OURS, OURS_READ, LIMIT) else PEERS_PYTHON


def rows_file(rows: dict[str, bytes], names: Sequence[str]) -> str:
    """Return a file of rows, as a snapshot has them."""
    path = new_folder("rows")
    path.write_bytes(b"".join(rows[name] for name in names))
    return str(path)


def missing_below(folder: Path, expected: Counter[int]) -> str:
    """Whether the files below a folder hold all the objects, by their CRC32C, whatever they are called."""
    found = Counter(storage.crc32c_of(path) for path in folder.rglob("*") if path.is_file())
    return "" if found == expected else f"failed ({(expected - found).total()} objects did not arrive whole)"


def missing_in_bucket(server: Server, expected: dict[str, int]) -> str:
    """Whether the bucket holds all the objects; it is empty afterwards."""
    os.environ["STORAGE_EMULATOR_HOST"] = server.url
    found = {name: stat.crc32c for name, stat in stats() if name != WARM}
    server.empty()
    wrong = sum(found.get(name) != crc for name, crc in expected.items())
    return f"failed ({wrong} objects did not arrive whole)" if wrong else ""


def table(size: Size, measured: Measured) -> list[str]:
    """Return all contenders for one size, a line each."""
    what = f"{size.bytes >> 20} MB, MB/s" if size.large else f"{size.bytes / 1000:,.0f} KB, objects/s"
    lines = [
        f"| {size.count:,} {size.name} of {what} | down | to the loop | memory, MB "
        "| up | to the loop | memory, MB | checks CRC32C |",
        "|---|---|---|---|---|---|---|---|",
    ]
    sides = [{each.title: each for each in measured[size.name, direction]} for direction in (DOWN, UP)]
    for title in CHECKED:
        if any(title in side for side in sides):
            cells = [cell for side in sides for cell in cells_of(size, side.get(title), side.get(LOOP))]
            lines.append(f"| {title} | {' | '.join(cells)} | {CHECKED[title]} |")
    return lines


def cells_of(size: Size, each: Contender | None, loop: Contender | None) -> tuple[str, str, str]:
    """Rate, how many times the loop's, and peak memory."""
    if each is None:
        return "", "", ""
    if each.error:
        return each.error, "", ""
    times = f"{each.images_per_s / loop.images_per_s:.1f}" if loop and each.images_per_s and loop.images_per_s else ""
    # Of curl, and of what the transfer manager starts, the worker sees nothing.
    alone = each.title not in (LIMIT, WITH_PEERS.format("processes"))
    return size.rate(each), times, f"{each.peak_mb:.0f}" if alone else ""


if __name__ == "__main__":
    main()
