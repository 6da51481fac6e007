"""Workers that a real Slurm starts for a run, on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import slurm
from harness import (
    PROJECT,
    Ended,
    build_images,
    manifest_of,
    passed,
    processes,
    run_program,
    wait_for,
)
from small_base import LEAN

from builder.build.engines import Tools

pytestmark = pytest.mark.engines
WORKER = r"distributed\.cli\.dask_worker tls:"  # those of other tests have no TLS
X86 = (
    "x86: {arch: x86_64, builds: [x86_64, ppc64le], "
    "slurm: {options: [--time=20, --exclusive], workers: 2}}"
)


def ended_with_its_workers(nodes: dict[str, str]) -> None:
    wait_for(lambda: not slurm.jobs(nodes), 30)
    assert not processes(WORKER)


def write_site(site: Path, *lines: str) -> None:
    (site / "store").mkdir(exist_ok=True)
    (site / "site.yaml").write_text("\n".join([f"store: {site}/store", *lines, ""]))


def on_slurm(site: Path, env: dict[str, str], *more: object) -> Ended:
    words = ("--project", site, "--output", site / "out", "--on", "slurm", *more)
    return build_images(*words, env=env)


def test_a_run_starts_and_ends_its_workers(
    small_site: Path, small_home: Path, two_nodes: dict[str, str]
) -> None:
    write_site(small_site, "pools:", f"  {X86}")
    env = {**two_nodes, "BUILD_IMAGES_HOME": str(small_home)}
    done = passed(on_slurm(small_site, env, "--all"))
    assert ": 2 x x86" in done.stderr
    assert "n1 joins (x86)" in done.stderr
    assert "n2 joins (x86)" in done.stderr
    assert manifest_of(small_site / "out" / LEAN)["outcome"] == "verified"
    ended_with_its_workers(two_nodes)
    assert [*(small_home / "clusters").glob("*.log")]  # what the workers said
    assert not [*(small_home / "clusters").glob("run-*")]  # their keys
    done = passed(on_slurm(small_site, env, "--all"))
    assert "Slurm job" not in done.stderr


def test_a_pool_that_slurm_refuses(
    small_site: Path, small_home: Path, two_nodes: dict[str, str]
) -> None:
    power = "power: {arch: ppc64le, slurm: {options: [--partition=power]}}"
    write_site(small_site, "pools:", f"  {X86}", f"  {power}")
    env = {**two_nodes, "BUILD_IMAGES_HOME": str(small_home)}
    done = on_slurm(small_site, env, "--all")
    assert done.status == 4
    assert "Slurm refuses the job of pool power: " in done.stderr
    assert "Invalid partition" in done.stderr
    ended_with_its_workers(two_nodes)


def test_a_script_to_read_is_one_that_slurm_takes(
    small_site: Path, two_nodes: dict[str, str], tmp_path: Path
) -> None:
    write_site(small_site, "pools:", f"  {X86}")
    words = ("workers", "script", "--pool", "x86", "--project", small_site)
    script = tmp_path / "x86.sh"
    script.write_text(passed(build_images(*words, "--scheduler", "tcp://127.0.0.1:9")).stdout)
    passed(run_program("sbatch", "--test-only", script, env=two_nodes))


@pytest.mark.long(reason="two whole images are packed and verified")
def test_hpc_base_for_both_architectures(
    small_site: Path, hpc_base: dict[str, Path], tools: Tools, two_nodes: dict[str, str]
) -> None:
    """With the home in which the tests have built it before: the stages are there."""
    del hpc_base
    store = small_site / "store"
    store.mkdir()
    (small_site / "here.yaml").write_text(f"store: {store}\npools:\n  {X86}\n")
    env = {**two_nodes, **tools.environment, "BUILD_IMAGES_SITE": str(small_site / "here.yaml")}
    image = "hpc-base-1.0-debian13-openmpi5.0-*"
    words = ("--project", PROJECT, "--output", small_site / "out", "--image", image)
    done = build_images(*words, "--on", "slurm", env=env)
    assert "builds aarch64 (1 image); pools: x86: x86_64, ppc64le" in done.stderr
    assert (done.status, slurm.jobs(two_nodes)) == (2, [])
    archs = ("x86_64", "ppc64le")
    selected = [f"--arch={arch}" for arch in archs]
    done = passed(build_images(*words, *selected, "--on", "slurm", env=env))
    for arch in archs:
        name = image.replace("*", arch)
        assert f"{name}: verify on n" in done.stderr
        assert manifest_of(small_site / "out" / name)["outcome"] == "verified"
    ended_with_its_workers(two_nodes)
