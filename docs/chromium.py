"""A headless Chromium for pictures and tests, told what to do over a pipe.

It speaks the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/) without a
port, so that nothing listens anywhere.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-extensions", "--mute-audio", "--force-color-profile=srgb"),
)
START = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
SECONDS = 300.0
"""Longest wait for an answer: machines are slow, and may do something else too."""


def program() -> str | None:
    """Path of a Chromium, where there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Chromium:
    """A browser with one page. Raises FileNotFoundError where there is no Chromium, RuntimeError
    for what it refuses, and TimeoutError if it does not answer."""

    def __init__(self) -> None:
        path = program()
        if path is None:
            raise FileNotFoundError(f"none of {', '.join(PROGRAMS)} is installed")
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        # Above 9, so that neither is 3 or 4, where Chromium wants them.
        (read, self._write), (self._read, write) = _pipe(), _pipe()
        options = [*OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={self._folder}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(read), str(write), path, *options, "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._number = 0
        self._left = b""
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.send("Page.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser that was started, and remove what it wrote."""
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda found: found.get("id") == message["id"])
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(
        self,
        page: Path,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        phone: bool = False,
        media: str = "",
        scripts: bool = True,
        anchor: str = "",
    ) -> None:
        """Show a page in a window of this size, in CSS pixels, and wait until it is loaded."""
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=phone)
        # Another address first: to go to an anchor of the same page loads nothing.
        for address in ("about:blank", page.resolve().as_uri() + anchor):
            self.send("Page.navigate", url=address)
            self._wait(lambda found: found.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it becomes."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key, such as Tab, 9."""
        told = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **told, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def _wait(self, wanted: Any) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while True:
            while b"\0" in self._left:
                text, self._left = self._left.split(b"\0", 1)
                message: dict[str, Any] = json.loads(text)
                if wanted(message):
                    return message
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer within {SECONDS:g} s")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise RuntimeError("Chromium has ended")
            self._left += got


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
