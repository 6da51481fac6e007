"""Locking against a real registry, Debian's docker-registry on loopback, and against none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness import build_images, missing
from loopback import INDEX, Registry, running_registry

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


@pytest.fixture(name="registry")
def real_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


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
