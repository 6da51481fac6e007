"""`build-images` within the process of the tests, which has all modules already."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Mapping

import pytest
from harness import Ended, build_images
from outside import outside_signals

from builder.cli import main


def build_images_here(*words: object, env: Mapping[str, str] | None = None) -> Ended:
    """Run `build-images` as a function; in a thread, which handles no signals, as a program."""
    if threading.current_thread() is not threading.main_thread():
        return build_images(*words, env=env)
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for key, value in (env or {}).items():
            patch.setenv(key, value)
        with outside_signals() as signals:
            status = main([str(word) for word in words])
            signals.check()
    return Ended(status=status, stdout=out.getvalue(), stderr=err.getvalue())
