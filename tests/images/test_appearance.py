import pytest
from PIL import Image

from pipeline.images.examine import Rules
from tests.images.drawn import encoded, scene, usable

HASHED = Rules(perceptual_hash=True)
FORMS = {
    "unchanged": ("JPEG", {}),
    "unchanged PNG": ("PNG", {}),
    "encoded again": ("BMP", {}),
    "progressive": ("JPEG", {"progressive": True}),
}


@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("gray", [0, 90, 255])
def test_brightness_is_the_mean_luminance(form: str, options: dict[str, object], gray: int):
    image = encoded(Image.new("RGB", (90, 70), (gray, gray, gray)), form, **options)
    assert usable(image, Rules()).brightness == pytest.approx(gray, abs=0.5)


@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
def test_brightness_at_reduced_size_matches_the_full_size(form: str, options: dict[str, object]):
    luminance = scene(333, 257).convert("L")
    mean = sum(luminance.tobytes()) / (333 * 257)
    assert usable(encoded(scene(333, 257), form, **options), Rules()).brightness == pytest.approx(mean, abs=1.5)


def test_the_header_check_computes_no_brightness_and_no_hash():
    found = usable(encoded(scene(90, 70), "JPEG"), Rules(check="header"))
    assert (found.brightness, found.perceptual_hash) == (None, None)


@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("check", ["strict", "header"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_perceptual_hash_is_close_to_that_of_the_full_image(
    form: str, options: dict[str, object], check: str, seed: int
):
    import imagehash

    image = scene(400, 300, seed)
    whole = int(str(imagehash.phash(image)), 16)
    found = usable(encoded(image, form, **options), Rules(check=check, perceptual_hash=True)).perceptual_hash
    assert found is not None
    assert (found ^ whole).bit_count() <= 4


def test_hashes_differ_for_other_pictures_and_are_close_for_smaller_copies():
    first, other = (usable(encoded(scene(400, 300, seed), "JPEG"), HASHED).perceptual_hash for seed in (1, 2))
    small = usable(encoded(scene(400, 300, 1).resize((200, 150)), "JPEG", quality=80), HASHED).perceptual_hash
    assert first is not None
    assert other is not None
    assert small is not None
    assert (first ^ other).bit_count() > 16
    assert (first ^ small).bit_count() <= 6


def test_a_hash_is_computed_only_if_enabled():
    assert usable(encoded(scene(90, 70), "JPEG"), Rules()).perceptual_hash is None
