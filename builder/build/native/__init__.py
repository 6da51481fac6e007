"""Native tools for builds under emulation: this machine's twins of an image's programs.

`tools` brings them from the Debian mirror, `twins` says which stands for which, `files` what they
consist of, and `interpreter` makes the QEMU that runs them in place of the image's own.
"""

from __future__ import annotations

from builder.build.native.tools import (
    HOST,
    RECORD,
    NativeTools,
    described,
    emulated_compilers,
    ensure_tools,
    kept_tools,
    lacking,
    stored_tools,
)

__all__ = [
    "HOST",
    "RECORD",
    "NativeTools",
    "described",
    "emulated_compilers",
    "ensure_tools",
    "kept_tools",
    "lacking",
    "stored_tools",
]
