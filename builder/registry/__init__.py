"""A client for OCI distribution specification 1.1; all content is checked against its digest.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from builder.model.digests import Descriptor, is_digest
from builder.model.errors import BadInput
from builder.registry import blobs
from builder.registry.credentials import Credentials, Login
from builder.registry.failures import Denied, NotFound, RegistryFailed, Unreachable, WrongContent
from builder.registry.manifests import INDEX, MANIFEST, Source
from builder.registry.references import Reference
from builder.registry.repository import INDEXES, Repository
from builder.registry.transport import Transport
from builder.system.process import Processes

__all__ = [
    "INDEX",
    "INDEXES",
    "MANIFEST",
    "Credentials",
    "Denied",
    "Descriptor",
    "Login",
    "NotFound",
    "Reference",
    "Registry",
    "RegistryFailed",
    "Source",
    "Unreachable",
    "WrongContent",
    "connect",
    "is_digest",
    "namespace",
]


class Registry(Repository):
    """A repository, with blobs of any size.

    Repositories returned by `sibling` share its connections and logins.
    """

    read_blob = blobs.read_blob
    write_blob = blobs.write_blob

    def sibling(self, repository: str) -> Registry:
        """Return another repository of the same registry."""
        return Registry(self.transport, repository)


def connect(
    reference: Reference,
    credentials: Credentials | None = None,
    *,
    plain_http: Collection[str] = (),
    wait: Callable[[float], object] | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Registry:
    """Return the repository of a reference. `wait` sleeps for seconds between attempts.

    `tell` receives a line for each wait, with reason and length.
    """
    login, server = credentials or Credentials(), reference.registry
    transport = Transport(server, login, plain_http=plain_http, wait=wait, tell=tell)
    return Registry(transport, reference.repository)


def namespace(
    text: str,
    plain_http: Collection[str],
    *,
    own: bool = False,
    processes: Processes | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Callable[[str], Registry]:
    """Return a function that gives a recipe's repository in REGISTRY/NAMESPACE.

    Raises `BadInput`. Only the command's `own` registry gets the login from the environment
    variables. `processes` starts credential helpers. `tell` receives a line for each wait.
    """
    if "/" not in text.strip("/"):
        shown = "this" if "@" in text else text
        raise BadInput(f"{shown}: write REGISTRY/NAMESPACE, such as quay.io/site")
    if any(mark in text.rpartition("/")[2] for mark in ":@"):
        raise BadInput("a namespace cannot have a tag or digest: write REGISTRY/NAMESPACE")
    sample = Reference.parse(f"{text.rstrip('/')}/x")
    credentials = Credentials(own=sample.registry if own else "", processes=processes)
    first = connect(sample, credentials, plain_http=plain_http, tell=tell)
    folder = sample.repository.removesuffix("/x")
    return lambda recipe: first.sibling(
        Reference.parse(f"{sample.registry}/{folder}/{recipe}").repository
    )
