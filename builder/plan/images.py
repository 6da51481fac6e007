"""A cell with everything that decides what its image holds, and the key over it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder import __version__, templates
from builder.errors import BadInput, Fault
from builder.model import (
    BaseImage,
    BlockUse,
    Cell,
    Check,
    PlannedImage,
    PlannedMpi,
    Project,
    Recipe,
    Site,
    StageCheck,
    StageRecipe,
    Where,
)
from builder.plan import toolkits
from builder.plan.cells import fits
from builder.plan.constraints import Verdict
from builder.plan.decisions import decided

CHECKS_FOLDER = Path("tests/images")
_NO_LAUNCHER = "echo 'the MPI is the host'\\''s: none is in the image'; exit 77"
_BASE_FORMAT = "3"  # the same, for bases
KEY_FORMAT = "4"  # raised when the same inputs would make another image


def planned_image(
    project: Project, cell: Cell, verdict: Verdict, compiler: str, faults: list[Fault]
) -> Iterator[PlannedImage]:
    """The image of a cell; nothing, and faults, when a template cannot be rendered for it."""
    base, cuda, mpi = project.bases[cell.base], verdict.cuda, verdict.mpi
    context = templates.names(cell, base, mpi, cuda)
    before = len(faults)
    stages = _stages(project, cell, verdict, context, faults)
    checks = tuple(
        _check(project.root, project.checks[name], mpi, context, faults)
        for stage in stages
        for name in stage.checks
    )
    if len(faults) > before:
        return
    names = cuda.images if cuda and cuda.images else (base_name(base, cell.arch),) * 2
    pinned = [project.lock.pinned(name, cell.arch) for name in names]
    base_image, runtime_image = (at_site(name, project.site) for name in pinned)
    sources = project.lock.of_recipes([stage.name for stage in stages])
    yield PlannedImage(
        cell=cell,
        base=base,
        base_image=base_image,
        runtime_image=runtime_image,
        mpi=mpi,
        cuda=cuda,
        stages=stages,
        checks=checks,
        content_key=_content_key(
            [compiler, base.hpccm_distro, base.distribution, base.prepare, cell.identifier, pinned]
            + [[one.url, one.sha256] for one in sources],
            stages,
            checks,
            project.root,
        ),
        decided=decided(base, cell, verdict),
        sources=sources,
    )


def base_name(base: BaseImage, arch: str) -> str:
    """The base as specs name it: a reference, or a local name that holds its declaration's key."""
    if base.bootstrap is None:
        return base.references[arch]
    return f"localhost/build-images/{base.name}:{declared_key(base, arch)[:12]}-{arch}"


def declared_key(base: BaseImage, arch: str) -> str:
    """A SHA-256 over what the base's file declares, the mirror left out."""
    made = base.bootstrap
    assert made is not None
    declared = [base.name, arch, made.suite, made.components, made.pockets, made.packages]
    return _sha256([_BASE_FORMAT, *declared])


def at_site(reference: str, site: Site) -> str:
    """An image reference, its registry replaced by the mirror that the site has for it."""
    registry, slash, rest = reference.partition("/")
    return f"{site.registries[registry]}{slash}{rest}" if registry in site.registries else reference


def _stages(
    project: Project,
    cell: Cell,
    verdict: Verdict,
    context: Mapping[str, Any],
    faults: list[Fault],
) -> tuple[StageRecipe, ...]:
    stages: list[StageRecipe] = []
    seen: set[str] = set()
    for recipe in project.chain(cell.recipe):
        added = tuple(name for name in dict.fromkeys(recipe.checks) if name not in seen)
        seen.update(added)
        stages.append(_stage(project, recipe, cell, verdict, added, context, faults))
    return tuple(stages)


