"""Native tools for builds under emulation: programs of this machine in place of the image's own.

`tools` downloads them from the Debian mirror, `twins` pairs each with the image's program, `files`
lists their files, and `interpreter` makes the QEMU that runs them. The kernel starts an
architecture's programs by that QEMU if its handler (binfmt_misc) names it; four small files show
whether it does.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from builder.system.descendants import text_of

HOST = "x86_64"  # the one that twins.c is written for
HANDLERS = Path("/proc/sys/fs/binfmt_misc")
_SOURCES = Path(__file__).parent


def version() -> str:
    """Return the version of our QEMUs, with which their files' names end."""
    digest = hashlib.sha256()
    for name in ("twins.c", "twins.ld", "interpreter.py"):
        digest.update((_SOURCES / name).read_bytes())
    return digest.hexdigest()[:12]


def is_open(arch: str, folder: Path = HANDLERS) -> bool:
    """Return whether the kernel starts an architecture's programs with our interpreter."""
    text = text_of(folder / f"build-images-{arch}")
    is_on = text.startswith("enabled") and re.search(r"^flags: \w*P", text, re.MULTILINE)
    return bool(is_on) and f".{version()}\n" in text


def is_lent(arch: str, host: str, folder: Path = HANDLERS) -> bool | None:
    """Return whether build steps of an architecture run a host's tools; None if it has none."""
    return None if arch == host or host != HOST else is_open(arch, folder)
