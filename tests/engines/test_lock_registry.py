"""Locking against a real registry, Debian's docker-registry on loopback, and against none."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from harness import build_images, missing

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIGURATION = """\
version: 0.1
log: {{level: error}}
http: {{addr: "127.0.0.1:{port}"}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
"""
BASE = """\
base: sample
about: from a registry
distribution: ubuntu
version: "22.04"
hpccm: ubuntu22
architectures: [x86_64, ppc64le]
references:
  x86_64: docker.io/library/sample:22.04
  ppc64le: docker.io/library/sample:22.04
"""
RECIPE = """\
recipe: tiny
version: "1.0"
about: one package
development:
  - packages: {ospackages: [make]}
"""
MATRIX = """\
axes: {arch: [x86_64, ppc64le], base: [sample], cuda: [none], mpi: [none]}
default: {}
"""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry that runs; `stop` ends it."""

    host: str
    process: subprocess.Popen[bytes]

    def push(self, repository: str, content: bytes) -> str:
        """A blob; its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        start = requests.post(f"http://{self.host}/v2/{repository}/blobs/uploads/", timeout=10)
        target = start.headers["Location"]
        done = requests.put(target, params={"digest": digest}, data=content, timeout=10)
        done.raise_for_status()
        return digest

    def put(self, repository: str, tag: str, manifest: dict[str, Any]) -> tuple[str, int]:
        """A manifest; its digest and size."""
        content = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        done = requests.put(
            f"http://{self.host}/v2/{repository}/manifests/{tag or digest}",
            data=content,
            headers={"Content-Type": manifest["mediaType"]},
            timeout=10,
        )
        done.raise_for_status()
        return digest, len(content)

    def image(self, repository: str, arch: str) -> dict[str, Any]:
        """An image without layers, as an index names it."""
        config = json.dumps(
            {"architecture": arch, "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}
        ).encode()
        digest, size = self.put(
            repository,
            "",
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": self.push(repository, config),
                    "size": len(config),
                },
                "layers": [],
            },
        )
        platform = {"os": "linux", "architecture": arch}
        return {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture(name="registry")
def real_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    if absent := missing(["docker-registry"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config.yml").write_text(CONFIGURATION.format(port=port, root=folder / "store"))
    process = subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    registry = Registry(host=f"127.0.0.1:{port}", process=process)
    _wait_for(registry)
    yield registry
    registry.stop()


def _wait_for(registry: Registry) -> None:
    for _ in range(100):
        try:
            requests.get(f"http://{registry.host}/v2/", timeout=1)
        except requests.ConnectionError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("docker-registry does not answer")


@pytest.fixture(name="project")
def tiny_project(site: Path, registry: Registry) -> Path:
    """A project whose only base comes from Docker Hub, by way of the registry."""
    for folder in ("recipes", "base-images"):
        shutil.rmtree(site / folder)
        (site / folder).mkdir()
    (site / "base-images" / "sample.yaml").write_text(BASE)
    (site / "recipes" / "tiny.yaml").write_text(RECIPE)
    (site / "matrix.yaml").write_text(MATRIX)
    (site / "site.yaml").write_text(f'registries: {{docker.io: "{registry.host}"}}\n')
    return site


def push_index(registry: Registry) -> dict[str, str]:
    """Two architectures under one tag; the digests of their manifests."""
    images = {
        "x86_64": registry.image("library/sample", "amd64"),
        "ppc64le": registry.image("library/sample", "ppc64le"),
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(images.values())}
    registry.put("library/sample", "22.04", index)
    return {arch: one["digest"] for arch, one in images.items()}


def pinned(project: Path) -> dict[str, str]:
    lock = yaml.safe_load((project / "lock.yaml").read_text())
    assert {one["reference"] for one in lock["references"]} == {"docker.io/library/sample:22.04"}
    return {one["arch"]: one["digest"] for one in lock["references"]}


@pytest.mark.engines
def test_each_architecture_is_pinned_and_stays_when_the_registry_is_away(
    project: Path, registry: Registry
) -> None:
    digests = push_index(registry)
    done = build_images("lock", "--project", project)
    assert done.status == 0, done.stderr
    assert pinned(project) == digests
    text = (project / "lock.yaml").read_text()
    assert registry.host not in text

    registry.stop()
    checked = build_images("lock", "--check", "--project", project)
    assert (checked.status, checked.stdout) == (0, "lock.yaml matches the recipes\n")
    away = build_images("lock", "--update", "--project", project)
    assert away.status == 4
    assert "the registry docker.io cannot be reached" in away.stderr
    assert "registries: {docker.io: mirror.example:5000} in site.yaml" in away.stderr
    assert away.stderr.count("cannot be reached") == 1
    assert (project / "lock.yaml").read_text() == text


@pytest.mark.engines
def test_specs_start_from_the_locked_digest(project: Path, registry: Registry) -> None:
    digests = push_index(registry)
    assert build_images("lock", "--project", project).status == 0
    done = build_images("spec", "--all", "--project", project, "--output", project / "specs")
    assert done.status == 0, done.stderr
    for arch, digest in digests.items():
        [folder] = (project / "specs").glob(f"*-{arch}")
        named = f"{registry.host}/library/sample@{digest}"
        froms = re.findall(r"^FROM (\S+)", (folder / "Dockerfile").read_text(), re.MULTILINE)
        assert froms == [named, named]
        definition = (folder / "Singularity.def").read_text()
        assert definition.count(f"From: {named}\n") == 2


@pytest.mark.engines
def test_a_tag_that_moves_is_seen_by_update_alone(project: Path, registry: Registry) -> None:
    first = push_index(registry)
    assert build_images("lock", "--project", project).status == 0
    one = registry.image("library/sample", "amd64 ")
    one["platform"]["architecture"] = "amd64"
    other = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [one]}
    registry.put("library/sample", "22.04", other)
    assert build_images("lock", "--project", project).status == 0
    assert pinned(project) == first
    done = build_images("lock", "--update", "--project", project)
    assert done.status == 4
    assert "no image for ppc64le (linux); there is amd64" in done.stderr
    assert pinned(project) == {"x86_64": one["digest"], "ppc64le": first["ppc64le"]}


@pytest.mark.engines
def test_skopeo_finds_the_same_digest(registry: Registry, project: Path) -> None:
    if absent := missing(["skopeo"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    push_index(registry)
    assert build_images("lock", "--project", project).status == 0
    source = f"docker://{registry.host}/library/sample:22.04"
    raw = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", "--raw", source],
        capture_output=True,
        check=True,
    )
    manifests = json.loads(raw.stdout)["manifests"]
    assert {one["digest"] for one in manifests} == set(pinned(project).values())
