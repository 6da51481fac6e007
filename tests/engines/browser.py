"""A real browser, looking at pages of a folder; what it is told comes back as text."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import passed, run_program

TIMEOUT_S = 120.0


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing, and lets nothing be kept: tests write a page anew within one second."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        del format, args


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on loopback."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Browser:
    """Chromium without a window; `home` is for what it writes."""

    def __init__(self, home: Path) -> None:
        names = ("chromium", "google-chrome")
        self.program = next(filter(None, map(shutil.which, names)), "")
        if not self.program:
            pytest.skip("missing on this machine: chromium")
        self.home = home

    def dom(self, address: str, *options: str) -> str:
        """The page as HTML after its scripts have run."""
        return self._run("--dump-dom", *options, address)

    def screenshot(self, address: str, path: Path, *, width: int, height: int) -> bytes:
        """A picture of the page, as PNG."""
        self._run(f"--screenshot={path}", f"--window-size={width},{height}", address)
        return path.read_bytes()

    def _run(self, *options: str) -> str:
        command = [
            self.program,
            "--headless",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=4000",
            f"--user-data-dir={self.home}",
        ]
        env = {"HOME": str(self.home)}
        return passed(run_program(*command, *options, env=env, timeout_s=TIMEOUT_S)).stdout
