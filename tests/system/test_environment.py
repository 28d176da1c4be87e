"""Variables in the environment of this process."""

import os

import pytest

from pipeline.system.environment import environment_with


def test_variables_hold_within_the_block_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENFOLD_TEST_SET", "8")
    monkeypatch.delenv("TENFOLD_TEST_NEW", raising=False)

    def seen() -> list[str | None]:
        return [os.environ.get(name) for name in ("TENFOLD_TEST_SET", "TENFOLD_TEST_NEW")]

    with environment_with({"TENFOLD_TEST_SET": "1", "TENFOLD_TEST_NEW": "1"}):
        assert seen() == ["1", "1"]
    assert seen() == ["8", None]
