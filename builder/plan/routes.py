"""By which route a cell comes to its CUDA toolkit and to its MPI, or why by none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from builder import facts
from builder.facts import CudaRelease
from builder.model import (
    BaseImage,
    PackagedCuda,
    PackagedMpi,
    PlannedCuda,
    PlannedMpi,
    Project,
    Reason,
)
from builder.plan import nvidia
from builder.versions import matches, split_mpi, version_order

_FULL = 3  # parts of a release's version: 5.0.7
WORLD, BASE, MAINTAINER = "world", "base image", "maintainer"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Generic[T]):
    """What was chosen, or every reason why nothing could be."""

    chosen: T | None = None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """One route to CUDA that exists for a base and an architecture."""

    packages: PackagedCuda
    images: tuple[str, str] | None = None


def choose_cuda(project: Project, base: BaseImage, version: str, arch: str) -> Choice[PlannedCuda]:
    """The first of the site's routes by which a base comes to a CUDA release."""
    release = project.facts.cuda.get(version)
    if release is None:
        text = f"CUDA {version} is in no table of releases (docs/matrix.md says how to add one)"
        return Choice(reasons=(Reason(layer=WORLD, text=text),))
    reasons = [*_world_reasons(release, arch, project.facts.cuda)]
    missing: list[str] = []
    for route in project.site.cuda_routes:
        way = _WAYS[route](release, base, arch)
        if isinstance(way, str):
            missing.append(way)
            continue
        compiler = way.packages.gcc if way.images is None else ""
        gcc = _host_compiler(release, base) if not compiler else ""
        if gcc is None:
            reasons.append(_too_new(release, base))
        elif not reasons:
            return Choice(chosen=_planned(release, route, way, gcc))
        break
    else:
        text = f"{base.name} has no way to CUDA {version} for {arch}: {'; '.join(missing)}"
        reasons.append(Reason(layer=BASE, text=f"{text} ({base.where.file}: cuda)"))
    return Choice(reasons=tuple(reasons))


def _planned(release: CudaRelease, route: str, way: _Way, gcc: str) -> PlannedCuda:
    return PlannedCuda(
        version=release.version,
        update=release.update,
        driver=release.driver,
        route=route,
        capabilities=way.packages.capabilities or release.capabilities,
        packages=way.packages,
        images=way.images,
        gcc=gcc,
    )


def _world_reasons(
    release: CudaRelease, arch: str, releases: Mapping[str, CudaRelease]
) -> Iterator[Reason]:
    if arch not in release.architectures:
        others = [one.version for one in releases.values() if arch in one.architectures]
        has = f"{_span(others)} have" if others else "none has"
        text = f"CUDA {release.version} has no toolkit for {arch}: {has} one ({_source(release)})"
        yield Reason(layer=WORLD, text=text)


def _span(versions: list[str]) -> str:
    ordered = sorted(versions, key=version_order)
    return f"{ordered[0]} to {ordered[-1]}"


def _source(release: CudaRelease) -> str:
    return release.sources[0] if release.sources else str(release.where)


def _by_image(release: CudaRelease, base: BaseImage, arch: str) -> _Way | str:
    exist = release.images.get(arch, ())
    if not base.cuda.image or base.cuda.image not in exist:
        return f"NVIDIA made images for {arch} on {', '.join(exist) or 'no distribution'}"
    images = nvidia.image_names(release, base, arch)
    # The image has the toolkit; the run-time image has its libraries.
    return _Way(
        packages=PackagedCuda(version=release.version, development=(), runtime=()), images=images
    )


def _by_repository(release: CudaRelease, base: BaseImage, arch: str) -> _Way | str:
    exist = release.repositories.get(arch, ())
    if not base.cuda.repository or base.cuda.repository not in exist:
        return f"NVIDIA's packages for {arch} are for {', '.join(exist) or 'no distribution'}"
    return _Way(packages=nvidia.toolkit_packages(release, base))


