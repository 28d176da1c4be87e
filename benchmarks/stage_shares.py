"""Compare the measured shares of the input's stages with what the input saves if a stage is replaced by a constant.

    make bench-stage-shares
    python -m benchmarks.stage_shares [--jobs NAME ...] [--seconds 0.3] [--rounds 21]

Each job is a small dataset and options of its batches. Its shares are measured as before a training. Then the whole
input of `training_batches` runs in turn as it is, and with one of its stages replaced: a record in memory in place of
reading examples in the order of an epoch, a parsed record in place of parsing, black pixels in place of decoding or of
resizing. The share of a stage is the CPU time that is saved. Batches are what is left if all four are replaced. If two
stages share a cost, such as the first access to the bytes of an image, the removal of each of them saves it. So these
times can add up to more than the whole, and each share is one of their sum. All images of a job have one size, so that
a constant is as good as any of them. The shuffle buffer holds one example, or it would be filled in one block of a
measurement, and the next blocks would read little.
"""

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tensorflow as tf
from PIL import Image

from benchmarks.harness.machine import machine_line
from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import Dataset, Split, load, save
from pipeline.dataset.shard_lists import Shard
from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.input import BatchOptions, order, training_batches
from pipeline.input import decode as decoding
from pipeline.input.order import ONLY, ServerSplit, open_split
from pipeline.input.tables import Rows
from pipeline.records.format import ImageEncoder, RecordFormat
from pipeline.records.tfrecord import frame, read_records, writer_of
from pipeline.stages.build import build
from pipeline.training.stages import measure_stages

MAX_DIFFERENCE, IDLE_S = 0.05, 0.05
STAGES = ("read", "parse", "decode", "resize", "batch")
IMAGES, ROWS, SHARDS = 96, 200_000, 4
MAX_COPIES, MAX_BYTES = 128, 400_000_000
"""Each image is in the dataset up to this many times, and all together take up to this many bytes. To begin an epoch
takes as long as dozens of images. In a training, it is hardly anything for an image, and belongs to no stage."""

HEADER = (
    f"| job | {' | '.join(STAGES)} | largest difference | noise | sum of what is saved | an example | measured in |",
    f"|---|{'---|' * len(STAGES)}---|---|---|---|---|",
)
"""In parentheses: what the input saves without the stage, and the processor time of an example in the whole input.
The noise is what a second, equal input seems to save."""


def photo(seed: int, size: tuple[int, int], form: str) -> bytes:
    """Return an image with smooth areas, edges and noise, which is about as large as a photograph."""
    draw = np.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(coarse).astype(int) + draw.normal(0, 8, (size[1], size[0], 1)).astype(int)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, form, quality=90)
    return buffer.getvalue()


