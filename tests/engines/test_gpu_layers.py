"""The layers between a program and a GPU, in front of a driver's library that says what is wanted.

tests/engines/fakes/libcuda.c stands for the driver's library, a folder for /proc and /dev.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from check_programs import FAKES, SOURCES, compiled, program_with_gpu_code
from harness import Ended, run_program, tool_of_tests

from builder.facts import cuda_errors

pytestmark = pytest.mark.engines

TOO_OLD = "CUDA error 35 (cudaErrorInsufficientDriver)"
NO_CODE = "CUDA error 209 (CUDA_ERROR_NO_BINARY_FOR_GPU)"
LAYERS = ("driver", "devices", "library", "found", "version", "code")
VERSION = "418.87.00"
KERNEL = f"NVRM version: NVIDIA UNIX ppc64le Kernel Module  {VERSION}  Thu Aug  8 15:14:21 UTC\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the check's program, and one with code for sm_61 and sm_70."""
    folder = tmp_path_factory.mktemp("gpu")
    compiled(SOURCES / "gpu.c", folder / "gpu", "-ldl")
    program_with_gpu_code(folder, 61, 70)
    compiled(FAKES / "libcuda.c", folder / "libcuda.so", "-shared", "-fPIC")
    return folder


@dataclass
class Host:
    """A container on a host with a V100, its driver of 418.87 for CUDA 10.1. Tests spoil it."""

    root: Path
    programs: Path
    least: str = "418.39"
    cuda: str = "10.1"
    answers: dict[str, int] = field(default_factory=dict)
    library: str = f"lib/libcuda.so.{VERSION}"
    visible: str | None = None
    started_by: dict[str, str] = field(default_factory=dict)  # variables of a runtime

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def node(self, name: str, target: str = "/dev/null") -> None:
        """A device node: a link to one that is there."""
        (self.root / "dev").mkdir(exist_ok=True)
        (self.root / "dev" / name).unlink(missing_ok=True)
        (self.root / "dev" / name).symlink_to(target)

    def place(self) -> None:
        """Put the driver's library where the loader finds it."""
        file = self.root / self.library
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.programs / "libcuda.so", file)
        link = file.parent / "libcuda.so.1"
        if link != file:
            link.symlink_to(file.name)

    @property
    def environment(self) -> dict[str, str]:
        variables = {
            "GPU_ROOT": str(self.root),
            "LD_LIBRARY_PATH": str((self.root / self.library).parent),
            "FAKE_CUDA": ",".join(f"{name}={value}" for name, value in self.answers.items()),
            **self.started_by,
        }
        visible = {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}
        return {**variables, **visible}

    def run(self, *words: str) -> tuple[int, str, dict[str, Any]]:
        """Exit status, finding and data of the program, which has no terminal."""
        argv = ("setsid", "--wait", self.programs / "gpu", *words)
        done = run_program(*argv, env=self.environment, inherit=False)
        assert done.stderr == ""
        return done.status, done.finding, done.data

    def layer(self, name: str) -> tuple[int, str, dict[str, Any]]:
        return self.run(name, self.least, self.cuda, str(self.programs / "code.so"))

    def fails_at(self, name: str, finding: str, error: str = "") -> None:
        """The layer fails with this finding, those before it pass, those after it are skipped."""
        status, said, data = self.layer(name)
        assert (status, said) == (1, finding)
        assert data.get("cuda_error", "") == error
        number = LAYERS.index(name)
        assert [self.layer(one)[0] for one in LAYERS[:number]] == [0] * number
        for one in (*LAYERS[number + 1 :], "ready"):
            status, said, data = self.layer(one)
            assert status == 77
            assert said == f"not judged, since gpu-{name} failed: {finding}"
            assert data["layer"] == name


Spoil = Callable[[Host], object]


@pytest.fixture
def bare(tmp_path: Path, programs: Path) -> Host:
    """A container with nothing of a GPU."""
    return Host(root=tmp_path, programs=programs)


@pytest.fixture
def host(bare: Host) -> Host:
    bare.write("proc/driver/nvidia/version", KERNEL + "GCC version:  gcc version 8.3.1\n")
    bare.write("proc/driver/nvidia/gpus/0004:04:00.0/information", "Model: Tesla V100\n")
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        bare.node(name)
    bare.place()
    return bare


