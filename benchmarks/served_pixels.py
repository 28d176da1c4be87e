"""Does an exported model see the pixels that its training saw?

    make bench-served-pixels BENCH=FOLDER
    python -m benchmarks.served_pixels FOLDER

Compares the pixels of each file of a folder, as the exported model decodes it, with those of its record, as the
training decodes it for an evaluation. A file that is encoded again on its way into the record is also compared without
that encoding, which alone changes levels. Differences are in levels of 255. Files that keep their bytes and are the
same to both are only counted.
"""

import argparse
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.input.decode import Stored, decode_for_evaluation
from pipeline.input.options import BatchOptions
from pipeline.kinds.images.tensors import KIND
from pipeline.records.format import RecordFormat

OPTIONS = BatchOptions(image_size=224, batch_size=1)
UNENCODED = Rules(prepare="raw", prepare_size=1 << 30)
NO_DATASET: Any = None
"""The pixels of a file do not depend on the dataset."""
Pixels = NDArray[np.int16]


def main() -> None:
    """Compare, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder with images of any kind, in sub-folders or not")
    folder = parser.parse_args().folder
    equal = 0
    print("| file | record | served | largest, mean | largest, mean without encoding |\n|---|---|---|---|---|")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        row = compared(content)
        equal += row is None
        if row:
            print(f"| {path.relative_to(folder)} | {' | '.join(row)} |")
    print(f"\n{equal} files keep their bytes, and are the same to both.")


def compared(content: bytes) -> tuple[str, ...] | None:
    """Return the cells of a file: its record, what became of it if served, and differences. None if all are equal."""
    record, seen = examine(content, Rules()), served(content)
    if not isinstance(record, UsableImage):
        return ("rejected", seen if isinstance(seen, str) else "decoded", "", "")
    is_kept = record.encoded == content
    form = "kept" if is_kept else f"{record.source_format} to {record.format}"
    if isinstance(seen, str):
        return (form, seen, "", "")
    unencoded = examine(content, UNENCODED)
    assert isinstance(unencoded, UsableImage)
    if is_kept and (seen == trained(record)).all():
        return None
    return (form, "decoded", differences(seen, trained(record)), differences(seen, trained(unencoded)))


def differences(one: Pixels, other: Pixels) -> str:
    """Return the largest and the mean difference."""
    difference = np.abs(one - other)
    return f"{difference.max()}, {difference.mean():.2f}"


def served(content: bytes) -> Pixels | str:
    """Return the pixels that an exported model sees of a file, or the end of the error."""
    try:
        return np.asarray(_endpoint()(tf.constant([content])).numpy()[0], np.int16)
    except tf.errors.OpError as error:
        return f"refused: {_reason(str(error))}"


def trained(image: UsableImage) -> Pixels:
    """Return the pixels that an evaluation in the training sees of a record."""
    stored = Stored(tf.constant(image.encoded), tf.constant(image.height), tf.constant(image.width), tf.constant(0))
    form = RecordFormat(pixels="raw" if image.format == "RAW" else "encoded")
    return np.asarray(decode_for_evaluation(stored, form, OPTIONS.crop, OPTIONS.image_size).numpy(), np.int16)


@cache
def _endpoint() -> Callable[[tf.Tensor], tf.Tensor]:
    """Return what an exported model does with files before its layers."""
    signature = [tf.TensorSpec([None], tf.string)]
    called: Callable[[tf.Tensor], tf.Tensor] = tf.function(
        lambda files: KIND.features(OPTIONS, NO_DATASET, files), input_signature=signature
    )
    return called


def _reason(error: str) -> str:
    """Return what a person needs of an error of TensorFlow."""
    found = re.search(r"assertion failed: \[(.*?)\]|\) (Invalid.*)|: (.*?)[\n{]", error)
    return next(filter(None, found.groups()), error) if found else error


if __name__ == "__main__":
    main()
