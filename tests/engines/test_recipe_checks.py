"""The checks of recipes find what they are for: defects are planted in what they look at.

Programs are compiled with this machine's compiler and MPI; `hpcc` and `fio` are stood in for by
scripts that end as a broken one would.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import check_programs
import pytest
from check_programs import SOURCES
from harness import Ended, run_program

pytestmark = pytest.mark.engines

LAUNCHER = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]

# What the summary of a run of HPC Challenge holds.
SUMMARY = {
    "Success": "1",
    "CommWorldProcs": "2",
    "HPL_Tflops": "0.01",
    "MPIRandomAccess_ErrorsFraction": "0",
    "MPIFFT_maxErr": "1e-15",
    "PTRANS_residual": "0",
    "StarSTREAM_Triad": "5.1",
    "MaxPingPongLatency_usec": "0.5",
    "VersionMajor": "1",
    "VersionMinor": "5",
    "VersionMicro": "0",
}


def run(*command: str | Path, path: Path | None = None) -> Ended:
    return run_program(*command, env={"PATH": f"{path}:{os.environ['PATH']}"} if path else {})


def compiled(
    name: str, folder: Path, change: tuple[str, str], *options: str, compiler: str
) -> Path:
    """A check's program, with one thing in its source changed."""
    text, source = (SOURCES / f"{name}.c").read_text(), folder / f"{name}.c"
    assert text.count(change[0]) >= 1
    source.write_text(text.replace(change[0], change[1], 1))
    return check_programs.compiled(source, folder / name, *options, compiler=compiler)


def stub(folder: Path, name: str, text: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (("int main", "int main"), 0, "all values right"),
        (("c[i] = a[i] + b[i];", "c[i] = a[i] + b[i] * (i != 77);"), 1, "1 of 131072 elements"),
        (("b[i] = S * c[i];", "b[i] = S * c[i] + 1e-15;"), 1, "elements are wrong"),
    ],
)
def test_memory_speed(tmp_path: Path, change: tuple[str, str], status: int, said: str) -> None:
    program = compiled("memory-speed", tmp_path, change, "-fopenmp", compiler="cc")
    done = run(program, "1", "2")
    assert (done.status, said in done.finding) == (status, True), done.stdout


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (("int main", "int main"), 0, "all values right"),
        (
            ("MPI_Send(buffer, bytes,", "MPI_Send(buffer, bytes > 1 ? bytes - 1 : bytes,"),
            1,
            "values arrived wrong",
        ),
        (("MPI_DOUBLE, MPI_SUM", "MPI_DOUBLE, MPI_MAX"), 1, "values arrived wrong"),
    ],
)
def test_mpi_speed(tmp_path: Path, change: tuple[str, str], status: int, said: str) -> None:
    program = compiled("mpi-speed", tmp_path, change, compiler="mpicc")
    done = run(*LAUNCHER, program, "4096", "20")
    assert (done.status, said in done.finding) == (status, True), done.stdout


def test_mpi_speed_of_one_rank_is_none(tmp_path: Path) -> None:
    program = compiled("mpi-speed", tmp_path, ("int main", "int main"), compiler="mpicc")
    done = run(program)
    assert done.status == 2
    assert "there is one rank" in done.finding


