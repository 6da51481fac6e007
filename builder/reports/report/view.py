"""The cards of images, computed from manifests; templates only lay them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from builder import facts
from builder.model import DEVELOPMENT, FAILED, GENERIC, NONE, RUNTIME, Artifact, Outcome
from builder.model.architectures import CPU_TARGETS
from builder.model.errors import counted
from builder.model.manifest import LOG, MANIFEST, Manifest
from builder.model.package_indices import IndexState, age_days, days_behind, states_in
from builder.reports.measured import Plot, plot_of
from builder.reports.templates import first_line, human_moment, human_time

_USUAL = {"flavour": RUNTIME, "cpu": GENERIC}  # not shown
VERIFIED, BUILT = "verified", "built"
BROKEN, COMPILED, LEFT_OUT = "broken", "compiled", "left-out"
FORMAT_TITLES = {"oci": "OCI layout", "sif": "SIF", "charliecloud": "Charliecloud"}
_ERROR_LINES = 40
_SPECS = (("Dockerfile", "Dockerfile"), ("Singularity.def", "Singularity.def"))
_LOG = (LOG, LOG)
_NOT_BUILT = {  # the mark and the word of each state
    BROKEN: ("✗", "build failed"),
    COMPILED: ("◇", "compiled, not built here"),
    LEFT_OUT: ("⊘", "left out"),
}
_STEPS = ("spec", "base", "stages", "build", "oci", "sif", "charliecloud", "verify")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Badge:
    """A short remark on an image; `kind` is its CSS class."""

    kind: str
    text: str
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The content of one image's card, also of an image that was not built.

    `state` is verified, built (and not verified), failed, broken (its build failed), compiled (and
    not built: this machine lacks something) or left-out. `cell` has the axes, `hover` and `notes`
    are for the matrix. An `error` is that of a failed build; without a manifest, nothing was built.
    `links` are texts with paths in the image's folder; `steps` are names with seconds and shares of
    the time in percent; `artifacts` are by the formats' titles; `checks` are the formats' titles
    with outcomes, by check (None: not run).
    """

    image: str
    cell: Mapping[str, str]
    state: str
    mark: str
    word: str
    hover: str
    notes: tuple[str, ...] = ()
    links: Pairs = ()
    error: str = ""
    manifest: Manifest | None = None
    badges: tuple[Badge, ...] = ()
    facts: Pairs = ()
    steps: tuple[tuple[str, float, float], ...] = ()
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    checks: Mapping[str, tuple[tuple[str, Outcome | None], ...]] = field(default_factory=dict)
    plot: Plot | None = None

    @property
    def arch(self) -> str:
        return self.cell.get("arch", "")

    @property
    def recipe(self) -> str:
        cell = self.cell
        return f"{cell.get('recipe', self.image)} {cell.get('recipe_version', '')}".rstrip()

    @property
    def axes(self) -> list[str]:
        """The axes that a row of the matrix shows beside the recipe, without what is usual."""
        cell = self.cell
        mpi, cuda = cell.get("mpi", NONE), cell.get("cuda", NONE)
        axes = [
            cell.get("base", ""),
            "" if mpi == NONE else mpi,
            "" if cuda == NONE else f"CUDA {cuda}",
            *(cell[name] for name, usual in _USUAL.items() if cell.get(name, usual) != usual),
        ]
        return [axis for axis in axes if axis]


def broken_card(image: str, text: str) -> Card:
    lines = text.rstrip().splitlines()
    error = "\n".join(["…", *lines[-_ERROR_LINES:]] if len(lines) > _ERROR_LINES else lines)
    card = card_not_built(image, axes_of(image), BROKEN, first_line(text))
    return replace(card, links=(*_SPECS, _LOG), error=error)


def card_not_built(image: str, cell: Mapping[str, str], state: str, hover: str) -> Card:
    mark, word = _NOT_BUILT[state]
    return Card(image=image, cell=cell, state=state, mark=mark, word=word, hover=hover)


