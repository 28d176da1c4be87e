"""Images into shards: this project beside what a user would pick instead, and beside the limits of the machine.

    make bench-sharding
    python -m benchmarks.sharding [--rounds N] [--quick] [--only PATTERN] [--images FOLDER] [--json FILE]

All are measured in alternating rounds in one run, with a warm page cache; what counts is the ratio. Tenfold syncs each
shard and each index to the disk, and this time counts.
The images and shards are stored in .bench/, and each other package has an environment there, which is made when it is
needed.
"""

import argparse
import json
import logging
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import images as pictures
from benchmarks.harness.environments import ENVIRONMENTS, missing_because
from benchmarks.harness.images import rows_of, split
from benchmarks.harness.machine import (
    CORES,
    HOME,
    OtherLoad,
    job_file,
    logs,
    machine_line,
    new_folder,
    say,
    versions_in,
)
from benchmarks.harness.rounds import ROOT, Contender, as_json, measure_whole, measure_work, rate_cells
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.plan.plan import load_plan
from pipeline.plan.range_plan import load_range
from pipeline.stages.extract import extract
from pipeline.stages.shard import plan_shards

PREPARED = 256
LINEAR = (1_000, 5_000, 20_000, 50_000)
HEADER, STRICT, RESIZE = ({"check": "header"}, {"check": "strict"}, {"prepare": "resize", "prepare_size": PREPARED})


@dataclass(frozen=True)
class Images:
    """A set of images, and the number of shards that they are written into."""

    name: str
    source: Path
    shards: int


PHOTOGRAPHS, LARGE_SHARDS, TINY = "photographs, 50 per shard", "photographs, 1,000 per shard", "tiny, 500 per shard"


@dataclass(frozen=True)
class Peer:
    """A writer of another package."""

    writer: str
    checks: str
    """What it checks of an image."""
    environment: str = "peers"
    parameters: Mapping[str, Any] = field(default_factory=dict)


