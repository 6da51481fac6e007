"""What the doctor finds on machines made of fake programs and fake /proc trees."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from samples import compare_with_golden

from builder.build import native
from builder.host.doctor import Diagnosis, SystemRoots, as_json, as_text, examine, folders, require
from builder.model.errors import MissingPrerequisite
from builder.system.process import Completed, Processes
from builder.system.storage_drivers import Driver, StorageTrial

MAGIC = {"ppc64le": "1500", "aarch64": "b700"}
ALL = ("oci", "sif", "charliecloud")
VERSIONS = {
    "buildah": "buildah version 1.28.2 (image-spec 1.1.0-rc2)",
    "apptainer": "apptainer version 1.4.5",
    "ch-run": "0.31",
    "ch-convert": "0.31",
    "mmdebstrap": "mmdebstrap 1.3.5",
    "sqfs2tar": "sqfs2tar (squashfs-tools-ng) 1.2.0",
    "mksquashfs": "mksquashfs version 4.5.1 (2022/03/17)",
    "pigz": "pigz 2.6",
    "newuidmap": "",
    "skopeo": "skopeo version 1.9.3",
}


@dataclass
class Machine:
    """A machine in a folder. Tests take away or spoil one thing, and look."""

    root: Path
    user: str = "root"
    arch: str = "x86_64"
    driver: str = "overlay"
    problem: str = ""  # of the store

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def binfmt(self) -> Path:
        return self.root / "proc/sys/fs/binfmt_misc"

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, text: str, *, code: int = 0, folder: str = "bin") -> Path:
        body = f"cat <<'TEXT'\n{text}\nTEXT\nexit {code}\n"
        return self.script(name, body, folder=folder)

    def script(self, name: str, body: str, *, folder: str = "bin") -> Path:
        path = self.write(f"{folder}/{name}", f"#!/bin/sh\n{body}")
        path.chmod(0o755)
        return path

    def handler(
        self,
        arch: str = "ppc64le",
        *,
        name: str = "",
        state: str = "enabled",
        flags: str = "OCF",
        version: str = "11.1.3",
        suffix: str = "",
    ) -> None:
        name = name or f"qemu-{arch}"
        qemu = self.root / f"emulators/{name}{suffix}"
        if version:
            self.program(qemu.name, f"{name} version {version} (Debian)", folder="emulators")
        magic = f"7f454c4602010100000000000000000002{'00'}{MAGIC[arch]}"
        text = f"{state}\ninterpreter {qemu}\nflags: {flags}\noffset 0\nmagic {magic}\nmask ff\n"
        self.write(f"proc/sys/fs/binfmt_misc/{name}", text)

    def examine(self) -> Diagnosis:
        roots = SystemRoots(
            top=self.root,
            proc=self.root / "proc",
            dev=self.root / "dev",
            etc=self.root / "etc",
            keyrings=self.root / "keyrings",
        )
        return examine(
            Processes(),
            home=self.home,
            search_path=str(self.bin),
            roots=roots,
            arch=self.arch,
            user=self.user,
            try_storage=lambda *_, **__: StorageTrial(
                driver=Driver(name=self.driver), problem=self.problem
            ),
            is_lent=native.is_lent,
        )

    def require(
        self, *, images: int = 1, engine: str = "buildah", lent: tuple[str, ...] = ()
    ) -> None:
        require(
            self.examine(),
            archs=["x86_64", "ppc64le"],
            formats=ALL,
            engine=engine,
            home=self.home,
            out=self.root / "out",
            images=images,
            lent=lent,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that lacks nothing for the main job."""
    whole = Machine(root=tmp_path)
    tmp_path.chmod(0o755)
    for name, text in VERSIONS.items():
        whole.program(name, text)
    whole.script("ch-run", 'test -n "$USER" || exit 1\necho 0.31\n')
    whole.write("proc/sys/fs/binfmt_misc/status", "enabled\n")
    whole.write("proc/sys/fs/binfmt_misc/register", "")
    whole.handler()
    whole.write("proc/sys/user/max_user_namespaces", "96365\n")
    whole.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nbuild-images:x:999:999::/:/bin/sh\n")
    for name in ("subuid", "subgid"):
        whole.write(f"etc/{name}", "build-images:100000:65536\nalice:165536:65536\n")
    whole.write("etc/containers/policy.json", "{}")
    whole.write("keyrings/debian-archive-keyring.gpg", "key")
    whole.write("dev/fuse", "").chmod(0o666)
    whole.home.mkdir()
    return whole


