"""The SIF or tarball that was published for an image."""

from __future__ import annotations

from collections.abc import Iterable

from builder.errors import Refused
from builder.registry import Descriptor, NotThere, Registry, WrongContent
from builder.registry.kinds import ARTIFACT_TYPES

_MOST = 20


def published(
    registry: Registry, digest: str, artifact_format: str, subjects: Iterable[str]
) -> Descriptor | None:
    """The file of a format that refers to an image; None if there is none that is whole.

    Of several, the one that is among `subjects`, those of the evidence: whoever may write to the
    repository can make anything refer to an image.
    """
    kind, proven = ARTIFACT_TYPES[artifact_format], set(subjects)
    found: list[Descriptor] = []
    for one in registry.referrers(digest, kind)[:_MOST]:
        try:
            _, document = registry.document(one)
            if (document.get("subject") or {}).get("digest") != digest:
                continue
            found += [Descriptor.read(layer, registry.name) for layer in document["layers"]]
        except (WrongContent, NotThere, LookupError, TypeError, AttributeError):
            continue
    fitting = [one for one in found if one.media_type == kind]
    if len(fitting) > _MOST:
        raise Refused(f"{registry.name}@{digest}: {len(fitting)} {artifact_format} files for it")
    return next((one for one in fitting if one.digest in proven), next(iter(fitting), None))
