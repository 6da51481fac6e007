"""The CUDA checks find what they are for, without a toolkit: in planted trees, with faked parts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from check_programs import FAKES, SOURCES, compiled, program_with_gpu_code
from harness import run_program

pytestmark = pytest.mark.engines

CONTROL = Path("/dev/nvidiactl")
VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": "driver>=450.80.2",
}
LIBRARY = "usr/lib/x86_64-linux-gnu"


def run(*command: str | Path, **variables: str) -> tuple[int, str]:
    """The exit status and the finding."""
    done = run_program(*command, env=variables, inherit=False)
    assert done.stderr == ""
    return done.status, done.finding


# ---- cuda-clean ----


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The root file system of a clean run-time image, and a loader's cache beside it."""
    root = tmp_path / "root"
    for name in (f"{LIBRARY}/libcudart.so.12", f"{LIBRARY}/libcublas.so.12", "usr/bin/python3"):
        plant(root, name)
    cached(tmp_path, f"/{LIBRARY}/libcudart.so.12")
    (tmp_path / "mountinfo").write_text("1 0 8:1 / / rw - ext4 disk rw\n")
    return root


def plant(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()


def cached(folder: Path, *libraries: str) -> None:
    """An ldconfig that prints what a cache holds."""
    (folder / "bin").mkdir(exist_ok=True)
    lines = [f"echo '\t{Path(one).name} (libc6,x86-64) => {one}'" for one in libraries]
    (folder / "bin/ldconfig").write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    (folder / "bin/ldconfig").chmod(0o755)


def clean(root: Path, *, flavour: str = "runtime", **variables: str) -> tuple[int, str]:
    environment = {
        **VARIABLES,
        "MOUNTS": str(root.parent / "mountinfo"),
        "PATH": f"{root.parent / 'bin'}:{os.environ['PATH']}",
        **variables,
    }
    script = SOURCES / "cuda-clean.sh"
    return run("sh", script, "11.8", "450.80.02", flavour, root, **environment)


def test_cuda_clean_accepts_a_clean_image(tree: Path) -> None:
    finding = "no file of the driver, no stub on the library path; "
    assert clean(tree) == (0, f"{finding}the host must have driver>=450.80.2")


@pytest.mark.parametrize(
    "name",
    [
        f"{LIBRARY}/libcuda.so.1",
        f"{LIBRARY}/libcuda.so",
        f"{LIBRARY}/nvidia/current/libcuda.so.535.261.03",
        f"{LIBRARY}/libnvidia-ptxjitcompiler.so.1",
        f"{LIBRARY}/libnvidia-ml.so.1",
        "opt/driver/lib64/libnvcuvid.so.1",
        "usr/bin/nvidia-smi",
        "usr/lib/python3/dist-packages/driver/libcuda.so.1",
    ],
)
@pytest.mark.parametrize("flavour", ["runtime", "development"])
def test_cuda_clean_finds_a_file_of_the_driver(tree: Path, name: str, flavour: str) -> None:
    plant(tree, name)
    assert clean(tree, flavour=flavour) == (1, f"of the driver, which is the host's: {tree}/{name}")


def test_cuda_clean_finds_links_and_names_three_of_many(tree: Path) -> None:
    (tree / "usr/local").mkdir()
    for number in range(5):
        (tree / f"usr/local/libcuda.so.{number}").symlink_to("nowhere")
    status, finding = clean(tree)
    assert status == 1
    assert finding.count("libcuda.so.") == 3
    assert finding.endswith(" and more")


@pytest.mark.parametrize(
    "name",
    [
        "usr/bin/nvcc",
        "usr/include/cuda_runtime.h",
        "usr/include/nccl.h",
        f"{LIBRARY}/libcudart_static.a",
        f"{LIBRARY}/libcublas_static.a",
        f"{LIBRARY}/stubs/libcuda.so",
    ],
)
def test_cuda_clean_finds_the_toolkit_in_a_runtime_image_only(tree: Path, name: str) -> None:
    plant(tree, name)
    assert clean(tree) == (1, f"of the toolkit, in a run-time image: {tree}/{name}")
    assert clean(tree, flavour="development")[0] == 0


def test_cuda_clean_leaves_wheels_their_compilers(tree: Path) -> None:
    plant(tree, "usr/lib/python3/site-packages/triton/backends/nvidia/bin/ptxas")
    assert clean(tree)[0] == 0


@pytest.mark.parametrize("folder", ["stubs", "compat"])
def test_cuda_clean_finds_stubs_on_the_library_path(tree: Path, folder: str) -> None:
    place = f"/usr/local/cuda/lib64/{folder}"
    status, finding = clean(tree, LD_LIBRARY_PATH=f"/usr/lib:{place}")
    assert (status, finding) == (1, f"LD_LIBRARY_PATH has stubs: /usr/lib:{place}")
    cached(tree.parent, f"{place}/libcuda.so.1")
    assert clean(tree) == (1, f"the loader's cache has stubs: {place}/libcuda.so.1")


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "", "NVIDIA_VISIBLE_DEVICES is '', not all"),
        ("NVIDIA_DRIVER_CAPABILITIES", "utility", "NVIDIA_DRIVER_CAPABILITIES lacks compute"),
        (
            "NVIDIA_REQUIRE_CUDA",
            "driver>=450.80.02",
            "NVIDIA_REQUIRE_CUDA is 'driver>=450.80.02', not driver>=450.80.2",
        ),
    ],
)
def test_cuda_clean_finds_a_wrong_variable(tree: Path, name: str, value: str, finding: str) -> None:
    assert clean(tree, **{name: value}) == (1, finding)


