"""Measure what the number of shards changes: the first batch from a bucket, requests, mixing, and shares of servers.

    python -m benchmarks.shard_counts [--images 4000] [--counts 1 2 5 10 20 50] [--rounds 3] [--json FILE]

The same drawn images (about 25 kB each) become a dataset with each number of training shards. The stand-in bucket, a
process of its own that answers after 30 ms, serves all of them. Each measurement is a process of its own with an empty
shard cache. It reads two epochs as a training does, with cache=off and a shuffle buffer of 1% of the images, and
measures:

- the bytes of the shards that the first batch needs, because it has images of all shards that are read at once;
- when the first batch is ready: the seconds since the start of the reader, and the bytes of the copies in the cache,
  which include shards that were fetched ahead;
- the requests of class B (one for each object that is read) and of class A (listings) until the end;
- the images per second of the second epoch, which reads the copies;
- how often two examples of a batch share a batch again in the second epoch, relative to chance;
- for 1 to 8 servers: the difference between the largest and the smallest share, in examples, and the bytes of all
  shards that a server has to fetch over the bytes of an equal share, for the server with the most.

Rounds alternate between the numbers of shards. The table shows medians. The files are in the temporary folder (TMPDIR),
with about 300 kB per image.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.images import small_photographs
from benchmarks.harness.machine import OtherLoad, logs, machine_line, say
from benchmarks.harness.rounds import ENVIRONMENT, ROOT, turned
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import Dataset, load
from pipeline.dataset.shard_cache import READ_AT_ONCE, ShardCache, remote_shards
from pipeline.dataset.shard_reader import ShardReader
from pipeline.rendezvous.servers import Server
from pipeline.storage import BucketPath
from pipeline.system.progress import log_to_stderr

LATENCY_MS = 30
BUCKET = "bench"
BATCH = 64
IMAGE_SIZE = 160
SHUFFLED_SHARE = 0.01
"""The shuffle buffer holds this share of the images."""
MAX_SERVERS = 8
CLASS_A, CLASS_B = ("list",), ("get", "download")
"""Operations of the stand-in, by the class in which Cloud Storage bills them."""
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Measured:
    """What one process saw of a dataset with this number of training shards."""

    shards: int
    shard_mb: float
    """Size of the largest shard."""
    needed_mb: float
    """The first batch needs these copies."""
    first_s: float
    first_mb: float
    """In the cache when the first batch was ready."""
    class_a: int
    class_b: int
    images_per_s: float
    meet_again: float
    difference: int
    """Between the largest and the smallest share of an epoch, in examples, for the number of servers with the most."""
    fetched: tuple[float, ...]
    """For 1, 2, 3 and more servers: the bytes that the server with the most fetches, over those of an equal share."""


def main() -> None:
    """Measure, and print two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000, help="number of images")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 5, 10, 20, 50], help="numbers of shards")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each number of shards")
    parser.add_argument("--json", type=Path, help="also write the figures of all rounds into a file")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--copies", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    open_unless_set()
    if options.read:
        print(json.dumps(read(BucketPath(BUCKET) / options.read, options.copies)))
        return
    with tempfile.TemporaryDirectory(prefix="tenfold-") as folder, OtherLoad() as others:
        measured = measure(Path(folder), options)
    lines = (*table(measured), "", *table_of_servers(measured))
    print(machine_line("tensorflow"), others.sentence(), "", *lines, sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in measured], indent=1))


def measure(folder: Path, options: argparse.Namespace) -> list[Measured]:
    """Return the measurements of all rounds."""
    log_to_stderr()
    source = small_photographs(folder / "images", options.images)
    datasets = {count: build_dataset(folder, source, count) for count in options.counts}
    measured = []
    for number in range(options.rounds):
        for count in turned(options.counts, number):
            say(f"round {number + 1}: {count} shards")
            measured.append(measure_once(folder, datasets[count]))
    return measured


def build_dataset(folder: Path, source: Path, count: int) -> str:
    """Build the dataset in the folder of the bucket, and return its path in the bucket."""
    from pipeline.stages.build import build

    bucket = folder / "buckets" / BUCKET
    values = {"source_uri": str(source), "workspace": str(bucket), "dataset_name": "images", "num_shards": count}
    return str(Path(build(settings_from(values))["dataset"]).relative_to(bucket))


