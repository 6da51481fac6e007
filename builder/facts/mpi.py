"""Facts about MPI implementations: launchers, library names, binary interfaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from builder.facts.places import Where


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiFamily:
    """An MPI implementation: how its launcher starts ranks on one node, and its library.

    `launch` is a command prefix with `{ranks}` in it that works in a container, as root or not,
    on fewer cores than ranks. `library` is how MPI_Get_library_version names a `{version}`, as
    the checks shorten it. Libraries of one `abi` can stand in for each other at run time. One
    that is `host_only` is never in an image: it is bound in where the image runs. It exists for
    `architectures`, or for all of them if none is named. `made_from` is the family whose sources it
    is made from, where its interface is another one all the same. `slurm` is the only kind of PMI
    by which Slurm starts its ranks. `brings` are libraries of the host that it needs in the
    container beside its own.
    """

    name: str
    title: str
    launch: str
    library: str
    sonames: tuple[str, ...]
    abi: str
    host_only: bool = False
    architectures: tuple[str, ...] = ()
    made_from: str = ""
    slurm: str = ""
    brings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiRelease:
    """One series (`4.1`) of a family: the library's name and the PMIx that it brings.

    `pmix` is the version inside; empty if there is none, or it is not known.
    """

    family: str
    series: str
    soname: str
    sources: tuple[str, ...]
    where: Where
    pmix: str = ""
    notes: str = ""


# From this PMIx on, client and server may be of different versions. Of older ones, a server of
# 1.2.5 serves clients of 1.2 alone, and one of 2.0.3 those of 2.0 and of 1.2.5:
# https://openpmix.github.io/support/faq/how-does-pmix-work-with-containers
PMIX_MEETS_ALL = "2.1.1"

# What launchers print for --version, by the family whose programs they start. MVAPICH2's is Hydra,
# too, which is MPICH's.
_LAUNCHER_MARKS = (
    ("openmpi", re.compile(r"\(Open MPI\)|Open MPI|OpenRTE|PRRTE")),
    ("spectrummpi", re.compile(r"IBM Spectrum MPI")),
    ("intelmpi", re.compile(r"Intel\(R\) MPI")),
    ("mpich", re.compile(r"HYDRA")),
)
# A name that Open MPI's libmpi has in it, as what is made from it, and no other: the file of Open
# MPI 1.10 is called as MPICH's.
OPEN_MPI_SYMBOL = b"ompi_mpi_"

# Launchers: mpirun(1) of Open MPI 4.1 and 5.0 (--oversubscribe is the 4.x spelling, still taken by
# 5.0), mpiexec(1) of MPICH's Hydra, which MVAPICH2 and Intel MPI have too. MVAPICH2 pins each
# rank to a core of its own unless told not to: its user guide, MV2_ENABLE_AFFINITY,
# https://mvapich.cse.ohio-state.edu/userguide/. Library names: Open MPI's VERSION files, MPICH ABI
# compatibility initiative, https://www.mpich.org/abi/; Debian names MPICH's libmpich.so.12.
MPI_FAMILIES: Mapping[str, MpiFamily] = {
    "openmpi": MpiFamily(
        name="openmpi",
        title="Open MPI",
        launch="mpirun --allow-run-as-root --oversubscribe -n {ranks}",
        library="Open MPI v{version}",
        sonames=("libmpi.so.40",),
        abi="openmpi",
    ),
    "mpich": MpiFamily(
        name="mpich",
        title="MPICH",
        launch="mpiexec -n {ranks}",
        library="MPICH {version}",
        sonames=("libmpich.so.12", "libmpi.so.12"),
        abi="mpich",
    ),
    "mvapich2": MpiFamily(
        name="mvapich2",
        title="MVAPICH2",
        launch="mpiexec -genv MV2_ENABLE_AFFINITY 0 -n {ranks}",
        library="MVAPICH2 {version}",
        sonames=("libmpi.so.12",),
        abi="mpich",
    ),
    "intelmpi": MpiFamily(
        name="intelmpi",
        title="Intel MPI",
        launch="mpiexec -n {ranks}",
        library="Intel(R) MPI Library {version}",
        sonames=("libmpi.so.12",),
        abi="mpich",
        host_only=True,
        # https://www.intel.com/content/www/us/en/developer/tools/oneapi/mpi-library.html
        architectures=("x86_64",),
    ),
    # HPE's own libraries are called by their compiler (libmpi_gnu_123.so.12). What stands in for
    # MPICH's is beside them, in the folder lib-abi-mpich, for the module cray-mpich-abi. It has no
    # launcher: Slurm or PALS start its ranks. What it needs besides is as sites bind it:
    # https://docs.olcf.ornl.gov/software/containers_on_frontier.html
    # https://docs.archer2.ac.uk/user-guide/containers/
    "craympich": MpiFamily(
        name="craympich",
        title="Cray MPICH",
        launch="srun -n {ranks}",
        library="MPI VERSION    : CRAY MPICH version {version}",
        sonames=("libmpi.so.12",),
        abi="mpich",
        host_only=True,
        architectures=("x86_64", "aarch64"),
        slurm="cray_shasta",
        brings=("libfabric.so.1 with its provider CXI", "libcxi.so.1", "Cray's libpmi"),
    ),
    # IBM's, made from Open MPI. Its library has a name of its own, and IBM promises the interface
    # of no release of Open MPI.
    "spectrummpi": MpiFamily(
        name="spectrummpi",
        title="Spectrum MPI",
        launch="mpirun -n {ranks}",
        library="IBM Spectrum MPI {version}",
        sonames=("libmpi_ibm.so.3",),
        abi="spectrummpi",
        host_only=True,
        architectures=("x86_64", "ppc64le"),
        made_from="openmpi",
    ),
}


def launcher_family(output: str) -> str:
    """The family whose programs a launcher starts, by what it prints; empty if that is none's."""
    return next((name for name, mark in _LAUNCHER_MARKS if mark.search(output)), "")
