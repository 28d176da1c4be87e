"""The Firefox of this machine in tests, over the protocol WebDriver BiDi. Playwright drives only builds of its own."""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.waiting import until

SCHEMES = {"dark": 0, "light": 1}
"""Values of Firefox's preference for the color scheme of pages."""
ANSWER_S = 180


class Firefox:
    """A window of a headless Firefox, with the warnings and errors of the pages that it showed."""

    def __init__(self, connection: ClientConnection, width: int) -> None:
        self._connection = connection
        self._numbers = count(1)
        self.complaints: list[str] = []
        self._send("session.new", capabilities={})
        self._send("session.subscribe", events=["log.entryAdded"])
        self._context = self._send("browsingContext.getTree")["contexts"][0]["context"]
        size = {"width": width, "height": 900}
        self._send("browsingContext.setViewport", context=self._context, viewport=size)

    def _send(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result. Events that come before it are noted."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self._connection.recv(timeout=ANSWER_S))).get("id") != number:
            entry = message.get("params", {})
            if message.get("method") == "log.entryAdded" and entry["level"] in ("error", "warn"):
                self.complaints.append(entry["text"])
        assert message["type"] == "success", message
        return message["result"]

    def log_in(self, cookie: dict[str, Any]) -> None:
        """Set the cookie of a log-in, on this machine."""
        value = {"type": "string", "value": cookie["value"]}
        parameters = {"name": cookie["name"], "value": value, "domain": "127.0.0.1", "path": "/"}
        self._send("storage.setCookie", cookie=parameters)

    def goto(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._send("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, or what a function without parameters returns."""
        called = f"({expression})()" if re.match(r"(async )?\(.*?\) =>", expression) else expression
        target = {"context": self._context}
        found = self._send("script.evaluate", expression=f"JSON.stringify({called})", target=target, awaitPromise=True)
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return json.loads(found["result"].get("value", "null"))

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        taken = self._send("browsingContext.captureScreenshot", context=self._context, origin="document")
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def firefox(folder: Path, width: int, scheme: str) -> Iterator[Firefox]:
    """Yield a window of a Firefox with its profile in `folder`. If this machine has none, skip the test."""
    program = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
    if program is None:
        pytest.skip("needs Firefox: apt-get install firefox-esr")
    preference = f'user_pref("layout.css.prefers-color-scheme.content-override", {SCHEMES[scheme]});\n'
    (folder / "user.js").write_text(preference)
    log = folder / "firefox.log"
    command = [program, "--headless", "--no-remote", "--remote-debugging-port=0", "--profile", str(folder)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            [url] = until(lambda: re.findall(r"BiDi listening on (ws://\S+)", log.read_text()))
            with connect(f"{url}/session", max_size=None) as connection:
                yield Firefox(connection, width)
        finally:
            process.terminate()
