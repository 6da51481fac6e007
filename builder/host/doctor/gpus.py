"""The health of this host's GPUs: the driver, each GPU, and an image's failed GPU checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from builder.facts import HOST, IMAGE, START, UNCLEAR, CudaRelease, cuda_errors
from builder.host.doctor.gpu_findings import (
    CHECK,
    SICK,
    SOUND,
    UNKNOWN,
    WATCH,
    GpuFinding,
    GpuHealth,
    diagnose,
    finding_of,
    symptoms,
)
from builder.host.gpus import runnable
from builder.model import FAILED
from builder.model.manifest import Manifest
from builder.system import nvml
from builder.system.nvml import Gpu, NvmlFault, NvmlReading
from builder.system.process import Processes
from builder.system.terminal import BOLD, DIM, GREEN, RED, YELLOW, Paint

SCHEMA = "build-images/gpu-health/v1"

_ERROR = re.compile(r"CUDA error (\d+)")
_GPU_CHECK = re.compile(r"(^|-)(gpu|cuda)(-|$)")
# Names that match, but of checks of the image's files, or of a program without a GPU.
_NO_GPU = frozenset(["cuda-clean", "cuda-runtime", "gpu-control", "gpu-withheld"])

_MARKS = {SOUND: ("✓", GREEN), WATCH: ("!", YELLOW), SICK: ("✗", RED), UNKNOWN: ("?", YELLOW)}
_MATTERS = {HOST: "caused by the host", IMAGE: "caused by the image", START: "caused by the launch"}
_TITLES = ("GPU", "model", "sm", "memory", "°C", "W", "MHz", "ECC", "PCIe", "NVLinks", "MIG")
_CONCLUSIONS = {
    SOUND: "The GPUs are sound: if a GPU check fails in an image, the image is the cause.",
    WATCH: "The GPUs can be used, but look at the marked findings.",
    SICK: "A fault was found: until it is repaired, failed GPU checks say nothing about the image.",
    UNKNOWN: "Not everything could be examined: the host may be the cause of a failed GPU check.",
}
_NO_GPUS = "No GPU to examine: GPU checks are skipped on this host."


def examine(
    processes: Processes,
    *,
    releases: Mapping[str, CudaRelease],
    search_path: str,
    manifest: Manifest | None = None,
) -> GpuHealth:
    """Examine this host's driver and GPUs with NVML and, if installed, DCGM.

    `releases` are as for `judged`. The failed GPU checks in an image's `manifest` are attributed.
    """
    reading = nvml.ask(processes)
    findings = judged(reading, releases)
    if reading.gpus:
        findings += diagnose(processes, search_path=search_path)
    if manifest is not None:
        findings += failed_checks(manifest, findings)
    return GpuHealth(reading=reading, findings=tuple(findings))


def judged(reading: NvmlReading, releases: Mapping[str, CudaRelease]) -> list[GpuFinding]:
    """Return the findings for a reading; `releases` by version tell the images that run here."""
    if reading.fault and not reading.gpus:
        return [_without_gpus(reading, reading.fault)]
    findings = list(_of_driver(reading))
    for gpu in reading.gpus:
        findings += list(symptoms(gpu, reading)) or [_sound(gpu)]
    return [*findings, *_images(reading, releases)]


def _without_gpus(reading: NvmlReading, error: NvmlFault) -> GpuFinding:
    if error.call == "dlopen":
        if reading.kernel_driver:
            return finding_of("driver", "without-library", host=reading, error=error)
        if reading.pci_gpus:
            return finding_of("driver", "missing", count=len(reading.pci_gpus))
        return finding_of("driver", "nothing")
    module = f"; the module is {reading.kernel_driver}" if reading.kernel_driver else ""
    return finding_of("start", error.name, error=error, module=f"{module} ({error.name})")


def _of_driver(reading: NvmlReading) -> Iterator[GpuFinding]:
    if reading.fault:
        yield finding_of("driver", "fault", error=reading.fault)
    library, module = reading.driver, reading.kernel_driver
    if library and module and library != module:
        yield finding_of("driver", "two-versions", host=reading)
    elif not reading.gpus:
        yield finding_of("driver", "without-gpu")
    else:
        yield finding_of("driver", "sound", host=reading, cuda=reading.cuda or "an unknown release")
    missing = {*reading.pci_gpus} - {gpu.pci for gpu in reading.gpus}
    if len(missing) > sum(not gpu.pci for gpu in reading.gpus):  # lost GPUs have no PCI address
        yield finding_of("driver", "gpus-not-shown", missing=" ".join(sorted(missing)))


def _sound(gpu: Gpu) -> GpuFinding:
    """Return the finding for a sound GPU; properties that it does not report are left out."""
    texts = [
        gpu.name,
        "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C",
        "no uncorrectable memory error" if gpu.ecc.volatile_uncorrected == 0 else "",
        "" if gpu.throttling is None else "not slowed down",
    ]
    text = ", ".join(filter(None, texts))
    return GpuFinding(subject=f"GPU {gpu.index}", key="health", verdict=SOUND, text=text)


def _images(reading: NvmlReading, releases: Mapping[str, CudaRelease]) -> Iterator[GpuFinding]:
    """Yield which images run here: to choose an image, not as a fault of the host."""
    for capability in sorted({gpu.compute_capability for gpu in reading.gpus} - {""}):
        number = int(capability.replace(".", ""))
        installed = reading.driver_version or "0"  # an unknown version supports nothing
        fitting = runnable(releases, installed, [number], compiled=reading.cuda)
        text = f"no known CUDA release fits compute capability {capability} and this driver"
        verdict, remedy = WATCH, "install another driver, or a newer build-images"
        if fitting:
            text = f"images with CUDA {', '.join(fitting)} run on compute capability {capability}"
            verdict, remedy = SOUND, ""
        yield GpuFinding(key="images", verdict=verdict, text=text, remedy=remedy)


def failed_checks(manifest: Manifest, findings: Iterable[GpuFinding]) -> Iterator[GpuFinding]:
    """Yield a finding for each GPU check that failed in any format; use the host's findings."""
    sick = [finding for finding in findings if finding.verdict == SICK and finding.matter == HOST]
    failures: dict[str, tuple[str, list[str]]] = {}  # the first reason, and the formats, by check
    for format_name, outcomes in manifest.checks.items():
        for outcome in outcomes:
            if outcome.outcome == FAILED and _GPU_CHECK.search(outcome.check):
                failures.setdefault(outcome.check, (outcome.reason, []))[1].append(format_name)
    for check, (reason, formats) in failures.items():
        yield _failed_check(check, reason, formats, sick)


