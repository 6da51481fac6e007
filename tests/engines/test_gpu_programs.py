"""The programs that compute on GPUs, on a CUDA whose GPUs are this machine's processor.

tests/engines/fakes/cuda stands for the toolkit's headers, and can compute wrongly in ways that GPUs
and libraries do: each has to be found, and what rounding explains has to pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from check_programs import FAKES, SOURCES, compiled
from harness import run_program, sample

from builder.facts import cuda_errors

pytestmark = pytest.mark.engines

WHOLE = sum(number % 1000 for number in range((1 << 20) + 3))
PROGRAMS = ("cuda-compute", "cuda-blas", "cuda-nccl", "cuda-gemm", "cuda-memory", "cuda-nccl-speed")
LAUNCHES = {"cuda-compute": "launch.h", "cuda-memory": "launch-memory.h"}


def compiled_cuda(source: Path, target: Path) -> None:
    """Compile a CUDA source against the stand-in's headers."""
    options = (f"-I{FAKES / 'cuda'}", f"-I{SOURCES}", "-pthread", "-ldl")
    compiled(source, target, *options, compiler="c++")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    for name in PROGRAMS:
        text = (SOURCES / f"{name}.cu").read_text()
        if name in LAUNCHES:
            text += (FAKES / "cuda" / LAUNCHES[name]).read_text()
        (folder / f"{name}.cc").write_text(text)
        compiled_cuda(folder / f"{name}.cc", folder / name)
    compiled(FAKES / "libnccl.c", folder / "libnccl.so.2", "-shared", "-fPIC")
    return folder


def run(
    programs: Path, name: str, *arguments: str, **variables: str
) -> tuple[int, str, dict[str, Any]]:
    """Exit status, finding and data."""
    env = {"LD_LIBRARY_PATH": str(programs), **variables}
    done = run_program(programs / name, *arguments, env=env, inherit=False)
    return done.status, done.finding, done.data


# ---- cuda-compute ----


def test_vectors_are_added_and_reduced(programs: Path) -> None:
    status, finding, data = run(programs, "cuda-compute", FAKE_CUDA="gpus=2")
    assert status == 0
    assert finding == (
        "1048579 numbers are added and reduced, each sum exact, on: "
        "Tesla V100 (code of sm_70), Tesla V100 (code of sm_70)"
    )
    assert data == {"gpus": 2, "numbers": 1048579}


@pytest.mark.parametrize(
    ("defect", "finding"),
    [
        ("add=1", "addition on GPU 0: sum 77 is 617.000000, not 616.000000"),
        ("unwritten=1", "addition on GPU 0: sum 1048578 is nan, not 1124.000000"),
        (
            "shared=1",
            f"reduction on GPU 0: the sum in shared memory is {WHOLE + 1}.000000, not {WHOLE}",
        ),
        ("atomic=1", f"reduction on GPU 0: the atomic sum is {WHOLE + 1}, not {WHOLE}"),
    ],
)
def test_a_wrong_sum_is_found(programs: Path, defect: str, finding: str) -> None:
    status, said, _ = run(programs, "cuda-compute", FAKE_CUDA=defect)
    assert (status, said.replace("-nan", "nan")) == (1, finding)


