"""The objects of a bucket are divided into ranges of about equal size with few requests."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise

import pytest

from pipeline.storage import boundaries, objects
from pipeline.storage.bucket_path import BucketPath
from pipeline.storage.gcs import client
from standins.fake_gcs import FakeGcs
from standins.fake_gcs.objects import Content

COUNT = 30_000
RANGES = 20
PAGE = 100
"""A page of the tests is small, so that the sizes of most ranges are estimated."""


def hashes(count: int) -> Iterator[str]:
    return (hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest() for number in range(count))


NAMES: dict[str, list[str]] = {
    "hashes": [f"{name}.jpg" for name in hashes(COUNT)],
    "folders of hashes": [f"{name[:2]}/{name}.jpg" for name in hashes(COUNT)],
    "numbers with zeros": [f"img_{number:09d}.jpg" for number in range(COUNT)],
    "numbers": [f"{number}.jpg" for number in range(COUNT)],
    "most in one folder": [f"cats/{n:06d}.jpg" for n in range(29_700)] + [f"{n % 50}/{n}.jpg" for n in range(300)],
    "most with one beginning": [f"cat_{n:06d}.jpg" for n in range(29_700)]
    + [f"{beginning}_{n}.jpg" for n in range(100) for beginning in "abz"],
    "classes": [f"n{n % 300:08d}/n{n % 300:08d}_{n}.jpg" for n in range(COUNT)],
    "splits": [f"{'val' if n % 10 else 'train'}/{n % 77}/{n}.jpg" for n in range(COUNT)],
    "splits in names": [f"{'val' if n % 10 else 'train'}-{n % 77}-{n}.jpg" for n in range(COUNT)],
    "days": [f"2024/{n % 12 + 1:02d}/{n % 28 + 1:02d}/{1_700_000_000 + 37 * n}.jpg" for n in range(COUNT)],
    "breeds": [f"{breed}_{n}.jpg" for breed in ("Bengal", "beagle", "boxer", "pug", "zebra") for n in range(6000)],
    "beyond ASCII": [f"{chr(0x4E00 + n % 500)}{n}.jpg" for n in range(COUNT)],
}
NEIGHBORS = ("photos/zz", "photos0/a", "photos-1/a", "a")
"""Objects beside the source."""


@pytest.fixture(params=["", "photos"])
def prefix(request: pytest.FixtureRequest) -> str:
    key: str = request.param
    return key


def fill(gcs: FakeGcs, prefix: str, names: Sequence[str]) -> BucketPath:
    place = BucketPath("many", prefix)
    gcs.create_bucket("many")
    content = Content(b"x")
    for name in names:
        gcs.api.buckets["many"].adopt(f"{prefix}/{name}" if prefix else name, content)
    return place


def sizes_of(names: Sequence[str], keys: Sequence[str]) -> list[int]:
    ordered = sorted(names)
    cuts = [0, *(bisect_left(ordered, key) for key in keys), len(ordered)]
    return [end - start for start, end in pairwise(cuts)]


@pytest.mark.long
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_ranges_are_about_equal(names: list[str], gcs: FakeGcs):
    place = fill(gcs, "photos", names)
    for name in NEIGHBORS:
        gcs.put("many", name, b"x")
    keys = boundaries(place, ("",), RANGES, min_objects=100, page_size=PAGE)
    sizes = sizes_of(names, keys)
    assert keys == sorted(set(keys))
    assert len(sizes) > RANGES * 0.8
    assert max(sizes) < 4 * COUNT / RANGES
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert gcs.requests["list"] < 20 * RANGES + 5 * len(folders)


def test_the_first_pages_do_not_decide_how_many_ranges_there_are(gcs: FakeGcs):
    others = [f"{beginning}_{number}.jpg" for number in range(333) for beginning in "abz"]
    names = [*others, *(f"cat_{number:06d}.jpg" for number in range(29_000))]
    keys = boundaries(fill(gcs, "photos", names), ("",), 1000, min_objects=1500, page_size=PAGE)
    assert max(sizes_of(names, keys)) < 2 * 1500


def test_the_parts_of_a_list_are_the_list(prefix: str, gcs: FakeGcs):
    names = [f"cats/{number:05d}.jpg" for number in range(2500)] + ["cats0/a.jpg", "cats-1/a.jpg", "dogs/花.jpg"]
    place = fill(gcs, prefix, names)
    for name in NEIGHBORS if prefix else ():
        gcs.put("many", name, b"x")
    whole = list(objects(place))
    keys = ["cats", "cats/", "cats/00100", "cats/02000.jpg", "cats0", "dogs/花.jpg", "dogs/花.jpg0"]
    parts = [list(objects(place, first, end)) for first, end in pairwise(("", *keys, ""))]
    assert [each for part in parts for each in part] == whole
    assert [len(part) for part in parts] == [0, 1, 100, 1900, 500, 1, 1, int(bool(prefix))]


def test_only_some_folders_are_divided(gcs: FakeGcs):
    names = [f"{name}/{number}.jpg" for name in ("train", "unused", "val") for number in range(3000)]
    keys = boundaries(fill(gcs, "photos", names), ("train/", "val/"), 6, 10, page_size=PAGE)
    sizes = sizes_of([name for name in names if not name.startswith("unused")], keys)
    assert len(sizes) == 6
    assert max(sizes) < 2 * 1000
    assert not [key for key in keys if key.startswith("unused")]


def test_a_small_source_takes_a_few_requests(prefix: str, gcs: FakeGcs):
    place = fill(gcs, prefix, [f"{number}/a.jpg" for number in range(3500)])
    assert boundaries(place, ("",), RANGES, 50_000) == []
    assert gcs.requests["list"] == 4
    assert len(boundaries(place, ("",), RANGES, 1000)) == 2
    assert boundaries(place / "nothing", ("",), RANGES, 1) == []


def test_a_bucket_may_send_fewer_names_than_requested(gcs: FakeGcs):
    place = fill(gcs, "photos", NAMES["splits"][:3000])
    gcs.api.page_sizes = cycle((0, 7, 1000, 1))
    keys = boundaries(place, ("",), 5, min_objects=100, page_size=PAGE)
    sizes = sizes_of(NAMES["splits"][:3000], keys)
    assert len(sizes) == 5
    assert max(sizes) < 2 * 600


def test_the_folders_of_a_flat_prefix_are_not_searched_for(gcs: FakeGcs):
    fill(gcs, "photos", [f"{number:06d}.jpg" for number in range(5000)])
    names, folders, is_last = client().level(BucketPath("many", "photos"), "", 4000)
    assert (len(names), folders, is_last) == (1000, [], False)


def test_an_empty_page_does_not_end_the_search_for_folders(gcs: FakeGcs):
    fill(gcs, "photos", [f"{number:02d}/a.jpg" for number in range(50)])
    gcs.api.page_sizes = cycle((0, 20))
    names, folders, is_last = client().level(BucketPath("many", "photos"), "", 4000)
    assert (names, len(folders), is_last) == ([], 50, True)
