"""References to images, as users write them, and descriptors, as registries write them.

The grammar: https://pkg.go.dev/github.com/distribution/reference
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from builder.model.digests import Descriptor, is_digest
from builder.model.errors import BadInput
from builder.registry.failures import WrongContent
from builder.system.terminal import printable

DOCKER_HUB = "docker.io"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::0*(?:{_PORT}))?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LONGEST_NAME = 255
_VALID = "write HOST/NAMESPACE/NAME:TAG, or HOST/NAMESPACE/NAME@sha256:..."


def is_tag(text: str) -> bool:
    """Return whether a text is a valid tag."""
    return _TAG.fullmatch(text) is not None


def is_repository(text: str) -> bool:
    """Return whether a text is a valid repository path."""
    return _REPOSITORY.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """An image reference, in parts: `docker.io`, `library/ubuntu`, `22.04`.

    `tag` and `digest` may be empty. Invalid parts raise `BadInput`, since the parts become paths of
    folders and of requests.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        fault = ""
        if not HOST.fullmatch(self.registry):
            fault = f'"{self.registry}" is not a host, with or without a port up to 65535'
        elif len(self.name) > _LONGEST_NAME:
            fault = f"a name has at most {_LONGEST_NAME} characters"
        elif not is_repository(self.repository):
            reason = "use lowercase letters and digits, joined by . _ - or /"
            fault = f'"{self.repository}" is not a repository: {reason}'
        elif self.tag and not is_tag(self.tag):
            fault = f'"{self.tag}" is not a tag'
        elif self.digest and not is_digest(self.digest):
            fault = f'"{self.digest}" is not a digest'
        if fault:
            raise _invalid(str(self), fault)

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse an image reference; a text without a registry means Docker Hub.

        Raises `BadInput`, whose message never contains a password.
        """
        if "://" in text or "@" in text.rpartition("/")[0]:
            problem = "a reference has no scheme, no user name and no password"
            raise BadInput(f"not an image reference: {problem}", hint=_VALID)
        name, at, digest = text.partition("@")
        if at and not is_digest(digest):
            shown = text if digest.startswith("sha") else name.partition(":")[0]
            raise _invalid(shown, "a digest is sha256: followed by 64 hexadecimal digits")
        registry, slash, path = name.partition("/")
        if not slash or (registry != "localhost" and not any(mark in registry for mark in ".:[")):
            registry, path = DOCKER_HUB, name
        repository, colon, tag = path.partition(":")
        if colon and not is_tag(tag):
            raise _invalid(text, f'"{tag}" is not a tag')
        if registry in {"index.docker.io", "registry-1.docker.io"}:
            registry = DOCKER_HUB
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry=registry, repository=repository, tag=tag, digest=digest)

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    def at(self, target: str) -> Reference:
        """Return the same repository, at a tag or a digest."""
        if is_digest(target):
            return replace(self, tag="", digest=target)
        return replace(self, tag=target, digest="")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"


def _invalid(text: str, reason: str) -> BadInput:
    return BadInput(printable(f"{text[:300]}: not an image reference: {reason}"), hint=_VALID)


def read_descriptor(value: object, where: str) -> Descriptor:
    """Return the descriptor of untrusted JSON; raises `WrongContent`, which names `where`."""
    try:
        return Descriptor.read(value)
    except ValueError as error:
        raise WrongContent(f"{where}: {error}") from error