def lacking(diagnosis: Diagnosis, title: str) -> set[str]:
    ability = next(one for one in diagnosis.abilities if one.title == title)
    assert ability.able is (not ability.missing)
    return {item.key for item in ability.missing}


def refusal(machine: Machine, *, images: int = 1, engine: str = "buildah") -> str:
    with pytest.raises(MissingPrerequisite) as caught:
        machine.require(images=images, engine=engine)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_a_machine_with_all_can_do_all_but_the_gpu_checks(machine: Machine) -> None:
    diagnosis = machine.examine()
    unable = [one.title for one in diagnosis.abilities if not one.able]
    assert unable == ["GPU checks"]
    machine.require()


@pytest.mark.parametrize(
    ("name", "version"),
    [("buildah", "1.28.2"), ("apptainer", "1.4.5"), ("ch-run", "0.31"), ("pigz", "2.6")],
)
def test_versions_are_read(machine: Machine, name: str, version: str) -> None:
    item = machine.examine().items[name]
    assert (item.ok, item.text) == (True, version)
    assert item.data["path"] == str(machine.bin / name)


def test_tools_of_set_up_come_before_those_of_the_search_path(machine: Machine) -> None:
    machine.program("apptainer", "apptainer version 9.9", folder="home/tools/bin")
    assert machine.examine().items["apptainer"].text == "9.9"


def test_ch_convert_has_the_version_of_ch_run(machine: Machine) -> None:
    machine.script("ch-convert", "echo started >&2; exit 1")
    assert machine.examine().items["ch-convert"].text == "0.31"


