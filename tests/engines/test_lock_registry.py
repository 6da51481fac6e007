"""Locking against a real registry, Debian's docker-registry on loopback, and against none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import build_images_here
from harness import need, passed, run_program
from published import repository
from publishing import write_image
from real_registry import RealRegistry

from builder.registry import INDEX

pytestmark = pytest.mark.engines

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
BOTH = {"x86_64": "amd64", "ppc64le": "ppc64le"}
MATRIX = """\
axes: {arch: [x86_64, ppc64le], base: [sample], cuda: [none], mpi: [none]}
inherit: false
default: {}
"""


@pytest.fixture(name="project")
def tiny_project(site: Path, registry: RealRegistry) -> Path:
    """A project whose only base comes from Docker Hub, by way of the registry."""
    for folder in ("recipes", "base-images"):
        shutil.rmtree(site / folder)
        (site / folder).mkdir()
    (site / "base-images" / "sample.yaml").write_text(BASE)
    (site / "recipes" / "tiny.yaml").write_text(RECIPE)
    (site / "matrix.yaml").write_text(MATRIX)
    (site / "site.yaml").write_text(f'registries: {{docker.io: "{registry.host}"}}\n')
    return site


def push_index(registry: RealRegistry, **config_of: str) -> dict[str, str]:
    """Images under one tag, by architecture; the digests of their manifests."""
    sample = repository(registry.host, "sample", "library")
    images = {arch: write_image(sample, config) for arch, config in config_of.items()}
    for image in images.values():
        image["platform"]["architecture"] = image["platform"]["architecture"].strip()
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(images.values())}
    sample.write_manifest(json.dumps(index).encode(), INDEX, "22.04")
    return {arch: image["digest"] for arch, image in images.items()}


def pinned(project: Path) -> dict[str, str]:
    lock = yaml.safe_load((project / "lock.yaml").read_text())
    assert {row["reference"] for row in lock["references"]} == {"docker.io/library/sample:22.04"}
    return {row["arch"]: row["digest"] for row in lock["references"]}


def test_each_architecture_is_pinned_and_stays_when_the_registry_is_away(
    project: Path, registry: RealRegistry
) -> None:
    digests = push_index(registry, **BOTH)
    passed(build_images_here("lock", "--project", project))
    assert pinned(project) == digests
    text = (project / "lock.yaml").read_text()
    assert registry.host not in text

    registry.process.terminate()
    registry.process.wait()
    checked = build_images_here("lock", "--check", "--project", project)
    assert (checked.status, checked.stdout) == (0, "lock.yaml matches the recipes\n")
    away = build_images_here("lock", "--update", "--project", project)
    assert away.status == 4
    assert "the registry docker.io cannot be reached" in away.stderr
    assert "registries: {docker.io: mirror.example:5000} in site.yaml" in away.stderr
    assert away.stderr.count("cannot be reached") == 1
    assert (project / "lock.yaml").read_text() == text


def test_specs_start_from_the_locked_digest(project: Path, registry: RealRegistry) -> None:
    digests = push_index(registry, **BOTH)
    passed(build_images_here("lock", "--project", project))
    words = ("--all", "--project", project, "--output", project / "specs")
    passed(build_images_here("spec", *words))
    for arch, digest in digests.items():
        [folder] = (project / "specs").glob(f"*-{arch}")
        named = f"{registry.host}/library/sample@{digest}"
        froms = re.findall(r"^FROM (\S+)", (folder / "Dockerfile").read_text(), re.MULTILINE)
        assert froms == [named, named]
        definition = (folder / "Singularity.def").read_text()
        assert definition.count(f"From: {named}\n") == 2


def test_a_tag_that_moves_is_seen_by_update_alone(project: Path, registry: RealRegistry) -> None:
    first = push_index(registry, **BOTH)
    passed(build_images_here("lock", "--project", project))
    moved = push_index(registry, x86_64="amd64 ")  # of another digest
    passed(build_images_here("lock", "--project", project))
    assert pinned(project) == first
    done = build_images_here("lock", "--update", "--project", project)
    assert done.status == 4
    assert "no image for ppc64le (linux); available: amd64" in done.stderr
    assert pinned(project) == {**moved, "ppc64le": first["ppc64le"]}


def test_skopeo_finds_the_same_digest(registry: RealRegistry, project: Path) -> None:
    need("skopeo")
    push_index(registry, **BOTH)
    passed(build_images_here("lock", "--project", project))
    source = f"docker://{registry.host}/library/sample:22.04"
    raw = passed(run_program("skopeo", "inspect", "--tls-verify=false", "--raw", source))
    manifests = json.loads(raw.stdout)["manifests"]
    assert {row["digest"] for row in manifests} == set(pinned(project).values())
