"""Which digest a reference to a registry has today, for one architecture.

The protocol: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3.exceptions

from builder import facts
from builder.errors import MissingPrerequisite
from builder.model.inputs import at_mirror
from builder.sources.download import TRANSIENT, innermost

TIMEOUT_S = 15.0
_WAITS_S = (1.0, 3.0)
_DOCKER_IO = "registry-1.docker.io"
_INDICES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LARGEST = 8 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")


class RegistryFails(MissingPrerequisite):
    """A registry cannot be reached, or has no such image."""


class RegistryUnreachable(RegistryFails):
    """There is no answer from a registry: `lost` says from which, and why."""

    def __init__(self, message: str, *, lost: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lost = lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """An image reference, in parts: `docker.io`, `library/ubuntu`, `22.04`."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def of(cls, text: str) -> Reference:
        """A reference as people write it; Docker Hub where no registry is named."""
        name, _, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        named = slash and ("." in first or ":" in first or first == "localhost")
        registry, path = (first, rest) if named else ("docker.io", name)
        repository, colon, tag = path.rpartition(":")
        repository, tag = (repository, tag) if colon else (path, "latest")
        if registry == "docker.io" and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry=registry, repository=repository, tag=digest or tag)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreachable:
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
    `credentials` maps a server to `user:password` in base64, as Docker's config.json holds them;
    they are never shown.
    """

    mirrors: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S
    wait: Callable[[float], object] = time.sleep

    def digest(self, reference: str, arch: str) -> str:
        """`sha256:...` of the manifest of one architecture.

        Raises `RegistryUnreachable`, or `RegistryFails` when there is no such image for it, or what
        the registry gives is none.
        """
        wanted = Reference.of(reference)
        body, kind = self._manifest(reference, wanted, wanted.tag)
        oci = facts.ARCHITECTURES[arch].oci
        if kind in _INDICES or "manifests" in body:
            return _of_architecture(reference, arch, oci, body.get("manifests"))
        blob = _digest_in(body.get("config"), reference)
        config = self._json(wanted, f"blobs/{blob}", (), reference)[0]
        if config.get("architecture") != oci:
            raise _no_such(reference, arch, [str(config.get("architecture"))])
        return str(body["__digest__"])

    def server(self, wanted: Reference) -> str:
        """The server that is asked for a reference, as people write it."""
        return self._place(wanted)[0]

    def probe(self, wanted: Reference) -> Unreachable | None:
        """Whether the server of a reference answers at all; a refusal is an answer."""
        registry, server = wanted.registry, self.server(wanted)
        base = _base(server)
        try:
            requests.get(f"{base}/v2/", timeout=self.timeout_s, stream=True).close()
        except requests.exceptions.RequestException as error:
            return Unreachable(registry=registry, server=server, reason=innermost(error))
        return None

    def _manifest(self, shown: str, wanted: Reference, tag: str) -> tuple[dict[str, Any], str]:
        return self._json(wanted, f"manifests/{tag}", (*_INDICES, *_MANIFESTS), shown)

    def _json(
        self, wanted: Reference, what: str, accept: tuple[str, ...], shown: str
    ) -> tuple[dict[str, Any], str]:
        """A JSON document of a repository; its own digest is added as `__digest__`."""
        server, path = self._place(wanted)
        url = f"{_base(server)}/v2/{path}/{what}"
        try:
            answer = self._asked(url, ", ".join(accept), server)
            content = answer.raw.read(_LARGEST, decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError) as error:  # requests' own are OSErrors
            lost = Unreachable(registry=wanted.registry, server=server, reason=innermost(error))
            hint = MIRROR_HINT.format(registry=wanted.registry)
            raise RegistryUnreachable(f"{shown}: {lost}", lost=str(lost), hint=hint) from error
        if answer.status_code != requests.codes.ok:
            raise RegistryFails(f"{shown}: {server} answers {answer.status_code} {answer.reason}")
        return _document(content, what, shown), answer.headers.get("Content-Type", "").split(";")[0]

    def _asked(self, url: str, accept: str, server: str) -> requests.Response:
        """The answer; asked for again after what may pass, such as a limit of requests."""
        for wait_s in (*_WAITS_S, 0.0):
            answer = self._asked_once(url, accept, server)
            if answer.status_code not in TRANSIENT or not wait_s:
                break
            answer.close()
            self.wait(wait_s)
        return answer

    def _asked_once(self, url: str, accept: str, server: str) -> requests.Response:
        headers = {"Accept": accept} if accept else {}
        answer = requests.get(url, headers=headers, timeout=self.timeout_s, stream=True)
        if answer.status_code != requests.codes.unauthorized:
            return answer
        challenge = answer.headers.get("WWW-Authenticate", "")
        if authorization := self._authorization(challenge, server, url):
            headers["Authorization"] = authorization
            return requests.get(url, headers=headers, timeout=self.timeout_s, stream=True)
        return answer

    def _authorization(self, challenge: str, server: str, url: str) -> str:
        """https://distribution.github.io/distribution/spec/auth/token/"""
        known = self.credentials.get(server, "")
        basic = {"Authorization": f"Basic {known}"} if known else {}
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() != "bearer":
            return basic.get("Authorization", "")
        given = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = given.pop("realm", "")
        if urlsplit(realm).scheme != "https" and urlsplit(url).scheme == "https":
            return ""  # a password or a token is never sent in the clear
        answer = requests.get(realm, params=given, headers=basic, timeout=self.timeout_s)
        if answer.status_code != requests.codes.ok:
            return ""
        found = answer.json()
        if not isinstance(found, dict):
            return ""
        token = found.get("token") or found.get("access_token") or ""
        return f"Bearer {token}" if token else ""

    def _place(self, wanted: Reference) -> tuple[str, str]:
        """The server, as people write it, and the repository's path there."""
        named = at_mirror(f"{wanted.registry}/{wanted.repository}", self.mirrors)
        server, _, path = named.partition("/")
        return server, path


