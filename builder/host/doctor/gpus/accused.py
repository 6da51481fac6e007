"""A failed GPU check of an image: is it the image, how it was started, or a sick GPU?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from builder.facts import HOST, IMAGE, START, UNCLEAR, cuda_errors
from builder.host.doctor.gpus.findings import CHECK, SICK, UNKNOWN, Finding
from builder.model import FAILED
from builder.model.manifest import Manifest

_ERROR = re.compile(r"CUDA error (\d+)")
_GPU_CHECK = re.compile(r"(^|-)(gpu|cuda)(-|$)")


def accused(manifest: Manifest, findings: Iterable[Finding]) -> list[Finding]:
    """A finding for each GPU check that failed in any format, in the light of the host's health."""
    sick = [one for one in findings if one.verdict == SICK and one.matter == HOST]
    return [_judged(name, reason, formats, sick) for name, reason, formats in _failed(manifest)]


def _failed(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Each failed GPU check once: its name, its reason in the first format, and the formats."""
    found: dict[str, tuple[str, list[str]]] = {}
    for format_name, outcomes in manifest.checks.items():
        for one in outcomes:
            if one.outcome == FAILED and _GPU_CHECK.search(one.check):
                found.setdefault(one.check, (one.reason, []))[1].append(format_name)
    for name, (reason, formats) in found.items():
        yield name, reason, ", ".join(formats)


def _judged(name: str, reason: str, formats: str, sick: list[Finding]) -> Finding:
    number = _ERROR.search(reason)
    error = cuda_errors().get(int(number[1])) if number else None
    matter = error.matter if error else UNCLEAR if number or _is_computing(name) else IMAGE
    remedy = error.remedy if error else ""
    if sick and matter in {HOST, UNCLEAR}:
        matter, remedy = HOST, f"first the host: {sick[0].subject}: {sick[0].text}"
    elif matter == UNCLEAR:
        matter = IMAGE
        remedy = remedy or "the host looks sound: compare on another GPU, then dcgmi diag -r 3"
    told = {
        HOST: "the host's matter",
        IMAGE: "the image's matter",
        START: "how it was started",
    }[matter]
    return Finding(
        subject=f"check {name}",
        key=CHECK,
        verdict=UNKNOWN if matter == IMAGE and not error else SICK,
        text=f"{told}: {reason} (in {formats})",
        matter=matter,
        remedy=remedy or "docs/gpus.md says what each outcome means",
    )


def _is_computing(name: str) -> bool:
    """Return whether a check's wrong result can be a GPU's doing.

    Others look at files of the image, or at what its program does without a GPU.
    """
    return name not in {"cuda-clean", "cuda-runtime", "gpu-control", "gpu-withheld"}
