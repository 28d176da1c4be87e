"""The application is built at its first request."""

import asyncio
import sys
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import ASGIApp

from plugins.training_monitor.lazy import Lazy


def test_the_application_is_built_once_without_blocking_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    somebody_else = Event()
    built, answered = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answered.append(scope)

    def build() -> ASGIApp:
        built.append(somebody_else.wait(300))
        return app

    monkeypatch.setitem(sys.modules, "its_module", SimpleNamespace(build=build))

    async def ask() -> None:
        lazy = Lazy("its_module:build")
        requests = [asyncio.create_task(lazy({"number": number}, None, None)) for number in range(3)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        somebody_else.set()
        await asyncio.gather(*requests)

    asyncio.run(ask())
    assert built == [True]
    assert sorted(each["number"] for each in answered) == [0, 1, 2]
