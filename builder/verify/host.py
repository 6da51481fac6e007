"""Facts of the host that evidence rests on."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_DRIVER = re.compile(r"Kernel Module\D*?\s(?:for \S+\s+)?(?P<version>\d+(?:\.\d+)+)")
_MODEL = re.compile(r"^Model:\s*(?P<model>.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """This machine: `arch` as `uname -m` says.

    `driver` is the version of NVIDIA's kernel module, `loaded` if it does not say, and empty where
    there is none; `gpus` are the models of its GPUs, one an entry.
    """

    arch: str
    kernel: str
    cpu: str
    cores: int
    os: str
    driver: str = ""
    gpus: tuple[str, ...] = ()


def host_facts(*, proc: Path = Path("/proc"), etc: Path = Path("/etc")) -> HostFacts:
    """Read this machine's facts; nothing is started."""
    return HostFacts(
        arch=platform.machine(),
        kernel=platform.release(),
        cpu=_field(proc / "cpuinfo", ":", ("model name", "cpu")),
        cores=os.cpu_count() or 1,
        os=_field(etc / "os-release", "=", ("PRETTY_NAME",)).strip('"'),
        driver=_driver(proc / "driver/nvidia/version"),
        gpus=_gpus(proc / "driver/nvidia/gpus"),
    )


def lost_gpus(before: HostFacts, after: HostFacts) -> str:
    """Which GPUs were there before and are not any more, in words; empty if all are."""
    if len(after.gpus) >= len(before.gpus):
        return ""
    left = ", ".join(after.gpus) or "none"
    return f"a GPU disappeared during the run: {', '.join(before.gpus)} before, {left} after"


def _driver(file: Path) -> str:
    if not file.is_file():
        return ""
    found = _DRIVER.search(file.read_text(errors="replace"))
    return found["version"] if found else "loaded"


def _gpus(folder: Path) -> tuple[str, ...]:
    texts = [file.read_text(errors="replace") for file in sorted(folder.glob("*/information"))]
    found = [_MODEL.search(text) for text in texts]
    return tuple(one["model"].strip() if one else "unknown" for one in found)


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