def images(
    size: tuple[int, int], form: str = "JPEG", compression: Any = "none", **rules: Any
) -> Callable[[Path], Path]:
    """Return a function that writes a dataset of images of one size into a folder, prepared by some rules."""

    def made(folder: Path) -> Path:
        records = RecordFormat(pixels="raw" if rules.get("prepare") == "raw" else "encoded", compression=compression)
        encode = ImageEncoder(records, ["a", "b"], {}).encode
        framed = []
        for number in range(IMAGES):
            image = examine(photo(number, size, form), Rules(**rules))
            assert isinstance(image, UsableImage)
            framed.append(frame(encode(image, ("ab"[number % 2],), str(number).encode()) + image.encoded))
        copies = max(1, min(MAX_COPIES, MAX_BYTES // sum(map(len, framed))))
        shards = []
        folder.mkdir(parents=True, exist_ok=True)
        for shard in range(SHARDS):
            path = folder / f"train-{shard:05d}-of-{SHARDS:05d}{records.ending}"
            with open(path, "wb") as file:
                writer = writer_of(path, file)
                for _ in range(copies):
                    writer.write_framed(framed[shard::SHARDS])
                writer.close()
            of_file = path.stat().st_size, f"{writer.crc32c:08x}", writer.ends.hex()
            shards.append(Shard(path.name, copies * len(framed[shard::SHARDS]), *of_file))
        _save(folder, records, shards)
        return folder

    return made


def _save(folder: Path, records: RecordFormat, shards: list[Shard]) -> None:
    examples = sum(shard.examples for shard in shards)
    classes = {"a": examples // 2, "b": examples // 2}
    split = Split(examples, sum(shard.bytes for shard in shards), classes, tuple(shards))
    empty = {"file": "rejected.jsonl", "bytes": 0, "crc32c": "00000000"}
    dataset = Dataset(
        name="photos",
        version="1" * 16,
        labels=("a", "b"),
        texts={},
        records=records,
        features={},
        splits={"train": split, "validation": Split(0, 0, {}, ()), "test": Split(0, 0, {}, ())},
        rejected={"count": 0, **empty},
        duplicates={**empty, "file": "duplicates.jsonl"},
        source={"uri": "made", "listed": examples},
        quality={"unit": "image"},
        settings={},
        software={},
    )
    save(folder, dataset, {"rejected.jsonl": b"", "duplicates.jsonl": b""})


def table(columns: int, texts: int = 0) -> Callable[[Path], Path]:
    """Return a function that builds a dataset of rows in a folder."""

    def made(folder: Path) -> Path:
        draw = np.random.default_rng(0)
        names = [*(f"number{each}" for each in range(columns)), *(f"text{each}" for each in range(texts)), "label"]
        lines = [",".join(names)]
        for _ in range(ROWS):
            numbers = (f"{each:.4f}" for each in draw.normal(size=columns))
            words = (f"word{each}" for each in draw.integers(0, 50, texts))
            lines.append(",".join([*numbers, *words, str(draw.integers(0, 2))]))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.csv").write_text("\n".join(lines) + "\n", "utf-8")
        values = {"example_kind": "table", "label_column": "label", "num_shards": 4}
        places = {"source_uri": str(folder / "rows.csv"), "workspace": str(folder / "workspace")}
        return Path(build(settings_from({**values, **places}))["dataset"])

    return made


JOBS: Mapping[str, tuple[Callable[[Path], Path], BatchOptions]] = {
    "large JPEG": (images((1600, 1200)), BatchOptions(224, 32)),
    "large JPEG, random_resized": (images((1600, 1200)), BatchOptions(224, 32, crop="random_resized")),
    "large JPEG, whole": (images((1600, 1200)), BatchOptions(224, 32, crop="whole")),
    "JPEG of 500 pixels": (images((500, 375)), BatchOptions(224, 32)),
    "JPEG of 500 pixels, random_resized": (images((500, 375)), BatchOptions(224, 32, crop="random_resized")),
    "resized JPEG": (images((800, 600), prepare="resize", prepare_size=256), BatchOptions(224, 32)),
    "resized JPEG, random_resized": (
        images((800, 600), prepare="resize", prepare_size=256),
        BatchOptions(224, 32, crop="random_resized"),
    ),
    "raw pixels": (images((800, 600), prepare="raw", prepare_size=256), BatchOptions(224, 32)),
    "small raw pixels, gzip": (
        images((80, 60), prepare="raw", prepare_size=60, compression="gzip"),
        BatchOptions(48, 64),
    ),
    "PNG": (images((400, 300), "PNG"), BatchOptions(224, 32)),
    "table of 10 numbers": (table(10), BatchOptions(1, 256)),
    "table of 20 numbers and 10 texts": (table(20, 10), BatchOptions(1, 256)),
}


@contextmanager
def replaced(folder: Path, options: BatchOptions, stages: tuple[str, ...]) -> Iterator[None]:
    """Replace stages of the input by constants while the block builds its graph."""
    dataset = load(folder)
    record = next(read_records(folder / dataset.splits["train"].shards[0].name))
    side = tf.constant([options.image_size] * 2)
    with ExitStack() as stack:
        if "read" in stages:
            constant = tf.constant(record)

            def records(split: ServerSplit, *_: tf.Tensor) -> tf.data.Dataset:
                return tf.data.Dataset.from_tensors((tf.constant(0, tf.int64), constant)).repeat(split.share.examples)

            stack.enter_context(patch.object(order, "shuffled_records", records))
        if dataset.table:
            if "parse" in stages:
                rows = Rows(open_split(folder, options, "train", ONLY, None))
                parsed = rows._parsed(tf.repeat(tf.constant([record]), options.batch_size))
                stack.enter_context(patch.object(Rows, "_parsed", lambda self, serialized: parsed))
            yield
            return
        stored = decoding.parse(tf.constant(record), dataset.records)
        if "parse" in stages:
            stack.enter_context(patch.object(decoding, "parse", lambda serialized, form: stored))
        if "decode" in stages:
            black = _mean_crop(dataset.records, stored, options, side)
            stack.enter_context(patch.object(decoding, "decoded_crop", lambda *given: black))
        if "resize" in stages:
            image = tf.zeros([options.image_size, options.image_size, 3], tf.uint8)
            # The result depends on what comes in, or TensorFlow would leave out the stages before.
            stack.enter_context(patch.object(decoding, "resampled", partial(_instead_of_resizing, image)))
        yield


def _instead_of_resizing(image: tf.Tensor, decoded: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.size(decoded) > 0, lambda: image, lambda: decoded)


def _mean_crop(form: Any, stored: decoding.Stored, options: BatchOptions, side: tf.Tensor) -> tf.Tensor:
    """Return a black image of the mean size that the decoder gives."""
    draw, sizes = np.random.default_rng(0), []
    for _ in range(200):
        crop = decoding.random_crop(stored, options, tf.constant(draw.random(5), tf.float32))
        sizes.append(tf.shape(decoding.decoded_crop(stored, crop, form, side))[:2].numpy())
    height, width = np.sqrt(np.mean(np.square(sizes), axis=0)).round().astype(int)
    return tf.zeros([height, width, 3], tf.uint8)


def wait_until_idle() -> None:
    """Wait until this process uses no processor any more. To fill the buffers takes a second if images are large."""
    used = -1.0
    while time.process_time() - used > IDLE_S / 20:
        used = time.process_time()
        time.sleep(IDLE_S)


def cpu_us(batches: Iterator[Any], batch_size: int, seconds: float) -> float:
    """Return the CPU microseconds of an example, over this many CPU seconds."""
    wait_until_idle()  # The buffers are full before and after.
    began, count = time.process_time(), 0
    while count < 4 or time.process_time() - began < seconds:
        next(batches)
        count += 1
    wait_until_idle()
    return 1e6 * (time.process_time() - began) / (count * batch_size)


def compared(folder: Path, options: BatchOptions, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Return the share of each stage as it is measured, and as its removal shows it."""
    dataset, options = load(folder), replace(options, shuffle_bytes=1)
    costs = measure_stages(folder, dataset, options)
    if costs is None:
        raise RuntimeError("the measurement was stopped")
    names = [stage for stage in costs.us if stage != "batch"]
    variants: dict[str, tuple[str, ...]] = {
        "whole": (),
        "again": (),
        **{name: (name,) for name in names},
        "batch": tuple(names),
    }
    opened = {}
    for name, stages in variants.items():
        with replaced(folder, options, stages):
            opened[name] = iter(training_batches(folder, options, epochs=100_000, numbered=True))
            next(opened[name])
    names_in_turn = list(opened)
    found: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds):
        for name in names_in_turn:
            found[name].append(cpu_us(opened[name], options.batch_size, seconds))
        names_in_turn.reverse()
    # Within a round, because the speed of a shared machine drifts.
    whole = np.array(found["whole"])
    removed = {name: float(np.median(1 - np.array(found[name]) / whole)) for name in names}
    removed["batch"] = float(np.median(np.array(found["batch"]) / whole))
    saved = sum(removed.values())
    return {
        "measured": dict(costs.shares),
        "removed": {name: share / saved for name, share in removed.items()},
        "saved": {"in_all": saved, "by_nothing": abs(float(np.median(1 - np.array(found["again"]) / whole)))},
        "us": {"measured": costs.total_us, "whole": float(np.median(whole)), "cpu_s": costs.cpu_s},
    }


def main() -> int:
    """Print a table of the jobs. Return 1 unless all shares of all jobs differ by at most MAX_DIFFERENCE."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stage_shares", description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=[*JOBS], default=[*JOBS], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU seconds of a block")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="print a JSON object for each job")
    given = parser.parse_args()
    open_unless_set()
    if not given.json:
        print("\n".join([machine_line("tensorflow"), "", *HEADER]), flush=True)
    differences = []
    for name in given.jobs:
        make, options = JOBS[name]
        with tempfile.TemporaryDirectory(prefix="tenfold-") as root:
            found = compared(make(Path(root)), options, given.seconds, given.rounds)
        differences.append(difference(found))
        print(json.dumps({"job": name, **found}) if given.json else row(name, found), flush=True)
    return int(not (differences and all(each <= MAX_DIFFERENCE for each in differences)))


def difference(found: Mapping[str, Mapping[str, float]]) -> float:
    """Return the largest difference (0 to 1) between the measured share of a stage and what its removal saves."""
    return max(abs(share - found["removed"][stage]) for stage, share in found["measured"].items())


def row(name: str, found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the row of a job below HEADER. A stage that its examples do not have is empty."""
    measured, removed, us = (found[each] for each in ("measured", "removed", "us"))
    shares = (f"{measured[each]:.0%} ({removed[each]:.0%})" if each in measured else "" for each in STAGES)
    saved = f"{100 * found['saved']['by_nothing']:.1f} points | {found['saved']['in_all']:.0%}"
    times = f"{us['measured']:.0f} ({us['whole']:.0f}) µs | {us['cpu_s']:.1f} s"
    return f"| {name} | {' | '.join(shares)} | {100 * difference(found):.1f} points | {saved} | {times} |"


if __name__ == "__main__":
    sys.exit(main())
