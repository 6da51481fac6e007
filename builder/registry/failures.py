"""What can go wrong with a registry: each failure says what was asked, of whom, and what next."""

from __future__ import annotations

from builder.model.errors import BuildImagesError


class RegistryFailed(BuildImagesError):
    """A registry did not do what was asked, and will not by being asked again.

    `code` is its own word for it (`DENIED`), empty if it gave none.
    """

    code = ""


class NotThere(RegistryFailed):
    """The registry has no such manifest, blob or repository (404)."""


class Denied(RegistryFailed):
    """The registry does not let us: no credentials, wrong ones (401), or too few rights (403)."""

    exit_code = 4


class Unreachable(RegistryFailed):
    """There is no answer from a registry, or none that TLS lets us trust."""

    exit_code = 4

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WrongContent(RegistryFailed):
    """What the registry gives is not what its digest, its size or its kind says: refused."""

    exit_code = 5


class Passing(Exception):
    """A failure that may pass by itself; `wait_s` is how long the server asks to be left alone."""

    def __init__(self, failure: RegistryFailed, *, wait_s: float = 0.0) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.wait_s = wait_s
