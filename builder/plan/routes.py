"""Choose the routes by which a cell gets its CUDA toolkit and its MPI, or say why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from builder import facts
from builder.facts import CudaRelease, Facts
from builder.model import (
    CUDA_ROUTES,
    NONE,
    BaseImage,
    PackagedCuda,
    PlannedCuda,
    PlannedMpi,
    Project,
    Reason,
)
from builder.model.versions import matches, split_mpi, version_order
from builder.plan import nvidia

# Debian has its own name for MPICH's library: https://sources.debian.org/src/mpich/ (debian/rules)
_OWN_MPICH = ("debian", "ubuntu")
_MPICH_OF_DEBIAN = "libmpich.so.12"
_FULL = 3  # parts of a release's version: 5.0.7
WORLD, BASE, MAINTAINER = "world", "base image", "maintainer"
Reasons = tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """The CUDA release that a route must provide, with the base and the architecture."""

    project: Project
    release: CudaRelease
    base: BaseImage
    arch: str
    sdk: str
    brought: tuple[str, ...] | None


def choose_cuda(
    project: Project,
    base_name: str,
    version: str,
    arch: str,
    sdk: str,
    brought: tuple[str, ...] | None,
) -> tuple[PlannedCuda | None, Reasons]:
    """Choose the first of the site's routes that provides a CUDA release on a base.

    If there is none, return all reasons. `sdk` is the release of the HPC SDK whose toolkit the
    recipe uses, empty if it names none. `brought` are the capabilities that the recipe's own
    packages have code for, if these bring CUDA; None if a toolkit is installed.
    """
    if version == NONE:
        return None, ()
    base, release = project.bases[base_name], project.facts.cuda.get(version)
    if release is None:
        text = f"unknown CUDA release: {version} (docs/matrix.md says how to add one)"
        return None, (Reason(layer=WORLD, text=text),)
    request = _Request(
        project=project, release=release, base=base, arch=arch, sdk=sdk, brought=brought
    )
    reasons: list[Reason] = []
    if arch not in release.architectures:
        reasons.append(_no_toolkit(release, arch, project.facts))
    missing: list[str] = []
    chosen: PlannedCuda | None = None
    for route in _routes(request):
        way = _WAYS[route](request)
        if isinstance(way, PlannedCuda):
            chosen = way
            break
        missing.append(way)
    needs_no_gcc = brought is not None or (chosen is not None and chosen.packages.gcc)
    gcc = "" if needs_no_gcc else _host_compiler(release, base)
    if gcc is None:
        reasons.append(_too_new(release, base))
    if chosen is None:
        reasons.append(_no_way(request, missing))
    if reasons or chosen is None or gcc is None:
        return None, tuple(reasons)
    notes = (*chosen.notes, *missing)
    return dataclasses.replace(chosen, gcc=gcc, notes=notes), ()


def _no_way(request: _Request, missing: list[str]) -> Reason:
    if request.sdk:
        return Reason(layer=WORLD, text="; ".join(missing))
    base = request.base
    text = f"{base.name} has no route to CUDA {request.release.version} for {request.arch}: "
    return Reason(layer=BASE, text=f"{text}{'; '.join(missing)} ({base.where.file}: cuda)")


def _routes(request: _Request) -> tuple[str, ...]:
    """Return the routes in the site's order; by default, images to be deleted soon come last."""
    if request.sdk:
        return (nvidia.SDK_ROUTE,)
    if request.brought is not None:
        return (nvidia.RECIPE_ROUTE,)
    if ordered := request.project.site.cuda_routes:
        return ordered
    late = ("image",) if request.release.leaving else ()
    return (*(route for route in CUDA_ROUTES if route not in late), *late)


def _planned(request: _Request, route: str, packages: PackagedCuda, *notes: str) -> PlannedCuda:
    release = request.release
    # The newest update, or the update of NVIDIA's images, whose older tags name none (`10.1`). The
    # update in an SDK, and that of a recipe's packages, is not known.
    of_images = release.image_tag if release.image_tag != release.version else ""
    update = (of_images if route == "image" else "") or release.update
    return PlannedCuda(
        version=release.version,
        update="" if request.sdk or request.brought is not None else update,
        driver=release.driver,
        shipped_driver=release.shipped_driver,
        route=route,
        capabilities=packages.capabilities or release.capabilities,
        packages=packages,
        notes=notes,
        sdk=request.sdk,
        has_ptx=not request.brought,
    )


def _no_toolkit(release: CudaRelease, arch: str, known: Facts) -> Reason:
    others = known.cuda_for(arch=arch)
    has, source = "none has", source_of(release)
    if others:
        has = f"{others[0]} to {others[-1]} have"
        source = source_of(known.cuda[others[-1]], "/-/commit/", "release-notes")
    text = f"CUDA {release.version} has no toolkit for {arch}: {has} one ({source})"
    return Reason(layer=WORLD, text=text)


