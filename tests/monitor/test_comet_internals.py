"""The private parts of comet-ml that the monitor uses: these tests fail if an upgrade changes them.

If one fails, compare pipeline/monitor/comet_internals.py with the new version, run `make test-long`, and raise SEEN_IN.
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
"""The settings of Comet that follow from ENVIRONMENT, and the settings that the monitor reads."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("opened")


@pytest.fixture(scope="module")
def facts(opened: Path) -> Mapping[str, Any]:
    """Facts about comet_ml, collected in a fresh process, because comet_ml changes the process that imports it."""
    command = [sys.executable, "-c", PROBE, str(opened), json.dumps(list(SETTINGS))]
    root = str(Path(__file__).parents[2])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(opened), "PYTHONPATH": root, "COMET_WORKSPACE": "me"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_the_installed_version_is_the_reviewed_one() -> None:
    assert version("comet-ml") == comet_internals.SEEN_IN


@pytest.mark.parametrize("module", comet_internals.MODULES_WITH_FOLDERS)
def test_comet_uses_tempfile_only_to_create_a_folder(module: str) -> None:
    """`temporary_folders_in` replaces only `mkdtemp`. The source is parsed, so comet_ml need not be imported."""
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


def test_temporary_folders_are_created_in_the_folder_of_the_attempt(facts: Mapping[str, Any], opened: Path) -> None:
    assert Path(facts["tmpdir"]).parent == opened
    assert facts["tempfile"] == ["tempfile", "tempfile"]  # restored


def test_an_offline_experiment_runs_and_is_never_delivered(facts: Mapping[str, Any]) -> None:
    assert facts["was running"] is True
    assert facts["is delivered"] is False
    assert facts["streamers"] == [True, True]


def test_archives_of_comet_and_of_the_monitor_have_the_same_format(facts: Mapping[str, Any], opened: Path) -> None:
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
