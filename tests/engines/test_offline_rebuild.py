"""From the archive alone, with the network unplugged: the same image, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import PROJECT, Ended, build_images, manifest_of, missing
from loopback import Registry, running_registry
from test_faults import write_tiny

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
    if absent := missing(["unshare", "ip"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    made = tuple(shared_folder / name for name in ("made", "empty"))
    for home in made:
        home.mkdir()
        for name in ("tools", "user"):
            if (tools.home.path / name).exists():
                (home / name).symlink_to(tools.home.path / name)
    (made[0] / "bases").mkdir()
    base = debian13.archive.parent
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
    """What a rebuild has to have in common with the image: its key, and what was made of it."""
    manifest = manifest_of(folder)
    artifacts = {name: manifest["artifacts"][name]["digest"] for name in ("oci", "charliecloud")}
    return {"key": manifest["content_key"], **artifacts}


def carried(homes: tuple[Path, Path], site: Path, folder: Path) -> tuple[dict[str, Any], Path]:
    """Carry a project from one home to the other by an archive: what is in it, its policy.

    The project is in `folder/project` then, and of the first home nothing is left.
    """
    here, there = homes
    env = {"BUILD_IMAGES_HOME": str(here), "COSIGN_PASSWORD": ""}
    key, archive = folder / "site", folder / "site.tar"
    assert build_images("keys", "generate", "--output", str(key), env=env).status == 0
    words: list[str | Path] = ["bundle", "--project", site, "--all", "--output", archive]
    done = build_images(*words, "--key", f"{key}.key", "--json", env=env)
    assert done.status == 0, done.stderr
    report = json.loads(done.stdout)

    policy = folder / "policy.yaml"
    policy.write_text("schema: build-images/policy/v1\nkeys: [site.pub]\n")
    words = ["load", archive, "--policy", policy, "--home", "--checkout", folder / "project"]
    loaded = unplugged(*words, home=there)
    assert loaded.status == 0, loaded.stderr
    shutil.rmtree(here)  # nothing is left of what made it
    return dict(report["inputs"]), policy


def rebuilt(project: Path, home: Path, image: str) -> dict[str, str]:
    """The digests of an image that is built with nothing but its home."""
    words = ["--all", "--offline", "--no-verify", "--format", "charliecloud"]
    again = unplugged("--project", project, *words, home=home)
    assert again.status == 0, again.stderr
    return digests(project / "out" / image)


def built(site: Path, home: Path, image: str, **more: str) -> dict[str, str]:
    env = {"BUILD_IMAGES_HOME": str(home), **more}
    done = build_images("--project", site, "--all", "--format", "charliecloud", env=env)
    assert done.status == 0, done.stderr
    return digests(site / "out" / image)


def test_a_rebuild_from_the_archive_alone_is_the_same(
    homes: tuple[Path, Path], site: Path, tmp_path: Path
) -> None:
    here, there = homes
    write_tiny(site, STEPS, name="packaged", base="debian13")
    before = built(site, here, IMAGE)
    inputs, policy = carried(homes, site, tmp_path)
    assert inputs["bases"] == 1
    assert inputs["packages"] > 1  # the package, and the index that it is listed in
    assert rebuilt(tmp_path / "project", there, IMAGE) == before

    other = tmp_path / "other.pub"
    env = {"COSIGN_PASSWORD": ""}
    build_images("keys", "generate", "--output", str(tmp_path / "other"), env=env)
    policy.write_text(f"schema: build-images/policy/v1\nkeys: [{other.name}]\n")
    archive = tmp_path / "site.tar"
    refused = unplugged("load", archive, "--policy", policy, "--home", home=there)
    assert refused.status == 5, refused.stderr
    assert "signature" in refused.stderr


@pytest.mark.long(reason="builds an image twice more, on a base of a registry")
def test_a_base_of_a_registry_is_carried(
    homes: tuple[Path, Path], site: Path, tmp_path: Path, debian13: StoredBase
) -> None:
    """Over there, neither the registry nor the mirror for it is known."""
    here, there = homes
    commands = '"echo made on a base of a registry > /etc/v"'
    write_tiny(site, commands, name="packaged", base="sample")
    (site / "base-images" / "sample.yaml").write_text(SAMPLE)
    with running_registry(tmp_path / "registry") as registry:
        (site / "site.yaml").write_text(f'registries: {{docker.io: "{registry.host}"}}\n')
        push(registry, debian13.archive)
        assert build_images("lock", "--project", site).status == 0
        before = built(site, here, OF_REGISTRY, **without_tls(registry, tmp_path))
        inputs, _ = carried(homes, site, tmp_path)
    assert inputs["bases"] == 1
    assert not (tmp_path / "project" / "site.yaml").exists()
    project = tmp_path / "project"
    assert rebuilt(project, there, OF_REGISTRY) == before
    again = unplugged("reproduce", OF_REGISTRY, "--project", project, "--offline", home=there)
    assert again.status == 0, again.stderr


@pytest.mark.long(reason="builds an image twice more, under emulation")
def test_the_native_tools_of_an_emulated_build_are_carried(
    homes: tuple[Path, Path], site: Path, tmp_path: Path, tools: Tools
) -> None:
    if not native.is_open("ppc64le"):
        pytest.skip("the kernel's handler of ppc64le is not that of 'make setup'")
    here, there = homes
    write_tiny(site, '"echo made with native tools > /etc/v"', name="packaged", base="debian13")
    matrix = (site / "matrix.yaml").read_text()
    (site / "matrix.yaml").write_text(matrix.replace("x86_64", "ppc64le"))
    for one in (*tools.home.bases.glob("debian13-ppc64le-*"), *tools.home.native.glob("trixie-*")):
        shutil.copytree(one, here / one.relative_to(tools.home.path), symlinks=True)
    before = built(site, here, EMULATED)
    lent = manifest_of(site / "out" / EMULATED)["inputs"]["native_tools"]
    assert lent
    carried(homes, site, tmp_path)
    assert rebuilt(tmp_path / "project", there, EMULATED) == before
    again = manifest_of(tmp_path / "project/out" / EMULATED)
    assert again["inputs"]["native_tools"] == lent


def without_tls(registry: Registry, folder: Path) -> dict[str, str]:
    """What Buildah needs to ask a registry of loopback: see containers-registries.conf(5)."""
    file = folder / "registries.conf"
    file.write_text(f'[[registry]]\nlocation = "{registry.host}"\ninsecure = true\n')
    return {"CONTAINERS_REGISTRIES_CONF": str(file)}


def push(registry: Registry, archive: Path) -> None:
    """The image of an OCI archive, as `library/sample:13`."""
    with tarfile.open(archive) as tar:
        files = {one.name: tar.extractfile(one) for one in tar if one.isfile()}
        contents = {name.removeprefix("./"): file.read() for name, file in files.items() if file}
    [entry] = json.loads(contents["index.json"])["manifests"]
    manifest = contents[f"blobs/sha256/{entry['digest'][7:]}"]
    about = json.loads(manifest)
    for one in (about["config"], *about["layers"]):
        registry.push("library/sample", contents[f"blobs/sha256/{one['digest'][7:]}"])
    registry.put_bytes("library/sample", "13", manifest, entry["mediaType"])