def _failed_check(
    check: str, reason: str, formats: list[str], sick: list[GpuFinding]
) -> GpuFinding:
    number = _ERROR.search(reason)
    error = cuda_errors().get(int(number[1])) if number else None
    matter = error.matter if error else UNCLEAR if number or check not in _NO_GPU else IMAGE
    remedy = error.remedy if error else ""
    if sick and matter in {HOST, UNCLEAR}:
        matter, remedy = HOST, f"repair the host first: {sick[0].subject}: {sick[0].text}"
    elif matter == UNCLEAR:
        matter = IMAGE
        remedy = remedy or "the host looks sound: compare on another GPU, then dcgmi diag -r 3"
    return GpuFinding(
        subject=f"check {check}",
        key=CHECK,
        verdict=UNKNOWN if matter == IMAGE and not error else SICK,
        text=f"{_MATTERS[matter]}: {reason} (in {', '.join(formats)})",
        matter=matter,
        remedy=remedy or "docs/gpus.md explains each outcome",
    )


def as_json(health: GpuHealth) -> str:
    """Return the reading and the findings as JSON."""
    document = {
        "schema": SCHEMA,
        "verdict": health.verdict,
        "host": asdict(health.reading),
        "findings": [asdict(finding) for finding in health.findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_text(health: GpuHealth, *, colour: bool) -> str:
    """Return a table of the GPUs, then the findings; without a final newline."""
    paint = Paint(colour)
    width = max((len(finding.subject) for finding in health.findings), default=0)
    lines = [*_table(health.reading, paint), paint("findings", BOLD)]
    for finding in health.findings:
        mark, code = _MARKS[finding.verdict]
        lines.append(f"  {paint(mark, code)} {finding.subject:{width}}  {finding.text}")
        if finding.remedy:
            remedy = paint(f"{_MATTERS[finding.matter]}: {finding.remedy}", DIM)
            lines.append(f"    {'':{width}}  {remedy}")
    conclusion = _CONCLUSIONS[health.verdict] if health.has_gpus else _NO_GPUS
    return "\n".join([*lines, "", conclusion])


def _table(reading: NvmlReading, paint: Paint) -> list[str]:
    if not reading.gpus:
        return []
    rows = [_TITLES, *map(_row, reading.gpus)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [paint(lines[0], BOLD), *lines[1:], ""]


def _row(gpu: Gpu) -> tuple[str, ...]:
    ecc = mig = ""
    if gpu.ecc_enabled is not None:
        counts = (gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected)
        errors = "/".join("?" if count is None else str(count) for count in counts)
        ecc = f"{'on' if gpu.ecc_enabled else 'off'} {errors}"
    if gpu.mig_enabled is not None:
        mig = f"on, {gpu.mig_devices} devices" if gpu.mig_enabled else "off"
    return (
        str(gpu.index),
        gpu.name,
        gpu.compute_capability,
        f"{gpu.memory_bytes / (1 << 30):.0f} GiB" if gpu.memory_bytes else "",
        _of(gpu.temperature_c, gpu.slowdown_c),
        _of(gpu.power_w, gpu.power_limit_w),
        _of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz),
        ecc,
        f"{gpu.pcie_generation} x{gpu.pcie_width}" if gpu.pcie_width else "",
        _of(gpu.nvlinks, gpu.nvlinks + gpu.nvlinks_down) if gpu.nvlinks else "",
        mig,
    )


def _of(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if limit is None else f"{value:.0f} of {limit:.0f}"
