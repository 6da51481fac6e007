"""Facts about MPI implementations: launchers, library names, binary interfaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from builder.facts.tables import Where, rows


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

MPI_FAMILIES: Mapping[str, MpiFamily] = {
    family.name: family for family in rows("mpi-families", "families", MpiFamily)
}


def launcher_family(output: str) -> str:
    """Return the family of a launcher by its version text; empty if it is unknown."""
    return next((name for name, mark in _LAUNCHER_MARKS if mark.search(output)), "")
