"""Pages in a headless Chromium, driven over a pipe by its DevTools protocol: no port, no further package."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.browser.chromium import FLAGS, browser
from tests.support import Stopwatch

WIDE, NARROW = (1280, 800), (390, 844)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "/": 191, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One browser with one page. What the page's console says at level error, and what it throws, is kept in
    `problems`; `requested` is what it has asked for: the page that did, and the address."""

    def __init__(self, folder: Path):
        self.problems: list[str] = []
        self.requested: list[tuple[str, str]] = []
        self._number = 0
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [
            "bash",
            "-c",
            f'exec "$@" 3<&{to_browser} 4>&{from_browser}',
            "bash",
            browser(),
            *FLAGS,
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder / 'profile'}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._pending = b""
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(WIDE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self._event(found)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._pending += more
        first, _, self._pending = self._pending.partition(b"\0")
        return json.loads(first)  # type: ignore[no-any-return]

    def _event(self, found: dict[str, Any]) -> None:
        given = found.get("params", {})
        match found["method"]:
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(given["exceptionDetails"])[:500])
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.problems.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requested.append((given["documentURL"], given["request"]["url"]))

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true."""
        self.wait(lambda: self._is(script), script, seconds)

    def _is(self, script: str) -> bool:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value") is True  # while a page is exchanged, it may throw

    def wait(self, holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        waited = Stopwatch()
        while not holds():
            if waited.seconds > seconds:
                body = self.run("document.body.innerText")
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.problems}\n{body[:3000]}")
            time.sleep(0.05)

    def key(self, name: str) -> None:
        """Press a key, as a person would."""
        code = KEYS[name]
        text = {"Enter": "\r", "/": "/"}.get(name, "")
        given = {"key": name, "windowsVirtualKeyCode": code, "code": "Slash" if name == "/" else name}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def tab_to(self, script: str, most: int = 80) -> None:
        """Press Tab until the focused element (`it`) is the one."""
        for _ in range(most):
            self.key("Tab")
            if self.run(f"(it => {script})(document.activeElement)"):
                return
        raise AssertionError(f"the keyboard does not reach {script}")

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """`dark` or `light`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, file: Path, height: int | None = None) -> None:
        """A PNG of the page, as high as its content, or as given."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))
