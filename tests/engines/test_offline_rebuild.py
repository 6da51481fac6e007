"""From the archive alone, with the network unplugged: the same image, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PROJECT, Ended, build_images, manifest_of, missing
from test_faults import write_tiny

from builder.engines import Tools
from builder.home import Home

pytestmark = pytest.mark.engines

IMAGE = "packaged-1.0-debian13-x86_64"
STEPS = '"apt-get update", "apt-get install -y --no-install-recommends hello", "hello -v >/etc/v"'


@pytest.fixture(name="homes")
def two_homes(tools: Tools, shared_folder: Path) -> Iterator[tuple[Path, Path]]:
    """A home with the base that the shared one may have already, and an empty one."""
    if absent := missing(["unshare", "ip"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    made = tuple(shared_folder / name for name in ("made", "empty"))
    for home in made:
        home.mkdir()
        for name in ("tools", "user"):
            if (tools.home.path / name).exists():
                (home / name).symlink_to(tools.home.path / name)
    (made[0] / "bases").mkdir()
    for base in tools.home.bases.glob("debian13-x86_64-*"):
        shutil.copytree(base, made[0] / "bases" / base.name)
    yield made[0], made[1]
    for home in made:
        buildah = [Tools(processes=tools.processes, home=Home(path=home)).program("buildah")]
        where = ["--root", str(home / "storage"), "--runroot", str(home / "run")]
        subprocess.run([*buildah, *where, "rm", "--all"], check=False, capture_output=True)


def unplugged(*arguments: str | Path, home: Path) -> Ended:
    """Run `build-images` in a network namespace that has its loopback alone."""
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "builder", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "BUILD_IMAGES_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    return Ended(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def digests(folder: Path) -> dict[str, str]:
    artifacts = manifest_of(folder)["artifacts"]
    return {name: artifacts[name]["digest"] for name in ("oci", "charliecloud")}


def test_a_rebuild_from_the_archive_alone_is_the_same(
    homes: tuple[Path, Path], site: Path, tmp_path: Path
) -> None:
    here, there = homes
    write_tiny(site, STEPS, name="packaged")
    env = {"BUILD_IMAGES_HOME": str(here), "COSIGN_PASSWORD": ""}
    built = build_images("--project", site, "--all", "--format", "charliecloud", env=env)
    assert built.status == 0, built.stderr
    before = digests(site / "out" / IMAGE)

    key, archive = tmp_path / "site", tmp_path / "site.tar"
    assert build_images("keys", "generate", "--output", str(key), env=env).status == 0
    words: list[str | Path] = [
        "bundle",
        "--project",
        site,
        "--all",
        "--output",
        archive,
        "--key",
        f"{key}.key",
    ]
    done = build_images(*words, "--json", env=env)
    assert done.status == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["inputs"]["bases"] == 1
    assert report["inputs"]["packages"] > 1  # the package, and the index that it is listed in

    policy = tmp_path / "policy.yaml"
    policy.write_text("schema: build-images/policy/v1\nkeys: [site.pub]\n")
    project = tmp_path / "project"
    words = ["load", archive, "--policy", policy, "--home", "--checkout", project]
    loaded = unplugged(*words, home=there)
    assert loaded.status == 0, loaded.stderr
    shutil.rmtree(here)  # nothing is left of what made it
    words = ["--project", project, "--all", "--offline", "--no-verify", "--format", "charliecloud"]
    again = unplugged(*words, home=there)
    assert again.status == 0, again.stderr
    assert digests(project / "out" / IMAGE) == before

    other = tmp_path / "other.pub"
    build_images("keys", "generate", "--output", str(tmp_path / "other"), env=env)
    policy.write_text(f"schema: build-images/policy/v1\nkeys: [{other.name}]\n")
    refused = unplugged("load", archive, "--policy", policy, "--home", home=there)
    assert refused.status == 5, refused.stderr
    assert "signature" in refused.stderr