def _by_distribution(release: CudaRelease, base: BaseImage, arch: str) -> _Way | str:
    for packaged in base.cuda.distribution:
        archs = packaged.architectures or base.architectures
        if arch in archs and matches("cuda", release.version, packaged.version):
            return _Way(packages=packaged)
    own = ", ".join(packaged.version for packaged in base.cuda.distribution)
    return f"the distribution packages {'CUDA ' + own if own else 'none'}"


_WAYS = {"image": _by_image, "repository": _by_repository, "distribution": _by_distribution}


def _host_compiler(release: CudaRelease, base: BaseImage) -> str | None:
    """The gcc for nvcc: empty for the base's own, None if each is too new for it."""
    if not release.gcc or not base.gcc:
        return ""
    fitting = [one for one in base.gcc if version_order(one) <= version_order(release.gcc)]
    if not fitting:
        return None
    return "" if fitting[0] == base.gcc[0] else fitting[0]


def _too_new(release: CudaRelease, base: BaseImage) -> Reason:
    text = (
        f"nvcc of CUDA {release.version} takes gcc up to {release.gcc}; "
        f"{base.name} has {', '.join(base.gcc)} ({_source(release)})"
    )
    return Reason(layer=WORLD, text=text)


def choose_mpi(
    project: Project, base: BaseImage, mpi: str, routes: Iterable[str]
) -> Choice[PlannedMpi]:
    """The first of `routes` by which a base comes to an axis value such as `openmpi5.0`."""
    missing: list[str] = []
    for route in routes:
        planned = _MPI_WAYS[route](project, base, mpi)
        if isinstance(planned, PlannedMpi):
            return Choice(chosen=planned)
        missing.append(planned)
    return Choice(reasons=(Reason(layer=BASE, text="; ".join(missing)),))


def _by_package(_: Project, base: BaseImage, mpi: str) -> PlannedMpi | str:
    family, version = split_mpi(mpi)
    found = packaged_mpi(base, mpi)
    if found is None:
        title = facts.MPI_FAMILIES[family].title
        carried = [one.version for one in base.mpi if one.family == family]
        has = f"{title} {', '.join(carried)}" if carried else f"no {title}"
        return f"{base.name} packages {has}, not {version} ({base.where.file}: mpi.{family})"
    return PlannedMpi(
        family=family,
        version=found.version,
        route="package",
        development=found.development,
        runtime=found.runtime,
        environment=found.environment,
    )


def packaged_mpi(base: BaseImage, mpi: str) -> PackagedMpi | None:
    """The MPI of a base's distribution that answers an axis value (`openmpi5.0`: 5.0.7)."""
    for packaged in base.mpi:
        if matches("mpi", mpi, packaged.family + packaged.version):
            return packaged
    return None


def _from_source(_: Project, __: BaseImage, mpi: str) -> PlannedMpi | str:
    family, version = split_mpi(mpi)
    if facts.MPI_FAMILIES[family].host_only:
        return f"{facts.MPI_FAMILIES[family].title} is not built from source"
    if len(version_order(version)) < _FULL:
        return f"to build {mpi} from source, the axis value has to name a release in full"
    return PlannedMpi(family=family, version=version, route="source")


def _from_host(_: Project, base: BaseImage, mpi: str) -> PlannedMpi | str:
    """An MPI whose library a site binds in; programs are made with one of the same ABI."""
    family, version = split_mpi(mpi)
    known = facts.MPI_FAMILIES[family]
    if not known.host_only:
        return f"{known.title} comes with the image, not from the host"
    twin = next((one for one in base.mpi if facts.MPI_FAMILIES[one.family].abi == known.abi), None)
    if twin is None:
        return f"{base.name} packages no MPI with the ABI of {known.title}"
    return PlannedMpi(
        family=family,
        version=version,
        route="host",
        development=twin.development,
        environment=twin.environment,
    )


_MPI_WAYS = {"package": _by_package, "source": _from_source, "host": _from_host}
