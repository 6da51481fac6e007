"""Images and hosts held against each other: the outcomes, each with its reason and its fix."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from host_samples import (
    DEBIANS_MPICH,
    INTEL_MPI,
    MPICH,
    NO_GPUS,
    OPENMPI,
    OPENMPI_5,
    contract,
    cpu,
    cuda,
    gpu,
    host,
    known,
    needed_cpu,
    recorded,
    with_gpu,
)
from samples import ROOT, compare_with_golden

from builder.facts import NO_FACTS
from builder.host import NO, UNKNOWN, YES, Host, HostVerdict, as_text, judge
from builder.host.records import HostCpu, HostGpus, HostMpi, HostRuntime, HostSlurm
from builder.model.contract import HostContract

A100 = gpu("NVIDIA A100-SXM4-40GB", 80)
V100 = gpu("Tesla V100-SXM2-32GB", 70)
GEFORCE = gpu("NVIDIA GeForce RTX 3090", 86)
NO_SLURM = HostSlurm(pmi=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One image, one host, and what is said of them: of one rule, with words of reason and fix."""

    name: str
    image: HostContract
    host: Host
    answer: str
    rule: str
    says: str
    fix: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    rule_answer: str = ""


def power(cuda_version: str = "10.1", **changes: Any) -> HostContract:
    """An image for POWER with CUDA, as `satori` would take it."""
    return contract("ppc64le", cuda=cuda(cuda_version), **changes)


def launched(way: str) -> dict[str, Any]:
    return {"launchers": (way,)}


def started(by: str) -> dict[str, Any]:
    return {"runtimes": (by,)}


MPICH_HOST = host(
    "dgx",
    mpi=(HostMpi(family="mpich", version="4.1.2", libraries=("libmpi.so.12",), glibc="2.34"),),
    slurm=NO_SLURM,
)

