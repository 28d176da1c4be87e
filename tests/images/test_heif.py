"""HEIC is read if pillow-heif is installed. The environment of the other tests does not have it."""

import pytest

from pipeline.images.codecs import codec_versions
from pipeline.images.heif import is_heif
from tests.images.drawn import encoded, picture
from tests.readers_environment import run_with_readers

CHECKS = [
    "a_heic_of_any_name_is_read",
    "the_container_turns_an_image_once_with_its_boxes",
    "an_orientation_in_exif_alone_is_ignored",
    "a_profile_is_converted_to_srgb",
    "transparency_becomes_white",
    "color_keeps_its_resolution",
    "a_shrunk_image_is_not_the_thumbnail_of_its_file",
    "a_damaged_heic_is_rejected",
    "too_many_pixels_are_rejected",
    "the_package_is_one_of_the_codecs",
]


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
def test_heic(check: str):
    run_with_readers(f"from tests.images import heic_checks; heic_checks.{check}()")


def test_without_the_package_it_is_no_codec():
    assert "pillow-heif" not in codec_versions(gzip=False, perceptual_hash=False)


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", True),
        (b"\0\0\0\x18ftypmif1\0\0\0\0heicmif1", True),
        (b"\0\0\0\x14ftypmif1\0\0\0\0miaf", True),
        (b"\0\0\0\x18ftypmif1\0\0\0\0avifmif1", False),
        (b"\0\0\0\x18ftypavif\0\0\0\0mif1heic", False),
        (b"\0\0\0\x14ftypisom\0\0\0\0mp41", False),
        (b"\0\0\0\x18ftyp", False),
    ],
)
def test_heif_is_recognized_by_its_brands(begin: bytes, expected: bool):
    assert is_heif(begin + bytes(20)) == expected
    assert not is_heif(encoded(picture(), "AVIF"))
