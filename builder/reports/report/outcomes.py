"""What is known of an image, from all that its manifest holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def all_outcomes(manifest: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Those of the image's own checks, by format, and of the ranks that launchers started."""
    checks, launched = manifest.get("checks", {}), manifest.get("launched", {})
    return {
        name: [*checks.get(name, []), *launched.get(name, [])] for name in {**checks, **launched}
    }
