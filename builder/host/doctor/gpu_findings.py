"""Findings about GPUs: the symptoms of one GPU, and DCGM's quick diagnosis.

Their texts are rows of gpu-findings.yaml.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from builder.facts import HOST
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.exact_json import part
from builder.system.files import table_beside
from builder.system.nvml import LIBRARY_NOT_FOUND, Gpu, NvmlReading
from builder.system.process import Processes

# Sound: nothing to do. Watch: it works, but needs attention. Sick: results are unreliable or
# missing. Unknown: this could not be determined.
SOUND, WATCH, SICK, UNKNOWN = "sound", "watch", "sick", "unknown"
THE_HOST = "host"
CHECK = "check"

_NEAR_C = 5  # degrees below the threshold from which a GPU counts as hot

# nvmlClocksEventReasons that indicate a fault. The others are normal: idle, clocks set by a user,
# the power limit under load, the slowest GPU of a group.
_THROTTLING = {
    0x08: "slowed-by-hardware",
    0x20: "slowed-by-software",
    0x40: "slowed-by-heat",
    0x80: "slowed-by-power",
}
_HOT = 0x20 | 0x40

# The largest number of pages that a GPU can retire:
# https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html
_MOST_PAGES = 64
_PROHIBITED, _EXCLUSIVE = 2, 3  # nvmlComputeMode_t

_TIMEOUT_S = 120.0
_CONFIGURATION = 5  # DCGM_ERROR_CONFIG, a severity: a wrong setting, not a hardware fault
_VERDICTS = {"pass": SOUND, "warn": WATCH, "fail": SICK}
_REMEDY = "to look closer, drain the node and run dcgmi diag -r 3 (15 minutes)"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFinding:
    """A finding about the host, one of its GPUs, or an image's check.

    `subject` is `host`, a GPU (`GPU 0`) or a check; `key` names the property that was examined.
    `matter` is the side at fault, as in builder.facts: host, image, start (how containers are
    started) or unclear. `remedy` is empty if nothing needs to be done.
    """

    subject: str = THE_HOST
    key: str
    verdict: str
    text: str
    matter: str = HOST
    remedy: str = ""


@cache
def _rows() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the rows of gpu-findings.yaml by section and name."""
    rows: Mapping[str, Mapping[str, Mapping[str, str]]]
    rows = table_beside(__file__, "gpu-findings.yaml")
    return rows


