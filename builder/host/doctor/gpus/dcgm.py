"""DCGM's quick diagnosis, where the host has it: `dcgmi diag -r 1 -j`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

from builder.facts import HOST
from builder.host.doctor.gpus.findings import SICK, SOUND, THE_HOST, UNKNOWN, WATCH, Finding
from builder.system.process import Processes

PROGRAM = "dcgmi"
TIMEOUT_S = 120.0
_ARGUMENTS = ("diag", "-r", "1", "-j")
_CONFIGURATION = 5  # DCGM_ERROR_CONFIG, a severity: a setting, and no fault of the hardware
_VERDICTS = {"pass": SOUND, "warn": WATCH, "fail": SICK}
_REMEDY = "dcgmi diag -r 3 looks closer, for 15 minutes; drain the node for it"


def diagnose(processes: Processes, *, search_path: str) -> list[Finding]:
    """What DCGM finds; nothing on a host without it."""
    program = shutil.which(PROGRAM, path=search_path)
    if program is None:
        return []
    done = processes.capture([program, *_ARGUMENTS], check=False, timeout_s=TIMEOUT_S)
    if done.timed_out:
        return [_finding(THE_HOST, UNKNOWN, f"no answer within {TIMEOUT_S:.0f} s", "")]
    return read_diagnosis(done.stdout, done.stderr)


def read_diagnosis(stdout: str, stderr: str = "") -> list[Finding]:
    """The findings in DCGM's JSON, of its versions 2 to 4; it fails (other than 0) on warnings too.

    Formats: nvvs/plugin_src and JsonOutput of https://github.com/NVIDIA/DCGM. Before 4 results name
    `gpu_ids` ("0,1") and warnings are texts; since then they name an `entity_id`, and warnings are
    objects with a severity.
    """
    found = _document(stdout)
    body = next(
        (found[key] for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if key in found), None
    )
    if not isinstance(body, dict) or "runtime_error" in body or "test_categories" not in body:
        said = body.get("runtime_error", "") if isinstance(body, dict) else ""
        lines = (str(said) or stderr or stdout).strip().splitlines() or ["nothing"]
        remedy = "systemctl start nvidia-dcgm"
        return [_finding(THE_HOST, UNKNOWN, f"could not look; it says: {lines[-1]}", remedy)]
    results = list(_results(body["test_categories"]))
    wrong = [one for one in results if one.verdict in {SICK, WATCH}]
    passed = sum(one.verdict == SOUND for one in results)
    if not wrong and not passed:
        return [_finding(THE_HOST, UNKNOWN, "ran no test", "")]
    return wrong or [_finding(THE_HOST, SOUND, f"its quick diagnosis passed, {passed} results", "")]


def _document(text: str) -> dict[str, object]:
    """The JSON object in what was printed: lines of a log may stand before it."""
    begin = text.find("{")
    try:
        found = json.JSONDecoder().raw_decode(text[begin:])[0] if begin >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _results(categories: object) -> Iterator[Finding]:
    for category in _objects(categories):
        for test in _objects(category.get("tests")):
            for result in _objects(test.get("results")):
                yield _of_result(str(test.get("name", "a test")), result)


def _objects(values: object) -> list[dict[str, object]]:
    """The objects in a list; DCGM 3 leaves `null` among them."""
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _of_result(name: str, result: dict[str, object]) -> Finding:
    verdict = _VERDICTS.get(str(result.get("status", "")).lower(), UNKNOWN)
    warnings = result.get("warnings") or result.get("info") or []
    listed = warnings if isinstance(warnings, list) else [warnings]
    objects = [one for one in listed if isinstance(one, dict)]
    if objects and all(one.get("error_severity") == _CONFIGURATION for one in objects):
        verdict = WATCH if verdict == SICK else verdict
    texts = [str(one.get("warning", "")) if isinstance(one, dict) else str(one) for one in listed]
    said = " ".join(text.strip() for text in texts) or str(result.get("status"))
    return _finding(_subject(result), verdict, f"{name}: {said}", _REMEDY)


def _subject(result: dict[str, object]) -> str:
    number = result.get("entity_id") if result.get("entity_group") == "GPU" else None
    named = str(number if number is not None else result.get("gpu_ids", ""))
    return f"GPU {named}" if named else THE_HOST


def _finding(subject: str, verdict: str, text: str, remedy: str) -> Finding:
    return Finding(
        subject=subject,
        key="dcgm",
        verdict=verdict,
        text=f"DCGM: {text}",
        matter=HOST,
        remedy=remedy if verdict in {SICK, WATCH, UNKNOWN} else "",
    )
