"""The report over a run's output folder: `report.json` for programs, `report.html` for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from builder.model import Cell, LeftOut, Reason
from builder.model.manifest import Manifest, manifest_from
from builder.model.records import in_order, write
from builder.reports.report.view import Report, report_of
from builder.system.atomic import write_atomically

SCHEMA = "build-images/report/v1"


def write_report(
    manifests: Sequence[Manifest],
    left_out: Sequence[LeftOut],
    failures: Mapping[str, str],
    *,
    out: Path,
    build: Mapping[str, Any],
    compiled: Mapping[str, str] | None = None,
) -> None:
    """Write `out/report.json` and `out/report.html`; each replaces an older one at once.

    `manifests` are those of all images; `failures` maps the identifier
    of an image whose build failed to the error, `compiled` that of one that is only compiled to
    what this machine lacks; `build` says who ran what, where, for how long.
    """
    lacking = compiled or {}
    folder = out.resolve().name
    report = report_of(manifests, left_out, failures, lacking, folder=folder, build=build)
    document = _document(report, manifests, left_out, failures, build)
    document["compiled"] = lacking
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_atomically(out / "report.json", text, errors="replace")
    write_atomically(out / "report.html", _html(report), errors="replace")


def refresh(out: Path, manifest: Manifest) -> bool:
    """Write the report over `out` anew with what is known now of one image; False if there is none.

    Everything else stays as the run left it that wrote the report.
    """
    try:
        document = json.loads((out / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return False
    known = map(manifest_from, document["images"])
    images = [manifest if one.image == manifest.image else one for one in known]
    if manifest not in images:
        return False
    write_report(
        images,
        [_left_out(one) for one in document["left_out"]],
        document["failures"],
        out=out,
        build=document["build"],
        compiled=document.get("compiled", {}),
    )
    return True


def _left_out(entry: Mapping[str, Any]) -> LeftOut:
    pairs = (text.partition(": ") for text in entry["reasons"])
    reasons = tuple(Reason(layer=layer, text=text) for layer, _, text in pairs)
    return LeftOut(cell=Cell(**entry["cell"]), reasons=reasons)


def _document(
    report: Report,
    manifests: Sequence[Manifest],
    left_out: Sequence[LeftOut],
    failures: Mapping[str, str],
    build: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "outcome": report.outcome,
        "totals": report.totals,
        "build": build,
        "images": [in_order(write(one)) for one in manifests],
        "failures": failures,
        "left_out": [
            {
                "image": one.cell.identifier,
                "cell": asdict(one.cell),
                "reasons": [str(reason) for reason in one.reasons],
            }
            for one in left_out
        ],
    }


def _html(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2").render(report=report)
