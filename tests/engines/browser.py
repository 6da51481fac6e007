"""A real browser, looking at pages of a folder; what it is told comes back as text."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
        found = shutil.which("chromium") or shutil.which("google-chrome")
        if not found:
            pytest.skip("missing on this machine: chromium")
        self.program, self.home = found, home

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
            *options,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**os.environ, "HOME": str(self.home)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
