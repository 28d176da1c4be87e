"""The predicted gain of a change, against values that follow by hand from what was measured."""

import json
import random
import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipeline.config.automatic import training_settings
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.epochs import whole_epochs
from pipeline.monitor.limits import Limit, Part
from pipeline.monitor.load import Load
from pipeline.monitor.verdict import Verdict
from pipeline.runs.measured_caches import MeasuredCaches
from pipeline.runs.measured_steps import MeasuredSteps, StepRatio
from pipeline.runs.promises import MIN_PROMISES, Promise
from pipeline.tuning.advice import advice
from pipeline.tuning.predictions import (
    PREPARED,
    Facts,
    Hardware,
    Prediction,
    facts_of,
    predictions,
    rates_on,
    since_change,
)
from pipeline.tuning.rates import observed
from pipeline.tuning.stages import StageCosts, save_stages
from tests.monitor.epoch_records import EXAMPLES, record_epochs

SETTINGS = {"image_size": 64, "batch_size": 10, "epochs": 4, "cache": "off", "crop": "random_resized"}


def costs(size: float = 50_000, width: float = 0.0, **us: float) -> StageCosts:
    """Return costs in µs. `width` is half of the width of each interval, as a share."""
    return StageCosts(
        {name: Estimate(each, each * (1 - width), each * (1 + width)) for name, each in us.items()}, size, 100, 1
    )


KEPT = costs(read=20, parse=10, decode=800, resize=70, batch=100)
"""1,000 µs."""
RESIZED = costs(2_500, read=5, parse=10, decode=85, resize=0, batch=100)
"""200 µs."""


def verdict(*limits: Limit, us: float = 1000, wait: float = 0.9, **of_load: Any) -> Verdict:
    """Return a verdict on a simulated accelerator, with `us` µs for an example and batches of 10, on two cores."""
    load = Load(**{"cores": 2, "usable_cores": 2, "own_cores": 1.0, "busy": 50.0, "busiest_thread": 50.0, **of_load})
    return Verdict(limits, "It is so.", load, wait, wait * us / 100, us / 100, 1e6 / us, {Part.INPUT: wait}, True)


DECODING = verdict(Limit.DECODING, us=500, own_cores=2.0, busy=100.0)
"""Two busy cores, 1,000 µs of processor time for an example."""


def facts(of: Verdict = DECODING, stages: StageCosts | None = KEPT, **values: Any) -> Facts:
    own = {
        "prepared": {"resize": RESIZED} if stages else {},
        "train_examples": 900,
        "validation_examples": 100,
        **values,
    }
    own = {"drawn_examples": own["train_examples"] + own["validation_examples"], **own}
    settings = training_settings({**SETTINGS, **own.pop("settings", {})})
    return Facts(of, settings, stages=stages, memory_bytes=1e10, **own)


def found(of: Facts, name: str, hardware: Hardware | None = None) -> Prediction:
    [one] = [each for each in predictions(of, hardware) if name in each.change][:1]
    return one


def with_shares(of: Verdict, **shares: float) -> Verdict:
    return replace(of, shares={Part(name): share for name, share in shares.items()})


def test_cheaper_images_gain_what_the_cores_save():
    """1,000 µs of two cores become 200 µs: five times the rate, until the step of 50 µs would be longer."""
    assert found(facts(), "prepare").factor == pytest.approx((5, 5, 5), rel=1e-6)
    long_step = facts(replace(DECODING, wait_fraction=0.5), settings={"simulated_step_ms": 2.5})
    assert found(long_step, "prepare").factor.value == pytest.approx(2)


@pytest.mark.parametrize(
    ("of_verdict", "settings"),
    [
        ({}, {"simulated_step_ms": 0.5}),
        ({"is_simulated": False, "load": replace(DECODING.load, gpu=10.0)}, {"simulated_step_ms": 0}),
    ],
    ids=["simulated", "GPU"],
)
def test_a_step_beside_full_cores_may_have_waited_for_a_core(of_verdict: dict[str, Any], settings: dict[str, Any]):
    """The accelerator works for 50 of the 250 µs that are no wait for data. The prepared input needs 100 µs."""
    of = replace(DECODING, wait_fraction=0.5, **of_verdict)
    assert found(facts(of, settings=settings), "prepare").factor == pytest.approx((3.3, 2.05, 5), abs=0.15)
    waits = with_shares(of, checkpoints=0.3)  # For 150 of the 250 µs, it waited for a checkpoint.
    assert found(facts(waits, settings=settings), "prepare").factor == pytest.approx((2.22, 2.0, 2.5), abs=0.03)
    free = replace(of, load=replace(of.load, own_cores=1.0, busy=50.0), limits=(Limit.SERIAL,))
    assert np.median(observed(free, KEPT, simulated_us=50.0).step_us) == pytest.approx(250)


def test_a_validation_between_the_epochs_does_not_become_faster():
    """Half of the time is validation, so an input of a fifth leaves 0.5 + 0.5 / 5 of it."""
    of = with_shares(DECODING, validation=0.5)
    assert found(facts(of), "prepare").factor.value == pytest.approx(1 / 0.6)


