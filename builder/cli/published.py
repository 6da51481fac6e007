"""What was published, loaded or would be, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from builder.distribute.publish import Done
from builder.distribute.publish.blobs import MISSING, MOUNTED, SENT, THERE, Traffic
from builder.model.errors import counted

DRY = "dry run, nothing was sent: "
_WORDS = {THERE: "there already", MOUNTED: "mounted", SENT: "sent", MISSING: "to send"}


def show_published(
    done: Sequence[Done], traffic: Traffic, *, as_json: bool, before: str = ""
) -> None:
    """Print releases and traffic; `before` begins the line that sums up."""
    if as_json:
        published = [
            {
                "repository": one.repository,
                "tag": one.tag,
                "floating": list(one.floating),
                "digest": one.digest,
                "images": {arch: dict(digests) for arch, digests in one.images.items()},
            }
            for one in done
        ]
        print(json.dumps({"releases": published, **_traffic_json(traffic)}, indent=1))
        return
    for one in done:
        print(f"{one.repository}:{one.tag}{_also(one.floating)}")
        print(f"  {one.digest}  {', '.join(one.images)}")
        for arch, digests in one.images.items():
            print(f"    {arch}  {digests['oci']}  {', '.join(digests)}")
    print(before + _traffic(traffic))


def _also(floating: Sequence[str]) -> str:
    return f", {', '.join(floating)}" if floating else ""


def _traffic(traffic: Traffic) -> str:
    parts = [
        f"{counted(traffic.blobs[how], 'blob')} {word}, {traffic.sizes[how] / 1e6:.1f} MB"
        for how, word in _WORDS.items()
        if traffic.blobs.get(how)
    ]
    return "; ".join(parts)


def _traffic_json(traffic: Traffic) -> dict[str, Any]:
    return {
        "blobs": {
            how: {"count": traffic.blobs.get(how, 0), "bytes": traffic.sizes.get(how, 0)}
            for how in _WORDS
        }
    }
