"""Files for the use of images at a site: batch scripts, modules, manifests.

Planned images become texts by path. The same images give the same texts, and nothing is started.
docs/sites.md shows each file.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from builder import facts
from builder.facts.software import RUNTIMES
from builder.model import GENERIC, Cell, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.contract import HostContract, contract_of
from builder.model.errors import BadInput
from builder.reports.templates import text_environment

_IN_IMAGE = "/opt/build-images"
# A registry's host and namespace: https://github.com/distribution/reference/blob/main/regexp.go
_REGISTRY = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?"
    r"(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePlace:
    """The place of a site's images: `registry` is HOST/NAMESPACE, `folder` an absolute path on its
    nodes. `gpus` is the number of GPUs that a node has, and that a job asks for.
    """

    registry: str
    folder: str = "/opt/images"
    gpus: int = 4

    def __post_init__(self) -> None:
        """Raise BadInput for a malformed registry or folder."""
        if not _REGISTRY.fullmatch(self.registry):
            raise BadInput(
                f"{self.registry!r} is not HOST/NAMESPACE of a registry",
                hint="such as --registry quay.io/site",
            )
        if not self.folder.startswith("/") or not self.folder.isprintable() or ":" in self.folder:
            raise BadInput(
                f"{self.folder!r} is not an absolute path without colons",
                hint="such as --folder /opt/images",
            )


@dataclass(frozen=True, kw_only=True)
class SiteImage:
    """One image at a site, with the values for templates.

    `digest` is that of the image's manifest, `sha256:...`, or empty if it is unknown.
    """

    planned: PlannedImage
    place: SitePlace
    digest: str = ""

    @cached_property
    def contract(self) -> HostContract:
        return contract_of(self.planned)

    @property
    def cell(self) -> Cell:
        return self.planned.cell

    @property
    def name(self) -> str:
        """The name of an object in Kubernetes."""
        return kubernetes_name(self.cell.identifier)

    @property
    def repository(self) -> str:
        return f"{self.place.registry}/{self.cell.recipe}"

    @property
    def reference(self) -> str:
        """HOST/NAMESPACE/RECIPE:TAG."""
        return f"{self.repository}:{self.cell.tag}"

    @property
    def pinned(self) -> str:
        """The reference by digest if it is known, else by tag."""
        return f"{self.repository}@{self.digest}" if self.digest else self.reference

    @property
    def sif(self) -> str:
        """The path of the SIF after a `pull` in the site's folder."""
        return posixpath.join(self.place.folder, f"{self.cell.identifier}-sif", "image.sif")

    @property
    def directory(self) -> str:
        """The path of the unpacked image after a `pull` in the site's folder."""
        return posixpath.join(self.place.folder, f"{self.cell.identifier}-directory", "rootfs")

    @property
    def oci_arch(self) -> str:
        """The architecture in registries and in the label `kubernetes.io/arch`."""
        return ARCHITECTURES[self.cell.arch].oci

    @property
    def has_gpu(self) -> bool:
        return self.contract.cuda is not None

    @property
    def binds_mpi(self) -> bool:
        """True if the image uses the host's MPI."""
        return self.contract.mpi is not None and self.contract.mpi.route == "host"

    @property
    def binds_cray(self) -> bool:
        """True if the host's MPI is Cray MPICH, which is in many folders."""
        return self.contract.mpi is not None and self.contract.mpi.family == "craympich"

    @property
    def tasks(self) -> int:
        """Ranks per node: one for each GPU."""
        if self.contract.mpi is None:
            return 1
        return self.place.gpus if self.has_gpu else 4

    def gpu_option(self, runtime: str) -> str:
        """Return the runtime's option for the driver, with a space before it, or nothing."""
        return f" {RUNTIMES[runtime].gpu}" if self.has_gpu else ""

    @property
    def starter(self) -> str:
        """The way in which Slurm starts the ranks: a key in templates/starters.j2."""
        mpi = self.planned.mpi
        if mpi is None:
            return "none"
        family = facts.MPI_FAMILIES[mpi.family]
        if family.slurm:
            return family.slurm
        if family.abi != "openmpi":
            return "pmi2"
        return "pmix" if mpi.pmix else "mpiexec"

    @property
    def has_mpiexec(self) -> bool:
        """True if the mpiexec of a host's MPI can also start the ranks."""
        return self.planned.mpi is not None and not self.binds_cray

    @property
    def proof(self) -> str:
        """The command of the check `mpi` for all ranks; without this check, of all checks.

        The check's own command starts 4 ranks itself. The arguments after the program's name are
        the number of ranks, which is replaced, and further expected values. The host's MPI may be
        another release than the image's cell names.
        """
        for check in self.planned.checks:
            if check.name == "mpi" and self.binds_mpi:
                return f'{_IN_IMAGE}/bin/mpi "$SLURM_NTASKS" single'
            if check.name == "mpi" and "$OUT/mpi " in check.run:
                _, *words = shlex.split(check.run.partition("$OUT/mpi ")[2])
                return f'{_IN_IMAGE}/bin/mpi "$SLURM_NTASKS" {shlex.join(words)}'
        return f"{_IN_IMAGE}/run-checks"


