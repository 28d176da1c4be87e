"""A command waits for the start of Airflow up to a limit."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.airflow import ready
from scripts.airflow.errors import Failed
from scripts.airflow.ready import ANY_TIME, wait_until_ready
from scripts.airflow.remote import Airflow
from scripts.airflow.settings import Layout
from scripts.airflow.signals import Signals


def test_an_airflow_that_is_never_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ready, "LIMIT_S", 0.5)
    never = SimpleNamespace(ready=lambda: False, dag_id="image_training")
    layout = Layout(tmp_path, tmp_path / "workspace", tmp_path / "dags")
    elsewhere = Airflow(layout, "http://airflow", "password", pages="http://airflow")
    message = "gave up on Airflow after 0 s: the Airflow at http://airflow does not answer, .* image_training: see"
    with pytest.raises(Failed, match=message):
        wait_until_ready(elsewhere, never, ANY_TIME, Signals())  # type: ignore[arg-type]