def _stage(
    project: Project,
    recipe: Recipe,
    cell: Cell,
    verdict: Verdict,
    checks: tuple[str, ...],
    context: Mapping[str, Any],
    faults: list[Fault],
) -> StageRecipe:
    def blocks(uses: tuple[BlockUse, ...]) -> Iterator[BlockUse]:
        for use in uses:
            if not use.when or fits(cell, use.when):
                yield BlockUse(
                    name=use.name,
                    arguments=_rendered(use.arguments, context, use.where, faults),
                    where=use.where,
                    lines=use.lines,
                    files=use.files,
                )

    sources = templates.source_names(recipe.name, recipe.sources, project.lock)
    context = {**context, "sources": sources}
    development: list[BlockUse] = []
    runtime: list[BlockUse] = []
    variables: dict[str, str] = {}
    for use in blocks(recipe.development):
        expansion = _expanded(use, project.bases[cell.base], cell, verdict)
        development.extend(expansion.development)
        runtime.extend(expansion.runtime)
        variables.update(expansion.environment)
    variables.update(_rendered(recipe.environment, context, recipe.where, faults))
    return StageRecipe(
        name=recipe.name,
        version=recipe.version,
        about=recipe.about,
        development=tuple(development),
        runtime=(*runtime, *blocks(recipe.runtime)),
        environment={name: text for name, text in variables.items() if text},
        labels=_rendered(recipe.labels, context, recipe.where, faults),
        checks=checks,
        sources=recipe.sources,
    )


def _expanded(use: BlockUse, base: BaseImage, cell: Cell, verdict: Verdict) -> toolkits.Expansion:
    """What a block stands for: itself, or the blocks of a toolkit's route."""
    if use.name == toolkits.MPI:
        assert verdict.mpi is not None
        return toolkits.expand_mpi(use, verdict.mpi)
    if use.name == toolkits.CUDA:
        assert verdict.cuda is not None
        return toolkits.expand_cuda(use, verdict.cuda, base, cell.arch)
    return toolkits.Expansion(development=(use,))


def _check(
    root: Path,
    check: Check,
    mpi: PlannedMpi | None,
    context: Mapping[str, Any],
    faults: list[Fault],
) -> StageCheck:
    run = str(_rendered(check.run, context, check.where, faults))
    if "mpi" in check.needs and mpi is not None and mpi.route == "host":
        run = _NO_LAUNCHER
    return StageCheck(
        name=check.name,
        about=check.about,
        sources={name: _text(root / CHECKS_FOLDER / name) for name in check.sources},
        build=tuple(_rendered(check.build, context, check.where, faults)),
        run=run,
        needs=check.needs,
        timeout_s=check.timeout_s,
    )


def _rendered(value: Any, context: Mapping[str, Any], where: Where, faults: list[Fault]) -> Any:
    try:
        return templates.render(value, context)
    except templates.TemplateError as error:
        faults.append(
            Fault(
                file=where.file,
                line=where.line,
                key=where.key,
                problem=f"the template fails for {context['base'].name} {context['arch']}: {error}",
                valid=f"names: {templates.VALID_NAMES}",
            )
        )
        return value


def _content_key(
    about: list[Any],
    stages: tuple[StageRecipe, ...],
    checks: tuple[StageCheck, ...],
    root: Path,
) -> str:
    return _sha256(
        [
            KEY_FORMAT,
            __version__,
            about,
            [_stage_content(stage) for stage in stages],
            [
                [c.name, c.about, dict(c.sources), c.build, c.run, c.needs, c.timeout_s]
                for c in checks
            ],
            _text(root / CHECKS_FOLDER / "run-checks"),
        ]
    )


def _stage_content(stage: StageRecipe) -> list[Any]:
    return [
        stage.name,
        stage.version,
        stage.about,
        [_use_content(use) for use in (*stage.development, *stage.runtime)],
        len(stage.development),
        stage.environment,
        stage.labels,
        stage.checks,
    ]


def _use_content(use: BlockUse) -> list[Any]:
    return [use.name, use.arguments, *([dict(use.files)] if use.files else ())]


def _sha256(content: list[Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: this file of the checks cannot be read ({error})") from error
