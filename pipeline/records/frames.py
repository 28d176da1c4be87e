"""Frame many records of the TFRecord format at once. Unlike `tfrecord.py`, this module imports NumPy and PyArrow."""

from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.records.byte_arrays import BYTES, heads_of, values
from pipeline.records.tfrecord import FOOTER_BYTES, header, masked


def framed(contents: pa.Array) -> tuple[Any, pa.Array, pa.Array]:
    """Return what `joined` makes records of: headers, the data `contents`, which are large binaries, and footers.

    The records are those of `tfrecord.frame`.
    """
    crcs = np.fromiter(map(google_crc32c.value, values(contents)), np.uint64, len(contents))
    footers = pa.py_buffer(masked(crcs).astype("<u4"))
    arrays = pa.Array.from_buffers(pa.binary(FOOTER_BYTES), len(contents), [None, footers])
    return heads_of(pc.binary_length(contents), header), contents, arrays.cast(BYTES)