def finding_of(section: str, name: str, *, subject: str = THE_HOST, **values: object) -> GpuFinding:
    """Return the finding `name` of gpu-findings.yaml, or `other`; `values` fill in its text."""
    rows = _rows()[section]
    row = rows.get(name) or rows["other"]
    return GpuFinding(
        subject=subject,
        key=row["key"],
        verdict=row["verdict"],
        text=row["text"].format_map(values),
        remedy=row.get("remedy", ""),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A reading of the driver and the GPUs, with its findings."""

    reading: NvmlReading
    findings: tuple[GpuFinding, ...]

    @property
    def verdict(self) -> str:
        """The worst verdict on the host; an image's failed checks do not count."""
        verdicts = {finding.verdict for finding in self.findings if finding.key != CHECK}
        return next((verdict for verdict in (SICK, UNKNOWN, WATCH) if verdict in verdicts), SOUND)

    @property
    def has_gpus(self) -> bool:
        """True if there is any sign that this host has a GPU, or should have one."""
        reading = self.reading
        broken = reading.fault is not None and reading.fault.name != LIBRARY_NOT_FOUND
        return bool(broken or reading.gpus or reading.pci_gpus or reading.driver_version)

    @property
    def exit_code(self) -> int:
        """0 if the GPUs are reliable, 1 if anything is sick or unknown, 4 if there is no GPU."""
        if not self.has_gpus:
            return MissingPrerequisite.exit_code
        return StepFailed.exit_code if self.verdict in {SICK, UNKNOWN} else 0


def symptoms(gpu: Gpu, reading: NvmlReading) -> Iterator[GpuFinding]:
    """Yield all symptoms of a GPU, the worst kinds first; none for a sound GPU."""
    shown = {one.pci for one in reading.gpus}
    # A GPU that does not report its PCI address must be one of those that the driver does not show.
    place = gpu.pci or " or ".join(address for address in reading.pci_gpus if address not in shown)
    named = ", ".join(filter(None, [gpu.name, place]))
    pages = gpu.retired_pages
    values = {
        "gpu": gpu,
        "pages": pages.single_bit + pages.double_bit if pages else 0,
        "clock": f"; {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz" if gpu.sm_clock_mhz else "",
        "degrees": _degrees(gpu),
        "nvlinks": gpu.nvlinks + gpu.nvlinks_down,
    }
    names = [("fault", gpu.fault.name)] if gpu.fault else []
    for rule in (_memory, _heat, _modes, _links):
        names += [("gpu", name) for name in rule(gpu)]
    for section, name in names:
        symptom = finding_of(section, name, subject=f"GPU {gpu.index}", **values)
        yield replace(symptom, text=f"{symptom.text} [{named}]") if named else symptom


def _memory(gpu: Gpu) -> Iterator[str]:
    if gpu.ecc.volatile_uncorrected:
        yield "memory-errors-now"
    elif gpu.ecc.aggregate_uncorrected:
        yield "memory-errors-before"
    if gpu.ecc_enabled is False:
        yield "ecc-off"
    pages, rows = gpu.retired_pages, gpu.remapped_rows
    if pages and pages.single_bit + pages.double_bit >= _MOST_PAGES:
        yield "pages-full"
    elif pages and pages.pending:
        yield "pages-pending"
    if rows and rows.failed:
        yield "rows-failed"
    elif rows and rows.pending:
        yield "rows-pending"


def _heat(gpu: Gpu) -> Iterator[str]:
    reasons = gpu.throttling or 0
    yield from (name for bit, name in _THROTTLING.items() if reasons & bit)
    if gpu.temperature_c is None or gpu.slowdown_c is None or reasons & _HOT:
        return
    if gpu.temperature_c >= gpu.slowdown_c:
        yield "too-hot"
    elif gpu.temperature_c >= gpu.slowdown_c - _NEAR_C:
        yield "hot"


def _degrees(gpu: Gpu) -> str:
    if gpu.temperature_c is None:
        return ""
    limit = f" of {gpu.slowdown_c} °C" if gpu.slowdown_c else " °C"
    return f"; {gpu.temperature_c}{limit}"


def _modes(gpu: Gpu) -> Iterator[str]:
    if gpu.compute_mode == _PROHIBITED:
        yield "closed"
    elif gpu.compute_mode == _EXCLUSIVE:
        yield "exclusive"
    if gpu.mig_enabled and gpu.mig_devices == 0:
        yield "mig-without-device"
    if gpu.persistence is False:
        yield "not-persistent"


def _links(gpu: Gpu) -> Iterator[str]:
    if gpu.nvlinks and gpu.nvlinks_down:
        yield "nvlinks-down"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        yield "pcie-narrow"


def diagnose(processes: Processes, *, search_path: str) -> list[GpuFinding]:
    """Return the findings of `dcgmi diag -r 1 -j`; none if DCGM is not installed."""
    program = shutil.which("dcgmi", path=search_path)
    if program is None:
        return []
    argv = [program, "diag", "-r", "1", "-j"]
    done = processes.capture(argv, check=False, timeout_s=_TIMEOUT_S)
    if done.timed_out:
        return [_dcgm(THE_HOST, UNKNOWN, f"no answer within {_TIMEOUT_S:.0f} s", "")]
    return read_diagnosis(done.stdout, done.stderr)


def read_diagnosis(stdout: str, stderr: str = "") -> list[GpuFinding]:
    """Return the findings in the JSON of DCGM 2 to 4.

    Formats: nvvs/plugin_src and JsonOutput of https://github.com/NVIDIA/DCGM. Before 4, results
    have `gpu_ids` ("0,1") and warnings are texts; from 4 on, results have an `entity_id`, and
    warnings are objects with a severity.
    """
    document = _document(stdout)
    body = part(document, "DCGM Diagnostic") or part(document, "DCGM GPU Diagnostic")
    problem = part(body, "runtime_error")
    categories = part(body, "test_categories")
    if problem is not None or categories is None:
        lines = str(problem or stderr or stdout).strip().splitlines() or ["nothing"]
        remedy = "systemctl start nvidia-dcgm"
        return [_dcgm(THE_HOST, UNKNOWN, f"did not run: {lines[-1]}", remedy)]
    results = [
        _of_result(str(test.get("name", "a test")), result)
        for category in _objects(categories)
        for test in _objects(category.get("tests"))
        for result in _objects(test.get("results"))
    ]
    passed = sum(result.verdict == SOUND for result in results)
    text = f"its quick diagnosis passed, {passed} results"
    summary = _dcgm(THE_HOST, *((SOUND, text) if passed else (UNKNOWN, "ran no test")), "")
    return [result for result in results if result.verdict in {SICK, WATCH}] or [summary]


def _document(text: str) -> object:
    """Return the JSON in an output, after any log lines; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    except ValueError:
        return None


def _objects(values: object) -> list[dict[str, object]]:
    """Return the objects in a list; DCGM 3 also writes `null` entries."""
    return (
        [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    )


def _of_result(test: str, result: Mapping[str, object]) -> GpuFinding:
    verdict = _VERDICTS.get(str(result.get("status", "")).lower(), UNKNOWN)
    warnings = result.get("warnings") or result.get("info") or []
    listed = warnings if isinstance(warnings, list) else [warnings]
    severities = [part(warning, "error_severity") for warning in _objects(listed)]
    if severities and {*severities} == {_CONFIGURATION} and verdict == SICK:
        verdict = WATCH
    texts = [str(part(one, "warning") or "" if isinstance(one, dict) else one) for one in listed]
    text = " ".join(map(str.strip, texts)) or result.get("status")
    number = result.get("entity_id") if result.get("entity_group") == "GPU" else None
    numbers = str(result.get("gpu_ids", "") if number is None else number)
    return _dcgm(f"GPU {numbers}" if numbers else THE_HOST, verdict, f"{test}: {text}", _REMEDY)


def _dcgm(subject: str, verdict: str, text: str, remedy: str) -> GpuFinding:
    remedy = "" if verdict == SOUND else remedy
    return GpuFinding(
        subject=subject, key="dcgm", verdict=verdict, text=f"DCGM: {text}", remedy=remedy
    )
