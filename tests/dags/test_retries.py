"""A training that is tried again, by a real Airflow: after a preemption, and where memory was too small."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.monitor import last_row
from tests.conftest import MakeImages
from tests.dags.conftest import RunDag
from tests.training.hungry import SMALL_MEMORY
from tests.waiting import until

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.long]  # Airflow warns itself of much


@pytest.fixture
def preempted(tmp_path: Path) -> Iterator[None]:
    """Sends SIGTERM to the task, which runs in this process, once its training has taken a step."""
    before = signal.getsignal(signal.SIGTERM)
    records = lambda: (tmp_path / "workspace").glob("runs/*/*/record")  # noqa: E731

    def preempt() -> None:
        until(lambda: any(last_row(record, "epochs") for record in records()), seconds=900)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=preempt)
    thread.start()
    yield
    thread.join()
    signal.signal(signal.SIGTERM, before)


def test_a_training_goes_on_after_less_memory_than_it_wanted_and_a_preemption(
    run_dag: RunDag, make_images: MakeImages, tmp_path: Path, preempted: None, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hungry_model.py").write_text(SMALL_MEMORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = str(make_images({"cats": 12, "dogs": 12}))
    ran = run_dag("image_training", {"source_uri": source, "model": "hungry_model:model", "epochs": 60})
    assert (ran.state, ran.tasks["train[0]"]) == ("success", "success")
    # With 8 and 4 examples at once, then with 2 up to the preemption, and on from there.
    assert ran.tries["train[0]"] == 4
    assert ran.returned("train")["epochs"] == 60
