import os
import signal
from types import SimpleNamespace

import pytest

from scripts.airflow import signals as module
from scripts.airflow.errors import Interrupted
from scripts.airflow.signals import Signals


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_interrupts_the_next_pause(signum: signal.Signals, code: int) -> None:
    with Signals() as signals:
        signals.pause(0)
        os.kill(os.getpid(), signum)
        with pytest.raises(Interrupted) as interruption:
            signals.pause(60)
    assert interruption.value.code == code


def test_a_second_signal_does_not_replace_the_first() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted, match="SIGTERM"):
            signals.check()


def test_a_pause_lasts_as_long_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(module, "time", clock)
    with Signals() as signals:
        signals.pause(0.25)
    assert slept == pytest.approx([0.1, 0.1, 0.05])


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
