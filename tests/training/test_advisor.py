"""The change that a training offers on its tab, and makes by itself with advice=apply."""

import json
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pandas
import pytest
from pandas.testing import assert_frame_equal

from pipeline.config.automatic import training_settings
from pipeline.dataset.manifest import Dataset, Split
from pipeline.monitor.epochs import whole_epochs
from pipeline.monitor.limits import Limit
from pipeline.monitor.record import RecordSink, rows
from pipeline.records.format import RecordFormat
from pipeline.runs.changes import Change
from pipeline.runs.files import CHANGES, OFFERS
from pipeline.runs.run import Run
from pipeline.storage import write_whole
from pipeline.training.advisor import Advisor
from pipeline.tuning.predictions import PREPARED
from pipeline.tuning.stages import save_stages
from standins.fake_gcs import FakeGcs
from tests.monitor.epoch_records import record_epochs
from tests.tuning.test_predictions import DECODING, KEPT, SETTINGS, costs, verdict, with_shares

EPOCHS = 5
PAUSING = replace(verdict(Limit.BUFFER, us=100, wait=0.5, own_cores=0.1), bridged_ms={1: 0.4, 8: 0.1})
_SPLITS = {"train": Split(900, 1, {"a": 900}, ()), "validation": Split(100, 1, {"a": 100}, ())}
DATASET = Dataset("images", "1" * 16, ("a",), {}, RecordFormat(), {}, _SPLITS, {}, {}, {}, {}, {}, {})


def advisor(folder: Path, **values: object) -> Advisor:
    """Return the advisor of a training that is limited by decoding, whose stages were measured."""
    settings = training_settings({**SETTINGS, "crop": "random", "workspace": str(folder), **values})
    save_stages(folder, KEPT)
    return Advisor(Run(folder, "run", "", "1", settings, {"memory_bytes": 1e10}, {}, 1), DATASET)


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ({}, [{"cache": "disk"}, {"cache": "memory"}]),
        ({"advice": "off"}, []),
        ({"crop": "random_resized"}, []),
    ],
)
def test_the_best_changes_surely_gain_and_need_no_dataset(
    tmp_path: Path, values: dict[str, str], changes: list[dict[str, str]]
):
    advised = advisor(tmp_path, **values)
    settings = advised._run.settings
    assert advised.best_changes(settings, EPOCHS) == []  # Nothing is known before the first verdict.
    advised.format_verdict(DECODING)
    assert advised.best_changes(settings, EPOCHS) == changes
    assert (tmp_path / OFFERS).exists() == (settings.advice != "off")
    if changes:
        offers = json.loads((tmp_path / OFFERS).read_text())["offers"]
        assert [offer["change"] for offer in offers] == changes
        assert all("times faster" in offer["words"] for offer in offers)


def test_an_offer_of_the_first_epoch_allows_for_a_validation_that_nobody_saw(tmp_path: Path):
    """Its 100 examples may take as long as 100 of the 900 that train. Then, two epochs show that it takes no time."""
    advised, lows = advisor(tmp_path), []
    for _ in range(2):
        advised.format_verdict(DECODING)
        lows.append(json.loads((tmp_path / OFFERS).read_text())["offers"][0]["promised"][1])
        record_epochs(tmp_path / "record", [(0.05, 0.05)] * 2)
    assert lows[0] < 0.95 * lows[1]


def test_a_new_dataset_is_offered_and_not_made_by_the_training_itself(tmp_path: Path):
    """The process that waits for the training starts it (pipeline/runs/advised.py)."""
    prepared = {"resize": {"costs": asdict(costs(size=8_000, read=10, parse=5, decode=50, batch=20)), "core_s": 1e-4}}
    (tmp_path / PREPARED).write_text(json.dumps(prepared))
    advised = advisor(tmp_path, advice="apply", crop="random_resized")
    advised.format_verdict(DECODING)
    assert advised.best_changes(advised._run.settings, EPOCHS) == []
    [offer] = json.loads((tmp_path / OFFERS).read_text())["offers"]
    assert offer["change"] == {"prepare": "resize", "prepare_size": 73}


