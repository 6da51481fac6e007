"""Archives with a real registry at the end, and read by other clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import build_images_here
from harness import Ended, need, passed, run_program
from made_releases import correct_evidence
from publishing import RECIPES, SIGNING, TAG, Pair, cosign, policy_of, pull, tool
from real_registry import RealRegistry

from builder.artifacts.oci import read_layout

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


@pytest.fixture(name="archive")
def signed_archive(project: Path, tmp_path: Path, pair: Pair) -> Path:
    """All releases of a project, signed."""
    correct_evidence(project)
    archive = tmp_path / "site.tar"
    words = ("--project", project, "--output", archive, "--no-inputs", "--key", pair.private)
    passed(build_images_here("bundle", *words, env=SIGNING))
    return archive


def load(archive: Path, registry: RealRegistry, pair: Pair, **env: str) -> Ended:
    words = ("--policy", policy_of(pair), "--to", f"{registry.host}/site")
    return build_images_here("load", archive, *words, env={**registry.environment, **env})


def test_from_the_archive_to_a_registry_and_on_to_another_archive(
    archive: Path, project: Path, registry: RealRegistry, pair: Pair, tmp_path: Path
) -> None:
    passed(load(archive, registry, pair))
    [folder] = (project / "out").glob("app-*-x86_64")
    digest = read_layout(folder / "image.oci").digest
    cosign("verify", pair.public, f"{registry.host}/site/app@{digest}")
    reference, policy, arch = f"{registry.host}/site/app:{TAG}", policy_of(pair), "--arch=x86_64"
    passed(pull(reference, policy, "oci", tmp_path / "out", arch))
    assert read_layout(tmp_path / "out/image.oci").digest == digest
    copied = ("--project", project, "--from", f"{registry.host}/site")
    copy = tmp_path / "copy.tar"
    passed(build_images_here("bundle", *copied, "--output", copy, env=registry.environment))
    words = ("--policy", policy, "--output", tmp_path / "folder", "--format", "oci")
    passed(build_images_here("load", copy, "--arch", "ppc64le", *words))
    assert len(list((tmp_path / "folder").glob("*/image.oci"))) == len(RECIPES)


def test_skopeo_reads_it(archive: Path, project: Path, tmp_path: Path) -> None:
    need("skopeo")
    for arch, oci in (("x86_64", "amd64"), ("ppc64le", "ppc64le")):
        [folder] = (project / "out").glob(f"app-*-{arch}")
        source, target = f"oci-archive:{archive}:app:{TAG}", tmp_path / f"skopeo-{arch}"
        options = ("--override-arch", oci, "--insecure-policy")
        passed(run_program(tool("skopeo"), "copy", *options, source, f"dir:{target}"))
        digest = read_layout(folder / "image.oci").digest.partition(":")[2]
        manifest = (folder / "image.oci/blobs/sha256" / digest).read_bytes()
        assert (target / "manifest.json").read_bytes() == manifest


def test_a_registry_with_tls_and_a_password(
    archive: Path, secured: RealRegistry, pair: Pair
) -> None:
    passed(load(archive, secured, pair))
    refused = load(archive, secured, pair, BUILD_IMAGES_REGISTRY_PASSWORD="wrong")
    assert refused.status == 4, refused.stderr
    assert "Traceback" not in refused.stderr
