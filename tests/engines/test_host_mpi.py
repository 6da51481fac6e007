"""Real MPIs of the host, from their wheels, bound into images whose programs need MPICH's ABI."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import slurm
from harness import (
    LONG,
    PROJECT,
    build_images,
    copy_of,
    folder_of_the_user,
    need,
    passed,
    run_program,
)
from host_images import MPICH, mpi_of_host, rank_image
from launching import launched

from builder.build.engines import Tools

pytestmark = pytest.mark.engines
_LONG = pytest.mark.long(reason="downloads 70 to 130 MB of Intel MPI, and starts ranks for minutes")

PROGRAM = "/opt/build-images/bin/mpi"
LIBRARY = "libmpi.so.12"
CELL = "hpc-base-1.0-rockylinux9-intelmpi2021.13-x86_64"
PYTHON_MPI = "python-mpi-1.0-debian13-mpich4.2-x86_64"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """An MPI for the host: how it names itself and its launcher, and variables that it needs."""

    requirement: str
    sha256: str
    library: str
    launcher: str
    tuning: Mapping[str, str] = field(default_factory=dict)


WHEELS = {
    # Ranks in containers of their own may not read each other's memory.
    "mpich5": Wheel(
        requirement="mpich==5.0.2",
        sha256="8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4",
        library="MPICH 5.0.2",
        launcher="mpirun of Hydra 5.0.2",
        tuning={"UCX_TLS": "tcp,self", "MPIR_CVAR_CH4_CMA_ENABLE": "0"},
    ),
    # Its libfabric is in lib/libfabric, and that one's providers are below it.
    "intel2021.13": Wheel(
        requirement="impi-rt==2021.13.1",
        sha256="5404adc6af35a651067e69ae2a65db05366a0fbfff14a3415d311b1d3566d177",
        library="Intel(R) MPI Library 2021.13 ",
        launcher="mpirun of Intel MPI 2021.13",
        tuning={"UCX_TLS": "tcp,self"},
    ),
    # It has no libfabric, and wants none on one node unless it is told to.
    "intel2021.19": Wheel(
        requirement="impi-rt==2021.19.0",
        sha256="708b4336c9d303a3d807b58054c502ed4f716dfb074dfa48904180b46d14bb40",
        library="Intel(R) MPI Library 2021.19.0 ",
        launcher="mpirun of Intel MPI 2021.19.0",
        tuning={"UCX_TLS": "tcp,self", "I_MPI_FABRICS": "shm:ofi"},
    ),
}

Make = Callable[[str], Path]


@pytest.fixture(scope="module", name="folder")
def readable_folder(tools: Tools) -> Iterator[Path]:
    """A folder that the ordinary user, who starts the ranks, can read."""
    need("mpicc.mpich")
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="host-mpi-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module", name="installed")
def installing(folder: Path) -> Make:
    """Installs an MPI below a folder of its own, as an administrator does."""

    @cache
    def install(name: str) -> Path:
        wheel, place = WHEELS[name], folder / name
        pins = folder / f"{name}.txt"
        pins.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        options = ("--no-deps", "--no-compile", "--require-hashes", f"--prefix={place}")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        passed(run_program(*pip, *options, "--requirement", pins))
        return place

    return install


@pytest.fixture(scope="module", name="image")
def making(folder: Path, tools: Tools, installed: Make) -> Make:
    """Makes an image: with no MPI in it, or with Debian's MPICH."""

    @cache
    def make(name: str) -> Path:
        mpi = MPICH if name == "debian" else mpi_of_host(installed("mpich5"))
        return rank_image(folder / f"image-{name}", tools, os.uname().machine, mpi)

    return make


def search_path(place: Path, rest: str) -> dict[str, str]:
    """PATH as an environment module sets it."""
    return {"PATH": f"{place}/bin:{rest}"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mpich5", "without"),
        *(
            pytest.param(name, kind, marks=_LONG)
            for name, kind in (
                ("mpich5", "debian"),
                ("intel2021.13", "without"),
                ("intel2021.19", "without"),
                ("intel2021.19", "debian"),
            )
        ),
    ],
)
def test_programs_of_an_image_load_the_hosts_library(
    name: str, kind: str, installed: Make, image: Make
) -> None:
    wheel, place, folder = WHEELS[name], installed(name), image(kind)
    words = ("--launcher=mpirun", "--ranks=2", f"--bind-mpi={place}", "--timeout=60")
    runner = () if LONG else ("--runner=apptainer",)
    env = {**wheel.tuning, **search_path(place, os.environ["PATH"])}
    done = build_images("verify", folder, *words, *runner, env=env)
    checks = launched(folder, "mpi-bind-mpirun")
    assert sorted(checks) == (["charliecloud", "sif"] if LONG else ["sif"])
    for check in checks.values():
        assert check["outcome"] == "passed", check["reason"] + check.get("output", "")
        assert check["reason"].startswith("2 ranks on 1 host: messages and collectives of 1 B to 8")
        assert f"started by {wheel.launcher}; the host's {place}/lib/" in check["reason"]
        assert check["data"]["library"].startswith(wheel.library)
        assert check["data"]["library_file"] == str((place / "lib" / LIBRARY).resolve())
    if kind == "without":  # Debian's MPICH sometimes hangs with its own library: docs/launchers.md
        assert done.status == 4
        assert "skipped  the image has no MPI of its own: bind the host's Intel MPI" in done.stdout


def in_sif(tools: Tools, *launcher: object) -> tuple[object, ...]:
    """The argv before the options, the SIF and the program, as the ordinary user."""
    as_user = ("runuser", "-u", tools.ordinary_user, "--") if tools.ordinary_user else ()
    exec_ = ("apptainer", "--silent", "exec", "--no-home", "--home", "/tmp")
    return (*as_user, "env", "--chdir=/", "HOME=/tmp", "TMPDIR=/tmp", *launcher, *exec_)