def epochs(*between_s: float, checkpoint_s: float = 0.0) -> pandas.DataFrame:
    """Return epochs of 900 examples, as `whole_epochs` does, whose steps take 0.45 s: 500 µs an example."""
    columns = {
        "steps_s": 0.45,
        "between_s": between_s,
        "validation_s": 0.0,
        "checkpoint_s": checkpoint_s,
        "examples": 900,
    }
    return pandas.DataFrame({**columns, "starts": False})


def test_what_an_epoch_takes_beyond_its_steady_steps_does_not_become_faster():
    """An epoch takes 0.9 s. Its steps then take 0.09 s, whatever shares the verdict on the last minute has."""
    of = facts(with_shares(DECODING, validation=0.9), epochs=epochs(0.45))
    assert found(of, "prepare").factor.value == pytest.approx(0.9 / 0.54)


@pytest.mark.parametrize(("seen", "slowest"), [(0.0, 3 / 7), (0.5, 1.0)])
def test_before_an_epoch_has_ended_its_validation_may_take_as_long_as_steps_for_its_examples(
    seen: float, slowest: float
):
    """700 images train, and 300 validate. The last minute may hold a validation, which is then no larger share."""
    of = with_shares(DECODING, validation=seen)
    of = facts(of, train_examples=700, validation_examples=300, epochs=epochs(0.45)[:0])
    value, low, high = found(of, "prepare").factor
    assert low == pytest.approx((1 + slowest) / (0.2 + slowest), rel=0.05)
    assert high == pytest.approx(5, rel=0.15)
    assert low < value < high
    # Whether there is a validation to shorten is not known.
    assert not [each for each in predictions(of) if "validation_fraction" in each.change]


def test_steps_are_those_of_the_epochs_whose_rest_is_known():
    """The verdict is about the first epoch, too, in which a process began. Its steps took twice as long."""
    of = epochs(0.45, 0.45)
    of["starts"], of["steps_s"] = [True, False], [0.9, 0.45]
    rates = observed(replace(DECODING, examples_per_s=1e6 / 750), KEPT, of)
    assert np.median(rates.steps_us) == pytest.approx(500)
    assert np.median(rates.whole_us) == pytest.approx(1000)


def test_a_checkpoint_that_the_steps_hid_shows_if_they_become_faster():
    """It takes 0.3 s beside 0.45 s of steps. With 0.09 s of steps, an epoch lasts as long as a checkpoint."""
    assert found(facts(epochs=epochs(0.0, 0.0, checkpoint_s=0.3)), "prepare").factor.value == pytest.approx(1.5)
    assert found(facts(epochs=epochs(0.0, 0.0, checkpoint_s=0.08)), "prepare").factor.value == pytest.approx(5)


@pytest.mark.parametrize("checkpoint_s", [0.0, 2.9, 3.4, 3.9, 9.0])
def test_the_rates_reproduce_the_epochs_they_come_from(tmp_path: Path, checkpoint_s: float):
    """Of 4 s, 2 s are steps, 1 s is validation, and 1 s is after the checkpoint before, if not the wait for it."""
    record = record_epochs(tmp_path, [(2.0, 4.0)] * 3, validation=1.0, checkpoint=checkpoint_s)
    steps_us = 2e6 / EXAMPLES
    found = observed(verdict(Limit.DECODING, us=steps_us, own_cores=2.0), None, whole_epochs(record))
    assert np.median(found.whole_us) == pytest.approx(4e6 / EXAMPLES)


def test_a_checkpoint_that_is_not_complete_yet_may_take_as_long_as_the_others():
    """Of four epochs with a checkpoint of 0.3 s each, the first does not know it."""
    of = epochs(0.0, 0.0, 0.0, 0.0, checkpoint_s=0.3)
    of.loc[0, "checkpoint_s"] = np.nan
    assert found(facts(epochs=of), "prepare").factor.value == pytest.approx(1.5)
    assert found(facts(epochs=epochs(0.0, checkpoint_s=np.nan)), "prepare").factor.value == pytest.approx(5)


def test_no_more_is_saved_than_an_epoch_takes():
    """Its images are kept, so that only its one epoch decodes them. It may take 12.7 times 12% longer, or less."""
    of = replace(DECODING, slices_us=[450.0, 550.0])
    settings = {"cache": "memory", "epochs": 1, "crop": "random"}
    value, low, high = found(facts(of, settings=settings), "prepare").factor
    assert 0 < low < value < high


