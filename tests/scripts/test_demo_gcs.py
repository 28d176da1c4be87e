"""The demo runs to its end, and prints the files and objects that it leaves."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeImages

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demo_runs_against_a_bucket_on_this_machine(make_images: MakeImages, tmp_path: Path):
    params = json.dumps({"epochs": 1, "image_size": 32, "batch_size": 8})
    images = make_images({"cats": 10, "dogs": 10})
    command = [sys.executable, "-m", "scripts.demo_gcs", "--images", str(images), "--params", params]
    homes = {"TENFOLD_HOME": str(tmp_path / "home"), "TENFOLD_WORKSPACE": str(tmp_path / "workspace")}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **homes}, capture_output=True, text=True, check=False, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 images uploaded to gs://raw-images/samples" in done.stdout
    assert re.search(r"Model: +gs://tenfold/workspace/runs/.*/model\.keras", done.stdout)
    assert re.search(r"datasets/samples/[0-9a-f]{16} +\d+ objects", done.stdout)
    for page in ("card.html", "report.html"):
        assert (tmp_path / "workspace" / "demo-gcs" / page).stat().st_size > 1000
    assert not (tmp_path / "workspace" / "datasets").exists()
