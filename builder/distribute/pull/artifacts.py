"""The SIFs or tarballs that were published for an image."""

from __future__ import annotations

from collections.abc import Iterator

from builder.model.errors import Refused
from builder.model.exact_json import member, part
from builder.registry import Descriptor, NotThere, Source, WrongContent
from builder.registry.kinds import ARTIFACT_TYPES

_MOST = 1000


def published(registry: Source, digest: str, artifact_format: str) -> tuple[Descriptor, ...]:
    """The files of a format that refer to an image; an image that was packed again has several.

    Whoever may write to the repository can make anything refer to an image: what is damaged, or has
    not just the one file, is left out and stops nothing.
    """
    kind = ARTIFACT_TYPES[artifact_format]
    refer = registry.referrers(digest, kind)
    if len(refer) > _MOST:
        raise Refused(
            f"{registry.name}@{digest}: {len(refer)} {artifact_format} files for it, at most "
            f"{_MOST} are looked at"
        )
    found = {one.digest: one for one in _files(registry, digest, refer)}
    return tuple(one for one in found.values() if one.media_type == kind)


def _files(registry: Source, digest: str, refer: tuple[Descriptor, ...]) -> Iterator[Descriptor]:
    for one in refer:
        try:
            _, document = registry.document(one)
            if part(document, "subject", "digest") == digest:
                [layer] = member(document, "layers")
                yield Descriptor.read(layer, registry.name)
        except (WrongContent, NotThere, LookupError, TypeError, ValueError, AttributeError):
            continue
