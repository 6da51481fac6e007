"""Correct hpccm where it is wrong, or chooses something for another machine.

There are two kinds of corrections: of arguments that a recipe does not set, and of lines of the
text that no argument affects. Names such as fftw.py are files of hpccm's source:
https://github.com/NVIDIA/hpc-container-maker/tree/v26.5.0/hpccm/building_blocks
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from builder.compile.spec.catalogue import AARCH64, DEBIAN, PPC64LE, X86_64, family, notes_on
from builder.model import EPOCH, PlannedCuda, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.exact_json import part
from builder.model.versions import version_order

Arguments = dict[str, object]
_NVIDIAS_CUDA, _OF_DISTRIBUTION_CUDA = "/usr/local/cuda", "/usr"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuirkTarget:
    """The target of an image: its architecture, distribution and CUDA toolkit.

    `release` is the major version of the distribution; `cuda_home` is empty without a toolkit, and
    `stubs` is the toolkit's folder with stubs of the driver's libraries.
    """

    arch: str
    family: str
    distribution: str
    release: int
    cuda_home: str

    @property
    def stubs(self) -> str:
        """The folder of stubs, which Debian has among the libraries of the architecture.

        https://packages.debian.org/trixie/amd64/nvidia-cuda-dev/filelist
        """
        if self.cuda_home != _OF_DISTRIBUTION_CUDA:
            return f"{self.cuda_home}/lib64/stubs" if self.cuda_home else ""
        return f"/usr/lib/{ARCHITECTURES[self.arch].triplet}/stubs"


def target_of(image: PlannedImage) -> QuirkTarget:
    base = image.base
    return QuirkTarget(
        arch=image.cell.arch,
        family=family(base.hpccm_distro),
        distribution=base.distribution,
        release=(*version_order(base.version), 0)[0],
        cuda_home=_toolkit_home(image.cuda) if image.cuda else "",
    )


def _toolkit_home(cuda: PlannedCuda) -> str:
    """Return the toolkit's folder: Debian's in /usr, an HPC SDK's in it, else /usr/local/cuda."""
    if cuda.route == "distribution":
        return _OF_DISTRIBUTION_CUDA
    return cuda.packages.environment["CUDA_HOME"] if cuda.sdk else _NVIDIAS_CUDA


def adjusted(name: str, arguments: Mapping[str, object], target: QuirkTarget) -> Arguments:
    """Return a block's arguments, with others for hpccm's defaults that do not fit this target."""
    own: Arguments = {**copy.deepcopy(notes_on(name).defaults), **arguments}
    for quirk in _QUIRKS.get(name, ()):
        quirk(own, target)
    return own


def corrected(text: str, target: QuirkTarget) -> str:
    """Return a spec's text with hpccm's lines for other distributions corrected."""
    for wrong, right in (*_repositories(target), *_stub_folders(target)):
        text = text.replace(wrong, right)
    # Since RHEL 8, yum is dnf, whose metadata hpccm would leave in the layer.
    text = text.replace("rm -rf /var/cache/yum/*", "rm -rf /var/cache/dnf/* /var/cache/yum/*")
    if target.arch == PPC64LE:
        text = re.sub(_HPCX_NAME, r"\1ppc64le", text)
    return text


def downloads(name: str, arguments: Mapping[str, object]) -> bool:
    """Return whether a block fetches something by HTTPS, and so needs certificates."""
    fetches = notes_on(name).fetches
    return fetches == "always" or (fetches == "named" and _names_a_source(arguments))


def fetches(text: str) -> bool:
    """Return whether commands of a spec fetch something by HTTPS."""
    return any(command in text for command in ("wget -", "curl ", "git clone ", "bin/pip "))


_GIT = re.compile(r"(?m)^    [^#\n]*\bgit (?:lfs )?clone [^\n]* && cd -$")


def _names_a_source(value: object) -> bool:
    """Return whether an argument names a URL or a PPA, or implies one."""
    if isinstance(value, Mapping):
        asked = any(value.get(key) is True for key in ("extra_repository", "source", "upstream"))
        return asked or any(map(_names_a_source, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_names_a_source, value))
    return isinstance(value, str) and ("https:" in value or value.startswith("ppa:"))


# hpccm's blocks copy to /var/tmp, which Singularity hides during copies.
WORK_FOLDER = "/usr/local/src"


def _conda(arguments: Arguments, _: QuirkTarget) -> None:
    """Work where definitions can copy to: https://apptainer.org/docs/user/latest/ (%files)."""
    if arguments.get("environment"):
        arguments.setdefault("wd", WORK_FOLDER)


# FFTW's VSX code is right since 3.3.7: https://github.com/easybuilders/easybuild-easyblocks/pull/1520
# NEON in double precision, only on aarch64, since 3.3.5: https://www.fftw.org/release-notes.html
_VECTORS = {PPC64LE: ("--enable-vsx", "3.3.7"), AARCH64: ("--enable-neon", "3.3.5")}
_NO_VECTORS = ("enable_long_double", "enable_quad_precision")


