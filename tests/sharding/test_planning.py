"""Planning as a whole: its memory use, and that a task reads only its own range."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.settings import Settings, settings_from
from pipeline.dataset.labels import proposed_labels
from pipeline.errors import SettingsError
from pipeline.plan.plan import Plan, load_plan
from pipeline.plan.range_plan import load_range
from pipeline.sharding import planning
from pipeline.sharding.write import write_range
from pipeline.snapshot.part import PartLimits
from pipeline.snapshot.snapshot import load_snapshot, save_snapshot
from pipeline.stages.shard import plan_shards
from pipeline.storage import Place
from tests.conftest import MakeImages
from tests.published import changed, no_progress, rows_of_plan
from tests.snapshots import take_snapshot

IMAGES = (20_000, 200_000)
PLAN = """
import sys
from pathlib import Path
from pipeline.config.settings import settings_from
from pipeline.plan.plan import load_plan
from pipeline.stages.shard import plan_shards
from pipeline.snapshot.part import PartLimits, blocks_of, write_parts
from pipeline.snapshot.raw_example import Origin, RawExample
from pipeline.snapshot.snapshot import Snapshot, save_snapshot

root, count = Path(sys.argv[1]), int(sys.argv[2])
rows = (
    RawExample(f"c{number % 10}/{number:08d}.jpg", [f"c{number % 10}"], "", 1000, None, "", [], 1)
    for number in range(count)
)
labels = [f"c{number}" for number in range(10)]
snapshot = Snapshot(
    source_uri="/nowhere", origin=Origin("/nowhere"), kind="images", source_kind="folder",
    parts=list(write_parts(blocks_of(rows), root, PartLimits(10_000))), started_ns=0,
    fingerprint="f", listed=count, bytes=1000 * count, labels=labels, stated_labels=[], texts={},
    classes=dict.fromkeys(labels, count // 10), multi_label=False, has_boxes=False, box_labels=[],
    skipped={}, skipped_suffixes={},
)
settings = settings_from({"source_uri": "/nowhere", "workspace": str(root / "w"), "num_shards": 50})
plan = load_plan(plan_shards(settings, save_snapshot(snapshot, root / "snapshot.json")))
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024, *plan.ranges, sep="\\n")
"""


@pytest.mark.long
def test_memory_of_planning_does_not_grow_with_the_images(tmp_path: Path):
    """There are ten times as many images, in parts of 10,000.

    They have no checksum: equal images are searched among 8 million at a time, so memory grows up to this number. It
    grows by 17 bytes for each image. A row as an object of Python takes 500.
    """
    peaks = []
    for count in IMAGES:
        arguments = [sys.executable, "-c", PLAN, str(tmp_path / str(count)), str(count)]
        (tmp_path / str(count)).mkdir()
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        peak, *ranges = done.stdout.splitlines()
        assert len(ranges) == 13
        assert sum(load_range(Path(path)).examples for path in ranges) == count
        for path in ranges:
            assert len(rows_of_plan(Path(path))) == load_range(Path(path)).examples
        peaks.append(float(peak))
    assert (peaks[1] - peaks[0]) * 2**20 < 40 * (IMAGES[1] - IMAGES[0])


def test_the_version_depends_on_split_seed_and_not_on_seed(settings: Settings):
    taken = take_snapshot(settings)

    def planned(**values: int) -> Plan:
        return load_plan(plan_shards(changed(settings, **values), taken))

    first = planned()
    assert planned(seed=1) == first
    assert planned(split_seed=1).version != first.version
    assert planned(split_seed=1).settings == first.settings | {"split_seed": 1}


def test_label_order_and_number_of_plan_files_do_not_change_the_version(settings: Settings):
    """Parts of a source that are listed in parallel find labels in a different order."""
    taken = take_snapshot(settings)
    first = load_plan(plan_shards(settings, taken))
    assert take_snapshot(settings, limits=PartLimits(5)) == taken
    snapshot = load_snapshot(taken)
    assert len(snapshot.parts) == 5
    save_snapshot(replace(snapshot, labels=snapshot.labels[::-1]), taken)
    for shards_per_task in (1, 3, 100):
        # Another name has no label ids yet.
        other = changed(settings, dataset_name=f"other{shards_per_task}", shards_per_task=shards_per_task)
        assert_alike(first, load_plan(plan_shards(other, taken)))


@pytest.mark.parametrize("planned", ["another version", "missing here"])
def test_shards_planned_with_other_codecs_are_not_written(settings: Settings, planned: str):
    """The version of such a plan promises bytes that these codecs may not give."""
    path = Path(load_plan(plan_shards(settings, take_snapshot(settings))).ranges[0])
    header, _, rows = path.read_bytes().partition(b"\n")
    content = json.loads(header)
    before = content["codecs"]
    assert before["pillow"]
    changed_codecs = {"pillow": "1.0"} if planned == "another version" else {"jpeg-2030": "1.0"}
    path.write_bytes(json.dumps({**content, "codecs": before | changed_codecs}).encode() + b"\n" + rows)
    with pytest.raises(SettingsError, match=r"(pillow|jpeg-2030) is \S+ instead of 1\.0.*install the same packages"):
        write_range(path, no_progress)
    assert not list(Path(content["written"]).glob("*.tfrecord"))


def test_a_question_is_not_repeated_if_another_run_adds_labels_in_between(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    contradictory = changed(settings, on_imbalance="ask", max_imbalance=1.0)
    (Path(settings.source_uri) / "cats" / "000.jpg").unlink()
    reserve, others = planning.reserve_labels, iter([["ant"], ["bee"]])

    def reserve_late(folder: Place, labels: list[str], build: str) -> bool:
        for names in others:
            assert reserve(folder, proposed_labels(folder, names), "of another run")
            break
        return reserve(folder, labels, build)

    questions: list[str] = []
    monkeypatch.setattr(planning, "reserve_labels", reserve_late)
    made = load_plan(
        plan_shards(contradictory, take_snapshot(settings), lambda sentence: not questions.append(sentence))
    )
    assert made.labels == ["ant", "bee", "cats", "dogs", "eels"]
    assert len(questions) == 1


def assert_alike(one: Plan, other: Plan) -> None:
    assert (one.version, one.labels, one.quality) == (other.version, other.labels, other.quality)


@pytest.mark.parametrize(
    ("names", "offset", "expected"),
    [
        (range(12), 0, ""),
        (range(1, 13), 0, "the label 1 has the id 0"),
        (range(1, 13), 1, ""),
        ([0, 1, 10, 11, 3], 0, "the label 3 has the id 2"),
        (["00", "01", "02"], 0, ""),
        (["0", "1", "cats"], 0, ""),
    ],
)
def test_numbers_as_labels_are_named_if_the_ids_are_others(
    make_images: MakeImages,
    tmp_path: Path,
    names: list[object],
    offset: int,
    expected: str,
    caplog: pytest.LogCaptureFixture,
):
    source = make_images({str(name): 1 for name in names})
    places = {"source_uri": str(source), "workspace": str(tmp_path / "w"), "label_offset": offset}
    settings = settings_from(places)
    with caplog.at_level("INFO"):
        load_plan(plan_shards(settings, take_snapshot(settings)))
    notes = [record.message for record in caplog.records if "the labels are numbers" in record.message]
    assert len(notes) == bool(expected)
    assert expected in "".join(notes)