def test_every_layer_of_a_v100(host: Host) -> None:
    found = {name: host.layer(name) for name in LAYERS}
    library = host.root / f"lib/libcuda.so.{VERSION}"
    assert {name: (status, said) for name, (status, said, _) in found.items()} == {
        "driver": (0, "driver 418.87.00 is not older than 418.39, which CUDA 10.1 needs"),
        "devices": (0, "nvidiactl, nvidia-uvm and 1 GPU can be opened"),
        "library": (0, f"libcuda.so.1 is {library}, of the driver's version 418.87.00"),
        "found": (0, '1 GPU: Tesla "V100", compute capability 7.0'),
        "version": (0, "the driver supports CUDA 10.1, the image has 10.1"),
        "code": (0, "code of sm_70 for compute capability 7.0"),
    }
    assert found["driver"][2] == {"driver": VERSION, "least": "418.39"}
    assert found["library"][2] == {"library": str(library), "version": VERSION}
    assert host.layer("ready") == (0, "", {})


def test_a_host_without_a_gpu_skips_every_layer(bare: Host) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    for one in (*LAYERS, "ready"):
        status, said, _ = bare.layer(one)
        assert status == 77
        assert said == (
            "no GPU: no driver is loaded (/proc/driver/nvidia), and /dev/nvidiactl is absent"
        )


@pytest.mark.parametrize("least", ["418.88", "450.80.02", "419"])
def test_a_driver_that_is_too_old(host: Host, least: str) -> None:
    host.least = least
    host.fails_at(
        "driver",
        f"driver 418.87.00 is older than {least}, which CUDA 10.1 needs: {TOO_OLD}",
    )


@pytest.mark.parametrize("least", ["418.87", "418.87.00", "396.37", "418.87.0"])
def test_a_driver_that_is_new_enough(host: Host, least: str) -> None:
    host.least = least
    assert host.layer("driver")[0] == 0


def test_a_driver_that_proc_does_not_show(host: Host) -> None:
    """As in gVisor: the library's version has to do."""
    (host.root / "proc/driver/nvidia/version").unlink()
    assert host.layer("driver")[:2] == (
        0,
        "the driver's version cannot be seen here; its library has to tell it",
    )
    assert host.layer("ready")[0] == 0
    host.least = "450.80.02"
    host.fails_at(
        "library",
        f"driver 418.87.00 is older than 450.80.02, which CUDA 10.1 needs: {TOO_OLD}",
    )


def test_a_container_that_was_given_no_gpu(host: Host) -> None:
    """Docker without --gpus: /proc shows the host's driver, and /dev no node of it."""
    (host.root / "dev/nvidiactl").unlink()
    assert host.layer("driver")[0] == 0
    for name in (*LAYERS[1:], "ready"):
        assert host.layer(name) == (
            77,
            (
                "no GPU was given to this container: driver 418.87.00 is loaded, "
                "and /dev/nvidiactl is absent"
            ),
            {"given": "no"},
        )


def test_some_of_the_hosts_gpus(host: Host) -> None:
    host.write("proc/driver/nvidia/gpus/0004:05:00.0/information", "Model: Tesla V100\n")
    assert host.layer("devices")[1] == (
        "nvidiactl, nvidia-uvm and 1 GPU can be opened; the host has more"
    )


def test_a_library_that_is_none(host: Host) -> None:
    (host.root / f"lib/libcuda.so.{VERSION}").write_text("Not a library.\n" * 100)
    status, said, _ = host.layer("library")
    assert status == 1
    assert said.startswith("libcuda.so.1 cannot be loaded: ")


def moved(host: Host, library: str) -> None:
    """The library elsewhere, or under another name."""
    shutil.rmtree(host.root / "lib")
    host.library = library
    host.place()


ROOT_ALONE = "1 0 0:50 / / rw - overlay overlay rw\n"


def in_an_image(host: Host) -> None:
    """Nothing is mounted into it."""
    host.write("proc/self/mountinfo", ROOT_ALONE)
    host.write("opt/build-images/host-contract.json", "{}")


def remove(path: str) -> Spoil:
    return lambda host: (host.root / path).unlink()


