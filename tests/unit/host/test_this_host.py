"""What this machine says of itself, made of fake programs, /proc trees and a driver's library."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from samples import compare_with_golden

from builder.host.doctor import SystemRoots
from builder.host.local_host import cpu_of, this_host, this_machine
from builder.host.records import (
    Host,
    HostGpu,
    HostMpi,
    HostRuntime,
    HostSlurm,
    as_record,
    read_record,
)
from builder.system.nvml import LIBRARY_NOT_FOUND, Gpu, NvmlFault, NvmlReading
from builder.system.process import Processes

OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/"
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)"
PMI = """MPI plugin types are...
\tnone
\tcray_shasta
\tpmi2
\tpmix
specific pmix plugin versions available: pmix_v3,pmix_v4"""
OLD_PMI = "srun: MPI types are...\nsrun: none\nsrun: pmix_v3\nsrun: pmi2\nsrun: openmpi\nsrun: pmix"
DRIVER = (
    "NVRM version: NVIDIA UNIX ppc64le Kernel Module  418.87.00  Thu Aug  8 15:35:46 CDT 2019\n"
    "GCC version:  gcc version 4.8.5 20150623 (Red Hat 4.8.5-36) (GCC)"
)

NO_LIBRARY = NvmlReading(
    fault=NvmlFault(call="dlopen", number=12, name=LIBRARY_NOT_FOUND, text="no such file")
)


@dataclass
class Machine:
    """A machine in a folder."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, text: str, *, code: int = 0, folder: str = "bin") -> None:
        body = f"#!/bin/sh\ncat <<'TEXT'\n{text}\nTEXT\nexit {code}\n"
        self.write(f"{folder}/{name}", body).chmod(0o755)

    def asked(self, name: str, answers: dict[str, str]) -> None:
        """A program that answers to its first argument, and to no other."""
        cases = "".join(f"{key}) cat <<'TEXT'\n{text}\nTEXT\n;;\n" for key, text in answers.items())
        body = f'#!/bin/sh\ncase "$1" in\n{cases}*) exit 1 ;;\nesac\n'
        self.write(f"bin/{name}", body).chmod(0o755)

    def look(
        self, reading: NvmlReading = NO_LIBRARY, variables: Mapping[str, str] | None = None
    ) -> Host:
        return this_host(Processes(), variables=variables, **self._settings(reading))

    def look_without_programs(self, reading: NvmlReading = NO_LIBRARY) -> Host:
        return this_machine(Processes(), **self._settings(reading))

    def _settings(self, reading: NvmlReading) -> dict[str, Any]:
        top = self.root
        roots = SystemRoots(top=top, proc=top / "proc", etc=top / "etc", dev=top / "dev")
        return {"search_path": str(top / "bin"), "roots": roots, "ask": lambda _: reading}


@pytest.fixture(name="machine")
def bare_machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    (tmp_path / "bin").mkdir()
    machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: a cpu\nflags\t\t: sse avx\n")
    machine.write("proc/sys/user/max_user_namespaces", "100\n")
    return machine


def test_a_bare_machine_has_nothing(machine: Machine) -> None:
    host = machine.look()
    assert host.architecture
    assert host.kernel
    assert host.cpu.features == ("avx", "sse")
    assert (host.gpu.driver, host.gpu.devices) == ("none", ())
    assert (host.gpu.toolkit, host.gpu.cdi, host.gpu.compat) == (False, False, ())
    assert host.gpu.on_bus is None
    assert host.mpi == ()
    assert host.slurm == HostSlurm(pmi=())
    assert host.runtimes == {}
    assert host.user_namespaces is True
    assert host.emulators is None


