import pytest
from PIL import Image

from pipeline.images.examine import Rules
from tests.images.drawn import encoded, scene, usable

HASHED = Rules(perceptual_hash=True)
FORMS = {
    "kept": ("JPEG", {}),
    "kept PNG": ("PNG", {}),
    "anew": ("BMP", {}),
    "progressive": ("JPEG", {"progressive": True}),
}


@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("gray", [0, 90, 255])
def test_brightness_is_the_mean_luminance(form: str, options: dict[str, object], gray: int):
    image = encoded(Image.new("RGB", (90, 70), (gray, gray, gray)), form, **options)
    assert usable(image, Rules()).brightness == pytest.approx(gray, abs=0.5)


@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
def test_brightness_from_a_fraction_of_the_size_is_that_of_the_whole(form: str, options: dict[str, object]):
    luminance = scene(333, 257).convert("L")
    mean = sum(luminance.tobytes()) / (333 * 257)
    assert usable(encoded(scene(333, 257), form, **options), Rules()).brightness == pytest.approx(mean, abs=1.5)


def test_no_pixel_is_decoded_for_the_header_check():
    found = usable(encoded(scene(90, 70), "JPEG"), Rules(check="header"))
    assert (found.brightness, found.perceptual_hash) == (None, None)


@pytest.mark.parametrize(("form", "options"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("check", ["strict", "header"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_perceptual_hash_is_nearly_that_of_the_whole_image(
    form: str, options: dict[str, object], check: str, seed: int
):
    import imagehash

    image = scene(400, 300, seed)
    whole = int(str(imagehash.phash(image)), 16)
    found = usable(encoded(image, form, **options), Rules(check=check, perceptual_hash=True)).perceptual_hash
    assert found is not None
    assert (found ^ whole).bit_count() <= 4


def test_other_pictures_have_other_hashes_and_smaller_copies_nearly_the_same():
    first, other = (usable(encoded(scene(400, 300, seed), "JPEG"), HASHED).perceptual_hash for seed in (1, 2))
    small = usable(encoded(scene(400, 300, 1).resize((200, 150)), "JPEG", quality=80), HASHED).perceptual_hash
    assert first is not None
    assert other is not None
    assert small is not None
    assert (first ^ other).bit_count() > 16
    assert (first ^ small).bit_count() <= 6


def test_a_hash_is_only_made_where_it_is_asked_for():
    assert usable(encoded(scene(90, 70), "JPEG"), Rules()).perceptual_hash is None
