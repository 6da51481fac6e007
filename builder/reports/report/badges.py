"""Short remarks on an image in the report."""

from __future__ import annotations

from dataclasses import dataclass

from builder.model.errors import counted
from builder.model.manifest import Manifest
from builder.model.package_indices import days_behind


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
