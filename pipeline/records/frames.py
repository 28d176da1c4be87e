"""Frame many records of the TFRecord format at once. Unlike `tfrecord.py`, this module imports NumPy."""

from collections.abc import Sequence

import google_crc32c
import numpy as np

from pipeline.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, header, masked


def frames(contents: Sequence[bytes]) -> list[bytes]:
    """Return what `tfrecord.frame` returns for each of `contents`, in a third of the time."""
    crcs = np.array([google_crc32c.value(data) for data in contents], np.uint64)
    footers = masked(crcs).astype("<u4").tobytes()
    return [
        b"%b%b%b" % (header(len(data)), data, footers[start : start + FOOTER_BYTES])
        for start, data in zip(range(0, len(footers), FOOTER_BYTES), contents, strict=True)
    ]


def data_of(record: bytes) -> bytes:
    """Return the data of one record, which is not verified."""
    return record[HEADER_BYTES:-FOOTER_BYTES]
