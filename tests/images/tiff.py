"""Small uncompressed TIFFs, of kinds that Pillow does not write."""

import struct

import numpy as np
from numpy.typing import NDArray

_SHORT, _LONG, _UNDEFINED = 3, 4, 7


def tiff(pixels: NDArray[np.generic], photometric: int, order: str = "<", **tags: int | bytes) -> bytes:
    """Return a TIFF that holds the pixels as one strip.

    Args:
        pixels: height x width, or height x width x samples.
        photometric: 0 for gray with 0 as white, 1 for gray, 2 for RGB, 5 for CMYK.
        order: the byte order, `<` or `>`.
        tags: `orientation`, `sample_format`, `extra_samples`, `profile`, `xmp`; `bits` and `width` if the pixels are
            packed bytes.
    """
    height, width, samples = (*pixels.shape, 1)[:3]
    data = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    width = int(tags.get("width", width))
    bits = [int(tags.get("bits", pixels.itemsize * 8))] * samples
    entries: list[tuple[int, int, list[int] | bytes]] = [
        (256, _LONG, [width]),
        (257, _LONG, [height]),
        (258, _SHORT, bits),
        (259, _SHORT, [1]),
        (262, _SHORT, [photometric]),
        (273, _LONG, [8]),
        (277, _SHORT, [samples]),
        (278, _LONG, [height]),
        (279, _LONG, [len(data)]),
    ]
    if "orientation" in tags:
        entries.insert(6, (274, _SHORT, [int(tags["orientation"])]))
    if "extra_samples" in tags:
        entries.append((338, _SHORT, [int(tags["extra_samples"])]))
    if "sample_format" in tags:
        entries.append((339, _SHORT, [int(tags["sample_format"])] * samples))
    if isinstance(xmp := tags.get("xmp"), bytes):
        entries.append((700, _UNDEFINED, xmp))
    if isinstance(profile := tags.get("profile"), bytes):
        entries.append((34675, _UNDEFINED, profile))
    return _file(order, data, entries)


def _file(order: str, data: bytes, entries: list[tuple[int, int, list[int] | bytes]]) -> bytes:
    start = 8 + len(data) + len(data) % 2
    magic = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, start)
    later, directory = b"", struct.pack(order + "H", len(entries))
    for tag, kind, values in entries:
        content = (
            values if isinstance(values, bytes) else struct.pack(f"{order}{len(values)}{'_HI'[kind - 2]}", *values)
        )
        if len(content) > 4:
            place = start + 2 + 12 * len(entries) + 4 + len(later)
            later += content + bytes(len(content) % 2)
            content = struct.pack(order + "I", place)
        directory += struct.pack(order + "HHI", tag, kind, len(values)) + content.ljust(4, b"\0")
    return magic + data + bytes(len(data) % 2) + directory + bytes(4) + later
