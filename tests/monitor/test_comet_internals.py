"""What the monitor relies on of comet-ml without a promise: an upgrade that changes it fails here.

Then read pipeline/monitor/comet_internals.py beside the new version, run `make test-long`, and raise SEEN_IN.
"""

import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.monitor import comet_internals

PROBE = """
import json, sys
from pathlib import Path

from pipeline.monitor import comet, comet_internals

folder = Path(sys.argv[1])
options = comet.CometOptions("project", "identity", "name")
assert comet_internals.setting("comet.workspace") is None  # comet_ml is not imported yet
comet_ml = comet._comet()
experiment = comet._begin(options, folder, online=False)
experiment.log_metric("loss", 0.5, step=1)
from comet_ml.streamer.fallback import FallbackStreamer
from comet_ml.streamer.online import OnlineStreamer

facts = {
    "settings": {name: comet_ml.get_config(name) for name in json.loads(sys.argv[2])},
    "tmpdir": experiment.tmpdir,
    "was running": comet_internals.is_running(experiment),
    "streamers": [hasattr(each, "has_connection_to_server") for each in (FallbackStreamer, OnlineStreamer)],
    "tempfile": [sys.modules[name].tempfile.__name__ for name in comet_internals.MODULES_WITH_FOLDERS],
}
experiment.end()
facts["is delivered"] = comet_internals.is_delivered(experiment)
print(json.dumps(facts))
"""
SETTINGS = {
    "comet.disable_auto_logging": 1,
    "comet.error_tracking.enable": False,
    "comet.disable_announcement": True,
    "comet.logging.console": "CRITICAL",
    "comet.fallback_streamer.keep_offline_zip": True,
    "comet.timeout.cleaning": 50,
    "comet.api_key": None,
    "comet.workspace": "me",
}
"""What ENVIRONMENT must become in Comet's own settings, and the settings that the monitor reads."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("opened")


@pytest.fixture(scope="module")
def facts(opened: Path) -> Mapping[str, Any]:
    """Return what a fresh process finds in comet_ml, which changes the process that imports it."""
    command = [sys.executable, "-c", PROBE, str(opened), json.dumps(list(SETTINGS))]
    root = str(Path(__file__).parents[2])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(opened), "PYTHONPATH": root, "COMET_WORKSPACE": "me"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_the_installed_version_is_the_one_that_was_read() -> None:
    assert version("comet-ml") == comet_internals.SEEN_IN


@pytest.mark.parametrize("module", comet_internals.MODULES_WITH_FOLDERS)
def test_tempfile_is_only_used_to_make_a_folder(module: str) -> None:
    """`_Folders` has nothing else. Read from the source, which needs no import of comet_ml."""
    spec = find_spec("comet_ml")
    assert spec
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    nodes = list(ast.walk(ast.parse(path.read_text())))
    calls = [
        ast.unparse(node) for node in nodes if isinstance(node, ast.Call) and "tempfile." in ast.unparse(node.func)
    ]
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == "tempfile"]
    assert calls == ["tempfile.mkdtemp()"]
    assert len(uses) == 1


def test_comet_reads_the_environment(facts: Mapping[str, Any]) -> None:
    assert facts["settings"] == SETTINGS
    assert len(comet_internals.ENVIRONMENT) == 6


def test_temporary_folders_are_made_in_the_folder_of_the_attempt(facts: Mapping[str, Any], opened: Path) -> None:
    assert Path(facts["tmpdir"]).parent == opened
    assert facts["tempfile"] == ["tempfile", "tempfile"]  # put back


def test_an_offline_experiment_runs_and_is_never_delivered(facts: Mapping[str, Any]) -> None:
    assert facts["was running"] is True
    assert facts["is delivered"] is False
    assert facts["streamers"] == [True, True]


def test_an_archive_is_as_the_monitor_writes_it(facts: Mapping[str, Any], opened: Path) -> None:
    [packed] = [path for path in opened.glob("*.zip") if path.stat().st_size]
    with zipfile.ZipFile(packed) as archive:
        theirs = json.loads(archive.read(comet_internals.DESCRIPTION))
        lines = archive.read(comet_internals.MESSAGES).splitlines(keepends=True)
    ours = comet_internals.stopped(comet_internals.description(theirs["offline_id"], "project", "me"))
    times = ("start_time", "stop_time")
    assert {**ours, **dict.fromkeys(times)} == {**theirs, **dict.fromkeys(times)}
    assert all(abs(ours[name] - theirs[name]) < 600_000 for name in times)
    assert lines
    assert all(map(comet_internals.is_whole_message, lines))
