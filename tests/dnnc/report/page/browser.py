"""A headless Chromium for tests of the page, driven over the DevTools protocol on a pair of pipes.

Needs no library: messages are JSON that a NUL byte ends, on descriptors 3 (to the browser) and 4 (from it).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds until a silent browser counts as stuck."""
PIPES = (
    "import fcntl, os, sys\n"
    "ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]\n"
    "os.dup2(ends[0], 3)\n"
    "os.dup2(ends[1], 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
"""Becomes the browser with the two given descriptors as 3 and 4."""
KEYS = {"Enter": 13, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Space": 32}


def chromium() -> str:
    """The program, empty where there is none."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")


class Page:
    """A page of the browser. ``errors``: what it logged as an error, threw or refused; ``requests``: what it fetched besides
    itself."""

    def __init__(self, to: int, from_: int) -> None:
        self._to, self._from = to, from_
        self._number, self._rest, self._session = 0, b"", ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])

    def _next(self) -> Mapping[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], PATIENCE)
            assert ready, "the browser is silent"
            received = os.read(self._from, 1 << 16)
            assert received, "the browser is gone"
            self._rest += received
        text, _, self._rest = self._rest.partition(b"\0")
        answer: Mapping[str, Any] = json.loads(text)
        self._note(answer.get("method", ""), answer.get("params", {}))
        return answer

    def _note(self, event: str, params: Mapping[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent" and params["type"] != "Document":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path) -> float:
        """Loads a file; seconds until its scripts are done."""
        self.loaded = False
        start = time.perf_counter()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not self.loaded:
            self._next()
        assert self.value("document.documentElement.dataset.ready") == "yes", self.errors
        return time.perf_counter() - start

    def value(self, expression: str) -> Any:
        """The value of an expression of the page's JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Scrolls to the first element of a selector and clicks its middle."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{find}.scrollIntoView({{block: 'center'}})")
        box = self.value(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({find}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Presses a key where the focus is."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=" " if key == "Space" else key,
                code=key,
                windowsVirtualKeyCode=KEYS[key],
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def theme(self, name: str) -> None:
        """``dark`` or ``light``, as the system prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, ``whole`` or what the window shows."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser of its own, which is ended behind the block."""
    out, to = os.pipe()
    from_, into = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its children may write for a moment longer
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        command = [chromium(), *flags, "--no-first-run", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", PIPES, str(out), str(into), *command],
            pass_fds=(out, into),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(out)
        os.close(into)
        try:
            yield Page(to, from_)
        finally:
            os.close(to)
            os.close(from_)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
