"""What whole epochs took, from a record whose times are known."""

from contextlib import closing
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from pipeline.monitor.epochs import usual_epochs, whole_epochs
from pipeline.monitor.record import RecordSink, closed, rows, segments
from pipeline.monitor.row import Row
from tests.monitor.epoch_records import EXAMPLES, STEPS, record_epochs


def test_an_epoch_has_what_no_step_and_no_column_explains(tmp_path: Path):
    """Of 4 s, 2 s are steps, 1 s is validation, and 1 s is nothing that is known."""
    epochs = whole_epochs(record_epochs(tmp_path, [(2.0, 3.0), (2.0, 4.0)], validation=1.0))
    assert epochs.index.tolist() == [1, 2]
    assert epochs["whole_s"].tolist() == pytest.approx([3.0, 4.0])  # The first step compiled for ten seconds.
    assert epochs["starts"].tolist() == [True, False]
    assert epochs["steps_s"].tolist() == pytest.approx([2.0, 2.0])
    assert epochs["between_s"].tolist() == pytest.approx([1.0, 2.0])
    assert epochs["examples"].tolist() == [EXAMPLES, EXAMPLES]
    assert usual_epochs(epochs).index.tolist() == [2]
    assert usual_epochs(epochs[:1]).index.tolist() == [1]


@pytest.mark.parametrize(
    ("checkpoint_s", "between_s"),
    [
        (2.9, 2.0),  # It was complete before the next one.
        (3.4, 1.6),  # 3 s of steps and validation hide all of it but 0.4 s.
        (9.0, 1.0),  # No more than what is unexplained can be the wait for it.
    ],
)
def test_the_wait_for_a_checkpoint_is_no_work_between_epochs(tmp_path: Path, checkpoint_s: float, between_s: float):
    record = record_epochs(tmp_path, [(2.0, 4.0)] * 3, validation=1.0, checkpoint=checkpoint_s)
    assert usual_epochs(whole_epochs(record))["between_s"].tolist() == pytest.approx([between_s] * 2)


def test_the_pause_between_two_attempts_is_no_time_of_an_epoch(tmp_path: Path):
    """The first attempt stopped in the validation of epoch 3. The next one began an hour later, with no step left."""
    whole = record_epochs(tmp_path / "whole", [(2.0, 3.0)] * 4, validation=1.0)
    resumed = tmp_path / "resumed"
    with closing(RecordSink(resumed)) as record:
        for kind in ("batches", "epochs"):
            for row in rows(whole, kind):
                epoch = int(row.values.get("epoch", row.step))
                later_s = 3600.0 * (epoch > 3 or (epoch == 3 and kind == "epochs"))
                is_first = kind == "batches" and row.step == 3 * STEPS + 1
                values = row.values | ({"first": 1.0} if is_first else {})
                record.write(Row(kind, row.time + later_s, row.step, values))
    epochs = whole_epochs(resumed)
    assert epochs["starts"].tolist() == [True, False, True, True]
    assert epochs["whole_s"].tolist() == pytest.approx([3.0] * 4)


def test_the_batches_of_earlier_epochs_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A process began in the third newest of 12 epochs."""
    whole, record = record_epochs(tmp_path / "whole", [(1.0, 2.0)] * 12, validation=0.5), tmp_path / "record"
    with closing(RecordSink(record, segment_bytes=1_000)) as sink:
        for kind in ("batches", "epochs"):
            for row in rows(whole, kind):
                first = {"first": 1.0} if kind == "batches" and row.step == 9 * STEPS + 1 else {}
                sink.write(Row(kind, row.time, row.step, row.values | first))
    expected = whole_epochs(record)
    assert expected.index.tolist() == [*range(1, 13)]
    closed(segments(record, "batches")[0]).write_bytes(b"damaged")  # Reading it logs a warning.
    for last in (1, 2, 3, 4):
        assert_frame_equal(whole_epochs(record, last=last), expected[-last:])
    assert not caplog.records


def test_a_missing_epoch_hides_when_the_next_one_began(tmp_path: Path):
    assert whole_epochs(tmp_path / "none").empty
    assert whole_epochs(record_epochs(tmp_path, [(2.0, 3.0)] * 4, lost=2)).index.tolist() == [1, 4]
