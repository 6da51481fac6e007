"""Manifests of which a test says only what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.model.manifest import SCHEMA, Manifest, manifest_from
from builder.reports.report import ReportDocument, report_files
from builder.system.files import write_texts

CELL = {
    "recipe": "hpc-base",
    "recipe_version": "1.0",
    "base": "debian13",
    "cuda": "none",
    "mpi": "none",
    "arch": "x86_64",
}
_ARTIFACT = {"digest": "sha256:0", "size": 1}
_CHECK = {"script": "/check", "needs": [], "timeout_s": 60}
_OUTCOME = {"reason": ""}
_MANIFEST = {
    "schema": SCHEMA,
    "image": "x",
    "content_key": "0",
    "engine": "buildah",
    "outcome": "verified",
    "cell": {},
    "artifacts": {"oci": {}},
    "checks": {},
    "in_image_checks": [],
}


def document(said: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a manifest that says this; what is missing is of no matter."""
    found = {**_MANIFEST, **said}
    return {
        **found,
        "cell": {**CELL, **found["cell"]},
        "artifacts": {
            name: {"format": name, "path": f"image.{name}", **_ARTIFACT, **one}
            for name, one in found["artifacts"].items()
        },
        "checks": outcomes(found["checks"]),
        "in_image_checks": [{**_CHECK, **one} for one in found["in_image_checks"]],
        **({"launched": outcomes(found["launched"])} if "launched" in found else {}),
    }


def outcomes(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [{**_OUTCOME, **one} for one in found] for name, found in runs.items()}


def record(said: Mapping[str, Any]) -> Manifest:
    """The manifest itself."""
    return manifest_from(document(said))


def write_report(out: Path, report: ReportDocument) -> None:
    """Write both files of a report, as commands do."""
    write_texts(out, report_files(report, out.resolve().name))
