"""Names of an image where it is published, and in Kubernetes."""

from __future__ import annotations

import hashlib
import re

# A Job's name is a label of its pods, and gets six characters more there: RFC 1123, 63 characters.
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LONGEST = 57


def tag_of_identifier(identifier: str, *, recipe: str, arch: str) -> str:
    """A cell's tag, of its image identifier and what that begins and ends with."""
    return identifier.removeprefix(f"{recipe}-").removesuffix(f"-{arch}")


def kubernetes_name(text: str) -> str:
    """A text as an object's name: small letters, digits and hyphens; a long one is cut.

    What is cut ends with eight digits of the whole text's SHA-256, so that names stay different.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
