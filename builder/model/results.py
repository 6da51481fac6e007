"""What was built and what the checks found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.model.names import SKIPPED


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A built thing on disk. `format` is oci, sif or charliecloud; `size` counts bytes.

    `digest` is `sha256:…`: of the manifest for an OCI layout, of the file for the others. Empty is
    that of a SIF which has yet to be read for its proof.
    `tree_digest` is the hash over the root file system in it.
    """

    format: str
    path: Path
    digest: str
    size: int
    tree_digest: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one check found in one format. `outcome` is passed, failed or skipped.

    `reason` is one line: the finding, why it failed, or why it was skipped. `data` holds
    measured values where the check printed any; `output` the end of what it printed.
    """

    check: str
    outcome: str
    reason: str
    duration_s: float = 0.0
    data: Mapping[str, object] = field(default_factory=dict)
    output: str = ""

    @property
    def applies(self) -> bool:
        """True if the image promises what the check is for; one that was skipped may deny it."""
        return self.outcome != SKIPPED or self.data.get("applies") is not False
