"""Recipe `lammps`: its image computes what upstream's logs have, and its check finds defects."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import FORMATS, PROJECT, build_images, manifest_of, passed, run_program

from builder.build.engines import Tools
from builder.system.files import link_or_copy
from builder.system.process import Completed
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Container, Runner

pytestmark = [
    pytest.mark.engines,
    pytest.mark.long(reason="compiles LAMMPS: minutes"),
]

CASES = "/usr/local/lammps/share/lammps/cases"
SCRIPT = "/opt/build-images/src/lammps-check.py"
# The check in a copy of the cases, one of which is changed first.
CHECK = f"""
cases=$(mktemp -d) && trap 'rm -r "$cases"' EXIT || exit 9
cp -r {CASES}/* "$cases" && cd "$cases" || exit 9
sed -i "$1" "$2" && python3 {SCRIPT} 4 "$cases" mpirun --oversubscribe -n "$3" lmp
"""


# What `verify --launcher` sets: docs/launchers.md.
HYBRID = {"HOME": "/tmp", "TMPDIR": "/tmp", "PMIX_MCA_gds": "hash"}


@pytest.fixture(scope="module")
def image(hpc_base: dict[str, Path], out: Path) -> Path:
    """The folder of the image for x86_64."""
    del hpc_base  # built first: its layers are shared
    name = "lammps-1.0-debian13-openmpi5.0-x86_64"
    passed(build_images("--image", name, "--output", out))
    return out / name


@pytest.fixture
def inside(image: Path, shared_folder: Path, tools: Tools) -> Iterator[Runner]:
    """The image by Apptainer."""
    container = Container(artifact=image / "image.sif", work=shared_folder, tools=tools)
    with RUNNERS["apptainer"].open(container) as runner:
        yield runner


def test_the_image_passes_in_every_format(image: Path) -> None:
    manifest = manifest_of(image)
    for name in FORMATS:
        outcome = {one["check"]: one for one in manifest["checks"][name]}["lammps"]
        assert outcome["outcome"] == "passed", outcome
        assert outcome["data"]["ranks"] == 4


@pytest.mark.parametrize(
    ("edit", "file", "said"),
    [
        ("s/timestep.*0.001/timestep 0.0011/", "shear/in.shear", "wrong: shear: Temp of step 25"),
        (
            "s/timestep.*2.0/timestep 1.9/",
            "peptide/in.peptide",
            "wrong: peptide: Press of step 0",
        ),
        ("s/pppm.*/pppm 0.01/", "peptide/in.peptide", "wrong: peptide: TotEng of step 0 is"),
        ("s/10 300.0 300.0/10 300.0 301.0/", "shear/in.shear", "wrong: shear: Temp of step 25 is"),
        ("s/-8184.7112/-8184.7072/", "shear/log.27Nov18.shear.g++.4", "wrong: shear: TotEng of"),
        ("s/^pair_style.*/pair_style none/", "shear/in.shear", "wrong: shear: LAMMPS ended with"),
    ],
)
def test_a_changed_case_is_found(inside: Runner, edit: str, file: str, said: str) -> None:
    done = inside.run(["sh", "-c", CHECK, "check", edit, file, "4"], timeout_s=900)
    assert (done.returncode, finding(done)[: len(said)]) == (1, said), done.stderr


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ("2", "wrong: peptide: LAMMPS ran on [2] ranks, expected one run on 4"),
        (
            "4 env -u PMIX_RANK -u PMIX_NAMESPACE",
            "wrong: peptide: LAMMPS ran on [1, 1, 1, 1] ranks",
        ),
    ],
)
def test_other_numbers_of_ranks_are_found(inside: Runner, ranks: str, said: str) -> None:
    script = CHECK.replace('"$3"', "$3")
    argv = ["sh", "-c", script, "check", "", "shear/in.shear", ranks]
    done = inside.run(argv, timeout_s=900)
    assert (done.returncode, finding(done)[: len(said)]) == (1, said), done.stderr


@pytest.fixture
def on_the_host(image: Path, shared_folder: Path, tools: Tools) -> Path:
    """A folder with the image's cases, its SIF and the check, for the ordinary user."""
    members = ["-C", str(shared_folder), CASES.lstrip("/")]
    argv = ["tar", "-xzf", str(image / "image.tar.gz"), *members]
    tools.processes.capture(argv, user=tools.ordinary_user)
    link_or_copy(image / "image.sif", shared_folder / "image.sif")
    shutil.copy(PROJECT / "tests" / "images" / "lammps-check.py", shared_folder)
    return shared_folder


@pytest.mark.parametrize("launcher", ["mpirun --oversubscribe -n 4", "srun --mpi=pmix -n 4"])
def test_ranks_in_containers_of_their_own(
    on_the_host: Path, two_nodes: dict[str, str], tools: Tools, launcher: str
) -> None:
    """The launcher is the host's, and so is the check's Python."""
    home = ["--no-home", "--home", "/tmp"]
    ranks = [*launcher.split(), "apptainer", "-q", "exec", *home, on_the_host / "image.sif", "lmp"]
    check = ["python3", on_the_host / "lammps-check.py", 4, on_the_host / CASES.lstrip("/")]
    env = {**two_nodes, **HYBRID, "PATH": tools.environment["PATH"]}
    done = run_program(*check, *ranks, env=env, cwd=Path("/tmp"), user=tools.ordinary_user)
    expected = "54 values of peptide, shear on 4 ranks agree with upstream's logs"
    assert (done.status, done.finding) == (0, expected), done.stderr


def finding(done: Completed) -> str:
    return ["", *done.stdout.strip().splitlines()][-1]
