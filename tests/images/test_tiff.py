"""Layouts of TIFF: each is read as another decoder reads it, or rejected by name."""

import io
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.images.examine import Rules, examine
from pipeline.images.rejection import Rejection
from tests.images.drawn import rejection, scene, usable
from tests.images.tiff import tiff

SCENE = np.asarray(scene(24, 16, seed=7))
SCENE_16 = SCENE.astype(np.uint16) * 257


@pytest.mark.parametrize("planes", [SCENE, np.dstack([SCENE, np.full((16, 24), 255, np.uint8)])], ids=["RGB", "RGBA"])
def test_8_bit_colors_in_separate_planes_are_read(planes: NDArray[np.uint8]):
    extra = {"extra_samples": 2} if planes.shape[2] == 4 else {}
    assert (imagecodecs.png_decode(usable(tiff(planes, 2, planes=1, **extra), Rules()).encoded) == SCENE).all()


@pytest.mark.parametrize("check", ["strict", "header"])
@pytest.mark.parametrize("order", "<>")
def test_16_bits_in_separate_planes_are_rejected_and_not_read_as_noise(order: str, check: str):
    found = rejection(tiff(SCENE_16, 2, order, planes=1), Rules(check=check))
    assert found.reason == "a TIFF with separate planes of this kind is not supported"
    assert found.advice == "save it with the samples of a pixel one after another, or as PNG"


def test_one_plane_is_read_unless_it_would_be_inverted():
    gray = SCENE[..., 0]
    assert (imagecodecs.png_decode(usable(tiff(gray, 1, planes=1), Rules()).encoded)[..., 0] == gray).all()
    assert "separate planes" in rejection(tiff(gray, 0, planes=1), Rules()).reason


@pytest.mark.parametrize("key", ["a.nef", "cats/A.DNG", "a.tif"])
def test_a_preview_of_a_camera_raw_file_is_not_taken_for_the_image(key: str):
    assert isinstance(examine(tiff(SCENE, 2), Rules(), key="a.tif"), Rejection) is False
    tags = {"subfile_type": 1} if key == "a.tif" else {}
    found = examine(tiff(SCENE, 2, **tags), Rules(), key=key)
    assert isinstance(found, Rejection)
    name = "a TIFF whose first image is a preview of another one" if key == "a.tif" else "camera raw"
    assert found.reason == f"{name} is not supported"


def test_a_dng_of_any_name_is_rejected():
    assert rejection(tiff(SCENE, 2, dng_version=b"\1\4\0\0"), Rules()).reason == "camera raw is not supported"


# --- all layouts, against tifffile ------------------------------------------------------------------------------------

EXTRA = {"": (), "unspecified": (0,), "premultiplied": (1,), "alpha": (2,)}
KINDS = {
    "white is 0": ("miniswhite", 1, ""),
    "gray": ("minisblack", 1, ""),
    **{f"gray, {name}": ("minisblack", 2, name) for name in ("unspecified", "premultiplied", "alpha")},
    "RGB": ("rgb", 3, ""),
    **{f"RGB, {name}": ("rgb", 4, name) for name in ("unspecified", "premultiplied", "alpha")},
    "CMYK": ("separated", 4, ""),
}
COMPRESSIONS = ("none", "lzw", "zlib", "packbits")
STRIPS = {"one strip": {"rowsperstrip": 32}, "strips": {"rowsperstrip": 5}, "tiles": {"tile": (16, 16)}}


class Layout(NamedTuple):
    """One layout of a TIFF."""

    kind: str
    bits: int
    order: str
    planes: str
    compression: str
    strips: str


LAYOUTS = [Layout(*each) for each in product(KINDS, (8, 16), "<>", ("contig", "separate"), COMPRESSIONS, STRIPS)]
"""All 960."""
REJECTED = (
    "a TIFF with separate planes of this kind is not supported",
    "a TIFF that is damaged or of a kind that is not supported",
)


def samples_of(layout: Layout) -> NDArray[Any]:
    """Return pixels of 32 x 48, the same for all layouts of a kind. Premultiplied colors are at most their alpha."""
    _, count, extra = KINDS[layout.kind]
    levels = np.asarray(scene(48, 32, seed=3)).astype(float) / 255
    planes = [levels[..., number % 3] for number in range(count)]
    if extra == "premultiplied":
        planes[:-1] = [plane * planes[-1] for plane in planes[:-1]]
    samples = np.dstack(planes) if count > 1 else planes[0]
    return np.round(samples * (2**layout.bits - 1)).astype(f"uint{layout.bits}")


def written(layout: Layout, samples: NDArray[Any]) -> bytes:
    """Return a TIFF that tifffile writes."""
    import tifffile

    photometric, count, extra = KINDS[layout.kind]
    is_separate = layout.planes == "separate" and count > 1
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        np.moveaxis(samples, -1, 0) if is_separate else samples,
        byteorder=layout.order,
        photometric=photometric,
        planarconfig=layout.planes if count > 1 else None,
        extrasamples=EXTRA[extra] or None,
        compression=None if layout.compression == "none" else layout.compression,
        **STRIPS[layout.strips],
        metadata=None,
    )
    return file.getvalue()


def expected_of(layout: Layout, content: bytes) -> NDArray[np.float64]:
    """Return the RGB pixels by the definition of TIFF, from the samples that tifffile reads."""
    import tifffile

    with tifffile.TiffFile(io.BytesIO(content)) as file:
        page = file.pages[0]
        samples = page.asarray().astype(float) / (2**layout.bits - 1)
        if page.planarconfig == 2 and samples.ndim == 3 and page.samplesperpixel > 1:
            samples = np.moveaxis(samples, 0, -1)
    photometric, count, extra = KINDS[layout.kind]
    if count == 1:
        return 255 * np.dstack([1 - samples if photometric == "miniswhite" else samples] * 3)
    if photometric == "separated":
        return 255 * (1 - samples[..., :3]) * (1 - samples[..., 3:])
    colors = samples[..., : count - bool(extra)]
    colors = np.dstack([colors] * 3) if colors.shape[-1] == 1 else colors
    if extra == "unspecified":
        return 255 * colors
    alpha = samples[..., count - 1 :]
    over_white = {"alpha": colors * alpha, "premultiplied": colors}.get(extra, colors)
    return 255 * (over_white + (1 - alpha)) if extra else 255 * colors


def wrong_layouts() -> Iterator[tuple[Layout, float]]:
    """Yield the layouts that are read with other pixels, with the largest difference of a level."""
    for layout in LAYOUTS:
        content = written(layout, samples_of(layout))
        found = examine(content, Rules())
        if isinstance(found, Rejection):
            assert found.reason in REJECTED, (layout, found)
            continue
        pixels = imagecodecs.png_decode(found.encoded).astype(float)
        difference = np.abs(pixels - expected_of(layout, content)).max()
        if difference > 3:
            yield layout, difference


@pytest.mark.long
def test_each_layout_is_read_as_tifffile_reads_it_or_rejected_by_name():
    pytest.importorskip("tifffile")
    assert len(LAYOUTS) == 960
    assert list(wrong_layouts()) == []
