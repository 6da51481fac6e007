"""Real images with CUDA by NVIDIA's wheels: built, packed, and proven up to the GPU."""

from __future__ import annotations

import shutil
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness import FORMATS, LONG, build_images, manifest_of, passed

from builder.build.engines import Tools
from builder.facts import Facts
from builder.load.facts import known_facts

RECIPE = """\
recipe: cuda-small
version: "1.0"
about: CUDA's compiler, and what a recipe names of its libraries
development:
  - gnu: {cc: true, cxx: true, fortran: false}
  - cuda: {libraries: [cudart]}
checks: [cuda-clean, gpu-driver, gpu-found, cuda-program, gpu-code, gpu-compute, gpu-control]
"""
WITH_LIBRARIES = RECIPE.replace("[cudart]}", "[cublas], nccl: true}").replace(
    "cuda-program", "cuda-runtime, gpu-blas, gpu-nccl"
)
# Programs that call the driver itself are linked with its stub, as UCX and Open MPI are.
STUB = (
    "echo 'int cuMemAlloc_v2(void); int main(void) { return cuMemAlloc_v2(); }' |"
    " cc -x c -o /tmp/with-driver - -L$CUDA_HOME/lib64/stubs -lcuda && rm /tmp/with-driver"
)
LOADED = "ldd $OUT/cuda-compute | grep /cuda-{{ cuda.version }}/redist/libcudart.so.13"
PROGRAM = "opt/build-images/bin/cuda-compute"
HOME = "usr/local/cuda-{}/redist/"
# Equal formats are the same for other images; in `make test-long`, three images have all of them.
BUILT = FORMATS if LONG else ("oci", "charliecloud")
_LONG = pytest.mark.long(reason="builds a base or downloads a gigabyte more, minutes")


def with_recipe(site: Path, recipe: str, base: str, cuda: str) -> None:
    """Leave one recipe on one base to a copy of the project."""
    shutil.rmtree(site / "recipes")
    (site / "recipes").mkdir()
    (site / "recipes" / "cuda-small.yaml").write_text(recipe)
    (site / "matrix.yaml").write_text(
        f'axes: {{arch: [x86_64], base: [{base}], cuda: ["{cuda}"], mpi: [none]}}\n'
        "default: {recipe: [cuda-small]}\n"
    )
    # Debian 12's packages of 13.0 are in NVIDIA's repository, which comes first.
    (site / "site.yaml").write_text("routes: {cuda: [wheels]}\n")
    path = site / "tests/images/checks.yaml"
    checks = yaml.safe_load(path.read_text())
    check = checks["checks"]["cuda-program"]
    check["build"].append(STUB)
    check["run"] += f" && {LOADED}"
    path.write_text(yaml.safe_dump(checks))


def files_of(tarball: Path) -> set[str]:
    with tarfile.open(tarball) as archive:
        return {member.name for member in archive if not member.isdir()}


def file_of(tarball: Path, name: str) -> bytes:
    with tarfile.open(tarball) as archive:
        file = archive.extractfile(name)
        assert file
        return file.read()


def kernels(program: bytes) -> Iterator[tuple[int, int]]:
    """The kind (1 is PTX, 2 machine code) and the capability of each kernel, as cuobjdump finds it.

    The containers are those that tests/images/cuda-code.h reads.
    """
    at = program.find(b"\x50\xed\x55\xba")
    while at >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", program, at)
        at, end = at + header, at + header + size
        while at < end:
            kind, _, header, size, _, _, _, _, capability = struct.unpack_from(
                "<HHIQIIHHI", program, at
            )
            yield kind, capability
            at += header + size
        at = program.find(b"\x50\xed\x55\xba", end)


@pytest.fixture(name="facts", scope="module")
def shipped_facts() -> Facts:
    return known_facts(Path("/nonexistent"))


