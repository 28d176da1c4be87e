"""Small uncompressed TIFFs, of kinds that Pillow does not write."""

import struct

import numpy as np
from numpy.typing import NDArray

_BYTE, _SHORT, _LONG, _UNDEFINED = 1, 3, 4, 7


def tiff(pixels: NDArray[np.generic], photometric: int, order: str = "<", **tags: int | bytes) -> bytes:
    """Return a TIFF that holds the pixels as one strip.

    Args:
        pixels: height x width, or height x width x samples.
        photometric: 0 for gray with 0 as white, 1 for gray, 2 for RGB, 5 for CMYK.
        order: the byte order, `<` or `>`.
        tags: `orientation`, `sample_format`, `extra_samples`, `profile`, `xmp`, `subfile_type`, `dng_version`; `bits`
            and `width` if the pixels are packed bytes; `planes`, to write each channel as a strip of its own.
    """
    height, width, samples = (*pixels.shape, 1)[:3]
    planes = samples if tags.get("planes") else 1
    in_order = np.moveaxis(pixels, -1, 0) if planes > 1 else pixels
    data = in_order.astype(pixels.dtype.newbyteorder(order)).tobytes()
    size = len(data) // planes
    width = int(tags.get("width", width))
    bits = [int(tags.get("bits", pixels.itemsize * 8))] * samples
    entries: list[tuple[int, int, list[int] | bytes]] = [
        (256, _LONG, [width]),
        (257, _LONG, [height]),
        (258, _SHORT, bits),
        (259, _SHORT, [1]),
        (262, _SHORT, [photometric]),
        (273, _LONG, [8 + plane * size for plane in range(planes)]),
        (277, _SHORT, [samples]),
        (278, _LONG, [height]),
        (279, _LONG, [size] * planes),
    ]
    if "subfile_type" in tags:
        entries.append((254, _LONG, [int(tags["subfile_type"])]))
    if "orientation" in tags:
        entries.append((274, _SHORT, [int(tags["orientation"])]))
    if "planes" in tags:
        entries.append((284, _SHORT, [2]))
    if "extra_samples" in tags:
        entries.append((338, _SHORT, [int(tags["extra_samples"])]))
    if "sample_format" in tags:
        entries.append((339, _SHORT, [int(tags["sample_format"])] * samples))
    if isinstance(xmp := tags.get("xmp"), bytes):
        entries.append((700, _UNDEFINED, xmp))
    if isinstance(profile := tags.get("profile"), bytes):
        entries.append((34675, _UNDEFINED, profile))
    if isinstance(version := tags.get("dng_version"), bytes):
        entries.append((50706, _BYTE, version))
    return _file(order, data, sorted(entries, key=lambda entry: entry[0]))


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