@pytest.mark.parametrize("name", ["prepare", "cache"])
def test_an_interval_is_at_least_as_wide_as_slices_of_the_record_differ(name: str):
    """With few slices, it is wider: of eight that differ by 2%, t is 2.4, and of two it is 12.7."""
    widths = {}
    for count in (8, 2):
        of = facts(replace(DECODING, slices_us=[490.0, 510.0] * (count // 2)), settings={"crop": "random"})
        value, low, high = found(of, name).factor
        widths[count] = high / low
        assert low * 1.04 < value < high / 1.04
    assert widths[2] > 1.5 * widths[8]


def test_whether_a_change_gains_does_not_depend_on_the_period():
    """A slow period slows the training with and without the change. Of two slices, little is known of another period.

    If earlier promises were twice as high as the measured gains, the change may gain nothing.
    """
    cheaper = costs(read=20, parse=10, decode=600, resize=70, batch=100)
    of = facts(replace(DECODING, slices_us=[450.0, 550.0]), prepared={"resize": cheaper})
    one = found(of, "prepare")
    assert one.factor.low < 1 < one.factor_of_period.low == pytest.approx(1.25)
    assert one.is_gain
    assert one.words().endswith("; a later period may be slow, with it and without it; " + one.costs.words)
    assert one.as_json()["factor_of_period"] == one.factor_of_period._asdict()
    kept = [Promise("t", "m", "cache=memory", 2, Estimate(2, 2, 2), 1.0)] * MIN_PROMISES
    assert not found(replace(of, kept=kept), "prepare").is_gain


def test_an_interval_holds_how_much_the_time_between_epochs_varies():
    """From 0 to 0.2 s, with a standard deviation of 0.075 s. One more slice lies within 2.3 times of it (t of 9)."""
    value, low, high = found(facts(epochs=epochs(*np.linspace(0.0, 0.2, 8))), "prepare").factor
    assert value == pytest.approx(0.55 / 0.19, rel=0.03)
    assert low == pytest.approx(0.55 / (0.19 + 2.36 * 0.07 * (9 / 8) ** 0.5), rel=0.05)
    assert high == pytest.approx(0.55 / 0.09, rel=0.3)


def test_the_interval_holds_that_of_the_stages():
    wide = {"resize": costs(2_500, 0.2, read=5, parse=10, decode=85, resize=0, batch=100)}
    value, low, high = found(facts(prepared=wide), "prepare").factor
    # The standard deviation of the sum of 5, 10, 85 and 100, each known to 20%, is 13% of 200. It was seen in 8 blocks.
    assert (low, value, high) == pytest.approx((5 / 1.16, 5, 5 / 0.84), rel=0.03)


def test_processor_time_that_no_stage_explains_is_overhead_or_a_slower_input():
    """The training took 1,100 µs. The other 100 µs stay, or the input is 1.1 times slower in a training."""
    of = replace(DECODING, examples_per_s=1e6 / 550)
    value, low, high = found(facts(of), "prepare").factor
    assert 1100 / 300 <= low < value < high <= 5


def test_an_input_that_reads_is_limited_by_its_bytes():
    """Images of a twentieth of the bytes come at 50 µs. The cores then need 100 µs, a tenth of the time before."""
    of = verdict(Limit.READING, us=1000, own_cores=1.0)
    predicted = found(facts(of), "prepare").factor
    # All of the two cores, or 80% of them, may be had.
    assert 8 <= predicted.low < predicted.high <= 10
    assert found(facts(of), "gigabytes_per_second").change == {"gigabytes_per_second": pytest.approx(0.1)}
    assert found(facts(of), "gigabytes_per_second").factor.value == pytest.approx(1.75, abs=0.25)


def test_cores_of_other_programs_may_be_had_if_none_was_missed():
    """A tenth of a core was used, and others used the rest. With a step of no time, the cores would be the limit."""
    of = facts(verdict(Limit.COMPUTE, us=10_000, wait=0.0, own_cores=0.1, busy=100.0))
    cores_us = rates_on(of, Hardware(step_ms=0.001)).whole_us
    assert cores_us.min() == pytest.approx(500, rel=0.01)  # of two cores
    assert 9_000 < cores_us.max() <= 10_000  # of a tenth of one


def test_several_possible_limits_widen_the_interval():
    of = facts(
        verdict(Limit.DECODING, Limit.SERIAL, us=1000, own_cores=1.2),
        costs(read=300, parse=10, decode=500, resize=70, batch=320),
    )
    _, low, high = found(of, "prepare").factor
    assert low == pytest.approx(1)  # a serial stage that all images go through
    assert high > 2
    assert not found(of, "prepare").is_gain


def test_measured_stages_tell_decoding_from_a_serial_stage():
    """Reading and making batches take 120 of 1,000 µs."""
    both = facts(verdict(Limit.DECODING, Limit.SERIAL, us=1000, own_cores=1.2))
    alone = facts(verdict(Limit.DECODING, us=1000, own_cores=1.2))
    assert found(both, "prepare").factor == found(alone, "prepare").factor
    assert found(both, "prepare").is_gain


def test_decoded_images_gain_from_the_second_epoch_on():
    """Later epochs take 100 µs of two cores for a batch, and more for a copy, which costs at most what reading does.

    In memory, up to 100 µs are needed to fill the buffer that shuffles all images.
    """
    of = facts(settings={"crop": "random", "cache": "off"})
    by_place = {each.change["cache"]: each.factor for each in predictions(of) if "cache" in each.change}
    most = 100 + 20 * of.decoded_bytes / 1000 / 50_000
    for cache, slowest in (("disk", most / 2), ("memory", most / 2 + 100)):
        low, high = (4 / (1 + 3 * later / 500) for later in (slowest, 50))
        assert low <= by_place[cache].low < by_place[cache].high <= high
    predicted = found(of, "cache")
    assert predicted.at_epoch
    assert not predicted.needs_dataset


def test_caches_cost_what_was_measured():
    """To write an image takes 100 µs of one thread, and to read it 200 µs of the cores, in at least 150 µs.

    An image in memory is in its buffer after 30 µs.
    """
    caches = MeasuredCaches(write_us=100, read_cpu_us=Estimate(200, 200, 200), read_us=150, fill_us=30)
    of = facts(settings={"crop": "random", "epochs": 2}, caches=caches)
    by_value = {each.change["cache"]: each.factor.value for each in predictions(of) if "cache" in each.change}
    # The first epoch takes (1,000 + 100) / 2 µs. The second one reads and makes batches, (200 + 100 + about 4) / 2 µs.
    assert by_value["disk"] == pytest.approx(2 * 500 / (550 + 152), rel=0.01)
    # Batches take (100 + about 4) / 2 µs.
    assert by_value["memory"] == pytest.approx(2 * 500 / (500 + 52 + 30), rel=0.01)


def test_images_that_fit_are_already_kept_with_auto():
    assert not [
        each for each in predictions(facts(settings={"crop": "random", "cache": "auto"})) if "cache" in each.change
    ]
    full = replace(facts(settings={"crop": "random", "cache": "auto"}), memory_bytes=1.0)
    assert [each.change for each in predictions(full) if "cache" in each.change] == [{"cache": "disk"}]


def test_images_that_memory_cannot_hold_need_a_fast_disk():
    """22 kB each 50 to 60 µs. The training never makes such a change by itself, nor if it waits for a disk already."""
    full = replace(facts(settings={"crop": "random", "cache": "off"}), memory_bytes=1.0)
    predicted = found(full, "cache")
    assert re.search(r"and the local disk must deliver 0?\.?[34]\d\d [MG]B per second$", predicted.words())
    assert not predicted.at_epoch
    reading = replace(full, verdict=verdict(Limit.READING, us=500))
    assert not [each for each in predictions(reading) if "cache" in each.change]


@pytest.mark.parametrize("cache", ["auto", "memory", "disk"])
def test_images_that_are_kept_gain_only_in_the_epoch_that_decodes_them(cache: str):
    """In one of four epochs, 800 µs on two cores may be saved: at most 400 of 2,000 µs."""
    predicted = found(facts(settings={"crop": "random", "cache": cache}), "prepare").factor
    assert 1 <= predicted.low < predicted.value < predicted.high <= 2000 / 1600


def test_kept_images_are_judged_by_the_epochs_after_the_one_that_decodes_them(tmp_path: Path):
    record_epochs(tmp_path / "record", [(5.0, 5.0), (2.0, 2.0), (2.0, 2.0)])
    for cache, epochs, step_ms in (("memory", 3, 200.0), ("auto", 3, 200.0), ("auto", 1, 500.0), ("off", 3, 500.0)):
        of = facts(verdict(Limit.DECODING, us=50_000), settings={"cache": cache, "crop": "random", "epochs": epochs})
        assert since_change(of, tmp_path, []).verdict.step_ms == pytest.approx(step_ms)


def test_the_processor_time_of_kept_images_is_not_that_of_decoding():
    """Of a real step on the cores, it may be all of the time, so that a better input gains nothing."""
    of = replace(DECODING, is_simulated=False)
    kept = rates_on(facts(of, settings={"crop": "random", "cache": "memory"}), Hardware())
    assert kept.input_us.min() < 50
    assert rates_on(facts(of), Hardware()).input_us.min() == pytest.approx(1000)


def test_nothing_is_predicted_of_several_servers():
    """Their record has the sum of the rates, and the load of one server."""
    of = facts(settings={"num_training_servers": 2})
    assert predictions(of) == []
    assert "`tenfold advise`" not in advice(of.verdict, of.settings, {})


def test_larger_records_name_the_disk_that_they_need():
    """150,000 bytes each 100 µs are 1.5 GB per second."""
    raw = {"raw": replace(RESIZED, bytes_per_example=150_000)}
    predicted = found(facts(prepared=raw), "prepare")
    assert predicted.words().endswith("and the disk or network must deliver 1.5 GB per second")
    assert "deliver" not in found(facts(), "prepare").words()


def test_validation_and_gaps_can_be_the_limit_on_other_hardware():
    fast = Hardware(step_ms=0.001, cores=1000)
    assert rates_on(facts(with_shares(DECODING, validation=0.5)), fast).limit() is Limit.VALIDATION
    assert rates_on(facts(epochs=epochs(0.45)), fast).limit() is Limit.BETWEEN_EPOCHS
    rates = rates_on(facts(), Hardware(step_ms=20.0))
    assert replace(rates, gap_us=2 * rates.step_us).limit() is Limit.BUFFER


def test_a_larger_buffer_bridges_pauses():
    """Of 1 ms, 0.5 ms were waits. With 12 batches more, 0.1 ms would be left: 0.6 ms."""
    of = replace(verdict(Limit.BUFFER, us=100, wait=0.5, own_cores=0.1), bridged_ms={8: 0.2, 16: 0.0})
    predicted = found(facts(of, settings={"prefetch_batches": 4}), "prefetch_batches")
    assert predicted.change == {"prefetch_batches": 16}
    assert predicted.factor.value == pytest.approx(1 / 0.6)


def test_a_larger_buffer_is_a_valid_setting_and_fits_in_memory():
    of = replace(verdict(Limit.BUFFER, us=100, wait=0.5, own_cores=0.1), bridged_ms={8: 0.2, 16: 0.0})
    assert found(facts(of, settings={"prefetch_batches": 300}), "prefetch_batches").change == {"prefetch_batches": 1024}
    largest = facts(of, settings={"prefetch_batches": 1024})
    assert not [each for each in predictions(largest) if "prefetch_batches" in each.change]
    # 12 batches of 10 images of 64 pixels.
    little = replace(facts(of, settings={"prefetch_batches": 4}), memory_bytes=2e6)
    assert not [each for each in predictions(little) if "prefetch_batches" in each.change]


def test_a_new_version_of_the_dataset_with_fewer_validation_examples_has_its_price():
    """Of 1,000 examples, 200 validate and 200 test, which stay. An example takes 50 kB, and 1,000 µs of two cores."""
    of = replace(verdict(Limit.VALIDATION, us=100, wait=0.0, own_cores=0.2), shares={Part.VALIDATION: 0.5})
    examples = {"train_examples": 600, "validation_examples": 200, "test_examples": 200}
    predicted = found(facts(of, **examples, drawn_examples=1000), "validation_fraction")
    # Steps and validation take 60 ms each. Then, 700 train in 70 ms, and the validation takes 10 ms less.
    assert predicted.factor.value == pytest.approx((120 / 600) / (120 / 700))
    assert predicted.costs.disk_bytes == 50_000 * 1000
    assert predicted.costs.minutes == pytest.approx(1000e-6 * 1000 / 2 / 60)
    assert predicted.costs.words == "100 instead of 200 examples judge each epoch, in a new version of the dataset"


def test_fewer_validation_examples_leave_more_for_training():
    """500 of 1,000 examples validate, in simulated steps of 100 µs: 150 ms an epoch, with 100 ms for the start.

    With 100 of them, 900 train in 90 ms, and the validation takes 110 ms: 222 µs instead of 400 µs for an example.
    """
    of = replace(verdict(Limit.VALIDATION, us=100, wait=0.0, own_cores=0.2), shares={Part.VALIDATION: 0.75})
    of = facts(of, train_examples=500, validation_examples=500)
    predicted = found(of, "validation_fraction")
    assert predicted.factor.value == pytest.approx(400 / (200_000 / 900))
    assert predicted.needs_dataset


def test_a_checkpoint_is_one_of_more_examples_if_fewer_validate():
    """500 of 1,000 examples take 50 ms, and the checkpoint of an epoch 400 ms. With 900, the checkpoint still does."""
    columns = {"steps_s": [0.05], "between_s": 0.2, "validation_s": 0.2, "checkpoint_s": 0.4, "examples": 500}
    of = replace(verdict(Limit.VALIDATION, us=100, wait=0.0, own_cores=0.2), shares={Part.VALIDATION: 0.8})
    of = facts(of, train_examples=500, validation_examples=500, epochs=pandas.DataFrame({**columns, "starts": False}))
    assert found(of, "validation_fraction").factor.value == pytest.approx(900 / 500)


def test_checkpoints_at_the_end_of_epochs_stay():
    """90 steps with a checkpoint each take half of the time. One of 90 is left."""
    of = replace(verdict(Limit.CHECKPOINTS, wait=0.0, own_cores=0.2), shares={Part.CHECKPOINTS: 0.5})
    predicted = found(facts(of, settings={"checkpoint_steps": 1}), "checkpoint_steps")
    assert predicted.factor.value == pytest.approx(1 / (0.5 + 0.5 / 90))
    assert predicted.costs.words == "a killed training repeats up to 90 steps"


def test_fewer_checkpoints_are_advised_although_the_parts_of_the_record_differ():
    of = replace(verdict(Limit.CHECKPOINTS, wait=0.0, own_cores=0.2), shares={Part.CHECKPOINTS: 0.2})
    given = facts(replace(of, slices_us=[800.0, 1200.0]), settings={"checkpoint_steps": 1})
    one = found(given, "checkpoint_steps")
    assert one.factor.low < 1
    assert "checkpoint_steps=0" in advice(of, given.settings, {}, [one])


def test_another_accelerator_shortens_neither_checkpoints_nor_the_loop():
    """Of a step of 100 ms, 60 ms wait for a checkpoint, and 10 ms are the loop. The accelerator then takes 12 ms."""
    of = verdict(Limit.CHECKPOINTS, us=10_000, wait=0.0, own_cores=0.2)
    of = facts(with_shares(of, checkpoints=0.6, host=0.1), settings={"checkpoint_steps": 1})
    faster = Hardware(step_ms=12)
    assert np.median(rates_on(of, faster).whole_us) == pytest.approx(8_200)
    assert found(of, "checkpoint_steps", faster).factor.value == pytest.approx(8_200 / (2_200 + 6_000 / 90))
    assert rates_on(of, faster).limit() is Limit.CHECKPOINTS
    assert rates_on(of, Hardware(cores=96)).limit() is Limit.CHECKPOINTS


def test_the_loop_can_be_the_limit_of_another_accelerator():
    """Of a step of 10 ms, 0.5 ms are the loop. With an accelerator of 0.1 ms, twice the batch saves 0.25 of 0.6 ms."""
    of = facts(with_shares(verdict(Limit.COMPUTE, wait=0.0, own_cores=0.02), host=0.05))
    assert not [each for each in predictions(of) if "batch_size" in each.change]
    faster = Hardware(step_ms=0.1, cores=96)
    assert rates_on(of, faster).limit() is Limit.HOST
    assert found(of, "batch_size", faster).factor.value == pytest.approx(0.6 / 0.35)


def test_checkpoints_by_the_other_interval_stay():
    """An epoch of 90 steps takes 0.9 s, and a third of a checkpoint for each step is written by time."""
    of = replace(verdict(Limit.CHECKPOINTS, wait=0.0, own_cores=0.2), shares={Part.CHECKPOINTS: 0.5})
    settings = {"checkpoint_steps": 1, "checkpoint_minutes": 0.9 / 60 / 30}
    predicted = found(facts(of, settings=settings), "checkpoint_steps")
    assert predicted.factor.value == pytest.approx(1 / (0.5 + 0.5 / 3))
    assert predicted.costs.words == "a killed training repeats up to 3 steps"


def test_larger_batches_halve_the_work_of_the_loop():
    of = replace(verdict(Limit.HOST, wait=0.0, own_cores=0.2), shares={Part.HOST: 0.4})
    assert found(facts(of), "batch_size").factor.value == pytest.approx(1 / 0.8)


@pytest.mark.parametrize("of_data", [{"batch_size": 451}, {"batch_size": 40_000, "train_examples": 100_000}])
def test_no_batch_is_predicted_that_the_data_or_the_setting_cannot_have(of_data: dict[str, int]):
    of = replace(verdict(Limit.HOST, wait=0.0, own_cores=0.2), shares={Part.HOST: 0.4})
    settings = {"settings": {"batch_size": of_data["batch_size"]}}
    predicted = predictions(facts(of, train_examples=of_data.get("train_examples", 900), **settings))
    assert not [each for each in predicted if "batch_size" in each.change]


def test_rows_of_larger_batches_are_cheaper_if_they_were_measured():
    """1,000 µs of two cores become 800 µs. Without a measurement, or with a serial stage, nothing is predicted."""
    twice = {"prepared": {"batch_size": costs(read=20, parse=10, decode=600, resize=70, batch=100)}}
    assert found(facts(**twice), "batch_size").factor.value == pytest.approx(1.25)
    both = verdict(Limit.DECODING, Limit.SERIAL, us=1000, own_cores=1.2)
    for of in (facts(), facts(both, **twice), facts(stages=None, **twice)):
        assert not [each for each in predictions(of) if "batch_size" in each.change]


def test_measured_steps_predict_another_precision():
    """Steps of half the time on a GPU, which is the limit. Of a validation, half or nothing is saved."""
    of = replace(verdict(Limit.COMPUTE, us=1000, wait=0.0, gpu=95.0, own_cores=0.2, busy=10.0), is_simulated=False)
    ratio = StepRatio({"precision": "mixed_bfloat16"}, Estimate(0.5, 0.49, 0.51), start_s=30.0)
    half = facts(of, stages=None, steps=MeasuredSteps(exactly(500), exactly(500), [ratio]))
    assert found(half, "precision").factor.value == pytest.approx(2, rel=0.02)
    assert found(half, "precision").costs.minutes == 0.5
    assert "(precision=mixed_bfloat16)" in advice(of, half.settings, {}, predictions(half))
    waits = replace(half, verdict=replace(of, limits=(Limit.DECODING,), wait_fraction=0.9))
    assert found(waits, "precision").factor.value == pytest.approx(1, rel=0.06)
    assert not any("precision" in each.change for each in predictions(half, Hardware(step_ms=5)))
    validates = found(replace(half, verdict=with_shares(of, validation=0.5)), "precision").factor
    assert (validates.low, validates.high) == pytest.approx((1 / 0.75, 2), rel=0.05)


def test_measured_steps_predict_xla_on_the_cores_that_the_input_needs_too():
    """A step takes 900 of the 1,000 µs of each of two cores, and the input the rest."""
    of = replace(verdict(Limit.COMPUTE, us=1000, wait=0.0, own_cores=2.0, busy=100.0), is_simulated=False)
    cheap = costs(read=50, parse=10, decode=100, resize=20, batch=20)
    slower = StepRatio({"xla": True}, exactly(2), start_s=6.0)
    one = found(facts(of, cheap, steps=MeasuredSteps(exactly(900), exactly(1800), [slower])), "xla")
    assert one.factor.value == pytest.approx(1 / 1.9, rel=0.02)
    assert "xla=true" in one.action


def test_a_step_on_the_cores_is_as_long_as_it_was_measured_alone():
    """Two cores work 500 µs for an example. The measurements say 1,000 µs of input, and 400 µs of step: both were less.

    Later, the input takes 143 µs of the cores, and the step 286 µs. Its 300 µs are the limit.
    """
    of = replace(verdict(Limit.DECODING, us=500, wait=0.4, own_cores=2.0, busy=100.0), is_simulated=False)
    known = facts(of, steps=MeasuredSteps(exactly(300), exactly(400)))
    assert found(known, "prepare").factor == pytest.approx((500 / 300,) * 3)
    assert found(facts(of), "prepare").factor.value > 2
    # Half of the 300 µs is work of the loop, which larger batches halve, and 50 µs are the step.
    of_loop = replace(with_shares(of, host=0.3), limits=(Limit.HOST,))
    loop = facts(of_loop, steps=MeasuredSteps(exactly(50), exactly(400)))
    assert np.median(rates_on(loop, Hardware()).host_us) == pytest.approx(150)
    assert np.median(rates_on(loop, Hardware()).compute_us) == pytest.approx(50)
    short = facts(of, steps=MeasuredSteps(exactly(100), exactly(400)))
    assert found(short, "prepare").factor == pytest.approx((500 / 214.3,) * 3, rel=1e-3)


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def test_more_cores_help_until_the_step_limits():
    predicted = found(facts(), "cores").factor
    assert 1.8 <= predicted.low < predicted.high <= 2
    on_one = facts(verdict(Limit.CPU_QUOTA, us=2000, wait=0.5, own_cores=0.5, usable_cores=0.5))
    assert found(on_one, "cores").factor.value == pytest.approx(2, abs=0.05)
    assert found(on_one, "cores", Hardware(cores=64)).factor == pytest.approx((1, 1, 1))  # the step takes 1,000 µs


def test_a_whole_core_is_of_use_to_a_step_on_half_of_one():
    """Whether it has one thread or many, its 1,800 of 2,000 µs become 900. Two cores may help it no further."""
    of = replace(verdict(Limit.CPU_QUOTA, us=2000, wait=0.1, own_cores=0.5, usable_cores=0.5), is_simulated=False)
    quota = facts(of, stages=None)
    assert found(quota, "cores").factor == pytest.approx((2, 2, 2), abs=0.01)
    validates = facts(with_shares(of, validation=0.5), stages=None)
    assert found(validates, "cores").factor == pytest.approx((2, 2, 2), abs=0.01)
    more = rates_on(quota, Hardware(cores=2.0)).compute_us / rates_on(quota, Hardware()).compute_us
    assert (more.min(), more.max()) == pytest.approx((0.25, 0.5), abs=0.01)


def test_other_hardware_is_answered_by_its_slowest_part():
    of = facts()
    rate = 1e6 / np.median(rates_on(of, Hardware(step_ms=20.0)).whole_us)
    assert rate == pytest.approx(10 / 0.020)  # batches of 10
    assert rates_on(of, Hardware(step_ms=20.0)).limit() is Limit.COMPUTE
    slow = rates_on(of, Hardware(bytes_per_s=5e6))
    assert np.median(slow.whole_us) == pytest.approx(10_000)  # 50,000 bytes
    assert slow.limit() is Limit.READING


def test_without_measured_stages_only_the_record_speaks():
    of = replace(facts(stages=None), settings=training_settings({**SETTINGS, "crop": "random"}))
    assert [each.change for each in predictions(of)] == [{"cores": 4.0}]
    assert "`tenfold advise` predicts" in advice(DECODING, of.settings, {}, predictions(of))


def test_a_verdict_without_numbers_predicts_nothing():
    assert predictions(facts(Verdict((Limit.DECODING,), "It is so.", Load()))) == []
    assert predictions(facts(Verdict((Limit.UNKNOWN,), "Not enough steps.", Load()))) == []


def test_the_best_change_comes_first_and_is_the_advice():
    of = facts(settings={"epochs": 100}, prepared_core_s={"resize": 0.004, "raw": 0.004})
    # Pixels come at the same rate, so that the preparation that takes less space is the better one.
    of = replace(of, prepared={"raw": replace(RESIZED, bytes_per_example=20_000), **of.prepared})
    assert [each.change.get("prepare", "") for each in predictions(of)] == ["resize", "raw", ""]
    assert advice(of.verdict, of.settings, {}, predictions(of)) == (
        "Next: resize the images once when the dataset is built (prepare=resize, prepare_size=73): 5 times faster (5 "
        "to 5), for 0.1 minutes and 2.5 MB of disk space; crops are cut from images whose shorter side has 73 pixels, "
        "so that small crops are enlarged more."
    )


def test_a_change_that_takes_longer_than_it_saves_comes_later():
    slow = facts(settings={"crop": "random"}, prepared_core_s={"resize": 100.0})
    assert [*predictions(slow)[0].change] == ["cache"]


def test_if_nothing_helps_the_advice_names_the_limit():
    of = facts(verdict(Limit.COMPUTE, wait=0.0, own_cores=1.0))
    assert not any(each.is_gain for each in predictions(of))
    settings = training_settings({**SETTINGS, "simulated_step_ms": 10})
    assert advice(of.verdict, settings, {}, predictions(of)) == "No setting makes it faster: the limit is compute."


def test_a_record_is_explained_exactly():
    """Whatever was measured, the rates give the time that was measured."""
    for seed in range(200):
        of = _random_facts(random.Random(seed))
        assert observed(of.verdict, of.stages).steps_us == pytest.approx(1e6 / of.verdict.examples_per_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(50))
def test_better_hardware_is_never_slower(seed: int):
    chance = random.Random(seed)
    of = _random_facts(chance)
    cores, step_ms, speed = chance.uniform(0.5, 100), chance.uniform(0.1, 50), 10 ** chance.uniform(5, 10)
    times = []
    for better in (1.0, 1.5, 4.0):
        each = [
            Hardware(cores=cores * better),
            Hardware(step_ms=step_ms / better),
            Hardware(bytes_per_s=speed * better),
        ]
        times.append([float(np.median(rates_on(of, one).whole_us)) for one in each])
    assert all(
        slow >= fast * (1 - 1e-9) for before, after in pairwise(times) for slow, fast in zip(before, after, strict=True)
    )


@pytest.mark.parametrize("seed", range(50))
def test_a_cheaper_stage_is_never_slower(seed: int):
    chance = random.Random(seed)
    of = replace(_random_facts(chance), stages=KEPT)
    half = costs(2_500, read=5, parse=10, decode=40, resize=0, batch=100)
    before, after = (found(replace(of, prepared={"resize": each}), "prepare").factor.value for each in (RESIZED, half))
    assert after >= before * (1 - 1e-9)


def _random_facts(chance: random.Random) -> Facts:
    """Return facts with any numbers that a record can hold."""
    limits = chance.sample([limit for limit in Limit if limit is not Limit.UNKNOWN], chance.choice([1, 1, 2, 3]))
    usable = chance.choice([1, 2, 2.5, 16])
    own = chance.uniform(0.05, usable)
    of_load = {
        "cores": 16.0, "usable_cores": usable, "own_cores": own, "busy": chance.uniform(100 * own / 16, 100),
        "gpu": chance.choice([None, 0.0, 50.0, 100.0]), "busiest_thread": chance.uniform(0, 100),
    }  # fmt: skip
    of = verdict(*limits, us=10 ** chance.uniform(0, 5), wait=chance.uniform(0, 1), **of_load)
    of = with_shares(of, validation=chance.uniform(0, 0.4), callbacks=chance.uniform(0, 0.3), host=0.1, checkpoints=0.2)
    return facts(replace(of, is_simulated=chance.random() < 0.5), chance.choice([None, KEPT]))


def test_facts_come_from_the_folder_of_a_training(tmp_path: Path):
    save_stages(tmp_path, KEPT)
    (tmp_path / PREPARED).write_text(json.dumps({"raw": {"costs": asdict(RESIZED), "core_s": 0.004}}))
    settings = training_settings({**SETTINGS, "validation_fraction": 0.1})
    of = facts_of(DECODING, settings, {"prepare": "resize"}, {"train": 880, "validation": 120}, folder=tmp_path)
    assert (of.stages, of.prepared, of.prepared_core_s) == (KEPT, {"raw": RESIZED}, {"raw": 0.004})
    assert of.settings.prepare == "resize"
    assert of.drawn_examples == 1000


@pytest.mark.parametrize(
    ("dataset", "examples", "drawn"),
    [
        ({"validation_fraction": 0.2}, (500, 500, 0), 0),  # The source has the split.
        ({"validation_fraction": 0.2, "test_fraction": 0.2}, (600, 200, 200), 1000),
        ({"validation_fraction": 0.2}, (640, 160, 200), 800),  # The source has the test split.
    ],
)
def test_a_setting_chose_the_validation_examples_if_they_are_about_that_share(
    tmp_path: Path, dataset: dict[str, float], examples: tuple[int, ...], drawn: int
):
    splits = dict(zip(("train", "validation", "test"), examples, strict=True))
    of = facts_of(DECODING, training_settings({"validation_fraction": 0.9}), dataset, splits, folder=tmp_path)
    assert of.drawn_examples == drawn
    assert of.all_examples == sum(examples)