def test_all_that_a_machine_tells_of_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("platform.node", "here"),
        ("platform.machine", "x86_64"),
        ("platform.release", "6.1.0"),
        ("platform.libc_ver", ("glibc", "2.36")),
        ("os.sysconf", 4096),
    ):
        monkeypatch.setattr(name, lambda *_, value=value: value)
    machine.program("mpirun", OPEN_MPI)
    machine.program("mpirun.mpich", HYDRA)
    for name, needs in (
        ("lib64/libmpi.so.40", "ompi_mpi_comm_world\0GLIBC_2.34\0"),
        ("lib/x86_64-linux-gnu/libmpich.so.12", "GLIBC_2.3\0"),
        ("lib/release/libmpi.so.12", ""),
        ("lib/libmpi_cxx.so.40", "ompi_mpi_comm_world\0"),
    ):
        machine.write(name, needs)
    machine.program("ldd", "")
    machine.asked("srun", {"--version": "slurm 23.02.4", "--mpi=list": PMI})
    machine.program("podman", "podman version 4.6.1")
    machine.asked("docker", {"version": "24.0.7"})
    machine.asked("crio", {"--version": "crio version 1.24.0"})
    machine.asked("ch-run", {"--version": "0.39"})
    machine.write("usr/share/containers/seccomp.json", '{"syscalls": [], "defaultErrnoRet": 38}')
    machine.write("etc/apparmor.d/podman", f"profile x {machine.root}/bin/podman {{\n  userns,\n}}")
    machine.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    machine.write("dev/fuse", "").chmod(0o666)
    machine.write("proc/sys/fs/binfmt_misc/status", "enabled")
    machine.write("proc/driver/nvidia/version", DRIVER)
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x0302"), ("0x1002", "0x1200"), ("0x8086", "0x0300"), ("0x8086", "0x0200")]
    ):
        machine.write(f"sys/bus/pci/devices/{number}/vendor", vendor)
        machine.write(f"sys/bus/pci/devices/{number}/class", kind)
    for release in ("12.4", "11.8"):
        machine.write(f"usr/local/cuda-{release}/compat/libcuda.so.1", "")
    machine.write("var/run/cdi/nvidia.json", "")
    reading = NvmlReading(gpus=(V100, replace(A100, mig_enabled=True, mig_devices=2)))
    told = as_record(machine.look(reading, variables={})).replace(str(machine.root), "HERE")
    compare_with_golden(told, "host.json")


def test_what_was_found_is_read_again_from_its_record(machine: Machine, tmp_path: Path) -> None:
    machine.program("mpirun", OPEN_MPI)
    machine.program("srun", PMI)
    machine.write("proc/driver/nvidia/version", DRIVER)
    host = machine.look(NvmlReading(gpus=(V100,)))
    without = dataclasses.replace(host, mpi=None, slurm=HostSlurm(), runtimes=None)
    (tmp_path / "bin").rename(tmp_path / "away")  # no program is needed
    assert machine.look_without_programs(NvmlReading(gpus=(V100,))) == without != host
    (tmp_path / "host.json").write_text(as_record(host))
    assert read_record(tmp_path / "host.json") == host


@pytest.mark.parametrize(
    ("cpuinfo", "model", "features"),
    [
        ("cpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported", "power8 power9"),
        ("cpu\t\t: POWER8E (raw), altivec supported\n", None, "power8"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "", "asimd fp"),
        ("model name : x\nflags : b a\nmodel name : y\nflags : c\n", "x", "a b"),
    ],
)
def test_processors(cpuinfo: str, model: str | None, features: str) -> None:
    cpu = cpu_of(cpuinfo)
    assert cpu.features == tuple(features.split())
    assert model is None or cpu.model == model


def test_a_processor_that_says_nothing_is_not_known() -> None:
    assert cpu_of("").features is None
    assert cpu_of("cpu : something else\n").features is None


@pytest.mark.parametrize(
    ("said", "family", "version"),
    [
        (OPEN_MPI, "openmpi", "4.1.4"),
        ("mpirun.real (OpenRTE) 2.1.1", "openmpi", "2.1.1"),
        ("mpirun (Open MPI) 5.0.7", "openmpi", "5.0.7"),
        (HYDRA, "mpich", "4.0.2"),
        (INTEL, "intelmpi", "2021.10"),
        ("mpirun (IBM Spectrum MPI) 10.3.1.02rtm0", "spectrummpi", "10.3.1.02"),
    ],
)
def test_mpis(said: str, family: str, version: str, machine: Machine) -> None:
    machine.program("mpirun", said)
    found = machine.look().mpi
    assert found == (
        HostMpi(family=family, version=version, launcher=str(machine.root / "bin/mpirun")),
    )


def test_mvapich2_tells_by_a_program_of_its_own(machine: Machine) -> None:
    machine.program("mpiexec", HYDRA)
    machine.program("mpiname", "MVAPICH2 2.3.7 Wed Mar 02 22:00:00 EST 2022 ch3:mrail")
    found = machine.look().mpi or ()
    assert [(one.family, one.version) for one in found] == [("mvapich2", "2.3.7")]


@pytest.mark.parametrize("code", [0, 1])
def test_a_launcher_of_another_kind_is_not_known(code: int, machine: Machine) -> None:
    machine.program("mpirun", "mpirun (Some Other MPI) 1.0", code=code)
    assert machine.look().mpi is None
    machine.program("mpiexec", OPEN_MPI)
    assert [one.family for one in machine.look().mpi or ()] == ["openmpi"]


def test_a_launcher_that_is_a_script_starts_the_program_beside_it(machine: Machine) -> None:
    """As Intel MPI's mpirun does; the system may have another program of that name."""
    machine.write("bin/mpirun", '#!/bin/sh\nexec true "$@"\n').chmod(0o755)
    machine.program("true", INTEL)
    assert [(each.family, each.version) for each in machine.look().mpi or ()] == [
        ("intelmpi", "2021.10")
    ]
    machine.write("bin/srun", '#!/bin/sh\nexec true "$@"\n').chmod(0o755)
    beside = HostSlurm(version="2021.10", pmi=None)
    assert machine.look().slurm != beside, "other programs use the system's"


