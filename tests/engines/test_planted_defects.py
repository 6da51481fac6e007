"""Defects planted in real images: each must be found, by the command that a user runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import FORMATS, build_images, manifest_of, sample
from projects import copy_of_project

from builder.build.engines import Tools

pytestmark = [pytest.mark.engines, pytest.mark.campaign]

IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"


# Three defects in one image, whose builds and proofs are what takes the time: a program whose
# library stays behind in the development stage, a library of the driver, and an MPI of singletons.
# Singletons that fail leave their shared memory behind, by default in the /dev/shm of this machine.
RECIPE = """\
recipe: planted
version: "1.0"
about: an image with three defects
parent: hpc-base
development:
  - packages: {ospackages: [libfftw3-dev]}
runtime:
  - shell: {commands: [touch /usr/lib/libcuda.so.1]}
environment:
  NVIDIA_VISIBLE_DEVICES: all
  NVIDIA_DRIVER_CAPABILITIES: compute,utility
  NVIDIA_REQUIRE_CUDA: driver>=525.60.13
checks: [plan, clean, alone]
"""
CHECKS = """\

  plan:
    about: makes a plan of a transform
    sources: [plan.c]
    build: ["cc -o $OUT/plan $SRC/plan.c -lfftw3"]
    run: plan
    timeout: 60

  clean:
    about: as cuda-clean, for an image without CUDA
    sources: [cuda-clean.sh]
    run: sh $SRC/cuda-clean.sh 12.4 525.60.13 runtime
    timeout: 300

  alone:
    about: as mpi, and no launcher tells the processes of each other
    run: >-
      export OMPI_MCA_btl_sm_backing_directory=$(mktemp -d);
      for n in 1 2 3 4; do $OUT/mpi 4 multiple || bad=1; done;
      rm -r $OMPI_MCA_btl_sm_backing_directory; exit ${bad:-0} #
    timeout: 180
"""


Outcomes = dict[str, dict[str, tuple[str, str]]]


@pytest.fixture(scope="module", name="planted")
def planted_image(hpc_base: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of the image's checks and their reasons, by format."""
    del hpc_base  # its layers make this build short
    site = copy_of_project(tmp_path_factory.mktemp("planted"))
    checks = site / "tests/images/checks.yaml"
    checks.write_text(checks.read_text() + CHECKS)
    (checks.parent / "plan.c").write_text(
        "#include <fftw3.h>\nint main(void) { fftw_cleanup(); return 0; }\n"
    )
    (site / "recipes/planted.yaml").write_text(RECIPE)
    image = IMAGE.replace("hpc-base", "planted")
    formats = sample(FORMATS, 1)
    asked = [f"--format={name}" for name in formats]
    done = build_images("--project", site, "--image", image, *asked)
    assert done.status == 1, done.stderr
    manifest = manifest_of(site / "out" / image)
    assert sorted(manifest["checks"]) == sorted(formats)
    return {
        name: {one["check"]: (one["outcome"], one["reason"]) for one in found}
        for name, found in manifest["checks"].items()
    }


def test_an_mpi_that_starts_singletons(planted: Outcomes) -> None:
    for found in planted.values():
        outcome, reason = found["alone"]
        assert outcome == "failed"
        assert "singleton" in reason or "rank 0 of 1" in reason


def test_a_library_that_the_run_time_stage_dropped(planted: Outcomes) -> None:
    for found in planted.values():
        assert found["libraries"][0] == found["plan"][0] == "failed"
        assert "/opt/build-images/bin/plan needs libfftw3.so.3" in found["libraries"][1]


def test_a_library_of_the_driver_in_an_image(planted: Outcomes) -> None:
    """Nothing else is found: in each format the host's own mounts are left out."""
    for found in planted.values():
        reason = "of the driver, which is the host's: /usr/lib/libcuda.so.1"
        assert found["clean"] == ("failed", reason)


def test_what_has_no_defect_passes_beside_those(planted: Outcomes) -> None:
    for found in planted.values():
        failed = {name for name, (outcome, _) in found.items() if outcome == "failed"}
        assert failed == {"alone", "libraries", "plan", "clean"}
        assert found["mpi"][0] == "passed"


# A base that says that it comes to CUDA, of which nothing has to be installed.
NO_TOOLKIT = """
cuda:
  distribution:
    "12.4": {gcc: "13", development: [], runtime: []}
"""


GPU = """\
recipe: gpu
version: "1.0"
about: a C compiler, and checks that want a GPU
development:
  - gnu: {cc: true, cxx: false, fortran: false}
  - packages: {ospackages: [libc6-dev]}
  - cuda: {}
checks: [gpu-driver, gpu-found]
"""


@pytest.mark.long(reason="builds another image with a compiler, a minute")
def test_gpu_checks_without_a_gpu_are_skipped_and_the_image_is_said_to_be_unproven(
    tools: Tools, site: Path
) -> None:
    del tools
    base = site / "base-images/debian13.yaml"
    base.write_text(base.read_text().partition("\ncuda:")[0] + NO_TOOLKIT)
    (site / "recipes/gpu.yaml").write_text(GPU)
    image = "gpu-1.0-debian13-cuda12.4-x86_64"
    done = build_images("--project", site, "--image", image)
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert done.status == 0
    assert "not proven on a GPU" in done.stdout
    manifest = manifest_of(site / "out" / image)
    assert manifest["proven_on_gpu"] is False
    for found in manifest["checks"].values():
        gpus = [one for one in found if one["check"].startswith("gpu-")]
        assert [one["outcome"] for one in gpus] == ["skipped", "skipped"]
        assert all("no GPU" in one["reason"] or "no driver" in one["reason"] for one in gpus)
    assert "not proven on a GPU" in (site / "out/report.html").read_text()
