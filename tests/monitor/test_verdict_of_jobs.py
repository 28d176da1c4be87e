"""The verdict on real jobs that wait, decode and pause. They measure the machine, so they run one at a time."""

import os
from pathlib import Path

import pytest

from pipeline.monitor.limits import Limit
from tests.monitor.jobs import STEP_S, ahead, decoded, every, job, pausing, skipped_if_disturbed

# These jobs run alone, because parallel tests would count as other programs, which hide the limits of the jobs.
pytestmark = [pytest.mark.long, pytest.mark.alone]
LONG_STEP_S = 0.05
THREE_TIMES = pytest.mark.parametrize("time", range(3))


@THREE_TIMES
@skipped_if_disturbed()
def test_a_job_with_a_slow_input_is_input_bound(tmp_path: Path, time: int) -> None:
    with ahead(every(10 * STEP_S)) as batches:
        judged = job(tmp_path, batches, steps=40)
    # Other programs of this machine may receive something meanwhile, which looks like reading.
    assert judged.limit in (Limit.WAITING, Limit.READING), judged.sentence
    assert judged.wait_fraction > 0.8, judged.sentence


@THREE_TIMES
@skipped_if_disturbed()
def test_a_job_with_a_slightly_slow_input_is_moderately_input_bound(tmp_path: Path, time: int) -> None:
    """A batch takes slightly longer than a step, so a tenth of the time is waiting."""
    with ahead(every(1.12 * STEP_S)) as batches:
        judged = job(tmp_path, batches)
    assert judged.sentence.startswith("Moderately input-bound ("), judged.sentence


@THREE_TIMES
@skipped_if_disturbed()
def test_a_job_with_a_fast_input_is_compute_bound(tmp_path: Path, time: int) -> None:
    # With steps of 20 ms, host time reached 7.7% when other programs interrupted the job.
    with ahead(every(0.4 * LONG_STEP_S)) as batches:
        judged = job(tmp_path, batches, steps=60, step_s=LONG_STEP_S)
    assert judged.limit is Limit.COMPUTE, judged.sentence
    assert judged.wait_fraction < 0.1, judged.sentence


@skipped_if_disturbed()
def test_a_job_that_decodes_on_all_cores_is_limited_by_decoding(tmp_path: Path) -> None:
    with decoded(4 * STEP_S * (os.cpu_count() or 1)) as batches:
        judged = job(tmp_path, batches, steps=60)
    assert judged.limit is Limit.DECODING, judged.sentence


@pytest.mark.parametrize(("buffer", "limit"), [(2, Limit.BUFFER), (40, Limit.COMPUTE)])
@skipped_if_disturbed()
def test_a_larger_buffer_bridges_pauses_of_the_input(tmp_path: Path, buffer: int, limit: Limit) -> None:
    with ahead(pausing(10 * STEP_S, after=20), buffer) as batches:
        judged = job(tmp_path, batches)
    assert judged.limit is limit, judged.sentence


@skipped_if_disturbed()
def test_a_job_with_a_slow_loop_is_host_bound(tmp_path: Path) -> None:
    with ahead(every(0.0)) as batches:
        judged = job(tmp_path, batches, host_s=STEP_S)
    assert judged.limit is Limit.HOST, judged.sentence


@pytest.mark.parametrize(("host", "input_", "is_host"), [(0.5, 2.5, False), (1.0, 2.5, True)])
@skipped_if_disturbed()
def test_the_stronger_of_two_limits_is_named(tmp_path: Path, host: float, input_: float, is_host: bool) -> None:
    with ahead(every(input_ * STEP_S)) as batches:
        judged = job(tmp_path, batches, host_s=host * STEP_S)
    assert (judged.limit is Limit.HOST) == is_host, judged.sentence