OUTCOMES = (
    # the driver and CUDA
    Outcome(
        name="V100, driver 418.87, CUDA 10.1, POWER9",
        image=power(),
        host=recorded("satori"),
        answer=YES,
        rule="driver",
        says="418.87.00; CUDA 10.1 needs 418.39",
    ),
    Outcome(
        name="the same with CUDA 11.8",
        image=power("11.8"),
        host=recorded("satori"),
        answer=NO,
        rule="driver",
        says="418.87.00 is older than 450.80.02, the least that runs CUDA 11.8: every call fails "
        "with cudaErrorInsufficientDriver (35)",
        fix="take an image with CUDA 10.1 or older, which this driver runs (--cuda 10.1); or "
        "install NVIDIA's driver 450.80.02 or newer on the host",
    ),
    Outcome(
        name="driver 410",
        image=power(),
        host=with_gpu("satori", driver="410.79"),
        answer=NO,
        rule="driver",
        says="410.79 is older than 418.39",
        fix="CUDA 10.0 or older",
    ),
    Outcome(
        name="driver 418.87 and CUDA 10.2: no minor-version compatibility before 11",
        image=power("10.2"),
        host=recorded("satori"),
        answer=NO,
        rule="driver",
        says="before CUDA 11, a release needs the driver of its own",
        fix="CUDA 10.1 or older",
    ),
    Outcome(
        name="a driver that is newer than the toolkit's",
        image=contract(cuda=cuda("11.8")),
        host=recorded("dgx"),
        answer=YES,
        rule="driver",
        says="525.147.05; CUDA 11.8 needs 450.80.02",
    ),
    Outcome(
        name="minor-version compatibility, 12.4 on 525",
        image=contract(cuda=cuda("12.4")),
        host=recorded("dgx"),
        answer=YES,
        rule="driver",
        says="CUDA 12.4 runs on 525.60.13 and newer by minor-version compatibility (550.54.15 came",
    ),
    Outcome(
        name="minor-version compatibility, 11.8 on 450.80.02",
        image=contract(cuda=cuda("11.8")),
        host=with_gpu("dgx", driver="450.80.02"),
        answer=YES,
        rule="driver",
        says="by minor-version compatibility",
    ),
    Outcome(
        name="one release below minor-version compatibility",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", driver="520.61.05"),
        answer=NO,
        rule="driver",
        says="520.61.05 is older than 525.60.13",
        fix="CUDA 11.8 or older",
    ),
    Outcome(
        name="an unknown driver",
        image=power(),
        host=with_gpu("satori", driver=None),
        answer=UNKNOWN,
        rule="driver",
        says="CUDA 10.1 needs driver 418.39 or newer, and the host's driver is not known",
        fix="cat /proc/driver/nvidia/version",
    ),
    Outcome(
        name="a GPU without a driver",
        image=power(),
        host=with_gpu("satori", driver="none", devices=()),
        answer=NO,
        rule="driver",
        says="no driver is loaded, and 2 GPUs are on the PCI bus",
        fix="modprobe nvidia",
    ),
    Outcome(
        name="a driver whose library is another's",
        image=power(),
        host=with_gpu("satori", fault="NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
        answer=NO,
        rule="driver",
        says="the driver's library does not answer",
        fix="restart the host",
    ),
    Outcome(
        name="cuda-compat for a data centre GPU",
        image=power("11.8"),
        host=with_gpu("satori", compat=("11.8",)),
        answer=UNKNOWN,
        rule="driver",
        says="cuda-compat 11.8 is here, and may make up for it on these data centre GPUs",
    ),
    Outcome(
        name="cuda-compat for a desktop GPU",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", driver="470.57.02", devices=(GEFORCE,), compat=("12.4",)),
        answer=NO,
        rule="driver",
        says="works on no desktop GPU (error 804)",
    ),
    Outcome(
        name="cuda-compat of an older release than the image's",
        image=power("11.8"),
        host=with_gpu("satori", compat=("11.0",)),
        answer=NO,
        rule="driver",
        says="cudaErrorInsufficientDriver",
    ),
    # the GPUs
    Outcome(
        name="no GPU for a GPU image",
        image=contract(cuda=cuda("12.4")),
        host=recorded("supermuc"),
        answer=NO,
        rule="driver",
        says="no driver of NVIDIA's is loaded",
        fix="a host with a GPU of NVIDIA's; programs of the image that use none run all the same",
    ),
    Outcome(
        name="a driver that shows no GPU",
        image=power(),
        host=with_gpu("satori", devices=()),
        answer=NO,
        rule="GPUs",
        says="the driver shows no GPU, though 2 are on the PCI bus: cudaErrorNoDevice (100)",
    ),
    Outcome(
        name="GPUs that are not known",
        image=power(),
        host=with_gpu("satori", devices=None),
        answer=UNKNOWN,
        rule="GPUs",
        says="the host's are not known",
        fix="nvidia-smi",
    ),
    Outcome(
        name="no GPU for an image without CUDA",
        image=contract(mpi=OPENMPI),
        host=recorded("supermuc"),
        answer=YES,
        rule="architecture",
        says="x86_64, as the image",
    ),
    Outcome(
        name="MIG with instances",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", devices=(dataclasses.replace(A100, mig=True, mig_instances=7),)),
        answer=YES,
        rule="GPUs",
        says="7 MIG instances: a process computes on one",
    ),
    Outcome(
        name="MIG without an instance",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", devices=(dataclasses.replace(A100, mig=True, mig_instances=0),)),
        answer=NO,
        rule="GPUs",
        says="GPU 0 is in MIG mode without an instance",
        fix="nvidia-smi mig",
    ),
    Outcome(
        name="MIG without an instance on one GPU of two",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", devices=(A100, dataclasses.replace(A100, mig=True, mig_instances=0))),
        answer=YES,
        rule="GPUs",
        says="2 x NVIDIA A100-SXM4-40GB; GPU 1 is in MIG mode without an instance",
    ),
    Outcome(
        name="MIG that is not known",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", devices=(dataclasses.replace(A100, mig=None),)),
        answer=UNKNOWN,
        rule="GPUs",
        says="whether GPU 0 is in MIG mode, with instances, is not known",
    ),
    # the compute capability
    Outcome(
        name="a GPU that is older than the image's code",
        image=contract(cuda=cuda("12.9", "80", "90")),
        host=with_gpu("dgx", devices=(V100,), driver="575.57.08"),
        answer=NO,
        rule="compute capability",
        says=": 7.0; the image holds code for 8.0, 9.0: cudaErrorNoKernelImageForDevice (209)",
    ),
    Outcome(
        name="a V100 with CUDA 13",
        image=contract(cuda=cuda("13.0")),
        host=with_gpu("dgx", devices=(V100,), driver="580.65.06"),
        answer=NO,
        rule="compute capability",
        says="cudaErrorNoKernelImageForDevice",
        fix="take an image with CUDA 9.2 to 12.9, which have code for it",
    ),
    Outcome(
        name="a newer GPU of the same major capability",
        image=contract(cuda=cuda("11.0", "70", "80")),
        host=with_gpu("dgx", devices=(gpu("NVIDIA A10", 86),)),
        answer=YES,
        rule="compute capability",
        says="8.6, and the image holds code for 8.0",
    ),
    Outcome(
        name="a newer GPU by PTX",
        image=contract(cuda=cuda("12.4", "70")),
        host=with_gpu("dgx", driver="550.54.15"),
        answer=YES,
        rule="compute capability",
        says="PTX of 7.0, which the driver compiles when a program first starts",
    ),
    Outcome(
        name="a newer GPU by PTX that is newer than the driver",
        image=contract(cuda=cuda("12.4", "70")),
        host=recorded("dgx"),
        answer=NO,
        rule="compute capability",
        says="cudaErrorUnsupportedPtxVersion, 222",
        fix="driver 550.54.15 or newer; or take an image with CUDA 11.0 to 12.9, which have code",
    ),
    Outcome(
        name="a newer GPU without PTX",
        image=contract(cuda=dataclasses.replace(cuda("12.4", "70"), ptx="")),
        host=with_gpu("dgx", driver="550.54.15"),
        answer=NO,
        rule="compute capability",
        says="cudaErrorNoKernelImageForDevice",
    ),
    Outcome(
        name="Tegra's code is not for other GPUs",
        image=contract(cuda=cuda("11.8", "72")),
        host=with_gpu("dgx", devices=(gpu("Tesla T4", 75),), driver="515.43.04"),
        answer=NO,
        rule="compute capability",
        says=": 7.5; the image holds code for 7.2, and PTX of 7.2",
    ),
    Outcome(
        name="several GPUs, one without code",
        image=contract(cuda=cuda("12.4", "80")),
        host=with_gpu("dgx", devices=(A100, V100)),
        answer=NO,
        rule="compute capability",
        says="GPU 1 (Tesla V100-SXM2-32GB): 7.0",
        fix="show the image the others alone (CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0)",
    ),
    Outcome(
        name="several GPUs, all with code",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", devices=(A100, V100)),
        answer=YES,
        rule="compute capability",
        says="the image holds code for 7.0",
    ),
    Outcome(
        name="a capability by the model alone",
        image=power(),
        host=with_gpu("satori", devices=(gpu("Tesla V100-SXM2-32GB", None),)),
        answer=YES,
        rule="compute capability",
        says="GPU 0 (Tesla V100-SXM2-32GB): 7.0",
    ),
    Outcome(
        name="a capability that is not known",
        image=power(),
        host=with_gpu("satori", devices=(gpu("Quadro GP100X", None),)),
        answer=UNKNOWN,
        rule="compute capability",
        says="the compute capability of GPU 0 (Quadro GP100X) is not known",
    ),
    Outcome(
        name="a driver that no longer drives the GPU",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", devices=(V100,), driver="590.48.01"),
        answer=NO,
        rule="compute capability",
        says="which driver 590.48.01 no longer drives: branch 580 is the last",
    ),
    # the machine
    Outcome(
        name="an x86_64 image on ppc64le",
        image=contract(),
        host=recorded("satori"),
        answer=NO,
        rule="architecture",
        says="the image is for x86_64, and the host is ppc64le",
        fix="take the image for ppc64le: sample-1.0-debian12-ppc64le",
    ),
    Outcome(
        name="emulation that was not asked for",
        image=contract("ppc64le"),
        host=recorded("dgx"),
        answer=NO,
        rule="architecture",
        says="no program of it starts",
        fix="or check with --emulated",
    ),
    Outcome(
        name="emulation that is there",
        image=contract("ppc64le"),
        host=recorded("dgx"),
        answer=YES,
        rule="architecture",
        says="ppc64le, emulated by QEMU on x86_64: not native",
        options={"emulated": True},
    ),
    Outcome(
        name="emulation of a processor that QEMU may not have",
        image=contract("ppc64le", cpu=needed_cpu("power10le")),
        host=recorded("dgx"),
        answer=UNKNOWN,
        rule="processor",
        says="compiled for power10le, and what QEMU emulates of it is not known",
        fix="-cpu help",
        options={"emulated": True},
    ),
    Outcome(
        name="emulation that is not there",
        image=contract("ppc64le"),
        host=recorded("supermuc"),
        answer=NO,
        rule="architecture",
        says="this x86_64 host has no emulator for ppc64le",
        fix="binfmt_misc",
        options={"emulated": True},
    ),
    Outcome(
        name="emulation reaches no GPU",
        image=power(),
        host=recorded("dgx"),
        answer=NO,
        rule="driver",
        says="NVIDIA's driver has no libraries for programs of ppc64le here",
        options={"emulated": True},
    ),
    Outcome(
        name="aarch64",
        image=contract("aarch64", cuda=cuda("12.4")),
        host=recorded("grace"),
        answer=YES,
        rule="compute capability",
        says="the image holds code for 9.0",
    ),
    Outcome(
        name="a host without an architecture",
        image=contract(),
        host=host("dgx", architecture=None),
        answer=UNKNOWN,
        rule="architecture",
        says="not known",
        fix="uname -m",
    ),
    Outcome(
        name="x86_64_v4 on an x86_64_v2 host",
        image=contract(cpu=needed_cpu("x86_64_v4")),
        host=host("dgx", cpu=cpu("Intel Xeon E5540", "nehalem")),
        answer=NO,
        rule="processor",
        says="Intel Xeon E5540 lacks abm avx avx2",
        fix="take the image for every processor, or for x86_64_v2 (--cpu-target x86_64_v2)",
    ),
    Outcome(
        name="x86_64_v4 on Skylake",
        image=contract(cpu=needed_cpu("x86_64_v4")),
        host=recorded("supermuc"),
        answer=YES,
        rule="processor",
        says="has all that x86_64_v4 needs",
    ),
    Outcome(
        name="power9 on POWER8",
        image=contract("ppc64le", cpu=needed_cpu("power9le", "power8le")),
        host=host("satori", cpu=cpu("POWER8NVL (raw), altivec supported", "power8le")),
        answer=NO,
        rule="processor",
        says="POWER8NVL (raw), altivec supported lacks power9",
        fix="take the image for every processor, or a host that is power9le",
    ),
    Outcome(
        name="a generic image of a base that needs POWER9, on POWER8",
        image=contract("ppc64le", cpu=needed_cpu(baseline="power9le")),
        host=host("satori", cpu=cpu("POWER8", "power8le")),
        answer=NO,
        rule="processor",
        says="lacks power9",
        fix="take the image on another base: this one's packages need power9le",
    ),
    Outcome(
        name="a processor that is not known",
        image=contract("ppc64le"),
        host=host("satori", cpu=HostCpu()),
        answer=UNKNOWN,
        rule="processor",
        says="the host's processor is not known",
    ),
    Outcome(
        name="a CPU target that this version does not know",
        image=contract(cpu=dataclasses.replace(needed_cpu(), target="x86_64_v5")),
        host=recorded("dgx"),
        answer=UNKNOWN,
        rule="processor",
        says="what x86_64_v5 needs is in no table",
    ),
    Outcome(
        name="an old kernel",
        image=contract(),
        host=host("dgx", kernel="2.6.32-754.35.1.el6.x86_64"),
        answer=NO,
        rule="kernel",
        says='Linux 2.6.32-754.35.1.el6.x86_64 is older than 3.2.0, which glibc 2.36 needs: "FATAL',
    ),
    Outcome(
        name="the least kernel",
        image=contract(),
        host=host("dgx", kernel="3.2.0-4-amd64"),
        answer=YES,
        rule="kernel",
        says="3.2.0-4-amd64",
    ),
    Outcome(
        name="a kernel that is not known",
        image=contract(),
        host=host("dgx", kernel=None),
        answer=UNKNOWN,
        rule="kernel",
        says="the host's kernel is not known",
    ),
    Outcome(
        name="an image that does not know its C library",
        image=contract(kernel="", glibc=""),
        host=recorded("supermuc"),
        answer=UNKNOWN,
        rule="kernel",
        says="the image does not say which kernel its C library needs",
        fix="facts/systems.yaml",
    ),
    # the runtimes
    Outcome(
        name="no user namespaces, and no setuid starter",
        image=contract(),
        host=host("dgx", user_namespaces=False),
        answer=NO,
        rule="apptainer",
        says="user namespaces are closed to ordinary users",
        fix="sysctl user.max_user_namespaces",
        options=started("apptainer"),
    ),
    Outcome(
        name="no user namespaces, and a setuid starter",
        image=power(),
        host=recorded("satori"),
        answer=YES,
        rule="singularity",
        says="its starter is setuid root",
    ),
    Outcome(
        name="Charliecloud without user namespaces",
        image=contract(),
        host=host("supermuc", user_namespaces=False),
        answer=NO,
        rule="charliecloud",
        says="closed to ordinary users",
    ),
    Outcome(
        name="user namespaces that are not known",
        image=contract(),
        host=host("supermuc", user_namespaces=None),
        answer=UNKNOWN,
        rule="charliecloud",
        says="whether user namespaces are open to ordinary users is not known",
    ),
    Outcome(
        name="Docker needs no user namespaces",
        image=contract(),
        host=host("dgx", user_namespaces=False),
        answer=YES,
        rule="docker",
        says="docker 24.0.7",
    ),
    Outcome(
        name="Docker that forbids clone3",
        image=contract(),
        host=host("dgx", runtimes={"docker": HostRuntime(version="19.03.15")}),
        answer=NO,
        rule="docker",
        says="Docker 19.03.15 forbids clone3",
        fix="20.10.10 or newer",
    ),
    Outcome(
        name="the same Docker with an older C library",
        image=contract(glibc="2.31"),
        host=host("dgx", runtimes={"docker": HostRuntime(version="19.03.15")}),
        answer=YES,
        rule="docker",
        says="docker 19.03.15",
    ),
    Outcome(
        name="Singularity 2 reads no SIF",
        image=contract(),
        host=host("dgx", runtimes={"singularity": HostRuntime(version="2.6.1", setuid=True)}),
        answer=NO,
        rule="singularity",
        says="version 2.6.1 reads no SIF",
    ),
    Outcome(
        name="no runtime at all",
        image=contract(),
        host=host("dgx", runtimes={}),
        answer=NO,
        rule="container runtime",
        says="the host has none",
        fix="install one of",
    ),
    Outcome(
        name="runtimes that are not known",
        image=contract(),
        host=host("dgx", runtimes=None),
        answer=UNKNOWN,
        rule="container runtime",
        says="not known",
    ),
    Outcome(
        name="a runtime that is not there",
        image=contract(),
        host=recorded("dgx"),
        answer=NO,
        rule="charliecloud",
        says="not found on the host",
        options=started("charliecloud"),
    ),
    Outcome(
        name="a GPU through Podman without CDI",
        image=contract(cuda=cuda("12.4")),
        host=with_gpu("dgx", toolkit=False),
        answer=NO,
        rule="podman",
        says="nothing here brings the driver's libraries into its containers",
        fix="nvidia-ctk cdi generate",
        options=started("podman"),
    ),
    Outcome(
        name="a GPU through Charliecloud without NVIDIA's toolkit",
        image=contract(cuda=cuda("12.4")),
        host=dataclasses.replace(
            with_gpu("dgx", toolkit=False),
            runtimes={"charliecloud": HostRuntime(version="0.30", cdi=False)},
        ),
        answer=NO,
        rule="charliecloud",
        says="nothing here brings the driver's libraries",
    ),
    # the launchers
    Outcome(
        name="MPICH host, Open MPI image: hybrid",
        image=contract(mpi=OPENMPI),
        host=MPICH_HOST,
        answer=NO,
        rule="hybrid",
        says='MPICH 4.1.2 on the host does not start ranks of Open MPI 4.1.4: each rank would be "',
        fix="load Open MPI 4.1.4 on the host",
        options=launched("hybrid"),
    ),
    Outcome(
        name="MPICH host, Open MPI image: in-container",
        image=contract(mpi=OPENMPI),
        host=MPICH_HOST,
        answer=YES,
        rule="in-container",
        says="Open MPI 4.1.4 is in the image, with its launcher: on one node",
        options=launched("in-container"),
    ),
    Outcome(
        name="MPICH host, Open MPI image: any way",
        image=contract(mpi=OPENMPI),
        host=MPICH_HOST,
        answer=YES,
        rule="hybrid",
        rule_answer=NO,
        says="does not start ranks",
    ),
    Outcome(
        name="MPICH host, Open MPI image: bound in",
        image=contract(mpi=OPENMPI),
        host=MPICH_HOST,
        answer=NO,
        rule="bind",
        says="no MPI of the host has the binary interface of Open MPI (it has: MPICH 4.1.2)",
        options=launched("bind"),
    ),
    Outcome(
        name="Slurm with pmix",
        image=contract(mpi=OPENMPI),
        host=host("dgx", mpi=()),
        answer=YES,
        rule="hybrid",
        says="srun --mpi=pmix_v4 starts ranks of Open MPI 4.1.4 (PMIx 4.2)",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Slurm without pmix",
        image=contract(mpi=OPENMPI),
        host=host("dgx", mpi=(), slurm=HostSlurm(pmi=("none", "pmi2", "cray_shasta"))),
        answer=NO,
        rule="hybrid",
        says="Slurm has no pmix (srun --mpi=list: none, pmi2, cray_shasta)",
        fix="install Slurm's PMIx plug-in",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Slurm with a pmix of some version",
        image=contract(mpi=OPENMPI),
        host=host("dgx", mpi=(), slurm=HostSlurm(pmi=("none", "pmi2", "pmix"))),
        answer=UNKNOWN,
        rule="hybrid",
        says="versions from 2.1.1 on meet, and whether these do is not known",
        options=launched("hybrid"),
    ),
    Outcome(
        name="PMIx of another major version",
        image=contract(mpi=OPENMPI_5),
        host=host("dgx", mpi=(), slurm=HostSlurm(pmi=("none", "pmix", "pmix_v3"))),
        answer=YES,
        rule="hybrid",
        says="srun --mpi=pmix_v3 starts ranks of Open MPI 5.0.7 (PMIx 5.0)",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Open MPI without PMIx under Slurm",
        image=contract(mpi=dataclasses.replace(OPENMPI, version="1.10.7", pmix="")),
        host=host("dgx", mpi=()),
        answer=NO,
        rule="hybrid",
        says="Open MPI 1.10.7 has no PMIx",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Open MPI of the same series",
        image=contract(mpi=dataclasses.replace(OPENMPI, version="4.1.8")),
        host=host("dgx", slurm=NO_SLURM),
        answer=YES,
        rule="hybrid",
        says="mpirun of Open MPI 4.1.4 starts ranks of Open MPI 4.1.8: one series",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Open MPI of another major version",
        image=contract(mpi=OPENMPI_5),
        host=host("dgx", slurm=NO_SLURM),
        answer=UNKNOWN,
        rule="hybrid",
        says="(PMIx 3.2 outside and 5.0 inside, made to meet) Open MPI promises for equal versions",
        fix="start 2 ranks",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Open MPI of another major version, without PMIx",
        image=contract(mpi=OPENMPI),
        host=host("dgx", mpi=(HostMpi(family="openmpi", version="1.10.7"),), slurm=NO_SLURM),
        answer=NO,
        rule="hybrid",
        says="does not start ranks of Open MPI 4.1.4 (PMIx none outside, 4.2 inside)",
        options=launched("hybrid"),
    ),
    Outcome(
        name="an MPI of the host that is not known",
        image=contract(mpi=OPENMPI),
        host=host("dgx", mpi=None, slurm=NO_SLURM),
        answer=UNKNOWN,
        rule="hybrid",
        says="which MPI the host has is not known",
        options=launched("hybrid"),
    ),
    Outcome(
        name="MPICH by MPICH's launcher",
        image=contract(mpi=MPICH),
        host=MPICH_HOST,
        answer=YES,
        rule="hybrid",
        says="both speak PMI",
        options=launched("hybrid"),
    ),
    Outcome(
        name="MPICH by Intel MPI's launcher",
        image=contract(mpi=MPICH),
        host=host("supermuc", slurm=NO_SLURM),
        answer=UNKNOWN,
        rule="hybrid",
        says="nobody promises that they meet",
        options=launched("hybrid"),
    ),
    Outcome(
        name="Intel MPI bound in",
        image=contract(mpi=INTEL_MPI),
        host=recorded("supermuc"),
        answer=YES,
        rule="bind",
        says="libmpi.so.12 of Intel MPI 2019.12 runs on the image's glibc 2.36",
    ),
    Outcome(
        name="Intel MPI's image alone",
        image=contract(mpi=INTEL_MPI),
        host=recorded("supermuc"),
        answer=NO,
        rule="in-container",
        says="the image holds no MPI: Intel MPI 2021.13 is to be bound in",
        options=launched("in-container"),
    ),
    Outcome(
        name="Debian's MPICH has a name of its own",
        image=contract(mpi=DEBIANS_MPICH),
        host=recorded("supermuc"),
        answer=NO,
        rule="bind",
        says="look for libmpich.so.12, and Intel MPI 2019.12 has libmpi.so.12",
        fix="bind its library under the name libmpich.so.12",
        options=launched("bind"),
    ),
    Outcome(
        name="a newer Open MPI bound in",
        image=contract(mpi=dataclasses.replace(OPENMPI, version="4.0.3")),
        host=recorded("dgx"),
        answer=YES,
        rule="bind",
        says="runs on the image's glibc 2.36",
        options=launched("bind"),
    ),
    Outcome(
        name="an older Open MPI bound in",
        image=contract(mpi=OPENMPI_5),
        host=recorded("dgx"),
        answer=UNKNOWN,
        rule="bind",
        says="Open MPI 4.1.4 is older than the image's 5.0.7",
        options=launched("bind"),
    ),
    Outcome(
        name="a host's MPI that needs a newer C library",
        image=contract(mpi=OPENMPI, glibc="2.31"),
        host=recorded("dgx"),
        answer=NO,
        rule="bind",
        says='needs glibc 2.34, and the image has 2.31 ("GLIBC_2.34 not found")',
        options=launched("bind"),
    ),
    Outcome(
        name="a host's MPI whose C library is not known",
        image=contract(mpi=OPENMPI, glibc="2.31"),
        host=host(
            "dgx",
            mpi=(HostMpi(family="openmpi", version="4.1.4", libraries=("libmpi.so.40",)),),
        ),
        answer=UNKNOWN,
        rule="bind",
        says="may need glibc 2.35, the host's, and the image has 2.31",
        options=launched("bind"),
    ),
    Outcome(
        name="a launcher for an image without MPI",
        image=contract(),
        host=recorded("dgx"),
        answer=NO,
        rule="hybrid",
        says="the image has no MPI",
        options=launched("hybrid"),
    ),
)


def judged(one: Outcome) -> HostVerdict:
    return judge(one.image, one.host, known(), **one.options)


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_outcome(one: Outcome) -> None:
    verdict = judged(one)
    assert verdict.answer == one.answer, as_text(verdict, colour=False)
    findings = (*verdict.rules, *verdict.runtimes, *verdict.launchers)
    found = next(finding for finding in findings if finding.rule == one.rule)
    assert found.answer == (one.rule_answer or one.answer), as_text(verdict, colour=False)
    assert one.says in found.reason
    assert one.fix in found.fix


def test_all_that_is_told_of_all_outcomes() -> None:
    lines = []
    for one in OUTCOMES:
        lines += [f"## {one.name}", as_text(judged(one), colour=False), ""]
    compare_with_golden("\n".join(lines), "check-host.txt")


def test_there_are_as_many_outcomes_as_were_asked_for() -> None:
    names = [one.name for one in OUTCOMES]
    assert len(names) == len({*names}) >= 26
    assert {one.answer for one in OUTCOMES} == {YES, NO, UNKNOWN}


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_what_is_no_yes_has_a_reason_and_a_fix(one: Outcome) -> None:
    verdict = judged(one)
    for finding in verdict.decisive:
        assert finding.reason
        assert finding.fix, finding
    if one.answer != YES:
        assert one.rule in [finding.rule for finding in verdict.decisive]


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_the_text_says_all_of_it(one: Outcome) -> None:
    verdict = judged(one)
    text = " ".join(as_text(verdict, colour=False).split())
    for finding in (*verdict.rules, *verdict.runtimes, *verdict.launchers):
        assert " ".join(f"{finding.answer} {finding.rule} {finding.reason}".split()) in text
        if finding.answer != YES:
            assert " ".join(finding.fix.split()) in text


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_facts_say_what_to_take_instead_and_change_no_answer(one: Outcome) -> None:
    """So `pull`, which tells no fix, does without."""
    with_facts, without = judged(one), judge(one.image, one.host, NO_FACTS, **one.options)
    told = [(rule.rule, rule.answer, rule.reason) for rule in with_facts.rules]
    assert [(rule.rule, rule.answer, rule.reason) for rule in without.rules] == told


def test_checks_that_are_to_be_run_are_there() -> None:
    """Under the names that `verify` and `run-checks` know them by."""
    declared = yaml.safe_load((ROOT / "tests/images/checks.yaml").read_text())["checks"]
    findings = [
        finding
        for one in OUTCOMES
        for finding in (*judged(one).rules, *judged(one).runtimes, *judged(one).launchers)
    ]
    texts = " ".join(f"{one.reason} {one.fix}" for one in findings)
    named = {*re.findall(r"(?:its|the|image's) check ([\w-]+)", texts)}
    assert {"gpu-compute", "mpi"} <= named <= declared.keys()


def test_an_older_cuda_without_code_for_the_gpu_is_no_way_out() -> None:
    verdict = judge(contract(cuda=cuda("11.8")), with_gpu("dgx", driver="418.87.00"), known())
    driver = next(one for one in verdict.rules if one.rule == "driver")
    assert driver.fix.startswith("install NVIDIA's driver")  # CUDA 10.1 has none for an A100


def test_emulated_is_never_said_to_be_native() -> None:
    one = next(one for one in OUTCOMES if one.name == "emulation that is there")
    verdict = judged(one)
    assert verdict.emulated
    assert "yes: emulated, not native" in as_text(verdict, colour=False)
    native = judge(contract(), recorded("dgx"), known(), emulated=True)
    assert not native.emulated
    assert "yes: it runs here" in as_text(native, colour=False)


def test_colours_are_the_terminals() -> None:
    verdict = judged(OUTCOMES[1])
    assert "\033[31m" in as_text(verdict, colour=True)
    assert "\033" not in as_text(verdict, colour=False)


def test_a_host_of_nothing_is_no_yes() -> None:
    verdict = judge(contract(cuda=cuda("12.4"), mpi=OPENMPI), Host(), known())
    assert verdict.answer == UNKNOWN
    answers = {one.rule: one.answer for one in verdict.rules}
    assert answers.pop("processor") == YES  # the image runs on every one of its architecture
    assert {*answers.values()} == {UNKNOWN}
    assert HostGpus() == Host().gpu != NO_GPUS
