"""The health of this host's GPUs, and whether the host or an image is at fault."""

from __future__ import annotations

from collections.abc import Mapping

from builder.facts import CudaRelease
from builder.host.doctor.gpus.accused import accused
from builder.host.doctor.gpus.dcgm import diagnose
from builder.host.doctor.gpus.findings import SICK, SOUND, UNKNOWN, WATCH, Finding, GpuHealth
from builder.host.doctor.gpus.judging import judged
from builder.host.doctor.gpus.rendering import as_json, as_text
from builder.model.manifest import Manifest
from builder.system import nvml
from builder.system.process import Processes

__all__ = [
    "SICK",
    "SOUND",
    "UNKNOWN",
    "WATCH",
    "Finding",
    "GpuHealth",
    "as_json",
    "as_text",
    "examine",
]


def examine(
    processes: Processes,
    *,
    releases: Mapping[str, CudaRelease],
    search_path: str,
    manifest: Manifest | None = None,
    library: str = nvml.LIBRARY,
) -> GpuHealth:
    """Look at this host's driver and GPUs, with NVML and, where it is there, DCGM.

    `releases` are the CUDA releases by version, to say which images run here. With an image's
    `manifest`, its GPU checks that failed are told apart into the host's matter and the image's.
    """
    reading = nvml.ask(processes, library=library)
    findings = judged(reading, releases)
    if reading.gpus:
        findings += diagnose(processes, search_path=search_path)
    if manifest is not None:
        findings += accused(manifest, findings)
    return GpuHealth(reading=reading, findings=tuple(findings))
