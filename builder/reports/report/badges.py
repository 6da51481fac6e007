"""Short remarks on an image in the report."""

from __future__ import annotations

from dataclasses import dataclass

from builder.model.errors import counted
from builder.model.manifest import Manifest
from builder.model.package_indices import IndexState, age_days, days_behind, states_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Badge:
    """A short remark on an image; `kind` is its CSS class."""

    kind: str
    text: str
    about: str


def badges_of(manifest: Manifest) -> tuple[Badge, ...]:
    """What its manifest gives cause to."""
    arch, qemu = manifest.cell.arch, manifest.tools.get("qemu")
    if manifest.emulated:
        text = f"emulated · QEMU {qemu}" if qemu else "emulated"
        badges = [Badge(kind="emulated", text=text, about=f"{arch} programs ran under emulation")]
    else:
        done = "checked" if manifest.emulated_build else "built and checked"
        badges = [Badge(kind="native", text="native", about=f"{done} on {arch}")]
    proven = manifest.proven_on_gpu
    if proven is True:
        badges.append(Badge(kind="gpu", text="proven on a GPU", about="its GPU checks passed"))
    elif proven is False:
        why = "its GPU checks did not pass on a GPU"
        badges.append(Badge(kind="no-gpu", text="not proven on a GPU", about=why))
    if behind := days_behind(manifest.inputs):
        text = f"packages {counted(behind, 'day')} behind"
        why = "the mirror had not all of the newest package index yet"
        badges.append(Badge(kind="behind", text=text, about=why))
    return tuple(badges)


_SECURITY = "-security"


def index_facts(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Each state, how old it was when the image was built, and whether security updates are in."""
    states = states_in(manifest.inputs)
    lines = [_line(one, manifest.started) for one in states]
    if lines and manifest.inputs.base.key and not any(map(_is_security, states)):
        lines.append("no security updates")
    return (("package index", "; ".join(lines)),) if lines else ()


def _line(state: IndexState, at: str) -> str:
    """`debian trixie of 2026-09-12 (as stable), 73 days old, 70 days behind the mirror`."""
    name = f"{state.archive} {state.suite} of {state.date[:10] or 'an unknown day'}"
    taken = f" (as {state.taken_as})" if state.taken_as != state.suite else ""
    age = age_days(state, at)
    old = "" if age is None else f", {counted(max(age, 0), 'day')} old"
    late = state.behind_days
    return f"{name}{taken}{old}" + (f", {counted(late, 'day')} behind the mirror" if late else "")


def _is_security(state: IndexState) -> bool:
    return state.suite.endswith(_SECURITY)