@pytest.mark.engines
@pytest.mark.parametrize(
    ("recipe", "base", "cuda", "libraries"),
    [
        (RECIPE, "debian13", "13.5", {"cudart"}),
        pytest.param(RECIPE, "debian13", "13.0", {"cudart"}, marks=_LONG),
        pytest.param(RECIPE, "debian12", "13.0", {"cudart"}, marks=_LONG),
        pytest.param(
            WITH_LIBRARIES,
            "debian12",
            "13.5",
            {"cudart", "cublas", "cublasLt", "nvblas", "nvrtc", "nvrtc-builtins", "nccl"},
            marks=_LONG,
        ),
    ],
)
def test_an_image_is_proven_up_to_the_gpu(
    site: Path,
    tools: Tools,
    facts: Facts,
    recipe: str,
    base: str,
    cuda: str,
    libraries: set[str],
) -> None:
    del tools
    with_recipe(site, recipe, base, cuda)
    passed(build_images("lock", "--project", site))
    done = passed(build_images("--project", site, *(f"--format={name}" for name in BUILT)))
    assert ("three formats equal" in done.stdout) is (BUILT == FORMATS)
    assert "not proven on a GPU" in done.stdout
    folder = site / "out" / f"cuda-small-1.0-{base}-cuda{cuda}-x86_64"
    checks = manifest_of(folder)["checks"]
    assert set(checks) == set(BUILT)
    for name in BUILT:
        outcomes = {one["check"]: one for one in checks[name]}
        assert outcomes["cuda-clean"]["outcome"] == "passed"
        control = outcomes["gpu-control"]
        assert control["outcome"] == "passed"
        assert "cudaErrorInsufficientDriver" in control["reason"]
        assert {one["outcome"] for one in checks[name]} == {"passed", "skipped"}

    tarball, home = folder / "image.tar.gz", HOME.format(cuda)
    files = files_of(tarball)
    unpacked_files = {name.removeprefix(home) for name in files if name.startswith(home)}
    loaded = {name for name in unpacked_files if ".so" in name}
    names = {name.partition(".")[0].removeprefix("lib") for name in loaded}
    assert names == libraries, loaded
    assert all(
        "dist-info/" in name for name in unpacked_files - loaded
    )  # licences, and the list of packages
    drivers = ("libcuda.so", "libnvidia-ml.so")
    assert not {name for name in files if name.rpartition("/")[2].startswith(drivers)}
    assert not {name for name in files if name.endswith(("/nvcc", "/ptxas", "/cuda.h"))}

    capabilities = {int(one) for one in facts.cuda[cuda].capabilities}
    by_kind = set(kernels(file_of(tarball, PROGRAM)))
    assert {capability for kind, capability in by_kind if kind == 2} == capabilities
    assert {capability for kind, capability in by_kind if kind == 1} == {max(capabilities)}


@pytest.mark.engines
@pytest.mark.long(reason="compiles Open MPI, or gets 3 GB of wheels: half an hour and 25 GB each")
@pytest.mark.parametrize(
    ("image", "checks"),
    [
        ("mpi-source-1.0-debian12-cuda13.5-openmpi5.0-x86_64", {"mpi", "ucx", "gpu-mpi-support"}),
        ("jax-1.0-debian13-cuda13.0-openmpi5.0-x86_64", {"jax", "jax-parallel"}),
        ("pytorch-1.0-debian13-cuda13.0-openmpi5.0-x86_64", {"pytorch", "pytorch-parallel"}),
        (
            "tensorflow-release-1.0-debian13-cuda12.9-openmpi5.0-x86_64",
            {"tensorflow", "tensorflow-training", "tensorflow-workers"},
        ),
    ],
)
def test_a_shipped_image_with_cuda_is_proven_up_to_the_gpu(
    tools: Tools, out: Path, image: str, checks: set[str]
) -> None:
    del tools
    done = passed(build_images("--image", image, "--output", out))
    assert "three formats equal" in done.stdout
    for outcomes in manifest_of(out / image)["checks"].values():
        by_check = {one["check"]: one["outcome"] for one in outcomes}
        assert set(by_check.values()) == {"passed", "skipped"}
        assert {*checks, "cuda-clean", "gpu-control"} <= {
            name for name, outcome in by_check.items() if outcome == "passed"
        }
