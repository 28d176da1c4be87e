import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.allowed import ALL
from scripts.airflow.differences import noted_settings
from scripts.airflow.embedded import (
    USUAL,
    Embedded,
    components,
    prepare,
    recorded_airflow,
    usable_airflow,
)
from scripts.airflow.errors import Failed, Refused
from scripts.airflow.keys import load_keys
from scripts.airflow.processes import Identity, identify
from scripts.airflow.record import Record, exclusive_home, forget_record, read_record, write_record
from scripts.airflow.settings import environment, layout_from
from scripts.airflow.signals import Signals

HOLD = """
import sys
from pathlib import Path
from scripts.airflow.record import exclusive_home
with exclusive_home(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_record_is_read_as_written_and_forgotten(tmp_path: Path) -> None:
    record = Record(8080, background=True, processes={"scheduler": Identity(12, 34.5)})
    assert read_record(tmp_path) is None
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    forget_record(tmp_path)
    assert read_record(tmp_path) is None


def test_a_second_command_is_refused_with_the_process_id_of_the_first_until_it_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Refused, match=f"process {holder.pid}"), exclusive_home(tmp_path):
            pass
        holder.kill()
    with exclusive_home(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_keys_are_created_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    keys = load_keys(tmp_path / "keys.json")
    assert load_keys(tmp_path / "keys.json") == keys
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert len(keys.password) >= 12
    assert load_keys(tmp_path / "other.json").password != keys.password


@pytest.mark.parametrize("settings", [{"AIRFLOW_HOME": "/h"}, ["AIRFLOW_HOME"], None])
def test_an_airflow_of_an_older_version_is_refused_and_can_be_stopped(tmp_path: Path, settings: object) -> None:
    """Its processes lack settings, and without them the first task of this version allows nothing."""
    layout = layout_from({"TENFOLD_HOME": str(tmp_path)})
    processes = dict.fromkeys(components(0), identify(os.getpid()))
    write_record(tmp_path, Record(8080, background=True, processes=processes))
    content = json.loads((tmp_path / "running.json").read_text())
    del content["settings"]
    older = content if settings is None else {**content, "settings": settings}
    (tmp_path / "running.json").write_text(json.dumps(older))
    with pytest.raises(Refused, match=r"the Airflow at .*8080 was started by an older version of Tenfold.*`make down`"):
        usable_airflow(layout)
    airflow = recorded_airflow(layout)  # for `make down`
    assert airflow is not None
    assert airflow.dead() == []

    environ = environment(layout, airflow.keys, 8080, dict.fromkeys(ALL, "*"))
    airflow._note(processes, noted_settings(environ, airflow.keys.session))
    assert usable_airflow(layout) is not None


def test_an_airflow_that_runs_the_code_of_another_folder_is_refused_and_can_be_stopped(tmp_path: Path) -> None:
    """After an upgrade into a new folder, its processes still run the old code."""
    layout = layout_from({"TENFOLD_HOME": str(tmp_path)})
    record = Record(8080, True, dict.fromkeys(components(0), identify(os.getpid())))
    airflow = Embedded(layout, record)
    environ = environment(layout, airflow.keys, 8080, dict.fromkeys(ALL, "*"))
    airflow._note(record.processes, noted_settings(environ, airflow.keys.session))
    assert usable_airflow(layout) is not None
    write_record(tmp_path, replace(airflow.record, code="/older/tenfold"))
    with pytest.raises(Refused, match=r"runs the code in /older/tenfold, .* stop this Airflow with `make down`"):
        usable_airflow(layout)
    assert recorded_airflow(layout) is not None  # for `make down`


def test_a_bucket_is_no_workspace_of_the_embedded_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would become a folder named `gs:`."""
    monkeypatch.setenv("TENFOLD_WORKSPACE", "gs://bucket/w")
    layout = layout_from({**os.environ, "TENFOLD_HOME": str(tmp_path / "home")})
    with pytest.raises(Refused, match=r"TENFOLD_WORKSPACE=gs://bucket/w must be a folder: leave it out and set"):
        prepare(layout, background=True)


@pytest.mark.parametrize(("background", "is_named"), [(True, True), (False, False)])
def test_the_error_of_a_dead_process_names_what_to_do_if_airflow_stays(
    tmp_path: Path, background: bool, is_named: bool
) -> None:
    layout = layout_from({"TENFOLD_HOME": str(tmp_path)})
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    airflow = Embedded(layout, Record(8080, background, {"scheduler": identify(process.pid)}))
    airflow.check()
    process.communicate()
    with pytest.raises(Failed, match="Airflow's scheduler has ended unexpectedly") as raised:
        airflow.check()
    assert ("`make down` and then `make up`" in str(raised.value)) == is_named


class Started(Embedded):
    """Starts nothing, and keeps the names of what it would start."""

    names: list[str]

    def migrate(self, signals: Signals) -> None:
        self.names = []

    def add(self, name: str, command: list[str], settings: Mapping[str, str] = USUAL) -> None:
        self.names.append(name)


@pytest.mark.parametrize("waits", [True, False])
def test_the_scheduler_of_an_airflow_with_unfinished_runs_starts_after_the_api_server(
    tmp_path: Path, waits: bool
) -> None:
    airflow = Started(layout_from({"TENFOLD_HOME": str(tmp_path)}), Record(8080, waits, {}))
    seen: list[bool] = []

    def takes_tasks() -> bool:
        seen.append("api-server" in airflow.names and "scheduler" not in airflow.names)
        return len(seen) > 2

    with Signals() as signals:
        airflow.start(signals, takes_tasks if waits else None)
    assert sorted(airflow.names) == sorted(components(8080))
    assert seen == [True] * (3 if waits else 0)
