"""A folder that is served on loopback, and a real browser that looks at its pages."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import passed, run_program

TIMEOUT_S = 120.0


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