def test_a_cray_mpich_is_told_by_its_module(machine: Machine) -> None:
    for name in ("lib/libmpi_gnu_123.so.12", "lib-abi-mpich/libmpi.so.12", "lib/libmpifort.so.12"):
        machine.write(f"cray/{name}", "GLIBC_2.17\0")
    machine.program("ldd", "\tlinux-vdso.so.1 (0x1)")
    loaded = {"CRAY_MPICH_DIR": str(machine.root / "cray"), "CRAY_MPICH_VERSION": "8.1.28"}
    assert machine.look(variables=loaded).mpi == (
        HostMpi(
            family="craympich",
            version="8.1.28",
            libraries=("libmpi.so.12", "libmpi_gnu_123.so.12"),
            glibc="2.17",
        ),
    )
    assert machine.look(variables={}).mpi == ()


def test_spectrum_mpis_library_has_a_name_of_its_own(machine: Machine) -> None:
    machine.program("mpirun", "mpirun (IBM Spectrum MPI) 10.3.1.02rtm0")
    machine.write("lib/libmpi_ibm.so.3", "ompi_mpi_comm_world\0")
    [found] = machine.look().mpi or ()
    assert found.libraries == ("libmpi_ibm.so.3",)


def test_the_libraries_of_an_mpi_and_the_c_library_that_they_need(machine: Machine) -> None:
    machine.program("mpirun", OPEN_MPI)
    needs = "ompi_mpi_comm_world\0GLIBC_2.2.5\0GLIBC_2.17\0"
    library = machine.write("lib/libmpi.so.40.30.4", needs)
    (machine.root / "lib/libmpi.so.40").symlink_to(library)
    machine.write("lib/libmpi.so.12", "MPICH's GLIBC_2.30\0")
    fabric = machine.write("lib64/libfabric.so.1", "GLIBC_2.28\0GLIBC_2.4\0")
    libc = machine.write("lib64/libc.so.6", "GLIBC_2.38\0")
    machine.program("ldd", f"\tlibfabric.so.1 => {fabric} (0x1)\n\tlibc.so.6 => {libc} (0x2)")
    found = machine.look().mpi or ()
    assert [(one.libraries, one.glibc) for one in found] == [(("libmpi.so.40",), "2.28")]


def test_the_pmix_beside_an_open_mpi(machine: Machine) -> None:
    machine.program("mpirun", OPEN_MPI)
    machine.program("pmix_info", "pmix_info (PMIx) 4.2.2")
    machine.program("ompi_info", "  MCA pmix: pmix3x (MCA v2.1.0, API v2.0.0)")
    assert [one.pmix for one in machine.look().mpi or ()] == [""]
    machine.program("ompi_info", "  MCA pmix: ext3x (MCA v2.1.0, API v2.0.0)")
    assert [one.pmix for one in machine.look().mpi or ()] == ["4.2.2"]


@pytest.mark.parametrize(
    ("listed", "kinds"),
    [
        (PMI, ("none", "cray_shasta", "pmi2", "pmix", "pmix_v3", "pmix_v4")),
        (OLD_PMI, ("none", "pmix_v3", "pmi2", "openmpi", "pmix")),
    ],
)
def test_slurm(listed: str, kinds: tuple[str, ...], machine: Machine) -> None:
    machine.asked("srun", {"--version": "slurm-wlm 22.05.8", "--mpi=list": listed})
    assert machine.look().slurm == HostSlurm(version="22.05.8", pmi=kinds)


def test_slurm_that_does_not_answer_is_not_known(machine: Machine) -> None:
    machine.program("srun", "srun: fatal: Could not establish a configuration source", code=1)
    assert machine.look().slurm == HostSlurm(pmi=None)


def test_runtimes(machine: Machine) -> None:
    libexec = machine.root / "libexec"
    machine.asked(
        "apptainer",
        {"--version": "apptainer version 1.3.2-1.el8", "buildcfg": f"LIBEXECDIR={libexec}"},
    )
    machine.program("singularity", "apptainer version 1.3.2-1.el8")  # a link to it
    machine.asked("ch-run", {"--version": "0.39", "--help": "--set-env=... --cdi ..."})
    machine.program("podman", "podman version 4.6.1")
    machine.program("docker", "Cannot connect to the Docker daemon", code=1)
    assert machine.look().runtimes == {
        "apptainer": HostRuntime(version="1.3.2", setuid=False),
        "charliecloud": HostRuntime(version="0.39", cdi=True),
        "podman": HostRuntime(version="4.6.1"),
    }


