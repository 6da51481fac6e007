"""One stage of a Dockerfile as a Dockerfile of its own, on stages that are images already."""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder.system.home import NATIVE_LABEL

_FROM = re.compile(r"^FROM (?P<source>\S+) AS (?P<name>\S+)$", re.MULTILINE)


def stage_alone(dockerfile: str, target: str, built: Mapping[str, str], *, native: str = "") -> str:
    """The stage named `target`; `built` maps the names of earlier stages to images.

    `native` is the digest of the native tools that its steps are lent. Its label keeps the engine
    from taking steps up again that ran with others; packing leaves it out.

    Raises `LookupError` when the Dockerfile has no such stage.
    """
    heads = list(_FROM.finditer(dockerfile))
    ends = [*(head.start() for head in heads[1:]), len(dockerfile)]
    for head, end in zip(heads, ends, strict=True):
        if head["name"] == target:
            source = built.get(head["source"], head["source"])
            body = dockerfile[head.end() : end].rstrip()
            stages = [f"FROM {built[name]} AS {name}" for name in _copied_from(body) & {*built}]
            label = f"\nLABEL {NATIVE_LABEL}={native}" if native else ""
            alone = f"FROM {source} AS {target}{label}{body}"
            return "\n\n".join([*sorted(stages), alone]) + "\n"
    raise LookupError(f"the Dockerfile has no stage {target}")


def on_images(dockerfile: str, names: Mapping[str, str]) -> str:
    """A Dockerfile whose stages start from images under other names."""
    return _FROM.sub(
        lambda head: f"FROM {names.get(head['source'], head['source'])} AS {head['name']}",
        dockerfile,
    )


def _copied_from(body: str) -> set[str]:
    return set(re.findall(r"(?:--|,)from=([^\s,]+)", body))
