"""Machines whose vendor brings the MPI: Cray MPICH with libfabric and CXI, IBM's Spectrum MPI."""

from __future__ import annotations

import dataclasses

import pytest
from host_samples import CRAY_MPICH, DEBIANS_MPICH, MPICH, OPENMPI, contract, host, known, recorded

from builder.host.records import Host, HostMpi, HostSlurm
from builder.host.rules import judge
from builder.host.verdict import NO, UNKNOWN, YES, RuleAnswer
from builder.model.contract import NeededMpi

CRAY = recorded("cray-ex")
OF_MODULE = CRAY.mpi or ()
NATIVE = tuple(dataclasses.replace(one, libraries=("libmpi_gnu_123.so.12",)) for one in OF_MODULE)
SPECTRUM = HostMpi(
    family="spectrummpi", version="10.3.1.02", libraries=("libmpi_ibm.so.3",), glibc="2.17"
)
SATORI = host("satori", mpi=(SPECTRUM,), slurm=HostSlurm(pmi=()))


def answered(way: str, mpi: NeededMpi, where: Host) -> RuleAnswer:
    image = contract(where.architecture or "", mpi=mpi)
    [found] = judge(image, where, known(), launchers=(way,)).launchers
    return found


@pytest.mark.parametrize("mpi", [CRAY_MPICH, MPICH], ids=lambda one: one.family)
def test_cray_mpich_is_bound_into_images_of_mpichs_interface(mpi: NeededMpi) -> None:
    found = answered("bind", mpi, CRAY)
    assert found.answer == YES
    of_another = "" if mpi is CRAY_MPICH else "; programs have the functions of this MPI only"
    assert found.reason == (
        "libmpi.so.12 of Cray MPICH 8.1.28 runs on the image's glibc 2.36; also bind "
        f"libfabric.so.1 with its provider CXI, libcxi.so.1, Cray's libpmi{of_another}"
    )


def test_the_library_of_crays_own_programs_is_none_for_mpichs() -> None:
    found = answered("bind", MPICH, dataclasses.replace(CRAY, mpi=NATIVE))
    assert found.answer == NO
    assert "programs of the image look for libmpi.so.12, and Cray MPICH 8.1.28 has" in found.reason
    assert found.fix == "load cray-mpich-abi: its lib-abi-mpich has libmpi.so.12"
    # Debian's MPICH is called otherwise: its images are not for such hosts.
    assert answered("bind", DEBIANS_MPICH, CRAY).answer == NO


def test_what_mpich_in_an_image_is_started_by_on_a_cray() -> None:
    found = answered("hybrid", MPICH, CRAY)
    assert found.answer == UNKNOWN
    assert "(srun --mpi=pmi2)" in found.fix
    only = dataclasses.replace(CRAY, slurm=HostSlurm(pmi=("none", "cray_shasta")))
    found = answered("hybrid", MPICH, only)
    assert found.answer == NO
    assert found.reason.startswith(
        "Cray MPICH 8.1.28 starts only its own ranks by cray_shasta, not those of MPICH 4.1.1; "
        "Slurm has no pmi2 (srun --mpi=list: none, cray_shasta)"
    )
    assert found.fix.startswith("bind the host's MPI in (bind)")


def test_open_mpi_is_no_stranger_on_a_cray_by_itself_alone() -> None:
    assert answered("in-container", OPENMPI, CRAY).answer == YES
    assert answered("hybrid", OPENMPI, CRAY).answer == NO
    assert answered("bind", OPENMPI, CRAY).answer == NO


def test_spectrum_mpi_stands_in_for_no_open_mpi() -> None:
    found = answered("bind", OPENMPI, SATORI)
    assert found.answer == NO
    assert found.reason == (
        "no MPI of the host has the binary interface of Open MPI "
        "(installed: Spectrum MPI 10.3.1.02)"
    )


def test_whether_spectrum_mpi_starts_open_mpi_nobody_promises() -> None:
    found = answered("hybrid", OPENMPI, SATORI)
    assert found.answer == UNKNOWN
    assert found.reason == (
        "mpirun of Spectrum MPI 10.3.1.02 is not guaranteed to start ranks of Open MPI 4.1.4 "
        "(PMIx 3.1 outside and 4.2 inside, meant to work together)"
    )
    old = dataclasses.replace(OPENMPI, version="1.10.7", pmix="")
    found = answered("hybrid", old, SATORI)
    assert found.answer == NO
    assert "(PMIx 3.1 outside, none inside)" in found.reason


def test_an_mpi_like_ibms_is_in_no_image() -> None:
    family = known().mpi_series("spectrummpi", "10.3")
    assert family is not None
    assert family.pmix == "3.1"
