"""What `publish` sends is what `pull` judges and brings: the two against one registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Ended, build_images, manifest_of
from made_releases import correct_evidence
from publishing import TAG, own_tags, publish, repository
from real_registry import PASSWORD, RealRegistry

from builder.artifacts.manifests import write_manifest
from builder.artifacts.oci import read_layout
from builder.model.manifest import manifest_from

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


@pytest.fixture(name="policy")
def site_policy(project: Path, registry: RealRegistry, tmp_path: Path) -> Path:
    return published_for(project, registry, tmp_path)


def published_for(project: Path, registry: RealRegistry, folder: Path) -> Path:
    """Everything of a project is published, signed; a policy of a site that trusts the key.

    The images that tests publish hold random bytes, and have no host contract.
    """
    key, env = folder / "site", {"COSIGN_PASSWORD": "", **registry.environment}
    assert build_images("keys", "generate", "--output", str(key), env=env).status == 0
    correct_evidence(project)
    done = publish(project, registry.host, "--key", f"{key}.key", env=env)
    assert done.status == 0, done.stderr
    path = folder / "policy.yaml"
    evidence = {"required": [], "emulated": "accepted", "max_age": "99999d"}
    document = {
        "schema": "build-images/policy/v1",
        "keys": ["site.pub"],
        "evidence": evidence,
        "host_contract": "ignored",
    }
    path.write_text(json.dumps(document))
    return path


def pull(host: str, policy: Path, artifact_format: str, output: Path, *more: str) -> Ended:
    words: list[str | Path] = ["pull", f"{host}/site/app:{TAG}", "--format", artifact_format]
    return build_images(*words, "--policy", policy, "--output", output, *more)


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
def test_what_was_published_is_pulled(
    project: Path, registry: RealRegistry, policy: Path, arch: str, tmp_path: Path
) -> None:
    [folder] = list((project / "out").glob(f"app-*-{arch}"))
    published = read_layout(folder / "image.oci")
    done = pull(registry.host, policy, "oci", tmp_path / "oci", "--arch", arch, "--explain")
    assert done.status == 0, done.stdout + done.stderr
    assert read_layout(tmp_path / "oci/image.oci").digest == published.digest
    for rule in ("signature", "evidence", "checks", "provenance", "sbom", "tree"):
        assert f"✓ passed     {rule}" in done.stdout
    done = pull(registry.host, policy, "directory", tmp_path / "folder", "--arch", arch)
    assert done.status == 0, done.stderr
    receipt = json.loads((tmp_path / "folder/receipt.json").read_text())
    assert receipt["image"]["digest"] == published.digest


def test_a_later_failure_is_published_and_counts_until_a_later_pass(
    project: Path, registry: RealRegistry, policy: Path, tmp_path: Path
) -> None:
    [folder] = list((project / "out").glob("app-*-x86_64"))
    key, env = ("--key", str(tmp_path / "site.key")), {"COSIGN_PASSWORD": ""}

    def judged(arch: str) -> Ended:
        more = (tmp_path / "out", "--arch", arch, "--dry-run")
        return pull(registry.host, policy, "oci", *more)

    before = own_tags(repository(registry.host, "app"))
    verified_at(folder, "2026-02-01T00:00:00+00:00", failed=["mpi"])
    assert publish(project, registry.host, *key, env=env).status == 5
    assert judged("x86_64").status == 0, "what failed on one machine says nothing unasked"
    done = publish(project, registry.host, *key, "--attach-failures", env=env)
    assert done.status == 5, done.stdout + done.stderr
    digest = read_layout(folder / "image.oci").digest
    assert f"app:{TAG}: x86_64: attached to {registry.host}/site/app@{digest}: " in done.stderr
    assert own_tags(repository(registry.host, "app")) == before
    refused = judged("x86_64")
    assert refused.status == 5
    assert "✗ refused    checks" in refused.stderr
    assert "failed, 2026-02-01: mpi" in refused.stderr
    assert judged("ppc64le").status == 0, "the other image is as it was"
    verified_at(folder, "2026-02-02T00:00:00+00:00", failed=[])
    assert publish(project, registry.host, *key, env=env).status == 0
    cleared = judged("x86_64")
    assert cleared.status == 0, cleared.stderr


def test_nights_that_find_the_same_add_nothing(
    project: Path, registry: RealRegistry, policy: Path, tmp_path: Path
) -> None:
    """Else what whoever pulls has to read would grow, and one day be too much."""
    [folder] = list((project / "out").glob("app-*-x86_64"))
    digest, there = read_layout(folder / "image.oci").digest, repository(registry.host, "app")

    def published(day: int, *failed: str) -> tuple[int, int]:
        verified_at(folder, f"2026-02-{day:02d}T00:00:00+00:00", failed=list(failed))
        key = ("--key", f"{tmp_path}/site.key")
        asked = ("--attach-failures",) if failed else ()
        done = publish(project, registry.host, *key, *asked, env={"COSIGN_PASSWORD": ""})
        assert done.status == (5 if failed else 0), done.stderr
        _, classic = there.document(f"{digest.replace(':', '-')}.att")
        return len(there.referrers(digest)), len(classic["layers"])

    first = published(1)
    assert [published(day) for day in (2, 3)] == [first, first]
    bundles, layers = published(4, "mpi")
    assert bundles > first[0]
    assert layers > first[1]
    assert [published(day) for day in (5, 6)] == [(bundles, layers)] * 2, "a failure stays"
    done = pull(registry.host, policy, "oci", tmp_path / "out", "--arch", "x86_64", "--explain")
    assert done.status == 0, done.stderr
    assert "2026-02-06" in done.stdout


def verified_at(image: Path, finished: str, *, failed: list[str]) -> None:
    """As if all formats of an image had been verified again; the other checks passed."""
    manifest = manifest_of(image) | {"outcome": "failed" if failed else "verified"}
    for name, outcomes in manifest["checks"].items():
        checks = [one["check"] for one in outcomes if one["check"] != "mpi"] + ["mpi"]
        found = {check: "failed" if check in failed else "passed" for check in checks}
        manifest["checks"][name] = [
            {"check": check, "outcome": outcome, "reason": "x"} for check, outcome in found.items()
        ]
        evidence = image / "evidence" / f"{name}.json"
        statement = json.loads(evidence.read_text())
        run = statement["predicate"]["configuration"][0]
        run["annotations"]["finished"] = finished
        statement["predicate"] |= {
            "result": "FAILED" if failed else "PASSED",
            "failedTests": failed,
            "passedTests": [check for check in checks if check not in failed],
            "configuration": [
                run,
                *(
                    {"name": check, "uri": "x", "annotations": {"outcome": outcome}}
                    for check, outcome in found.items()
                ),
            ],
        }
        evidence.write_text(json.dumps(statement))
    write_manifest(
        image, manifest_from(manifest), [f"evidence/{name}.json" for name in manifest["checks"]]
    )


def test_what_was_published_as_a_file_and_is_none_is_refused(
    registry: RealRegistry, policy: Path, tmp_path: Path
) -> None:
    """The made SIF and tarball are random bytes: proven by their digests, and yet no such file."""
    for form in ("sif", "charliecloud"):
        more = (form, tmp_path / "out", "--arch", "x86_64")
        judged = pull(registry.host, policy, *more, "--dry-run")
        assert judged.status == 0, judged.stderr
        assert "✓ passed     artifact" in judged.stdout
        done = pull(registry.host, policy, *more)
        assert done.status == 5, done.stderr
        assert not (tmp_path / "out").exists()


def test_a_registry_with_tls_and_a_password(
    project: Path, secured: RealRegistry, tmp_path: Path
) -> None:
    policy = published_for(project, secured, tmp_path)
    words = ["pull", f"{secured.host}/site/app:{TAG}", "--format", "directory"]
    words += ["--arch", "x86_64", "--policy", str(policy), "--output", str(tmp_path / "out")]
    for lacking in ("BUILD_IMAGES_REGISTRY_PASSWORD", "SSL_CERT_FILE"):
        environment = {**secured.environment, lacking: ""}
        refused = build_images(*words, env=environment)
        assert refused.status in {2, 4}, refused.stderr
        assert not (tmp_path / "out").exists()
        assert "Traceback" not in refused.stderr
        assert PASSWORD not in refused.stderr
    done = build_images(*words, env=secured.environment)
    assert done.status == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr + (tmp_path / "out/receipt.json").read_text()
