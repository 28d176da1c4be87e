"""Images out of storage as batches: this project beside what a user would pick instead, and beside the limits.

    make bench-input
    python -m benchmarks.input [--rounds N] [--quick] [--only PATTERN] [--json FILE]
                               [--images FOLDER] [--sizes 224,299]
                               [--rates] [--first-batch] [--wait] [--memory]

All are measured in alternating rounds in one run, on all cores, with a warm page cache and without a GPU; what counts
is the ratio. A round is some epochs, of three seconds and more. The images and shards are stored in
.bench/, and each other package has an environment there, which is made when it is needed.
"""

import argparse
import hashlib
import logging
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image, ImageStat

from benchmarks.contenders.pipelines import (
    ALL,
    ARTICLE_TFRECORD,
    BEST_CROP,
    FILES,
    IN_MEMORY,
    KEEP,
    LIMITS,
    OURS,
    RAW_FILES,
    WRITTEN,
    Pipeline,
)
from benchmarks.contenders.readers import STEPS
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
    measure_sections,
    new_folder,
    say,
    versions_in,
)
from benchmarks.harness.rounds import Contender, as_json, measure_whole, measure_work, rate_cells, sound, whole
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.stages.build import build

OUR_PACKAGES = ("tensorflow", "numpy")
SIZES = {224: 256, 299: 320}
"""Sides of the batches, and the shorter side of images that are prepared for them."""
SHARDS = 20
BATCH = 64
WAIT_BATCH, STEP_S = 16, 0.02
EPOCH = 16 * BATCH
"""Photographs of an epoch. With many times as many, all readers at once need more than 24 GB of memory."""
FEW, EPOCHS = 100, (5, 50)
MAX_DIFFERENCE = 1.0
"""Of the mean pixel of a reader and of Pillow, from 0 to 255. Decoders of JPEG and filters differ by less."""


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    logging.disable(logging.WARNING)  # advice on the size of shards, many times over
    machine = [machine_line(*OUR_PACKAGES), images_line(photographs(options), options), *rival_versions(options)]
    measure_sections(machine, chosen_sections(options), options)


def rival_versions(options: argparse.Namespace) -> list[str]:
    """Return the versions of the compared packages, a line for each environment."""
    names = sorted({each.environment for each in selected(ALL, options)} - {""})
    return [f"{name}: {versions_in(ENVIRONMENTS[name].python, *ENVIRONMENTS[name].packages)}" for name in names]


