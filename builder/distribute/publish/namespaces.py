"""Repositories below REGISTRY/NAMESPACE."""

from __future__ import annotations

from collections.abc import Callable, Collection

from builder.model.errors import BadInput
from builder.registry import Credentials, Reference, Registry, connect
from builder.system.process import Processes


def namespace(
    text: str,
    plain_http: Collection[str],
    *,
    own: bool = False,
    processes: Processes | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Callable[[str], Registry]:
    """From a recipe to its repository in REGISTRY/NAMESPACE; raises `BadInput`.

    Only the command's `own` registry gets the login of the environment's variables. `processes`
    start credential helpers. `tell` is told of what is waited for.
    """
    if "/" not in text.strip("/"):
        shown = "this" if "@" in text else text
        raise BadInput(f"{shown}: write REGISTRY/NAMESPACE, such as quay.io/site")
    if any(mark in text.rpartition("/")[2] for mark in ":@"):
        raise BadInput("a namespace has no tag and no digest: REGISTRY/NAMESPACE")
    sample = Reference.parse(f"{text.rstrip('/')}/x")
    credentials = Credentials(own=sample.registry if own else "", processes=processes)
    first = connect(sample, credentials, plain_http=plain_http, tell=tell)
    folder = sample.repository.removesuffix("/x")
    return lambda recipe: first.sibling(
        Reference.parse(f"{sample.registry}/{folder}/{recipe}").repository
    )
