"""Damage for which libjpeg only warns. The strict check rejects it, whatever the preparation of the image."""

import io
import random
import re
import zlib
from collections.abc import Callable

import pytest
import simplejpeg
from PIL import Image

from pipeline.images import wellformed
from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.images.jpeg_decoder import luminance
from pipeline.images.rejection import Rejection
from tests.fixed_images import png

SIZE = (400, 300)
BLOCK = 4096


def photograph(mode: str = "RGB", **options: object) -> bytes:
    """Return a JPEG of noise that is blurred like a photograph. Most of its 30 kB or more are entropy-coded data."""
    noise = Image.frombytes("RGB", (100, 75), random.Random(1).randbytes(100 * 75 * 3)).resize(SIZE)
    buffer = io.BytesIO()
    noise.convert(mode).save(buffer, "JPEG", quality=95, **options)
    return buffer.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return photograph(exif=exif)


SOUND = {
    "baseline": photograph(),
    "progressive": photograph(progressive=True),
    "restarts": photograph(restart_marker_blocks=8),
    "gray": photograph("L"),
    "CMYK": photograph("CMYK"),
    "turned": turned(),
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "block of zeros": lambda image: image[: len(image) // 2] + bytes(BLOCK) + image[len(image) // 2 + BLOCK :],
    "lost block": lambda image: image[: len(image) // 2] + image[len(image) // 2 + BLOCK :],
    "cut to an end marker": lambda image: image[: len(image) // 2] + b"\xff\xd9",
    "zeros to an end marker": lambda image: image[: len(image) // 2] + bytes(len(image) // 2) + b"\xff\xd9",
    "cut": lambda image: image[: len(image) // 2],
}
RULES = {
    "keep": Rules(),
    "resize": Rules(prepare="resize", prepare_size=64),
    "raw": Rules(prepare="raw", prepare_size=64),
    "hash": Rules(perceptual_hash=True),
}


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.parametrize("rules", RULES)
def test_an_intact_jpeg_passes(kind: str, rules: str):
    assert isinstance(examine(SOUND[kind], RULES[rules]), UsableImage)
    assert isinstance(examine(SOUND[kind] + b"bytes behind the end", RULES[rules]), UsableImage)


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_jpeg_is_rejected_with_a_readable_reason(kind: str, rules: str, damage: str):
    found = examine(DAMAGE[damage](SOUND[kind]), RULES[rules])
    assert isinstance(found, Rejection)
    assert found.reason.startswith("damaged JPEG: ")
    assert "Corrupt" not in found.reason


def test_luminance_is_none_for_an_unsupported_subsampling():
    odd = bytearray(photograph())
    frame = odd.index(b"\xff\xc0")
    odd[frame + 11] = 0x41  # 4 x 1 samples of the first component. simplejpeg has no name for this combination.
    odd[frame + 14] = 0x21
    odd[frame + 17] = 0x11
    assert luminance(bytes(odd), 1) is None


def later_revision(image: bytes) -> bytes:
    return image.replace(b"JFIF\0\x01", b"JFIF\0\x03", 1)


def broken_profile(image: bytes) -> bytes:
    part = b"ICC_PROFILE\0\x02\x01" + bytes(20)  # segment 2 of 1
    return image[:2] + b"\xff\xe2" + (len(part) + 2).to_bytes(2, "big") + part + image[2:]


def unknown_colors(image: bytes) -> bytes:
    """Replace the JFIF and Adobe segments, which state the colors, by an Adobe segment with an unknown value."""
    bare = re.sub(rb"(?s)\xff\xe0..JFIF.{10}|\xff\xee..Adobe.{7}", b"", image)
    return bare[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64" + bytes(4) + b"\x07" + bare[2:]


def scan_of_phones(image: bytes) -> bytes:
    """Samsung's baseline files say that their scan ends at coefficient 0 instead of 63."""
    odd = bytearray(image)
    scan = odd.index(b"\xff\xda")
    odd[scan + 2 + int.from_bytes(odd[scan + 2 : scan + 4], "big") - 2] = 0
    return bytes(odd)


def all_at_once(image: bytes) -> bytes:
    return scan_of_phones(broken_profile(later_revision(image)))


ODD: dict[str, Callable[[bytes], bytes]] = {
    "JFIF of a later revision": later_revision,
    "broken profile": broken_profile,
    "unknown Adobe colors": unknown_colors,
    "scan of Samsung's phones": scan_of_phones,
    "all at once": all_at_once,
}
WARNED_OF = [
    (odd, kind)
    for odd in ODD
    for kind in ("baseline", "progressive", "restarts", "gray", "CMYK")
    # A progressive scan needs its parameters. CMYK has no JFIF segment, and gray has no colors.
    if not (kind == "progressive" and ODD[odd] in (scan_of_phones, all_at_once))
    if not (kind == "CMYK" and ODD[odd] is later_revision)
    if not (kind == "gray" and ODD[odd] is unknown_colors)
]


@pytest.mark.parametrize(("odd", "kind"), WARNED_OF)
def test_a_harmless_warning_rejects_no_image(odd: str, kind: str):
    image = ODD[odd](SOUND[kind])
    with pytest.raises(ValueError, match=r"JFIF revision|ICC marker|Adobe color|SOS parameters"):
        simplejpeg.decode_jpeg(image, "GRAY")
    assert isinstance(examine(image, Rules()), UsableImage)


@pytest.mark.parametrize(("odd", "kind"), WARNED_OF)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_harmless_warning_hides_no_damage(odd: str, kind: str, damage: str):
    found = examine(DAMAGE[damage](ODD[odd](SOUND[kind])), Rules())
    assert isinstance(found, Rejection)
    assert found.reason.startswith("damaged JPEG: ")


def test_luminance_has_at_least_the_requested_side():
    for side, shorter in ((1, 38), (64, 75), (300, 300)):
        gray = luminance(photograph(), side)
        assert gray is not None
        assert min(gray.size) == shorter


def test_a_png_is_inflated_only_to_the_size_in_its_header(monkeypatch: pytest.MonkeyPatch):
    """50 kB inflate to 50 MB. The check stops soon after the 360 bytes of 12 x 10 pixels."""
    small = png(1)
    start = small.index(b"IDAT") - 4
    data = zlib.compress(bytes(50_000_000))
    chunk = len(data).to_bytes(4, "big") + b"IDAT" + data + zlib.crc32(b"IDAT" + data).to_bytes(4, "big")
    bomb = small[:start] + chunk + small[-12:]
    inflated: list[int] = []
    whole = zlib.decompressobj

    class Counting:
        def __init__(self) -> None:
            self._inflate = whole()

        def decompress(self, part: bytes, most: int) -> bytes:
            found = self._inflate.decompress(part, most)
            inflated.append(len(found))
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(self._inflate, name)

    monkeypatch.setattr(wellformed.zlib, "decompressobj", Counting)
    assert not wellformed.is_whole_png(bomb)
    assert sum(inflated) <= 1 << 20
    assert wellformed.is_whole_png(small)