def test_ch_run_is_asked_with_user_set(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.script("ch-run", 'test "$USER" = alice && echo 0.31 || echo "0.32${USER:+.1}"')
    monkeypatch.setenv("USER", "alice")
    assert machine.examine().items["ch-run"].text == "0.31"
    monkeypatch.delenv("USER")
    assert machine.examine().items["ch-run"].text == "0.32.1"


@pytest.mark.parametrize(
    ("name", "unable"),
    [
        ("buildah", "build x86_64 images"),
        ("mmdebstrap", "build ppc64le images"),
        ("mksquashfs", "pack SIF images"),
        ("apptainer", "pack SIF images"),
        ("sqfs2tar", "run and verify SIF images for x86_64"),
        ("pigz", "pack Charliecloud tarballs"),
        ("ch-run", "run and verify Charliecloud tarballs for ppc64le"),
    ],
)
def test_a_missing_program_takes_its_abilities_away(
    machine: Machine, name: str, unable: str
) -> None:
    (machine.bin / name).unlink()
    diagnosis = machine.examine()
    assert lacking(diagnosis, unable) == {name}
    assert "not found" in diagnosis.items[name].text
    assert "build-images setup" in diagnosis.items[name].remedy
    text = refusal(machine)
    assert text.startswith("this machine lacks 1 thing for this run; nothing was built.\n")
    assert f"\n  {name}: not found" in text


def test_a_program_that_does_not_run_says_why(machine: Machine) -> None:
    machine.script("buildah", "echo 'cannot find libgpgme' >&2; exit 127")
    item = machine.examine().items["buildah"]
    assert not item.ok
    assert item.text == "does not run: cannot find libgpgme"


def test_a_program_that_is_none_is_no_crash(machine: Machine) -> None:
    machine.write("bin/pigz", "\x7fELF of another architecture").chmod(0o755)
    item = machine.examine().items["pigz"]
    assert not item.ok
    assert item.text.startswith("does not run: ")


def test_singularity_is_named_where_apptainer_is_missing(machine: Machine) -> None:
    (machine.bin / "apptainer").unlink()
    path = machine.program("singularity", "singularity-ce version 3.8")
    assert str(path) in machine.examine().items["apptainer"].text


def docker_says(server: str) -> str:
    return f'{{"Client":{{"Version":"28.2.2"}},"Server":{server}}}'


def test_docker_needs_a_daemon(machine: Machine) -> None:
    machine.program("docker", docker_says("null"), code=1)
    item = machine.examine().items["docker"]
    assert (item.ok, item.text) == (False, "client 28.2.2; no daemon answers")
    assert "start dockerd" in refusal(machine, engine="docker")
    machine.require()


def test_docker_builds_where_its_daemon_answers(machine: Machine) -> None:
    machine.program("docker", docker_says('{"Version":"20.10.24"}'))
    assert machine.examine().items["docker"].text == "client 28.2.2, daemon 20.10.24"
    machine.require(engine="docker")
    (machine.bin / "buildah").unlink()
    assert lacking(machine.examine(), "build x86_64 images") == set()


def test_an_engine_that_nobody_knows_is_named(machine: Machine) -> None:
    assert "kaniko: not known" in refusal(machine, engine="kaniko")


def test_native_needs_no_handler(machine: Machine) -> None:
    machine.arch = "ppc64le"
    items = machine.examine().items
    assert items["run:ppc64le"].data["how"] == "native"
    assert not items["run:x86_64"].ok


def test_emulation_tells_handler_flags_and_version(machine: Machine) -> None:
    item = machine.examine().items["run:ppc64le"]
    assert item.text == "emulated by QEMU 11.1.3 (handler qemu-ppc64le, flags OCF)"
    found = {key: item.data[key] for key in ("how", "handler", "flags", "version")}
    assert found == {
        "how": "emulated",
        "handler": "qemu-ppc64le",
        "flags": "OCF",
        "version": "11.1.3",
    }
    assert item.data["interpreter"] == str(machine.root / "emulators/qemu-ppc64le")


@pytest.mark.parametrize(
    ("changes", "problem", "remedy"),
    [
        ({"version": "7.2.11"}, "QEMU 7.2.11, which hangs", "build-images setup"),
        ({"flags": "OC"}, "lacks the flag F", "build-images setup"),
        ({"state": "disabled"}, "handler qemu-ppc64le is disabled", "echo 1 > "),
    ],
)
def test_an_emulator_that_does_not_serve(
    machine: Machine, changes: dict[str, str], problem: str, remedy: str
) -> None:
    machine.handler(**changes)
    item = machine.examine().items["run:ppc64le"]
    assert not item.ok
    assert problem in item.text
    assert remedy in item.remedy
    assert item.data["how"] == "none"
    assert problem in refusal(machine)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="native tools are for x86_64 machines")
def test_native_tools_want_the_handler_of_set_up_and_patchelf(machine: Machine) -> None:
    item = machine.examine().items["native:ppc64le"]
    assert (item.ok, item.optional) == (False, True)
    assert "the kernel's handler is not from set-up" in item.text
    machine.require(lent=("ppc64le",))  # without them, builds are emulated whole
    machine.handler(name="build-images-ppc64le", flags="POCF", suffix=f".{native.version()}")
    assert machine.examine().items["native:ppc64le"].ok
    machine.require()
    with pytest.raises(MissingPrerequisite, match=r"patchelf.*not needed with --no-native-tools"):
        machine.require(lent=("ppc64le",))
    machine.program("patchelf", "patchelf 0.14.3")
    machine.require(lent=("ppc64le",))


def test_one_handler_that_serves_is_enough(machine: Machine) -> None:
    machine.handler(version="7.2.11")
    machine.handler(name="build-images-ppc64le")
    item = machine.examine().items["run:ppc64le"]
    assert item.data["handler"] == "build-images-ppc64le"


