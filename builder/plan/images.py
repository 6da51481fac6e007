"""A cell with everything that decides what its image holds, and the key over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from builder import __version__
from builder.model import (
    GENERIC,
    RUNTIME,
    BaseImage,
    Cell,
    PlannedCuda,
    PlannedImage,
    PlannedMpi,
    Project,
    StageCheck,
    StageRecipe,
)
from builder.model.contract import as_document, contract_of
from builder.model.digests import sha256_of_json
from builder.model.errors import Fault
from builder.model.inputs import at_mirror, base_name
from builder.plan.constraints import CellVerdict
from builder.plan.stages import CHECKS_FOLDER, StagePlanner, read_text

KEY_FORMAT = "5"  # raised when the same inputs would make another image


class Images:
    """Plans the images of one project; `faults` are those of templates that do not render."""

    def __init__(self, project: Project, compiler: str) -> None:
        self._project = project
        self._compiler = compiler
        self._stages = StagePlanner(project)
        self._run_checks = read_text(project.root / CHECKS_FOLDER / "run-checks")

    @property
    def faults(self) -> list[Fault]:
        return self._stages.faults

    def of(self, cell: Cell, verdict: CellVerdict) -> PlannedImage:
        """Return the image of a cell."""
        stages, checks = self._stages.of(cell, verdict)
        base, cuda, lock = self._project.bases[cell.base], verdict.cuda, self._project.lock
        names = (cuda and cuda.images) or [base_name(base, cell.arch)] * 2
        pinned = [lock.pinned(name, cell.arch) for name in names]
        base_image, runtime_image = (
            at_mirror(name, self._project.site.registries) for name in pinned
        )
        image = PlannedImage(
            cell=cell,
            base=base,
            base_image=base_image,
            runtime_image=runtime_image,
            base_reference=pinned[0],
            runtime_reference=pinned[1],
            mpi=verdict.mpi,
            cuda=cuda,
            stages=stages,
            checks=checks,
            content_key="",
            decided=tuple(_decisions(base, cell, verdict)),
            sources=lock.of_recipes([stage.name for stage in stages]),
            system=self._project.facts.system(base.distribution, base.version),
        )
        return dataclasses.replace(image, content_key=self._content_key(image))

    def _content_key(self, image: PlannedImage) -> str:
        base = image.base
        references = [image.base_reference, image.runtime_reference]
        about: list[object] = [self._compiler, base.hpccm_distro, base.distribution, image.prepare]
        about += [image.identifier, references]
        about += [[source.url, source.sha256] for source in image.sources]
        about.append(as_document(contract_of(image)))
        stages = [_stage_parts(stage) for stage in image.stages]
        checks = [_check_parts(check) for check in image.checks]
        parts = [KEY_FORMAT, __version__, about, stages, checks, self._run_checks]
        return sha256_of_json(parts)


def _stage_parts(stage: StageRecipe) -> list[object]:
    uses = [
        [use.name, use.arguments, *([dict(use.files)] if use.files else ())]
        for use in (*stage.development, *stage.runtime)
    ]
    parts: list[object] = [stage.name, stage.version, stage.about, uses, len(stage.development)]
    parts += [stage.environment, stage.labels, stage.checks]
    if stage.command or stage.entrypoint:
        parts.append([stage.command, stage.entrypoint])
    return parts


def _check_parts(check: StageCheck) -> list[object]:
    about = [check.name, check.about, dict(check.sources), check.build]
    return [*about, check.run, check.needs, check.timeout_s]


_CUDA_ROUTES = {
    "image": "NVIDIA's image",
    "repository": "NVIDIA's package repository",
    "distribution": "the distribution's packages",
    "sdk": "NVIDIA's HPC SDK",
}


def _decisions(base: BaseImage, cell: Cell, verdict: CellVerdict) -> Iterator[str]:
    """Yield a line for each decision, with the file or the fact that made it."""
    bootstrap = base.bootstrap
    origin = f"bootstrapped, suite {bootstrap.suite}" if bootstrap else base.references[cell.arch]
    yield f"base: {base.about}, {origin} ({base.where.file})"
    yield f"base: hpccm takes it for {base.hpccm_distro}"
    if ended := base.end_of_life:
        yield f"base: end of life since {ended.since}: {ended.about}"
    if verdict.cuda:
        yield from _cuda(base, verdict.cuda)
    if verdict.mpi:
        yield _mpi(base, verdict.mpi)
    if cell.flavour != RUNTIME:
        yield f"flavour: {cell.flavour}: compilers and headers stay in the image"
    if cell.cpu != GENERIC:
        yield f"cpu target: {cell.cpu}: programs built from source need it or a newer one"


def _cuda(base: BaseImage, cuda: PlannedCuda) -> Iterator[str]:
    release = cuda.update or cuda.version
    decider = f"{cuda.sdk}, which the recipe names" if cuda.sdk else f"({base.where.file}: cuda)"
    yield f"cuda: {release} by {_CUDA_ROUTES[cuda.route]} {decider}"
    if cuda.images:
        yield f"cuda: stages start from {cuda.images[0]} and {cuda.images[1]}"
    yield from (f"cuda: {note}" for note in cuda.notes)
    yield f"cuda: least driver {cuda.driver or 'not known'}"
    yield f"cuda: code for {', '.join(f'sm_{capability}' for capability in cuda.capabilities)}"
    if compiler := cuda.gcc or cuda.packages.gcc:
        own = base.gcc[0] if base.gcc else "not known"
        yield f"cuda: nvcc compiles with gcc {compiler}; the base's own is {own}"


def _mpi(base: BaseImage, mpi: PlannedMpi) -> str:
    how = {
        "package": f"the distribution's package ({base.where.file}: mpi.{mpi.family})",
        "source": "built from source by hpccm's block",
        "host": "bound in from the host; the image is made with an MPI of the same ABI",
    }[mpi.route]
    return f"mpi: {mpi.family} {mpi.version}, {how}"
