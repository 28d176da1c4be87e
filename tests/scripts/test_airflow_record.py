import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.airflow.errors import Refused
from scripts.airflow.keys import load_keys
from scripts.airflow.processes import Identity
from scripts.airflow.record import Record, forget_record, only_one, read_record, write_record

HOLD = """
import sys
from pathlib import Path
from scripts.airflow.record import only_one
with only_one(Path(sys.argv[1])):
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


def test_second_command_is_refused_with_the_number_of_the_first_until_that_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Refused, match=f"process {holder.pid}"), only_one(tmp_path):
            pass
        holder.kill()
    with only_one(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_keys_are_made_once_and_for_nobody_else(tmp_path: Path) -> None:
    keys = load_keys(tmp_path / "keys.json")
    assert load_keys(tmp_path / "keys.json") == keys
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert len(keys.password) >= 12
    assert load_keys(tmp_path / "other.json").password != keys.password
