"""Images out of storage as batches: this project beside what a user would pick instead, and beside the limits.

    make bench-input
    python -m benchmarks.input [--rounds N] [--quick] [--only PATTERN] [--json FILE]
                               [--rates] [--first-batch] [--wait] [--memory]

All are measured in alternating rounds in one run, on all cores, with a warm page cache and without a GPU; what counts
is the ratio. A round is some epochs, of three seconds and more. What was drawn and written lies in .bench/, the other
packages in .bench/env (`make bench-env`).
"""

import argparse
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders.readers import STEPS
from benchmarks.harness import images as pictures
from benchmarks.harness.images import rows_of, split
from benchmarks.harness.machine import (
    CORES,
    HOME,
    PEERS_PYTHON,
    has_peers,
    job_file,
    logs,
    machine_line,
    measure_sections,
    new_folder,
    say,
    versions_in,
)
from benchmarks.harness.rounds import Contender, as_json, measure_whole, measure_work, rate_cells, whole
from pipeline.allowed import open_unless_set
from pipeline.build import build
from pipeline.config import settings_from
from pipeline.dataset.manifest import load

OUR_PACKAGES = ("tensorflow", "numpy")
PACKAGES = (
    "tensorflow-datasets",
    "torch",
    "webdataset",
    "mosaicml-streaming",
    "grain",
    "array-record",
    "pillow",
    "simplejpeg",
)
PREPARED = {224: 256, 299: 320}
"""Sides of the batches, and the shorter side of images that are prepared for them."""
SHARDS = 20
BATCH = 64
WAIT_BATCH, STEP_S = 16, 0.02
FEW, EPOCHS = 100, (5, 50)

FILES, KEEP, RESIZE, RAW = "files", "keep", "resize", "raw"
WRITTEN = {"webdataset": {}, "mosaicml_streaming": {}, "array_record": {"options": "group_size:1,uncompressed"}}
"""Options of the writers in `benchmarks.contenders.writers`, by name. Pipelines of other packages read their files."""


@dataclass(frozen=True)
class Pipeline:
    """An input pipeline of `benchmarks.contenders.readers`, what it reads, and what it is measured by."""

    title: str
    reader: str
    data: str
    does: str
    """Words for the table: what an image goes through."""
    limit: str = ""
    """Title of what nothing that does so can be faster than."""
    peer: bool = False
    """Whether it runs in the environment of the other packages."""
    told: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 4
    """In a round: as many as take about three seconds, or seven where the pipeline starts again, in some tenths."""


DECODING, DECODING_PREPARED, COPYING = (
    "limit: libjpeg-turbo alone",
    "limit: libjpeg-turbo alone, prepared JPEG",
    "limit: memory copy of pixels",
)
CROP, SMOOTH_CROP = "random-resized crop, flip, uint8", "random-resized crop, antialiased, flip, uint8"
PLAIN_CROP = "random crop of the prepared image, flip, uint8"
MIDDLE = "the middle of the prepared image, uint8"
OURS = (
    Pipeline(
        "**tenfold**, shards as they are",
        "read_tenfold",
        KEEP,
        CROP,
        DECODING,
        told={"crop": "random_resized", "min_crop_area": 0.08},
        epochs=10,
    ),
    Pipeline("**tenfold**, prepared JPEG", "read_tenfold", RESIZE, PLAIN_CROP, DECODING_PREPARED, epochs=25),
    Pipeline("**tenfold**, prepared pixels", "read_tenfold", RAW, PLAIN_CROP, COPYING, epochs=40),
)
IN_MEMORY = Pipeline(
    "**tenfold**, cached in memory",
    "read_tenfold_cached",
    RESIZE,
    "decoded once; random crop, flip, uint8",
    COPYING,
    told={"cache": "memory"},
    epochs=60,
)
RAW_FILES = Pipeline(
    "article: raw JPEG files", "read_raw_files", FILES, "whole image, not antialiased, float32", DECODING, epochs=2
)
COMPARED_FILES = (
    Pipeline(
        "raw files in turn", "read_files_in_turn", KEEP, "whole image, random crop, flip, uint8", DECODING, epochs=2
    ),
    Pipeline(
        "raw files in parallel", "read_files_in_parallel", KEEP, "whole image, random crop, flip, uint8", DECODING
    ),
)
"""As `tenfold compare-inputs` reads them."""
ARTICLE_TFRECORD = Pipeline("article: TFRecord", "read_article_tfrecord", KEEP, RAW_FILES.does, DECODING)
BEST_CROP = Pipeline("best plain tf.data, random-resized crop", "read_tfdata_crop", KEEP, CROP, DECODING)
PLAIN_TENSORFLOW = (
    RAW_FILES,
    ARTICLE_TFRECORD,
    Pipeline(
        "keras_imagenet", "read_keras_imagenet", KEEP, "inception-style crop, not antialiased, flip, float32", DECODING
    ),
    Pipeline(
        "best plain tf.data, whole image", "read_tfdata_whole", KEEP, "whole image, not antialiased, uint8", DECODING
    ),
    BEST_CROP,
)
TFDS = Pipeline("TFDS", "read_tfds", KEEP, "whole image, not antialiased, uint8", DECODING, peer=True)
LOADERS = tuple(
    Pipeline(f"{name}, {words}", reader, data, SMOOTH_CROP, DECODING, True, {"decoder": decoder}, epochs=2)
    for name, reader, data in (
        ("PyTorch DataLoader, 2 workers", "read_pytorch", FILES),
        ("WebDataset, 2 workers", "read_webdataset", "webdataset"),
        ("MosaicML Streaming, 2 workers", "read_mosaicml", "mosaicml_streaming"),
        ("grain, 2 threads", "read_grain", "array_record"),
    )
    for decoder, words in (("pillow", "Pillow"), ("simplejpeg", "simplejpeg"))
)
LIMITS = (
    Pipeline(DECODING, "limit_of_decoding", KEEP, "decoded and thrown away", DECODING, peer=True),
    Pipeline(
        DECODING_PREPARED, "limit_of_decoding", RESIZE, "decoded and thrown away", DECODING_PREPARED, True, epochs=10
    ),
    Pipeline(COPYING, "limit_of_copying", RAW, MIDDLE, COPYING, told={"pixels": "raw"}, epochs=50),
)
ALL = (*OURS, IN_MEMORY, *COMPARED_FILES, *PLAIN_TENSORFLOW, TFDS, *LOADERS, *LIMITS)


