"""Failures of registries: each names the request, the server, and what to do next."""

from __future__ import annotations

from builder.model.errors import BuildImagesError


class RegistryFailed(BuildImagesError):
    """A registry refused a request, and would refuse it again.

    `code` is its own error code (`DENIED`), empty if it gave none.
    """

    code = ""


class NotThere(RegistryFailed):
    """The registry has no such manifest, blob or repository (404)."""


class Denied(RegistryFailed):
    """The registry denies access: no credentials, wrong ones (401), or too few rights (403)."""

    exit_code = 4


class Unreachable(RegistryFailed):
    """A registry does not answer, or TLS cannot verify it."""

    exit_code = 4

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WrongContent(RegistryFailed):
    """The registry's content does not match its digest, size or kind."""

    exit_code = 5


class Transient(Exception):
    """A failure that may pass by itself; `wait_s` is the pause that the server asks for."""

    def __init__(self, failure: RegistryFailed, *, wait_s: float = 0.0) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.wait_s = wait_s
