"""What every engine does: call a task for each place, retry what may work later, and raise errors unchanged."""

import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline.config.settings import Settings
from pipeline.engines import ENGINES, engine_named
from pipeline.engines.task import MAX_RETRIES
from pipeline.errors import SettingsError
from tests.engines.calls import HERE, PLACES, Call
from tests.engines.cases import COUNT


def engines(but: str = "") -> list[Any]:
    return [pytest.param(name, marks=[] if name == HERE else [pytest.mark.long]) for name in ENGINES if name != but]


@pytest.mark.parametrize("engine", engines())
def test_an_engine_calls_the_task_for_each_place_and_counts(engine: str, tmp_path: Path):
    assert Call(engine, "write", tmp_path).is_complete()


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("places", [0, 1])
def test_an_engine_needs_few_places(engine: str, places: int, tmp_path: Path):
    call = Call(engine, "write", tmp_path, places=places)
    assert (call.kind, call.count, len(call.written)) == ("", COUNT * places, places)


@pytest.mark.parametrize("engine", engines())
def test_an_error_that_no_retry_repairs_is_raised_unchanged(engine: str, tmp_path: Path):
    call = Call(engine, "refuse_the_first", tmp_path)
    assert call.kind == "SourceError"
    assert call.message == "00000.txt changed after it was listed: run again"


@pytest.mark.parametrize("engine", engines())
def test_a_call_that_failed_is_repeated(engine: str, tmp_path: Path):
    assert Call(engine, "fail_once", tmp_path).is_complete()


@pytest.mark.parametrize("engine", engines())
def test_an_error_that_does_not_pass_is_raised_after_the_last_retry(engine: str, tmp_path: Path):
    call = Call(engine, "fail_always", tmp_path)
    assert (call.kind, call.message) == ("StorageError", "the bucket did not answer:\ntry again later")
    calls = len((tmp_path / "00001.txt.calls").read_text())
    # Spark gives a task four attempts, of which each makes all these calls.
    assert calls == (MAX_RETRIES + 1) * (4 if engine == "spark" else 1)


# Beam has no other process here: see test_shards.py.
@pytest.mark.parametrize(
    ("engine", "places"),
    [(HERE, PLACES), *(pytest.param(*case, marks=pytest.mark.long) for case in ((HERE, 3000), ("spark", PLACES)))],
)
def test_a_killed_call_is_repeated(engine: str, places: int, tmp_path: Path):
    call = Call(engine, "be_killed_once", tmp_path, places=places)
    assert (call.kind, call.count, len(call.written)) == ("", COUNT * places, places)


@pytest.mark.parametrize("engine", engines())
def test_a_process_makes_one_call_at_a_time(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # By default, Beam has one thread here. On a cluster, it has several.
    threads = "--runner=FnApiRunner --direct_running_mode=multi_threading --direct_num_workers=4"
    monkeypatch.setenv("TENFOLD_BEAM_OPTIONS", threads)
    assert Call(engine, "be_alone", tmp_path).is_complete()


# The processes of this machine inherit the environment.
@pytest.mark.parametrize("engine", engines(but=HERE))
def test_the_allowlists_of_the_caller_hold_in_the_processes_of_an_engine(engine: str, tmp_path: Path):
    assert set(Call(engine, "tell_sources", tmp_path, "/data,/more").written.values()) == {"/data,/more"}


@pytest.mark.parametrize(("engine", "package"), [("spark", "pyspark"), ("beam", "apache_beam")])
def test_an_engine_without_its_package_names_it(engine: str, package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError, match=rf"engine={engine} needs the package \w+, .* run `make env-engines`"):
        engine_named(engine)


def test_the_setting_has_the_names_of_all_engines():
    """`pipeline/config/settings.py` cannot import the engines, so it lists their names again."""
    assert set(get_args(Settings.model_fields["engine"].annotation)) == set(ENGINES)
