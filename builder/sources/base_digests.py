"""Current digests of base images in registries, for one architecture."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BuildImagesError, MissingPrerequisite
from builder.model.site import at_mirror
from builder.registry import (
    INDEXES,
    Credentials,
    Reference,
    Registry,
    RegistryFailed,
    Unreachable,
    connect,
)
from builder.registry.manifests import descriptors
from builder.registry.references import read_descriptor
from builder.system.threads import in_threads


class RegistryFails(MissingPrerequisite):
    """A registry cannot be reached, or lacks the image."""


class RegistryUnreachable(RegistryFails):
    """A registry does not answer; `lost` is a text with its name and the reason."""

    def __init__(self, message: str, *, lost: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lost = lost


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentRegistry:
    """A registry that does not answer; `server` is the registry itself or its mirror."""

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
    """The registries of a site; `mirrors` maps a registry to the server that replaces it.

    A namespace (`docker.io/nvidia`) can have its own mirror. A mirror is a host, optionally with a
    port and a path. Only servers on this machine are used without TLS.
    """

    mirrors: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Credentials, repr=False)
    wait: Callable[[float], object] = time.sleep

    def digest(self, reference: str, arch: str) -> str:
        """Return the digest of one architecture's manifest, `sha256:...`.

        Raises `RegistryUnreachable`, or `RegistryFails` if the image does not exist for this
        architecture, or its manifest is invalid.
        """
        image, oci = Reference.parse(reference), ARCHITECTURES[arch].oci
        registry = self._connected(image)
        with self._reported_failures(reference, image):
            manifest, body = registry.document(image.digest or image.tag or "latest")
            if manifest.media_type in INDEXES or "manifests" in body:
                entries = descriptors(body, "manifests", registry.name)
                for entry in entries:
                    system = entry.platform.get("os"), entry.platform.get("architecture")
                    if system == ("linux", oci):
                        return entry.digest
                available = {entry.platform.get("architecture", "unknown") for entry in entries}
            else:
                config = read_descriptor(body.get("config"), registry.name)
                about = registry.object_of(registry.small_blob(config), config.digest)
                available = {str(about.get("architecture", "unknown"))}
                if oci in available:
                    return manifest.digest
        others = ", ".join(sorted(available - {"unknown"})) or "none"
        raise RegistryFails(f"{reference}: no image for {arch} (linux); available: {others}")

    def server(self, image: Reference) -> str:
        """Return the server that is used for a reference, as users write it."""
        return self._place(image).registry

    def probe(self, image: Reference) -> SilentRegistry | None:
        """Return the registry of a reference if it does not answer, not even with a refusal."""
        reason = self._connected(image).transport.unreachable_reason()
        return self._silent(image, reason) if reason else None

    def _connected(self, image: Reference) -> Registry:
        return connect(self._place(image), self.credentials, wait=self.wait)

    def _silent(self, image: Reference, reason: str) -> SilentRegistry:
        return SilentRegistry(registry=image.registry, server=self.server(image), reason=reason)

    @contextlib.contextmanager
    def _reported_failures(self, shown: str, image: Reference) -> Iterator[None]:
        """Add the reference to the failures of its registry."""
        try:
            yield
        except Unreachable as error:
            lost = self._silent(image, error.reason)
            hint = MIRROR_HINT.format(registry=image.registry)
            raise RegistryUnreachable(f"{shown}: {lost}", lost=str(lost), hint=hint) from error
        except RegistryFailed as error:
            raise RegistryFails(f"{shown}: {error.args[0]}", hint=error.hint) from error

    def _place(self, image: Reference) -> Reference:
        """Return the repository to use for a reference: on a mirror if there is one."""
        return Reference.parse(at_mirror(image.name, self.mirrors))


def registry_of(reference: str) -> str:
    """Return the registry of an image, such as `docker.io`."""
    return Reference.parse(reference).registry


def unreachable(references: Iterable[str], registries: Registries) -> list[SilentRegistry]:
    """Return the servers of references that do not answer, without duplicates."""
    images = map(Reference.parse, sorted(references))
    by_server = {(image.registry, registries.server(image)): image for image in images}
    silent = [registries.probe(by_server[key]) for key in sorted(by_server)]
    return [registry for registry in silent if registry]


Key = tuple[str, str]  # reference and architecture


def pin_references(
    requested: Iterable[Key], known: Mapping[Key, str], registries: Registries, *, update: bool
) -> tuple[dict[Key, str], list[BuildImagesError]]:
    """Return digests, and an error for each registry or image that failed.

    Locked digests are changed only with `update`. An unreachable server is tried only once; all its
    references fail then.
    """

    def server(name: str) -> tuple[str, str]:
        reference = Reference.parse(name)
        return reference.registry, registries.server(reference)

    keys = sorted(set(requested))
    digests = {key: known[key] for key in keys if key in known}
    pending = [key for key in keys if update or key not in known]
    unreachable: dict[tuple[str, str], RegistryUnreachable] = {}
    failures: list[BuildImagesError] = []

    def pin(key: Key) -> None:
        if server(key[0]) not in unreachable:
            try:
                digests[key] = registries.digest(*key)
            except RegistryUnreachable as error:
                unreachable.setdefault(server(key[0]), error)
            except RegistryFails as error:
                failures.append(error)

    in_threads(pin, pending)
    for at, error in sorted(unreachable.items(), key=itemgetter(0), reverse=True):
        names = sorted({name for name, _ in pending if server(name) == at})
        text = f"{error.lost}\n  not requested: {', '.join(names)}"
        failures.insert(0, RegistryUnreachable(text, lost=error.lost, hint=error.hint))
    return digests, failures