NOTHING, SIZE, DECODES = "nothing", "size", "decodes"
ARRAY_RECORD, TFDS = "ArrayRecord", "TFDS"
IMAGENET_SCRIPT = "ImageNet script of the TensorFlow models, 4 threads"
PEERS = {
    ARRAY_RECORD: Peer("array_record", NOTHING, parameters={"options": "group_size:1"}),
    "ArrayRecord, uncompressed": Peer("array_record", NOTHING, parameters={"options": "group_size:1,uncompressed"}),
    "WebDataset": Peer("webdataset", NOTHING),
    "MosaicML Streaming (MDS)": Peer("mosaicml_streaming", NOTHING),
    "`tfrecord` (PyPI)": Peer("tfrecord_package", SIZE),
    TFDS: Peer("tfds", NOTHING),
    "LitData `optimize`": Peer("write_litdata", NOTHING, "litdata"),
    "Ray Data `write_tfrecords`": Peer("write_ray", NOTHING, "ray"),
    "img2dataset": Peer("write_img2dataset", DECODES, "img2dataset", {"processes": 1, "threads": 16}),
    "blog: decode for the size, keep the bytes": Peer("blog_keep_bytes", DECODES),
    "blog: decode and encode again": Peer("blog_encode_again", DECODES),
    IMAGENET_SCRIPT: Peer("imagenet_script", DECODES),
}
"""The compared writers by their names in the table."""
LIMIT = "limit: read + CRC32C + write in C, one thread"
LIMIT_ON_DISK = f"{LIMIT}, shards on the disk (fsync)"
OUR_PACKAGES = ("pillow", "google-crc32c")
OUR_CHECKS = {"check=header": "header, source", "check=strict": "decodes, source", "prepare": "decodes, source"}
"""What a title contains, and what it checks. The source is checked against the checksums of its list."""


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    logging.disable(logging.WARNING)  # advice on the size of shards, many times over
    try:
        results = sharding_results(options)
    finally:
        shutil.rmtree(HOME / "work", ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharding", description="Images into shards.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the work; whole processes get a third of it")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the images and two rounds, to see that all of it runs"
    )
    parser.add_argument("--images", type=Path, help="folder with photographs of your own; else they are drawn")
    parser.add_argument("--only", default="", metavar="PATTERN", help='of the table, such as "tenfold|limit"')
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def sharding_results(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all writers and the growth with the number of images, and print it."""
    scale, rounds = (10, 2) if options.quick else (1, options.rounds)
    whole_rounds = max(2, rounds // 3)
    library = compiled_limit()
    peers = {title: peer for title, peer in PEERS.items() if re.search(options.only, title)}
    reasons = {name: missing_because(name) for name in sorted({peer.environment for peer in peers.values()})}
    runnable = [title for title, peer in peers.items() if not reasons[peer.environment]]
    measured = {}
    with OtherLoad() as load:
        for images in image_sets(options.images, scale):
            say(f"{images.name}: {rounds} rounds of the work")
            others = other_contenders(images, library, runnable)
            contenders = [each for each in [*our_contenders(images), *others] if re.search(options.only, each.title)]
            measure_work(contenders, rounds, logs())
            if images.name == PHOTOGRAPHS:
                say(f"{images.name}: {whole_rounds} rounds of whole processes")
                measure_whole([each for each in contenders if not is_limit(each)], whole_rounds, logs())
            measured[images.name] = contenders
        say("the growth with the number of images")
        growth = linearity([count // scale for count in LINEAR])
    machine = [machine_line(*OUR_PACKAGES), *peer_versions(reasons), load.sentence()]
    missing = [
        f"- {title}: not measured, because its environment {reasons[peer.environment]}."
        for title, peer in peers.items()
        if reasons[peer.environment]
    ]
    print("\n".join([*machine, "", *table(measured), "", *missing, *ratios(measured), "", *growth_table(growth)]))
    writers = {name: as_json(contenders) for name, contenders in measured.items()}
    return {"machine": machine, "writers": writers, "not_measured": missing, "linearity": growth}


def peer_versions(environments: Iterable[str]) -> list[str]:
    """Return the versions of the compared packages, a line for each environment."""
    return [f"{name}: {versions_in(ENVIRONMENTS[name].python, *ENVIRONMENTS[name].packages)}" for name in environments]


def image_sets(given: Path | None, scale: int) -> Iterator[Images]:
    """Yield the sets of images. The photographs of the large shards are twice those of the small shards."""
    photographs, tiny = 1_000 // scale, 10_000 // scale
    drawn = HOME / "images"
    drawn.mkdir(parents=True, exist_ok=True)
    if given:
        shutil.rmtree(drawn / "given", ignore_errors=True)
        source = pictures.given_images(drawn / "given", photographs, pictures.images_below(given))
    else:
        source = pictures.photographs(drawn / f"photographs-{photographs}", photographs)
    yield Images(PHOTOGRAPHS, source, 20)
    twice = drawn / f"twice-{source.name}"
    shutil.rmtree(twice, ignore_errors=True)
    yield Images(LARGE_SHARDS, pictures.linked(twice, 2 * photographs, source), 2)
    yield Images(TINY, pictures.tiny_images(drawn / f"tiny-{tiny}", tiny), 20)


def our_contenders(images: Images) -> list[Contender]:
    """This project, with each set of settings and number of processes."""
    parameters: dict[str, dict[str, Any]] = {"check=header": HEADER, "check=strict": STRICT}
    if images.name != TINY:
        parameters[f"prepare=resize to {PREPARED}"] = RESIZE
    return [
        our_contender(f"**tenfold**, {what}{of_processes(processes)}", images, settings, processes)
        for what, settings in parameters.items()
        for processes in sorted({1, CORES})
    ]


def our_contender(title: str, images: Images, parameters: dict[str, Any], processes: int) -> Contender:
    """Plan the shards, so that as many tasks as there are processes write the training shards."""
    settings, snapshot = snapshot_of(images, parameters | {"shards_per_task": -(-images.shards // processes)})
    plan = load_plan(plan_shards(settings, snapshot))
    ranges = [Path(path) for path in plan.ranges[: -(-images.shards // settings.shards_per_task)]]
    return Contender(
        title=title,
        writer="tenfold",
        python=Path(sys.executable),
        jobs=[job_file({"range": str(path)}) for path in ranges],
        images=sum(load_range(path).examples for path in ranges),
        makes=[Path(plan.written), ranges[0].parent.parent / "results"],
    )


def snapshot_of(images: Images, parameters: dict[str, Any]) -> tuple[Any, Any]:
    """Settings and the snapshot of a source, in a workspace of its own."""
    # The same image may stand on both sides of the split here, where a few images are linked many times.
    minimal = {"num_shards": images.shards, "on_leak": "continue", "on_imbalance": "continue"}
    place = new_folder(images.source.name)
    settings = settings_from({"source_uri": str(images.source), "workspace": str(place)} | minimal | parameters).dated()
    return settings, extract(settings)


def other_contenders(images: Images, library: Path | None, peers: Iterable[str]) -> list[Contender]:
    """Return the limits of the machine and the other writers, on the same images."""
    rows = rows_of(images.source)
    here = Path(sys.executable)
    decoders = [("limit: the decoder alone", "decoder")]
    if images.name != TINY:
        decoders.append(("limit: decoder, resize and encoder alone", "decoder_and_encoder"))
    return [
        *(
            contender(title, writer, here, images, [rows], {"library": str(library)})
            for title, writer in ((LIMIT, "limit"), (LIMIT_ON_DISK, "limit_on_disk"))
            if library
        ),
        *(
            contender(f"{title}{of_processes(parts)}", writer, here, images, split(rows, parts), {"side": PREPARED})
            for title, writer in decoders
            for parts in sorted({1, CORES})
        ),
        *(
            contender(title, peer.writer, ENVIRONMENTS[peer.environment].python, images, [rows], peer.parameters)
            for title, peer in ((title, PEERS[title]) for title in peers)
        ),
    ]


def contender(
    title: str, writer: str, python: Path, images: Images, parts: list[list[Any]], more: Mapping[str, Any]
) -> Contender:
    """Return one of the others, in a process for each part of the images."""
    folders = [new_folder("out") for _ in parts]
    jobs = [
        {"root": str(images.source), "images": part, "folder": str(folder), "shards": images.shards, **more}
        for part, folder in zip(parts, folders, strict=True)
    ]
    return Contender(title, writer, python, [job_file(job) for job in jobs], sum(map(len, parts)), folders)


def of_processes(count: int) -> str:
    """Words for a number of processes."""
    return f", {count} processes" if count > 1 else ""


def is_limit(contender: Contender) -> bool:
    """Whether it is no writer that somebody could use."""
    return contender.title.startswith("limit")


def compiled_limit() -> Path | None:
    """Return the limit in C as a library; None if it cannot be compiled here."""
    library = HOME / "limit.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    crc = ["-march=armv8-a+crc"] if platform.machine() in ("aarch64", "arm64") else ["-msse4.2"]
    try:
        source = ROOT / "benchmarks" / "contenders" / "limit.c"
        subprocess.run(["cc", "-O3", *crc, "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        say(f"the limit in C is left out: cc does not compile it here ({error})")
        return None
    return library


def linearity(counts: Sequence[int]) -> list[dict[str, float]]:
    """Return a whole task of tiny images for each count: seconds, images a second and memory."""
    tiny = max((HOME / "images").glob("tiny-*"), key=lambda path: int(path.name.removeprefix("tiny-")))
    grown = []
    for count in counts:
        source = pictures.linked(HOME / "images" / f"linked-{count}", count, tiny)
        task = our_contender(f"{count} images", Images("linked", source, 20), HEADER, 1)
        measure_work([task], 3, logs())
        measure_whole([task], 3, logs())
        seconds = {"work_s": median(task.work_s), "whole_s": median(task.whole_s)}
        grown.append({"images": count, "peak_mb": task.peak_mb} | seconds)
    return grown


def table(measured: Mapping[str, list[Contender]]) -> list[str]:
    """Return all writers, a line each, the fastest on photographs first."""
    bases = {name: next((each for each in all_ if each.title == LIMIT), None) for name, all_ in measured.items()}
    columns = [f"{name}, images/s | of the limit" for name in measured]
    lines = [
        f"| writer | checks | {' | '.join(columns)} | whole process, s | memory, MB |",
        f"|---|---|{'---|---|' * len(columns)}---|---|",
    ]
    for each in sorted(measured[PHOTOGRAPHS], key=lambda each: each.images_per_s or 0, reverse=True):
        sets = [(named(contenders, each.title), bases[name]) for name, contenders in measured.items()]
        cells = [cell for contender, base in sets for cell in rate_cells(contender, base)]
        whole_s = f"{median(each.whole_s):.2f}" if each.whole_s else ""
        checks = checks_of(each.title)
        lines.append(f"| {each.title} | {checks} | {' | '.join(cells)} | {whole_s} | {each.peak_mb:.0f} |")
    return lines


def named(contenders: Sequence[Contender], title: str) -> Contender | None:
    """Return the contender of this title; None if there is none."""
    return next((each for each in contenders if each.title == title), None)


def checks_of(title: str) -> str:
    """Return what a writer checks of an image, for the table."""
    if title in PEERS:
        return PEERS[title].checks
    return next((checks for part, checks in OUR_CHECKS.items() if part in title), "")


def ratios(measured: Mapping[str, list[Contender]]) -> list[str]:
    """Return what was promised, and what was seen."""
    lines = [f"| ratio | promised | {' | '.join(measured)} |", f"|---|---|{'---|' * len(measured)}"]
    header, strict = "**tenfold**, check=header", "**tenfold**, check=strict"
    resize, both = f"**tenfold**, prepare=resize to {PREPARED}", of_processes(CORES)
    promises = [
        ("check=header to the limit in C", header, LIMIT, "0.75 photographs, 0.4 tiny", "work_s"),
        ("check=header to the limit in C with fsync", header, LIMIT_ON_DISK, "0.6", "work_s"),
        ("check=header to ArrayRecord", header, ARRAY_RECORD, "1.5", "work_s"),
        ("check=header to ArrayRecord, uncompressed", header, f"{ARRAY_RECORD}, uncompressed", "1", "work_s"),
        ("check=header to TFDS", header, TFDS, "4.5", "work_s"),
        ("check=header to the ImageNet script", header, IMAGENET_SCRIPT, "20", "work_s"),
        ("the same, whole process", header, IMAGENET_SCRIPT, "60", "whole_s"),
        (f"check=header, {CORES} processes to 1", header + both, header, "1.8 with 2", "work_s"),
        (f"check=strict to the decoder{both}", strict + both, "limit: the decoder alone" + both, "0.9", "work_s"),
        (
            f"prepare=resize to decoder, resize and encoder{both}",
            resize + both,
            "limit: decoder, resize and encoder alone" + both,
            "0.8",
            "work_s",
        ),
    ]
    for promise, ours, theirs, promised, what in promises:
        seen = [ratio(contenders, ours, theirs, what) for contenders in measured.values()]
        lines.append(f"| {promise} | {promised} | {' | '.join(seen)} |")
    return lines


def ratio(contenders: Sequence[Contender], ours: str, theirs: str, what: str) -> str:
    """Return how many times as fast, by the medians."""
    by_title = {each.title: each for each in contenders}
    ends = [by_title[title] for title in (ours, theirs) if title in by_title]
    if len(ends) < 2 or not all(getattr(end, what) for end in ends):
        return ""
    (fast, fast_images), (slow, slow_images) = ((median(getattr(end, what)), end.images) for end in ends)
    return f"{fast_images / fast / (slow_images / slow):.2f}"


def growth_table(growth: Sequence[dict[str, float]]) -> list[str]:
    """Growth with the number of images."""
    lines = [
        "| tiny images, check=header | work, s | images/s | whole process, s | memory, MB |",
        "|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['images']:,} | {row['work_s']:.3f} | {row['images'] / row['work_s']:,.0f} "
        f"| {row['whole_s']:.2f} | {row['peak_mb']:.0f} |"
        for row in growth
    ]


if __name__ == "__main__":
    main()