def test_a_handler_for_another_architecture_is_none(machine: Machine) -> None:
    (machine.binfmt / "qemu-ppc64le").unlink()
    machine.handler("aarch64", name="ppc64le")
    diagnosis = machine.examine()
    assert "no handler" in diagnosis.items["run:ppc64le"].text
    assert diagnosis.items["run:aarch64"].ok
    assert lacking(diagnosis, "build aarch64 images") == set()
    assert lacking(diagnosis, "build ppc64le images") == {"run:ppc64le"}
    assert lacking(diagnosis, "run and verify SIF images for ppc64le") == {"run:ppc64le"}
    assert "no handler" in refusal(machine)


def test_a_handler_for_32_bit_programs_is_none(machine: Machine) -> None:
    entry = machine.binfmt / "qemu-ppc64le"
    entry.write_text(entry.read_text().replace("7f454c4602", "7f454c4601"))
    assert "no handler" in machine.examine().items["run:ppc64le"].text


def test_an_interpreter_out_of_sight_serves_with_the_flag_f(machine: Machine) -> None:
    (machine.root / "emulators/qemu-ppc64le").unlink()
    item = machine.examine().items["run:ppc64le"]
    assert item.ok
    assert "version unknown" in item.text


def test_a_handler_that_matches_by_extension_is_passed_over(machine: Machine) -> None:
    machine.write("proc/sys/fs/binfmt_misc/java", "enabled\ninterpreter /j\nextension .jar\n")
    assert machine.examine().items["run:ppc64le"].ok


def test_binfmt_misc_disabled_as_a_whole(machine: Machine) -> None:
    (machine.binfmt / "status").write_text("disabled\n")
    item = machine.examine().items["run:ppc64le"]
    assert (item.ok, item.text) == (False, "binfmt_misc is disabled")


def test_binfmt_misc_not_mounted(machine: Machine) -> None:
    shutil.rmtree(machine.binfmt)
    item = machine.examine().items["run:ppc64le"]
    assert (item.ok, item.text) == (False, "binfmt_misc is not mounted")
    assert item.remedy.startswith("mount -t binfmt_misc")


def test_a_container_may_be_served_by_the_host(machine: Machine) -> None:
    shutil.rmtree(machine.binfmt)
    machine.script("arch-test", 'test "$1" = ppc64el\n')
    items = machine.examine().items
    assert items["run:ppc64le"].data["how"] == "emulated"
    assert not items["run:aarch64"].ok


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("user/max_user_namespaces", "0\n", "their limit is 0"),
        ("kernel/unprivileged_userns_clone", "0\n", "closed to ordinary users"),
    ],
)
def test_closed_user_namespaces(machine: Machine, name: str, text: str, problem: str) -> None:
    machine.write(f"proc/sys/{name}", text)
    diagnosis = machine.examine()
    assert diagnosis.items["userns"].text == problem
    assert lacking(diagnosis, "pack SIF images") == {"userns"}
    assert lacking(diagnosis, "build x86_64 images") == set()


def test_a_kernel_without_user_namespaces(machine: Machine) -> None:
    (machine.root / "proc/sys/user/max_user_namespaces").unlink()
    assert not machine.examine().items["userns"].ok


def test_apparmor_is_told_and_does_not_stop(machine: Machine) -> None:
    machine.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    item = machine.examine().items["userns"]
    assert item.ok
    assert "AppArmor" in item.text


def test_root_needs_the_ordinary_user(machine: Machine) -> None:
    machine.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nnot-build-images:x:1:1::/:\n")
    diagnosis = machine.examine()
    assert lacking(diagnosis, "run and verify SIF images for x86_64") == {"user"}
    assert diagnosis.items["user"].remedy == "build-images setup"


def test_root_needs_a_home_that_the_ordinary_user_reaches(machine: Machine) -> None:
    machine.home.chmod(0o750)
    diagnosis = machine.examine()
    assert lacking(diagnosis, "pack SIF images") == {"reach"}
    assert str(machine.home) in diagnosis.items["reach"].text
    machine.user = "alice"
    assert machine.examine().items["reach"].ok


