import io
import threading
from collections import Counter

import imagehash
import numpy as np
import pytest
from PIL import Image

from pipeline.gate import duplicates
from pipeline.gate.duplicates import GroupFacts, candidates, confirm, near_groups


def as_lists(groups: list[np.ndarray]) -> list[list[int]]:
    return [group.tolist() for group in groups]


def groups_of(*groups: list[int]) -> list[np.ndarray]:
    return [np.array(group, np.intp) for group in groups]


@pytest.mark.parametrize(
    ("contents", "groups"),
    [
        ([], []),
        ([5], []),
        ([5, 6], []),
        ([5, 5], [[0, 1]]),
        ([9, 5, 9, 5, 9], [[0, 2, 4], [1, 3]]),
        ([5, 8, 5], [[0, 2]]),
    ],
    ids=["none", "one", "different", "two", "in the order of the first", "another between"],
)
def test_candidates_have_equal_contents(contents: list[int], groups: list[list[int]]):
    assert as_lists(candidates(np.array(contents, np.uint64))) == groups


def test_candidates_are_confirmed_by_their_contents():
    contents = [b"a", b"b", b"a", b"c", b"d", b"b", b"e", b"e"]
    groups = groups_of([0, 1, 2, 5], [3, 4], [6, 7])
    assert as_lists(confirm(groups, contents.__getitem__, lambda _: 1)) == [
        [0, 2],
        [1, 5],
        [6, 7],
    ]


def test_candidates_are_read_by_several_threads():
    together = threading.Barrier(2, timeout=300)

    def read(index: int) -> bytes:
        together.wait()  # one thread alone would wait until the barrier breaks
        return b"same"

    assert as_lists(confirm(groups_of([0, 1]), read, lambda _: 1)) == [[0, 1]]


def test_an_unreadable_image_raises_its_error():
    def read(index: int) -> bytes:
        raise FileNotFoundError("gone.jpg")

    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        confirm(groups_of([0, 1]), read, lambda _: 1)


def compared_each_with_each(hashes: np.ndarray, distance: int) -> list[list[int]]:
    """Return what `near_groups` must find, by comparing all pairs."""
    near = np.bitwise_count(hashes[:, None] ^ hashes[None]) <= distance
    groups, seen = [], np.zeros(len(hashes), bool)
    for first in range(len(hashes)):
        group = np.zeros(len(hashes), bool)
        reached = near[first]
        while (reached & ~group).any():
            group, reached = group | reached, near[reached].any(axis=0)
        if not seen[first] and group.sum() > 1:
            groups.append(np.flatnonzero(group).tolist())
        seen |= group
    return groups


def random_hashes(count: int, bits: int = 64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**bits, count, dtype=np.uint64)


def with_flips(hashes: np.ndarray, flips: int) -> np.ndarray:
    """Return each hash, and each hash with at most `flips` bits flipped."""
    turned = np.random.default_rng(1).integers(0, 64, (flips, len(hashes)), dtype=np.uint64)
    return np.concatenate((hashes, hashes ^ np.bitwise_xor.reduce(np.uint64(1) << turned)))


def agreeing_in_two_bands() -> np.ndarray:
    """Return pairs that differ in one bit of each of four bands of six. Most hashes agree in the other two bands."""
    four_bands = np.uint64(sum(1 << bit for bit in range(64) if bit % 6 > 1))
    alike = random_hashes(150) & four_bands
    return np.concatenate((alike, alike ^ np.uint64(0b111100), random_hashes(200)))


@pytest.mark.parametrize(
    ("hashes", "distance"),
    [
        (random_hashes(0), 4),
        (random_hashes(500), 4),
        (with_flips(random_hashes(300), 4), 4),
        (with_flips(random_hashes(300), 5), 4),
        (with_flips(random_hashes(300), 3), 0),
        (random_hashes(300, bits=24), 4),
        (random_hashes(300, bits=3), 4),
        (random_hashes(300, bits=40), 10),
        (agreeing_in_two_bands(), 4),
    ],
    ids=["none", "random", "4 bits", "5 bits", "equal", "dense", "few bits", "far", "large runs"],
)
def test_near_groups_match_a_comparison_of_all_pairs(
    hashes: np.ndarray, distance: int, monkeypatch: pytest.MonkeyPatch
):
    expected = compared_each_with_each(hashes, distance)
    assert as_lists(near_groups(hashes, distance)) == expected
    monkeypatch.setattr(duplicates, "_LARGE_RUN", 64)  # Large runs otherwise need millions of hashes.
    if distance <= 4:
        assert as_lists(near_groups(hashes, distance)) == expected


def test_near_groups_are_transitive():
    assert as_lists(near_groups(np.array([0b1111, 9 << 40, 0, 0b11111111], np.uint64))) == [[0, 1, 2, 3]]
    assert as_lists(near_groups(np.array([0b1111, 0b11111 << 40, 0], np.uint64))) == [[0, 2]]


@pytest.mark.parametrize("distance", [-1, 11])
def test_a_distance_out_of_range_is_refused(distance: int):
    with pytest.raises(ValueError, match=f"distance must be within 0 to 10, got {distance}"):
        near_groups(random_hashes(2), distance)


def picture(seed: int) -> Image.Image:
    """Draw soft random shapes, which a perceptual hash distinguishes like photographs."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((320, 240), Image.Resampling.BICUBIC)


def saved(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def test_near_groups_hold_shrunk_and_reencoded_copies_but_no_other_pictures():
    images = [picture(seed) for seed in range(40)]
    images += [saved(images[0], 50), images[1].resize((160, 120)), saved(images[2].resize((107, 80)), 70)]
    hashes = np.array([int(str(imagehash.phash(image)), 16) for image in images], np.uint64)
    assert as_lists(near_groups(hashes)) == [[0, 40], [1, 41], [2, 42]]


SPLITS = ("train", "train", "validation", "test", "train", "validation", "validation")


def facts_of(groups: list[list[int]], splits: tuple[str, ...] = SPLITS) -> GroupFacts:
    facts = GroupFacts(Counter(splits))
    for group in groups:
        facts.add({"images": [{"path": f"{index}.jpg", "split": splits[index]} for index in group]})
    return facts


@pytest.mark.parametrize(
    ("groups", "leaking", "images"),
    [
        ([], [], 0),
        ([[0, 1]], [], 0),
        ([[2, 3]], [], 0),
        ([[0, 2]], [["0.jpg", "2.jpg"]], 1),
        ([[0, 3, 5], [1, 4], [2, 6]], [["0.jpg", "3.jpg"]], 2),
        ([[0, 5], [1, 2]], [["0.jpg", "5.jpg"], ["1.jpg", "2.jpg"]], 2),
        ([[2, 4, 6], [0, 1]], [["4.jpg", "2.jpg"]], 2),
    ],
)
def test_leaks_are_groups_of_training_and_other_images(groups: list[list[int]], leaking: list[list[str]], images: int):
    facts = facts_of(groups)
    assert facts.leaks == {"images": images, "of": 4, "names": leaking}
    assert facts.duplicates == {"images": sum(map(len, groups)), "groups": len(groups)}


def test_at_most_twenty_leaks_are_named():
    leaks = facts_of([[2 * index, 2 * index + 1] for index in range(1000)], ("train", "validation") * 1000).leaks
    assert (leaks["images"], leaks["of"], len(leaks["names"])) == (1000, 1000, 20)