def source_of(release: CudaRelease, *about: str) -> str:
    """Return the first source of a release whose URL contains one of `about`.

    If none does, return its first source; without any source, its place in the tables.
    """
    sources = (url for part in about for url in release.sources if part in url)
    return next(sources, release.sources[0] if release.sources else str(release.where))


def _by_image(request: _Request) -> PlannedCuda | str:
    release, base, arch = request.release, request.base, request.arch
    exist = release.images.get(arch, ())
    if not base.cuda.image:
        return "the base's file names no NVIDIA image"
    if base.cuda.image not in exist:
        where = f"{', '.join(exist)} only" if exist else "no distribution"
        return f"NVIDIA has images of this release for {arch} on {where}"
    images = nvidia.image_names(release, base, arch)
    notes: list[str] = []
    if deletion := release.deleted_by(base.cuda.image):
        text = f"NVIDIA deleted {images[0]} from the public registry ({deletion})"
        mirror = nvidia.mirror_of_namespace(images[0], request.project.site)
        if not mirror:
            return f"{text}, and site.yaml names no mirror that still has it"
        notes = [f"{text}; it is pulled from {mirror} (site.yaml: registries)"]
    packages = PackagedCuda(
        version=release.version,
        development=(),  # the images contain it; the run-time image has only libraries
        runtime=(),
        environment={"CUDA_HOME": "/usr/local/cuda"},
        extras=nvidia.extras(request.project.facts, release, base, arch, by_image=True),
    )
    planned = _planned(request, "image", packages, *notes)
    return dataclasses.replace(planned, images=images, first=nvidia.first_steps(release, base))


def _by_repository(request: _Request) -> PlannedCuda | str:
    release, base, arch = request.release, request.base, request.arch
    exist = release.repositories.get(arch, ())
    if not base.cuda.repository:
        return "the base's file names no NVIDIA repository"
    if not release.repositories:
        return "which packages NVIDIA has of this release is not known"
    if base.cuda.repository not in exist:
        where = f"{', '.join(exist)} only" if exist else "no distribution"
        return f"NVIDIA has packages of this release for {arch} on {where}"
    extras = nvidia.extras(request.project.facts, release, base, arch, by_image=False)
    packages = dataclasses.replace(nvidia.toolkit_packages(release, base), extras=extras)
    notes: list[str] = []
    if release.leaving and not request.project.site.cuda_routes:
        text = "NVIDIA deletes the images of old releases, and these are next"
        notes = [f"{text} ({release.leaving})"]
    return _planned(request, "repository", packages, *notes)


def _by_distribution(request: _Request) -> PlannedCuda | str:
    base = request.base
    for packaged in base.cuda.distribution:
        archs = packaged.architectures or base.architectures
        fits = matches("cuda", request.release.version, packaged.version)
        if request.arch in archs and fits:
            return _planned(request, "distribution", packaged)
    own = ", ".join(packaged.version for packaged in base.cuda.distribution)
    return f"the distribution itself packages {'CUDA ' + own if own else 'no CUDA'}"


def _by_wheels(request: _Request) -> PlannedCuda | str:
    release, base, arch = request.release, request.base, request.arch
    if not base.cuda.wheels:
        return "the base's file names no wheels"
    known = request.project.facts
    if not release.wheels:
        having = [one.version for one in known.cuda.values() if one.wheels]
        has = f"{having[0]} to {having[-1]} only" if having else "no release"
        return f"the Python package index has nvcc for {has}"
    if arch not in release.architectures:
        return f"the Python package index has no nvcc for {arch}"
    return _planned(request, "wheels", nvidia.wheels(known, release, arch))


def _by_sdk(request: _Request) -> PlannedCuda | str:
    known = request.project.facts
    sdk, cuda, arch = known.sdk(request.sdk), request.release.version, request.arch
    if sdk is None:
        names = ", ".join(release.version for release in known.sdks)
        return f"unknown HPC SDK release: {request.sdk}; valid: {names} (nvhpc.yaml)"
    if cuda not in sdk.cuda.get(arch, ()):
        has = ", ".join(sdk.cuda.get(arch, ())) or "none"
        others = [release.version for release in known.sdks if cuda in release.cuda.get(arch, ())]
        more = f"; HPC SDK {', '.join(others)} has it" if others else ""
        return f"HPC SDK {sdk.version} has no CUDA {cuda} for {arch}; available: {has}{more}"
    return _planned(request, nvidia.SDK_ROUTE, nvidia.toolkit(sdk.version, cuda, arch))


def _by_recipe(request: _Request) -> PlannedCuda:
    version, own = request.release.version, tuple(sorted(request.brought or (), key=int))
    packages = PackagedCuda(version=version, development=(), runtime=(), capabilities=own)
    return _planned(request, nvidia.RECIPE_ROUTE, packages)


