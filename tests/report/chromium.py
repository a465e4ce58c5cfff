"""A headless Chromium, controlled through a pipe with the DevTools protocol.

It needs no driver, no port and no Python package.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank"),
)


class Chromium:
    """One browser with one page.

    ``errors`` collects the errors and warnings of the page, ``requests`` the URLs it requests.
    """

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        browser_in, self._in = os.pipe()
        self._out, browser_out = os.pipe()
        command = shlex.join([BROWSER, *FLAGS, f"--user-data-dir={profile}"])
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f"exec {command} 3<&{browser_in} 4>&{browser_out}"],
            pass_fds=(browser_in, browser_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_in)
        os.close(browser_out)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a DevTools method and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._handle(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._out, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _handle(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in {
            "error",
            "warning",
        }:
            self.errors.append(json.dumps(params["args"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in {
            "error",
            "warning",
        }:
            self.errors.append(params["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value; await promises."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, path: Path | str, width: int, dark: bool = False) -> None:
        """Load a report or an address at a window width and wait until every plot is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        url = path if isinstance(path, str) else path.resolve().as_uri()
        self.call("Page.navigate", url=url)
        self.wait("document.documentElement?.hasAttribute('data-drawn')")

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Wait until a JavaScript condition holds."""
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, f"still not {condition}: {self.errors}"
            time.sleep(0.05)

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)
        self._process.terminate()
        self._process.wait(timeout=20)
