"""The last task before the training logs what the training needs from Airflow."""

from pathlib import Path

import pytest

from pipeline.config.settings import settings_from
from tests.conftest import MakeImages
from tests.published import publish

pytestmark = pytest.mark.filterwarnings("default")  # Airflow itself causes many warnings


def test_the_servers_task_names_the_pool_and_the_needed_slots(
    make_images: MakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without the pool, `train` stays in the state scheduled forever. A task cannot look up pools."""
    from dags import tasks
    from dags.operators import TRAIN_DOC

    dataset = publish(make_images({"a": 8, "b": 8}), tmp_path, num_training_servers=2)
    settings = settings_from({"workspace": str(tmp_path), "num_training_servers": 2})
    messages: list[str] = []  # Airflow disables the loggers that existed before its own.
    monkeypatch.setattr(tasks._log, "info", lambda message, *values: messages.append(message % values))
    assert tasks.servers.function(settings.model_dump(), str(dataset)).xcom_value == [0, 1]
    assert "2 slots of the pool 'gpu'" in messages[0]
    assert 'airflow pools set gpu 2 "trainings at once"' in messages[0]
    assert "pools set gpu" in TRAIN_DOC
