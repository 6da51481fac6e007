"""Ranks in containers of their own: mpirun and a real Slurm start them, and defects are caught.

The images have Debian 12's Open MPI, which is that of the host where CI runs: the launcher of one
version with the library of another is nothing that Open MPI promises.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import slurm
import yaml
from harness import (
    ARCHITECTURES,
    LONG,
    PROJECT,
    build_images,
    manifest_of,
    passed,
    processes,
    sample,
)
from host_images import rank_image
from launching import YIELD, launched, need_open_mpi_4, only, verify
from planted_ranks import RankDefect, plant
from projects import copy_of_project

from builder.build.engines import Tools
from builder.cli.schema import schema_of
from builder.system.home import ORDINARY_USER
from builder.verify.runners import DEFAULTS, RUNNERS

pytestmark = pytest.mark.engines

RECIPE = """\
recipe: ranks
version: "1.0"
about: an MPI, and the check whose program ranks run
development:
  - gnu: {cc: true, cxx: false, fortran: false}
  - mpi: {routes: [package]}
environment:
  OMPI_MCA_btl_vader_single_copy_mechanism: none
checks: [mpi]
"""
HANG_S = "20"  # on a busy machine four ranks need ten of them to reach the call that hangs
# QEMU answers getsockopt(SO_RCVTIMEO) with nothing, and Open MPI's transport tcp then complains, or
# hangs: between nodes it is told to take libfabric's.
OVER_LIBFABRIC = {
    "OMPI_MCA_pml": "cm",
    "OMPI_MCA_mtl": "ofi",
    "OMPI_MCA_mtl_ofi_provider_include": "tcp",
}


@pytest.fixture(scope="module")
def images(
    out: Path, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Path]]:
    """The folders of images with nothing but an MPI, by architecture.

    Copied out of this host, which has the library that its launcher wants; in `make test-long`
    built for both architectures.
    """
    need_open_mpi_4()
    if LONG:
        yield built(out, tmp_path_factory.mktemp("launchers"))
        return
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="ranks-") as name:
        Path(name).chmod(0o755)
        arch = os.uname().machine
        yield {arch: rank_image(Path(name), tools, arch)}


def built(out: Path, site: Path) -> dict[str, Path]:
    """Images of both architectures, by the whole way from a recipe."""
    copy_of_project(site)
    matrix = yaml.safe_load((PROJECT / "matrix.yaml").read_text())
    del matrix["exclude"], matrix["tags"]  # they name other recipes
    matrix["default"]["recipe"] = ["ranks"]
    (site / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    for recipe in (site / "recipes").glob("*.yaml"):
        recipe.unlink()
    (site / "recipes/ranks.yaml").write_text(RECIPE)
    selection = ["--recipe=ranks", "--base=debian12", "--mpi=openmpi4.1"]
    archs = [f"--arch={arch}" for arch in ARCHITECTURES]
    words = (*selection, *archs, "--no-verify", "--output", out)
    passed(build_images("--project", site, *words))
    return {arch: out / f"ranks-1.0-debian12-openmpi4.1-{arch}" for arch in ARCHITECTURES}


def predicate(folder: Path, name: str) -> dict[str, Any]:
    """Of the evidence of that name, which is valid and has JUnit XML beside it."""
    statement = json.loads((folder / f"evidence/{name}.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    junit = ET.parse(folder / f"evidence/{name}.xml")
    result: dict[str, Any] = statement["predicate"]
    assert {tag: len(list(junit.iter(tag))) for tag in ("testcase", "failure", "skipped")} == {
        "testcase": 1,
        "failure": len(result["failedTests"]),
        "skipped": len(result["warnedTests"]),
    }
    return result


# ---- Sound images ----

EMULATED = pytest.mark.long(reason="builds another base and an image under emulation, minutes")
BOTH = pytest.mark.parametrize("arch", ["x86_64", pytest.param("ppc64le", marks=EMULATED)])


@BOTH
def test_slurm_starts_the_ranks_on_two_nodes(
    arch: str, images: dict[str, Path], two_nodes: dict[str, str]
) -> None:
    emulated = arch != os.uname().machine
    tuning = OVER_LIBFABRIC if emulated else YIELD
    words = ["--launcher", "srun", "--ranks", "4", "--nodes", "2", "--timeout", "300"]
    bind = [] if emulated else ["--bind-mpi", "auto"]
    done = passed(build_images("verify", images[arch], *words, *bind, env={**two_nodes, **tuning}))
    assert (", emulated" in done.stdout.splitlines()[0]) is emulated
    found = launched(images[arch], "mpi-hybrid-srun")
    assert sorted(found) == ["charliecloud", "sif"]
    programs = set()
    for name, one in found.items():
        assert one["outcome"] == "passed"
        assert one["reason"].startswith("4 ranks on 2 hosts: messages and collectives of 1 B to 8")
        assert "started by srun of Slurm 2" in one["reason"]
        assert sorted(one["data"]["ranks_by_host"]) == ["n1", "n2"]
        assert one["data"]["transport"].startswith("cm (ofi)" if emulated else "ob1 (")
        assert one["data"]["tuning"].items() >= tuning.items()
        proof = predicate(images[arch], f"{name}-mpi-hybrid-srun")
        assert (proof["result"], proof["passedTests"]) == ("PASSED", ["mpi-hybrid-srun"])
        programs.add(proof["configuration"][1]["digest"]["sha256"])
        about = proof["configuration"][0]["annotations"]
        assert about["emulated"] is emulated
        assert about["runner"]["name"] == RUNNERS[DEFAULTS[name]].program
        started_by = about["launcher"]
        assert (started_by["name"], started_by["product"]) == ("srun", "Slurm")
        assert (started_by["ranks"], started_by["nodes"]) == (4, 2)
        assert started_by["version"] in one["reason"]
        assert [there["name"] for there in started_by["machines"]] == ["n1", "n2"]
        assert {there["arch"] for there in started_by["machines"]} == {os.uname().machine}
        assert "srun --mpi=pmix --ntasks=4 --nodes=2" in started_by["command"]
        if bind:
            is_bound_on_two_nodes(images[arch], name)
    assert len(programs) == 1, "the ranks' program, as each format has it"
    assert slurm.jobs(two_nodes) == []
    assert slurm.users(two_nodes) == {ORDINARY_USER}


def is_bound_on_two_nodes(folder: Path, name: str) -> None:
    """Its ranks loaded the host's library; the image's own is of the same version."""
    one = launched(folder, "mpi-bind-srun")[name]
    assert one["outcome"] == "passed"
    assert one["reason"].startswith("4 ranks on 2 hosts: messages and collectives of 1 B to 8")
    assert sorted(one["data"]["ranks_by_host"]) == ["n1", "n2"]
    assert one["data"]["library_file"].startswith("/host-mpi/mpi/libmpi.so.40.")
    assert f"the host's {one['data']['host_library']} is loaded" in one["reason"]
    proof = predicate(folder, f"{name}-mpi-bind-srun")
    assert (proof["result"], proof["passedTests"]) == ("PASSED", ["mpi-bind-srun"])
    assert proof["configuration"][0]["annotations"]["launcher"]["name"] == "srun"


@BOTH
def test_mpirun_starts_the_ranks(arch: str, images: dict[str, Path]) -> None:
    passed(build_images("verify", images[arch], "--launcher", "mpirun", "--nodes", "1"))
    for check in launched(images[arch], "mpi-hybrid-mpirun").values():
        assert check["reason"].startswith("4 ranks on 1 host: ")
        assert "started by mpirun of Open MPI 4.1." in check["reason"]
        assert check["data"]["library"].startswith("Open MPI v4.1.")
        assert "vader" in check["data"]["transport"]


def test_without_a_controller_nothing_is_passed(images: dict[str, Path]) -> None:
    image = images["x86_64"]
    environment = {"SLURM_CONF": "/nonexistent/slurm.conf"}
    before = manifest_of(image)
    done = build_images("verify", image, "--launcher", "srun", env=environment)
    assert done.status == 4, done.stdout
    assert "Slurm" in done.stderr or "srun" in done.stderr
    assert manifest_of(image).get("launched") == before.get("launched")


@EMULATED
def test_an_mpi_of_another_architecture_is_not_bound(images: dict[str, Path]) -> None:
    foreign = images["ppc64le"]
    done = verify(foreign, "mpirun", "--ranks", "1", "--bind-mpi", "auto")
    assert done.status == 4, done.stdout
    assert "skipped  the image is for ppc64le, but the host's MPI is for x86_64" in done.stdout
    assert only(foreign, "mpi-hybrid-mpirun")[0] == "passed"
    assert launched(foreign, "mpi-bind-mpirun") == {}, "what was not tried is not recorded"


# ---- Planted defects ----

DEFECTS = {
    "singletons": RankDefect(kind="singletons"),
    "sum": RankDefect(kind="sum", rank=2, place=0),
    "noise": RankDefect(kind="noise"),
    "lose": RankDefect(kind="lose", rank=3),
    # None waits for another; in "wait", all but one do.
    "hang": RankDefect(kind="hang"),
    "wait": RankDefect(kind="hang", rank=1),
}


@pytest.fixture(scope="module")
def planted(images: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the x86_64 image whose program does wrong when it is told to."""
    return plant(images["x86_64"], tmp_path_factory.mktemp("planted"))


