"""Costs of the stages: shares, words, the file of a training, and the slow one of several servers."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.evaluation.estimates import Estimate
from pipeline.report.slow_stage import slow_stage
from pipeline.runs.files import STAGES
from pipeline.tuning.stages import StageCosts, costs_of, load_stages, save_stages, stages_of_servers


def costs(**us: float) -> StageCosts:
    """Return the costs of a server whose stages take as many CPU microseconds as they take in all."""
    return StageCosts({name: Estimate(value, value, value) for name, value in us.items()}, 1000.0, 64, 1.0, dict(us))


PHOTOS = costs(read=80.0, parse=20.0, decode=1100.0, resize=500.0, batch=200.0)


def test_the_shares_add_up_to_the_whole() -> None:
    assert PHOTOS.total_us == 1900
    assert sum(PHOTOS.shares.values()) == pytest.approx(1)
    assert PHOTOS.shares["decode"] == pytest.approx(11 / 19)


def test_a_sentence_names_the_longest_stage_first() -> None:
    assert PHOTOS.sentence("image") == (
        "Of 1.9 ms of processor time per image, decoding takes 1.1 ms, resizing 500 µs, making batches 200 µs, reading "
        "80 µs, parsing 20 µs."
    )
    assert costs(read=1.0, parse=998.0, batch=1.0).sentence("row") == (
        "Of 1 ms of processor time per row, parsing takes 998 µs."
    )


def test_the_interval_contains_the_noise_of_the_blocks() -> None:
    draw = np.random.default_rng(1)
    blocks = [{"read": (10.0, 5.0), "decode": (draw.normal(1000, 100), 500.0)} for _ in range(25)]
    found = costs_of(blocks, read_us=30.0, bytes_per_example=1e5, examples=400, cpu_s=1.0)
    low, high = found.us["decode"][1:]
    assert found.us["read"] == (10, 10, 10)
    assert found.us["decode"].value == pytest.approx(np.mean([each["decode"][0] for each in blocks]))
    # The standard error is 100 / 5.
    assert high - low == pytest.approx(2 * 1.96 * 20, rel=0.35)
    assert found.elapsed_us == {"read": 30, "decode": 500}  # Reading is timed where the dataset is.
    assert not found.is_narrow
    assert costs_of(blocks * 20, read_us=30.0, bytes_per_example=1e5, examples=400, cpu_s=1.0).is_narrow


def test_a_stage_that_takes_no_time_has_no_negative_cost() -> None:
    found = costs_of(
        [{"parse": (-3.0, -2.0), "batch": (9.0, 9.0)}] * 8, read_us=0, bytes_per_example=1, examples=8, cpu_s=1
    )
    assert found.us["parse"] == (0, 0, 0)
    assert found.shares == {"parse": 0, "batch": 1}


def test_the_file_of_a_training_holds_the_costs(tmp_path: Path) -> None:
    assert load_stages(tmp_path) is None
    save_stages(tmp_path, PHOTOS)
    assert load_stages(tmp_path) == PHOTOS


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"us": {"read": [1]}}', '{"us": {"read": ["a", 1, 1]}, "elapsed_us": {}}']
)
def test_a_damaged_file_counts_as_missing(tmp_path: Path, content: str) -> None:
    (tmp_path / STAGES).write_text(content, "utf-8")
    assert load_stages(tmp_path) is None


def test_a_stage_that_nobody_knows_is_left_out(tmp_path: Path) -> None:
    save_stages(tmp_path, PHOTOS)
    content = json.loads((tmp_path / STAGES).read_text("utf-8"))
    content["us"]["<script>"] = content["elapsed_us"]["<script>"] = 5
    (tmp_path / STAGES).write_text(json.dumps(content), "utf-8")
    assert load_stages(tmp_path) == PHOTOS


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("stage", ["read", "decode", "resize"])
def test_a_planted_slow_server_and_its_stage_are_named(tmp_path: Path, slow: int, stage: str) -> None:
    for server in range(3):
        us = {"read": 400.0, "parse": 20.0, "decode": 1100.0 + 10 * server, "resize": 500.0, "batch": 50.0}
        us[stage] += 2700.0 if server == slow else 0.0
        folder = tmp_path / (f"servers/{server}" if server else "")
        folder.mkdir(parents=True, exist_ok=True)
        save_stages(folder, costs(**us))
    servers = stages_of_servers(tmp_path)
    assert list(servers) == [0, 1, 2]
    found = slow_stage(servers)
    assert found is not None
    assert (found.server, found.stage) == (slow, stage)


def test_a_slow_server_is_named_with_its_numbers() -> None:
    found = slow_stage({0: costs(read=400.0, decode=300.0), 1: costs(read=3100.0, decode=310.0)})
    assert found is not None
    assert found.sentence("image") == (
        "The input of server 1 is slower than that of the others: reading takes 3.1 ms per image, and 400 µs on the "
        "others."
    )


def test_equal_servers_and_a_single_one_are_not_slow() -> None:
    assert slow_stage({0: PHOTOS}) is None
    assert slow_stage({0: PHOTOS, 1: costs(read=90.0, parse=30.0, decode=1500.0, resize=600.0, batch=250.0)}) is None