def test_a_setuid_starter_is_roots(machine: Machine) -> None:
    libexec = machine.root / "libexec"
    machine.asked(
        "singularity", {"--version": "singularity 3.5.3", "buildcfg": f"LIBEXECDIR={libexec}"}
    )
    starter = machine.write("libexec/singularity/bin/starter-suid", "")
    starter.chmod(0o4755)
    found = (machine.look().runtimes or {})["singularity"]
    assert found == HostRuntime(version="3.5.3", setuid=starter.stat().st_uid == 0)


def test_gpus_on_the_bus_without_a_driver(machine: Machine) -> None:
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x030000"), ("0x10de", "0x040300"), ("0x8086", "0x03")]
    ):
        machine.write(f"sys/bus/pci/devices/{number}/vendor", vendor)
        machine.write(f"sys/bus/pci/devices/{number}/class", kind)
    gpu = machine.look().gpu
    assert (gpu.driver, gpu.devices, gpu.on_bus) == ("none", (), 2)


def test_what_brings_a_driver_into_containers(machine: Machine) -> None:
    machine.program("nvidia-container-cli", "cli-version: 1.17.4")
    machine.write("etc/cdi/nvidia.yaml", "")
    machine.write("usr/local/cuda-11.8/compat/libcuda.so.1", "")
    machine.write("usr/local/cuda-12.4/lib64/libcudart.so.12", "")
    gpu = machine.look().gpu
    assert (gpu.toolkit, gpu.cdi, gpu.compat) == (True, True, ("11.8",))


def test_a_driver_without_its_library_tells_models_alone(machine: Machine) -> None:
    machine.write("proc/driver/nvidia/version", DRIVER)
    information = "Model: \t\t Tesla V100-SXM2-32GB\nIRQ: 1\n"
    machine.write("proc/driver/nvidia/gpus/0004:04:00.0/information", information)
    gpu = machine.look().gpu
    assert gpu.driver == "418.87.00"
    assert gpu.devices == (HostGpu(model="Tesla V100-SXM2-32GB"),)


def test_emulators_work_in_containers_or_are_none(machine: Machine) -> None:
    def handler(name: str, state: str, flags: str, machine_code: str) -> None:
        magic = f"7f454c4602010100000000000000000002{'00'}{machine_code}"
        text = f"{state}\ninterpreter /usr/bin/{name}\nflags: {flags}\noffset 0\nmagic {magic}\n"
        machine.write(f"proc/sys/fs/binfmt_misc/{name}", text)

    machine.write("proc/sys/fs/binfmt_misc/status", "enabled")
    handler("qemu-ppc64le", "enabled", "OCF", "1500")
    handler("qemu-aarch64", "enabled", "OC", "b700")
    handler("qemu-x86_64", "disabled", "OCF", "3e00")
    assert machine.look().emulators == ("ppc64le",)


# The driver's library.

V100 = Gpu(index=0, name="Tesla V100-SXM2-32GB", compute_capability="7.0")
A100 = Gpu(index=0, name="NVIDIA A100-SXM4-40GB", compute_capability="8.0")


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        (V100, HostGpu(model=V100.name, capability=70, mig=False)),
        (
            replace(A100, mig_enabled=True, mig_devices=2),
            HostGpu(model=A100.name, capability=80, mig=True, mig_instances=2),
        ),
        (
            replace(A100, mig_enabled=True, mig_devices=0),
            HostGpu(model=A100.name, capability=80, mig=True, mig_instances=0),
        ),
        (replace(A100, mig_enabled=False), HostGpu(model=A100.name, capability=80, mig=False)),
        (
            replace(A100, fault=NvmlFault(call="nvmlDeviceGetMigMode", number=999, name="x")),
            HostGpu(model=A100.name, capability=80),
        ),
        (
            Gpu(index=0, fault=NvmlFault(call="nvmlDeviceGetHandle", number=15, name="x")),
            HostGpu(),
        ),
    ],
)
def test_what_the_library_tells(machine: Machine, gpu: Gpu, device: HostGpu) -> None:
    machine.write("proc/driver/nvidia/version", DRIVER)
    found = machine.look(NvmlReading(gpus=(gpu, V100))).gpu
    assert found.devices == (device, HostGpu(model=V100.name, capability=70, mig=False))
    assert found.fault == ""


def test_a_library_of_another_version_is_a_fault(machine: Machine) -> None:
    machine.write("proc/driver/nvidia/version", DRIVER)
    name = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    fault = NvmlFault(call="nvmlInit_v2", number=18, name=name, text="Driver/library mismatch")
    gpu = machine.look(NvmlReading(fault=fault)).gpu
    assert (gpu.devices, gpu.fault) == (None, f"Driver/library mismatch ({name})")


def test_without_a_driver_nobody_is_asked(machine: Machine) -> None:
    assert machine.look(NvmlReading(gpus=(V100,))).gpu.devices == ()
