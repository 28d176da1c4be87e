"""The verdict on the numbers of a machine with 64 cores."""

import random

import pytest

from benchmarks import verdicts
from benchmarks.known_limits.jobs import Job
from benchmarks.known_limits.many_cores import CORES, MANY_CORES, STEP_S, ManyCores, Stage
from pipeline.monitor.limits import Limit


@pytest.mark.parametrize("many", [pytest.param(each, id=each.job.name) for each in MANY_CORES])
def test_the_verdict_names_no_wrong_limit_on_64_cores(many: ManyCores) -> None:
    judged = many.verdict()
    assert many.job.is_named_by(frozenset(judged.limits), beside_others=False), judged.sentence


def test_the_report_of_the_benchmark_has_the_jobs_on_many_cores() -> None:
    lines = verdicts.report({}, [], [])
    assert lines[0] == "### As if on 64 cores"
    assert f"{len(MANY_CORES)} of {len(MANY_CORES)} verdicts name the limit and no wrong one." in lines


def reader(rng: random.Random) -> Stage:
    """Return a stage that reads 30 MB a batch from a disk, a file server or a bucket."""
    seconds, size = 10 ** rng.uniform(-1.5, 0.8), 3e7
    return rng.choice(
        [
            Stage(0.02, 8, disk_s=seconds, disk_bytes=size),
            Stage(0.02, 8, disk_s=seconds, network_bytes=size),
            Stage(0.02, 8, network_s=seconds, network_bytes=size),
        ]
    )


def test_the_verdict_names_the_slowest_stage_of_random_inputs() -> None:
    rng, named = random.Random(0), []
    while len(named) < 200:
        decoding, serial = Stage(10 ** rng.uniform(-1, 1.3)), Stage(10 ** rng.uniform(-2, -0.3), threads=1)
        stages = (decoding, serial, reader(rng))
        of_cores = CORES / (sum(stage.cpu_s for stage in stages) + STEP_S)
        rates = {
            Limit.DECODING: min(decoding.rate, of_cores),
            Limit.SERIAL: serial.rate,
            Limit.READING: stages[2].rate,
        }
        slowest, second, _ = sorted(rates.values())
        if slowest < 0.94 / STEP_S and second > 1.15 * slowest:  # The input is clearly the limit, and one stage of it.
            [limit] = [limit for limit, rate in rates.items() if rate == slowest]
            named.append(limit in ManyCores(Job("random", frozenset()), stages).verdict().limits)
    assert sum(named) >= 0.97 * len(named)
