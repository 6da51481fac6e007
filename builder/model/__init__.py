"""The values that pass between the stages, in the words of the glossary (docs/architecture.md).

All are frozen. Mappings are never changed after construction. Architectures are spelled as
`uname -m` does: x86_64, ppc64le, aarch64.
"""

from __future__ import annotations

from builder.model.inputs import (
    BaseImage,
    BlockUse,
    Bootstrap,
    Check,
    CudaSupport,
    EndOfLife,
    Exclude,
    Matrix,
    PackagedCuda,
    PackagedExtra,
    PackagedMpi,
    Project,
    Recipe,
    Site,
)
from builder.model.locked import Lock, LockedSource
from builder.model.planned import (
    Cell,
    LeftOut,
    Plan,
    PlannedCuda,
    PlannedImage,
    PlannedMpi,
    Reason,
    Selection,
    Spec,
    StageCheck,
    StageRecipe,
)
from builder.model.results import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.words import (
    AXES,
    CUDA_ROUTES,
    DEVELOPMENT,
    FILE_ARGUMENTS,
    FLAVOURS,
    FORMATS,
    GENERIC,
    MPI_ROUTES,
    NONE,
    OPTIONAL,
    RUNTIME,
    SELECTABLE,
    merged_environment,
)
from builder.places import Where

__all__ = [
    "AXES",
    "CUDA_ROUTES",
    "DEVELOPMENT",
    "FAILED",
    "FILE_ARGUMENTS",
    "FLAVOURS",
    "FORMATS",
    "GENERIC",
    "MPI_ROUTES",
    "NONE",
    "OPTIONAL",
    "PASSED",
    "RUNTIME",
    "SELECTABLE",
    "SKIPPED",
    "Artifact",
    "BaseImage",
    "BlockUse",
    "Bootstrap",
    "Cell",
    "Check",
    "CudaSupport",
    "EndOfLife",
    "Exclude",
    "LeftOut",
    "Lock",
    "LockedSource",
    "Matrix",
    "Outcome",
    "PackagedCuda",
    "PackagedExtra",
    "PackagedMpi",
    "Plan",
    "PlannedCuda",
    "PlannedImage",
    "PlannedMpi",
    "Project",
    "Reason",
    "Recipe",
    "Selection",
    "Site",
    "Spec",
    "StageCheck",
    "StageRecipe",
    "Where",
    "merged_environment",
]
