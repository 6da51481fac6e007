"""Facts of the host that evidence rests on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """This machine: `arch` as `uname -m` says, `gpu` whether an NVIDIA driver is loaded."""

    arch: str
    kernel: str
    cpu: str
    cores: int
    os: str
    gpu: bool


def host_facts(*, proc: Path = Path("/proc"), etc: Path = Path("/etc")) -> HostFacts:
    """Read this machine's facts."""
    return HostFacts(
        arch=platform.machine(),
        kernel=platform.release(),
        cpu=_field(proc / "cpuinfo", ":", ("model name", "cpu")),
        cores=os.cpu_count() or 1,
        os=_field(etc / "os-release", "=", ("PRETTY_NAME",)).strip('"'),
        gpu=(proc / "driver/nvidia/version").exists(),
    )


def _field(file: Path, separator: str, names: tuple[str, ...]) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return "unknown"
    for line in lines:
        key, _, value = line.partition(separator)
        if key.strip() in names:
            return value.strip()
    return "unknown"
