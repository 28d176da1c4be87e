"""Retries of a training in a real Airflow, after a preemption and after it ran out of memory."""

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

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.long]  # Airflow itself causes many warnings


@pytest.fixture
def preempted(tmp_path: Path) -> Iterator[None]:
    """Sends SIGTERM to the task, which runs in this process, after the first epoch of its training."""
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


def test_a_training_continues_after_out_of_memory_and_a_preemption(
    run_dag: RunDag, make_images: MakeImages, tmp_path: Path, preempted: None, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hungry_model.py").write_text(SMALL_MEMORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = str(make_images({"cats": 12, "dogs": 12}))
    ran = run_dag("image_training", {"source_uri": source, "model": "hungry_model:model", "epochs": 60})
    assert (ran.state, ran.tasks["train[0]"]) == ("success", "success")
    # The attempts have 8 examples, 4 examples, 2 examples until the preemption, and 2 examples after it.
    assert ran.tries["train[0]"] == 4
    assert ran.returned("train")["epochs"] == 60
