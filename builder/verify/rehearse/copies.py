"""The texts of a project that a spec copies into the image, by their paths there."""

from __future__ import annotations

import posixpath

from builder.compile.lint.dockerfile import read_dockerfile
from builder.model import Spec


def copied_texts(spec: Spec) -> dict[str, str]:
    """The texts of a spec's files, at the paths where its COPY instructions put them."""
    texts = {}
    for instruction in read_dockerfile(spec.dockerfile).named("COPY"):
        if "--from" in instruction.flags:
            continue
        *sources, target = instruction.words
        for source in sources:
            is_folder = target.endswith("/") or len(sources) > 1
            path = posixpath.join(target, posixpath.basename(source)) if is_folder else target
            if source in spec.files:
                texts[posixpath.normpath(path)] = spec.files[source]
    return texts