_WAYS: dict[str, Callable[[_Request], PlannedCuda | str]] = {
    "image": _by_image,
    "repository": _by_repository,
    "distribution": _by_distribution,
    "wheels": _by_wheels,
    nvidia.SDK_ROUTE: _by_sdk,
    nvidia.RECIPE_ROUTE: _by_recipe,
}


def _host_compiler(release: CudaRelease, base: BaseImage) -> str | None:
    """Return the gcc for nvcc: empty for the base's default, None if each gcc is too new."""
    if not release.gcc or not base.gcc:
        return ""
    fitting = [gcc for gcc in base.gcc if version_order(gcc) <= version_order(release.gcc)]
    if not fitting:
        return None
    return "" if fitting[0] == base.gcc[0] else fitting[0]


def _too_new(release: CudaRelease, base: BaseImage) -> Reason:
    source = source_of(release, "systems/cuda.py", "installation-guide")
    text = (
        f"nvcc of CUDA {release.version} supports gcc up to {release.gcc}, but "
        f"{base.name} packages gcc {', '.join(base.gcc)} ({source})"
    )
    return Reason(layer=WORLD, text=text)


def choose_mpi(
    project: Project, base_name: str, mpi: str, routes: Iterable[str], release: str
) -> tuple[PlannedMpi | None, Reasons]:
    """Choose the first of `routes` that provides an axis value such as `openmpi5.0` on a base.

    If there is none, return the reason. `release` is the release that the recipe builds from
    source (`5.0.7`), empty if it names none.
    """
    if mpi == NONE:
        return None, ()
    missing: list[str] = []
    for route in routes:
        planned = _MPI_WAYS[route](project, project.bases[base_name], mpi, release)
        if isinstance(planned, PlannedMpi):
            return planned, ()
        missing += [planned] if planned else []
    text = "; ".join(missing) or f"no route to {mpi}: the recipe does not use the host's MPI"
    return None, (Reason(layer=BASE, text=text),)


def _by_package(project: Project, base: BaseImage, mpi: str, _: str) -> PlannedMpi | str:
    family, version = split_mpi(mpi)
    answers = (own for own in base.mpi if matches("mpi", mpi, own.family + own.version))
    package = next(answers, None)  # 5.0.7 matches openmpi5.0
    if package is None:
        title = facts.MPI_FAMILIES[family].title
        carried = [packaged.version for packaged in base.mpi if packaged.family == family]
        has = f"{title} {', '.join(carried)}, not {version}" if carried else f"no {title}"
        return f"{base.name} packages {has} ({base.where.file}: mpi)"
    return PlannedMpi(
        family=family,
        version=package.version,
        route="package",
        library=_library(project.facts, base, family, package.version),
        pmix=package.pmix,
        development=package.development,
        runtime=package.runtime,
        environment=package.environment,
    )


def _library(known: Facts, base: BaseImage, family: str, version: str) -> str:
    """Return the library name of a packaged MPI; empty if the series is not known."""
    if family == "mpich" and base.distribution in _OWN_MPICH:
        return _MPICH_OF_DEBIAN
    series = known.mpi_series(family, version)
    return series.soname if series else ""


def _from_source(project: Project, _: BaseImage, mpi: str, release: str) -> PlannedMpi | str:
    family, version = split_mpi(mpi)
    if facts.MPI_FAMILIES[family].host_only:
        return ""
    if release and not matches("mpi", mpi, family + release):
        return f"the recipe builds {release} from source, not {mpi}"
    if len(version_order(release or version)) < _FULL:
        return (
            f"to build {mpi} from source, the recipe (mpi.source.version) or the axis value must "
            "name a full release"
        )
    full_version = release or version
    series = project.facts.mpi_series(family, full_version)
    return PlannedMpi(
        family=family,
        version=full_version,
        route="source",
        library=series.soname if series else "",
        pmix=series.pmix if series else "",
    )


def _from_host(project: Project, base: BaseImage, mpi: str, _: str) -> PlannedMpi | str:
    """Plan an MPI that a site binds in; programs are built with an MPI of the same ABI."""
    family, version = split_mpi(mpi)
    known = facts.MPI_FAMILIES[family]
    if not known.host_only:
        return ""  # it must be in the image; the other routes give the reasons
    twin = next((own for own in base.mpi if facts.MPI_FAMILIES[own.family].abi == known.abi), None)
    if twin is None:
        return f"{base.name} packages no MPI with the ABI of {known.title}"
    if base.distribution in _OWN_MPICH:
        return (
            f"the MPICH of {base.name} is {_MPICH_OF_DEBIAN}; programs built with it do not "
            f"find {known.title}'s libmpi.so.12"
        )
    return PlannedMpi(
        family=family,
        version=version,
        route="host",
        library=_library(project.facts, base, twin.family, twin.version),
        development=twin.development,
        environment=twin.environment,
    )


_MPI_WAYS = {"package": _by_package, "source": _from_source, "host": _from_host}
