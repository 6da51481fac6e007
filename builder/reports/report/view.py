"""The content of the report, worked out from manifests: the template only lays it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from builder.model import FAILED, Artifact, Outcome
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import counted
from builder.model.manifest import MANIFEST, Manifest
from builder.model.package_indices import IndexState, age_days, days_behind, states_in
from builder.reports.report.matrix import (
    BUILT,
    COMPILED,
    VERIFIED,
    LeftOutImage,
    Tile,
    rows_of,
    standing_of,
    tiles_of,
)
from builder.reports.templates import first_line, human_moment
from builder.verify.measure.shown import Plot, plot_of

SCHEMA = "build-images/report/v1"
FORMATS = {"oci": "OCI layout", "sif": "SIF", "charliecloud": "Charliecloud"}
_ERROR_LINES = 40
_SPECS = (("Dockerfile", "Dockerfile"), ("Singularity.def", "Singularity.def"))
_LOG = ("build.log", "build.log")
_STEPS = ("spec", "base", "stages", "build", "oci", "sif", "charliecloud", "verify")
_Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Badge:
    """A short remark on an image; `kind` is its CSS class."""

    kind: str
    text: str
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """All about one image. One whose build failed has an `error`, and no manifest.

    `links` are texts with paths in the image's folder, `steps` names with seconds and shares of the
    time in percent, `artifacts` and `trees` (tree digests, if there are any) by formats' titles,
    `checks` formats' titles with outcomes, by check: None is one that was not run.
    """

    image: str
    state: str
    mark: str
    word: str
    links: _Pairs
    error: str = ""
    manifest: Manifest | None = None
    badges: tuple[Badge, ...] = ()
    facts: _Pairs = ()
    digests: _Pairs = ()
    steps: tuple[tuple[str, float, float], ...] = ()
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    checks: Mapping[str, tuple[tuple[str, Outcome | None], ...]] = field(default_factory=dict)
    trees: Mapping[str, str] = field(default_factory=dict)
    trees_are_equal: bool = False
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
class ReportDocument:
    """`report.json`: the manifests of all images, and what is known of the others.

    `failures` maps the identifier of an image whose build failed to the error, `compiled` that of
    one that is only compiled to what this machine lacks. `outcome` and `totals` are of all images.
    """

    schema: str = SCHEMA
    outcome: str = ""
    totals: Mapping[str, int] = field(default_factory=dict)
    build: BuildRun
    images: tuple[Manifest, ...]
    failures: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[LeftOutImage, ...] = ()
    compiled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The page. `left_out` and `compiled` are images by the reasons why they were not built."""

    outcome: str
    headline: str
    totals: Mapping[str, int]
    build: BuildRun
    facts: _Pairs
    folder: str
    architectures: tuple[str, ...]
    rows: tuple[Mapping[str, Tile], ...]
    cards: tuple[Card, ...]
    left_out: Mapping[tuple[str, ...], Sequence[str]]
    compiled: Mapping[tuple[str, ...], Sequence[str]]


def report_of(document: ReportDocument, folder: str) -> Report:
    """Return everything on the page. A failed build hides an older manifest of its image."""
    failures, build = document.failures, document.build
    current = [manifest for manifest in document.images if manifest.image not in failures]
    tiles = tiles_of(current, document.left_out, failures, document.compiled)
    totals = _totals(tiles, current)
    cards = [card_of(manifest) for manifest in current]
    architectures = {tile.arch for tile in tiles}
    return Report(
        outcome=_outcome(totals),
        headline=_headline(totals),
        totals=totals,
        build=build,
        facts=_machine(build, totals),
        folder=folder,
        architectures=tuple(_in_order(sorted(architectures), ARCHITECTURES)),
        rows=rows_of(tiles),
        cards=(  # failures first, else in build order
            *(_broken(image, text) for image, text in failures.items()),
            *sorted(cards, key=lambda card: card.state != FAILED),
        ),
        left_out=_by_reasons({each.image: each.reasons for each in document.left_out}),
        compiled=_by_reasons(
            {image: (first_line(text),) for image, text in document.compiled.items()}
        ),
    )


def _totals(tiles: Sequence[Tile], manifests: Sequence[Manifest]) -> dict[str, int]:
    states = [tile.state for tile in tiles]
    emulated = sum(manifest.emulated for manifest in manifests)
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
    """Return `verified` only if there is something, and all of it is."""
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


def _machine(build: BuildRun, totals: Mapping[str, int]) -> _Pairs:
    host = build.host
    runs = [f"{totals[kind]} {kind}" for kind in ("native", "emulated") if totals[kind]]
    return _stated(
        ("machine", " · ".join(str(host[key]) for key in ("arch", "cpu") if host.get(key))),
        ("system", " · ".join(str(host[key]) for key in ("os", "kernel") if host.get(key))),
        ("images ran", ", ".join(runs)),
    )


