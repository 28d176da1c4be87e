"""Inputs are compared from the command line: every contender trains, stops and continues, and has its own results."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.dataset.manifest import load
from pipeline.system.process import environment_of_tensorflow
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.measurement import Failure, save_measurement
from tests.conftest import MakeImages
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def command(source: Path, workspace: Path, *settings: str, contenders: str = ",".join(CONTENDERS)) -> list[str]:
    given = [
        *(f"source_uri={source}", f"workspace={workspace}", "epochs=2", "image_size=32", "batch_size=8"),
        *settings,
    ]
    sets = [part for setting in given for part in ("--set", setting)]
    options = ["--contenders", contenders, "--rounds", "2", "--measure-seconds", "0.1"]
    return [sys.executable, "-m", "pipeline", "compare-inputs", *sets, *options, "--json"]


def run(arguments: Sequence[str]) -> tuple[dict, str]:
    done = subprocess.run(arguments, env=environment_of_tensorflow(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def source(make_images: MakeImages) -> Path:
    return make_images({"cats": 20, "dogs": 20})


def test_every_contender_trains_on_the_same_examples(source: Path, tmp_path: Path):
    result, _ = run(command(source, tmp_path / "workspace"))
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["files", "files_parallel", "shards", "resized", "pixels", "cached"]
    assert result["left_out"] == []
    assert rows["files"]["ratio"] is None
    for row in list(rows.values())[1:]:
        assert row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"]
        assert row["warm_per_s"] > 0
    folder = Path(result["comparison"])
    assert len(list(folder.glob("measurements/*/measurement.json"))) == 12
    assert Path(result["page"]).read_text().startswith("<!doctype html>")
    examples = {json.loads(path.read_bytes())["examples"] for path in folder.glob("measurements/*/measurement.json")}
    names = {path.parent.parent.name for path in (tmp_path / "workspace" / "datasets").glob("*/*/dataset.json")}
    assert names == {"source-inputs-keep", "source-inputs-resize", "source-inputs-raw"}
    published = [path.parent for path in (tmp_path / "workspace" / "datasets").glob("*/*/dataset.json")]
    assert examples == {load(each).splits["train"].examples for each in published}


def test_a_stopped_comparison_keeps_what_is_measured(source: Path, tmp_path: Path):
    arguments = command(source, tmp_path / "workspace", "simulated_step_ms=5", contenders="files,shards")
    with subprocess.Popen(arguments, env=environment_of_tensorflow(), stderr=subprocess.PIPE, text=True) as process:
        pattern = "runs/manual/inputs-*/measurements/*/measurement.json"
        until(lambda: list((tmp_path / "workspace").glob(pattern)) or process.poll() is not None, 600)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGTERM)
        output = process.communicate()[1]
    assert process.returncode == 75, output
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "workspace").glob(pattern)}
    assert 1 <= len(times) < 4
    result, _ = run(arguments)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert [row["name"] for row in result["rows"]] == ["files", "shards"]
    assert "simulated steps" in result["verdict"]


def test_images_that_tensorflow_cannot_read_leave_only_raw_files_out(source: Path, tmp_path: Path):
    """A TIFF file is an image for the shards, and none for TensorFlow."""
    from PIL import Image

    for number in range(10):
        Image.new("RGB", (40, 30), (20 * number, 0, 0)).save(source / "cats" / f"odd-{number}.tiff")
    result, _ = run(command(source, tmp_path / "workspace", contenders="files,shards,resized"))
    assert [each["contender"] for each in result["left_out"]] == ["files"]
    assert "TensorFlow cannot read a raw image" in result["left_out"][0]["why"]
    assert [row["name"] for row in result["rows"]] == ["shards", "resized"]


def test_a_failure_is_tried_again_and_a_complete_comparison_only_on_request(source: Path, tmp_path: Path):
    arguments = command(source, tmp_path / "workspace", contenders="files,shards")
    first, _ = run(arguments)
    folder = Path(first["comparison"])
    failed = sorted(folder.glob("measurements/*-files"))
    for each in failed:
        save_measurement(each, Failure("files", "the disk was away"))
    second, _ = run(arguments)
    assert second["comparison"] == first["comparison"]
    assert second["left_out"] == []
    third, _ = run([*arguments, "--again"])
    assert third["comparison"] == f"{folder}-2"


def test_a_comparison_that_only_one_contender_can_take_part_in_is_refused(source: Path, tmp_path: Path):
    rows = [f"{path.relative_to(source)},{path.parent.name}|all" for path in source.glob("*/*")]
    listing = source / "list.csv"
    listing.write_text("\n".join(["path,label", *rows]))
    arguments = command(listing, tmp_path / "workspace", contenders="files,shards")
    done = subprocess.run(arguments, env=environment_of_tensorflow(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "fewer than two contenders can be measured (raw files: the images have several labels" in done.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("crop=random_resized", "crop must be random or whole"),
        ("workspace=gs://bucket/tenfold", "workspace must be a local folder"),
    ],
)
def test_settings_that_cannot_be_compared_are_refused_before_anything_is_written(
    setting: str, message: str, source: Path, tmp_path: Path
):
    arguments = command(source, tmp_path / "workspace", setting)
    done = subprocess.run(arguments, env=environment_of_tensorflow(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "workspace").exists()
