"""Images that start from a registry: specs before anything else, and registries out of reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.stages import brought_bases
from builder.build.workspace import write_spec
from builder.compile.spec import base_archive
from builder.model import Spec
from builder.model.errors import MissingPrerequisite
from builder.sources.registry import MIRROR_HINT, SilentRegistry, registry_of, unreachable
from builder.system.home import Home


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfReach:
    """The registries without an answer, and the specs that cannot be built without them."""

    registries: tuple[SilentRegistry, ...] = ()
    specs: tuple[Spec, ...] = ()

    def reasons(self) -> Mapping[str, str]:
        """Return which registry each image waits for, by identifier."""
        return {
            spec.image.identifier: "; ".join(
                str(one) for one in self.registries if one.registry in _registries(spec)
            )
            for spec in self.specs
        }

    def error(self, out: Path) -> MissingPrerequisite:
        """What to tell: which registry, what was not built, how to name a mirror."""
        count = "1 image was" if len(self.specs) == 1 else f"{len(self.specs)} images were"
        lines = [str(one) for one in self.registries]
        lines += [f"{count} not built for that; the specs are there:"]
        lines += [f"  {out / spec.image.identifier}" for spec in self.specs]
        hint = MIRROR_HINT.format(registry=self.registries[0].registry)
        return MissingPrerequisite("\n".join(lines), hint=hint)


def look_for_registries(
    specs: Sequence[Spec], states: Sequence[str], out: Path, *, offline: bool
) -> OutOfReach:
    """Write the specs that start from a registry and are to be built, then knock there.

    With `offline` nobody knocks: the engine has the images, or says that it lacks them. Nobody
    is asked for what the store has.
    """
    wanted = [
        spec
        for spec, state in zip(specs, states, strict=True)
        if state.startswith("to build") and not spec.image.is_bootstrapped
    ]
    if not wanted:
        return OutOfReach()
    for spec in wanted:
        write_spec(spec, None, out / spec.image.identifier, base_archive(spec.image))
    if offline:
        return OutOfReach()
    lost = unreachable({name for spec in wanted for name in _names(spec)}, {})
    silent = {one.registry for one in lost}
    return OutOfReach(
        registries=tuple(lost),
        specs=tuple(spec for spec in wanted if _registries(spec) & silent),
    )


def _registries(spec: Spec) -> set[str]:
    return {registry_of(name) for name in _names(spec)}


def _names(spec: Spec) -> set[str]:
    """The images that its stages start from and that the store lacks, as this site names them."""
    here = {one.name for one in brought_bases(spec.image, Home.of_environment())}
    return {*spec.image.registry_bases.values()} - here
