"""What the advice promised of a change, compared with the epochs before and after it."""

import json
import os
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.errors import DatasetError, SettingsError
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.limits import Limit
from pipeline.monitor.record import RecordSink, rows
from pipeline.runs.changes import BUILD, CONTINUES, DATASET, Change, load_changes
from pipeline.runs.files import CHANGES, RUN
from pipeline.runs.promises import (
    TABLE,
    Promise,
    epochs_since_change,
    last_change,
    load_promises,
    promises_on,
    prove,
    save_promises,
    summary_of,
    verdict_since_change,
    widened,
    with_measurements,
)
from tests.monitor.epoch_records import STEPS, record_epochs

EPOCHS = 4
PROMISED = (1.6, 1.5, 1.75)
CHANGE = Change("prefetch_batches", 16, at=1.0, by="ann", epoch=3, promised=PROMISED)


def record_of(
    folder: Path, step_ms: list[float], unexplained_s: float = 0.0, from_epoch: int = 1, **each: float
) -> Path:
    """Write a record of epochs with steps of these times, the first of which compiled for ten seconds."""
    steps_s = [ms * STEPS / 1000 for ms in step_ms]
    epochs = [(one, one + sum(each.values()) + unexplained_s) for one in steps_s]
    return record_epochs(folder, epochs, from_epoch=from_epoch, **each)


def end_of(record: Path, epoch: int) -> float:
    """Return when an epoch ended, in Unix seconds."""
    return next(row.time for row in rows(record, "epochs") if row.step == epoch)


def test_a_gain_is_measured_from_whole_epochs_with_all_that_is_between_them(tmp_path: Path):
    record = record_of(tmp_path, [50.0, 50.0, 20.0, 20.0], unexplained_s=0.1, validation=0.2)
    [measured] = with_measurements(record, [CHANGE], EPOCHS)
    # 10 steps of 50 ms and 0.3 s are 0.8 s; with 20 ms, they are 0.5 s.
    assert measured.measured == pytest.approx(0.8 / 0.5, abs=1e-3)
    assert str(measured) == (
        "from epoch 3 on: prefetch_batches=16, by ann: promised 1.6 times faster (1.5 to 1.75), measured 1.6"
    )


def test_the_first_epoch_with_a_change_counts_only_until_another_one_has_ended(tmp_path: Path):
    """It opened its input again, which took as long as its steps."""
    epochs = [(0.5, 0.5), (0.5, 0.5), (0.2, 0.4), (0.2, 0.2)]
    for count, gain in ((3, 0.5 / 0.4), (4, 0.5 / 0.2)):
        record = record_epochs(tmp_path / str(count), epochs[:count])
        assert with_measurements(record, [CHANGE], EPOCHS)[0].measured == pytest.approx(gain, abs=1e-3)
        assert [*epochs_since_change(record, [CHANGE]).index] == [*range(4, count + 1)]
        assert [*epochs_since_change(record, [replace(CHANGE, refused="why")]).index] == [*range(1, count + 1)]
    # A training that continues another one, or ends for one, has had the same settings all the time.
    of_datasets = [replace(CHANGE, field=field, epoch=epoch) for field, epoch in ((CONTINUES, 4), (DATASET, 9))]
    assert last_change([CHANGE, *of_datasets]) == CHANGE.epoch
    assert last_change(of_datasets) == 0


def test_the_verdict_since_a_change_is_about_the_epochs_with_it(tmp_path: Path):
    record_of(tmp_path / "record", [500.0, 500.0, 300.0, 200.0, 200.0])
    for first_epoch, step_ms in ((0, 340.0), (3, 200.0), (4, 200.0)):
        changes = [replace(CHANGE, epoch=first_epoch)] if first_epoch else []
        assert verdict_since_change(tmp_path, changes).step_ms == pytest.approx(step_ms)
    assert verdict_since_change(tmp_path, [replace(CHANGE, epoch=5)]).limit is Limit.UNKNOWN


