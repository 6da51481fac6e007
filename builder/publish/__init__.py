"""From proven images to a registry: images by digest, then proof, then indexes, tags last."""

from __future__ import annotations

from builder.publish.attaching import Attached
from builder.publish.mirroring import Mirror, found_release
from builder.publish.pushing import Done, Prove, Publisher
from builder.publish.releases import Blob, NotReady, Ready, Release, ready

__all__ = [
    "Attached",
    "Blob",
    "Done",
    "Mirror",
    "NotReady",
    "Prove",
    "Publisher",
    "Ready",
    "Release",
    "found_release",
    "ready",
]