MOUNTED = "{root}/usr/lib/host/libcuda.so.1"


@pytest.mark.parametrize(
    ("mounts", "status"),
    [
        # Buildah, Docker: a file of the host, bound into an overlay
        ("1 0 0:50 / {root} rw\n2 1 8:1 /drv/libcuda.so.1 " + MOUNTED + " rw\n", 0),
        # Charliecloud: a folder of the host, on the disk that the image lies on
        ("1 0 8:1 /scratch/image {root} rw\n2 1 8:1 /drv {root}/usr/lib/host rw\n", 0),
        # Apptainer without overlay: pieces of the image, which stay the image's own
        (
            "1 0 0:9 / {root} rw\n2 1 7:0 /usr {root}/usr rw\n3 2 7:0 /usr/lib {root}/usr/lib rw\n",
            1,
        ),
        ("1 0 0:50 / {root} rw\n", 1),
    ],
    ids=["a-file", "a-folder", "pieces", "nothing"],
)
def test_cuda_clean_tells_the_hosts_files_from_the_images(
    tree: Path, mounts: str, status: int
) -> None:
    """In the image's own view: what the kernel calls ROOT is / there."""
    plant(tree, "usr/lib/host/libcuda.so.1")
    table = mounts.format(root=tree)
    if "7:0" in mounts:  # a piece shows in the image what its place is
        table = table.replace("7:0 /usr", f"7:0 {tree}/usr")
    (tree.parent / "mountinfo").write_text(table)
    assert clean(tree)[0] == status


# ---- cuda-runtime ----


def faked(folder: Path, *, version: int = 12040, cublas: int = 12) -> tuple[Path, Path]:
    """The program with a CUDA of our own, and one with code for sm_70 and sm_80."""
    library, source = folder / "libcudart.so.12.4.127", folder / "cuda-runtime.cc"
    source.write_text((SOURCES / "cuda-runtime.cu").read_text())
    (folder / "empty.c").touch()
    compiled(folder / "empty.c", library, "-shared")
    values = (f"-DVERSION={version}", f"-DCUBLAS={cublas}", f"-I{FAKES / 'cuda'}", f"-I{SOURCES}")
    link = ("-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{folder}")
    program = compiled(source, folder / "cuda-runtime", *values, *link, compiler="c++")
    return program, program_with_gpu_code(folder, 70, 80)


def runtime(folder: Path, release: str, *capabilities: str, error: int = 0, **parts: int) -> object:
    """Exit status and finding."""
    program, code = faked(folder, **parts)
    return run(program, release, code, *capabilities, FAKE_CUDA=f"count={error}")


@pytest.mark.skipif(CONTROL.exists(), reason="there is a GPU here")
@pytest.mark.parametrize("error", [35, 100])
def test_cuda_runtime_passes_without_a_gpu(tmp_path: Path, error: int) -> None:
    finding = "CUDA 12.4 with code for 70 80; no GPU here, as itsName says"
    assert runtime(tmp_path, "12.4", "70", "80", error=error) == (0, finding)


@pytest.mark.skipif(CONTROL.exists(), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("version", "ending"),
    [
        ("12.4", "CUDA 12.4 with code for 70 80; no GPU here, as itsName says"),
        ("11.8", "the run time is of CUDA 12.4, not 11.8"),
    ],
)
def test_cuda_runtime_of_old_names_its_release_in_its_file_alone(
    tmp_path: Path, version: str, ending: str
) -> None:
    """Without a driver, cudaRuntimeGetVersion of CUDA 11.8 ends with error 35."""
    found = runtime(tmp_path, version, "70", "80", version=0, error=35)
    assert found == (int(version == "11.8"), ending)


def test_cuda_runtime_passes_with_a_gpu(tmp_path: Path) -> None:
    finding = "CUDA 12.4 with code for 70 80; 1 GPU"
    assert runtime(tmp_path, "12.4", "80", "70") == (0, finding)


@pytest.mark.parametrize(
    ("capabilities", "finding"),
    [
        (["70"], "nvcc made code for 70 80, declared: 70"),
        (["70", "80", "90"], "nvcc made code for 70 80, declared: 70 80 90"),
    ],
)
def test_cuda_runtime_compares_the_code_with_what_is_declared(
    tmp_path: Path, capabilities: list[str], finding: str
) -> None:
    assert runtime(tmp_path, "12.4", *capabilities) == (1, finding)


COUNT = "cudaGetDeviceCount: CUDA error"
STUB = "libcuda.so.1 is a stub of the toolkit, not the host's driver library"
MISMATCH = "libcuda.so.1 is of another version than the host's kernel driver"


@pytest.mark.parametrize(
    ("parts", "finding"),
    [
        ({"version": 11080}, "the run time is of CUDA 11.8, not 12.4"),
        ({"cublas": 11}, "cuBLAS is of CUDA 11, not 12.4"),
        ({"error": 34}, f"{COUNT} 34 (itsName): {STUB}"),
        ({"error": 803}, f"{COUNT} 803 (itsName): {MISMATCH}"),
    ],
    ids=["version", "cublas", "stub", "mismatch"],
)
def test_cuda_runtime_fails_with_the_reason(
    tmp_path: Path, parts: dict[str, int], finding: str
) -> None:
    assert runtime(tmp_path, "12.4", "70", "80", **parts) == (1, finding)