def no_library(host: Host) -> None:
    shutil.rmtree(host.root / "lib")


def a_file_for_a_node(host: Host) -> None:
    (host.root / "dev/nvidia-uvm").unlink()
    host.write("dev/nvidia-uvm", "")


def left_in_the_image(host: Host) -> None:
    moved(host, "lib/libcuda.so.535.261.03")
    in_an_image(host)


def not_of_the_module(host: Host) -> None:
    """As after an update of the driver without a reboot."""
    moved(host, "lib/libcuda.so.450.80.02")
    path = host.root / host.library
    mounts = f"1 0 0:50 / / rw - overlay o rw\n2 1 8:1 /usr/lib/x {path} rw - ext4 d rw\n"
    host.write("proc/self/mountinfo", mounts)


def without_a_symbol(host: Host) -> None:
    path = host.root / host.library
    compiled(FAKES / "libcuda.c", path, "-shared", "-fPIC", "-DINCOMPLETE")


def invisible(host: Host) -> None:
    host.visible = ""


MISMATCH = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
STUB = (
    "CUDA error 34 (CUDA_ERROR_STUB_LIBRARY): "
    "libcuda.so.1 is a stub of the toolkit, not the host's driver library"
)
NO_DEVICE = (
    "cuInit: CUDA error 100 (CUDA_ERROR_NO_DEVICE): "
    "the driver is there, but no GPU was given to this container"
)


