"""Current digests of references to registries, for one architecture."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter

from builder.model import exact_json
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BuildImagesError, Fault, MissingPrerequisite
from builder.model.inputs import LOCK, Lock, at_mirror
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
from builder.sources.locking import SourceRequest
from builder.sources.store import JOBS


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
        registry, oci = self._registry(image), ARCHITECTURES[arch].oci
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


Key = tuple[str, str]  # reference and architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """Digests by reference and architecture, and an error for each registry or image without."""

    references: Mapping[Key, str]
    failures: tuple[BuildImagesError, ...]


def pin_references(
    requested: Iterable[Key], known: Mapping[Key, str], registries: Registries, *, update: bool
) -> Pinned:
    """Return the digest of each; locked ones stay as they are without `update`.

    A server that cannot be reached is tried once: all its references fail then.
    """

    def server(name: str) -> tuple[str, str]:
        reference = Reference.parse(name)
        return reference.registry, registries.server(reference)

    keys = sorted(set(requested))
    digests = {key: known[key] for key in keys if key in known}
    pending = [key for key in keys if update or key not in known]
    unreachable: dict[tuple[str, str], RegistryUnreachable] = {}
    failures: list[BuildImagesError] = []

    def ask(key: Key) -> str:
        if server(key[0]) in unreachable:
            return ""
        try:
            return registries.digest(*key)
        except RegistryUnreachable as error:
            unreachable.setdefault(server(key[0]), error)
        except RegistryFails as error:
            failures.append(error)
        return ""

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        texts = list(pool.map(ask, pending))
        digests.update({key: text for key, text in zip(pending, texts, strict=True) if text})
    lost = [
        _lost(error, {name for name, _ in pending if server(name) == at})
        for at, error in sorted(unreachable.items(), key=itemgetter(0))
    ]
    return Pinned(references=digests, failures=(*lost, *failures))


def _lost(error: RegistryUnreachable, names: Collection[str]) -> RegistryUnreachable:
    """Return the error of one reference as that of all on the same server."""
    text = f"{error.lost}\n  not asked for: {', '.join(sorted(names))}"
    return RegistryUnreachable(text, lost=error.lost, hint=error.hint)


def mismatches(
    lock: Lock,
    requests: Collection[SourceRequest],
    references: Collection[Key],
    files: Mapping[str, str],
    *,
    everything: bool,
) -> list[Fault]:
    """Return the missing sources of partly locked recipes; with `everything`, needless ones, too.

    `files` are the files of the recipes, by name.
    """
    faults = [
        Fault(
            file=files[name],
            line=1,
            key="",
            problem=f"its source {request.urls[0]} is not in {LOCK}, and others of it are",
            valid=f"run: build-images lock --recipe {name}",
        )
        for request in requests
        for name in request.recipes
        if lock.of_recipes([name]) and not set(request.urls) & set(lock.sources)
    ]
    return [*faults, *_needless(lock, requests, references)] if everything else faults


def _needless(
    lock: Lock, requests: Collection[SourceRequest], references: Collection[Key]
) -> Iterable[Fault]:
    requested = {(url, name) for item in requests for url in item.urls for name in item.recipes}
    for source in lock.sources.values():
        for name in source.recipes:
            if (source.url, name) not in requested:
                yield _fault(source.line, f"{source.url}: {name} does not ask for it")
    for reference, arch in lock.references:
        if (reference, arch) not in references:
            yield _fault(1, f"{reference} for {arch}: no image is made from it")


def _fault(line: int, problem: str) -> Fault:
    valid = "run: build-images lock, which drops it"
    return Fault(file=LOCK, line=line, key="", problem=problem, valid=valid)
