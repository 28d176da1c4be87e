"""The verdict on jobs that really wait, decode and pause. They measure the machine: one after another, and alone."""

import os
from pathlib import Path

import pytest

from pipeline.monitor.limits import Limit
from tests.monitor.jobs import STEP_S, ahead, decoded, every, job, pausing

# Alone: other tests beside them would be the other programs that these jobs must not have.
pytestmark = [pytest.mark.long, pytest.mark.alone]
LONG_STEP_S = 0.05
THREE_TIMES = pytest.mark.parametrize("time", range(3))


@THREE_TIMES
def test_input_bound(tmp_path: Path, time: int) -> None:
    with ahead(every(10 * STEP_S)) as batches:
        judged = job(tmp_path, batches, steps=40)
    assert judged.sentence.startswith("Input-bound (reading): "), judged.sentence
    assert judged.wait_fraction > 0.8


@THREE_TIMES
def test_balanced(tmp_path: Path, time: int) -> None:
    """The input needs a little longer for a batch than a step does: a tenth of it is waiting."""
    with ahead(every(1.12 * STEP_S)) as batches:
        judged = job(tmp_path, batches)
    assert judged.sentence.startswith("Moderately input-bound ("), judged.sentence


@THREE_TIMES
def test_compute_bound(tmp_path: Path, time: int) -> None:
    # Of 20 ms, the loop's own share came to 7.7% where others on the same host took the processor away for moments.
    with ahead(every(0.4 * LONG_STEP_S)) as batches:
        judged = job(tmp_path, batches, steps=60, step_s=LONG_STEP_S)
    assert judged.limit is Limit.COMPUTE, judged.sentence
    assert judged.wait_fraction < 0.1


def test_decoding_on_all_cores(tmp_path: Path) -> None:
    with decoded(4 * STEP_S * (os.cpu_count() or 1)) as batches:
        judged = job(tmp_path, batches, steps=60)
    assert judged.limit is Limit.DECODING, judged.sentence


@pytest.mark.parametrize(("buffer", "limit"), [(2, Limit.BUFFER), (40, Limit.COMPUTE)])
def test_pauses_are_bridged_by_a_larger_buffer(tmp_path: Path, buffer: int, limit: Limit) -> None:
    with ahead(pausing(10 * STEP_S, after=20), buffer) as batches:
        judged = job(tmp_path, batches)
    assert judged.limit is limit, judged.sentence


def test_the_loop_itself(tmp_path: Path) -> None:
    with ahead(every(0.0)) as batches:
        judged = job(tmp_path, batches, host_s=STEP_S)
    assert judged.limit is Limit.HOST, judged.sentence


@pytest.mark.parametrize(("host", "input_", "is_host"), [(0.5, 2.5, False), (1.0, 2.5, True)])
def test_of_two_limits_the_stronger_is_named(tmp_path: Path, host: float, input_: float, is_host: bool) -> None:
    with ahead(every(input_ * STEP_S)) as batches:
        judged = job(tmp_path, batches, host_s=host * STEP_S)
    assert (judged.limit is Limit.HOST) == is_host, judged.sentence
