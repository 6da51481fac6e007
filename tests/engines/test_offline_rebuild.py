"""From the archive alone, with the network unplugged: the same image, byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import PROJECT, Ended, build_images, manifest_of, need, passed, run_program
from published import SIGNING, Pair, made_key, repository
from real_registry import RealRegistry, real_registry
from small_base import write_tiny

from builder.build import native
from builder.build.base_store import StoredBase
from builder.build.engines import Tools
from builder.system.home import Home

pytestmark = pytest.mark.engines

IMAGE = "packaged-1.0-debian13-x86_64"
OF_REGISTRY = "packaged-1.0-sample-x86_64"
EMULATED = "packaged-1.0-debian13-ppc64le"
STEPS = '"apt-get update", "apt-get install -y --no-install-recommends hello", "hello -v >/etc/v"'

SAMPLE = """\
base: sample
about: Debian 13, from a registry
distribution: debian
version: "13"
hpccm: ubuntu24
architectures: [x86_64]
references: {x86_64: "docker.io/library/sample:13"}
"""


@pytest.fixture(name="homes")
def two_homes(
    tools: Tools, debian13: StoredBase, shared_folder: Path
) -> Iterator[tuple[Path, Path]]:
    """A home with the base that the shared one has, and an empty one."""
    need("unshare", "ip")
    homes = (shared_folder / "first", shared_folder / "empty")
    for home in homes:
        home.mkdir()
        for name in ("tools", "user"):
            if (tools.home.path / name).exists():
                (home / name).symlink_to(tools.home.path / name)
    base = debian13.archive.parent
    shutil.copytree(base, homes[0] / "bases" / base.name)
    yield homes
    for home in homes:
        buildah = [Tools(processes=tools.processes, home=Home(path=home)).program("buildah")]
        where = ["--root", str(home / "storage"), "--runroot", str(home / "run")]
        subprocess.run([*buildah, *where, "rm", "--all"], check=False, capture_output=True)


def unplugged(*words: str | Path, home: Path) -> Ended:
    """Run `build-images` in a network namespace that has its loopback alone."""
    alone = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    program = (sys.executable, "-m", "builder", *words)
    env = {"BUILD_IMAGES_HOME": str(home)}
    return run_program(*alone, *program, env=env, cwd=PROJECT, timeout_s=1200)


def digests(folder: Path) -> dict[str, str]:
    """What a rebuild has to have in common with the image: its key, and what was made of it."""
    manifest = manifest_of(folder)
    artifacts = {name: manifest["artifacts"][name]["digest"] for name in ("oci", "charliecloud")}
    return {"key": manifest["content_key"], **artifacts}


def carried(
    homes: tuple[Path, Path], site: Path, folder: Path, pair: Pair
) -> tuple[dict[str, Any], Path]:
    """Carry a project from one home to the other by an archive: what is in it, its policy.

    The project is in `folder/project` then, and of the first home nothing is left.
    """
    here, other = homes
    words = ("--project", site, "--all", "--output", folder / "site.tar", "--key", pair.private)
    env = {**SIGNING, "BUILD_IMAGES_HOME": str(here)}
    report = json.loads(passed(build_images("bundle", *words, "--json", env=env)).stdout)
    policy = folder / "policy.yaml"
    policy.write_text(f"schema: build-images/policy/v1\nkeys: [{pair.public}]\n")
    taken = ("--policy", policy, "--home", "--checkout", folder / "project")
    passed(unplugged("load", folder / "site.tar", *taken, home=other))
    shutil.rmtree(here)  # nothing is left of what made it
    return dict(report["inputs"]), policy


def rebuilt(project: Path, home: Path, image: str) -> dict[str, str]:
    """The digests of an image that is built with nothing but its home."""
    words = ["--all", "--offline", "--no-verify", "--format", "charliecloud"]
    passed(unplugged("--project", project, *words, home=home))
    return digests(project / "out" / image)


def built(site: Path, home: Path, image: str, **more: str) -> dict[str, str]:
    env = {"BUILD_IMAGES_HOME": str(home), **more}
    passed(build_images("--project", site, "--all", "--format", "charliecloud", env=env))
    return digests(site / "out" / image)


def test_a_rebuild_from_the_archive_alone_is_the_same(
    homes: tuple[Path, Path], site: Path, tmp_path: Path, pair: Pair
) -> None:
    here, empty = homes
    write_tiny(site, STEPS, name="packaged", base="debian13")
    before = built(site, here, IMAGE)
    inputs, policy = carried(homes, site, tmp_path, pair)
    assert inputs["bases"] == 1
    assert inputs["packages"] > 1  # the package, and the index that it is listed in
    assert rebuilt(tmp_path / "project", empty, IMAGE) == before

    (tmp_path / "other").mkdir()
    other = made_key(tmp_path / "other").public
    policy.write_text(f"schema: build-images/policy/v1\nkeys: [{other}]\n")
    words = ("load", tmp_path / "site.tar", "--policy", policy, "--home")
    refused = unplugged(*words, home=empty)
    assert refused.status == 5, refused.stderr
    assert "signature" in refused.stderr


@pytest.mark.long(reason="builds an image twice more, on a base of a registry")
def test_a_base_of_a_registry_is_carried(
    homes: tuple[Path, Path], site: Path, tmp_path: Path, debian13: StoredBase, pair: Pair
) -> None:
    """Over there, neither the registry nor the mirror for it is known."""
    here, empty = homes
    commands = '"echo made on a base of a registry > /etc/v"'
    write_tiny(site, commands, name="packaged", base="sample")
    (site / "base-images" / "sample.yaml").write_text(SAMPLE)
    with real_registry(tmp_path / "registry", in_memory=True) as registry:
        (site / "site.yaml").write_text(f'registries: {{docker.io: "{registry.host}"}}\n')
        push(registry, debian13.archive)
        passed(build_images("lock", "--project", site))
        before = built(site, here, OF_REGISTRY, **without_tls(registry, tmp_path))
        inputs, _ = carried(homes, site, tmp_path, pair)
    assert inputs["bases"] == 1
    assert not (tmp_path / "project" / "site.yaml").exists()
    project = tmp_path / "project"
    assert rebuilt(project, empty, OF_REGISTRY) == before
    words = (OF_REGISTRY, "--project", project, "--offline")
    passed(unplugged("reproduce", *words, home=empty))


@pytest.mark.long(reason="builds an image twice more, under emulation")
def test_the_native_tools_of_an_emulated_build_are_carried(
    homes: tuple[Path, Path], site: Path, tmp_path: Path, tools: Tools, pair: Pair
) -> None:
    if not native.is_open("ppc64le"):
        pytest.skip("the kernel's handler of ppc64le is not that of 'make setup'")
    here, empty = homes
    write_tiny(site, '"echo made with native tools > /etc/v"', name="packaged", base="debian13")
    matrix = (site / "matrix.yaml").read_text()
    (site / "matrix.yaml").write_text(matrix.replace("x86_64", "ppc64le"))
    lent = tools.home.native.glob("trixie-*")
    for path in (*tools.home.bases.glob("debian13-ppc64le-*"), *lent):
        shutil.copytree(path, here / path.relative_to(tools.home.path), symlinks=True)
    before = built(site, here, EMULATED)
    tools_lent = manifest_of(site / "out" / EMULATED)["inputs"]["native_tools"]
    assert tools_lent
    carried(homes, site, tmp_path, pair)
    assert rebuilt(tmp_path / "project", empty, EMULATED) == before
    again = manifest_of(tmp_path / "project/out" / EMULATED)
    assert again["inputs"]["native_tools"] == tools_lent


def without_tls(registry: RealRegistry, folder: Path) -> dict[str, str]:
    """What Buildah needs to ask a registry of loopback: see containers-registries.conf(5)."""
    file = folder / "registries.conf"
    file.write_text(f'[[registry]]\nlocation = "{registry.host}"\ninsecure = true\n')
    return {"CONTAINERS_REGISTRIES_CONF": str(file)}


def push(registry: RealRegistry, archive: Path) -> None:
    """The image of an OCI archive, as `library/sample:13`."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        contents = {name.removeprefix("./"): file.read() for name, file in files.items() if file}
    [entry] = json.loads(contents["index.json"])["manifests"]
    manifest = contents[f"blobs/sha256/{entry['digest'][7:]}"]
    about, sample = json.loads(manifest), repository(registry.host, "sample", "library")
    for blob in (about["config"], *about["layers"]):
        sample.write_blob(contents[f"blobs/sha256/{blob['digest'][7:]}"])
    sample.write_manifest(manifest, entry["mediaType"], "13")