@pytest.mark.parametrize(
    ("answers", "call", "number", "name"),
    [
        ("count=100", "cudaGetDeviceCount", 100, "itsName"),
        ("count=35", "cudaGetDeviceCount", 35, "itsName"),
        ("device=46", "cudaSetDevice", 46, "itsName"),
        ("malloc=2", "cudaMalloc", 2, "itsName"),
        ("memcpy=214", "cudaMemcpy", 214, "cudaErrorECCUncorrectable"),
        ("launch=209", "cudaLaunchKernel", 209, "itsName"),
        ("launch=222,after=1", "cudaLaunchKernel", 222, "itsName"),
        ("synchronize=719", "cudaDeviceSynchronize", 719, "cudaErrorLaunchFailure"),
        ("synchronize=4711", "cudaDeviceSynchronize", 4711, "itsName"),
    ],
)
def test_each_error_is_named(
    programs: Path, answers: str, call: str, number: int, name: str
) -> None:
    """Also of a GPU that is lost while it computes."""
    known = cuda_errors().get(number)
    meaning = f": {known.meaning}" if known else ""
    assert run(programs, "cuda-compute", FAKE_CUDA=answers) == (
        1,
        f"{call}: CUDA error {number} ({name}){meaning}",
        {"cuda_error": name},
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_gpu_is_no_pass(programs: Path, name: str) -> None:
    words = ["double"] if name == "cuda-gemm" else []
    status, finding, _ = run(programs, name, *words, FAKE_CUDA="gpus=0")
    assert (status, finding) == (1, "cudaGetDeviceCount: 0 GPUs")


# ---- cuda-blas ----


@pytest.mark.campaign
@pytest.mark.parametrize("way", sample(["fused", "backwards", "cut", ""], 1))
def test_what_rounding_explains_passes(programs: Path, way: str) -> None:
    status, finding, data = run(programs, "cuda-blas", FAKE_BLAS=way)
    assert status == 0, finding
    assert finding.startswith("cuBLAS multiplies right on 1 GPU; largest error, as part of what")
    parts = [data["single"], data["double"], data["half"]]
    assert all(0 < part < 1 for part in parts)


@pytest.mark.parametrize(
    ("way", "precision"),
    [
        ("tf32", "single precision, 257 x 193 x 129"),
        ("bfloat", "single precision, 257 x 193 x 129"),
        ("halfsums", "single precision, 257 x 193 x 129"),
        ("unwritten", "single precision, 257 x 193 x 129"),
        ("single", "double precision, 257 x 193 x 129"),
    ],
)
def test_a_lower_precision_is_found(programs: Path, way: str, precision: str) -> None:
    status, finding, _ = run(programs, "cuda-blas", FAKE_BLAS=way)
    assert status == 1
    assert finding.startswith(f"{precision}: element (")
    assert "is due to rounding" in finding


@pytest.mark.campaign
@pytest.mark.parametrize("way", sample(["bfloat", "halfsums"], 1))
def test_a_lower_precision_than_half_is_found(programs: Path, tmp_path: Path, way: str) -> None:
    """In half precision alone: the others would be found before."""
    text = (programs / "cuda-blas.cc").read_text()
    first = "for (int precision = 0;"
    assert text.count(first) == 1
    (tmp_path / "half.cc").write_text(text.replace(first, "for (int precision = HALF;"))
    compiled_cuda(tmp_path / "half.cc", tmp_path / "half")
    assert run(tmp_path, "half")[0] == 0
    status, finding, _ = run(tmp_path, "half", FAKE_BLAS=way)
    assert (status, finding.startswith("half precision, 257 x 193 x 129: element (")) == (1, True)


@pytest.mark.parametrize(
    ("way", "finding"),
    [
        ("13", "cuBLAS, single precision, 257 x 193 x 129: CUBLAS_STATUS_EXECUTION_FAILED"),
        ("8", "cuBLAS, single precision, 257 x 193 x 129: CUBLAS_STATUS_ARCH_MISMATCH"),
        ("99", "cuBLAS, single precision, 257 x 193 x 129: status 99"),
        ("create", "cublasCreate on GPU 0: CUBLAS_STATUS_NOT_INITIALIZED"),
    ],
)
def test_errors_of_cublas_are_named(programs: Path, way: str, finding: str) -> None:
    assert run(programs, "cuda-blas", FAKE_BLAS=way)[:2] == (1, finding)


# ---- cuda-nccl ----


@pytest.mark.parametrize(("gpus", "ending"), [(1, "1 GPU"), (4, "1 and 4 GPUs")])
def test_nccl_reduces(programs: Path, gpus: int, ending: str) -> None:
    status, finding, data = run(programs, "cuda-nccl", FAKE_CUDA=f"gpus={gpus}")
    assert (status, finding) == (0, f"NCCL 2.22.3 reduces 1 to 1048576 numbers on {ending}")
    assert data == {"gpus": gpus, "nccl": "2.22.3"}


@pytest.mark.parametrize(
    ("way", "gpus", "finding"),
    [
        ("lost", 1, ""),
        (
            "lost",
            2,
            (
                "NCCL on 2 GPUs, 1 numbers: GPU 0 has at 0 the sum 0.250000 and the maximum 0, "
                "expected 0.750000 and 1099511627776"
            ),
        ),
        ("unwritten", 1, "NCCL on 1 GPUs, 1 numbers: GPU 0 has at 0 the sum"),
        ("group", 1, "ncclGroupEnd: NCCL error 5 (invalid usage)"),
        ("init", 2, "ncclCommInitAll: NCCL error 5 (invalid usage)"),
    ],
)
def test_a_wrong_reduction_is_found(programs: Path, way: str, gpus: int, finding: str) -> None:
    status, said, _ = run(programs, "cuda-nccl", FAKE_CUDA=f"gpus={gpus}", FAKE_NCCL=way)
    assert status == (1 if finding else 0)
    assert said.startswith(finding)


def test_an_image_without_nccl(programs: Path, tmp_path: Path) -> None:
    nowhere = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert run(programs, "cuda-nccl", str(tmp_path / "with-nccl"), **nowhere) == (
        77,
        "this image has no NCCL (libnccl.so.2)",
        {"applies": False},
    )


def test_an_image_that_lost_its_nccl(programs: Path, tmp_path: Path) -> None:
    """The development stage had it, and the run-time stage has not."""
    (tmp_path / "with-nccl").touch()
    nowhere = {"LD_LIBRARY_PATH": str(tmp_path)}
    status, finding, _ = run(programs, "cuda-nccl", str(tmp_path / "with-nccl"), **nowhere)
    assert status == 1
    assert finding.startswith("the development stage had NCCL, and here it is not found: ")


# ---- cuda-gemm ----

PRECISIONS = ("double", "single", "tensor")


def gemm(programs: Path, precision: str, **variables: str) -> tuple[int, str, dict[str, Any]]:
    return run(programs, "cuda-gemm", precision, "48", "0.001", **variables)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", sample(["", "fused", "backwards", "cut"], 2))
def test_products_of_whole_numbers_are_exact_in_any_order(
    programs: Path, precision: str, way: str
) -> None:
    status, finding, data = gemm(programs, precision, FAKE_BLAS=way, FAKE_CUDA="gpus=2")
    assert status == 0, finding
    assert finding.endswith("on the slowest of 2 GPUs, 48 x 48, every element equals the CPU's")
    assert (data["gpus"], data["size"]) == (2, 48)
    assert data["gflop_per_s"] > 0


@pytest.mark.parametrize(
    ("precision", "way"),
    [
        ("double", "single"),
        ("double", "unwritten"),
        ("single", "tf32"),
        ("single", "halfsums"),
        ("single", "unwritten"),
        ("tensor", "bfloat"),
        ("tensor", "halfsums"),
        ("tensor", "unwritten"),
    ],
)
def test_a_fast_wrong_product_is_found(programs: Path, precision: str, way: str) -> None:
    status, finding, data = gemm(programs, precision, FAKE_BLAS=way)
    assert (status, data) == (1, {})
    at = "47, 47" if way == "unwritten" else "0, 0"
    assert finding.startswith(f"{precision}: element ({at}) is ")
    assert ", the CPU has " in finding


def test_gpus_without_tensor_cores_are_named(programs: Path) -> None:
    assert gemm(programs, "tensor", FAKE_CUDA="capability=60") == (
        77,
        "no tensor cores: compute capability 6.0 of Tesla V100",
        {"applies": False},
    )
    assert gemm(programs, "double", FAKE_CUDA="capability=60")[0] == 0


@pytest.mark.parametrize("words", [(), ("half",), ("double", "4097"), ("double", "0")])
def test_sizes_whose_sums_are_not_exact_are_refused(programs: Path, words: tuple[str, ...]) -> None:
    status, finding, _ = run(programs, "cuda-gemm", *words)
    assert (status, finding.startswith("usage: cuda-gemm")) == (2, True)


# ---- cuda-memory ----


def test_the_bandwidth_of_memory_is_measured(programs: Path) -> None:
    status, finding, data = run(programs, "cuda-memory", "1", "2", FAKE_CUDA="gpus=2")
    assert status == 0, finding
    assert finding.startswith("the slowest of 2 GPUs: copy ")
    rates = ("copy_gb_per_s", "triad_gb_per_s", "to_gpu_gb_per_s", "from_gpu_gb_per_s")
    assert all(data[rate] > 0 for rate in rates)


@pytest.mark.parametrize(
    ("defect", "finding"),
    [
        ("copied=1", "GPU 0: number 7 is 11.500000, not 10.500000"),
        ("triad=1", "GPU 0: number 9 is 14.500000, not 13.500000"),
        ("unwritten=1", "GPU 0: number 131071 is nan, not 6142.500000"),
        ("pinned=2", "cudaMallocHost: CUDA error 2 (itsName)"),
        ("launch=209", "cudaLaunchKernel: CUDA error 209 (itsName)"),
    ],
)
def test_memory_that_changes_a_value_is_found(programs: Path, defect: str, finding: str) -> None:
    status, said, _ = run(programs, "cuda-memory", "1", "2", FAKE_CUDA=defect)
    assert (status, said.replace("-nan", "nan").startswith(finding)) == (1, True), said


# ---- cuda-nccl-speed ----


def nccl_speed(programs: Path, gpus: int, **variables: str) -> tuple[int, str, dict[str, Any]]:
    return run(programs, "cuda-nccl-speed", "no", "999", FAKE_CUDA=f"gpus={gpus}", **variables)


def test_the_bandwidth_of_an_allreduce_is_measured(programs: Path) -> None:
    status, finding, data = nccl_speed(programs, 4)
    assert status == 0, finding
    assert finding.startswith("NCCL 2.22.3 adds 999 doubles over 4 GPUs: bus bandwidth ")
    assert (data["gpus"], data["bytes"]) == (4, 7992)
    assert data["bus_gb_per_s"] > 0


def test_one_gpu_has_no_allreduce(programs: Path) -> None:
    finding = "there is one GPU here: nothing to reduce over"
    assert nccl_speed(programs, 1) == (77, finding, {"applies": False})


@pytest.mark.parametrize(
    ("way", "finding"),
    [
        ("lost", "GPU 0 has at 0 the sum 0.250000, not 0.750000"),
        ("unwritten", "GPU 0 has at 0 the sum "),
        ("later", "GPU 0 has at 0 the sum "),
        ("group", "ncclGroupEnd: NCCL error 5 (invalid usage)"),
        ("init", "ncclCommInitAll: NCCL error 5 (invalid usage)"),
    ],
)
def test_a_fast_wrong_allreduce_is_found(programs: Path, way: str, finding: str) -> None:
    status, said, _ = nccl_speed(programs, 2, FAKE_NCCL=way)
    assert (status, said.startswith(finding)) == (1, True), said


# ---- The table of errors ----


def test_the_programs_know_the_errors_that_the_builder_knows() -> None:
    text = " ".join((SOURCES / "cuda-errors.h").read_text().split())
    for error in cuda_errors().values():
        driver_name = f'"{error.driver_name}"' if error.driver_name else "NULL"
        row = f'{{{error.code}, {driver_name}, "{error.name}",'
        assert row in text
        begin = text.index(row) + len(row)
        meaning = text[begin : text.index("}", begin)].replace('" "', "").strip(' "')
        assert meaning == error.meaning
    assert text.count(', "cudaError') == len(cuda_errors())