def measure_once(folder: Path, dataset: str) -> Measured:
    """Let a new process read a dataset from a new stand-in bucket, with an empty cache."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        copies, requests = Path(place) / "copies", Path(place) / "requests.json"
        with bucket_of(folder / "buckets", requests) as url:
            command = [sys.executable, "-m", "benchmarks.shard_counts", "--read", dataset, "--copies", str(copies)]
            environment = {**ENVIRONMENT, "STORAGE_EMULATOR_HOST": url}
            with open(logs() / "shard_counts.log", "ab") as log:
                output = subprocess.run(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, check=True
                ).stdout
        counted = json.loads(requests.read_text())
    classes = {name: sum(counted.get(each, 0) for each in of) for name, of in (("a", CLASS_A), ("b", CLASS_B))}
    return Measured(class_a=classes["a"], class_b=classes["b"], **json.loads(output))


@contextmanager
def bucket_of(folder: Path, requests: Path) -> Iterator[str]:
    """Serve the folders in `folder` as buckets, and yield the address. Afterwards, `requests` holds their number."""
    command = [sys.executable, "-m", "standins.fake_gcs", "--folder", str(folder), "--latency-ms", str(LATENCY_MS)]
    with subprocess.Popen(
        [*command, "--requests", str(requests)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def read(folder: BucketPath, copies: Path) -> dict[str, Any]:
    """Read two epochs from a bucket. Return the fields of `Measured`, apart from the requests."""
    from pipeline.input import BatchOptions, training_batches
    from pipeline.input.order import order_of_training
    from pipeline.input.shares import order_of_need, share_of
    from pipeline.input.shuffle_quality import meet_again

    dataset = load(folder)
    split = dataset.splits["train"]
    options = BatchOptions(
        image_size=IMAGE_SIZE, batch_size=BATCH, shuffle_bytes=int(split.bytes * SHUFFLED_SHARE), cache="off"
    )
    share = share_of(split.shards, BATCH, Server())
    sizes = {shard.name: shard.bytes for shard in split.shards}
    first_shards = islice(order_of_need(share, options.seed, range(1, 2)), READ_AT_ONCE["train"])
    begin = time.perf_counter()
    cache = ShardCache(copies, 2 * split.bytes)
    reader = ShardReader(
        cache,
        shards=remote_shards(folder, dataset),
        order=order_of_need(share, options.seed, range(1, 3)),
        open_at_once=READ_AT_ONCE["train"],
        room_bytes=cache.limit_bytes,
        stopping=lambda: False,
    )
    with reader:
        batches = iter(training_batches(folder, options, epochs=2, reader=reader))
        next(batches)
        first_s = time.perf_counter() - begin
        # Copies that are being fetched, and locks, have names with a dot.
        first_bytes = sum(path.stat().st_size for path in copies.glob("*/[!.]*"))
        for _ in range(share.steps - 1):
            next(batches)
        second = time.perf_counter()
        for _ in range(share.steps):
            next(batches)
        second_s = time.perf_counter() - second
    numbers = order_of_training(folder, dataset, options, epochs=2)
    orders = numbers.batch(split.examples).as_numpy_iterator()
    return {
        "shards": len(split.shards),
        "shard_mb": max(sizes.values()) / MEGABYTE,
        "needed_mb": sum(sizes[name] for name in first_shards) / MEGABYTE,
        "first_s": first_s,
        "first_mb": first_bytes / MEGABYTE,
        "images_per_s": share.examples / second_s,
        "meet_again": meet_again(next(orders), next(orders), BATCH),
        **shares_of_servers(dataset),
    }


def shares_of_servers(dataset: Dataset) -> dict[str, Any]:
    """Return how equal the shares of 1 to 8 servers are, and what they fetch. A server needs at least one shard."""
    from pipeline.input.shares import share_of

    split = dataset.splits["train"]
    sizes = {shard.name: shard.bytes for shard in split.shards}
    differences, fetched = [], []
    for count in range(1, min(MAX_SERVERS, len(split.shards)) + 1):
        shares = [share_of(split.shards, BATCH, Server(index, count)) for index in range(count)]
        examples = [share.examples for share in shares]
        differences.append(max(examples) - min(examples))
        most = max(sum(sizes[name] for name in {piece.name for piece in share.pieces}) for share in shares)
        fetched.append(most * count / split.bytes)
    return {"difference": max(differences), "fetched": fetched}


def table(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of the table of one server."""
    head: tuple[str, ...] = ("shards", "MB each", "MB for the first batch", "MB in the cache then", "s until then")
    head += ("requests of class B", "class A")
    yield f"| {' | '.join((*head, 'images/s of the second epoch', 'batch-mates meet again, times chance'))} |"
    yield "|---" * (len(head) + 2) + "|"
    for rounds in by_count(measured):
        first = rounds[0]
        seconds, megabytes, rate = (
            median(getattr(each, name) for each in rounds) for name in ("first_s", "first_mb", "images_per_s")
        )
        yield (
            f"| {first.shards} | {first.shard_mb:.1f} | {first.needed_mb:.1f} | {megabytes:.1f} | {seconds:.2f} | "
            f"{first.class_b} | {first.class_a} | {rate:,.0f} | {first.meet_again:.1f} |"
        )


def table_of_servers(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of the table of several servers."""
    servers = range(1, MAX_SERVERS + 1)
    yield f"| shards | largest difference of shares, examples | {' | '.join(map(str, servers))} |"
    yield "|---" * (len(servers) + 2) + "|"
    for first, *_ in by_count(measured):
        cells = [f"{each:.2f}" for each in first.fetched]
        yield f"| {first.shards} | {first.difference} | {' | '.join(cells + ['-'] * (len(servers) - len(cells)))} |"


def by_count(measured: Sequence[Measured]) -> Iterator[list[Measured]]:
    """Yield the rounds of each number of shards."""
    for count in sorted({each.shards for each in measured}):
        yield [each for each in measured if each.shards == count]


if __name__ == "__main__":
    main()
