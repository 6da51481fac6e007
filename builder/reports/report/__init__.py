"""The report over a run's output folder: `report.json` for programs, `report.html` for people."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder import __version__
from builder.model import Cell, LeftOut, Plan, Reason
from builder.model.manifest import Manifest, manifest_text
from builder.model.records import read, write
from builder.reports.report.view import BuildRun, report_of
from builder.reports.templates import page_environment
from builder.system.files import write_atomically

SCHEMA = "build-images/report/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutImage:
    """A cell that was left out; its reasons are `LAYER: TEXT`."""

    image: str
    cell: Cell
    reasons: tuple[str, ...]

    def left_out(self) -> LeftOut:
        """Return the cell with its reasons taken apart again."""
        pairs = (text.partition(": ") for text in self.reasons)
        reasons = tuple(Reason(layer=layer, text=text) for layer, _, text in pairs)
        return LeftOut(cell=self.cell, reasons=reasons)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportDocument:
    """`report.json`. `failures` and `compiled` are texts by image, as in `write_report`."""

    schema: str = SCHEMA
    outcome: str
    totals: Mapping[str, int]
    build: BuildRun
    images: tuple[Manifest, ...]
    failures: Mapping[str, str]
    left_out: tuple[LeftOutImage, ...]
    compiled: Mapping[str, str] = field(default_factory=dict)


def report_folder(
    out: Path,
    manifests: Sequence[Manifest],
    plan: Plan,
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    run: BuildRun,
) -> None:
    """Write the report over an output folder: what is in it, and what is not, with the reasons.

    `manifests` are those of all images in it. `failures` and `compiled` are as in `write_report`;
    `run` says when, for how long, and on which host.
    """
    command = shlex.join(["build-images", *sys.argv[1:]])
    build = replace(run, tool_version=__version__, command=command)
    write_report(manifests, plan.left_out, failures, out=out, build=build, compiled=compiled)


def write_report(
    manifests: Sequence[Manifest],
    left_out: Sequence[LeftOut],
    failures: Mapping[str, str],
    *,
    out: Path,
    build: BuildRun,
    compiled: Mapping[str, str] | None = None,
) -> None:
    """Write `out/report.json` and `out/report.html`; each replaces an older one at once.

    `manifests` are those of all images; `failures` maps the identifier of an image whose build
    failed to the error, `compiled` that of one that is only compiled to what this machine lacks.
    """
    lacking = compiled or {}
    folder = out.resolve().name
    report = report_of(manifests, left_out, failures, lacking, folder=folder, build=build)
    document = write(
        ReportDocument(
            outcome=report.outcome,
            totals=report.totals,
            build=build,
            images=tuple(manifests),
            failures=failures,
            left_out=tuple(
                LeftOutImage(
                    image=absent.cell.identifier,
                    cell=absent.cell,
                    reasons=tuple(map(str, absent.reasons)),
                )
                for absent in left_out
            ),
            compiled=lacking,
        )
    )
    document["images"] = [
        json.loads(manifest_text(manifest)) for manifest in manifests
    ]  # keys in order
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_atomically(out / "report.json", text, errors="replace")
    page = page_environment().get_template("report.html.j2").render(report=report)
    write_atomically(out / "report.html", page, errors="replace")


def refresh(out: Path, manifest: Manifest) -> bool:
    """Write the report over `out` anew with what is known now of one image; False if there is none.

    Everything else stays as the run left it that wrote the report.
    """
    try:
        document = read(ReportDocument, json.loads((out / "report.json").read_text("utf-8")))
    except (OSError, ValueError):
        return False
    images = [
        manifest if earlier.image == manifest.image else earlier for earlier in document.images
    ]
    if document.schema != SCHEMA or manifest not in images:
        return False
    write_report(
        images,
        [absent.left_out() for absent in document.left_out],
        document.failures,
        out=out,
        build=document.build,
        compiled=document.compiled,
    )
    return True