@pytest.mark.parametrize(
    ("kind", "status", "printed"),
    [
        ("without", 127, f"{LIBRARY}: cannot open shared object file"),
        pytest.param("debian", 0, "(MPICH 4.", marks=_LONG),
    ],
)
def test_without_the_bind_no_library_of_the_host_is_loaded(
    kind: str, status: int, printed: str, image: Make, tools: Tools
) -> None:
    words = (image(kind) / "image.sif", PROGRAM, "1", "single")
    done = run_program(*in_sif(tools, "env", "UCX_TLS=tcp,self"), *words, env=tools.environment)
    assert done.status == status
    assert printed in done.stdout + done.stderr


@_LONG
@pytest.mark.parametrize("name", ["mpich5", "intel2021.19"])
def test_one_program_of_the_standard_abi_runs_under_two_mpis(
    name: str, folder: Path, installed: Make, image: Make, tools: Tools
) -> None:
    """It is compiled once, by MPICH's compiler. Open MPI 5.0 has no library of that ABI."""
    wheel, place, program = WHEELS[name], installed(name), folder / "mpi-abi"
    if not program.exists():
        compile_ = (installed("mpich5") / "bin/mpicc_abi", "-std=c99", "-O2", "-o", program)
        passed(run_program(*compile_, PROJECT / "tests/images/mpi.c"))
    options = (f"--bind={place},{folder}", "--env", f"LD_LIBRARY_PATH={place}/lib")
    done = run_program(
        *in_sif(tools, place / "bin/mpirun", "-n", "2"),
        *(*options, image("without") / "image.sif"),
        *(program, "-t", "120", "2", "single", wheel.library.rstrip()),
        env={
            **tools.environment,
            **search_path(place, tools.environment["PATH"]),
            **wheel.tuning,
            "I_MPI_FABRICS": "shm",
        },
    )
    passed(done)
    assert done.data["library"].startswith(wheel.library)
    assert (done.data["ranks"], done.data["mpi_standard"]) == (2, "5.0")


@_LONG
@pytest.mark.parametrize("name", sorted(WHEELS))
def test_mpi4py_of_an_image_uses_the_hosts_library(
    name: str, folder: Path, installed: Make, out: Path, tools: Tools
) -> None:
    """Its MPICH has the name `libmpi.so.12`, too: no link is needed."""
    passed(build_images("--image", PYTHON_MPI, "--output", out))
    wheel, place = WHEELS[name], installed(name)
    done = run_program(
        *in_sif(tools, place / "bin/mpirun", "-n", "2"),
        *(f"--bind={place}", "--env", f"LD_LIBRARY_PATH={place}/lib"),
        copy_of(out / PYTHON_MPI, folder / f"python-mpi-{name}") / "image.sif",
        *("python3", "/opt/build-images/src/mpi4py-check.py", "2", wheel.library.rstrip()),
        env={
            **tools.environment,
            **search_path(place, tools.environment["PATH"]),
            **wheel.tuning,
            "I_MPI_FABRICS": "shm",
        },
    )
    passed(done)
    assert done.data["library"].startswith(wheel.library.rstrip())
    assert done.data["ranks"] == 2


@pytest.fixture(scope="module", name="scripts")
def of_the_site(tools: Tools) -> Iterator[Path]:
    """The folder of the batch scripts for a cell with the host's Intel MPI."""
    with folder_of_the_user(tools) as place:
        words = ("--registry=quay.io/site", "--output", place, "--folder", place)
        passed(build_images("site-files", *words, f"--image={CELL}"))
        yield place / CELL


@pytest.fixture(scope="module", name="rootfs")
def of_the_user(tools: Tools, image: Make) -> Iterator[Path]:
    """The unpacked image without an MPI."""
    with folder_of_the_user(tools) as place:
        tarball = image("without") / "image.tar.gz"
        words = ["tar", "-xzf", str(tarball), "-C", str(place)]
        tools.processes.capture(words, user=tools.ordinary_user)
        yield place


@_LONG
@pytest.mark.parametrize(
    "script", ["slurm-charliecloud.sh", "mpiexec-charliecloud.sh", "slurm-apptainer.sh"]
)
def test_batch_scripts_bind_the_hosts_library(
    script: str,
    scripts: Path,
    rootfs: Path,
    installed: Make,
    image: Make,
    tools: Tools,
    two_nodes: dict[str, str],
) -> None:
    """Two nodes, whose messages libfabric carries over TCP; their names have no address."""
    place, user = installed("intel2021.13"), tools.ordinary_user or os.environ["USER"]
    by_apptainer = script == "slurm-apptainer.sh"
    env = {
        **tools.environment,
        **two_nodes,
        **search_path(place, tools.environment["PATH"]),
        "I_MPI_HYDRA_IFACE": "lo",
        "FI_TCP_IFACE": "lo",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": user,
        "IMAGE": str(image("without") / "image.sif" if by_apptainer else rootfs),
    }
    code, printed = slurm.submit(scripts / script, user=user, env=env)
    assert (code, "HOST_MPI: set it to the MPI folder" in printed) == (1, True), printed
    code, printed = slurm.submit(scripts / script, user=user, env={**env, "HOST_MPI": str(place)})
    assert code == 0, printed
    assert f'"library_file": "{place}/lib/' in printed
    assert "4 ranks on 2 hosts: messages and collectives of 1 B to 8 MiB are whole" in printed
    assert "(Intel(R) MPI Library 2021.13 " in printed
