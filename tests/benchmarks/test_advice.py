"""The benchmark of the advice: its pairs, and the table of its results."""

from pathlib import Path

import pytest

from benchmarks.advice import Result, examples_per_s, report
from benchmarks.known_limits.datasets import DATA
from benchmarks.known_limits.own_inputs import INPUTS
from benchmarks.known_limits.pairs import PAIRS
from benchmarks.verdicts import SURROUNDINGS
from pipeline.config.settings import Settings
from tests.monitor.epoch_records import EXAMPLES, record_epochs


def test_the_pairs_have_own_names_and_change_what_exists() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) == 40
    assert sum(pair.job.data in ("rows", "wide rows", "half of the rows") for pair in PAIRS) == 10
    for pair in PAIRS:
        for job in (pair.job, pair.changed):
            assert job.own_input in {"", *INPUTS}
            assert job.own_input or job.data in DATA
            assert job.around in SURROUNDINGS
        assert pair.changed != pair.job
        assert pair.is_hardware or pair.change.keys() <= Settings.model_fields.keys()


def test_a_dataset_is_changed_by_its_settings_and_a_training_by_its_own() -> None:
    by_change = {next(iter(pair.change)): pair for pair in PAIRS}
    prepared, kept, more = (by_change[name] for name in ("prepare", "cache", "cores"))
    assert "prepare" not in prepared.changed.settings
    assert kept.changed.settings["cache"] == "memory"
    assert "cores" not in more.changed.settings
    assert more.changed.around != more.job.around


def test_the_table_counts_only_sound_pairs() -> None:
    def result(name: str, value: float, measured: float, **values: float | str) -> Result:
        return Result(name, ["decoding"], {"value": value, "low": 0.9 * value, "high": 1.1 * value}, measured, **values)

    lines = [
        *report(
            [
                result("right", 2.0, 2.0),
                result("far", 3.0, 2.0),
                result("near", 2.2, 2.0),
                result("disturbed", 9.0, 2.0, other_cores=1.0),
                Result("missing", ["reading"], reason="not predicted"),
            ]
        )
    ]
    assert "| right | decoding | 2.00 (1.80 to 2.20) | 2.00 | +0% |" in lines
    assert "| disturbed | decoding | 9.00 (8.10 to 9.90) | 2.00 | disturbed |" in lines
    assert "| missing | reading | not predicted | | |" in lines
    assert lines[-1].startswith(
        "4 of 40 pairs, 1 of them without a prediction. The median error of the others is 10.0% (at most 10% wanted). "
        "Of all of these pairs, 2 predictions (50%) are within"
    )
    assert lines[-1].endswith("and 2 measured factors are within the interval.")


def test_the_measured_rate_is_that_of_whole_epochs(tmp_path: Path) -> None:
    record_epochs(tmp_path / "record", [(6.0, 6.5), (1.0, 2.0), (1.0, 2.0)], validation=0.5)
    assert examples_per_s(tmp_path, with_first=False) == pytest.approx(EXAMPLES / 2.0)
    assert examples_per_s(tmp_path, with_first=True) == pytest.approx(3 * EXAMPLES / 10.5)
    short = record_epochs(tmp_path / "short" / "record", [(6.0, 6.5)], validation=0.5)
    assert examples_per_s(short.parent, with_first=False) == pytest.approx(EXAMPLES / 6.5)
