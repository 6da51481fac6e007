"""What the report says of the package indices that an image was made with."""

from __future__ import annotations

from builder.model.errors import counted
from builder.model.manifest import Manifest
from builder.model.package_indices import IndexState, age_days, states_in

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