def hpcc(folder: Path, *, residual: str = "PASSED", status: int = 0, **changes: str) -> Ended:
    """The check's verdict on a run of `hpcc` that left this output."""
    rows = [f"{key}={value}" for key, value in {**SUMMARY, **changes}.items()]
    lines = ["cat >hpccoutf.txt <<'END'", f"||Ax-b||_oo ...... {residual}", *rows, "END"]
    text = "\n".join([*lines, f"exit {status}"])
    return run("sh", SOURCES / "hpcc-check.sh", "2", "env", path=stub(folder, "hpcc", text))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"residual": "FAILED"}, "no residual of HPL passed"),
        ({"Success": "0"}, "hpcc says that a test failed (Success=0)"),
        ({"CommWorldProcs": "1"}, "hpcc ran on 1 ranks, expected 2"),
        ({"HPL_Tflops": "0"}, "HPL has no rate"),
        ({"MPIRandomAccess_ErrorsFraction": "0.5"}, "RandomAccess: wrong updates: 0.5"),
        ({"MPIFFT_maxErr": "0.1"}, "FFT: largest error: 0.1"),
        ({"PTRANS_residual": "99"}, "PTRANS: residual: 99"),
        ({"status": 3}, "hpcc ended with exit status 3"),
    ],
)
def test_hpcc(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    done = hpcc(tmp_path, **changes)  # type: ignore[arg-type]
    assert (done.status, done.finding) == (1, said)


def test_hpcc_passes(tmp_path: Path) -> None:
    done = hpcc(tmp_path)
    assert done.status == 0
    assert done.finding.startswith("1 residuals passed on 2 ranks: HPL, PTRANS")


def test_hpcc_that_wrote_nothing(tmp_path: Path) -> None:
    done = run("sh", SOURCES / "hpcc-check.sh", "2", "env", path=stub(tmp_path, "hpcc", "exit 0\n"))
    assert done.status == 1
    assert done.finding.startswith("hpcc wrote no hpccoutf.txt")


def fio_output(*, read: int = 1 << 20, error: int = 0) -> str:
    return (
        'for one in "$@"; do case $one in --output=*) out=${one#--output=};; esac; done\n'
        f'echo \'fio: note {{"fio version": "fio-3", "jobs": [{{"error": {error}, '
        f'"write": {{"io_bytes": 1048576, "bw_bytes": 1}}, '
        f'"read": {{"io_bytes": {read}, "bw_bytes": 1}}}}]}}\' >"$out"\n'
    ).replace("fio: note ", "fio: note\n")


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (fio_output(), 0, "1 MiB written at random and verified by checksum (fio-3)"),
        (fio_output(read=0), 1, "fio wrote 1048576 and verified 0 of 1048576 bytes, error 0"),
        (
            fio_output(error=84),
            1,
            "fio wrote 1048576 and verified 1048576 of 1048576 bytes, error 84",
        ),
        ("exit 1\n", 1, "fio ended with exit status 1"),
    ],
)
def test_fio(tmp_path: Path, text: str, status: int, said: str) -> None:
    done = run("sh", SOURCES / "fio-check.sh", "1", path=stub(tmp_path, "fio", text))
    assert (done.status, done.finding) == (status, said), done.stderr


def ucx(
    folder: Path, *, version: str = "5.0.7", library: str = "1.13.1", chosen: str = "ucx"
) -> Ended:
    stub(folder, "ompi_info", f"echo 'Open MPI v{version}'; echo mca:pml:{chosen}:\n")
    stub(folder, "ucx_info", f'echo "# UCT version={library} revision 0"\n')
    stub(folder, "ranks", f"echo 'select: component {chosen} selected' >&2; echo 2 ranks\n")
    return run("sh", SOURCES / "ucx-check.sh", "5.0.7", "1.13.1", "ranks", path=folder)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, 0, "UCX 1.13.1 below Open MPI 5.0.7: 2 ranks"),
        ({"version": "4.1.4"}, 1, "ompi_info says Open MPI 4.1.4, expected 5.0.7"),
        ({"library": "1.18.1"}, 1, "ucx_info says UCX 1.18.1, expected 1.13.1"),
        ({"chosen": "ob1"}, 1, "this Open MPI has no pml ucx"),
    ],
)
def test_ucx(tmp_path: Path, changes: dict[str, str], status: int, said: str) -> None:
    done = ucx(tmp_path, **changes)
    assert (done.status, done.finding) == (status, said)


def test_ucx_that_was_not_chosen(tmp_path: Path) -> None:
    ucx(tmp_path)
    stub(tmp_path, "ranks", "echo 'select: component ob1 selected' >&2; echo 2 ranks\n")
    done = run("sh", SOURCES / "ucx-check.sh", "5.0.7", "1.13.1", "ranks", path=tmp_path)
    assert (done.status, done.finding) == (1, "the ranks did not choose UCX")


