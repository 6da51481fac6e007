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
    """`report.json`: the manifests of all images, and the reasons for images that were not built.

    `failures` maps the identifier of an image whose build failed to the error; `compiled` maps that
    of an image that was only compiled to what this machine lacks. `outcome` and `totals` cover all.
    """

    schema: str = SCHEMA
    outcome: str = ""
    totals: Mapping[str, int] = field(default_factory=dict)
    build: BuildRun
    images: tuple[Manifest, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[LeftOutImage, ...] = ()
    compiled: Mapping[str, str] = field(default_factory=dict)


def report_of_run(
    manifests: Sequence[Manifest],
    plan: Plan,
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    run: BuildRun,
) -> ReportDocument:
    """Return the report on an output folder: its images, and the missing ones with reasons.

    `manifests` are those of all images in it. `failures` and `compiled` are as in
    `ReportDocument`; `run` has the start, the duration and the host.
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
    values = _page_of(document, folder)
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
    """Return the report of a folder, with the current manifest of one image; None without a report.

    Everything else stays as in the existing report.
    """
    try:
        document = read(ReportDocument, json.loads((out / "report.json").read_text("utf-8")))
    except (OSError, ValueError):
        return None
    images = tuple(manifest if old.image == manifest.image else old for old in document.images)
    if document.schema != SCHEMA or manifest not in images:
        return None
    return replace(document, images=images)


def _page_of(document: ReportDocument, folder: str) -> dict[str, object]:
    """Return the values for the page beside the document; `outcome` and `totals` are in both.

    `left_out` and `compiled` are images by the reasons why they were not built. Cards of
    failures come first, and the others are in build order.
    """
    cards = _cards(document)
    totals = _totals(cards)
    shown = [card for card in cards if card.state not in {COMPILED, LEFT_OUT}]
    compiled = {image: (first_line(text),) for image, text in document.compiled.items()}
    return {
        "outcome": _outcome(totals),
        "totals": totals,
        "headline": _headline(totals),
        "facts": _machine(document.build, totals),
        "folder": folder,
        "columns": in_order(sorted({card.arch for card in cards}), ARCHITECTURES),
        "rows": _rows(cards),
        "cards": sorted(shown, key=lambda card: (card.state != BROKEN, card.state != FAILED)),
        "left_out": _by_reasons({each.image: each.reasons for each in document.left_out}),
        "compiled": _by_reasons(compiled),
    }


def _cards(document: ReportDocument) -> list[Card]:
    """Return one card for every image of the run.

    A failed build hides an older manifest of its image.
    """
    cards = [
        *(card_of(each) for each in document.images if each.image not in document.failures),
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
    return list({card.image: card for card in reversed(cards)}.values())[::-1]


def _rows(cards: Sequence[Card]) -> list[Mapping[str, Card]]:
    """Return the cards of each row by architecture; a row keeps its place from run to run."""
    rows: dict[str, dict[str, Card]] = {}
    for card in cards:
        rows.setdefault(card.image.removesuffix(f"-{card.arch}"), {})[card.arch] = card
    return [row for _, row in sorted(rows.items())]


def _totals(cards: Sequence[Card]) -> dict[str, int]:
    states = [card.state for card in cards]
    emulated = [card.manifest.emulated for card in cards if card.manifest]
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


def _by_reasons(reasons: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for image, own in reasons.items():
        groups.setdefault(own, []).append(image)
    return groups
