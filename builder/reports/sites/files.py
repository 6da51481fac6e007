"""The values that the templates lay out: worked out once for an image, from plan and contract."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from builder import facts
from builder.facts.runtimes import RUNTIMES
from builder.model import GENERIC, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.contract import HostContract, contract_of
from builder.model.errors import BadInput

IN_IMAGE = "/opt/build-images"
# A registry's host and namespace: https://github.com/distribution/reference/blob/main/regexp.go
_REGISTRY = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?"
    r"(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a site has images: `registry` is HOST/NAMESPACE, `folder` an absolute path on its
    nodes. `gpus` is the number of GPUs that a node has, and that a job asks for.
    """

    registry: str
    folder: str = "/opt/images"
    gpus: int = 4

    def __post_init__(self) -> None:
        """Raises BadInput for what is no registry or no folder."""
        if not _REGISTRY.fullmatch(self.registry):
            raise BadInput(
                f"{self.registry!r} is not HOST/NAMESPACE of a registry",
                hint="such as --registry quay.io/site",
            )
        if not self.folder.startswith("/") or not self.folder.isprintable() or ":" in self.folder:
            raise BadInput(
                f"{self.folder!r} is not an absolute path of a folder, without colons",
                hint="such as --folder /opt/images",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Starter:
    """How Slurm starts the ranks of an MPI: the command before the runtime's, and why so.

    `mpiexec` is the same by the launcher of the host's MPI, empty where there is none.
    """

    slurm: str
    mpiexec: str
    why: str


_MPIEXEC_OPEN_MPI = 'mpiexec -n "$SLURM_NTASKS" --map-by "ppr:$SLURM_NTASKS_PER_NODE:node"'
_MPIEXEC_HYDRA = 'mpiexec -n "$SLURM_NTASKS" -ppn "$SLURM_NTASKS_PER_NODE"'

# srun --mpi: https://slurm.schedmd.com/mpi_guide.html. -ppn is Hydra's, which MPICH, MVAPICH2 and
# Intel MPI have; --map-by is Open MPI's, mpirun(1).
_PMIX = Starter(
    slurm="srun --mpi=pmix",
    mpiexec=_MPIEXEC_OPEN_MPI,
    why="Slurm starts the ranks by PMIx, which the image's Open MPI brings.",
)
_NO_PMIX = Starter(
    slurm=_MPIEXEC_OPEN_MPI,
    mpiexec=_MPIEXEC_OPEN_MPI,
    why="The image's Open MPI has no PMIx: mpiexec of the same Open MPI on the host starts it.",
)
_PMI2 = Starter(
    slurm="srun --mpi=pmi2",
    mpiexec=_MPIEXEC_HYDRA,
    why="Slurm starts the ranks by PMI, which MPICH and its kin speak.",
)
_CRAY = Starter(
    slurm="srun --mpi=cray_shasta",
    mpiexec="",
    why="Slurm starts the ranks by Cray's PMI, which the host's Cray MPICH speaks.",
)
_NO_MPI = Starter(
    slurm="srun", mpiexec="", why="The image has no MPI: each task is a process by itself."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteImage:
    """One image as the templates see it.

    `reference` is HOST/NAMESPACE/RECIPE:TAG, and `pinned` names it by digest where that is known,
    else it is the same. `digest` is that of the image's manifest, `sha256:...`, or empty. `sif` and
    `directory` are where `pull` leaves them, if it is called in the site's folder. `proof` is the
    command, in the image, of its own check: that of MPI by all ranks where it has one, in the
    shell's words.
    """

    contract: HostContract
    about: str
    recipe: str
    version: str
    tag: str
    name: str
    repository: str
    reference: str
    pinned: str
    digest: str
    sif: str
    directory: str
    starter: Starter
    proof: str
    gpus: int

    @property
    def identifier(self) -> str:
        return self.contract.image

    @property
    def arch(self) -> str:
        """As `uname -m` says it."""
        return self.contract.architecture

    @property
    def oci_arch(self) -> str:
        """As registries and the label `kubernetes.io/arch` have it."""
        return ARCHITECTURES[self.arch].oci

    @property
    def has_gpu(self) -> bool:
        return self.contract.cuda is not None

    @property
    def binds_mpi(self) -> bool:
        """True if its MPI is the host's, and comes from there."""
        return self.contract.mpi is not None and self.contract.mpi.route == "host"

    @property
    def binds_cray(self) -> bool:
        """True if that is Cray MPICH, which lies in many folders."""
        return self.contract.mpi is not None and self.contract.mpi.family == "craympich"

    @property
    def tasks(self) -> int:
        """Ranks a node: one for each GPU."""
        if self.contract.mpi is None:
            return 1
        return self.gpus if self.has_gpu else 4

    def gpu_option(self, runtime: str) -> str:
        """What tells a runtime to bring the driver in, with a space before it; may be empty."""
        return f" {RUNTIMES[runtime].gpu}" if self.has_gpu else ""

    @property
    def needs(self) -> str:
        """In one line, what a host must bring."""
        return needs_of(self.contract)


def needs_of(contract: HostContract) -> str:
    """What a host must bring for an image, in one line."""
    parts = [contract.architecture]
    if contract.cpu.target != GENERIC:
        parts.append(f"{contract.cpu.target} or newer")
    if contract.kernel:
        parts.append(f"Linux {contract.kernel} or newer")
    if cuda := contract.cuda:
        parts.append(f"NVIDIA driver {cuda.driver} or newer")
    if mpi := contract.mpi:
        pmix = f", PMIx {mpi.pmix}" if mpi.pmix else ""
        parts.append(f"{facts.MPI_FAMILIES[mpi.family].title} {mpi.version}{pmix}")
    return ", ".join(parts)


def site_image(image: PlannedImage, place: Place, digests: Mapping[str, str]) -> SiteImage:
    """An image at a site; `digests` maps image identifiers to digests, where they are built."""
    cell, tag = image.cell, image.cell.tag
    repository = f"{place.registry}/{cell.recipe}"
    digest = digests.get(image.identifier, "")
    return SiteImage(
        contract=contract_of(image),
        about=image.stages[-1].about,
        recipe=cell.recipe,
        version=cell.recipe_version,
        tag=tag,
        name=kubernetes_name(image.identifier),
        repository=repository,
        reference=f"{repository}:{tag}",
        pinned=f"{repository}@{digest}" if digest else f"{repository}:{tag}",
        digest=digest,
        sif=posixpath.join(place.folder, f"{image.identifier}-sif", "image.sif"),
        directory=posixpath.join(place.folder, f"{image.identifier}-directory", "rootfs"),
        starter=_starter(image),
        proof=_proof(image),
        gpus=place.gpus,
    )


def _starter(image: PlannedImage) -> Starter:
    if image.mpi is None:
        return _NO_MPI
    if facts.MPI_FAMILIES[image.mpi.family].slurm == "cray_shasta":
        return _CRAY
    if facts.MPI_FAMILIES[image.mpi.family].abi != "openmpi":
        return _PMI2
    return _PMIX if image.mpi.pmix else _NO_PMIX


def _proof(image: PlannedImage) -> str:
    """The check `mpi`, started by Slurm on so many ranks as there are; else all checks, once.

    The check's own command starts 4 ranks by itself: what stands after its program's name are the
    number of ranks and what else it looks for.
    """
    for check in image.checks:
        if check.name == "mpi" and "$OUT/mpi " in check.run:
            _, *wanted = shlex.split(check.run.partition("$OUT/mpi ")[2])
            return f'{IN_IMAGE}/bin/mpi "$SLURM_NTASKS" {shlex.join(wanted)}'
    return f"{IN_IMAGE}/run-checks"


# A Job's name is a label of its pods, and gets six characters more there: RFC 1123, 63 characters.
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LONGEST = 57


def tag_of_identifier(identifier: str, *, recipe: str, arch: str) -> str:
    """A cell's tag, of its image identifier and what that begins and ends with."""
    return identifier.removeprefix(f"{recipe}-").removesuffix(f"-{arch}")


def kubernetes_name(text: str) -> str:
    """A text as an object's name: small letters, digits and hyphens; a long one is cut.

    What is cut ends with eight digits of the whole text's SHA-256, so that names stay different.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# The files of each image, by template. Scripts end in .sh.
_BY_CH_RUN = "slurm-charliecloud.sh"  # which binds folders, and Cray MPICH needs single files, too
_SCRIPTS = ("slurm-apptainer.sh", _BY_CH_RUN, "podman.sh")
_MPIEXEC = "mpiexec-charliecloud.sh"
_MANIFESTS = ("openshift-build.yaml", "openshift-pod.yaml", "openshift-job.yaml")


def site_files(images: Sequence[SiteImage]) -> dict[str, str]:
    """The text of every file, by its path below the output folder, in order.

    Each image has a folder; the modules are together in `modulefiles/`, and the entries of shpc in
    `shpc/ARCHITECTURE/`, as their programs want it. An image without a digest has no such entry.
    """
    environment = _environment()
    files: dict[str, str] = {}
    for image in images:
        for name in _names(image):
            files[f"{image.identifier}/{name}"] = _text(environment, name, image=image)
        module = f"modulefiles/{image.recipe}/{image.tag}-{image.arch}.lua"
        files[module] = _text(environment, "module.lua", image=image)
    for path, group in _by_repository(images).items():
        files[path] = _text(environment, "container.yaml", image=group[-1], images=group)
    return files


def _names(image: SiteImage) -> tuple[str, ...]:
    by_mpiexec = (_MPIEXEC,) if image.starter.mpiexec else ()
    scripts = tuple(name for name in _SCRIPTS if not (image.binds_cray and name == _BY_CH_RUN))
    return (*scripts, *by_mpiexec, *_MANIFESTS)


def _by_repository(images: Sequence[SiteImage]) -> Mapping[str, list[SiteImage]]:
    """Images that have a digest, by the path of shpc's file for them."""
    groups: dict[str, list[SiteImage]] = {}
    for image in images:
        if image.digest:
            path = f"shpc/{image.arch}/{image.repository.replace(':', '_')}/container.yaml"
            groups.setdefault(path, []).append(image)
    return groups


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # noqa: S701 - no HTML: each value goes through the filter of its language
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        shell=shlex.quote, quoted=quoted, lua=lua, line=line, kube=kubernetes_name
    )
    return environment


def _text(environment: jinja2.Environment, name: str, **values: object) -> str:
    return environment.get_template(f"{name}.j2").render(**values)


def quoted(text: str) -> str:
    """A string of YAML, in JSON's spelling."""
    return json.dumps(text, ensure_ascii=True)


def lua(text: str) -> str:
    """A string of Lua. What it has no escape for in all versions is left as it is, as UTF-8."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def line(text: str) -> str:
    """A text for a comment: one line."""
    return " ".join(text.split())
