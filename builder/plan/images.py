"""A cell with everything that decides what its image holds, and the key over it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator

from builder import __version__
from builder.model import (
    GENERIC,
    RUNTIME,
    BaseImage,
    BlockUse,
    Cell,
    PlannedCuda,
    PlannedImage,
    PlannedMpi,
    Project,
    StageCheck,
    StageRecipe,
)
from builder.model.contract import as_document, contract_of
from builder.model.errors import Fault
from builder.model.inputs import at_mirror, base_name
from builder.plan.constraints import Verdict
from builder.plan.stages import CHECKS_FOLDER, Contents, Memo, Stages, read_text

KEY_FORMAT = "5"  # raised when the same inputs would make another image


class Images:
    """Plans the images of one project; what several of them have in common is made once."""

    def __init__(self, project: Project, compiler: str) -> None:
        self._project = project
        self._compiler = compiler
        self._stages = Stages(project)
        self._memo = Memo()
        self._run_checks = _json(read_text(project.root / CHECKS_FOLDER / "run-checks"))

    def of(self, cell: Cell, verdict: Verdict, faults: list[Fault]) -> Iterator[PlannedImage]:
        """The image of a cell; nothing, and faults, when a template cannot be rendered for it."""
        contents = self._stages.of(cell, verdict)
        faults += contents.faults
        if contents.faults:
            return
        base, cuda = self._project.bases[cell.base], verdict.cuda
        images = cuda.images if cuda else None
        pinned, base_image, runtime_image = self._base_names(cell.base, cell.arch, images)
        sources = self._project.lock.of_recipes(tuple(stage.name for stage in contents.stages))
        prepare = (*(cuda.first if cuda else ()), *base.prepare)
        about: list[object] = [self._compiler, base.hpccm_distro, base.distribution, prepare]
        about += [cell.identifier, pinned, *([source.url, source.sha256] for source in sources)]
        image = PlannedImage(
            cell=cell,
            base=base,
            base_image=base_image,
            runtime_image=runtime_image,
            base_reference=pinned[0],
            runtime_reference=pinned[1],
            mpi=verdict.mpi,
            cuda=cuda,
            stages=contents.stages,
            checks=contents.checks,
            content_key="",
            decided=decided(base, cell, verdict),
            sources=sources,
            system=self._project.facts.system(base.distribution, base.version),
        )
        about.append(as_document(contract_of(image)))
        yield dataclasses.replace(image, content_key=self._content_key(about, contents))

    def _base_names(
        self, base: str, arch: str, images: tuple[str, str] | None
    ) -> tuple[list[str], str, str]:
        """The images of both stages, pinned, and as the specs of this site name them."""
        names = images or (base_name(self._project.bases[base], arch),) * 2
        pinned = [self._project.lock.pinned(name, arch) for name in names]
        registries = self._project.site.registries
        development, runtime = (at_mirror(name, registries) for name in pinned)
        return pinned, development, runtime

    def _content_key(self, about: list[object], contents: Contents) -> str:
        stages = [self._stage_json(stage) for stage in contents.stages]
        checks = [self._memo.of(_check_json, check) for check in contents.checks]
        parts = [_json(KEY_FORMAT), _json(__version__), _json(about)]
        parts += [_array(stages), _array(checks), self._run_checks]
        return hashlib.sha256(_array(parts).encode()).hexdigest()

    def _stage_json(self, stage: StageRecipe) -> str:
        uses = [self._memo.of(_use_json, use) for use in (*stage.development, *stage.runtime)]
        before = [stage.name, stage.version, stage.about]
        after = [len(stage.development), stage.environment, stage.labels, stage.checks]
        if stage.command or stage.entrypoint:
            after.append([stage.command, stage.entrypoint])
        return _array([*map(_json, before), _array(uses), *map(_json, after)])


def _use_json(use: BlockUse) -> str:
    return _json([use.name, use.arguments, *([dict(use.files)] if use.files else ())])


def _check_json(check: StageCheck) -> str:
    about = [check.name, check.about, dict(check.sources), check.build]
    return _json([*about, check.run, check.needs, check.timeout_s])


def _array(items: list[str]) -> str:
    """A JSON array of what is JSON already: parts that images share are written once."""
    return f"[{','.join(items)}]"


_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


_CUDA_ROUTES = {
    "image": "NVIDIA's image",
    "repository": "NVIDIA's package repository",
    "distribution": "the distribution's packages",
    "sdk": "NVIDIA's HPC SDK",
}


def decided(base: BaseImage, cell: Cell, verdict: Verdict) -> tuple[str, ...]:
    """One line for each decision, with the file or the fact that made it."""
    return tuple(_lines(base, cell, verdict))


def _lines(base: BaseImage, cell: Cell, verdict: Verdict) -> Iterator[str]:
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
