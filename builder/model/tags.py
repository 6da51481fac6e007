"""The names under which engines keep what is made here, each with digits of its key or digest."""

from __future__ import annotations

OWN = "localhost/build-images/"  # of no registry, so no engine looks for one elsewhere


def base_tag(digest: str) -> str:
    """That of the base of a digest (`sha256:...`)."""
    return f"{OWN}base:{digest.removeprefix('sha256:')[:32]}"


def stage_tag(key: str) -> str:
    """That of the stage of a content key."""
    return f"{OWN}stage:{key[:32]}"


def rehearsal_tag(identifier: str, stage: str) -> str:
    """That of a stage of an image, as far as its steps ran on a stand-in for its base."""
    return f"{OWN}rehearsal-{identifier}:{stage}"


def image_tag(identifier: str, content_key: str) -> str:
    """That of the image of a cell."""
    return f"{OWN}{identifier}:{content_key[:12]}"
