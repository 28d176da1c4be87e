import random

import google_crc32c
import pytest

from pipeline.storage import crc32c

LENGTHS = [0, 1, 7, 4095, 4096, 4097, 8192, 65_535, 65_536, 110_000, 1 << 20, (1 << 20) + 4095]


def combined(crc_a: int, crc_b: int, length_b: int) -> int:
    """Combine two CRCs, and check that both positions of the pair give the same result."""
    first, other = crc32c.combine(crc_a, 0xDEADBEEF, crc_b, length_b)
    assert crc32c.combine(0xDEADBEEF, crc_a, crc_b, length_b) == (other, first)
    return first


@pytest.mark.parametrize("length_b", LENGTHS)
@pytest.mark.parametrize("length_a", [0, 1, 12, 5000])
def test_combining_equals_the_crc_of_all_bytes(length_a: int, length_b: int):
    rng = random.Random(length_a * 7 + length_b)
    a, b = rng.randbytes(length_a), rng.randbytes(length_b)
    assert combined(google_crc32c.value(a), google_crc32c.value(b), length_b) == google_crc32c.value(a + b)


def test_combining_equals_the_crc_for_random_splits():
    rng = random.Random(0)
    whole = rng.randbytes(300_000)
    expected = google_crc32c.value(whole)
    for cut in (rng.randrange(len(whole) + 1) for _ in range(200)):
        a, b = whole[:cut], whole[cut:]
        assert combined(google_crc32c.value(a), google_crc32c.value(b), len(b)) == expected


@pytest.mark.parametrize("bit", range(12, 36))
def test_a_long_part_equals_its_two_halves(bit: int):
    half = 1 << bit
    twice = combined(combined(0x12345678, 0, half), 0, half)
    assert combined(0x12345678, 0, 2 * half) == twice


def test_combining_gives_the_check_value_of_rfc_3720():
    # RFC 3720, B.4: 32 bytes of zeros.
    assert combined(google_crc32c.value(bytes(16)), google_crc32c.value(bytes(16)), 16) == 0x8A9136AA
