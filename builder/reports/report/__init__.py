"""The report on a run's output folder: `report.json` for programs, `report.html` for people."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from builder import __version__
from builder.model import FAILED, Cell, LeftOut, Plan
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import counted
from builder.model.manifest import Manifest, manifest_text
from builder.model.planned import by_reason
from builder.model.records import read, write
from builder.reports.report.view import (
    BROKEN,
    BUILT,
    COMPILED,
    LEFT_OUT,
    VERIFIED,
    Card,
    Pairs,
    axes_of,
    broken_card,
    card_not_built,
    card_of,
    in_order,
    stated,
)
from builder.reports.templates import first_line, page_environment

SCHEMA = "build-images/report/v1"
_MANY = 50  # images by name


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutImage:
    """A cell that was left out; its reasons are `LAYER: TEXT`."""

    image: str
    cell: Cell
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, absent: LeftOut) -> LeftOutImage:
        reasons = tuple(map(str, absent.reasons))
        return cls(image=absent.cell.identifier, cell=absent.cell, reasons=reasons)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRun:
    """The run of a report: its start, duration, command, version, and the `host` of its checks."""

    tool_version: str = ""
    command: str = ""
    started: str = ""
    duration_s: float = 0.0
    host: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportDocument:
    """`report.json`: the manifests of a run's images, and the reasons for those that it lacks.

    `failures` maps the identifier of an image whose build failed to the error; `compiled` maps that
    of an image that was only compiled to what this machine lacks. `outcome` and `totals` are those
    of the run. `earlier` are images of other runs in the same folder, which count in neither.
    """

    schema: str = SCHEMA
    outcome: str = ""
    totals: Mapping[str, int] = field(default_factory=dict)
    build: BuildRun
    images: tuple[Manifest, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[LeftOutImage, ...] = ()
    compiled: Mapping[str, str] = field(default_factory=dict)
    earlier: tuple[Manifest, ...] = ()


def report_of_run(
    manifests: Sequence[Manifest],
    plan: Plan,
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    run: BuildRun,
) -> ReportDocument:
    """Return the report on the images of a plan, and on the missing ones with reasons.

    `manifests` are those of all images in the output folder. `failures` and `compiled` are as in
    `ReportDocument`; `run` has the start, the duration and the host.
    """
    done = {image.identifier for image in plan.images} - failures.keys() - compiled.keys()
    command = shlex.join(["build-images", *sys.argv[1:]])
    return ReportDocument(
        build=replace(run, tool_version=__version__, command=command),
        images=tuple(each for each in manifests if each.image in done),
        failures=failures,
        left_out=tuple(map(LeftOutImage.of, plan.left_out)),
        compiled=compiled,
        earlier=tuple(each for each in manifests if each.image not in done),
    )


def report_files(document: ReportDocument, folder: str) -> dict[str, str]:
    """Return the texts of `report.json` and `report.html`, by their names; `folder` is shown."""
    values = _page_of(document, folder)
    data = write(document)
    data |= {"outcome": values["outcome"], "totals": values["totals"]}
    for name, manifests in {"images": document.images, "earlier": document.earlier}.items():
        data[name] = [json.loads(manifest_text(each)) for each in manifests]  # keys in order
    page = page_environment().get_template("report.html.j2").render(build=document.build, **values)
    return {
        "report.json": json.dumps(data, indent=2, ensure_ascii=False) + "\n",
        "report.html": page,
    }


def refreshed(out: Path, manifest: Manifest) -> ReportDocument | None:
    """Return the report of a folder, with the current manifest of one image; None without a report.

    Everything else stays as in the existing report.
    """
    try:
        document = read(ReportDocument, json.loads((out / "report.json").read_text("utf-8")))
    except (OSError, ValueError):
        return None
    images, earlier = (
        tuple(manifest if old.image == manifest.image else old for old in manifests)
        for manifests in (document.images, document.earlier)
    )
    if document.schema != SCHEMA or manifest not in (*images, *earlier):
        return None
    return replace(document, images=images, earlier=earlier)


def _page_of(document: ReportDocument, folder: str) -> dict[str, object]:
    """Return the values for the page beside the document; `outcome` and `totals` are in both.

    `absences` are images by the reasons why they were not built. Cards of failures come first, and
    the others are in build order.
    """
    cards = _cards(document)
    totals = _totals(cards)
    left_out = [card for card in cards if card.state == LEFT_OUT]
    shown = [card for card in cards if card.state not in {COMPILED, LEFT_OUT}]
    compiled = {image: (first_line(text),) for image, text in document.compiled.items()}
    return {
        "outcome": _outcome(totals),
        "totals": totals,
        "headline": _headline(totals),
        "facts": _machine(document.build, totals),
        "folder": folder,
        "columns": in_order(sorted({card.arch for card in cards}), ARCHITECTURES),
        "rows": _rows([card for card in cards if card.state != LEFT_OUT], left_out),
        "cards": sorted(shown, key=lambda card: (card.state != BROKEN, card.state != FAILED)),
        "absences": [
            ("compiled, not built here", len(compiled), _by_reasons(compiled)),
            ("left out", len(left_out), _left_out(document.left_out)),
        ],
        "earlier": [card_of(each) for each in document.earlier],
    }


def _cards(document: ReportDocument) -> list[Card]:
    """Return one card for every image of the run."""
    return [
        *map(card_of, document.images),
        *(broken_card(image, text) for image, text in document.failures.items()),
        *(
            card_not_built(image, axes_of(image), COMPILED, first_line(text))
            for image, text in document.compiled.items()
        ),
        *(
            card_not_built(absent.image, asdict(absent.cell), LEFT_OUT, "; ".join(absent.reasons))
            for absent in document.left_out
        ),
    ]


def _rows(cards: Sequence[Card], left_out: Sequence[Card]) -> list[Mapping[str, Card]]:
    """Return the cards of each row by architecture; a row keeps its place from run to run.

    A row of which every cell is left out is not shown: there may be thousands.
    """
    rows: dict[str, dict[str, Card]] = {}
    for card in cards:
        rows.setdefault(_row_of(card), {})[card.arch] = card
    for card in left_out:
        if row := rows.get(_row_of(card)):
            row[card.arch] = card
    return [row for _, row in sorted(rows.items())]


def _row_of(card: Card) -> str:
    return card.image.removesuffix(f"-{card.arch}")


def _totals(cards: Sequence[Card]) -> dict[str, int]:
    states = [card.state for card in cards]
    ran = [card.manifest for card in cards if card.manifest and card.manifest.checks]
    emulated = [manifest.emulated for manifest in ran]
    return {
        "images": len(states) - states.count(LEFT_OUT) - states.count(COMPILED),
        "verified": states.count(VERIFIED),
        "built": states.count(BUILT),
        "failed": states.count(FAILED) + states.count(BROKEN),
        "compiled": states.count(COMPILED),
        "left_out": states.count(LEFT_OUT),
        "native": emulated.count(False),
        "emulated": emulated.count(True),
    }


def _outcome(totals: Mapping[str, int]) -> str:
    """Return `verified` only if there are images, and all are verified."""
    if totals["failed"] or not totals["images"]:
        return FAILED
    return BUILT if totals["built"] else VERIFIED


def _headline(totals: Mapping[str, int]) -> str:
    images, verified = totals["images"], totals["verified"]
    if not images:
        return "No image was built"
    if images == verified:
        usual = f"All {images} images verified"
        return {1: "1 image verified", 2: "Both images verified"}.get(images, usual)
    return f"{verified} of {counted(images, 'image')} verified"


def _machine(build: BuildRun, totals: Mapping[str, int]) -> Pairs:
    host = build.host
    runs = [f"{totals[kind]} {kind}" for kind in ("native", "emulated") if totals[kind]]
    return stated(
        ("machine", " · ".join(str(host[key]) for key in ("arch", "cpu") if host.get(key))),
        ("system", " · ".join(str(host[key]) for key in ("os", "kernel") if host.get(key))),
        ("images ran", ", ".join(runs)),
    )


def _by_reasons(reasons: Mapping[str, tuple[str, ...]]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for image, own in reasons.items():
        groups.setdefault("; ".join(own), []).append(image)
    return [*groups.items()]


def _left_out(left_out: Sequence[LeftOutImage]) -> list[tuple[str, list[str]]]:
    """Return reasons with their images; of many images, each reason with products of axes."""
    if len(left_out) > _MANY:
        return [*by_reason((each.cell, each.reasons) for each in left_out)]
    return _by_reasons({each.image: each.reasons for each in left_out})
