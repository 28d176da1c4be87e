import json

import numpy as np
import pytest

from pipeline.gate.statistics import EDGES, Statistics, drift, stability_index

IMAGES = [(240, 320, 60_000, 100.0), (500, 333, 90_000, 30.5), (2000, 3000, 5_000_000, None), (1, 1, 70, 255.0)]


def tally(images: list[tuple[int, int, int, float | None]]) -> Statistics:
    statistics = Statistics()
    statistics.add(images)
    return statistics


@pytest.mark.parametrize(
    ("name", "image", "bin_edges"),
    [
        ("sizes", (240, 320, 1, None), (200, 290)),
        ("sizes", (320, 200, 1, None), (200, 290)),
        ("sizes", (1, 9999, 1, None), (None, 8)),
        ("sizes", (5000, 4000, 1, None), (4000, None)),
        ("aspect", (240, 320, 1, None), (1.29, 1.41)),
        ("aspect", (320, 240, 1, None), (0.71, 0.78)),
        ("bytes", (1, 1, 2_500, None), (2000, 4000)),
        ("brightness", (1, 1, 1, 0.0), (None, 16)),
        ("brightness", (1, 1, 1, 127.9), (112, 128)),
        ("brightness", (1, 1, 1, 255.0), (240, None)),
    ],
)
def test_an_image_is_counted_in_its_bin(
    name: str, image: tuple[int, int, int, float | None], bin_edges: tuple[float | None, float | None]
):
    histogram = tally([image]).to_json()["histograms"][name]
    place = histogram["counts"].index(1)
    edges = [None, *histogram["edges"], None]
    assert (edges[place], edges[place + 1]) == bin_edges
    assert sum(histogram["counts"]) == 1


@pytest.mark.parametrize("side", [28, 32, 64, 96, 128, 224, 240, 256, 320, 333, 375, 480, 500, 512, 640, 720, 1080])
def test_common_sizes_are_not_next_to_a_bin_edge(side: int):
    assert len({tuple(tally([(s, 2 * s, 1, None)]).counts["sizes"]) for s in (side - 1, side, side + 1)}) == 1


def test_statistics_sum_up_sides_and_bytes():
    content = tally(IMAGES).to_json()
    assert content["images"] == 4
    assert content["bytes"] == 5_150_070
    assert content["height"] == {"min": 1, "max": 2000, "mean": 685.2, "sum": 2741}
    assert content["width"] == {"min": 1, "max": 3000, "mean": 913.5, "sum": 3654}
    assert sum(content["histograms"]["brightness"]["counts"]) == 3  # One image has no brightness.


def test_statistics_of_shards_merge_in_any_order():
    parts = [tally(IMAGES[:1]), tally([]), tally(IMAGES[1:])]
    forwards, backwards = Statistics(), Statistics()
    for part in parts:
        forwards.merge(Statistics.from_json(json.loads(json.dumps(part.to_json()))))
    for part in reversed(parts):
        backwards.merge(part)
    assert forwards.to_json() == backwards.to_json() == tally(IMAGES).to_json()


def test_empty_statistics_have_no_mean():
    content = Statistics().to_json()
    assert content["height"] == {"min": None, "max": None, "mean": None, "sum": 0}
    assert Statistics.from_json(content).to_json() == content


@pytest.mark.parametrize(
    ("now", "before", "index"),
    [
        ([100_000, 100_000], [100_000, 100_000], 0.0),
        # 0.1 ln(0.5 / 0.4) + 0.1 ln(0.6 / 0.5), minus the part that chance explains
        ([50_000_000, 50_000_000], [40_000_000, 60_000_000], 0.0405),
        ([7, 0, 3], [7, 0, 3], 0.0),
        ([10], [20], 0.0),
    ],
)
def test_the_stability_index_of_known_counts(now: list[int], before: list[int], index: float):
    assert stability_index(now, before) == pytest.approx(index, abs=1e-4)


def test_an_empty_bin_gives_a_large_finite_index():
    assert 5 < stability_index([1000, 0], [0, 1000]) < 20


def test_bins_that_are_empty_in_both_do_not_count():
    assert stability_index([500, 0, 0, 100], [300, 0, 0, 300]) == stability_index([500, 100], [300, 300]) > 0


def qualities(images: int, draws: int, brighter: float = 0) -> list[tuple[dict, dict]]:
    """Return pairs of datasets drawn from one population similar to the flowers. The second can be brighter."""
    rng = np.random.default_rng(0)

    def quality(brightness: float) -> dict:
        shapes = np.array([(240, 320), (213, 320), (333, 500), (240, 180), (375, 500)])[rng.integers(0, 5, images)]
        grays = np.clip(rng.normal(100 + brightness, 30, images), 0, 255)
        statistics = tally([(int(h), int(w), 60_000, float(g)) for (h, w), g in zip(shapes, grays, strict=True)])
        classes = dict(zip("abcde", rng.multinomial(images, [0.2] * 5).tolist(), strict=True))
        return {"statistics": statistics.to_json(), "classes": classes}

    return [(quality(0), quality(brighter)) for _ in range(draws)]


@pytest.mark.parametrize(("images", "most"), [(20, 0.25), (100, 0.1), (1000, 0.1)])
def test_two_samples_of_one_population_do_not_drift(images: int, most: float):
    found = [drift(*pair) for pair in qualities(images, draws=30)]
    assert all(set(numbers) == {"sizes", "aspect", "brightness", "classes"} for numbers in found)
    assert max(max(numbers.values()) for numbers in found) < most


@pytest.mark.parametrize("images", [100, 1000])
def test_brighter_images_drift_only_in_brightness(images: int):
    for pair in qualities(images, draws=10, brighter=60):
        numbers = drift(*pair)
        assert numbers.pop("brightness") > 0.5
        assert max(numbers.values()) < 0.1


def test_classes_drift_when_their_shares_change_or_a_class_is_new():
    assert drift({"classes": {"a": 900, "b": 100}}, {"classes": {"a": 500, "b": 500}})["classes"] > 0.25
    assert drift({"classes": {"a": 500, "c": 500}}, {"classes": {"a": 500}})["classes"] > 0.25


def test_drift_leaves_out_statistics_missing_on_either_side():
    known = {"statistics": tally(IMAGES).to_json(), "classes": {"a": 4}}
    assert drift(known, {}) == {}
    assert drift({"statistics": None, "classes": {}}, known) == {}
    assert set(drift({**known, "classes": {}}, known)) == {"sizes", "aspect", "brightness"}
    assert drift({"statistics": tally([IMAGES[2]]).to_json()}, known).keys() == {"sizes", "aspect"}


def test_edges_ascend():
    assert all(list(edges) == sorted(set(edges)) for edges in EDGES.values())