@pytest.mark.parametrize(("core_s", "cache"), [(0.1, "off"), (1e-4, "memory")])
def test_a_new_dataset_that_costs_more_than_it_saves_is_not_offered(tmp_path: Path, core_s: float, cache: str):
    """What is left takes 2.3 s, and 100 s of work on two cores do not pay. Kept images are not decoded again here."""
    prepared = {"resize": {"costs": asdict(costs(size=8_000, read=10, parse=5, decode=50, batch=20)), "core_s": core_s}}
    (tmp_path / PREPARED).write_text(json.dumps(prepared))
    advised = advisor(tmp_path, cache=cache, crop="random" if cache == "memory" else "random_resized")
    advised.format_verdict(DECODING)
    assert json.loads((tmp_path / OFFERS).read_text())["offers"] == []


def test_nothing_is_offered_by_what_was_seen_before_a_change(tmp_path: Path):
    advised = advisor(tmp_path)
    advised.format_verdict(DECODING)
    changed = advised._run.settings.model_copy(update={"prefetch_batches": 8})
    assert advised.best_changes(changed, EPOCHS - 1) == []
    assert json.loads((tmp_path / OFFERS).read_text())["offers"] == []
    # A verdict may go back over many minutes, to steps before the change.
    for _ in range(2):
        advised.format_verdict(replace(DECODING, since=advised._changed_at - 1))
        assert advised.best_changes(changed, EPOCHS - 2) == []
    advised.format_verdict(replace(DECODING, since=advised._changed_at + 1))
    assert advised.best_changes(changed, EPOCHS - 2) == [{"cache": "disk"}, {"cache": "memory"}]


def test_the_verdict_on_a_whole_training_with_a_change_promises_no_gain(tmp_path: Path):
    assert "times faster" in advisor(tmp_path).format_whole(DECODING)
    (tmp_path / CHANGES).write_text(json.dumps(asdict(Change("prefetch_batches", 8, 1.0, "Ada", epoch=2))) + "\n")
    assert "times faster" not in advisor(tmp_path).format_whole(DECODING)


def test_the_changes_of_a_training_in_a_bucket_are_those_of_the_bucket(tmp_path: Path, gcs: FakeGcs):
    changed = advisor(tmp_path, workspace="gs://bucket/w")._run.training / CHANGES
    with write_whole(changed) as file:
        file.write(json.dumps(asdict(Change("prefetch_batches", 8, 1.0, "Ada", epoch=2))).encode() + b"\n")
    assert "times faster" not in advisor(tmp_path, workspace="gs://bucket/w").format_whole(DECODING)


def test_a_training_ends_although_its_changes_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    advised = advisor(tmp_path, cache="memory", epochs=EPOCHS)
    (tmp_path / CHANGES).mkdir()
    assert advised.format_whole(DECODING).startswith(DECODING.sentence)
    assert "no gain is predicted, because the changes of the training cannot be read" in caplog.text


def test_nothing_is_offered_by_the_epoch_that_decodes_the_images_that_are_kept(tmp_path: Path):
    """An attempt that goes on decodes them again in its own first epoch, here in epoch 2 of 5."""
    advised, later = advisor(tmp_path, cache="memory", epochs=EPOCHS), [{"prefetch_batches": 16}]
    settings = advised._run.settings
    advised.format_verdict(PAUSING)
    assert json.loads((tmp_path / OFFERS).read_text())["offers"] == []
    assert advised.best_changes(settings, EPOCHS - 2) == []
    advised.format_verdict(replace(PAUSING, since=advised._changed_at - 1))
    assert advised.best_changes(settings, EPOCHS - 2) == []
    advised.format_verdict(replace(PAUSING, since=advised._changed_at + 1))
    assert advised.best_changes(settings, EPOCHS - 2) == later
    assert advised.best_changes(settings, EPOCHS - 3) == later
    assert advised._since == 2


def test_the_advice_on_a_whole_training_that_keeps_images_follows_from_its_later_epochs(tmp_path: Path):
    record_epochs(tmp_path / "record", [(5.0, 5.0), (2.0, 2.0), (2.0, 2.0)])
    assert "use a GPU" in advisor(tmp_path, cache="memory").format_whole(DECODING)


