"""Facts about the host that are recorded in evidence."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from builder.model.measurement import HostFacts
from builder.system import nvml
from builder.system.descendants import text_of
from builder.system.process import Processes


def host_facts(*, proc: Path = Path("/proc"), etc: Path = Path("/etc")) -> HostFacts:
    """Return this machine's facts; no program is started.

    The architecture is the kernel's, which a container under QEMU sees in /proc alone (Linux 6.1).
    """
    return HostFacts(
        arch=text_of(proc / "sys/kernel/arch").strip() or platform.machine(),
        kernel=platform.release(),
        cpu=_field(proc / "cpuinfo", ":", ("model name", "cpu")),
        cores=os.cpu_count() or 1,
        os=_field(etc / "os-release", "=", ("PRETTY_NAME",)).strip('"'),
        driver=nvml.kernel_driver(proc) or ("loaded" if nvml.is_loaded(proc) else ""),
        gpus=tuple(model or "unknown" for model in nvml.gpu_models(proc)),
    )


def lost_gpus(before: HostFacts, after: HostFacts) -> str:
    """Return a text about GPUs that disappeared; empty if none did."""
    if len(after.gpus) >= len(before.gpus):
        return ""
    remaining = ", ".join(after.gpus) or "none"
    return f"a GPU disappeared during the run: {', '.join(before.gpus)} before, {remaining} after"


def _field(file: Path, separator: str, names: tuple[str, ...]) -> str:
    for line in text_of(file).splitlines():
        key, _, value = line.partition(separator)
        if key.strip() in names:
            return value.strip()
    return "unknown"


def own_index(processes: Processes) -> str:
    """Return the package index of this machine's pip; empty if pip reports none."""
    for arguments, pattern in (
        (("config", "list"), r"^(?::env:|install|global|site|user)\.index-url='([^']+)'"),
        (("install", "--help"), r"\(default\s+(https?://[^\s)]+)\)"),
    ):
        argv = [sys.executable, "-m", "pip", *arguments]
        done = processes.capture(argv, check=False, timeout_s=60)
        if match := re.search(pattern, done.stdout, re.MULTILINE):
            return match[1]
    return ""