def test_an_image_without_a_defect_passes_and_so_will_the_next(planted: Path) -> None:
    passed(verify(planted, "mpirun"))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("defect", "reason"),
    sample(
        [
            ("singletons", "MPI started singletons: this process is rank 0 of 1, expected 4 ranks"),
            ("sum", "rank 2: allreduce SUM (double) of "),
            ("lose", "exited on signal 9"),
            ("noise", "standard error is not empty: WARNING: no fabric was found"),
        ],
        2,
    ),
)
def test_a_defect_is_caught_under_mpirun(defect: str, reason: str, planted: Path) -> None:
    done = verify(planted, "mpirun", **DEFECTS[defect].environment)
    assert done.status == 1
    outcome, found = only(planted, "mpi-hybrid-mpirun")
    assert outcome == "failed"
    assert reason in found


def test_a_rank_that_slurm_loses(planted: Path, two_nodes: dict[str, str]) -> None:
    done = verify(planted, "srun", "--nodes", "2", **DEFECTS["lose"].environment, **two_nodes)
    assert done.status == 1
    outcome, reason = only(planted, "mpi-hybrid-srun")
    assert outcome == "failed"
    assert "task 3: Killed" in reason
    assert slurm.jobs(two_nodes) == []


@pytest.fixture(scope="module")
def planted_sif(images: dict[str, Path], planted: Path, tools: Tools) -> Iterator[Path]:
    """The SIF, and beside it the programs that do wrong, for Apptainer to show in their place."""
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="planted-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("manifest.json", "image.sif"):
            shutil.copy(images["x86_64"] / file, folder)
        with tarfile.open(planted / "image.tar.gz") as archive:
            for one in archive:
                if one.name.startswith("opt/build-images/bin/"):
                    archive.extract(one, folder)
        yield folder