def _fftw(arguments: Arguments, target: QuirkTarget) -> None:
    """Set vector options: fftw.py has only SSE2 and AVX, for x86_64.

    It also sets SSE2 for precisions beyond double, with which FFTW's configure refuses it.
    """
    scalar = any(arguments.get(name) for name in _NO_VECTORS)
    if arguments.get("configure_opts") or (target.arch == X86_64 and not scalar):
        return
    options = ["--enable-shared", "--enable-openmp", "--enable-threads"]
    option, since = _VECTORS.get(target.arch, ("", ""))
    version = str(arguments.get("version") or since)
    if option and not scalar and version_order(version) >= version_order(since):
        options.append(option)
    arguments["configure_opts"] = options


# Unless NUM_THREADS is set, OpenBLAS never starts more threads than the building machine has cores
# (https://github.com/OpenMathLib/OpenBLAS/blob/develop/Makefile.rule). A POWER9 node
# of Satori has 176 hardware threads, today's two-socket servers up to 512.
_MOST_THREADS = "NUM_THREADS=512"
_OPENBLAS_TARGETS = {X86_64: "DYNAMIC_ARCH=1", PPC64LE: "TARGET=POWER8", AARCH64: "TARGET=ARMV8"}


def _openblas(arguments: Arguments, target: QuirkTarget) -> None:
    """Set the number of threads, and a target for x86_64, which openblas.py does not set.

    OpenBLAS would use those of the building machine. DYNAMIC_ARCH builds the kernels of all
    processors and chooses at run time. Other architectures get their oldest processor, as in hpccm.
    """
    if arguments.get("make_opts"):
        return
    named = _variables(arguments)
    compilers = [f"{key}={named[key]}" for key in ("CC", "FC") if named.get(key)]
    arguments["make_opts"] = [
        *compilers,
        _OPENBLAS_TARGETS[target.arch],
        "USE_OPENMP=1",
        _MOST_THREADS,
    ]


def _cuda(arguments: Arguments, target: QuirkTarget) -> None:
    """Switch CUDA off without a toolkit: hpccm's default is on, and `configure` would fail."""
    arguments.setdefault("cuda", bool(target.cuda_home))


def _cuda_path(arguments: Arguments, target: QuirkTarget) -> None:
    """Name the toolkit's folder: for true, openmpi.py and ucx.py always use /usr/local/cuda.

    openmpi.py leaves the search to Open MPI, which looks only there.
    """
    arguments.setdefault("cuda", target.cuda_home or False)
    if (
        arguments["cuda"] is True
        and target.cuda_home
        and not _variables(arguments).get("CUDA_HOME")
    ):
        arguments["cuda"] = target.cuda_home


def _variables(arguments: Arguments) -> Mapping[str, object]:
    """Return the toolchain's variables in a recipe; empty if it names a block's toolchain."""
    toolchain = arguments.get("toolchain")
    return toolchain if isinstance(toolchain, Mapping) else {}


# Components of Open MPI 5 that need the driver's library. Since 5.0.2 they are separate files by
# default, and skipped if there is no driver:
# https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/cuda.html
_DRIVER_COMPONENTS = "accelerator-cuda,btl-smcuda,rcache-gpusm,rcache-rgpusm"


def _open_mpi_5_cuda(arguments: Arguments, target: QuirkTarget) -> None:
    """Set CUDA options of Open MPI 5, which links a stub of the driver's library.

    Its first releases would need a driver at run time. Its configure uses the first stub below the
    toolkit's folder, of any architecture (https://github.com/open-mpi/ompi/issues/12509).
    """
    if not arguments["cuda"] or not _is_at_least(arguments, "5.0"):
        return
    if not _is_at_least(arguments, "5.0.2"):
        arguments.setdefault("enable_mca_dso", _DRIVER_COMPONENTS)
    if target.stubs:
        arguments.setdefault("with_cuda_libdir", target.stubs)


def _ucx_options(arguments: Arguments, target: QuirkTarget) -> None:
    """Name the stubs of Debian's toolkit: UCX's configure finds only those of NVIDIA's."""
    options = part(arguments, "configure_opts")
    if arguments["cuda"] == target.cuda_home == _OF_DISTRIBUTION_CUDA:
        arguments["configure_opts"] = [*options, f"LDFLAGS=-L{target.stubs}"]


def _mvapich2(arguments: Arguments, target: QuirkTarget) -> None:
    """Name the toolkit's folder: mvapich2.py uses /usr/local/cuda unless a toolchain has one."""
    _cuda(arguments, target)
    of_block = isinstance(arguments.get("toolchain"), str)
    if arguments["cuda"] and target.cuda_home == _OF_DISTRIBUTION_CUDA and not of_block:
        arguments["toolchain"] = {"CUDA_HOME": target.cuda_home, **_variables(arguments)}


def _stub_folders(target: QuirkTarget) -> tuple[tuple[str, str], ...]:
    """Return wrong and right folders: mvapich2.py links stubs in lib64; Debian has none there."""
    if target.cuda_home != _OF_DISTRIBUTION_CUDA:
        return ()
    return tuple(
        (f"{home}/lib64/stubs", target.stubs) for home in (_NVIDIAS_CUDA, _OF_DISTRIBUTION_CUDA)
    )