def test_the_first_epoch_with_kept_images_is_left_out_if_later_ones_have_enough_steps(tmp_path: Path):
    """It decodes the images, in steps of 500 ms."""
    later, short = tmp_path / "later", tmp_path / "short"
    record_of(later / "record", [500.0, 200.0, 200.0])
    record_of(short / "record", [500.0, 200.0])
    assert verdict_since_change(later, [], decodes_first=True).step_ms == pytest.approx(200)
    assert [*epochs_since_change(later / "record", [], decodes_first=True).index] == [2, 3]
    whole, mixed = verdict_since_change(short, []), verdict_since_change(short, [], decodes_first=True)
    assert mixed == replace(whole, sentence=mixed.sentence)
    assert mixed.sentence == f"{whole.sentence} The first epoch, which decodes the images, is part of it."
    # A training that continues another one decodes in its own first epoch.
    continued = [replace(CHANGE, field=CONTINUES, epoch=4), replace(CHANGE, field=DATASET, epoch=9)]
    assert last_change(continued, decodes_first=True) == 4
    assert last_change([replace(CHANGE, epoch=0)], decodes_first=True) == 1


@pytest.mark.parametrize(
    "change",
    [
        replace(CHANGE, promised=()),
        replace(CHANGE, epoch=5),  # No epoch after it has ended.
        replace(CHANGE, epoch=0),
        replace(CHANGE, epoch=1),
    ],
)
def test_without_a_promise_or_epochs_to_compare_nothing_is_measured(tmp_path: Path, change: Change):
    record = record_of(tmp_path, [50.0, 50.0, 20.0, 20.0])
    assert with_measurements(record, [change], EPOCHS) == [change]


def test_two_changes_at_once_cannot_be_told_apart(tmp_path: Path):
    record = record_of(tmp_path, [50.0, 50.0, 20.0, 20.0])
    changes = [CHANGE, replace(CHANGE, field="cache", value="memory")]
    assert with_measurements(record, changes, EPOCHS) == changes


def test_a_change_is_compared_with_the_epochs_since_the_change_before_it(tmp_path: Path):
    record = record_of(tmp_path, [80.0, 40.0, 20.0])
    changes = [replace(CHANGE, epoch=2), replace(CHANGE, field="shuffle_megabytes", value=64)]
    assert [round(each.measured, 2) for each in with_measurements(record, changes, EPOCHS)] == [2.0, 2.0]


def test_a_cache_is_measured_when_the_last_of_its_epochs_has_ended(tmp_path: Path):
    """The epoch that fills the cache counts once in all epochs of the promise."""
    cache = replace(CHANGE, field="cache", value="memory", epoch=2)
    record = record_of(tmp_path, [50.0, 50.0, 10.0])
    assert with_measurements(record, [cache], epochs=4) == [cache]
    [measured] = with_measurements(record, [cache], epochs=3)
    assert measured.measured == pytest.approx(50 / 30, abs=1e-3)
    with closing(RecordSink(tmp_path / "resumed")) as resumed:  # An attempt resumed in the epoch that fills the cache.
        for kind in ("batches", "epochs"):
            for row in rows(record, kind):
                is_first = kind == "batches" and row.step == STEPS + 2
                resumed.write(replace(row, values=row.values | ({"first": 1.0} if is_first else {})))
    assert with_measurements(tmp_path / "resumed", [cache], epochs=3)[0].measured == measured.measured
    other = replace(CHANGE, epoch=3)  # The promise is about epochs without it.
    assert with_measurements(record, [cache, other], epochs=3)[0] == cache


@pytest.mark.parametrize(
    "damaged",
    [
        {"measured": 0},
        {"measured": "x"},
        {"measured": None},
        {"measured": float("inf")},
        {"measured": 1e-300, "promised": [1e300] * 3},
        {"promised": [0, 0, 0]},
        {"promised": [float("nan")] * 3},
        {"promised": [1, 1]},
        {"machine": 1},
        {"change": ["x"]},
        {"other": 1},
    ],
)
def test_damaged_promises_are_left_out(tmp_path: Path, damaged: dict[str, object]):
    whole = Promise("t", "m", "cache=memory", 2, Estimate(*PROMISED), 1.5)
    (tmp_path / TABLE).write_text(f"{json.dumps(asdict(whole) | damaged)}\n[]\n{json.dumps(asdict(whole))}\n")
    assert load_promises(tmp_path) == [whole]
    assert summary_of(load_promises(tmp_path))