@pytest.mark.parametrize(
    ("defect", "reason"),
    [
        ("singletons", "MPI started singletons: this process is rank 0 of 1, expected 4 ranks"),
        ("lose", "exited on signal 9"),
        ("hang", f"no result after {HANG_S} s: rank"),
    ],
)
def test_a_defect_is_caught_in_apptainer(defect: str, reason: str, planted_sif: Path) -> None:
    shown = {"APPTAINER_BIND": f"{planted_sif}/opt/build-images/bin:/opt/build-images/bin"}
    env = {**shown, **DEFECTS[defect].environment}
    done = verify(planted_sif, "mpirun", "--timeout", HANG_S, runner="apptainer", **env)
    assert done.status == 1, done.stdout + done.stderr
    check = launched(planted_sif, "mpi-hybrid-mpirun")["sif"]
    assert check["outcome"] == "failed"
    assert reason in check["reason"]
    assert_gone("/bin/mpi.real")


def test_ranks_that_hang_are_ended_and_say_what_they_waited_for(
    planted: Path, two_nodes: dict[str, str]
) -> None:
    on_slurm = {**two_nodes, **DEFECTS["wait"].environment}
    for launcher, ranks, environment in (
        ("mpirun", "4", DEFECTS["hang"].environment),
        ("srun", "2", on_slurm),
    ):
        words = ("--ranks", ranks, "--timeout", HANG_S)
        done = verify(planted, launcher, *words, **environment)
        assert done.status == 1
        outcome, reason = only(planted, f"mpi-hybrid-{launcher}")
        assert outcome == "failed"
        assert reason.startswith(f"no result after {HANG_S} s: rank")
        assert "in MPI_Bcast of 65536 bytes from rank 0" in reason
        assert_gone("/bin/mpi.real")
    assert slurm.jobs(two_nodes) == []


def assert_gone(name: str) -> None:
    """Assert that nothing runs a program, a moment after it was to be ended."""
    time.sleep(1)
    assert processes(f"{re.escape(name)}( |$)") == []


# A launcher that takes itself for Open MPI's, and is wrong.
STARTS_THREE = """\
#!/bin/sh
[ "$1" = --version ] && exec {mpirun} --version
for word; do
    shift
    [ "$word" = 4 ] && [ "$last" = -n ] && word=3
    last=$word
    set -- "$@" "$word"
done
exec {mpirun} "$@"
"""
NEVER_STARTS = """\
#!/bin/sh
[ "$1" = --version ] && exec {mpirun} --version
echo 'waiting for the daemons on 2 nodes' >&2
exec sleep 1234
"""


@pytest.mark.parametrize(
    ("script", "timeout", "reason"),
    [
        (STARTS_THREE, "60", "MPI started 3 ranks, expected 4"),
        (NEVER_STARTS, "2", "last output: waiting for the daemons on 2 nodes"),
    ],
    ids=["loses-a-rank", "hangs"],
)
def test_a_launcher_that_is_broken(
    script: str, timeout: str, reason: str, planted: Path, shared_folder: Path
) -> None:
    mpirun = shared_folder / "mpirun"
    mpirun.write_text(script.format(mpirun=shutil.which("mpirun.openmpi")))
    mpirun.chmod(0o755)
    search = os.pathsep.join([str(shared_folder), os.environ["PATH"]])
    done = verify(planted, "mpirun", "--timeout", timeout, PATH=search)
    assert done.status == 1, done.stdout + done.stderr
    outcome, found = only(planted, "mpi-hybrid-mpirun")
    assert outcome == "failed"
    assert reason in found
    assert_gone("1234")