def gpu_mpi_support(
    folder: Path,
    *,
    built: str = "true",
    have: str = "#define HAVE_CUDA                     1",
    transports: str = "",
    ended: int = 0,
    program: str = "echo 1 0 0 0",
) -> Ended:
    lines = "".join(f"#      Transport: {name}\n" for name in ("tcp", *transports.split()))
    value = f"mca:mpi:base:param:mpi_built_with_cuda_support:value:{built}"
    stub(folder, "ompi_info", f"echo {value}\n")
    stub(folder, "ucx_info", f"[ $1 = -b ] && echo '{have}' || printf '{lines}'\nexit {ended}\n")
    stub(folder, "program", program)
    return run("sh", SOURCES / "gpu-mpi-support.sh", "env", "program", path=folder)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, 0, "without the driver's library: MPIX_Query_cuda_support says 0, no transport"),
        (
            {"program": "echo 1 1 1 2", "transports": "cuda_copy cuda_ipc cuda_copy"},
            0,
            "with 2 GPUs: MPIX_Query_cuda_support says 1, transports cuda_copy cuda_ipc",
        ),
        ({"program": "echo 1 1 1 0"}, 0, "no GPU: MPIX_Query_cuda_support says 1, no transport"),
        ({"built": "false"}, 1, "ompi_info says mpi_built_with_cuda_support false"),
        ({"built": "\necho"}, 1, "ompi_info says mpi_built_with_cuda_support not at all"),
        ({"ended": 127}, 1, "ucx_info -d ended with exit status 127"),
        ({"have": ""}, 1, "ucx_info says that UCX is built without CUDA"),
        ({"program": "echo 0 0 0 0"}, 1, "mpi-ext.h has MPIX_CUDA_AWARE_SUPPORT 0"),
        (
            {"program": "echo 1 1 0 1"},
            1,
            "MPIX_Query_cuda_support says 0, and libcuda.so.1 is here",
        ),
        (
            {"program": "echo 1 0 1 0"},
            1,
            "MPIX_Query_cuda_support says 1, and libcuda.so.1 is not here",
        ),
        ({"program": "echo 1 1 1 1"}, 1, "with 1 GPUs, UCX has no transport cuda_copy"),
        ({"transports": "cuda_copy"}, 1, "without a GPU, UCX has the transports cuda_copy"),
        ({"program": "exit 3"}, 1, "gpu-mpi-support ended with exit status 3"),
        ({"program": "echo no PMIx"}, 1, "gpu-mpi-support printed: no PMIx"),
    ],
)
def test_gpu_mpi_support(tmp_path: Path, changes: dict[str, Any], status: int, said: str) -> None:
    done = gpu_mpi_support(tmp_path, **changes)
    assert (done.status, done.finding.endswith(said)) == (status, True), (done.finding, done.stderr)


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("pytorch-check.py", ["x86_64"], "cannot import PyTorch and NumPy: no torch here"),
        ("pytorch-gpu-check.py", ["70"], "cannot import PyTorch: no torch here"),
        ("tensorflow-check.py", ["x86_64"], "cannot import TensorFlow and NumPy: no torch here"),
        ("tensorflow-gpu-check.py", ["70"], "cannot import TensorFlow: no torch here"),
        ("tensorflow-training-check.py", [], "cannot import TensorFlow and NumPy: no torch here"),
        ("tensorflow-workers-check.py", [], "cannot import TensorFlow and NumPy: no torch here"),
        ("jax-check.py", ["x86_64"], "cannot import JAX and NumPy: no torch here"),
        ("jax-parallel-check.py", [], "cannot import JAX and NumPy: no torch here"),
        ("jax-gpu-check.py", [], "cannot import JAX: no torch here"),
    ],
)
def test_a_missing_package_is_a_finding(
    tmp_path: Path, script: str, arguments: list[str], said: str
) -> None:
    for name in ("jax", "numpy", "torch", "tensorflow"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no torch here')\n")
    env = {"PYTHONPATH": str(tmp_path)}
    done = run_program(sys.executable, SOURCES / script, *arguments, env=env)
    assert (done.status, done.finding) == (1, said)


FAKE_TORCH = """
class version: cuda = {cuda!r}
__version__ = "2"
class cuda:
    is_available = staticmethod(lambda: {available})
    get_arch_list = staticmethod(lambda: ["sm_70", "sm_80"])
    device_count = staticmethod(lambda: 1)
def manual_seed(seed): raise RuntimeError("CUDA error: uncorrectable ECC error encountered\\nmore")
"""
FAKE_TENSORFLOW = """
class test: is_built_with_cuda = staticmethod(lambda: {cuda} is not None)
__version__ = "2"
built = {{"cuda_compute_capabilities": ["sm_60", "compute_70"]}}
class sysconfig: get_build_info = staticmethod(lambda: built)
class errors:
    class OpError(Exception): pass
class random:
    def set_seed(seed): raise errors.OpError("CUDA_ERROR_LAUNCH_FAILED\\nmore")
class Device: name = "GPU:0"
class config:
    list_logical_devices = staticmethod(lambda kind: [Device] if {available} else [])
"""
LAYER = "echo 'not judged, since gpu-library failed: error 803'; exit 77"


@pytest.mark.parametrize(
    ("cuda", "capability", "before", "available", "status", "said"),
    [
        (None, "70", "", False, 1, "{name} 2 was built without CUDA"),
        ("12.4", "90", "", False, 1, "{name} has code for {codes}; ['{lacks}'] lack"),
        ("12.4", "70", "", False, 77, "no GPU: /dev/nvidiactl is absent"),
        ("12.4", "70", LAYER, True, 77, "not judged, since gpu-library failed: error 803"),
        ("12.4", "70", "exit 0", False, 77, "no GPU: /dev/nvidiactl is absent"),
        ("12.4", "70", "exit 0", True, 1, "{name}: {error}"),
    ],
)
@pytest.mark.parametrize("name", ["PyTorch", "TensorFlow"])
def test_a_framework_on_a_gpu(
    tmp_path: Path,
    name: str,
    cuda: str | None,
    capability: str,
    before: str,
    available: bool,
    status: int,
    said: str,
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    is_torch = name == "PyTorch"
    fake = FAKE_TORCH if is_torch else FAKE_TENSORFLOW
    module = "torch" if is_torch else "tensorflow"
    (tmp_path / f"{module}.py").write_text(fake.format(cuda=cuda, available=available))
    layers = ["--", "sh", "-c", before] if before else []
    script = SOURCES / f"{name.lower()}-gpu-check.py"
    env = {"PYTHONPATH": str(tmp_path)}
    done = run_program(sys.executable, script, capability, *layers, env=env)
    expected = said.format(
        name=name,
        codes="sm_70, sm_80" if is_torch else "sm_60, compute_70",
        lacks="sm_90" if is_torch else "90",
        error="CUDA error: uncorrectable ECC error encountered"
        if is_torch
        else "CUDA_ERROR_LAUNCH_FAILED",
    )
    assert (done.status, done.finding) == (status, expected), done.stderr


RIGHT = "printf '# OSU\\n4  1.5  Pass\\n8  1.6  Pass\\n4096  2.5  Pass\\n'"


def osu(folder: Path, script: str) -> Ended:
    """osu-check.sh over benchmarks of which osu_bw is `script`, without a launcher."""
    (folder / "pt2pt").mkdir()
    for name in ("osu_latency", "osu_bw", "osu_allreduce"):
        stub(folder / "pt2pt", name, script if name == "osu_bw" else RIGHT)
    return run("sh", SOURCES / "osu-check.sh", folder, "env")


@pytest.mark.parametrize(
    ("script", "status", "finding"),
    [
        (RIGHT, 0, "3 benchmarks exchange messages"),
        ("exit 9", 1, "osu_bw ended with exit status 9"),
        (RIGHT.replace("4096  2.5  Pass", "4096  2.5  Fail"), 1, "osu_bw found 2 sizes right"),
        ("echo 4 1.5", 1, "osu_bw found 0 sizes right"),
    ],
)
def test_osu_judges_what_the_benchmarks_print(
    script: str, status: int, finding: str, tmp_path: Path
) -> None:
    done = osu(tmp_path, script)
    assert (done.status, done.finding[: len(finding)]) == (status, finding)


def test_osu_needs_its_benchmarks(tmp_path: Path) -> None:
    done = run("sh", SOURCES / "osu-check.sh", tmp_path, "env")
    assert (done.status, done.finding) == (1, f"there is no osu_latency below {tmp_path}")


@pytest.mark.parametrize("name", ["horovod", "horovod-pytorch", "chainermn"])
def test_a_missing_framework_is_a_finding(name: str) -> None:
    done = run(sys.executable, SOURCES / f"{name}-check.py", "2")
    assert (done.status, done.finding[:13]) == (1, "cannot import")
    assert run(sys.executable, SOURCES / f"{name}-check.py").status == 2


APEX = (
    "apex/contrib/groupbn/batch_norm",
    "apex/contrib/xentropy/softmax_xentropy",
    "apex/optimizers/fused_sgd",
)


def mlperf(folder: Path, flatten: str) -> Ended:
    """mlperf-check.py of the base, with stand-ins for what it imports."""
    (folder / "torch.py").write_text(
        "class T(list):\n    def view(self, *_): return self\n"
        "def arange(n): return T(range(int(n)))\ndef ones(n): return T([1.0] * n)\n"
        "equal = list.__eq__\n"
    )
    (folder / "apex_C.py").write_text(
        f"def flatten(tensors): return {flatten}\n"
        "def unflatten(flat, tensors):\n    flat = iter(flat)\n"
        "    return [type(t)(next(flat) for _ in t) for t in tensors]\n"
    )
    for name in ("amp_C", "mlperf_compliance/mlperf_log", *APEX):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return mlperf_again(folder)


def mlperf_again(folder: Path) -> Ended:
    script, env = SOURCES / "mlperf-check.py", {"PYTHONPATH": str(folder)}
    return run_program(sys.executable, script, "base", env=env)


def test_mlperf_takes_a_step_and_judges_it(tmp_path: Path) -> None:
    done = mlperf(tmp_path, "sum(map(list, tensors), [])")
    assert (done.status, done.finding.partition(",")[0]) == (0, "base: 8 modules")
    done = mlperf(tmp_path, "sum(map(list, tensors), [])[::-1]")
    assert done.status == 1
    assert done.finding.startswith("apex_C.unflatten gave")
    (tmp_path / "amp_C.py").unlink()
    done = mlperf_again(tmp_path)
    assert (done.status, done.finding) == (1, "ModuleNotFoundError: No module named 'amp_C'")


# Upstream's logs of two styles; what LAMMPS prints is made of them.
LAMMPS_TABLE = """Step Temp E_pair
       0            3   -6.7733681
     {steps}    1.6645597   -4.7774327
     900            1           -1
Loop time of 0.49 on 4 procs for 900 steps with 4000 atoms
"""
LAMMPS_PARAGRAPHS = """---------------- Step        0 ----- CPU =      0.0000 (sec) ----------------
TotEng   =     -5237.4580 Press    =      -837.0112
---------------- Step      {steps} ----- CPU =      0.2858 (sec) ----------------
TotEng   =     -5257.9979 Press    =      -648.6820
Loop time of 1.76 on 4 procs for 300 steps with 2004 atoms
"""
LAMMPS_LOGS = {
    "peptide": LAMMPS_PARAGRAPHS.format(steps=50),
    "shear": LAMMPS_TABLE.format(steps=100),
}


def lammps(
    folder: Path, case: str = "shear", old: str = "", new: str = "", ranks: int = 4
) -> Ended:
    """lammps-check.py over a stand-in for LAMMPS, whose output for one case is changed."""
    for name, log in LAMMPS_LOGS.items():
        (folder / "cases" / name).mkdir(parents=True)
        (folder / "cases" / name / f"in.{name}").write_text("units lj\nrun\t300\nrun 3000\n")
        (folder / "cases" / name / f"log.1Jan25.{name}.g++.4").write_text(log)
        output = log.replace(old, new) if name == case else log
        (folder / "cases" / name / "output").write_text(output)
    # Its first run alone is left, and shortened.
    lmp = '[ "$(grep run "$2" | tr -d \'run \')" -le 100 ] && cat output && ! grep ERROR output\n'
    stub(folder, "lmp", lmp)
    script = SOURCES / "lammps-check.py"
    return run(sys.executable, script, str(ranks), folder / "cases", folder / "lmp")


@pytest.mark.parametrize(
    ("case", "old", "new", "said"),
    [
        ("shear", "1.6645597", "1.6645599", ""),
        (
            "shear",
            "1.6645597",
            "1.6649",
            "shear: Temp of step 100 is 1.6649, upstream has 1.6645597",
        ),
        ("peptide", "-648.6820", "-648.6819", ""),
        ("peptide", "-648.6820", "-648.6800", "peptide: Press of step 50 is -648.68, upstream"),
        ("peptide", "-5257.9979", "nan", "peptide: TotEng of step 50 is nan, upstream"),
        ("shear", "     100  ", "      99  ", "shear: no Temp of step 100"),
        ("shear", "on 4 procs", "on 1 procs", "shear: LAMMPS ran on [1] ranks, expected one"),
        (
            "shear",
            "Loop",
            "ERROR: Lost atoms: 4\nLoop",
            "shear: LAMMPS ended with exit status 1: ERR",
        ),
    ],
)
def test_lammps_compares_with_upstream(
    tmp_path: Path, case: str, old: str, new: str, said: str
) -> None:
    done = lammps(tmp_path, case, old, new)
    agree = "8 values of peptide, shear on 4 ranks agree with upstream's logs"
    assert done.finding.startswith(f"wrong: {said}" if said else agree)
    assert done.status == bool(said)


def test_lammps_needs_a_log_of_as_many_ranks(tmp_path: Path) -> None:
    done = lammps(tmp_path, ranks=2)
    expected = f"wrong: {tmp_path}/cases/peptide has 0 logs of 2 ranks, not one"
    assert (done.status, done.finding) == (1, expected)
