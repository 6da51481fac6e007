"""What the report shows, worked out from manifests: the template only lays it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from builder.model import FAILED, PASSED, SKIPPED, LeftOut, Outcome
from builder.model.architectures import ARCHITECTURES
from builder.model.manifest import MANIFEST, Manifest
from builder.reports.report.badges import Badge, badges_of, index_facts
from builder.reports.report.commands import Recipe, recipes_of
from builder.reports.report.matrix import (
    BUILT,
    COMPILED,
    VERIFIED,
    Row,
    Tile,
    first_line,
    human_moment,
    human_size,
    human_time,
    rows_of,
    standing,
    tiles_of,
)
from builder.verify.measure.plot import Plot, plot_of

FORMATS = {"oci": "OCI layout", "sif": "SIF", "charliecloud": "Charliecloud"}
MARKS = {PASSED: "✓", FAILED: "✗", SKIPPED: "○", "absent": "·"}
ERROR_LINES = 40
_SPECS = (("Dockerfile", "Dockerfile"), ("Singularity.def", "Singularity.def"))
_LOG = ("build.log", "build.log")
_STEPS = ("spec", "base", "stages", "build", "oci", "sif", "charliecloud", "verify")


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    text: str
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One bar of an image's times; `share` is a percentage of all its time."""

    name: str
    time: str
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactRow:
    title: str
    path: Link
    size: str
    digest: str
    time: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found in one format; `outcome` may also be `absent`: it was not run."""

    format: str
    outcome: str
    mark: str
    reason: str
    time: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRow:
    check: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trees:
    """The tree digests: one when the formats are `equal`, else each by the format's title."""

    equal: bool
    digests: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """All about one image. One whose build failed has an `error` and little else."""

    image: str
    state: str
    word: str
    mark: str
    about: str = ""
    arch: str = ""
    foreign: bool = False
    error: str = ""
    badges: tuple[Badge, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    digests: tuple[tuple[str, str], ...] = ()
    steps: tuple[Step, ...] = ()
    total: str = ""
    formats: tuple[str, ...] = ()
    artifacts: tuple[ArtifactRow, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    trees: Trees | None = None
    recipes: tuple[Recipe, ...] = ()
    links: tuple[Link, ...] = ()
    plot: Plot | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRun:
    """The run that a report is of: when, for how long, by what, and on which `host`."""

    tool_version: str = ""
    command: str = ""
    started: str = ""
    duration_s: float = 0.0
    host: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """Cells that are left out, or compiled and not built, for the same reasons."""

    reasons: tuple[str, ...]
    images: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The whole page."""

    outcome: str
    headline: str
    totals: Mapping[str, int]
    started: str
    duration: str
    command: str
    tool_version: str
    facts: tuple[tuple[str, str], ...]
    folder: str
    architectures: tuple[str, ...]
    rows: tuple[Row, ...]
    cards: tuple[Card, ...]
    absences: tuple[Absence, ...] = field(default=())
    compiled: tuple[Absence, ...] = field(default=())


def report_of(
    manifests: Sequence[Manifest],
    left_out: Sequence[LeftOut],
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    *,
    folder: str,
    build: BuildRun,
) -> Report:
    """Everything on the page. An image that failed to build hides an older manifest of it."""
    current = [one for one in manifests if one.image not in failures]
    tiles = tiles_of(current, left_out, failures, compiled)
    totals = _totals(tiles, current)
    return Report(
        outcome=_outcome(totals),
        headline=_headline(totals),
        totals=totals,
        started=human_moment(build.started),
        duration=human_time(build.duration_s),
        command=build.command,
        tool_version=build.tool_version,
        facts=_machine(build, totals),
        folder=folder,
        architectures=_architectures(tiles),
        rows=rows_of(tiles),
        cards=_cards(current, failures, folder=folder),
        absences=_absences({one.cell.identifier: one.reasons for one in left_out}),
        compiled=_absences({image: (first_line(text),) for image, text in compiled.items()}),
    )


def _totals(tiles: Sequence[Tile], manifests: Sequence[Manifest]) -> dict[str, int]:
    states = [tile.state for tile in tiles]
    emulated = sum(one.emulated for one in manifests)
    return {
        "images": len(states) - states.count("left-out") - states.count(COMPILED),
        "verified": states.count(VERIFIED),
        "built": states.count(BUILT),
        "failed": states.count(FAILED) + states.count("broken"),
        "compiled": states.count(COMPILED),
        "left_out": states.count("left-out"),
        "native": len(manifests) - emulated,
        "emulated": emulated,
    }


def _outcome(totals: Mapping[str, int]) -> str:
    """`verified` only when there is something, and all of it is."""
    if totals["failed"] or not totals["images"]:
        return FAILED
    return BUILT if totals["built"] else VERIFIED


def _headline(totals: Mapping[str, int]) -> str:
    images, verified = totals["images"], totals["verified"]
    if not images:
        return "No image was built"
    if images == verified:
        return {1: "1 image verified", 2: "Both images verified"}.get(
            images, f"All {images} images verified"
        )
    return f"{verified} of {images} {'image' if images == 1 else 'images'} verified"


def _machine(build: BuildRun, totals: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    host = build.host
    runs = [f"{totals[kind]} {kind}" for kind in ("native", "emulated") if totals[kind]]
    pairs = [
        ("machine", " · ".join(str(host[key]) for key in ("arch", "cpu") if host.get(key))),
        ("system", " · ".join(str(host[key]) for key in ("os", "kernel") if host.get(key))),
        ("images ran", ", ".join(runs)),
    ]
    return tuple((name, text) for name, text in pairs if text)


def _architectures(tiles: Sequence[Tile]) -> tuple[str, ...]:
    found = {tile.arch for tile in tiles}
    known = [name for name in ARCHITECTURES if name in found]
    return (*known, *sorted(found.difference(known)))


def _absences(reasons: Mapping[str, Sequence[object]]) -> tuple[Absence, ...]:
    """Images by the reasons why they are not there."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for image, why in reasons.items():
        groups.setdefault(tuple(map(str, why)), []).append(image)
    return tuple(Absence(reasons=key, images=tuple(group)) for key, group in groups.items())


def _cards(
    manifests: Sequence[Manifest], failures: Mapping[str, str], *, folder: str
) -> tuple[Card, ...]:
    """What went wrong first, else in build order."""
    broken = [_broken(image, text) for image, text in failures.items()]
    built = [card_of(manifest, folder=folder) for manifest in manifests]
    return (*broken, *sorted(built, key=lambda card: card.state != FAILED))


def _broken(image: str, text: str) -> Card:
    lines = text.rstrip().splitlines()
    error = "\n".join(["…", *lines[-ERROR_LINES:]] if len(lines) > ERROR_LINES else lines)
    links = _links(image, [*_SPECS, _LOG])
    word = "build failed"
    return Card(image=image, state="broken", word=word, mark="✗", error=error, links=links)


def card_of(manifest: Manifest, *, folder: str) -> Card:
    """All that a manifest tells of its image."""
    state, mark, word = standing(manifest)
    durations = manifest.durations_s
    formats = tuple(_in_order(manifest.artifacts, FORMATS))
    return Card(
        image=manifest.image,
        state=state,
        word=word,
        mark=mark,
        about=manifest.about,
        arch=manifest.cell.arch,
        foreign=manifest.emulated,
        badges=badges_of(manifest),
        facts=_facts(manifest),
        digests=_digests(manifest),
        steps=_steps(durations),
        total=human_time(sum(durations.values())),
        formats=tuple(FORMATS.get(one, one) for one in formats),
        artifacts=tuple(_artifact(manifest, one) for one in formats),
        checks=_checks(manifest.all_outcomes(), formats),
        trees=_trees(manifest, formats),
        recipes=recipes_of(manifest, folder=folder),
        links=_card_links(manifest),
        plot=plot_of(manifest.measured),
    )


def _facts(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    recipes = [f"{one.name} {one.version}" for one in manifest.inputs.recipes]
    tools = [f"{name} {version}" for name, version in manifest.tools.items() if version]
    pairs = [
        ("recipe", " → ".join(recipes)),
        ("base", manifest.inputs.base.name),
        ("engine", manifest.engine),
        ("packages", manifest.packages or ""),
        *index_facts(manifest),
        ("started", human_moment(manifest.started)),
        ("tools", ", ".join(tools)),
    ]
    return tuple((name, str(value)) for name, value in pairs if value)


def _digests(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    base = manifest.inputs.base.digest
    pairs = [("content key", manifest.content_key), ("base image", base)]
    return tuple((name, value) for name, value in pairs if value)


def _steps(durations: Mapping[str, float]) -> tuple[Step, ...]:
    total = sum(durations.values()) or 1.0
    return tuple(
        Step(name=name, time=human_time(durations[name]), share=100 * durations[name] / total)
        for name in _in_order(durations, _STEPS)
    )


def _artifact(manifest: Manifest, format_: str) -> ArtifactRow:
    artifact = manifest.artifacts[format_]
    return ArtifactRow(
        title=FORMATS.get(format_, format_),
        path=_links(manifest.image, [(str(artifact.path), str(artifact.path))])[0],
        size=human_size(artifact.size),
        digest=artifact.digest,
        time=human_time(artifact.duration_s),
    )


def _trees(manifest: Manifest, formats: Sequence[str]) -> Trees | None:
    """None when there is nothing to compare."""
    digests = {FORMATS.get(one, one): manifest.artifacts[one].tree_digest for one in formats}
    if not any(digests.values()):
        return None
    equal = bool(manifest.formats_equal) and len(set(digests.values())) == 1
    return Trees(equal=equal, digests=digests)


def _checks(
    checks: Mapping[str, Sequence[Outcome]], formats: Sequence[str]
) -> tuple[CheckRow, ...]:
    by_name: dict[str, dict[str, Outcome]] = {}
    for format_, outcomes in checks.items():
        for outcome in outcomes:
            by_name.setdefault(outcome.check, {})[format_] = outcome
    columns = formats or tuple(_in_order(checks, FORMATS))
    return tuple(
        CheckRow(check=name, findings=tuple(_finding(one, found.get(one)) for one in columns))
        for name, found in by_name.items()
    )


def _finding(format_: str, outcome: Outcome | None) -> Finding:
    title = FORMATS.get(format_, format_)
    if outcome is None:
        mark = MARKS["absent"]
        return Finding(format=title, outcome="absent", mark=mark, reason="not run", time="")
    word = outcome.outcome if outcome.outcome in MARKS else FAILED
    return Finding(
        format=title,
        outcome=word,
        mark=MARKS[word],
        reason=outcome.reason,
        time="" if word == SKIPPED else human_time(outcome.duration_s),
    )


def _card_links(manifest: Manifest) -> tuple[Link, ...]:
    names = [
        *_SPECS,
        ("manifest", MANIFEST),
        *((f"evidence: {one.rpartition('/')[2]}", one) for one in manifest.evidence),
        ("SBOM (CycloneDX)", manifest.sbom),
        _LOG,
    ]
    return _links(manifest.image, names)


def _links(image: str, names: Sequence[tuple[str, str]]) -> tuple[Link, ...]:
    """Relative to the report, so that the output folder may be moved or served."""
    return tuple(Link(text=text, href=f"./{quote(image)}/{quote(path)}") for text, path in names)


def _in_order(found: Iterable[str], known: Iterable[str]) -> list[str]:
    return [*(one for one in known if one in found), *(one for one in found if one not in known)]