def card_of(manifest: Manifest) -> Card:
    """Return the card of a manifest's image."""
    state, mark, word = standing_of(manifest)
    names = in_order(manifest.artifacts, FORMAT_TITLES)
    artifacts = {FORMAT_TITLES.get(name, name): manifest.artifacts[name] for name in names}
    seconds = manifest.durations_s
    total = sum(seconds.values())
    evidence = [(f"evidence: {file.rpartition('/')[2]}", file) for file in manifest.evidence]
    return Card(
        image=manifest.image,
        cell=asdict(manifest.cell),
        state=state,
        mark=mark,
        word=word,
        hover=manifest.image,
        notes=(
            human_time(total),
            "emulated" if manifest.emulated else "native",
            *(("not proven on a GPU",) if manifest.proven_on_gpu is False else ()),
        ),
        links=(
            *(*_SPECS, ("manifest", MANIFEST), *evidence),
            *(("SBOM (CycloneDX)", manifest.sbom), _LOG),
        ),
        manifest=manifest,
        badges=tuple(badges_of(manifest)),
        facts=_facts(manifest),
        steps=tuple(
            (name, seconds[name], 100 * seconds[name] / (total or 1.0))
            for name in in_order(seconds, _STEPS)
        ),
        artifacts=artifacts,
        checks=_checks(manifest.all_outcomes(), names),
        plot=plot_of(manifest.measured),
    )


def badges_of(manifest: Manifest) -> Iterable[Badge]:
    """Yield the badges of a manifest's image."""
    arch, qemu = manifest.cell.arch, manifest.tools.get("qemu")
    if manifest.emulated:
        text = f"emulated · QEMU {qemu}" if qemu else "emulated"
        yield Badge(kind="emulated", text=text, about=f"{arch} programs ran under emulation")
    else:
        built = () if manifest.emulated_build else ("built",)
        work = " and ".join([*built, *(["checked"] if manifest.checks else [])])
        yield Badge(kind="native", text="native", about=f"{work} on {arch}")
    if manifest.proven_on_gpu is True:
        yield Badge(kind="gpu", text="proven on a GPU", about="its GPU checks passed")
    elif manifest.proven_on_gpu is False:
        about = "its GPU checks did not pass on a GPU"
        yield Badge(kind="no-gpu", text="not proven on a GPU", about=about)
    if behind := days_behind(manifest.inputs):
        text = f"packages {counted(behind, 'day')} behind"
        about = "the mirror did not yet have all of the newest package index"
        yield Badge(kind="behind", text=text, about=about)


def _facts(manifest: Manifest) -> Pairs:
    recipes = [f"{recipe.name} {recipe.version}" for recipe in manifest.inputs.recipes]
    tools = [f"{name} {version}" for name, version in manifest.tools.items() if version]
    return stated(
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
    columns = [
        *formats,
        *in_order(sorted(outcomes.keys() - {*formats}), FORMAT_TITLES),
    ]  # further runners last
    return {
        check: tuple((FORMAT_TITLES.get(name, name), own.get(name)) for name in columns)
        for check, own in by_check.items()
    }


def stated(*pairs: tuple[str, str]) -> Pairs:
    return tuple((name, text) for name, text in pairs if text)


def in_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    rank = {name: number for number, name in enumerate(known)}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))


def standing_of(manifest: Manifest) -> tuple[str, str, str]:
    """Return state, mark and word of an image that was built.

    An image that is not known to be good has failed.
    """
    if manifest.outcome == VERIFIED:
        return VERIFIED, "✓", "verified"
    if manifest.outcome == BUILT:
        return BUILT, "○", "not verified"
    checks = [check.outcome for outcomes in manifest.checks.values() for check in outcomes]
    if FAILED in checks:
        return FAILED, "✗", "check failed"
    return FAILED, "✗", "formats differ" if manifest.formats_equal is False else "failed"


def axes_of(image: str) -> dict[str, str]:
    """Return the axes in an image's identifier, if nothing else is known of the image."""
    words = image.split("-")
    axes = {"arch": words.pop()}
    if words and words[-1] in CPU_TARGETS.get(axes["arch"], ()):
        axes["cpu"] = words.pop()
    if words and words[-1] == DEVELOPMENT:
        axes["flavour"] = words.pop()
    if words and words[-1].startswith(tuple(facts.MPI_FAMILIES)):
        axes["mpi"] = words.pop()
    if words and words[-1].startswith("cuda"):
        axes["cuda"] = words.pop().removeprefix("cuda")
    version = next((at for at, word in enumerate(words) if at and word[:1].isdigit()), len(words))
    axes["recipe"] = "-".join(words[:version])
    axes["recipe_version"] = "".join(words[version : version + 1])
    axes["base"] = "-".join(words[version + 1 :])
    return axes
