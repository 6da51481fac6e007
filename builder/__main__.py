"""The program `build-images`, and `python -m builder`."""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]

# Ctrl-C while modules are imported ends the program without a traceback; then `cli` handles it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from builder.cli import main

if __name__ == "__main__":
    sys.exit(main())
