"""Which pixels a record stores (shrunk, cropped or raw), and the coordinates of its boxes."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from pipeline.images.examine import Rules
from pipeline.images.prepare import shrunk
from pipeline.sources import Box
from tests.images.drawn import decoded, encoded, picture, rejection, scene, turned, usable

RESIZE, RAW = Rules(prepare="resize", prepare_size=64), Rules(prepare="raw", prepare_size=64)
CROP = Rules(crop_to_box=True)


@pytest.mark.parametrize(
    ("width", "height", "shorter_side", "size"),
    [
        (500, 375, 256, (341, 256)),
        (375, 500, 256, (256, 341)),
        (256, 256, 256, (256, 256)),
        (6000, 40, 256, (6000, 40)),
        (257, 1000, 256, (256, 996)),
        (1, 1, 16, (1, 1)),
    ],
)
def test_shrunk_limits_the_shorter_side_and_enlarges_nothing(
    width: int, height: int, shorter_side: int, size: tuple[int, int]
):
    assert shrunk(width, height, shorter_side) == size


@pytest.mark.parametrize("check", ["strict", "header"])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP"])
def test_a_shrunk_image_becomes_a_jpeg_of_quality_95(form: str, check: str):
    small = usable(encoded(scene(200, 150), form), Rules(check=check, prepare="resize", prepare_size=64))
    assert (small.format, small.width, small.height, small.source_format) == ("JPEG", 85, 64, form)
    with Image.open(io.BytesIO(small.encoded)) as record, Image.open(io.BytesIO(quality_95())) as wanted:
        assert record.size == (85, 64)
        assert record.quantization == wanted.quantization


def quality_95() -> bytes:
    return encoded(picture(), "JPEG", quality=95)


@pytest.mark.parametrize("check", ["strict", "header"])
@pytest.mark.parametrize("image", [encoded(scene(80, 64), "JPEG"), encoded(scene(80, 64), "PNG")], ids=["jpeg", "png"])
def test_an_image_that_is_small_enough_keeps_its_bytes(image: bytes, check: str):
    assert usable(image, Rules(check=check, prepare="resize", prepare_size=64)).encoded == image


@pytest.mark.long
@pytest.mark.parametrize("size", [(200, 150), (640, 481), (1300, 1001)], ids=["no draft", "a quarter", "an eighth"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_shrinking_by_halves_first_matches_the_full_resolution(size: tuple[int, int], orientation: int, form: str):
    image = scene(*size)
    small = usable(turned(image, orientation, form), RAW)
    upright = image if orientation == 1 else image.transpose({3: Image.ROTATE_180, 6: Image.ROTATE_270}[orientation])
    best = upright.resize((small.width, small.height), Image.Resampling.LANCZOS)
    error = np.mean((decoded(small).astype(float) - np.asarray(best)) ** 2)
    assert 10 * math.log10(255**2 / error) > 38  # decibels; JPEG of quality 95 itself has 33 to 38 on photographs


def test_a_damaged_image_is_rejected_when_decoded_at_reduced_size():
    image = encoded(scene(800, 600), "JPEG")
    assert "damaged JPEG" in rejection(image[: len(image) // 2], RESIZE).reason


def test_raw_stores_the_pixels_row_by_row():
    raw = usable(encoded(picture(), "PNG"), RAW)
    assert (raw.format, raw.height, raw.width) == ("RAW", 8, 12)
    assert raw.encoded == picture().tobytes()


def test_raw_images_are_shrunk_too():
    raw = usable(encoded(scene(200, 150), "JPEG"), RAW)
    assert (raw.height, raw.width, len(raw.encoded)) == (64, 85, 64 * 85 * 3)


@pytest.mark.parametrize("check", ["strict", "header"])
def test_boxes_become_fractions_of_the_upright_image(check: str):
    boxes = (Box(0, 2, 4, 12, "cat"), Box(-5, -5, 100, 100))
    found = usable(turned(picture(), 6), Rules(check=check), boxes).boxes  # 12 high and 8 wide, upright
    assert found == (Box(0, 2 / 12, 0.5, 1, "cat"), Box(0, 0, 1, 1))


@pytest.mark.parametrize("check", ["strict", "header"])
def test_boxes_do_not_change_the_bytes(check: str):
    image = encoded(picture(), "JPEG")
    found = usable(image, Rules(check=check), (Box(6, 4, 12, 8),))
    assert (found.encoded, found.boxes) == (image, (Box(0.5, 0.5, 1, 1),))


@pytest.mark.parametrize("rules", [Rules(), Rules(check="header"), CROP], ids=["strict", "header", "crop"])
@pytest.mark.parametrize(
    "box",
    [Box(12, 0, 20, 8), Box(0, -4, 12, 0), Box(5, 5, 5, 8), Box(8, 0, 4, 8), Box(math.nan, 0, 4, 4)],
    ids=["right of it", "above it", "no width", "turned round", "not a number"],
)
def test_a_box_without_pixels_is_named(box: Box, rules: Rules):
    found = rejection(encoded(picture(), "JPEG"), rules, (Box(0, 0, 1, 1), box))
    assert found.reason == (
        f"its box from ({box.xmin:g}, {box.ymin:g}) to ({box.xmax:g}, {box.ymax:g}) covers none of the 12 x 8 pixels"
    )
    assert "upright image" in found.advice


@pytest.mark.parametrize("check", ["strict", "header"])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_crop_holds_the_first_box_and_the_overlap_of_the_others(form: str, check: str):
    boxes = (Box(4.5, 2.2, 10.1, 9.5, "cat"), Box(5, 0, 8, 5, "dog"), Box(0, 0, 2, 2, "far"))
    found = usable(encoded(picture(), form), Rules(check=check, crop_to_box=True), boxes)
    assert (found.format, found.width, found.height) == ("JPEG", 7, 6)  # from (4, 2) to (11, 8)
    assert found.boxes == (Box(0, 0, 1, 1, "cat"), Box(1 / 7, 0, 4 / 7, 0.5, "dog"))


def test_a_crop_is_taken_from_the_upright_image():
    found = usable(turned(scene(40, 30), 6, "PNG"), Rules(prepare="raw", crop_to_box=True), (Box(3, 5, 20, 28),))
    upright = scene(40, 30).transpose(Image.Transpose.ROTATE_270)
    assert (decoded(found) == np.asarray(upright.crop((3, 5, 20, 28)))).all()


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_shrunk_crop_of_a_large_photograph_matches_the_full_resolution(orientation: int):
    box = Box(401, 203, 1187, 1001)
    image = turned(scene(1300, 1201), orientation)
    found = usable(image, Rules(prepare="raw", prepare_size=100, crop_to_box=True), (box,))
    full = decoded(usable(image, Rules(prepare="raw", prepare_size=4096)))
    best = Image.fromarray(full).resize((found.width, found.height), Image.Resampling.LANCZOS, box=box[:4])
    assert (found.width, found.height) == (100, 102)
    error = np.mean((decoded(found).astype(float) - np.asarray(best)) ** 2)
    assert 10 * math.log10(255**2 / error) > 38


@pytest.mark.parametrize("image", [encoded(picture(), "JPEG"), encoded(picture(), "PNG")], ids=["jpeg", "png"])
def test_an_image_without_a_box_or_inside_its_box_is_not_cropped(image: bytes):
    assert usable(image, CROP).encoded == image
    assert usable(image, CROP, (Box(0, 0, 12, 8),)).encoded == image
    assert usable(image, CROP, (Box(-math.inf, -1, math.inf, 99),)).encoded == image


def test_a_crop_that_is_small_enough_is_not_shrunk():
    rules = Rules(prepare="resize", prepare_size=64, crop_to_box=True)
    found = usable(encoded(scene(200, 150), "JPEG"), rules, (Box(10, 10, 60, 40),))
    assert (found.width, found.height, found.format) == (50, 30, "JPEG")