def main() -> None:
    """Measure, and print Markdown."""
    options = parse(sys.argv[1:])
    open_unless_set()
    logging.disable(logging.WARNING)  # advice on the size of shards, many times over
    machine = [machine_line(*OUR_PACKAGES), versions_in(PEERS_PYTHON, *PACKAGES)]
    measure_sections(machine, chosen_sections(options), options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input", description="Images out of storage as batches.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the images and two rounds, to see that all of it runs"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help='of the table, such as "tenfold|limit"')
    parser.add_argument("--rates", action="store_true", help="measure images a second")
    parser.add_argument("--first-batch", action="store_true", help="measure the seconds until the first batch")
    parser.add_argument("--wait", action="store_true", help="measure the share of time that a training waits")
    parser.add_argument("--memory", action="store_true", help="measure memory after few and after many epochs")
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args(arguments)


def chosen_sections(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is measured: what was asked for, or all of it."""
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
    """Return the source of all: 1,000 photographs in ten classes."""
    return drawn(FEW if options.quick else 1_000)


def drawn(count: int) -> Path:
    """Return a source of so many photographs, the same as `benchmarks.sharding` takes."""
    folder = HOME / "images" / f"photographs-{count}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return pictures.photographs(folder, count)


def selected(pipelines: Iterable[Pipeline], options: argparse.Namespace) -> list[Pipeline]:
    """Those that were asked for and can run here."""
    return [each for each in pipelines if re.search(options.only, each.title) and (has_peers() or not each.peer)]


# --- what is read -----------------------------------------------------------------------------------------------------


def folder_of(data: str, source: Path, side: int, shards: int = SHARDS) -> Path:
    """Return the folder of what a pipeline reads, made once."""
    if data == FILES:
        return source / "train"
    return written(data, source) if data in WRITTEN else published(source, data, side, shards)


def published(source: Path, prepare: str, side: int, shards: int) -> Path:
    """This project's dataset of a source."""
    prepared = {} if prepare == KEEP else {"prepare": prepare, "prepare_size": side}
    told = {
        "source_uri": str(source),
        "workspace": str(HOME / "input"),
        "dataset_name": "-".join([source.name, *map(str, prepared.values()), str(shards)]),
        "num_shards": shards,
        "check": "header",
    }
    return Path(build(settings_from(told | prepared))["dataset"])


def written(writer: str, source: Path) -> Path:
    """Return the same images as a writer of another package leaves them, whole or absent."""
    folder = HOME / "input" / f"{source.name}-{writer}"
    if not folder.exists():
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        job: dict[str, Any] = {
            "root": str(source),
            "images": rows_of(source),
            "folder": str(part),
            "shards": SHARDS,
        } | WRITTEN[writer]
        task = Contender(writer, writer, PEERS_PYTHON, [job_file(job)], len(job["images"]), [])
        whole(task, logs() / f"{writer}.log")
        if task.error:
            raise SystemExit(f"{writer} did not write its data: {task.error}; see {logs() / f'{writer}.log'}")
        part.rename(folder)
    return folder


def contender(pipeline: Pipeline, source: Path, folder: Path, *, size: int, **more: Any) -> Contender:
    """Return a pipeline on its data, in the processes that it takes: one, or one a core of a limit."""
    count = len(rows_of(source))
    job = {"folder": str(folder), "image_size": size, "batch_size": BATCH, "images": count, "epochs": pipeline.epochs}
    job |= {
        "source": str(source),
        "measure": "whole_epochs",
        "cache": "off",
        "pixels": "encoded",
        "own_folder": str(new_folder("own")),
    }
    job |= {**pipeline.told, **more}
    jobs = [job | part for part in parts_of(folder)] if pipeline in LIMITS else [job]
    python = PEERS_PYTHON if pipeline.peer else Path(sys.executable)
    images = count * pipeline.epochs
    return Contender(pipeline.title, pipeline.reader, python, list(map(job_file, jobs)), images, [])


def parts_of(folder: Path) -> list[dict[str, Any]]:
    """Return the training shards of a dataset dealt out to the cores."""
    dealt = split(list(load(folder).splits["train"].shards), CORES)
    return [{"shards": [each.name for each in part], "images": sum(each.examples for each in part)} for part in dealt]


# --- images a second --------------------------------------------------------------------------------------------------


def rate_results(options: argparse.Namespace) -> dict[str, Any]:
    """Images a second of all, at each size."""
    source, measured = photographs(options), {}
    pipelines = selected(ALL, options)
    for size, side in PREPARED.items():
        folders = {data: folder_of(data, source, side) for data in {each.data for each in pipelines}}
        contenders = [contender(each, source, folders[each.data], size=size) for each in pipelines]
        say(f"{size} px: {rounds_of(options)} rounds of {len(contenders)}")
        measure_work(contenders, rounds_of(options), logs())
        measured[size] = {each.title: each for each in contenders}
    print("\n".join(["", *rate_table(pipelines, measured)]), flush=True)
    return {str(size): as_json(list(contenders.values())) for size, contenders in measured.items()}


def rate_table(pipelines: Sequence[Pipeline], measured: Mapping[int, Mapping[str, Contender]]) -> list[str]:
    """Return all pipelines, a line each, the fastest of the first size first."""
    columns = [f"{size} px, images/s | to raw files | of the limit" for size in measured]
    lines = [
        f"| pipeline | {' | '.join(columns)} | what an image goes through |",
        f"|---|{'---|' * 3 * len(columns)}---|",
    ]
    first = next(iter(measured.values()))
    for each in sorted(pipelines, key=lambda each: first[each.title].images_per_s or 0, reverse=True):
        cells = [cell for contenders in measured.values() for cell in cells_of(each, contenders)]
        lines.append(f"| {each.title} | {' | '.join(cells)} | {each.does} |")
    return [*lines, "", *WORDS]


WORDS = (
    "Who antialiases does more than who does not: Pillow always does, TensorFlow's resize only where it is told to. A "
    "random crop of a prepared image is another augmentation than a random-resized crop (of 8 to 100% of the area with "
    "all peers), and less work; so is resizing the whole image. float32 is four times the bytes of uint8.",
)


def cells_of(pipeline: Pipeline, contenders: Mapping[str, Contender]) -> tuple[str, str, str]:
    """Rate with its spread, how many times that of raw files, and the share of the limit."""
    each = contenders[pipeline.title]
    rate, share = rate_cells(each, contenders.get(pipeline.limit))
    return rate, times(each, contenders.get(RAW_FILES.title)), share


def times(each: Contender, base: Contender | None) -> str:
    """Return how many times as fast."""
    return f"{each.images_per_s / base.images_per_s:.1f}" if each.images_per_s and base and base.images_per_s else ""


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
    told = {"measure": "waiting", "batch_size": WAIT_BATCH, "step_s": STEP_S}
    told["epochs"] = -(-(STEPS + 1) * WAIT_BATCH // len(rows_of(source))) + 1
    contenders = [
        contender(each, source, folder_of(each.data, source, PREPARED[224]), size=224, **told)
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
    told = {"measure": "memory", "after_epochs": epochs}
    in_memory = replace(IN_MEMORY, reader="read_tenfold")
    contenders = [
        contender(each, source, folder_of(each.data, source, PREPARED[224]), size=224, **told)
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