@pytest.mark.parametrize(
    ("code", "text"), [(0, "/proc/home"), (1, "/proc is closed to the user alice")]
)
def test_modes_do_not_tell_all_of_who_reaches_a_home(code: int, text: str) -> None:
    """The other user tries it: an access list or a file server may refuse what modes allow."""

    class Trying(Processes):
        def capture(self, argv: Sequence[Any], **options: Any) -> Completed:
            if options.pop("user", None) == "alice":
                assert argv == ["test", "-x", Path("/proc")]
                argv = ["sh", "-c", f"exit {code}"]
            return super().capture(argv, **options)

    trial = folders.FolderTrial(processes=Trying(), other="alice")
    storage = StorageTrial(driver=Driver(name="overlay"))
    found = folders.folder_items(Path("/proc/home"), trial, storage)[-1]
    assert (found.text, found.ok) == (text, code == 0)


def test_an_ordinary_user_needs_no_other_and_a_range_of_ids(machine: Machine) -> None:
    machine.user = "alice"
    machine.write("etc/passwd", "")
    machine.require()
    machine.write("etc/subuid", "build-images:100000:65536\n")
    diagnosis = machine.examine()
    assert lacking(diagnosis, "build x86_64 images") == {"subuid"}
    assert "165536:65536" in diagnosis.items["subuid"].remedy, "which nobody has"


def test_a_store_that_fails_for_want_of_sub_ids_says_so(machine: Machine) -> None:
    machine.user, machine.problem = "alice", "Error: writing blob: adding layer"
    machine.write("etc/passwd", "")
    assert machine.examine().items["store"].text == machine.problem
    machine.write("etc/subuid", "")
    assert machine.examine().items["store"].text == "cannot unpack a layer without sub-user ids"
    machine.user = "root"
    assert machine.examine().items["store"].text == machine.problem


def test_root_builds_without_a_range_of_ids(machine: Machine) -> None:
    (machine.root / "etc/subgid").unlink()
    diagnosis = machine.examine()
    assert lacking(diagnosis, "build x86_64 images") == set()
    assert lacking(diagnosis, "pack SIF images") == {"subgid"}


def test_a_closed_fuse_is_told_and_does_not_stop(machine: Machine) -> None:
    (machine.root / "dev/fuse").chmod(stat.S_IRUSR | stat.S_IWUSR)
    diagnosis = machine.examine()
    assert not diagnosis.items["fuse"].ok
    assert "chmod 666" in diagnosis.items["fuse"].remedy
    machine.require()
    (machine.root / "dev/fuse").unlink()
    assert "missing" in machine.examine().items["fuse"].text


@pytest.mark.parametrize(
    ("file", "key"),
    [("etc/containers/policy.json", "policy"), ("keyrings/debian-archive-keyring.gpg", "keyring")],
)
def test_files_that_building_needs(machine: Machine, file: str, key: str) -> None:
    (machine.root / file).unlink()
    assert lacking(machine.examine(), "build x86_64 images") == {key}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Rel", "570.86.15"),
        ("NVRM version: NVIDIA UNIX ppc64le Kernel Module  418.226.00  Mon", "418.226.00"),
    ],
)
def test_a_gpu(machine: Machine, text: str, version: str) -> None:
    machine.write("proc/driver/nvidia/version", f"{text}\nGCC version:  gcc 12.2.0\n")
    machine.write("dev/nvidiactl", "")
    machine.write("proc/driver/nvidia/gpus/0000/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n")
    diagnosis = machine.examine()
    assert diagnosis.items["gpu"].text == f"{version}, NVIDIA H200"
    assert lacking(diagnosis, "GPU checks") == set()


def test_a_gpu_driver_without_devices_is_none(machine: Machine) -> None:
    machine.write("proc/driver/nvidia/version", "NVIDIA UNIX x86_64 Kernel Module  535.104.05\n")
    diagnosis = machine.examine()
    assert diagnosis.items["gpu"].text == "535.104.05 is loaded, but /dev/nvidiactl is missing"
    assert lacking(diagnosis, "GPU checks") == {"gpu"}


