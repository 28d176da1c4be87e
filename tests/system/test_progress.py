import logging

import pytest

from pipeline.system import progress as module
from pipeline.system.progress import progress


def test_objects_bytes_rate_and_time_left_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    clock = iter([100.0, 111.0, 111.0, 111.0, 120.0, 120.0, 120.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    caplog.set_level(logging.INFO, "pipeline")
    with progress("fetch", 100, "images", 40_000_000) as advance:
        advance(22, 11_000_000)
        advance(78, 29_000_000)
    assert caplog.messages == [
        "fetch: 22 of 100 images, 2 a second, 11 MB of 40 MB, 1 MB a second, 29 s left",
        "fetch: 100 of 100 images, 5 a second, 40 MB of 40 MB, 2 MB a second",
    ]


def test_without_bytes_the_time_left_is_computed_from_the_objects(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    clock = iter([0.0, 10.0, 10.0, 20.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    caplog.set_level(logging.INFO, "pipeline")
    with progress("shard", 40, "images") as advance:
        advance(10)
    assert caplog.messages == [
        "shard: 10 of 40 images, 1 a second, 30 s left",
        "shard: 10 of 40 images, 0 a second, 60 s left",
    ]
