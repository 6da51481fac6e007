"""The checks' programs in a built image: compiled there, by the image's own compiler."""

from __future__ import annotations

from collections.abc import Mapping

from builder.artifacts.flatten import Node
from builder.model.digests import digest_of

FOLDER = "opt/build-images/"
PROGRAMS = f"{FOLDER}bin/"


def programs_in(nodes: Mapping[str, Node]) -> dict[str, str]:
    """The digests of the checks' programs in a built image, named as if the spec had them."""
    return {
        path.replace(FOLDER, "files/", 1): digest_of(node.read())
        for path, node in nodes.items()
        if path.startswith(PROGRAMS) and node.is_file
    }