def _base(server: str) -> str:
    """The URL of a server."""
    host = _DOCKER_IO if server == "docker.io" else server
    return f"{'http' if _LOCAL.fullmatch(host) else 'https'}://{host}"


def _document(content: bytes, what: str, shown: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    asked = what.partition("/")[2]
    if asked.startswith("sha256:") and asked != digest:
        raise RegistryFails(f"{shown}: the registry gives {digest} for {asked}")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistryFails(f"{shown}: the registry's answer is not JSON") from error
    if not isinstance(found, dict):
        raise _no_image(shown)
    return {**found, "__digest__": digest}


def _of_architecture(reference: str, arch: str, oci: str, manifests: object) -> str:
    if not isinstance(manifests, list):
        raise _no_image(reference)
    platforms = [_platform(one, reference) for one in manifests]
    for one, platform in zip(manifests, platforms, strict=True):
        if (platform.get("os"), platform.get("architecture")) == ("linux", oci):
            return _digest_in(one, reference)
    raise _no_such(reference, arch, [str(one.get("architecture", "unknown")) for one in platforms])


def _platform(entry: object, reference: str) -> dict[str, Any]:
    """The platform of an index's entry, which need not have one."""
    found = (entry.get("platform") or {}) if isinstance(entry, dict) else None
    if not isinstance(found, dict):
        raise _no_image(reference)
    return found


def _digest_in(entry: object, reference: str) -> str:
    found = entry.get("digest") if isinstance(entry, dict) else None
    if not isinstance(found, str) or not _DIGEST.fullmatch(found):
        raise _no_image(reference)
    return found


def _no_image(reference: str) -> RegistryFails:
    why = "it is no manifest with digests, sha256: and 64 hexadecimal digits each"
    return RegistryFails(f"{reference}: what the registry gives cannot be pinned: {why}")


def _no_such(reference: str, arch: str, found: list[str]) -> RegistryFails:
    there = ", ".join(sorted({one for one in found if one != "unknown"})) or "nothing"
    return RegistryFails(f"{reference}: there is no image for {arch} (linux); there is {there}")


def unreachable(
    references: Iterable[str], mirrors: Mapping[str, str], *, timeout_s: float = TIMEOUT_S
) -> list[Unreachable]:
    """The servers of some references that give no answer, each once."""
    registries = Registries(mirrors=mirrors, timeout_s=timeout_s)
    wanted = map(Reference.of, sorted(references))
    once = {(one.registry, registries.server(one)): one for one in wanted}
    return [found for key in sorted(once) if (found := registries.probe(once[key]))]


def credentials_of_environment() -> dict[str, str]:
    """Credentials by server, from $REGISTRY_AUTH_FILE or Docker's config.json.

    Credential helpers are not asked: they are programs of the user's desktop.
    """
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    file = os.environ.get("REGISTRY_AUTH_FILE") or Path(folder) / "config.json"
    try:
        auths = json.loads(Path(file).read_text()).get("auths", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {
        _server_of(name): entry["auth"]
        for name, entry in auths.items()
        if isinstance(entry, dict) and _is_base64(entry.get("auth"))
    }


def _server_of(name: str) -> str:
    """`https://index.docker.io/v1/` is how Docker writes docker.io."""
    server = (name.partition("://")[2] or name).partition("/")[0]
    return "docker.io" if server in {"index.docker.io", _DOCKER_IO} else server


def _is_base64(text: object) -> bool:
    try:
        return isinstance(text, str) and b":" in base64.b64decode(text, validate=True)
    except ValueError:
        return False
