"""Current digests of references to registries, for one architecture."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
    """A registry does not answer: `lost` names it, and the reason."""

    def __init__(self, message: str, *, lost: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lost = lost


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentRegistry:
    """A registry that does not answer: `server` is itself or its mirror."""

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
    and a path where it has them. Only a server on this machine is used without TLS.
    """

    mirrors: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Credentials, repr=False)
    wait: Callable[[float], object] = time.sleep

    def digest(self, reference: str, arch: str) -> str:
        """Return the digest of the manifest of one architecture, `sha256:...`.

        Raises `RegistryUnreachable`, or `RegistryFails` when there is no such image for it, or the
        registry's manifest is invalid.
        """
        image = Reference.parse(reference)
        registry, oci = self._registry(image), facts.ARCHITECTURES[arch].oci
        with self._reported_failures(reference, image):
            descriptor, body = registry.document(image.digest or image.tag or "latest")
            if descriptor.media_type in INDEXES or "manifests" in body:
                return _of_architecture(reference, arch, oci, body.get("manifests"))
            config = registry.small_blob(_descriptor_in(body.get("config"), reference))
        architecture = _architecture_in(config, reference)
        if architecture != oci:
            raise _no_such(reference, arch, [architecture])
        return descriptor.digest

    def server(self, image: Reference) -> str:
        """Return the server that is used for a reference, as people write it."""
        return self._place(image).registry

    def probe(self, image: Reference) -> SilentRegistry | None:
        """Return the registry of a reference if it does not answer; a refusal is an answer."""
        reason = self._registry(image).transport.unreachable_reason()
        if not reason:
            return None
        return SilentRegistry(registry=image.registry, server=self.server(image), reason=reason)

    @contextlib.contextmanager
    def _reported_failures(self, shown: str, image: Reference) -> Iterator[None]:
        """Name the reference in the failures of its registry."""
        try:
            yield
        except Unreachable as error:
            lost = SilentRegistry(
                registry=image.registry, server=self.server(image), reason=error.reason
            )
            hint = MIRROR_HINT.format(registry=image.registry)
            raise RegistryUnreachable(f"{shown}: {lost}", lost=str(lost), hint=hint) from error
        except RegistryFailed as error:
            raise RegistryFails(f"{shown}: {error.args[0]}", hint=error.hint) from error

    def _registry(self, image: Reference) -> Registry:
        return connect(self._place(image), self.credentials, wait=self.wait)

    def _place(self, image: Reference) -> Reference:
        """Return the repository that stands in for a reference's."""
        return Reference.parse(at_mirror(image.name, self.mirrors))


def _of_architecture(reference: str, arch: str, oci: str, manifests: object) -> str:
    if not isinstance(manifests, list):
        raise _no_image(reference)
    platforms = [_platform(entry, reference) for entry in manifests]
    for entry, platform in zip(manifests, platforms, strict=True):
        if (platform.get("os"), platform.get("architecture")) == ("linux", oci):
            return _descriptor_in(entry, reference).digest
    names = [str(platform.get("architecture", "unknown")) for platform in platforms]
    raise _no_such(reference, arch, names)


def _platform(entry: object, reference: str) -> dict[str, object]:
    """Return the platform of an index's entry, which need not have one."""
    platform = (entry.get("platform") or {}) if isinstance(entry, dict) else None
    if not isinstance(platform, dict):
        raise _no_image(reference)
    return platform


def _architecture_in(config: bytes, reference: str) -> str:
    try:
        document = exact_json.parsed(config)
    except ValueError as error:
        raise _no_image(reference) from error
    return str(document.get("architecture")) if isinstance(document, dict) else "unknown"


def _descriptor_in(entry: object, reference: str) -> Descriptor:
    try:
        return Descriptor.read(entry, reference)
    except RegistryFailed as error:
        raise _no_image(reference) from error


def _no_image(reference: str) -> RegistryFails:
    why = "it is no manifest with digests, sha256: and 64 hexadecimal digits each"
    return RegistryFails(f"{reference}: what the registry gives cannot be pinned: {why}")


def _no_such(reference: str, arch: str, available: list[str]) -> RegistryFails:
    others = ", ".join(sorted({name for name in available if name != "unknown"})) or "nothing"
    return RegistryFails(f"{reference}: there is no image for {arch} (linux); there is {others}")


def registry_of(reference: str) -> str:
    """Return the registry of an image, as `docker.io`."""
    return Reference.parse(reference).registry


def unreachable(references: Iterable[str], mirrors: Mapping[str, str]) -> list[SilentRegistry]:
    """Return the servers of references that do not answer, each once."""
    registries = Registries(mirrors=mirrors)
    images = map(Reference.parse, sorted(references))
    by_server = {(image.registry, registries.server(image)): image for image in images}
    return list(filter(None, (registries.probe(by_server[key]) for key in sorted(by_server))))