@pytest.mark.parametrize(
    ("spoil", "layer", "finding", "error"),
    [
        (
            remove("dev/nvidia-uvm"),
            "devices",
            (
                "/dev/nvidia-uvm is absent: CUDA error 999 (CUDA_ERROR_UNKNOWN) would follow; "
                "on the host: nvidia-modprobe -u -c=0"
            ),
            "",
        ),
        (
            remove("dev/nvidia0"),
            "devices",
            (
                "/dev/nvidiactl is here, and no /dev/nvidia0 or other GPU: "
                "CUDA error 100 (CUDA_ERROR_NO_DEVICE) would follow"
            ),
            "",
        ),
        (
            lambda host: host.node("nvidia0", "/dev/tty"),  # without a terminal there is none
            "devices",
            "/dev/nvidia0 cannot be opened: No such device or address",
            "",
        ),
        (a_file_for_a_node, "devices", "/dev/nvidia-uvm is no device node", ""),
        (
            no_library,
            "library",
            "libcuda.so.1 is not found: the container was not given the host's driver library",
            "",
        ),
        (
            lambda host: moved(host, "cuda/lib64/stubs/libcuda.so.1"),
            "library",
            f"{{path}}: {STUB}",
            "CUDA_ERROR_STUB_LIBRARY",
        ),
        (
            lambda host: host.answers.update(init=34),
            "library",
            f"cuInit: {STUB}",
            "CUDA_ERROR_STUB_LIBRARY",
        ),
        (
            left_in_the_image,
            "library",
            (
                "{path} is of driver 535.261.03, the host's is 418.87.00: "
                f"it was left in the image (CUDA error 803, {MISMATCH})"
            ),
            MISMATCH,
        ),
        (
            not_of_the_module,
            "library",
            (
                "{path} is of driver 450.80.02, the host's is 418.87.00: "
                f"the host's library is not of its kernel module (CUDA error 803, {MISMATCH})"
            ),
            MISMATCH,
        ),
        (without_a_symbol, "library", "libcuda.so.1 has no cuGetErrorName", ""),
        (lambda host: host.answers.update(init=100), "found", NO_DEVICE, "CUDA_ERROR_NO_DEVICE"),
        (invisible, "found", NO_DEVICE, "CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_a_layer_that_fails(host: Host, spoil: Spoil, layer: str, finding: str, error: str) -> None:
    spoil(host)
    host.fails_at(layer, finding.format(path=host.root / host.library), error)


@pytest.mark.parametrize("name", ["libcuda.so.418.87.00", "libcuda.so.1"])
@pytest.mark.parametrize("held", [VERSION, "450.80.02"])
def test_a_library_of_the_right_version_that_was_left_in_the_image(
    host: Host, name: str, held: str
) -> None:
    """What the driver would not find out: today's version is another one's tomorrow."""
    moved(host, f"lib/{name}")
    path = host.root / host.library
    compiled(FAKES / "libcuda.c", path, "-shared", "-fPIC", f'-DVERSION="{held}"')
    in_an_image(host)
    host.fails_at(
        "library", f"{path} was left in the image: the container was not given the host's"
    )


@pytest.mark.parametrize(("name", "status"), [("libcuda.so.418.87.00", 0), ("libcuda.so.1", 1)])
def test_a_library_that_was_copied_from_the_host(host: Host, name: str, status: int) -> None:
    """`ch-fromhost` keeps its name, and so its version."""
    moved(host, f"lib/{name}")
    in_an_image(host)
    host.started_by = {"CH_RUNNING": "Weird Al Yankovic"}
    assert host.layer("library")[0] == status


def test_a_library_of_a_machine_without_an_image(host: Host) -> None:
    host.write("proc/self/mountinfo", ROOT_ALONE)
    assert host.layer("library")[0] == 0


@pytest.mark.parametrize(("version", "status"), [(VERSION, 0), ("450.80.02", 1)])
def test_a_library_whose_mount_tells_its_version(host: Host, version: str, status: int) -> None:
    """Apptainer mounts the host's libcuda.so.418.87.00 as /.singularity.d/libs/libcuda.so.1."""
    moved(host, "libs/libcuda.so.1")
    path = host.root / host.library
    source = f"/usr/lib64/libcuda.so.{version}"
    mounts = f"1 0 7:0 / / rw - squashfs x ro\n2 1 8:1 {source} {path} rw - ext4 d rw\n"
    host.write("proc/self/mountinfo", mounts)
    assert host.layer("library")[0] == status
    assert host.layer("library")[2]["version"] == version


@pytest.mark.parametrize(
    ("held", "ending"),
    [
        (VERSION, f"of the driver's version {VERSION}"),
        ("450.80.02", "whose version cannot be told"),
    ],
)
def test_a_library_that_holds_its_version(host: Host, held: str, ending: str) -> None:
    moved(host, "libs/libcuda.so.1")
    path = host.root / host.library
    compiled(FAKES / "libcuda.c", path, "-shared", "-fPIC", f'-DVERSION="{held}"')
    assert host.layer("library")[:2] == (0, f"libcuda.so.1 is {path}, {ending}")


@pytest.mark.parametrize("number", sorted({*cuda_errors()} - {35, 100}))
def test_each_error_of_the_driver_is_named(host: Host, number: int) -> None:
    error = cuda_errors()[number]
    host.answers["init"] = number
    host.fails_at(
        "library",
        f"cuInit: CUDA error {number} ({error.driver_name}): {error.meaning}",
        error.driver_name,
    )


@pytest.mark.parametrize(
    ("number", "name"), [(205, "CUDA_ERROR_MAP_FAILED"), (4711, "no name for it")]
)
def test_an_error_that_is_not_in_the_table(host: Host, number: int, name: str) -> None:
    host.answers["init"] = number
    status, said, data = host.layer("library")
    assert (status, said) == (1, f"cuInit: CUDA error {number} ({name})")
    assert data["cuda_error"] == name


@pytest.mark.parametrize(
    ("answers", "finding"),
    [
        ({"gpus": 0}, "the driver answers, but gives no GPU to this container"),
        (
            {"name": 214},
            (
                "cuDeviceGetName: CUDA error 214 (CUDA_ERROR_ECC_UNCORRECTABLE): "
                "the GPU's memory has an error that ECC cannot correct"
            ),
        ),
        ({"count": 3, "gpus": 1}, "cuDeviceGetCount: CUDA error 3 (CUDA_ERROR_NOT_INITIALIZED)"),
        ({"attribute": 999}, "cuDeviceGetAttribute: CUDA error 999 (CUDA_ERROR_UNKNOWN)"),
    ],
)
def test_a_gpu_that_does_not_answer(host: Host, answers: dict[str, int], finding: str) -> None:
    host.answers.update(answers)
    status, said, _ = host.layer("found")
    assert status == 1
    assert said.startswith(finding)
    assert host.layer("ready")[1].startswith(f"not judged, since gpu-found failed: {finding}")


def test_several_gpus(host: Host) -> None:
    host.answers.update(gpus=3, capability1=61)
    assert host.layer("found")[1] == (
        '3 GPUs: Tesla "V100", compute capability 7.0, Tesla P100, compute capability 6.1, '
        "Tesla P100, compute capability 7.0"
    )
    assert host.layer("code")[1] == (
        "code of sm_70 for compute capability 7.0; code of sm_61 for compute capability 6.1; "
        "code of sm_70 for compute capability 7.0"
    )


@pytest.mark.parametrize(
    ("cuda", "supported", "status", "ending"),
    [
        ("11.8", (12, 4), 0, ""),
        ("11.8", (11, 0), 0, ": minor-version compatibility, without compiling PTX"),
        ("12.4", (11, 8), 1, f": {TOO_OLD}"),
        ("10.2", (10, 1), 1, f": {TOO_OLD}"),
    ],
)
def test_the_drivers_cuda(
    host: Host, cuda: str, supported: tuple[int, int], status: int, ending: str
) -> None:
    major, minor = supported
    host.cuda = cuda
    host.answers["cuda"] = 1000 * major + 10 * minor
    finding = f"the driver supports CUDA {major}.{minor}, the image has {cuda}{ending}"
    assert host.layer("version")[:2] == (status, finding)


NONE_FOR = "code for 61 70 and PTX for 70: none for compute capability"


@pytest.mark.parametrize(
    ("capability", "status", "finding"),
    [
        (70, 0, "code of sm_70 for compute capability 7.0"),
        (75, 0, "code of sm_70 for compute capability 7.5"),
        (61, 0, "code of sm_61 for compute capability 6.1"),
        (60, 1, f'{NONE_FOR} 6.0 of Tesla "V100": {NO_CODE}'),
        (80, 0, "PTX of compute_70, compiled by the driver for compute capability 8.0"),
        (53, 1, f'{NONE_FOR} 5.3 of Tesla "V100": {NO_CODE}'),
        # Code for Tegra's GPUs is for them alone
        (72, 0, "PTX of compute_70, compiled by the driver for compute capability 7.2"),
    ],
)
def test_the_code_in_a_program(host: Host, capability: int, status: int, finding: str) -> None:
    host.answers.update(capability=capability, cuda=10010)
    assert host.layer("code")[:2] == (status, finding)


def test_ptx_that_is_newer_than_the_driver(host: Host) -> None:
    host.cuda = "11.8"
    host.answers.update(capability=80, cuda=11000)
    status, said, data = host.layer("code")
    assert (status, data["cuda_error"]) == (1, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
    assert said == (
        "no code for compute capability 8.0, and PTX of CUDA 11.8 is newer than the driver: "
        "CUDA error 222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"
    )


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF" + b"\xff" * 2000])
def test_a_program_that_is_none(host: Host, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "program").write_bytes(content)
    status, said, _ = host.run("code", "418.39", "10.1", str(tmp_path / "program"))
    assert status == 1
    assert said.startswith("code for nothing and PTX for nothing: none for compute capability 7.0")


def test_a_program_that_is_missing(host: Host) -> None:
    done = host.run("code", "418.39", "10.1", "/nowhere")
    assert done[:2] == (1, "/nowhere: No such file or directory")


def test_usage(host: Host) -> None:
    assert host.run()[0] == 2
    assert host.run("gpus", "418", "10.1")[0] == 2


# ---- The negative control ----


def control(host: Host, how: str, program: str = "", *, root: bool = True) -> Ended:
    """gpu-control.sh, with `cuda-compute` where a program is given, else with `gpu none`."""
    folder = host.root / "bin"
    folder.mkdir()
    shutil.copy(host.programs / "gpu", folder)
    if program:
        (folder / "cuda-compute").write_text(f"#!/bin/sh\n{program}\n")
        (folder / "cuda-compute").chmod(0o755)
    env = {**host.environment, "OUT": str(folder)}
    if not root:
        del env["GPU_ROOT"]
    words = ("sh", SOURCES / "gpu-control.sh", how, host.least, host.cuda)
    return run_program(*words, env=env, inherit=False)


def test_the_control_without_a_gpu_given(host: Host) -> None:
    done = control(host, "hidden")
    assert (done.status, done.finding) == (
        0,
        f"without a GPU gpu none fails as it has to: {NO_DEVICE}",
    )
    assert done.stdout.startswith('data: {"gpu_here": true, "control": "hidden"}')


SEES_ENVIRONMENT = """
[ "${CUDA_VISIBLE_DEVICES-all}" = "" ] || { echo "computed"; exit 0; }
echo "cudaGetDeviceCount: CUDA error 100 (cudaErrorNoDevice): no GPU"; exit 1"""


def test_the_control_hides_the_gpus(host: Host) -> None:
    done = control(host, "hidden", SEES_ENVIRONMENT)
    assert (done.status, "cuda-compute fails as it has to" in done.finding) == (0, True)


@pytest.mark.parametrize("how", ["hidden", "start"])
def test_a_program_that_passes_without_a_gpu_looks_at_none(host: Host, how: str) -> None:
    done = control(host, how, "echo all is well")
    assert done.status == 1
    assert done.finding == (
        "without a GPU cuda-compute passes: it does not look at one (all is well)"
    )


@pytest.mark.parametrize(
    ("error", "how", "status"),
    [
        ("CUDA error 100 (cudaErrorNoDevice)", "hidden", 0),
        ("CUDA error 35 (cudaErrorInsufficientDriver)", "hidden", 1),  # there is a driver here
        ("CUDA error 35 (cudaErrorInsufficientDriver)", "start", 0),
        ("CUDA error 999 (cudaErrorUnknown)", "hidden", 1),
        ("CUDA error 999 (cudaErrorUnknown)", "start", 1),
        ("Segmentation fault", "start", 1),
    ],
)
def test_a_program_must_fail_in_the_right_way(
    host: Host, error: str, how: str, status: int
) -> None:
    done = control(host, how, f"echo '{error}'; exit 1")
    assert done.status == status
    ending = "fails as it has to" if status == 0 else "ends otherwise than it has to (status 1)"
    assert done.finding == f"without a GPU cuda-compute {ending}: {error}"


def test_the_control_on_a_host_without_a_gpu(bare: Host) -> None:
    """It is no skip: that the program fails there is what was to be seen."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    done = control(bare, "hidden")
    assert done.status == 0
    assert done.finding.startswith(
        "without a GPU gpu none fails as it has to: libcuda.so.1: cannot"
    )
    assert '"gpu_here": false' in done.stdout


def test_the_control_is_not_judged_where_a_layer_failed(host: Host) -> None:
    host.answers["init"] = 803
    done = control(host, "hidden")
    assert done.status == 77
    assert done.finding.startswith("not judged, since gpu-library failed: cuInit: CUDA error 803")


def test_after_a_check_that_failed() -> None:
    script = ["sh", str(SOURCES / "after.sh"), "gpu-compute", "sh", "-c"]
    for words, ended in (
        ("echo said; echo why; exit 1", (77, "not judged, since gpu-compute failed: why\n")),
        ("echo passed", (0, "")),
    ):
        done = run_program(*script, words)
        assert (done.status, done.stdout) == ended


# ---- Messages from GPU to GPU ----


@pytest.fixture(scope="module")
def aware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both programs, and what makes an MPI say that it takes pointers into a GPU's memory."""
    tool_of_tests("mpirun")
    folder = tmp_path_factory.mktemp("aware")
    for name in ("gpu-mpi", "gpu-mpi-speed"):
        compiled(SOURCES / f"{name}.c", folder / name, "-ldl", compiler="mpicc")
    compiled(FAKES / "cuda_aware.c", folder / "aware.so", "-shared", "-fPIC")
    compiled(FAKES / "libcuda.c", folder / "libcuda.so.1", "-shared", "-fPIC")
    return folder


def send(
    aware: Path,
    answers: str = "",
    *,
    says: bool = True,
    ranks: str = "2",
    program: str = "gpu-mpi",
) -> Ended:
    environment = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "FAKE_CUDA": answers,
        "LD_LIBRARY_PATH": str(aware),
    }
    preload = ["env", f"LD_PRELOAD={aware / 'aware.so'}"] if says else []
    words = ("mpirun", "--oversubscribe", "-n", "2", *preload, aware / program, ranks)
    return run_program(*words, env=environment)


@pytest.mark.parametrize(
    ("answers", "says", "numbers"),
    [
        ("gpus=2", True, "0 1 1 2"),  # this machine's Open MPI was built without CUDA
        ("gpus=2", False, "0 1 0 2"),
        ("init=100", True, "0 1 1 0"),
        ("count=100", True, "0 1 1 0"),
        ("", False, "0 0 0 0"),
    ],
)
def test_support_of_an_mpi(aware: Path, answers: str, says: bool, numbers: str) -> None:
    compiled(SOURCES / "gpu-mpi-support.c", aware / "support", "-ldl", compiler="mpicc")
    preload = {"LD_PRELOAD": str(aware / "aware.so")} if says else {}
    driver = {"LD_LIBRARY_PATH": str(aware), "FAKE_CUDA": answers} if answers else {}
    done = run_program(aware / "support", env={**preload, **driver})
    assert (done.status, done.stdout) == (0, f"{numbers}\n"), done.stderr


def test_messages_from_gpu_to_gpu(aware: Path) -> None:
    done = send(aware)
    assert done.status == 0, done.stderr
    assert done.finding == (
        "2 ranks: messages of 1 B to 1 MiB from GPU to GPU, and allreduce of 1 to 65536 doubles "
        "on GPUs"
    )


def test_an_mpi_that_takes_no_pointers_into_a_gpu(aware: Path) -> None:
    done = send(aware, says=False)
    assert done.status == 77
    assert 'data: {"applies": false}' in done.stdout
    assert done.finding.startswith("this MPI takes no pointers into a GPU's memory: ")


@pytest.mark.parametrize(
    ("answers", "finding"),
    [
        ("spoil=1", "rank 0: message of 1000 bytes from GPU to GPU, rank 1 to rank 0: byte 999"),
        ("init=100", "rank 0: cuInit: CUDA error 100 (CUDA_ERROR_NO_DEVICE)"),
        ("gpus=0", "rank 0: cuDeviceGetCount: CUDA error 100 (CUDA_ERROR_NO_DEVICE)"),
        ("memory=2", "rank 0: cuMemAlloc: CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("copy=719", "rank 0: cuMemcpyDtoH: CUDA error 719 (CUDA_ERROR_LAUNCH_FAILED)"),
    ],
)
def test_messages_that_do_not_arrive(aware: Path, answers: str, finding: str) -> None:
    done = send(aware, answers)
    assert done.status == 1
    assert done.finding.startswith(finding)


def test_the_wrong_number_of_ranks(aware: Path) -> None:
    done = send(aware, ranks="3")
    assert (done.status, done.finding) == (1, "MPI started 2 ranks, expected 3")


def test_the_speed_of_messages_from_gpu_to_gpu(aware: Path) -> None:
    done = send(aware, program="gpu-mpi-speed")
    assert done.status == 0, done.stderr
    assert re.fullmatch(
        r"from GPU to GPU: latency [\d.]+ us, bandwidth \d+ MB/s at 4 MiB, all values right",
        done.finding,
    )
    assert (done.data["applies"], done.data["ranks"], done.data["bytes"]) == (True, 2, 4 << 20)
    assert done.data["latency_us"] > 0
    assert done.data["mb_per_s"] > 0


@pytest.mark.parametrize(
    ("answers", "says", "status", "finding"),
    [
        ("", False, 77, "this MPI takes no pointers into a GPU's memory: "),
        ("spoil=1", True, 1, "rank 0: message of "),
        ("init=100", True, 1, "rank 0: cuInit: CUDA error 100 (CUDA_ERROR_NO_DEVICE)"),
        ("memory=2", True, 1, "rank 0: cuMemAlloc: CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("copy=719", True, 1, "rank 0: cuMemcpyDtoH: CUDA error 719 (CUDA_ERROR_LAUNCH_FAILED)"),
    ],
)
def test_the_speed_of_messages_that_do_not_arrive(
    aware: Path, answers: str, says: bool, status: int, finding: str
) -> None:
    done = send(aware, answers, says=says, program="gpu-mpi-speed")
    assert (done.status, done.finding.startswith(finding)) == (status, True), done.stdout
