"""The report over a run's output folder: `report.json` for programs, `report.html` for people."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder import __version__
from builder.model import Plan
from builder.model.manifest import Manifest, manifest_text
from builder.model.records import read, write
from builder.reports.report.matrix import LeftOutImage
from builder.reports.report.view import SCHEMA, BuildRun, ReportDocument, page_of
from builder.reports.templates import page_environment


def report_of_run(
    manifests: Sequence[Manifest],
    plan: Plan,
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    run: BuildRun,
) -> ReportDocument:
    """Return the report over an output folder: what is in it, and what is not, with the reasons.

    `manifests` are those of all images in it. `failures` and `compiled` are as in
    `ReportDocument`; `run` says when, for how long, and on which host.
    """
    command = shlex.join(["build-images", *sys.argv[1:]])
    return ReportDocument(
        build=replace(run, tool_version=__version__, command=command),
        images=tuple(manifests),
        failures=failures,
        left_out=tuple(map(LeftOutImage.of, plan.left_out)),
        compiled=compiled,
    )


def report_files(document: ReportDocument, folder: str) -> dict[str, str]:
    """Return the texts of `report.json` and `report.html`, by their names; `folder` is shown."""
    values = page_of(document, folder)
    data = write(document)
    data |= {"outcome": values["outcome"], "totals": values["totals"]}
    texts = map(manifest_text, document.images)  # with their keys in order
    data["images"] = [*map(json.loads, texts)]
    page = page_environment().get_template("report.html.j2").render(build=document.build, **values)
    return {
        "report.json": json.dumps(data, indent=2, ensure_ascii=False) + "\n",
        "report.html": page,
    }


def refreshed(out: Path, manifest: Manifest) -> ReportDocument | None:
    """Return the report of a folder with what is known now of one image; None if it has no report.

    Everything else stays as the run left it that wrote the report.
    """
    try:
        document = read(ReportDocument, json.loads((out / "report.json").read_text("utf-8")))
    except (OSError, ValueError):
        return None
    images = tuple(manifest if old.image == manifest.image else old for old in document.images)
    if document.schema != SCHEMA or manifest not in images:
        return None
    return replace(document, images=images)
