"""The values that pass between the stages, in the words of the glossary (docs/state.md).

All are frozen. Mappings are never changed after construction. Architectures are spelled as
`uname -m` does: x86_64, ppc64le, aarch64.
"""

from __future__ import annotations

from builder.facts.tables import Where
from builder.model.cells import (
    AXES,
    CUDA_LIBRARIES,
    CUDA_ROUTES,
    DEVELOPMENT,
    EPOCH,
    FAILED,
    FILE_ARGUMENTS,
    FLAVOURS,
    FORMATS,
    GENERIC,
    MPI_ROUTES,
    NONE,
    OPTIONAL,
    PASSED,
    RUNTIME,
    SELECTABLE,
    SKIPPED,
    TOOLKITS,
    Cell,
    Selection,
    merged_environment,
)
from builder.model.inputs import (
    BaseImage,
    BlockUse,
    Bootstrap,
    Check,
    CudaSupport,
    EndOfLife,
    Exclude,
    FloatingTag,
    Lock,
    LockedSource,
    Matrix,
    PackagedCuda,
    PackagedExtra,
    PackagedMpi,
    Project,
    Recipe,
)
from builder.model.manifest import Artifact, Outcome
from builder.model.planned import (
    KeyedStage,
    LeftOut,
    Origin,
    Plan,
    PlannedCuda,
    PlannedImage,
    PlannedMpi,
    Reason,
    Spec,
    StageCheck,
    StageRecipe,
)
from builder.model.site import Layer, Layers, Site, SitePool, SlurmJobs, TlsFiles