def _by_reasons(reasons: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for image, own in reasons.items():
        groups.setdefault(own, []).append(image)
    return groups


def _broken(image: str, text: str) -> Card:
    lines = text.rstrip().splitlines()
    error = "\n".join(["…", *lines[-_ERROR_LINES:]] if len(lines) > _ERROR_LINES else lines)
    links = (*_SPECS, _LOG)
    return Card(
        image=image, state="broken", mark="✗", word="build failed", links=links, error=error
    )


def card_of(manifest: Manifest) -> Card:
    """Return all that a manifest says of its image."""
    state, mark, word = standing_of(manifest)
    names = _in_order(manifest.artifacts, FORMATS)
    artifacts = {FORMATS.get(name, name): manifest.artifacts[name] for name in names}
    trees = {title: artifact.tree_digest for title, artifact in artifacts.items()}
    seconds = manifest.durations_s
    total = sum(seconds.values()) or 1.0
    evidence = [(f"evidence: {file.rpartition('/')[2]}", file) for file in manifest.evidence]
    return Card(
        image=manifest.image,
        state=state,
        mark=mark,
        word=word,
        links=(
            *(*_SPECS, ("manifest", MANIFEST), *evidence),
            *(("SBOM (CycloneDX)", manifest.sbom), _LOG),
        ),
        manifest=manifest,
        badges=tuple(badges_of(manifest)),
        facts=_facts(manifest),
        digests=_stated(
            ("content key", manifest.content_key), ("base image", manifest.inputs.base.digest)
        ),
        steps=tuple(
            (name, seconds[name], 100 * seconds[name] / total)
            for name in _in_order(seconds, _STEPS)
        ),
        artifacts=artifacts,
        checks=_checks(manifest.all_outcomes(), names),
        trees=trees if any(trees.values()) else {},
        trees_are_equal=bool(manifest.formats_equal) and len({*trees.values()}) == 1,
        plot=plot_of(manifest.measured),
    )


def badges_of(manifest: Manifest) -> Iterable[Badge]:
    """Yield the remarks that a manifest gives cause to."""
    arch, qemu = manifest.cell.arch, manifest.tools.get("qemu")
    if manifest.emulated:
        text = f"emulated · QEMU {qemu}" if qemu else "emulated"
        yield Badge(kind="emulated", text=text, about=f"{arch} programs ran under emulation")
    else:
        work = "checked" if manifest.emulated_build else "built and checked"
        yield Badge(kind="native", text="native", about=f"{work} on {arch}")
    if manifest.proven_on_gpu is True:
        yield Badge(kind="gpu", text="proven on a GPU", about="its GPU checks passed")
    elif manifest.proven_on_gpu is False:
        about = "its GPU checks did not pass on a GPU"
        yield Badge(kind="no-gpu", text="not proven on a GPU", about=about)
    if behind := days_behind(manifest.inputs):
        text = f"packages {counted(behind, 'day')} behind"
        about = "the mirror had not all of the newest package index yet"
        yield Badge(kind="behind", text=text, about=about)


def _facts(manifest: Manifest) -> _Pairs:
    recipes = [f"{recipe.name} {recipe.version}" for recipe in manifest.inputs.recipes]
    tools = [f"{name} {version}" for name, version in manifest.tools.items() if version]
    return _stated(
        ("recipe", " → ".join(recipes)),
        ("base", manifest.inputs.base.name),
        ("engine", manifest.engine),
        ("packages", str(manifest.packages or "")),
        ("package index", index_states(manifest)),
        ("started", human_moment(manifest.started)),
        ("tools", ", ".join(tools)),
    )


def index_states(manifest: Manifest) -> str:
    """Return the package indices, their age at the build, and whether security updates are in."""
    states = states_in(manifest.inputs)
    lines = [_index_state(state, manifest.started) for state in states]
    has_security = any(state.suite.endswith("-security") for state in states)
    if lines and manifest.inputs.base.key and not has_security:
        lines.append("no security updates")
    return "; ".join(lines)


def _index_state(state: IndexState, at: str) -> str:
    """Return `debian trixie of 2026-09-12 (as stable), 73 days old, 70 days behind the mirror`."""
    text = f"{state.archive} {state.suite} of {state.date[:10] or 'an unknown day'}"
    if state.taken_as != state.suite:
        text += f" (as {state.taken_as})"
    if (age := age_days(state, at)) is not None:
        text += f", {counted(max(age, 0), 'day')} old"
    if state.behind_days:
        text += f", {counted(state.behind_days, 'day')} behind the mirror"
    return text


def _checks(
    outcomes: Mapping[str, Sequence[Outcome]], formats: Sequence[str]
) -> dict[str, tuple[tuple[str, Outcome | None], ...]]:
    by_check: dict[str, dict[str, Outcome]] = {}
    for run, own in outcomes.items():
        for outcome in own:
            by_check.setdefault(outcome.check, {})[run] = outcome
    columns = formats or _in_order(outcomes, FORMATS)
    return {
        check: tuple((FORMATS.get(name, name), own.get(name)) for name in columns)
        for check, own in by_check.items()
    }


def _stated(*pairs: tuple[str, str]) -> _Pairs:
    return tuple((name, text) for name, text in pairs if text)


def _in_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    rank = {name: number for number, name in enumerate(known)}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))
