"""The health of the GPUs as text for people and as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from builder.facts import HOST, IMAGE, START
from builder.host.doctor.gpus.findings import SICK, SOUND, UNKNOWN, WATCH, Finding, GpuHealth
from builder.host.doctor.render import BOLD, DIM, GREEN, RED, YELLOW, Paint
from builder.system.nvml import Gpu, NvmlReading

SCHEMA = "build-images/gpu-health/v1"
_MARKS = {SOUND: ("✓", GREEN), WATCH: ("!", YELLOW), SICK: ("✗", RED), UNKNOWN: ("?", YELLOW)}
_MATTERS = {HOST: "the host's matter", IMAGE: "the image's matter", START: "a matter of the start"}
_TITLES = ("GPU", "model", "sm", "memory", "°C", "W", "MHz", "ECC", "PCIe", "NVLinks", "MIG")
_CONCLUSIONS = {
    SOUND: "The GPUs are sound: a GPU check that fails in an image is a matter of the image.",
    WATCH: "The GPUs can be used, and somebody should look at what is marked.",
    SICK: "Something is sick: while it is, a failed GPU check says nothing of the image.",
    UNKNOWN: "Not everything could be told: a failed GPU check can be the host's matter.",
}
_NO_GPUS = "There is no GPU to look at: GPU checks are skipped on this host."


def as_json(health: GpuHealth) -> str:
    """Everything that was read and found, for programs."""
    document = {
        "schema": SCHEMA,
        "verdict": health.verdict,
        "host": asdict(health.reading),
        "findings": [asdict(one) for one in health.findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_text(health: GpuHealth, *, colour: bool) -> str:
    """A table of the GPUs, then the findings; without a newline at its end."""
    paint = Paint(colour)
    width = max((len(one.subject) for one in health.findings), default=0)
    lines = _table(health.reading, paint)
    lines += [paint("what was found", BOLD)]
    for finding in health.findings:
        lines += _told(finding, width, paint)
    conclusion = _CONCLUSIONS[health.verdict] if health.has_gpus else _NO_GPUS
    return "\n".join([*lines, "", conclusion])


def _told(finding: Finding, width: int, paint: Paint) -> list[str]:
    mark, code = _MARKS[finding.verdict]
    lines = [f"  {paint(mark, code)} {finding.subject:{width}}  {finding.text}"]
    if finding.remedy:
        matter = _MATTERS.get(finding.matter, "unclear whose matter")
        lines.append(f"    {'':{width}}  {paint(f'{matter}: {finding.remedy}', DIM)}")
    return lines


def _table(reading: NvmlReading, paint: Paint) -> list[str]:
    if not reading.gpus:
        return []
    rows = [_TITLES, *(_row(gpu) for gpu in reading.gpus)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    shown = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [paint(shown[0], BOLD), *shown[1:], *_ways(reading), ""]


def _row(gpu: Gpu) -> tuple[str, ...]:
    ecc = {None: "", True: "on", False: "off"}[gpu.ecc_enabled]
    counts = (gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected)
    errors = "/".join("?" if one is None else str(one) for one in counts) if ecc else ""
    mig = {None: "", True: f"on, {gpu.mig_devices} devices", False: "off"}[gpu.mig_enabled]
    return (
        str(gpu.index),
        gpu.name,
        gpu.compute_capability,
        f"{gpu.memory_bytes / (1 << 30):.0f} GiB" if gpu.memory_bytes else "",
        _of(gpu.temperature_c, gpu.slowdown_c),
        _of(gpu.power_w, gpu.power_limit_w),
        _of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz),
        f"{ecc} {errors}".strip(),
        f"{gpu.pcie_generation} x{gpu.pcie_width}" if gpu.pcie_width else "",
        _of(gpu.nvlinks, gpu.nvlinks + gpu.nvlinks_down) if gpu.nvlinks else "",
        mig,
    )


def _of(value: float | None, most: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if most is None else f"{value:.0f} of {most:.0f}"


def _ways(reading: NvmlReading) -> list[str]:
    """The ways between GPUs, those that are alike in one line."""
    alike: dict[str, list[str]] = {}
    for link in reading.links:
        nvlinks = f"{link.nvlinks} NVLinks" if link.nvlinks else ""
        way = ", ".join(filter(None, [nvlinks, f"PCIe {link.pcie}" if link.pcie else ""]))
        alike.setdefault(way or "not told", []).append(f"{link.a}-{link.b}")
    return [f"  {' '.join(pairs)}: {way}" for way, pairs in alike.items()]