def test_nvidia_smi_is_found_and_never_started(machine: Machine) -> None:
    machine.script("nvidia-smi", f"touch {machine.root}/started")
    assert machine.examine().items["nvidia-smi"].ok
    assert not (machine.root / "started").exists()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("mpirun (Open MPI) 4.1.4", "Open MPI 4.1.4"),
        ("HYDRA build details:\n    Version: 4.0.2", "MPICH 4.0.2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "Intel MPI 2021.9"),
    ],
)
def test_the_family_of_the_hosts_mpi(machine: Machine, said: str, told: str) -> None:
    machine.program("mpirun", said)
    assert machine.examine().items["mpirun"].text == told


def test_slurm(machine: Machine) -> None:
    machine.program("srun", "slurm 22.05.8")
    assert machine.examine().items["srun"].text == "22.05.8"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("GitVersion:    devel\nGoVersion:     go1.27.3\n", "found"),
        ("GitVersion:    v2.6.3\nGoVersion:     go1.27.3\n", "2.6.3"),
    ],
)
def test_the_version_of_cosign_is_not_that_of_go(machine: Machine, output: str, text: str) -> None:
    machine.program("cosign", output)
    assert machine.examine().items["cosign"].text == text


def test_a_refusal_names_all_that_is_missing_with_the_way_out(machine: Machine) -> None:
    (machine.bin / "apptainer").unlink()
    (machine.bin / "mmdebstrap").unlink()
    (machine.binfmt / "qemu-ppc64le").unlink()
    text = refusal(machine, images=1 << 32)
    assert text.startswith("this machine lacks 4 things for this run; nothing was built.")
    assert "built.\n  mmdebstrap: not found; it makes the base images\n      " in text
    assert "\n  apptainer: not found" in text
    assert "apt-get install mmdebstrap, or build-images setup" in text
    assert "ppc64le: no handler" in text
    assert "GB free, but " in text
    assert "\n      make room, or choose another one with BUILD_IMAGES_HOME\n" in text
    assert text.endswith("\n  hint: 'build-images doctor' shows all that this machine has")


def test_only_what_the_run_needs_is_asked_for(machine: Machine) -> None:
    (machine.bin / "apptainer").unlink()
    (machine.binfmt / "qemu-ppc64le").unlink()
    require(
        machine.examine(),
        archs=["x86_64"],
        formats=["oci"],
        engine="buildah",
        home=machine.home,
        out=machine.root / "not/yet/there",
    )


@dataclass
class Usage:
    free: int


def test_each_full_disk_is_told_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=1_500_000_000))
    text = refusal(machine, images=2)
    assert text.count("1.5 GB free, but 3.2 GB may be needed") == 1, "what one image needs"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=4_000_000_000))
    assert refusal(machine, images=2).count("4.0 GB free, but 6.4 GB may be needed") == 1
    machine.require(images=1)


def test_vfs_needs_more_room(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=4_000_000_000))
    machine.driver = "vfs"
    assert "4.0 GB free, but 12.9 GB may be needed" in refusal(machine)
    assert "Each layer is a complete copy" in machine.examine().items["store"].text


def test_a_store_in_which_no_layer_can_be_unpacked_builds_nothing(machine: Machine) -> None:
    machine.problem = "potentially insufficient UIDs or GIDs"
    assert "the store: potentially insufficient UIDs or GIDs" in refusal(machine)
    assert lacking(machine.examine(), "build x86_64 images") == {"store"}


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_folder_that_cannot_be_written_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Modes do not tell of a file system that is read-only, nor of a quota."""
    there = tempfile.mkdtemp

    def refused(suffix: Any, prefix: Any, folder: Path) -> str:
        if folder == machine.home:
            raise OSError(number, os.strerror(number))
        return there(suffix, prefix, folder)

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    text = refusal(machine)
    assert f"{machine.home}: cannot be written to: {os.strerror(number)}" in text
    assert "BUILD_IMAGES_HOME" in text
    assert "--output" not in text


def test_a_program_that_is_not_started_from_the_home(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted noexec."""

    def capture(self: Processes, argv: Sequence[Any], **options: Any) -> Completed:
        if Path(argv[0]).parent.parent == machine.home:
            raise PermissionError(errno.EACCES, "Permission denied")
        return started(self, argv, **options)

    started = Processes.capture
    monkeypatch.setattr(Processes, "capture", capture)
    assert "mounted noexec" in machine.examine().items["home"].text


