"""The numbers of a comparison of inputs, from invented times whose result is known."""

import json
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.report.inputs_table import format_result
from pipeline.tuning.measurement import load_comparison, turns
from pipeline.tuning.options import ComparisonOptions
from pipeline.tuning.result import Result, load_result
from tests.tuning.compared import BATCH, compared, left_out


def result_of(folder: Path) -> Result:
    return load_result(folder, load_comparison(folder))


def test_the_order_alternates():
    order = turns(ComparisonOptions(contenders="files,shards", rounds=3))
    assert [turn.contender for turn in order] == ["files", "shards", "shards", "files", "files", "shards"]
    assert [turn.round for turn in order] == [0, 0, 1, 1, 2, 2]
    assert [turn.number for turn in order] == list(range(6))


def test_a_fast_accelerator_gains_what_the_inputs_differ_by(tmp_path: Path):
    result = result_of(compared(tmp_path, step_ms=1.0))
    rows = {row.name: row for row in result.rows}
    assert rows["files"].ratio is None
    for name, expected in (("shards", 81 / 40), ("resized", 81 / 16), ("cached", 81 / 5)):
        found = rows[name].ratio
        assert found is not None
        assert found.value == pytest.approx(expected, rel=0.05)
        assert found.low < expected < found.high
    assert rows["files"].wait_fraction == pytest.approx(80 / 81, abs=0.01)
    assert result.verdict.startswith("Use cached images (cache=memory): with the steps of this model, it trains 15.8")
    assert result.step_alone_ms == 1.0


def test_a_slow_accelerator_makes_nothing_worth_a_change(tmp_path: Path):
    """Raw files that are read one after another are left out: they make every accelerator wait."""
    result = result_of(compared(tmp_path, step_ms=500.0, contenders="files_parallel,shards,resized,pixels,cached"))
    assert result.verdict.startswith("Nothing is worth changing")
    assert all(row.ratio is None or row.ratio.value == pytest.approx(1) for row in result.rows)
    assert all(row.wait_fraction == pytest.approx(0, abs=1e-9) for row in result.rows)


def test_rounds_that_differ_too_much_decide_nothing(tmp_path: Path):
    """Two rounds whose ratios are far apart have an interval that reaches below 1."""
    verdict = result_of(compared(tmp_path, step_ms=1.0, noise=0.5, contenders="files,shards", rounds=2)).verdict
    assert verdict.startswith("Not decided: with the steps of this model, shards may be faster than raw files")
    assert "Set more rounds" in verdict


def test_the_cheaper_of_two_equal_inputs_is_named(tmp_path: Path):
    # At 16 ms a step, `resized`, `pixels` and `cached` are all hidden behind the steps.
    verdict = result_of(compared(tmp_path, step_ms=17.0)).verdict
    assert verdict.startswith("Use resized images (prepare=resize)")


def test_a_host_feeds_as_many_accelerators_as_the_rates_allow(tmp_path: Path):
    rows = {row.name: row for row in result_of(compared(tmp_path, noise=0.0)).rows}
    assert rows["shards"].warm_per_s == pytest.approx(1000 * BATCH / 40)
    # 800 images per second against the 1,786 of an H100.
    assert rows["shards"].accelerators["h100"] == pytest.approx(800 / 1785.7, abs=0.001)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("disturbed", True, "still disturbed in the last attempt: 4. Their times"),
        ("repeated", 2, "Attempts that were discarded because other programs disturbed them: 8."),
        ("cached_fraction", None, "could not be checked, because some files belong to another user"),
        ("kept_fraction", 0.4, "do not fit in memory: raw files, shards. Their rates from memory include reads"),
        ("cached_fraction", 0.4, "Up to 40% of the files stayed in the page cache"),
    ],
)
def test_a_doubtful_table_has_a_note_with_the_reason(tmp_path: Path, field: str, value: object, sentence: str):
    compared(tmp_path, contenders="files,shards", rounds=2)
    for path in tmp_path.glob("measurements/*/measurement.json"):
        path.write_text(json.dumps({**json.loads(path.read_bytes()), field: value}))
    assert sentence in " ".join(result_of(tmp_path).notes)


def test_one_epoch_is_the_first_one(tmp_path: Path):
    notes = " ".join(result_of(compared(tmp_path, epochs=1)).notes)
    assert "all rates are those of the first epoch, which reads from the disk" in notes


def test_the_first_epoch_counts_apart(tmp_path: Path):
    row = next(row for row in result_of(compared(tmp_path, noise=0.0)).rows if row.name == "shards")
    assert (row.first_epoch_s, row.epoch_s.mean) == pytest.approx((1.2, 0.8))
    assert row.cpu_pct == pytest.approx(62)  # It is 95% in the first epoch.


def test_a_simulated_accelerator_is_judged_by_the_mark_of_mlperf(tmp_path: Path):
    result = result_of(compared(tmp_path, step_ms=30.0, simulated_step_ms=30.0))
    [sentence] = [note for note in result.notes if "as MLPerf Storage requires" in note]
    assert sentence.endswith("as MLPerf Storage requires: resized images, pixels, cached images.")
    assert "simulated steps" in result.verdict


def test_a_contender_that_cannot_be_measured_is_named(tmp_path: Path):
    result = result_of(left_out(tmp_path, "files"))
    assert [row.name for row in result.rows] == ["files_parallel", "shards", "resized", "pixels", "cached"]
    assert [each.contender for each in result.left_out] == ["files"]
    text = format_result({**result.as_json(), "page": "inputs.html"})
    assert "left out: raw files, because its images are in a bucket" in text
    assert "page: inputs.html" in text


@pytest.mark.parametrize("epochs", [1, 3])
def test_epochs_of_one_step_have_a_result_too(tmp_path: Path, epochs: int):
    """The first step of an epoch is never steady."""
    rows = result_of(compared(tmp_path, noise=0.0, steps=1, epochs=epochs)).rows
    assert next(row for row in rows if row.name == "shards").step_ms.mean == pytest.approx(40)


def test_one_contender_alone_is_no_comparison(tmp_path: Path):
    left_out(tmp_path, "files", contenders="files,shards")
    with pytest.raises(BadInput, match=r"fewer than two contenders could be measured \(raw files: its images are in"):
        result_of(tmp_path)
