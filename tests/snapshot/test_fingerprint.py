"""The fingerprint of rows depends neither on their order nor on their division into parts."""

import hashlib
import random
from itertools import pairwise

from pipeline.snapshot.fingerprint import Fingerprint, hashes_of

ROWS = [b"row %d" % number for number in range(100)]


def of(rows: list[bytes]) -> Fingerprint:
    fingerprint = Fingerprint()
    for start in range(0, len(rows), 30):
        fingerprint.add(hashes_of(rows[start : start + 30]))
    return fingerprint


def test_the_order_of_the_rows_does_not_matter():
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    assert of(shuffled).hexdigest() == of(ROWS).hexdigest()


def test_the_sum_is_that_of_all_hashes_modulo_a_power_of_two():
    hashes = [int.from_bytes(hashlib.blake2b(row, digest_size=32).digest(), "little") for row in ROWS]
    assert of(ROWS).sum == sum(hashes) % 2**256 != sum(hashes)


def test_merged_parts_have_the_fingerprint_of_the_whole():
    for cuts in ([0, 100], [0, 1, 100], [0, 0, 50, 50, 99, 100], list(range(101))):
        parts = [of(ROWS[start:end]) for start, end in pairwise(cuts)]
        merged = Fingerprint()
        for part in random.Random(2).sample(parts, len(parts)):
            merged.merge(part)
        assert merged.hexdigest() == of(ROWS).hexdigest()


def test_no_rows_are_added():
    fingerprint = of(ROWS)
    fingerprint.add(hashes_of([]))
    assert fingerprint.hexdigest() == of(ROWS).hexdigest()


def test_other_rows_have_another_fingerprint():
    changed = [*ROWS[:-1], b"row X"]
    doubled, without, none = [*ROWS, ROWS[0]], ROWS[1:], list[bytes]()
    found = {of(rows).hexdigest() for rows in (ROWS, changed, doubled, [*ROWS, ROWS[0], ROWS[0]], without, none)}
    assert len(found) == 6
    assert all(len(fingerprint) == 32 for fingerprint in found)
