"""Which digest a reference to a registry has today, for one architecture."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from builder import facts
from builder.model import exact_json
from builder.model.errors import MissingPrerequisite
from builder.model.inputs import at_mirror
from builder.registry import (
    INDEXES,
    Credentials,
    Descriptor,
    Reference,
    Registry,
    RegistryFailed,
    Unreachable,
    connect,
)


class RegistryFails(MissingPrerequisite):
    """A registry cannot be reached, or has no such image."""


class RegistryUnreachable(RegistryFails):
    """There is no answer from a registry: `lost` says from which, and why."""

    def __init__(self, message: str, *, lost: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lost = lost


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentRegistry:
    """A registry without an answer: `server` is where it was looked for, with its mirror."""

    registry: str
    server: str
    reason: str

    def __str__(self) -> str:
        through = f", through {self.server}" if self.server != self.registry else ""
        return f"the registry {self.registry} cannot be reached{through}: {self.reason}"


MIRROR_HINT = (
    "name a mirror that this machine reaches: registries: {{{registry}: mirror.example:5000}} "
    "in site.yaml"
)


@dataclass(frozen=True, kw_only=True)
class Registries:
    """Registries as a site sees them: `mirrors` maps one to the server that stands in for it.

    A namespace (`docker.io/nvidia`) can have a mirror of its own. A mirror is a host, with a port
    and a path where it has them. Only a server on this very machine is asked without TLS.
    """

    mirrors: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Credentials, repr=False)
    wait: Callable[[float], object] = time.sleep

    def digest(self, reference: str, arch: str) -> str:
        """`sha256:...` of the manifest of one architecture.

        Raises `RegistryUnreachable`, or `RegistryFails` when there is no such image for it, or what
        the registry gives is none.
        """
        wanted = Reference.parse(reference)
        registry, oci = self._registry(wanted), facts.ARCHITECTURES[arch].oci
        with self._telling(reference, wanted):
            found, body = registry.document(wanted.digest or wanted.tag or "latest")
            if found.media_type in INDEXES or "manifests" in body:
                return _of_architecture(reference, arch, oci, body.get("manifests"))
            config = registry.small_blob(_descriptor_in(body.get("config"), reference))
        there = _architecture_in(config, reference)
        if there != oci:
            raise _no_such(reference, arch, [there])
        return found.digest

    def server(self, wanted: Reference) -> str:
        """The server that is asked for a reference, as people write it."""
        return self._place(wanted).registry

    def probe(self, wanted: Reference) -> SilentRegistry | None:
        """Whether the server of a reference answers at all; a refusal is an answer."""
        reason = self._registry(wanted).transport.unreachable_reason()
        if not reason:
            return None
        return SilentRegistry(registry=wanted.registry, server=self.server(wanted), reason=reason)

    @contextlib.contextmanager
    def _telling(self, shown: str, wanted: Reference) -> Iterator[None]:
        """Failures in the words of who asked for a reference."""
        try:
            yield
        except Unreachable as error:
            lost = SilentRegistry(
                registry=wanted.registry, server=self.server(wanted), reason=error.reason
            )
            hint = MIRROR_HINT.format(registry=wanted.registry)
            raise RegistryUnreachable(f"{shown}: {lost}", lost=str(lost), hint=hint) from error
        except RegistryFailed as error:
            raise RegistryFails(f"{shown}: {error.args[0]}", hint=error.hint) from error

    def _registry(self, wanted: Reference) -> Registry:
        return connect(self._place(wanted), self.credentials, wait=self.wait)

    def _place(self, wanted: Reference) -> Reference:
        """The repository that stands in for a reference's."""
        return Reference.parse(at_mirror(wanted.name, self.mirrors))


def _of_architecture(reference: str, arch: str, oci: str, manifests: object) -> str:
    if not isinstance(manifests, list):
        raise _no_image(reference)
    platforms = [_platform(one, reference) for one in manifests]
    for one, platform in zip(manifests, platforms, strict=True):
        if (platform.get("os"), platform.get("architecture")) == ("linux", oci):
            return _descriptor_in(one, reference).digest
    raise _no_such(reference, arch, [str(one.get("architecture", "unknown")) for one in platforms])


def _platform(entry: object, reference: str) -> dict[str, Any]:
    """The platform of an index's entry, which need not have one."""
    found = (entry.get("platform") or {}) if isinstance(entry, dict) else None
    if not isinstance(found, dict):
        raise _no_image(reference)
    return found


def _architecture_in(config: bytes, reference: str) -> str:
    try:
        found = exact_json.parsed(config)
    except ValueError as error:
        raise _no_image(reference) from error
    return str(found.get("architecture")) if isinstance(found, dict) else "unknown"


def _descriptor_in(entry: object, reference: str) -> Descriptor:
    try:
        return Descriptor.read(entry, reference)
    except RegistryFailed as error:
        raise _no_image(reference) from error


def _no_image(reference: str) -> RegistryFails:
    why = "it is no manifest with digests, sha256: and 64 hexadecimal digits each"
    return RegistryFails(f"{reference}: what the registry gives cannot be pinned: {why}")


def _no_such(reference: str, arch: str, found: list[str]) -> RegistryFails:
    there = ", ".join(sorted({one for one in found if one != "unknown"})) or "nothing"
    return RegistryFails(f"{reference}: there is no image for {arch} (linux); there is {there}")


def registry_of(reference: str) -> str:
    """Return the registry of an image, as `docker.io`."""
    return Reference.parse(reference).registry


def unreachable(references: Iterable[str], mirrors: Mapping[str, str]) -> list[SilentRegistry]:
    """The servers of some references that give no answer, each once."""
    registries = Registries(mirrors=mirrors)
    wanted = map(Reference.parse, sorted(references))
    once = {(one.registry, registries.server(one)): one for one in wanted}
    return [found for key in sorted(once) if (found := registries.probe(once[key]))]