def test_what_has_changed_is_not_advised_again(tmp_path: Path):
    advised = advisor(tmp_path)
    kept = advised._run.settings.model_copy(update={"cache": "memory"})
    advised.best_changes(kept, EPOCHS)
    assert "cache" not in advised.format_verdict(DECODING)
    assert advised.best_changes(kept, EPOCHS) == []


def test_an_attempt_that_goes_on_knows_the_changes_before_it(tmp_path: Path):
    change = Change("cache", "memory", 1.0, "Ada", epoch=2)
    (tmp_path / CHANGES).write_text(json.dumps(asdict(change)) + "\n")
    assert "cache" not in advisor(tmp_path).format_verdict(DECODING)


def test_an_offer_is_about_the_epochs_that_are_left_and_a_verdict_about_all(tmp_path: Path):
    """In the last epoch, no cache gains. The next training of these images would gain from it."""
    advised = advisor(tmp_path)
    assert advised.best_changes(advised._run.settings, 1) == []
    assert "(cache=disk)" in advised.format_verdict(DECODING)
    assert json.loads((tmp_path / OFFERS).read_text())["offers"] == []


def test_epochs_of_tenths_of_a_second_do_not_wait_for_equal_predictions(tmp_path: Path):
    advised = advisor(tmp_path, epochs=100)
    advised.format_verdict(DECODING)
    (tmp_path / OFFERS).unlink()
    changes = advised.best_changes(advised._run.settings, 99)
    assert changes[0] == {"cache": "disk"}
    assert advised.best_changes(advised._run.settings, 91) == changes
    assert not (tmp_path / OFFERS).exists()
    advised.best_changes(advised._run.settings, 90)
    assert (tmp_path / OFFERS).exists()


def test_offers_that_cannot_be_stored_cost_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    advised = advisor(tmp_path)
    (tmp_path / OFFERS).mkdir()
    assert "(cache=disk)" in advised.format_verdict(DECODING)
    assert advised.best_changes(advised._run.settings, EPOCHS)
    assert "cannot be stored" in caplog.text


def test_a_folder_outside_of_a_workspace_keeps_no_promises(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    advisor(tmp_path).save_promises()
    assert "is not the folder of a training" in caplog.text


def test_the_time_between_epochs_is_that_of_whole_epochs_with_the_settings(tmp_path: Path):
    """A minute without a validation, of a training that validates half of the time. Epoch 3 opened its input again."""
    (tmp_path / CHANGES).write_text(json.dumps(asdict(Change("prefetch_batches", 4, 1.0, "Ada", epoch=3))) + "\n")
    record_epochs(tmp_path / "record", [(5.0, 9.0), (5.0, 9.0), (5.0, 7.0), (1.0, 2.0), (1.0, 2.0)])
    advised = advisor(tmp_path, epochs=6)
    advised.format_verdict(with_shares(DECODING, input=0.8, compute=0.2))
    assert advised._epochs is not None
    assert advised._epochs["whole_s"].tolist() == pytest.approx([2.0, 2.0])
    assert [*advised._epochs.index] == [4, 5]
    # A change that is made now has no whole epoch yet.
    changed = advised._settings.model_copy(update={"prefetch_batches": 8})
    advised.best_changes(changed, 1)
    advised.format_verdict(DECODING)
    assert len(advised._epochs) == 0


def test_an_old_part_of_the_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, growing = record_epochs(tmp_path / "whole", [(1.0, 2.0)] * 12, validation=0.5), tmp_path / "record"
    counts = []

    def whole_epochs_since(record: Path, since: float | None, last: int) -> pandas.DataFrame:
        counts.append(len(found := whole_epochs(record, since, last)))
        return found

    monkeypatch.setattr("pipeline.training.advisor.whole_epochs", whole_epochs_since)
    advised = advisor(tmp_path)
    with closing(RecordSink(growing, segment_bytes=1_000)) as record:
        for epoch in range(1, 13):
            for kind in ("batches", "epochs"):
                for row in rows(whole, kind):
                    if row.values.get("epoch", row.step) == epoch:
                        record.write(row)
            advised.format_verdict(DECODING)
            assert_frame_equal(advised._epochs, whole_epochs(growing))
    assert max(counts) < 8
