"""What confines containers on a host, and for how many nodes an answer holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from host_samples import MPICH, NO_GPUS, OPENMPI, contract, cuda, host, known, recorded
from test_this_host import Machine

from builder.host.doctor import SystemRoots
from builder.host.doctor.machine import restricted_namespaces
from builder.host.programs import allows_clone3, has_profile
from builder.host.records import Host, HostGpus, HostRuntime, HostSlurm
from builder.host.rules import judge
from builder.host.verdict import NO, UNKNOWN, YES, as_json, as_text

DEBIAN_13 = contract(glibc="2.41")


def with_runtime(name: str, record: str = "dgx", **changes: Any) -> Host:
    runtime = HostRuntime(**{key: changes.pop(key) for key in _RUNTIME & changes.keys()})
    return host(record, **{"runtimes": {name: runtime}, **changes})


_RUNTIME = {"version", "setuid", "cdi", "clone3", "profile"}


@pytest.mark.parametrize(
    ("runtime", "version", "clone3", "answer"),
    [
        ("podman", "1.6.4", None, NO),
        ("podman", "1.6.4", True, YES),  # the distribution's filter is newer
        ("podman", "3.0.1", None, UNKNOWN),
        ("podman", "3.3.0", None, YES),
        ("podman", "4.6.1", False, NO),  # the site's filter is older
        ("podman", "", None, UNKNOWN),
        ("crio", "1.21.0", None, NO),
        ("crio", "1.22.0", None, YES),
        ("docker", "20.10.9", None, NO),
        ("docker", "20.10.10", None, YES),
    ],
)
def test_filters_of_clone3(runtime: str, version: str, clone3: bool | None, answer: str) -> None:
    where = with_runtime(runtime, version=version, clone3=clone3)
    verdict = judge(DEBIAN_13, where, known())
    found = next(one for one in verdict.runtimes if one.rule == runtime)
    assert (found.answer, verdict.answer) == (answer, answer)
    assert answer == YES or ("clone3" in found.reason or "thread" in found.reason)
    assert judge(contract(glibc="2.33"), where, known()).answer == YES


@pytest.mark.parametrize(
    ("version", "answer", "says"),
    [
        ("0.9.6", NO, "it has no --set-env"),
        ("0.9.7", YES, "--set-env=IMAGE/ch/environment"),
        ("0.26", YES, ""),
        ("", YES, ""),
    ],
)
def test_charliecloud_sets_variables_of_an_image(version: str, answer: str, says: str) -> None:
    verdict = judge(DEBIAN_13, with_runtime("charliecloud", version=version), known())
    assert verdict.answer == answer
    assert says in verdict.runtimes[0].reason


@pytest.mark.parametrize(("version", "answer"), [("1.23.0", NO), ("1.24.0", YES)])
def test_cri_o_brings_gpus_in_by_cdi(version: str, answer: str) -> None:
    gpus = recorded("dgx").gpu
    gpus = HostGpus(driver=gpus.driver, devices=gpus.devices, on_bus=1, toolkit=False, cdi=True)
    where = with_runtime("crio", version=version, gpu=gpus)
    verdict = judge(contract(cuda=cuda("11.8")), where, known())
    assert verdict.runtimes[0].answer == answer


@pytest.mark.parametrize(
    ("option", "file", "answer", "says"),
    [
        (True, True, YES, "ch-run --cdi mounts the driver's libraries into the container"),
        (True, None, UNKNOWN, "not known whether ch-fromhost --nvidia or ch-run --cdi can mount"),
        (None, False, NO, "none of its options mounts"),
    ],
)
def test_charliecloud_brings_gpus_in_by_cdi(
    option: bool | None, file: bool | None, answer: str, says: str
) -> None:
    gpus = dataclasses.replace(recorded("dgx").gpu, toolkit=False, cdi=file)
    where = with_runtime("charliecloud", version="0.39", cdi=option, gpu=gpus)
    [found] = judge(contract(cuda=cuda("11.8")), where, known()).runtimes
    assert (found.answer, says in found.reason) == (answer, True), found.reason


@pytest.mark.parametrize(
    ("record", "needs", "runtime", "before"),
    [
        ("charliecloud", {"cuda": cuda("11.8")}, "charliecloud", "ch-fromhost --nvidia IMAGE"),
        ("charliecloud", {}, "charliecloud", None),
        ("crio", {}, None, None),  # a cluster starts its containers
    ],
)
def test_json_names_the_runtime_of_commands_and_what_comes_before_them(
    record: str, needs: dict[str, Any], runtime: str | None, before: str | None
) -> None:
    gpus = dataclasses.replace(recorded("dgx").gpu, toolkit=True)
    where = with_runtime(record, version="1.28" if record == "crio" else "0.31", gpu=gpus)
    verdict = judge(contract(**needs), where, known())
    document = json.loads(as_json(verdict))
    assert (document["answer"], document["runtime"], document["before"]) == (YES, runtime, before)
    assert bool(document["commands"]) == bool(runtime)


@pytest.mark.parametrize(
    ("profile", "answer"), [(True, YES), (None, UNKNOWN), (False, NO)], ids=str
)
def test_apparmor_lets_programs_with_a_profile_alone(profile: bool | None, answer: str) -> None:
    changes: dict[str, Any] = {"user_namespaces": True, "restricted_namespaces": True}
    where = with_runtime("podman", version="5.0", profile=profile, **changes)
    verdict = judge(DEBIAN_13, where, known())
    assert verdict.answer == answer
    assert "AppArmor" in verdict.runtimes[0].reason
    where = with_runtime("apptainer", version="1.3", setuid=True, profile=False, **changes)
    assert judge(DEBIAN_13, where, known()).answer == YES


def test_a_sif_is_unpacked_without_fuse() -> None:
    where = with_runtime("apptainer", version="1.3", setuid=False, user_namespaces=True, fuse=False)
    verdict = judge(DEBIAN_13, where, known())
    assert verdict.answer == YES
    assert "without /dev/fuse it unpacks the SIF" in verdict.runtimes[0].reason


@pytest.mark.parametrize("emulated", [True, False])
def test_a_host_of_32_bits_emulates_none_of_64(emulated: bool) -> None:
    where = host("grace", architecture="armv7l", emulators=("aarch64", "x86_64"))
    verdict = judge(contract("aarch64"), where, known(), emulated=emulated)
    assert verdict.answer == NO
    architecture = next(one for one in verdict.rules if one.rule == "architecture")
    assert architecture.answer == NO
    assert "--emulated" not in architecture.fix


def test_one_node_is_answered_apart_from_several() -> None:
    where = host("dgx", mpi=(), slurm=HostSlurm(pmi=()))
    verdict = judge(contract(mpi=OPENMPI), where, known())
    assert (verdict.answer, verdict.several_nodes) == (YES, NO)
    assert "no: it runs on one node, but not on several: hybrid, bind" in as_text(
        verdict, colour=False
    )
    assert json.loads(as_json(verdict))["several_nodes"] == NO
    slurm = host("dgx", slurm=HostSlurm(pmi=("pmix_v4",)))
    verdict = judge(contract(mpi=OPENMPI), slurm, known())
    assert (verdict.answer, verdict.several_nodes) == (YES, YES)
    assert "several" not in as_text(verdict, colour=False)
    alone = judge(contract(mpi=MPICH), where, known(), launchers=("in-container",))
    assert alone.several_nodes == ""


HERE = '-v "$PWD:$PWD" -w "$PWD"'
AS_ROOT_TOO = "mpirun --allow-run-as-root --oversubscribe -n 4"
BY_SRUN = "PMIX_MCA_gds=hash srun --mpi=pmix_v4 -n 4"


@pytest.mark.parametrize(
    ("runtimes", "answers", "commands"),
    [
        (
            {"podman": "5.0"},
            (YES, NO),
            {"in-container": f"podman run --rm {HERE} IMAGE {AS_ROOT_TOO} ./program"},
        ),
        (
            {"docker": "27.0"},
            (YES, NO),
            {"in-container": f"docker run --rm {HERE} IMAGE {AS_ROOT_TOO} ./program"},
        ),
        (
            {"podman": "5.0", "charliecloud": "0.31"},
            (YES, YES),
            {
                "in-container": 'ch-run --set-env -b "$PWD:/mnt" --cd=/mnt IMAGE --'
                f" {AS_ROOT_TOO} ./program",
                "hybrid": f'{BY_SRUN} ch-run --set-env -b "$PWD:/mnt" --cd=/mnt IMAGE -- ./program',
            },
        ),
        (
            {"podman": "5.0", "apptainer": ""},  # of which version is not known
            (YES, UNKNOWN),
            {"in-container": f"podman run --rm {HERE} IMAGE {AS_ROOT_TOO} ./program"},
        ),
        ({"crio": "1.28"}, (YES, NO), {}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_ranks_start_by_runtimes_that_the_launcher_reaches(
    runtimes: dict[str, str], answers: tuple[str, str], commands: dict[str, str]
) -> None:
    """Podman and Docker start one container as root, and keep a launcher of the host from ranks."""
    installed = {name: HostRuntime(version=version) for name, version in runtimes.items()}
    where = host("dgx", mpi=(), slurm=HostSlurm(pmi=("pmix_v4",)), runtimes=installed)
    verdict = judge(contract(mpi=OPENMPI), where, known())
    assert (verdict.answer, verdict.several_nodes) == answers
    assert dict(verdict.at_site.commands) == commands
    hybrid = next(each for each in verdict.launchers if each.rule == "hybrid")
    assert (hybrid.answer, "rank 0 of 1" in hybrid.reason) == (answers[1], answers[1] == NO)
    alone = judge(contract(mpi=OPENMPI), where, known(), launchers=("hybrid",))
    assert alone.answer == answers[1]
    assert answers[1] == YES or not alone.at_site.commands


def test_a_host_with_gpus_of_amd_is_not_told_to_load_nvidias_driver() -> None:
    gpus = HostGpus(driver="none", devices=(), on_bus=0, others=("AMD",), toolkit=False, cdi=False)
    verdict = judge(contract(cuda=cuda("11.8")), host("dgx", gpu=gpus), known())
    text = " ".join(as_text(verdict, colour=False).split())
    assert verdict.answer == NO
    assert "modprobe nvidia" not in text
    assert "the host's GPUs are made by AMD" in text
    assert "take an image that is built for them" in text
    assert NO_GPUS.others is None


# What is read of this machine.


def roots_of(root: Path) -> SystemRoots:
    return SystemRoots(top=root, proc=root / "proc", etc=root / "etc", dev=root / "dev")


PROFILE = "abi <abi/4.0>,\nprofile podman /usr/bin/podman flags=(unconfined) {\n  userns,\n}\n"
STARTER = (
    "profile apptainer /usr/lib{,exec,64}/@{multiarch}/apptainer/bin/starter{,-suid} {\n"
    "  userns,\n}\n"
)
OTHER = "profile wide /usr/bin/{w*,podman} {\n  network,\n}\n"


@pytest.mark.parametrize(
    ("text", "program", "has"),
    [
        (PROFILE, "/usr/bin/podman", True),
        (PROFILE, "/usr/bin/podman-remote", False),
        (PROFILE, "/usr/local/bin/podman", False),
        (STARTER, "/usr/libexec/x86_64-linux-gnu/apptainer/bin/starter-suid", True),
        (OTHER, "/usr/bin/podman", False),
        (OTHER.replace("network", "userns"), "/usr/bin/podman", True),
        (OTHER.replace("network", "userns"), "/usr/bin/wide", True),
        (OTHER.replace("network", "userns"), "/usr/bin/deep/wide", False),
        (OTHER.replace("network", "userns"), "/usr/bin/we/wide", False),
        (PROFILE.replace("/bin/", "/**/"), "/usr/local/bin/podman", True),
    ],
)
def test_profiles_of_apparmor(text: str, program: str, has: bool, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert has_profile(roots_of(tmp_path), Path(program)) is None
    machine.write("etc/apparmor.d/some", text)
    assert has_profile(roots_of(tmp_path), Path(program)) is has
    (tmp_path / "etc/apparmor.d/disable").mkdir()
    (tmp_path / "etc/apparmor.d/disable/some").symlink_to("../some")
    assert has_profile(roots_of(tmp_path), Path(program)) is False


@pytest.mark.parametrize(("value", "restricted"), [("1\n", True), ("0\n", False), (None, False)])
def test_the_restriction_of_user_namespaces(
    value: str | None, restricted: bool, tmp_path: Path
) -> None:
    if value is not None:
        file = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
        Machine(tmp_path).write(file, value)
    assert restricted_namespaces(roots_of(tmp_path)) is restricted


ALLOWED = {"names": ["clone", "clone3"], "action": "SCMP_ACT_ALLOW"}
AS_ROOT = {**ALLOWED, "includes": {"caps": ["CAP_SYS_ADMIN"]}}
NO_SUCH_CALL = {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
EPERM = {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}


@pytest.mark.parametrize(
    ("document", "allows"),
    [
        ({"syscalls": [ALLOWED]}, True),
        ({"syscalls": [AS_ROOT, NO_SUCH_CALL]}, True),
        ({"syscalls": [AS_ROOT, EPERM]}, False),
        ({"syscalls": []}, False),
        ({"syscalls": [{**EPERM, "errno": "ENOSYS"}]}, True),
        ({"defaultErrnoRet": 38, "syscalls": []}, True),
        ({"defaultErrno": "ENOSYS", "syscalls": []}, True),
        ([], None),
        ("{", None),
    ],
)
def test_filters_of_system_calls(document: Any, allows: bool | None, tmp_path: Path) -> None:
    assert allows_clone3(roots_of(tmp_path)) is None
    text = document if isinstance(document, str) else json.dumps(document)
    Machine(tmp_path).write("usr/share/containers/seccomp.json", text)
    assert allows_clone3(roots_of(tmp_path)) is allows


def test_what_confines_runtimes_here_is_recorded(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "bin").mkdir()
    machine.write("proc/cpuinfo", "processor\t: 0\n")
    machine.write("proc/sys/user/max_user_namespaces", "100\n")
    machine.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    machine.write("etc/apparmor.d/podman", PROFILE.replace("/usr/bin", str(tmp_path / "bin")))
    machine.write("etc/containers/seccomp.json", json.dumps({"syscalls": [EPERM]}))
    machine.program("podman", "podman version 4.6.1")
    machine.program("crio", "crio version 1.28.4")
    for number, (vendor, kind) in enumerate([("0x1002", "0x038000"), ("0x8086", "0x020000")]):
        machine.write(f"sys/bus/pci/devices/{number}/vendor", vendor)
        machine.write(f"sys/bus/pci/devices/{number}/class", kind)
    found = machine.look()
    assert found.restricted_namespaces is True
    assert found.runtimes == {
        "podman": HostRuntime(version="4.6.1", clone3=False, profile=True),
        "crio": HostRuntime(version="1.28.4"),
    }
    assert found.gpu.others == ("AMD",)
    assert found.page_size in (4096, 16384, 65536)


@pytest.mark.parametrize(("mode", "is_open"), [(0o666, True), (0o660, False), (None, False)])
def test_a_device_is_open_to_ordinary_users(
    mode: int | None, is_open: bool, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "bin").mkdir()
    machine.write("proc/cpuinfo", "processor\t: 0\n")
    if mode is not None:
        machine.write("dev/fuse", "").chmod(mode)
    assert machine.look().fuse is is_open