def test_a_table_that_would_block_its_reader_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / TABLE)
    with pytest.raises(DatasetError, match="is no regular file"):
        load_promises(tmp_path)
    with pytest.raises(DatasetError, match="is no regular file"):
        save_promises(tmp_path, "t", "m", [replace(CHANGE, measured=1.5)])
    assert promises_on(tmp_path / "runs" / "run" / "abcdef", "m") == []


def test_a_table_outside_of_the_allowed_places_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_ALLOWED_WORKSPACES", str(tmp_path / "allowed"))
    monkeypatch.setenv("TENFOLD_ALLOWED_PUBLISH", str(tmp_path / "allowed"))
    with pytest.raises(SettingsError, match="TENFOLD_ALLOWED_WORKSPACES"):
        load_promises(tmp_path)


def test_the_table_of_a_workspace_has_each_promise_once(tmp_path: Path):
    training = tmp_path / "runs" / "run" / "abcdef"
    record_of(training / "record", [50.0, 25.0])
    (training / CHANGES).write_text(json.dumps(asdict(replace(CHANGE, epoch=2))) + "\n")
    for _ in range(2):  # A training that was killed at its end does it again.
        proved = prove(training, training, EPOCHS)
        save_promises(tmp_path, "runs/run/abcdef", "a processor", proved)
    assert load_changes(training) == proved
    [promise] = load_promises(tmp_path)
    assert promise == Promise("runs/run/abcdef", "a processor", "prefetch_batches=16", 2, Estimate(*PROMISED), 2.0)
    assert summary_of([promise]) == (
        "The advice promised how much faster 1 change would make a training. It was wrong by 20% in the median, and 0 "
        "of 1 measurements are within the interval."
    )


def test_a_new_dataset_is_compared_with_the_epochs_of_the_training_before(tmp_path: Path):
    """That training has changed itself in its second epoch. The new one has epochs from the fourth on."""
    earlier, later = (tmp_path / "runs" / "run" / name for name in ("earlier", "later"))
    record_of(earlier / "record", [100.0, 60.0, 60.0])
    ends = Change(DATASET, "prepare=resize", at=1.0, by="ann", epoch=4, promised=PROMISED)
    own = Change("prefetch_batches", 16, at=1.0, by="ann", epoch=2)
    (earlier / CHANGES).write_text("".join(json.dumps(asdict(each)) + "\n" for each in (own, ends)))
    record_of(later / "record", [30.0, 30.0], from_epoch=4)
    begun = replace(ends, field=CONTINUES)
    (later / CHANGES).write_text(json.dumps(asdict(begun)) + "\n")
    assert prove(later, later, 5, earlier) == load_changes(later) == [replace(begun, measured=2.0)]
    assert str(load_changes(later)[0]) == (
        "from epoch 4 on: prepare=resize on a new dataset, by ann: promised 1.6 times faster (1.5 to 1.75), measured 2"
    )
    # On another worker, the epochs before are not there. What was measured stays.
    assert prove(later, later, 5, tmp_path / "elsewhere")[0].measured == 2.0
    (later / CHANGES).write_text(json.dumps(asdict(begun)) + "\n")
    assert prove(later, later, 5, tmp_path / "elsewhere")[0].measured == 0.0


def test_epochs_beside_the_build_of_the_new_dataset_do_not_count(tmp_path: Path):
    """It uses the cores of the training under way, whose last two epochs take twice as long."""
    earlier, later = (tmp_path / "runs" / "run" / name for name in ("earlier", "later"))
    record_of(earlier / "record", [60.0, 60.0, 60.0, 120.0, 120.0])
    record_of(later / "record", [40.0, 40.0], from_epoch=6)
    fourth_began = end_of(earlier / "record", epoch=3)
    begun = Change(CONTINUES, "prepare=resize", at=fourth_began + 2, by="ann", epoch=6, promised=PROMISED)
    for began, gain in ((fourth_began + 0.1, 60 / 40), (0.0, 90 / 40)):
        changes = [replace(begun, begun=began)]
        [measured] = with_measurements(later / "record", changes, 8, earlier)
        assert measured.measured == pytest.approx(gain, abs=1e-3)


