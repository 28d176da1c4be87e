"""Old import paths keep working, and warn with the new path. The imports run in fresh processes."""

import subprocess
import sys

import pytest

from pipeline import MOVED


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning:__main__", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_every_old_module_name_imports_the_new_module():
    lines = ["import importlib, warnings", "warnings.simplefilter('ignore')"]
    for old, new in MOVED.items():
        lines.append(f"assert importlib.import_module({old!r}) is importlib.import_module({new!r}), {old!r}")
        lines.append(f"assert importlib.import_module({new!r}).__spec__.name == {new!r}")
    done = run("\n".join(lines))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("from pipeline.monitor.window import Windows", "pipeline.monitor.window is now pipeline.monitor.aggregation"),
        ("import pipeline.tfrecord as t; t.read_records", "pipeline.tfrecord is now pipeline.records.tfrecord"),
        (
            "from pipeline.quality.rejection import Rejection",
            "pipeline.quality.rejection is now pipeline.images.rejection",
        ),
        ("from pipeline import estimates", "pipeline.estimates is now pipeline.evaluation.estimates"),
        ("from pipeline.dataset import load", "load of pipeline.dataset is now in pipeline.dataset.manifest"),
        ("from pipeline.records import RecordFormat", "RecordFormat of pipeline.records is now in"),
        ("from pipeline.runs import load_run", "load_run of pipeline.runs is now in pipeline.runs.run"),
        ("from pipeline.snapshot import load_snapshot", "load_snapshot of pipeline.snapshot is now in"),
        ("from pipeline.evaluation import difference", "difference of pipeline.evaluation is now in"),
    ],
)
def test_an_old_import_works_and_warns_with_the_new_name(line: str, words: str):
    done = run(line)
    assert done.returncode == 0, done.stderr
    assert words in done.stderr
    assert "<string>:1: DeprecationWarning" in done.stderr


@pytest.mark.parametrize("line", ["from pipeline.dataset import nothing", "import pipeline.nothing"])
def test_an_unknown_module_or_name_cannot_be_imported(line: str):
    done = run(line)
    assert done.returncode == 1
    assert "nothing" in done.stderr.splitlines()[-1]
