"""Checks of HEIC. They run in the environment of readers, which has pillow-heif: see test_heif.py."""

import io

import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image

from pipeline.images.codecs import codec_versions
from pipeline.images.examine import Rules, UsableImage, examine, is_misnamed
from pipeline.images.pillow_internals import component_sampling
from pipeline.images.rejection import Rejection
from pipeline.sources import Box
from tests.images.drawn import scene
from tests.images.icc import ADOBE_RGB, rgb_profile

IMAGE = scene(12, 8, seed=5).resize((96, 64), Image.Resampling.BICUBIC)
TURN = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""The operation of Pillow that turns an image upright, by its orientation."""


def heic(image: Image.Image, **options: object) -> bytes:
    """Return an image as HEIC. Its EXIF orientation becomes the boxes `irot` and `imir`."""
    pillow_heif.register_heif_opener()
    file = io.BytesIO()
    image.save(file, "HEIF", quality=95, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return heic(IMAGE, exif=exif.tobytes())


def usable(content: bytes, rules: Rules, boxes: tuple[Box, ...] = ()) -> UsableImage:
    found = examine(content, rules, boxes)
    assert isinstance(found, UsableImage), found
    return found


def pixels_of(image: UsableImage) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(image.encoded)))


def difference(found: UsableImage, expected: Image.Image) -> float:
    return float(np.abs(pixels_of(found).astype(int) - np.asarray(expected)).mean())


def a_heic_of_any_name_is_read() -> None:
    for check in ("strict", "header"):
        found = examine(heic(IMAGE), Rules(check=check), key="cats/a.jpg")
        assert isinstance(found, UsableImage)
        assert (found.format, found.height, found.width, found.source_format) == ("JPEG", 64, 96, "HEIF")
        assert difference(found, IMAGE) < 4
        assert is_misnamed("cats/a.jpg", found.source_format)


def the_container_turns_an_image_once_with_its_boxes() -> None:
    for orientation in range(1, 9):
        upright = IMAGE.transpose(TURN[orientation]) if orientation > 1 else IMAGE
        found = usable(turned(orientation), Rules(), (Box(2, 3, 22, 33),))
        assert (found.width, found.height) == upright.size, orientation
        assert difference(found, upright) < 4, orientation
        assert np.allclose(found.boxes[0][:4], np.array([2, 3, 22, 33]) / (upright.size * 2)), orientation


def an_orientation_in_exif_alone_is_ignored() -> None:
    content = turned(6)
    rotation = content.index(b"irot") + 4
    assert content[rotation] == 3
    found = usable(content[:rotation] + b"\0" + content[rotation + 1 :], Rules())
    assert (found.width, found.height) == IMAGE.size
    assert difference(found, IMAGE) < 4


def a_profile_is_converted_to_srgb() -> None:
    found = usable(heic(IMAGE, icc_profile=rgb_profile(ADOBE_RGB, 2.2)), Rules())
    png = io.BytesIO()
    IMAGE.save(png, "PNG", icc_profile=rgb_profile(ADOBE_RGB, 2.2))
    assert found.profile == "converted"
    assert difference(found, Image.open(io.BytesIO(usable(png.getvalue(), Rules()).encoded))) < 4
    assert difference(found, IMAGE) > 4


def transparency_becomes_white() -> None:
    image = IMAGE.copy()
    image.putalpha(0)
    assert pixels_of(usable(heic(image), Rules())).min() > 250


def color_keeps_its_resolution() -> None:
    for chroma, expected in ((444, (1, 1)), (420, (2, 2))):
        with Image.open(io.BytesIO(usable(heic(IMAGE, chroma=chroma), Rules()).encoded)) as record:
            assert component_sampling(record)[0] == expected, chroma


def a_shrunk_image_is_not_the_thumbnail_of_its_file() -> None:
    """Pixels of the thumbnail would be others than those of the image."""
    large = IMAGE.resize((960, 640))
    found = usable(heic(large, thumbnails=[320]), Rules(prepare="resize", prepare_size=64))
    best = usable(heic(large), Rules(prepare="resize", prepare_size=64))
    assert found.encoded == best.encoded


def a_damaged_heic_is_rejected() -> None:
    content = heic(IMAGE)
    for length in (30, 200, len(content) - 200):
        found = examine(content[:length], Rules())
        assert isinstance(found, Rejection), length
        assert "HEIC that is damaged" in found.reason or "cannot be decoded" in found.reason, found


def too_many_pixels_are_rejected() -> None:
    found = examine(heic(IMAGE), Rules(max_pixels=1000))
    assert isinstance(found, Rejection)
    assert "above the limit" in found.reason


def the_package_is_one_of_the_codecs() -> None:
    assert codec_versions(gzip=False, perceptual_hash=False)["pillow-heif"] == pillow_heif.__version__
