"""A folder that is served on loopback, and a real browser that looks at its pages."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builder.system.home import Home

TIMEOUT_S = 120.0
_OTHER_PROCESSES = "SpareRendererForSitePerProcess,BackForwardCache"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Logs nothing, and lets nothing be kept: tests write a page anew within one second."""

    def __init__(self, *arguments: Any, requested: list[str], **options: Any) -> None:
        self.requested = requested
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        self.requested.append(self.path.rpartition("/")[2])
        super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path, requested: list[str] | None = None) -> Iterator[str]:
    """The address of a folder on loopback; the names that are `requested` are noted."""
    noted = [] if requested is None else requested
    handler = functools.partial(_Handler, directory=str(folder), requested=noted)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Browser:
    """Chromium without a window, with one tab; `home` is for what it writes.

    It is driven through two pipes: https://chromedevtools.github.io/devtools-protocol/
    """

    def __init__(self, home: Path) -> None:
        names = ("chromium", "google-chrome")
        program = next(filter(None, map(shutil.which, names)), "")
        if not program:
            pytest.skip("missing on this machine: chromium")
        options = (
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),  # root's, too
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            # One process shows all pages: to start one takes longer than to show a page.
            *("--process-per-site", "--renderer-process-limit=1"),
            *("--disable-site-isolation-trials", f"--disable-features={_OTHER_PROCESSES}"),
            *("--remote-debugging-pipe", f"--user-data-dir={home}"),
        )
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        # It reads descriptor 3 and writes 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", program, *options],
            env={**os.environ, "HOME": str(home)},
            pass_fds=(reads, writes),
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._number, self._received, self._session = 0, b"", ""
        self._messages: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.ask("Page.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        self.scripts, self.dark = True, False

    def close(self) -> None:
        """End it."""
        self.ask("Browser.close", of_tab=False)
        self._process.wait(TIMEOUT_S)
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, *, of_tab: bool = True, **parameters: object) -> dict[str, Any]:
        """The result of a command; fails with the browser's error."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session and of_tab:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._message(lambda one: one.get("id") == self._number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message since the page was opened that fits."""
        for message in self._messages:
            if fits(message):
                return message
        while True:
            while b"\0" not in self._received:
                ready, _, _ = select.select([self._from], [], [], TIMEOUT_S)
                data = os.read(self._from, 1 << 20) if ready else b""
                assert data, "the browser does not answer"
                self._received += data
            line, _, self._received = self._received.partition(b"\0")
            self._messages.append(json.loads(line))
            if fits(self._messages[-1]):
                return self._messages[-1]

    def open(self, address: str, *, width: int = 1280, height: int = 800) -> None:
        """Show a page in a window of a width, after its scripts have run."""
        self.ask("Page.navigate", url="about:blank")
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        media = {
            "prefers-color-scheme": "dark" if self.dark else "light",
            "prefers-reduced-motion": "reduce",  # the focused element is in the window at once
        }
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.ask("Emulation.setEmulatedMedia", features=features)
        self.ask("Emulation.setScriptExecutionDisabled", value=not self.scripts)
        self._messages.clear()
        page = self.ask("Page.navigate", url=address)["loaderId"]
        loaded = {"name": "load", "loaderId": page}
        self._message(lambda one: loaded.items() <= one.get("params", {}).items())

    def value(self, script: str) -> Any:
        """The value of an expression in the page, or of the promise that it is."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of an expression as soon as it is true, on the page that is being opened."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # between two pages
                answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
                if value := answer["result"].get("value"):
                    return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}")

    def press(self, *keys: str) -> None:
        """Press keys in turn: a character, or Tab, Shift+Tab, Enter, Space, ArrowDown."""
        for key in keys:
            name = key.removeprefix("Shift+")
            code, text = _KEYS.get(name, (ord(name.upper()[0]), name))
            event: dict[str, Any] = {
                "key": " " if name == "Space" else name,
                "code": name if name in _KEYS else f"Key{name.upper()}",
                "windowsVirtualKeyCode": code,
                "modifiers": 8 if name != key else 0,
            }
            self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **event)

    def dom(self, address: str) -> str:
        """The page as HTML after its scripts have run."""
        self.open(address)
        return str(self.value("document.documentElement.outerHTML"))

    def screenshot(self, *, whole: bool = False) -> bytes:
        """A picture of the page, as PNG: of the window, or of all."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])


# Virtual key codes, and the text that a key types.
_KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Space": (32, " "),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "Escape": (27, ""),
}


@functools.cache
def axe_core() -> str:
    """The script of axe-core, as the set-up of the tests brought it."""
    home = Home.of_environment()
    folders = [home.tools.parent, *([home.shared / "tools"] if home.shared else [])]
    for folder in folders:
        if (script := folder / "axe-core/axe.min.js").is_file():
            return script.read_text()
    pytest.skip("missing on this machine: axe-core (make setup-test)")
