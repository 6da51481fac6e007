"""Images made by workers of a real Dask scheduler, through a store that all share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from dask_on_loopback import Pool, dask_pool
from harness import (
    FORMATS,
    PROJECT,
    Ended,
    build_images,
    home_of_its_own,
    manifest_of,
    passed,
    processes,
    sample,
    small_disk,
    wait_for,
)
from projects import copy_of_project
from real_registry import RealRegistry
from small_base import LEAN, add_small_base, store_small_base, write_tiny

from builder.build.engines import Tools
from builder.system.descendants import end_tree

pytestmark = pytest.mark.engines
TINY = "tiny-1.0-small-x86_64"
ORDER = r"builder\.verify\.cluster\.task"
LOOK_S = 0.4  # to look at all processes takes 20 ms


@pytest.fixture(name="homes", scope="module")
def homes_of_machines(
    tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Path]]:
    """The homes of two machines that build, with the small base."""
    site = copy_of_project(tmp_path_factory.mktemp("site"))
    add_small_base(site)
    with contextlib.ExitStack() as held:
        homes = [held.enter_context(home_of_its_own(tools)) for _ in range(2)]
        for home in homes:
            store_small_base(site, home)
        yield homes


@pytest.fixture(name="pools", scope="module")
def pool_of_the_module(
    homes: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    with dask_pool(tmp_path_factory.mktemp("dask") / "pool", homes) as pool:
        yield pool


@pytest.fixture(name="pool")
def pool_of_two(pools: Pool) -> Pool:
    """Two workers that are at work, whatever the test before did to them."""
    pools.revive()
    return pools


def orders(pool: Pool) -> list[int]:
    """The orders that its workers are at work on; other tests have workers, too."""
    homes = {f"BUILD_IMAGES_HOME={home}".encode() for home in pool.workers}
    found = []
    for order in processes(ORDER):
        with contextlib.suppress(OSError):  # it has ended
            if homes & {*Path(f"/proc/{order}/environ").read_bytes().split(b"\0")}:
                found.append(order)
    return found


def words(site: Path, pool: Pool, *more: object, formats: Sequence[str] = ("oci",)) -> list[str]:
    chosen = [f"--format={name}" for name in formats]
    options = ["--project", site, "--all", "--on", pool.address, *chosen, *more]
    return [str(word) for word in options]


def environment(site: Path, tmp_path: Path, **more: str) -> dict[str, str]:
    """That of a login node, which has no tools for building."""
    home, store = tmp_path / "login", site / "store"
    store.mkdir(exist_ok=True)
    return {"BUILD_IMAGES_HOME": str(home), "BUILD_IMAGES_STORE": str(store), **more}


@contextlib.contextmanager
def started(site: Path, pool: Pool, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "builder", *words(site, pool)],
        cwd=PROJECT,
        env={**os.environ, **environment(site, tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            end_tree(child.pid, grace_s=5)


def ended(child: subprocess.Popen[str], timeout_s: float = 120) -> Ended:
    _, stderr = child.communicate(timeout=timeout_s)
    return Ended(status=child.returncode, stdout="", stderr=stderr)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", sample(["folder", "registry"], 1))
def test_images_are_made_by_workers_and_come_back_verified(
    kind: str, small_site: Path, pool: Pool, tmp_path: Path, registry: RealRegistry
) -> None:
    recipe = small_site / "recipes/lean.yaml"  # no worker has the same from another test
    recipe.write_text(recipe.read_text().replace("echo a step", f"echo for a {kind} a step"))
    env = environment(small_site, tmp_path)
    if kind == "registry":
        env["BUILD_IMAGES_STORE"] = f"{registry.host}/site/cache"
    done = passed(build_images(*words(small_site, pool, formats=FORMATS), env=env))
    assert f"{LEAN}: verify on " in done.stderr
    assert "building with buildah" in done.stderr
    manifest = manifest_of(small_site / "out" / LEAN)
    assert manifest["outcome"] == "verified"
    assert {*manifest["checks"]} == {"oci", "sif", "charliecloud"}
    assert (small_site / "out" / LEAN / "image.sif").exists()
    assert not [*(tmp_path / "login").glob("storage*")]
    # No scheduler is there: what the run made is, and another machine takes it from the store.
    nobody = Pool(address="tcp://127.0.0.1:9", folder=tmp_path)
    done = passed(build_images(*words(small_site, nobody, formats=FORMATS), env=env))
    assert f"= {LEAN}: unchanged, verified" in done.stderr
    again = words(small_site, nobody, "--output", tmp_path / "2", formats=FORMATS)
    done = passed(build_images(*again, env=env))
    assert f"{LEAN}: from the site's store" in done.stderr
    wrong = build_images("--project", small_site, "--all", "--on", "slrum", env=env)
    assert wrong.status == 2
    assert "slrum: not the address of a Dask scheduler" in wrong.stderr
    passed(build_images("verify", tmp_path / "2" / LEAN, "--project", small_site))


def test_an_image_may_be_built_now_and_verified_later(
    small_site: Path, pool: Pool, tmp_path: Path
) -> None:
    env = environment(small_site, tmp_path)
    formats = ("oci", "sif")
    unverified = words(small_site, pool, "--no-verify", formats=formats)
    done = passed(build_images(*unverified, env=env))
    assert f"✓ {LEAN}: built" in done.stderr
    assert manifest_of(small_site / "out" / LEAN)["outcome"] == "built"
    assert (small_site / "out" / LEAN / "image.sif").exists()
    for tag in (small_site / "store/tags").glob("packed-*"):  # as if it had been built here
        tag.unlink()
    done = passed(build_images(*words(small_site, pool, "--json", formats=formats), env=env))
    assert "image on" not in done.stderr
    manifest = manifest_of(small_site / "out" / LEAN)
    assert manifest["outcome"] == "verified"
    assert json.loads(done.stdout)["images"][0]["image"] == LEAN


def test_a_killed_worker_costs_no_image(small_site: Path, pool: Pool, tmp_path: Path) -> None:
    write_tiny(small_site, '"test -e /tmp/never || sleep 13"')
    with started(small_site, pool, tmp_path) as child:
        wait_for(lambda: processes(r"^sleep 13$"), every_s=LOOK_S)
        [order] = orders(pool)
        stat = Path(f"/proc/{order}/stat").read_text().rpartition(") ")[2].split()
        os.kill(int(stat[1]), signal.SIGKILL)
        wait_for(lambda: order not in orders(pool), 15, every_s=LOOK_S)
        done = ended(child)
    assert done.status == 0, done.stderr
    assert " is lost (x86_64)" in done.stderr
    assert done.stderr.count(f"{TINY}: verify on") == 1
    assert manifest_of(small_site / "out" / TINY)["outcome"] == "verified"
    assert not orders(pool)


@pytest.mark.campaign
@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGKILL], 1))
def test_what_is_interrupted_ends_on_all_workers_and_goes_on_from_there(
    number: signal.Signals, small_site: Path, pool: Pool, tmp_path: Path
) -> None:
    write_tiny(small_site, f'"test -e /tmp/never || sleep {3700 + number}"')
    write_tiny(small_site, f'"test -e /tmp/never || sleep {3800 + number}"', name="other")
    pattern = rf"^sleep 3[78]{number:02}$"
    with started(small_site, pool, tmp_path) as child:
        wait_for(lambda: len(processes(pattern)) == len(pool.workers), every_s=LOOK_S)
        begin = time.monotonic()
        os.kill(child.pid, number)
        wait_for(lambda: not processes(pattern), 12, every_s=LOOK_S)
        wait_for(lambda: not orders(pool), 12 - (time.monotonic() - begin), every_s=LOOK_S)
        done = ended(child)
    if number == signal.SIGINT:
        assert done.status == 130
        assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (small_site / "out" / TINY / "manifest.json").exists()
    write_tiny(small_site, '"echo done"')
    write_tiny(small_site, '"echo done"', name="other")
    again = build_images(*words(small_site, pool), env=environment(small_site, tmp_path))
    assert again.status == 0, again.stderr


def test_a_full_disk_of_one_worker_costs_no_image(
    small_site: Path, homes: list[Path], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "full", size="16m") as full:
        (full / "tools").symlink_to(homes[0] / "tools")
        with dask_pool(tmp_path / "dask", [full]) as pool:
            child_env = environment(small_site, tmp_path)
            failed = build_images(*words(small_site, pool), env=child_env)
            assert failed.status == 4
            assert str(full) in failed.stderr
            assert "tried 3 times" in failed.stderr
            pool.add(homes[0])
            done = passed(build_images(*words(small_site, pool), env=child_env))
    assert manifest_of(small_site / "out" / LEAN)["outcome"] == "verified"
    assert f"{LEAN}: verify on " in done.stderr


def test_a_failing_step_is_shown_with_its_log(small_site: Path, pool: Pool, tmp_path: Path) -> None:
    write_tiny(small_site, '"echo all is well"', name="sound")
    write_tiny(small_site, '"echo Error: oh >&2", "seq 100", "exit 7"')
    done = build_images(*words(small_site, pool), env=environment(small_site, tmp_path))
    assert done.status == 1
    step = "RUN echo Error: oh >&2 && seq 100 && exit 7"
    assert f"{TINY}: failed, the build failed at: {step}\n" in done.stderr
    assert "  its first error:\n  | Error: oh\n  | 1\n  | 2\n  its last 30 lines:\n" in done.stderr
    assert f"log: {small_site}/out/{TINY}/build.log" in done.stderr
    assert "\n99\n" in (small_site / "out" / TINY / "build.log").read_text()
    assert manifest_of(small_site / "out/sound-1.0-small-x86_64")["outcome"] == "verified"


def test_a_lost_scheduler_ends_the_run(small_site: Path, pool: Pool, tmp_path: Path) -> None:
    """Last of those that need the pool: all of it would be started again."""
    write_tiny(small_site, '"test -e /tmp/never || sleep 3901"')
    with started(small_site, pool, tmp_path) as child:
        wait_for(lambda: processes(r"^sleep 3901$"), every_s=LOOK_S)
        assert pool.scheduler
        pool.scheduler.kill()
        done = ended(child, 60)
        wait_for(lambda: not orders(pool), 30, every_s=LOOK_S)
    assert done.status == 4, done.stderr
    assert "the connection to the Dask scheduler is lost" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_run_on_workers_needs(small_site: Path, tmp_path: Path) -> None:
    env = environment(small_site, tmp_path)
    nobody = Pool(address="tcp://127.0.0.1:9", folder=tmp_path)
    done = build_images(*words(small_site, nobody), env=env)
    assert done.status == 4
    assert "tcp://127.0.0.1:9: no Dask scheduler answers" in done.stderr
    assert "Traceback" not in done.stderr
    done = build_images(*words(small_site, nobody), env={**env, "BUILD_IMAGES_STORE": ""})
    assert done.status == 2
    assert "--on needs a store that all workers share" in done.stderr
    done = build_images(*words(small_site, nobody, "--refresh"), env=env)
    assert done.status == 2
    assert "--refresh: not with --on" in done.stderr
    slurm = ["--project", small_site, "--all", "--on", "slurm"]
    done = build_images(*slurm, env=env)
    assert done.status == 2
    assert "site.yaml names no pool with slurm:" in done.stderr
