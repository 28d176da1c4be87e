"""The verdict on real jobs that wait, decode and pause. They measure the machine, so they run one at a time."""

import os
from pathlib import Path

import pytest

from pipeline.monitor.limits import Limit
from pipeline.monitor.verdict import Verdict
from tests.monitor.jobs import STEP_S, ahead, decoded, every, job, pausing

# These jobs run alone, because parallel tests would count as other programs, which hide the limits of the jobs.
pytestmark = [pytest.mark.long, pytest.mark.alone]
LONG_STEP_S = 0.05
DISTURBED_CORES = 0.35
"""From this number of cores on, which other programs keep busy, a job has other limits than the test gave it."""
THREE_TIMES = pytest.mark.parametrize("time", range(3))


def require(is_right: bool, judged: Verdict) -> None:
    """Fail if a verdict is wrong. It does not count beside other programs, which make pauses end late.

    Steps of 20 ms then took 27 ms, so that the input was no longer the slower one.
    """
    is_disturbed = (judged.load.other_cores or 0.0) > DISTURBED_CORES
    assert is_right or is_disturbed, judged.sentence


@THREE_TIMES
def test_a_job_with_a_slow_input_is_input_bound(tmp_path: Path, time: int) -> None:
    with ahead(every(10 * STEP_S)) as batches:
        judged = job(tmp_path, batches, steps=40)
    require(judged.sentence.startswith("Input-bound (reading): ") and judged.wait_fraction > 0.8, judged)


@THREE_TIMES
def test_a_job_with_a_slightly_slow_input_is_moderately_input_bound(tmp_path: Path, time: int) -> None:
    """A batch takes slightly longer than a step, so a tenth of the time is waiting."""
    with ahead(every(1.12 * STEP_S)) as batches:
        judged = job(tmp_path, batches)
    require(judged.sentence.startswith("Moderately input-bound ("), judged)


@THREE_TIMES
def test_a_job_with_a_fast_input_is_compute_bound(tmp_path: Path, time: int) -> None:
    # With steps of 20 ms, host time reached 7.7% when other programs interrupted the job.
    with ahead(every(0.4 * LONG_STEP_S)) as batches:
        judged = job(tmp_path, batches, steps=60, step_s=LONG_STEP_S)
    require(judged.limit is Limit.COMPUTE and judged.wait_fraction < 0.1, judged)


def test_a_job_that_decodes_on_all_cores_is_limited_by_decoding(tmp_path: Path) -> None:
    with decoded(4 * STEP_S * (os.cpu_count() or 1)) as batches:
        judged = job(tmp_path, batches, steps=60)
    require(judged.limit is Limit.DECODING, judged)


@pytest.mark.parametrize(("buffer", "limit"), [(2, Limit.BUFFER), (40, Limit.COMPUTE)])
def test_a_larger_buffer_bridges_pauses_of_the_input(tmp_path: Path, buffer: int, limit: Limit) -> None:
    with ahead(pausing(10 * STEP_S, after=20), buffer) as batches:
        judged = job(tmp_path, batches)
    require(judged.limit is limit, judged)


def test_a_job_with_a_slow_loop_is_host_bound(tmp_path: Path) -> None:
    with ahead(every(0.0)) as batches:
        judged = job(tmp_path, batches, host_s=STEP_S)
    require(judged.limit is Limit.HOST, judged)


@pytest.mark.parametrize(("host", "input_", "is_host"), [(0.5, 2.5, False), (1.0, 2.5, True)])
def test_the_stronger_of_two_limits_is_named(tmp_path: Path, host: float, input_: float, is_host: bool) -> None:
    with ahead(every(input_ * STEP_S)) as batches:
        judged = job(tmp_path, batches, host_s=host * STEP_S)
    require((judged.limit is Limit.HOST) == is_host, judged)
