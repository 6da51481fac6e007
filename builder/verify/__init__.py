"""The stage that proves an image: artifacts in, outcomes and evidence out."""

from __future__ import annotations

from builder.verify.checks import InImageCheck, Target, verify_format
from builder.verify.evidence import write_evidence
from builder.verify.host import HostFacts, host_facts
from builder.verify.trees import FormatTree, equality, tree_of_artifact

__all__ = [
    "FormatTree",
    "HostFacts",
    "InImageCheck",
    "Target",
    "equality",
    "host_facts",
    "tree_of_artifact",
    "verify_format",
    "write_evidence",
]
