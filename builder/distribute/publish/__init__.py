"""From proven images to a registry: images by digest, then proof, then indexes, tags last."""

from __future__ import annotations

from builder.distribute.publish.attaching import Attached
from builder.distribute.publish.failing import (
    Attest,
    Failing,
    attach_failing,
    failing,
    published_image,
)
from builder.distribute.publish.mirroring import Mirror, found_release
from builder.distribute.publish.pushing import Done, Prove, Publisher
from builder.distribute.publish.releases import Blob, NotReady, Ready, Release, ready

__all__ = [
    "Attached",
    "Attest",
    "Blob",
    "Done",
    "Failing",
    "Mirror",
    "NotReady",
    "Prove",
    "Publisher",
    "Ready",
    "Release",
    "attach_failing",
    "failing",
    "found_release",
    "published_image",
    "ready",
]