def _verbs(arguments: Arguments, _: QuirkTarget) -> None:
    """Switch verbs off for Open MPI 5, which no longer has them and uses InfiniBand by UCX.

    https://docs.open-mpi.org/en/v5.0.x/release-notes/networks.html
    """
    if _is_at_least(arguments, "5.0"):
        arguments.setdefault("infiniband", False)


def _is_at_least(arguments: Arguments, version: str) -> bool:
    named = str(arguments.get("version", ""))
    return bool(named) and version_order(named) >= version_order(version)


def _kokkos(arguments: Arguments, target: QuirkTarget) -> None:
    """Name no GPU architecture if CUDA is off; kokkos.py always names one."""
    _cuda(arguments, target)
    if not arguments["cuda"]:
        arguments.setdefault("arch", [])


def _ucx_flags(arguments: Arguments, target: QuirkTarget) -> None:
    """Switch a warning of old releases off on ppc64le, which ucx.py does only without CFLAGS."""
    variables = _variables(arguments)
    if target.arch == PPC64LE and variables.get("CFLAGS"):
        flags = f"{variables['CFLAGS']} -Wno-error=format"
        arguments["toolchain"] = {**variables, "CFLAGS": flags}


def _mvapich2_gdr(arguments: Arguments, target: QuirkTarget) -> None:
    """Name the architecture as RPMs do; on Ubuntu, mvapich2_gdr.py would use ppc64el."""
    arguments.setdefault("arch", target.arch)


# hpcx.py does the same, and has no argument for it.
_HPCX_NAME = r"(hpcx-v[^\s/]*-)ppc64el\b"

_Quirk = Callable[[Arguments, QuirkTarget], None]
_QUIRKS: Mapping[str, tuple[_Quirk, ...]] = {
    "conda": (_conda,),
    "fftw": (_fftw,),
    "kokkos": (_kokkos,),
    "mvapich2": (_mvapich2,),
    "mvapich2_gdr": (_mvapich2_gdr,),
    "openblas": (_openblas,),
    "openmpi": (_cuda_path, _open_mpi_5_cuda, _verbs),
    "ucx": (_cuda_path, _ucx_options, _ucx_flags),
}

_POWERTOOLS = "yum-config-manager --set-enabled powertools"
_EPEL = "yum install -y epel-release"


def _repositories(target: QuirkTarget) -> tuple[tuple[str, str], ...]:
    """Return wrong and right lines: yum.py always enables CentOS 8's powertools and EPEL's package.

    The repository is called crb since release 9, and ubi-N-codeready-builder on UBI, which also has
    no package of EPEL. Older UBI images name their repositories without -rpms.
    """
    if target.family == DEBIAN:
        return ()
    if target.distribution.startswith(("ubi", "rhel")):
        name = f"ubi-{target.release}-codeready-builder"
        enable = "yum-config-manager --set-enabled"
        release = f"https://dl.fedoraproject.org/pub/epel/epel-release-latest-{target.release}"
        return (
            (_POWERTOOLS, f"({enable} {name}-rpms || {enable} {name})"),
            (_EPEL, f"yum install -y {release}.noarch.rpm"),
        )
    if target.release >= 9:  # noqa: PLR2004 - see above
        return ((_POWERTOOLS, "yum-config-manager --set-enabled crb"),)
    return ()


def step_by_step(definition: str) -> str:
    """Return a definition whose git steps are on lines of their own.

    hpccm writes `cd DIR && git clone URL && cd -`. %post runs under `sh -e`, which ignores
    failures before &&: a failed clone would go unnoticed.
    """
    return _GIT.sub(lambda step: step[0].replace(" && ", "\n    "), definition)


# Programs record when and where they were built (Open MPI's ompi_info, HDF5's h5cc):
# https://reproducible-builds.org/docs/source-date-epoch/
_WHEN_AND_WHERE = f"export SOURCE_DATE_EPOCH={EPOCH} HOSTNAME=localhost"
# Names of packages in a list do not match: they end the line, or come before &&.
_COMPILES = re.compile(r"(?:/configure |/b2 |\./build |\bcmake |\bmake )(?![\\&])")
_STEP = re.compile(
    r"^(?:RUN (?P<run>(?:.*\\\n)*.*)|%post\n(?P<post>(?:[ \t].*\n?)*))", re.MULTILINE
)


def repeatable(text: str) -> str:
    """Return a block's text whose compile steps always get the same time and host name.

    Other steps do not: Python would then compile modules that read their sources at each import.
    https://docs.python.org/3/library/py_compile.html#py_compile.PycInvalidationMode
    """
    return _STEP.sub(_fixed_step, text)


def _fixed_step(step: re.Match[str]) -> str:
    if not _COMPILES.search(step[0]):
        return step[0]
    if step["run"]:
        return f"RUN {_WHEN_AND_WHERE} && \\\n    {step['run']}"
    return f"%post\n    {_WHEN_AND_WHERE}\n{step['post']}"
