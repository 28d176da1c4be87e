"""Make ICC profiles (ISO 15076-1, version 2) from numbers, and compute their colors from the same numbers."""

import struct
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

# Colorants of the published standards, adapted to D50, a row for each of X, Y and Z.
SRGB = ((0.4360, 0.3851, 0.1431), (0.2225, 0.7169, 0.0606), (0.0139, 0.0971, 0.7139))
ADOBE_RGB = ((0.6097, 0.2053, 0.1492), (0.3111, 0.6257, 0.0632), (0.0195, 0.0609, 0.7446))
DISPLAY_P3 = ((0.5151, 0.2920, 0.1571), (0.2412, 0.6922, 0.0666), (-0.0011, 0.0419, 0.7841))
Curve = float | Sequence[int]
"""A gamma, or 16-bit values at equal distances."""


def to_linear(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The tone curve of sRGB (IEC 61966-2-1), 0 to 1."""
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def from_linear(light: NDArray[np.float64]) -> NDArray[np.float64]:
    light = np.clip(light, 0, 1)
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)


SRGB_CURVE = [round(value * 65535) for value in to_linear(np.linspace(0, 1, 1024))]


def rgb_profile(
    colorants: Sequence[Sequence[float]] = SRGB, curve: Curve = SRGB_CURVE, name: str = "of a test"
) -> bytes:
    tags = {b"rTRC": _curve(curve), b"gTRC": _curve(curve), b"bTRC": _curve(curve)}
    tags |= {
        tag: _xyz(column) for tag, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), zip(*colorants, strict=True), strict=True)
    }
    return _profile(b"RGB ", tags, name)


def gray_profile(curve: Curve, name: str = "of a test") -> bytes:
    return _profile(b"GRAY", {b"kTRC": _curve(curve)}, name)


def in_srgb(pixels: NDArray[np.uint8], colorants: Sequence[Sequence[float]], gamma: float) -> NDArray[np.uint8]:
    """Convert 8-bit RGB pixels with these colorants and this gamma to sRGB, by the definition."""
    light = (pixels / 255) ** gamma @ np.array(colorants).T @ np.linalg.inv(np.array(SRGB)).T
    return np.rint(from_linear(light) * 255).astype(np.uint8)


def _curve(curve: Curve) -> bytes:
    points = [round(curve * 256)] if isinstance(curve, float) else curve
    return b"curv" + bytes(4) + struct.pack(f">I{len(points)}H", len(points), *points)


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(value * 65536) for value in values))


def _profile(
    space: bytes, tags: dict[bytes, bytes], name: str, kind: bytes = b"mntr", connection: bytes = b"XYZ "
) -> bytes:
    text = name.encode("ascii") + b"\0"
    described = b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(78)
    tags = tags | {b"wtpt": _xyz((0.9642, 1, 0.8249)), b"desc": described, b"cprt": b"text" + bytes(4) + b"none\0"}
    table, data = b"", b""
    for tag, content in tags.items():
        table += struct.pack(">4sII", tag, 128 + 4 + 12 * len(tags) + len(data), len(content))
        data += content + bytes(-len(content) % 4)
    size = 128 + 4 + len(table) + len(data)
    head = struct.pack(">I4sI4s4s4s12s4s", size, b"test", 0x02400000, kind, space, connection, bytes(12), b"acsp")
    head += bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


def cmyk_profile(cyan: tuple[float, float, float] = (50, 0, 0)) -> bytes:
    """Return the profile of a printer whose only visible inks are cyan and black. `cyan` is its L*, a* and b*."""
    corners = b""
    for inks in product((0, 1), repeat=4):
        lightness, a, b = (0.0, 0.0, 0.0) if inks[3] else cyan if inks[0] else (100.0, 0.0, 0.0)
        corners += bytes((round(lightness * 2.55), round(a) + 128, round(b) + 128))
    linear = bytes(range(256))
    matrix = struct.pack(">9i", *(65536 * (place % 4 == 0) for place in range(9)))
    table = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + matrix + linear * 4 + corners + linear * 3
    return _profile(b"CMYK", {b"A2B0": table, b"A2B1": table}, "of a test", kind=b"prtr", connection=b"Lab ")


def lab_in_srgb(lightness: float, a: float, b: float) -> NDArray[np.float64]:
    """Return the sRGB levels of a color by CIE 15, with white D50."""
    y = (lightness + 16) / 116
    parts = np.array((y + a / 500, y, y - b / 200))
    xyz = np.where(parts > 6 / 29, parts**3, 3 * (6 / 29) ** 2 * (parts - 4 / 29)) * (0.9642, 1, 0.8249)
    return from_linear(np.linalg.inv(np.array(SRGB)) @ xyz) * 255