@pytest.mark.parametrize(("field", "epochs"), [("prefetch_batches", 9), ("cache", 4)])
def test_a_change_beside_the_build_of_a_dataset_is_not_measured(tmp_path: Path, field: str, epochs: int):
    """What was measured before the training knew of the build does not stay."""
    record = record_of(tmp_path, [50.0, 50.0, 20.0, 20.0])
    third_began = end_of(tmp_path, epoch=2)
    change = replace(CHANGE, field=field, measured=0.5)
    build = Change(DATASET, "prepare=resize", at=third_began + 9, by="ann", refused="why", begun=third_began + 0.1)
    assert [each.measured for each in with_measurements(record, [change, build], epochs)] == [0.0, 0.0]
    assert with_measurements(record, [change, replace(build, begun=0.0)], epochs)[0].measured == 2.5


@pytest.mark.parametrize("refused", ["", "the training was in its last epoch"])
def test_a_change_beside_a_build_that_has_no_end_is_not_measured(tmp_path: Path, refused: str):
    record = record_of(tmp_path, [50.0, 50.0, 20.0, 20.0])
    build = Change(BUILD, "prepare=resize", at=end_of(tmp_path, epoch=2) + 0.1, by="ann", refused=refused)
    assert [each.measured for each in with_measurements(record, [CHANGE, build], 9)] == [0.0, 0.0]
    later = replace(build, at=end_of(tmp_path, epoch=4) + 0.1)
    assert [each.measured for each in with_measurements(record, [CHANGE, later], 9)] == [2.5, 0.0]


def test_a_failed_build_beside_the_continued_training_does_not_count(tmp_path: Path):
    earlier, later = (tmp_path / "runs" / "run" / name for name in ("earlier", "later"))
    record_of(earlier / "record", [60.0, 60.0, 60.0, 120.0, 120.0])
    record_of(later / "record", [40.0, 40.0], from_epoch=6)
    began = end_of(earlier / "record", epoch=3) + 0.1
    failed = Change(BUILD, "prepare=resize", at=began + 1000, by="ann", refused="why", begun=began)
    (earlier / CHANGES).write_text(json.dumps(asdict(failed)) + "\n")
    change = Change(CONTINUES, "compression=gzip", at=began + 2000, by="ann", epoch=6, promised=PROMISED)
    [measured] = with_measurements(later / "record", [change], 8, earlier)
    assert measured.measured == pytest.approx(60 / 40, abs=1e-3)


def test_trainings_on_different_machines_are_not_compared(tmp_path: Path):
    earlier, later = (tmp_path / "runs" / "run" / name for name in ("earlier", "later"))
    record_of(earlier / "record", [60.0, 60.0])
    record_of(later / "record", [30.0, 30.0], from_epoch=3)
    begun = Change(CONTINUES, "prepare=resize", at=1.0, by="ann", epoch=3, promised=PROMISED)
    (later / CHANGES).write_text(json.dumps(asdict(begun)) + "\n")
    for folder, cores in (earlier, 8), (later, 64):
        (folder / RUN).write_text(json.dumps({"host": {"processor": "a processor", "usable_cores": cores}}))
    assert prove(later, later, 4, earlier)[0].measured == 0.0
    (earlier / RUN).write_bytes((later / RUN).read_bytes())
    assert prove(later, later, 4, earlier)[0].measured == 2.0


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([1.28] * 4, Estimate(1.6, 1.5, 1.75)),  # Too few to say something.
        ([1.28, 1.27, 1.29, 1.28, 1.28], Estimate(1.6, 1.28, 1.75)),
        ([2.0, 2.01, 1.99, 2.0, 2.0], Estimate(1.6, 1.5, 2.0)),
        ([1.3, 1.9, 1.5, 1.7, 1.6], Estimate(1.6, 1.5, 1.75)),  # Errors on both sides are not systematic.
    ],
)
def test_a_systematic_error_widens_the_interval(measured: list[float], expected: Estimate):
    kept = [Promise("t", "m", "cache=memory", 2, Estimate(*PROMISED), each) for each in measured]
    assert widened(Estimate(*PROMISED), kept) == pytest.approx(expected, abs=0.01)