def test_a_home_without_locks(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    items = machine.examine().items
    assert f"{machine.home}: its file system has no locks" in items["home"].text
    assert "BUILD_IMAGES_HOME" in items["home"].remedy
    assert items["temporary"].ok


@pytest.mark.parametrize(
    ("number", "kind", "free", "text"),
    [
        (errno.EDQUOT, "ext4", 6 << 30, "a quota leaves less than 3.2 GB, which may be needed"),
        (errno.ENOSPC, "ext4", 6 << 30, "a quota leaves less than 3.2 GB, which may be needed"),
        (errno.EOPNOTSUPP, "nfs4", 6 << 30, ""),
        (errno.EDQUOT, "tmpfs", 6 << 30, ""),  # a large file there takes memory
        (errno.EDQUOT, "ramfs", 6 << 30, ""),
        (errno.EDQUOT, "ext4", (6 << 30) - 1, ""),  # as a disk that is nearly full
    ],
)
def test_a_quota_is_found_by_a_large_file(
    number: int, kind: str, free: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        def fallocate(self, _file: int, mode: int, offset: Any, size: Any) -> int:
            assert (mode, offset.value, size.value) == (0, 0, 3 << 30)
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(folders, "free_bytes", lambda _: free + 1)
    monkeypatch.setattr(folders, "type_of", lambda _: kind)
    trial = folders.FolderTrial(processes=Processes())
    assert folders.folder_problem(tmp_path, trial, need=3 << 30) == text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("below", "hint"), [(True, "on another disk"), (False, "of your own")])
def test_a_full_home_is_to_be_moved(
    below: bool, hint: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To another disk if it is the user's own folder that is full."""
    own = machine.home.parent if below else machine.root / "elsewhere"
    monkeypatch.setattr(folders, "folder_of_user", lambda: own)
    monkeypatch.setattr(folders, "free_bytes", lambda _: 1_000_000_000)
    item = machine.examine().items["home"]
    assert "1.0 GB free, but 3.2 GB may be needed" in item.text
    assert item.remedy.endswith(hint)


def test_a_folder_for_temporary_files_that_is_not_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(machine.root / "gone"))
    assert "temporary files: " in refusal(machine)
    assert machine.examine().items["temporary"].text.endswith("gone: missing")


def test_programs_are_asked_at_once(machine: Machine) -> None:
    names = ("buildah", "apptainer", "mmdebstrap", "skopeo", "pigz", "sqfs2tar")
    for name in names:
        machine.script(name, f"sleep 0.5; echo {name} 1.0\n")
    start = time.monotonic()
    diagnosis = machine.examine()
    assert time.monotonic() - start < 0.5 * len(names) * 0.75
    assert all(diagnosis.items[name].ok for name in names)


def test_a_program_that_never_answers_is_not_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.host.doctor.programs.TIMEOUT_S", 0.3)
    machine.script("pigz", "exec sleep 60")
    item = machine.examine().items["pigz"]
    assert not item.ok
    assert "no answer" in item.text


def test_text_says_each_thing_in_words(machine: Machine) -> None:
    (machine.bin / "apptainer").unlink()
    text = as_text(machine.examine(), colour=False)
    assert re.search(r"✓ buildah +yes +1\.28\.2", text)
    assert re.search(r"✗ apptainer +no +not found", text)
    assert re.search(r"- cosign +no +not found", text)
    end = text[text.index("what this machine can do") :]
    assert "✓ yes  build x86_64 images" in end
    assert "✗ no   pack SIF images\n         lacks apptainer" in end
    assert re.search(r"how to get what is missing\n  apptainer +build-images setup", end)


def test_the_columns_of_the_text_line_up(machine: Machine) -> None:
    text = as_text(machine.examine(), colour=False).partition("what this machine can do")[0]
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    words = [re.search(r" (yes|no )( |$)", line) for line in rows]
    assert len({found.start() if found else -1 for found in words}) == 1


def test_colour_is_the_callers_choice(machine: Machine) -> None:
    diagnosis = machine.examine()
    plain, coloured = as_text(diagnosis, colour=False), as_text(diagnosis, colour=True)
    assert "\033" not in plain
    assert "\033[32m✓" in coloured
    assert re.sub(r"\033\[\d+m", "", coloured) == plain


def test_json_holds_everything(machine: Machine) -> None:
    (machine.bin / "pigz").unlink()
    diagnosis = machine.examine()
    found = json.loads(as_json(diagnosis))
    assert found["schema"] == "build-images/doctor/v1"
    assert (found["arch"], found["user"]) == ("x86_64", "root")
    items: Mapping[str, Mapping[str, object]] = {one["key"]: one for one in found["items"]}
    assert list(items) == list(diagnosis.items)
    assert items["buildah"]["data"] == {"path": str(machine.bin / "buildah"), "version": "1.28.2"}
    packing = next(one for one in found["abilities"] if one["title"].startswith("pack Charlie"))
    remedy = "apt-get install pigz, or build-images setup"
    assert packing["able"] is False
    assert packing["missing"] == [{"key": "pigz", "remedy": remedy}]


# All that is told, word for word. UPDATE_GOLDEN=1 writes the files anew: read the difference.


def nothing_installed(machine: Machine) -> None:
    for folder in ("bin", "keyrings", "dev", "etc/containers"):
        shutil.rmtree(machine.root / folder)
    for name in ("binfmt_misc/qemu-ppc64le", "binfmt_misc/register", "binfmt_misc/status"):
        (machine.root / "proc/sys/fs" / name).unlink()


def an_ordinary_users(machine: Machine) -> None:
    machine.user, machine.driver = "alice", "vfs"
    machine.handler("aarch64", flags="OC", version="7.2.0")
    machine.program("mpirun", "mpirun (Open MPI) 4.1.4")
    machine.program("srun", "slurm 23.11.4")
    machine.program("docker", docker_says('{"Version": "27.3.1"}'))


def closed_to_an_ordinary_user(machine: Machine) -> None:
    machine.user, machine.problem = "bob", "potentially insufficient UIDs or GIDs available"
    machine.write("proc/sys/user/max_user_namespaces", "0\n")
    machine.write("etc/subuid", "alice:100000:65536\n")
    (machine.root / "dev/fuse").chmod(0o600)
    machine.program("apptainer", "no such library", code=127)
    machine.handler(state="disabled")


MACHINES = {
    "whole": lambda _: None,
    "nothing-installed": nothing_installed,
    "an-ordinary-users": an_ordinary_users,
    "closed-to-an-ordinary-user": closed_to_an_ordinary_user,
}


@pytest.mark.parametrize("name", MACHINES)
def test_all_that_is_told(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(free=50_000_000_000))
    monkeypatch.setattr("platform.release", lambda: "6.1.0-sample")
    monkeypatch.setattr(tempfile, "tempdir", f"{machine.root}/tmp")
    (machine.root / "tmp").mkdir()
    monkeypatch.chdir(machine.root)
    MACHINES[name](machine)
    diagnosis = machine.examine()
    told = as_text(diagnosis, colour=False) + "\n"
    if name == "whole":
        told += as_json(diagnosis) + "\n"
    told = told.replace(str(machine.root), "HERE")
    compare_with_golden(told, f"doctor/{name}.txt")
