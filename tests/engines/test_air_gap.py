"""Archives with a real registry at the end, and read by other clients."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from harness import Ended, build_images, missing
from made_releases import correct_evidence
from publishing import RECIPES, TAG, cosign, tool
from real_registry import RealRegistry

from builder.artifacts.oci import read_layout

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


@pytest.fixture(name="archive")
def signed_archive(project: Path, tmp_path: Path) -> Path:
    """All releases of a project, signed; the policy that trusts the key lies beside it."""
    env = {"COSIGN_PASSWORD": ""}
    key = tmp_path / "site"
    assert build_images("keys", "generate", "--output", str(key), env=env).status == 0
    correct_evidence(project)
    archive = tmp_path / "site.tar"
    words: list[str | Path] = ["bundle", "--project", project, "--output", archive, "--no-inputs"]
    done = build_images(*words, "--key", f"{key}.key", env=env)
    assert done.status == 0, done.stderr
    document = {
        "schema": "build-images/policy/v1",
        "keys": ["site.pub"],
        "evidence": {"required": [], "emulated": "accepted", "max_age": "99999d"},
        "host_contract": "ignored",
    }
    (tmp_path / "policy.yaml").write_text(json.dumps(document))
    return archive


def load(archive: Path, registry: RealRegistry, *more: str) -> Ended:
    words: list[str | Path] = ["load", archive]
    words += ["--policy", archive.with_name("policy.yaml")]
    return build_images(*words, "--to", f"{registry.host}/site", *more, env=registry.environment)


def test_from_the_archive_to_a_registry_and_on_to_another_archive(
    archive: Path, project: Path, registry: RealRegistry, tmp_path: Path
) -> None:
    done = load(archive, registry)
    assert done.status == 0, done.stderr
    [folder] = (project / "out").glob("app-*-x86_64")
    digest = read_layout(folder / "image.oci").digest
    cosign("verify", str(tmp_path / "site.pub"), f"{registry.host}/site/app@{digest}")
    words = ["pull", f"{registry.host}/site/app:{TAG}", "--format", "oci", "--arch", "x86_64"]
    words += ["--policy", str(tmp_path / "policy.yaml"), "--output", str(tmp_path / "out")]
    done = build_images(*words)
    assert done.status == 0, done.stderr
    assert read_layout(tmp_path / "out/image.oci").digest == digest
    words = ["bundle", "--project", str(project), "--from", f"{registry.host}/site"]
    done = build_images(*words, "--output", tmp_path / "copy.tar", env=registry.environment)
    assert done.status == 0, done.stderr
    again: list[str | Path] = ["load", tmp_path / "copy.tar", "--arch", "ppc64le"]
    again += ["--policy", tmp_path / "policy.yaml"]
    done = build_images(*again, "--output", tmp_path / "folder", "--format", "oci")
    assert done.status == 0, done.stderr
    assert len(list((tmp_path / "folder").glob("*/image.oci"))) == len(RECIPES)


def test_skopeo_reads_it(archive: Path, project: Path, tmp_path: Path) -> None:
    if missing(["skopeo"]):
        pytest.skip("skopeo is missing on this machine")
    for arch, oci in (("x86_64", "amd64"), ("ppc64le", "ppc64le")):
        [folder] = (project / "out").glob(f"app-*-{arch}")
        source = f"oci-archive:{archive}:app:{TAG}"
        words = [tool("skopeo"), "copy", "--override-arch", oci, "--insecure-policy"]
        target = tmp_path / f"skopeo-{arch}"
        done = subprocess.run(
            [*words, source, f"dir:{target}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        layout = read_layout(folder / "image.oci")
        wanted = (folder / "image.oci/blobs/sha256" / layout.digest.partition(":")[2]).read_bytes()
        assert (target / "manifest.json").read_bytes() == wanted


def test_a_registry_with_tls_and_a_password(archive: Path, secured: RealRegistry) -> None:
    done = load(archive, secured)
    assert done.status == 0, done.stderr
    done = build_images(
        *("load", archive, "--policy", archive.with_name("policy.yaml")),
        *("--to", f"{secured.host}/site"),
        env={**secured.environment, "BUILD_IMAGES_REGISTRY_PASSWORD": "wrong"},
    )
    assert done.status == 4, done.stderr
    assert "Traceback" not in done.stderr
