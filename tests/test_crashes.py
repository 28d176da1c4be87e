"""Power loss: the next run produces the same bytes from any state that a power loss can leave."""

from pathlib import Path

import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.verify import verify
from pipeline.monitor import read
from pipeline.monitor.record import KINDS, RecordSink
from pipeline.monitor.reporter import Reporter
from pipeline.stages.build import build
from tests.conftest import MakeImages
from tests.crashes import recorded, restore, sampled, states
from tests.published import files_of_version, temporary_files
from tests.waiting import simulated_work, slowness

LOST_S = 2.0
"""Maximum seconds of a record that a power loss may lose."""
STEP_S, STEPS_PER_PROBE = 0.02, 50
"""The minimum duration of a step on a quiet machine, and the steps between two measurements of the speed."""


@pytest.fixture
def settings(make_images: MakeImages, tmp_path: Path) -> Settings:
    source = make_images({"cats": 9, "dogs": 8})
    values = {"source_uri": str(source), "workspace": str(tmp_path / "workspace"), "num_shards": 3}
    return settings_from({**values, "dataset_name": "pets"})


@pytest.mark.core
def test_a_build_converges_after_any_power_loss(settings: Settings):
    workspace = Path(settings.workspace)
    with recorded(workspace) as recording:
        folder = Path(build(settings)["dataset"])
    expected = files_of_version(folder)
    found = states(recording)
    replayed = sampled(found, 80)
    for state in replayed:
        restore(state, workspace)
        assert build(settings)["version"] == folder.name
        assert files_of_version(folder) == expected, state.ops
        assert verify(folder)["ok"]
        assert temporary_files(settings) == []
    print(f"build: {len(recording.ops)} operations, {len(replayed)} of {len(found)} states converge")
    assert len(found) > 80


@pytest.mark.core
def test_a_power_loss_costs_at_most_two_seconds_of_a_record(tmp_path: Path):
    """Two seconds of a quiet machine, because a busy one lets the thread that writes wait."""
    folder = tmp_path / "record"
    # Longer steps on a busy machine, and not more of them: each state of a longer record takes longer to replay.
    slow, waited_s, steps = slowness(), 0.0, 0
    with recorded(tmp_path) as recording:
        sink = RecordSink(folder, segment_bytes=6000)
        reporter = Reporter([sink], sync=sink.sync)
        while waited_s < 4 * LOST_S * slow:
            for kind in KINDS:
                reporter.report(kind, steps, {"x": steps / 2, "y": 1.0})
            simulated_work(STEP_S * slow)
            waited_s += STEP_S * slow
            steps += 1
            if steps % STEPS_PER_PROBE == 0:
                slow = max(slow, slowness())
        reporter.close()
        sink.close()
    whole = {kind: read(folder, kind) for kind in KINDS}
    assert [len(whole[kind]) for kind in KINDS] == [steps] * 3
    found = states(recording)
    replayed = sampled(found, 120)
    certain_rows = 0
    for state in replayed:
        restore(state, tmp_path)
        lost_at = recording.ops[state.ops - 1].time
        for kind in KINDS:
            left = read(folder, kind)
            assert left["step"].is_monotonic_increasing
            assert left["step"].is_unique
            certain = whole[kind].query(f"time < {lost_at - LOST_S * slow}")
            certain_rows += len(certain)
            assert set(certain["step"]) <= set(left["step"]), (state.ops, kind)
            RecordSink(folder)  # the next process compresses the segment that was left open
            assert read(folder, kind).equals(left)
    assert certain_rows
    print(f"record: {len(recording.ops)} operations, {len(replayed)} of {len(found)} states are readable")