def images_line(source: Path, options: argparse.Namespace) -> str:
    """Return the number, the mean size in bytes and the median size in pixels of the images."""
    paths = [source / path for path, _, _ in rows_of(source)]
    mean_kb = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    sizes = [Image.open(path).size for path in paths]
    width, height = (int(median(side)) for side in zip(*sizes, strict=True))
    kind = f"photographs of {options.images}" if options.images else "drawn photographs"
    return f"{len(paths):,} {kind}: {mean_kb:.0f} KB on average, {width} x {height} pixels at the median."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input", description="Images out of storage as batches.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few images and two rounds, to see that all of it runs")
    parser.add_argument(
        "--count",
        type=int,
        default=EPOCH,
        help=f"photographs of an epoch, rounded down to whole batches of {BATCH} (default: %(default)s)",
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help='of the table, such as "tenfold|limit"')
    parser.add_argument("--images", type=Path, help="folder with JPEG photographs of your own; else they are drawn")
    parser.add_argument("--sizes", default="224", metavar="LIST", help="sides of the batches: 224, 299 or 224,299")
    parser.add_argument("--rates", action="store_true", help="measure images a second")
    parser.add_argument("--first-batch", action="store_true", help="measure the seconds until the first batch")
    parser.add_argument("--wait", action="store_true", help="measure the share of time that a training waits")
    parser.add_argument("--memory", action="store_true", help="measure memory after few and after many epochs")
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def chosen_sections(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is measured: the requested parts, or all of them."""
    sections = {
        "rates": rate_results,
        "first_batch": first_batch_results,
        "wait": wait_results,
        "memory": memory_results,
    }
    return {name: section for name, section in sections.items() if getattr(options, name)} or sections


def rounds_of(options: argparse.Namespace) -> int:
    """Return how often each is measured."""
    return 2 if options.quick else options.rounds


def photographs(options: argparse.Namespace) -> Path:
    """Return the source of all: photographs in ten classes, as many as requested, or as there are.

    They fill whole batches, because this project would fill up the last one with images that do not count.
    """
    count = FEW if options.quick else options.count
    if not options.images:
        return drawn(_of_whole_batches(count))
    # No image twice: the check of the pixels counts them. One is for validation.
    found = pictures.different(pictures.images_below(options.images))
    count = _of_whole_batches(min(count, len(found) - 1))
    named = hashlib.sha256("".join(f"{path}{path.stat().st_size}" for path in found).encode()).hexdigest()[:8]
    (HOME / "images").mkdir(parents=True, exist_ok=True)
    return pictures.given_images(HOME / "images" / f"given-{named}-{count}", count, found)


def _of_whole_batches(count: int) -> int:
    if count < BATCH:
        raise SystemExit(f"{count} photographs are too few: a batch has {BATCH}, and --images needs one more")
    return count - count % BATCH


def drawn(count: int) -> Path:
    """Return a folder with this many photographs, drawn in the same way as in `benchmarks.sharding`."""
    folder = HOME / "images" / f"photographs-{count}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return pictures.photographs(folder, count)


def selected(pipelines: Iterable[Pipeline], options: argparse.Namespace) -> list[Pipeline]:
    """Return the pipelines that `--only` selects. If one cannot run here, the report gives the reason."""
    return [each for each in pipelines if re.search(options.only, each.title)]


# --- what is read -----------------------------------------------------------------------------------------------------


def folder_of(data: str, source: Path, side: int, shards: int = SHARDS) -> Path:
    """Return the folder of what a pipeline reads, made once."""
    if data == FILES:
        return source / "train"
    return written(data, source) if data in WRITTEN else published(source, data, side, shards)


def published(source: Path, prepare: str, side: int, shards: int) -> Path:
    """This project's dataset of a source."""
    prepared = {} if prepare == KEEP else {"prepare": prepare, "prepare_size": side}
    parameters = {
        "source_uri": str(source),
        "workspace": str(HOME / "input"),
        "dataset_name": "-".join([source.name, *map(str, prepared.values()), str(shards)]),
        "num_shards": shards,
        "check": "header",
    }
    return Path(build(settings_from(parameters | prepared))["dataset"])


def written(writer: str, source: Path) -> Path:
    """Return the same images as a writer of another package leaves them, whole or absent."""
    folder = HOME / "input" / f"{source.name}-{writer}"
    if not folder.exists():
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        name, environment, parameters = WRITTEN[writer]
        job: dict[str, Any] = {
            "root": str(source),
            "images": rows_of(source),
            "folder": str(part),
            "shards": SHARDS,
        } | parameters
        task = Contender(writer, name, ENVIRONMENTS[environment].python, [job_file(job)], len(job["images"]), [])
        whole(task, logs() / f"{writer}.log")
        if task.error:
            raise SystemExit(f"{writer} did not write its data: {task.error}; see {logs() / f'{writer}.log'}")
        part.rename(folder)
    return folder


def contender(pipeline: Pipeline, source: Path, folder: Path, *, size: int, **more: Any) -> Contender:
    """Return a pipeline on its data, in the processes that it takes: one, or one a core of a limit."""
    count = len(rows_of(source))
    # A round has as many images with long epochs as with short ones.
    epochs = max(1, round(pipeline.epochs * 1_000 / max(count, 1_000)))
    job = {"folder": str(folder), "image_size": size, "batch_size": BATCH, "images": count, "epochs": epochs}
    job |= {
        "source": str(source),
        "measure": "whole_epochs",
        "cache": "off",
        "pixels": "encoded",
        "pixel_range": pipeline.pixel_range,
        "own_folder": str(new_folder("own")),
    }
    job |= {**pipeline.parameters, **more}
    jobs = [job | part for part in parts_of(folder)] if pipeline in LIMITS else [job]
    python = ENVIRONMENTS[pipeline.environment].python if pipeline.environment else Path(sys.executable)
    images = count * epochs
    return Contender(pipeline.title, pipeline.reader, python, list(map(job_file, jobs)), images, [])


def parts_of(folder: Path) -> list[dict[str, Any]]:
    """Return the training shards of a dataset dealt out to the cores."""
    dealt = split(list(load(folder).splits["train"].shards), CORES)
    return [{"shards": [each.name for each in part], "images": sum(each.examples for each in part)} for part in dealt]


# --- images a second --------------------------------------------------------------------------------------------------


def rate_results(options: argparse.Namespace) -> dict[str, Any]:
    """Images a second of all, at each size, after a check that none of them skips work."""
    source = photographs(options)
    sizes = {size: SIZES[size] for size in map(int, options.sizes.split(","))}
    pipelines = selected(ALL, options)
    reasons = {name: missing_because(name) for name in {each.environment for each in pipelines} - {""}}
    runnable = [each for each in pipelines if not reasons.get(each.environment)]
    measured: dict[int, dict[str, Contender]] = {}
    checks: dict[str, dict[str, Any]] = {}
    with OtherLoad() as load:
        for size, side in sizes.items():
            folders = {data: folder_of(data, source, side) for data in {each.data for each in runnable}}
            if not checks:
                say(f"the pixels of {len(runnable)} readers")
                checks = pixel_checks(runnable, source, folders, size)
            contenders = [contender(each, source, folders[each.data], size=size) for each in runnable]
            for each in contenders:
                each.error = checks.get(each.title, {}).get("error", "")
            say(f"{size} px: {rounds_of(options)} rounds of {len(contenders)}")
            measure_work(sound(contenders), rounds_of(options), logs())
            measured[size] = {each.title: each for each in contenders}
    missing = [
        f"- {each.title}: not measured, because its environment {reasons[each.environment]}."
        for each in pipelines
        if reasons.get(each.environment)
    ]
    equal = [each for each in runnable if each.equal_work]
    tables = [rate_table(runnable, measured), [EQUAL_WORK], rate_table(equal, measured), check_table(checks)]
    print("\n".join(line for table in tables for line in ["", *table]), flush=True)
    print("\n".join(["", *WORDS, *missing, load.sentence()]), flush=True)
    figures: dict[str, Any] = {str(size): as_json(list(each.values())) for size, each in measured.items()}
    remarks = {"equal_work": [each.title for each in equal], "pixels": checks, "other_load": load.sentence()}
    return figures | remarks


def rate_table(pipelines: Sequence[Pipeline], measured: Mapping[int, Mapping[str, Contender]]) -> list[str]:
    """Return all pipelines, a line each, the fastest of the first size first."""
    columns = [f"{size} px, images/s | to raw files | of the limit" for size in measured]
    lines = [
        f"| pipeline | {' | '.join(columns)} | crop | antialiased | type |",
        f"|---|{'---|' * 3 * len(columns)}---|---|---|",
    ]
    first = next(iter(measured.values()))
    for each in sorted(pipelines, key=lambda each: first[each.title].images_per_s or 0, reverse=True):
        cells = [cell for contenders in measured.values() for cell in cells_of(each, contenders)]
        flip = ", flip" if each.flip and each not in LIMITS else ""
        lines.append(f"| {each.title} | {' | '.join(cells)} | {each.crop}{flip} | {each.antialiased} | {each.dtype} |")
    return lines


EQUAL_WORK = (
    "At equal work: a random-resized crop of 8 to 100% of the area of the original JPEG, a flip, an antialiased "
    "resize, and uint8."
)
WORDS = (
    "Pillow's resize always antialiases, TensorFlow's only on request. A random crop of a prepared image is a "
    "different augmentation than a random-resized crop, and less work. So is resizing the whole image. float32 takes "
    "four times as many bytes as uint8. SPDL antialiases with the bilinear filter of FFmpeg.",
)


def cells_of(pipeline: Pipeline, contenders: Mapping[str, Contender]) -> tuple[str, str, str]:
    """Rate with its spread, how many times that of raw files, and the share of the limit."""
    each = contenders[pipeline.title]
    rate, share = rate_cells(each, contenders.get(pipeline.limit))
    return rate, times(each, contenders.get(RAW_FILES.title)), share


def times(each: Contender, base: Contender | None) -> str:
    """Return how many times as fast."""
    return f"{each.images_per_s / base.images_per_s:.1f}" if each.images_per_s and base and base.images_per_s else ""


# --- no reader skips work ---------------------------------------------------------------------------------------------


def pixel_checks(
    pipelines: Sequence[Pipeline], source: Path, folders: Mapping[str, Path], size: int
) -> dict[str, dict[str, Any]]:
    """Return what each pipeline gave in an epoch of whole images, and what is wrong with it, if anything."""
    checks = {}
    rows = rows_of(source)
    expected = expected_pixels(source)
    for each in pipelines:
        if each in LIMITS:
            continue
        job = contender(each, source, folders[each.data], size=size, measure="pixels", crop="whole", epochs=1)
        whole(job, logs() / f"{each.reader}.log")
        seen = job.seen[0] if job.seen else {}
        error = job.error or pixel_error(
            seen, expected, rows, MAX_DIFFERENCE if each.whole_mean else CROPPED_DIFFERENCE
        )
        checks[each.title] = seen | {"expected_mean": expected, "error": error}
    return checks


CROPPED_DIFFERENCE = 4.0
"""For a reader that cannot show the whole image: its largest square in the middle has other pixels."""


def expected_pixels(source: Path) -> float:
    """Return the mean pixel of all images, each weighing the same, by Pillow."""
    means = [ImageStat.Stat(Image.open(source / path).convert("RGB")).mean for path, _, _ in rows_of(source)]
    return sum(map(sum, means)) / len(means) / 3


def pixel_error(seen: Mapping[str, Any], expected: float, rows: Sequence[Any], tolerance: float) -> str:
    """Return what is wrong with an epoch: images left out or repeated, other labels, or other pixels."""
    if seen["images"] != len(rows):
        return f"gave {seen['images']} of {len(rows)} images"
    if seen["distinct"] != len(rows):
        return f"gave {seen['distinct']} different images of {len(rows)}"
    if seen["labels"] != sorted(Counter(label for _, label, _ in rows).values()):
        return f"gave other labels: {seen['labels']} of each class"
    difference = seen["mean"] - expected
    return f"its mean pixel differs by {difference:+.2f} from Pillow's" if abs(difference) > tolerance else ""


def check_table(checks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the mean pixel of an epoch of each reader."""
    lines = ["| whole images | images | mean pixel | difference from Pillow | error |", "|---|---|---|---|---|"]
    for title, each in checks.items():
        cells = (
            (f"{each['images']:,}", f"{each['mean']:.2f}", f"{each['mean'] - each['expected_mean']:+.2f}")
            if "mean" in each
            else ("", "", "")
        )
        lines.append(f"| {title} | {' | '.join(cells)} | {each['error']} |")
    return lines


# --- the first batch --------------------------------------------------------------------------------------------------


def first_batch_results(options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds to the first batch, for few and for many shards, each in new processes."""
    source, measured = photographs(options), {}
    pipelines = selected([OURS[0], ARTICLE_TFRECORD, BEST_CROP], options)
    for shards in (10, len(rows_of(source))):
        folder = published(source, KEEP, 0, shards)
        contenders = [contender(each, source, folder, size=224, measure="first_batch") for each in pipelines]
        say(f"the first batch of {shards} shards: {rounds_of(options)} rounds of {len(contenders)}")
        measure_whole(contenders, rounds_of(options), logs())
        measured[f"{shards:,} shards"] = contenders
    print("\n".join(["", *seen_table("first batch, s", "{:.2f}", measured)]), flush=True)
    return {name: as_json(contenders) for name, contenders in measured.items()}


# --- the wait of a training -------------------------------------------------------------------------------------------


def wait_results(options: argparse.Namespace) -> dict[str, Any]:
    """Share of its time that a training waits, whose steps take a while and nothing of this machine."""
    source = photographs(options)
    parameters = {"measure": "waiting", "batch_size": WAIT_BATCH, "step_s": STEP_S}
    parameters["epochs"] = -(-(STEPS + 1) * WAIT_BATCH // len(rows_of(source))) + 1
    contenders = [
        contender(each, source, folder_of(each.data, source, SIZES[224]), size=224, **parameters)
        for each in selected([*OURS, RAW_FILES, ARTICLE_TFRECORD, BEST_CROP], options)
    ]
    say(f"the wait of a training: {rounds_of(options)} rounds of {len(contenders)}")
    measure_work(contenders, rounds_of(options), logs())
    what = f"of its time, steps of {STEP_S * 1000:.0f} ms with {WAIT_BATCH} images of 224 px, a training waits"
    print("\n".join(["", *seen_table(what, "{:.1%}", {"share": contenders})]), flush=True)
    return {"share": as_json(contenders)}


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_results(options: argparse.Namespace) -> dict[str, Any]:
    """Resident memory after few and after many epochs of a small set, each in a new process."""
    source, epochs = drawn(FEW), [EPOCHS[0], 2 * EPOCHS[0] if options.quick else EPOCHS[1]]
    parameters = {"measure": "memory", "after_epochs": epochs}
    in_memory = replace(IN_MEMORY, reader="read_tenfold")
    contenders = [
        contender(each, source, folder_of(each.data, source, SIZES[224]), size=224, **parameters)
        for each in selected([*OURS, in_memory, BEST_CROP], options)
    ]
    say(f"memory: {len(contenders)} processes")
    measure_whole(contenders, 1, logs())
    lines = [
        f"| {FEW} photographs, MB | after {epochs[0]} epochs | after {epochs[1]} epochs | growth |",
        "|---|---|---|---|",
        *(memory_line(each) for each in contenders),
    ]
    print("\n".join(["", *lines]), flush=True)
    return {"contenders": as_json(contenders)}


def memory_line(each: Contender) -> str:
    """Return one pipeline in the table of memory."""
    if each.error:
        return f"| {each.title} | {each.error} | | |"
    early, late = each.seen[0]
    return f"| {each.title} | {early:.0f} | {late:.0f} | {late - early:+.0f} |"


def seen_table(what: str, form: str, measured: Mapping[str, Sequence[Contender]]) -> list[str]:
    """Table of what pipelines measured of themselves: the median, the lowest and the highest value of the rounds."""
    return [
        f"| {what} | {' | '.join(measured)} |",
        f"|---|{'---|' * len(measured)}",
        *(
            f"| {row[0].title} | {' | '.join(seen_cell(each, form) for each in row)} |"
            for row in zip(*measured.values(), strict=True)
        ),
    ]


def seen_cell(each: Contender, form: str) -> str:
    """Format the median, the lowest and the highest value of the rounds."""
    if each.error:
        return each.error
    middle, lowest, highest = (form.format(of(each.seen)) for of in (median, min, max))
    return f"{middle} ({lowest} to {highest})"


if __name__ == "__main__":
    main()
