"""The stage that proves an image: artifacts in, outcomes and evidence out."""

from __future__ import annotations

from builder.model.manifest import InImageCheck
from builder.system.host_facts import HostFacts, host_facts, lost_gpus
from builder.verify.checks import Target
from builder.verify.evidence import Setting, images_own, write_evidence
from builder.verify.runners import DEFAULTS, RUNNERS, Kind
from builder.verify.trees import FormatTree, digest_of_file, equality, reading_trees, trees_of

__all__ = [
    "DEFAULTS",
    "RUNNERS",
    "FormatTree",
    "HostFacts",
    "InImageCheck",
    "Kind",
    "Setting",
    "Target",
    "digest_of_file",
    "equality",
    "host_facts",
    "images_own",
    "lost_gpus",
    "reading_trees",
    "trees_of",
    "write_evidence",
]
