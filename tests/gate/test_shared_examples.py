"""Images in several versions or on both sides of the split, compared with a plain count."""

from collections import defaultdict

import numpy as np
import pytest

from pipeline.gate.shared_examples import NAMED_LEAKS, Examples, shared_facts


def plainly(examples: Examples) -> dict[str, dict[str, int]]:
    """Return the same facts, computed with a dictionary of all examples."""
    groups = defaultdict(list)
    for index, pair in enumerate(examples.hashes.tolist()):
        groups[tuple(pair)].append(index)
    several = [group for group in groups.values() if len(group) > 1]
    leaks = [group for group in several if 0 < sum(examples.held_back[group]) < len(group)]
    equal = {index for group in leaks for index in group}
    trained = set(examples.groups[~examples.held_back].tolist()) - {0}
    by_group = [
        index
        for index in np.flatnonzero(examples.held_back).tolist()
        if examples.groups[index] in trained and index not in equal
    ]
    shared = [group for group in several if len(set(examples.versions[group])) > 1]
    return {
        "duplicates": {"images": sum(map(len, several)), "groups": len(several)},
        "leaks": {
            "images": int(sum(examples.held_back[group].sum() for group in leaks)) + len(by_group),
            "only_by_group": len(by_group),
            "of": int(examples.held_back.sum()),
        },
        "shared": {"images": len(shared), "examples": sum(map(len, shared)), "of": len(examples.hashes)},
    }


def drawn(seed: int, count: int, different: int) -> Examples:
    random = np.random.default_rng(seed)
    # Some hashes agree only in their first half, or only in their second half.
    pool = random.integers(0, 2**64, (different, 2), np.uint64)
    pool[: different // 4, 0] = pool[0, 0]
    pool[different // 4 : different // 2, 1] = pool[-1, 1]
    return Examples(
        hashes=pool[random.integers(0, different, count)],
        # Most examples have no group.
        groups=pool[random.integers(0, different, count), 0] * (random.random(count) < 0.4),
        held_back=random.random(count) < 0.3,
        versions=np.sort(random.integers(0, 5, count)).astype(np.int16),
    )


@pytest.mark.parametrize(("count", "different"), [(0, 1), (1, 1), (2, 1), (40, 30), (1000, 400), (1000, 10)])
def test_shared_facts_match_a_plain_count(count: int, different: int):
    for seed in range(5):
        examples = drawn(seed, count, different)
        found = shared_facts(examples, str)
        names = found["leaks"].pop("names")
        expected = plainly(examples)
        assert found == expected
        assert bool(names) is bool(expected["leaks"]["images"])
        for training, other in (map(int, pair) for pair in names):
            is_equal = (examples.hashes[training] == examples.hashes[other]).all()
            assert is_equal or examples.groups[training] == examples.groups[other] != 0
            assert (bool(examples.held_back[training]), bool(examples.held_back[other])) == (False, True)
        assert len(names) <= NAMED_LEAKS