def needs_of(contract: HostContract) -> str:
    """Return the requirements of an image on a host, in one line."""
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


# A Job's name becomes a label of its pods, with six more characters: RFC 1123, 63 characters.
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LONGEST = 57


def kubernetes_name(text: str) -> str:
    """Return a text as an object's name: lower case, digits and hyphens; a long name is cut.

    A name that is cut ends with eight digits of the text's SHA-256, so that names stay unique.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# The files of each image, by template. Scripts end in .sh.
_BY_CH_RUN = "slurm-charliecloud.sh"  # ch-run binds only folders; Cray MPICH needs files, too
_MPIEXEC = "mpiexec-charliecloud.sh"
_FILES = (
    *("slurm-apptainer.sh", _BY_CH_RUN, "podman.sh", _MPIEXEC),
    *("openshift-build.yaml", "openshift-pod.yaml", "openshift-job.yaml"),
)


def site_files(images: Sequence[SiteImage]) -> dict[str, str]:
    """Return the text of every file, by its path below the output folder, in order.

    Each image has a folder; the modules are together in `modulefiles/`, and the entries of shpc in
    `shpc/ARCHITECTURE/`, as their programs require. An image without a digest has no shpc entry.
    """
    environment = text_environment(Path(__file__).parent / "templates")
    environment.filters.update(
        shell=shlex.quote,
        quoted=json.dumps,  # YAML
        lua=lua,
        line=lambda text: " ".join(text.split()),  # for a comment
        kube=kubernetes_name,
        needs=needs_of,
    )

    def text(name: str, **values: object) -> str:
        return environment.get_template(f"{name}.j2").render(**values)

    files: dict[str, str] = {}
    of_shpc: dict[str, list[SiteImage]] = {}
    for image in images:
        left_out = {_BY_CH_RUN} if image.binds_cray else set()
        left_out |= set() if image.has_mpiexec else {_MPIEXEC}
        for name in _FILES:
            if name not in left_out:
                files[f"{image.cell.identifier}/{name}"] = text(name, image=image)
        module = f"modulefiles/{image.cell.recipe}/{image.cell.tag}-{image.cell.arch}.lua"
        files[module] = text("module.lua", image=image)
        if image.digest:
            path = f"shpc/{image.cell.arch}/{image.repository.replace(':', '_')}/container.yaml"
            of_shpc.setdefault(path, []).append(image)
    for path, group in of_shpc.items():
        files[path] = text("container.yaml", image=group[-1], images=group)
    return files


def lua(text: str) -> str:
    """Return a string in Lua; characters without an escape in all Lua versions stay, as UTF-8."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'
