"""What `publish` sends is what `pull` judges and brings: the two against one registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Ended, manifest_of, passed
from made_releases import correct_evidence
from publishing import TAG, Pair, own_tags, policy_of, pull, repository, signed
from real_registry import PASSWORD, RealRegistry

from builder.artifacts.manifests import write_manifest
from builder.artifacts.oci import read_layout
from builder.model.manifest import manifest_from

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


@pytest.fixture(name="published")
def published_project(project: Path, registry: RealRegistry, pair: Pair) -> str:
    """The reference of an image, after everything of a project was published, signed."""
    correct_evidence(project)
    passed(signed(project, registry.host, pair))
    return f"{registry.host}/site/app:{TAG}"


def test_what_was_published_is_pulled(
    project: Path, published: str, pair: Pair, tmp_path: Path
) -> None:
    for arch in ("x86_64", "ppc64le"):
        [folder] = (project / "out").glob(f"app-*-{arch}")
        digest, out = read_layout(folder / "image.oci").digest, tmp_path / arch
        more = (f"--arch={arch}", "--explain")
        done = passed(pull(published, policy_of(pair), "oci", out / "oci", *more))
        assert read_layout(out / "oci/image.oci").digest == digest
        for rule in ("signature", "evidence", "checks", "provenance", "sbom", "tree"):
            assert f"✓ passed     {rule}" in done.stdout
        passed(pull(published, policy_of(pair), "directory", out / "folder", f"--arch={arch}"))
        receipt = json.loads((out / "folder/receipt.json").read_text())
        assert receipt["image"]["digest"] == digest
    assert_random_bytes_are_refused(published, pair, tmp_path / "out")


def assert_random_bytes_are_refused(published: str, pair: Pair, out: Path) -> None:
    """The made SIF and tarball are random bytes: proven by their digests, and yet no such file."""
    for form in ("sif", "charliecloud"):
        more = (form, out, "--arch=x86_64")
        judged = passed(pull(published, policy_of(pair), *more, "--dry-run"))
        assert "✓ passed     artifact" in judged.stdout
        done = pull(published, policy_of(pair), *more)
        assert done.status == 5, done.stderr
        assert not out.exists()


def test_a_later_failure_is_published_and_counts_until_a_later_pass(
    project: Path, registry: RealRegistry, published: str, pair: Pair, tmp_path: Path
) -> None:
    [folder] = (project / "out").glob("app-*-x86_64")

    def judged(arch: str) -> Ended:
        out, more = tmp_path / "out", (f"--arch={arch}", "--dry-run")
        return pull(published, policy_of(pair), "oci", out, *more)

    before = own_tags(repository(registry.host, "app"))
    verified_at(folder, "2026-02-01T00:00:00+00:00", failed=["mpi"])
    assert signed(project, registry.host, pair).status == 5
    assert judged("x86_64").status == 0, "what failed on one machine says nothing unasked"
    done = signed(project, registry.host, pair, "--attach-failures")
    assert done.status == 5, done.stdout + done.stderr
    image = f"{registry.host}/site/app@{read_layout(folder / 'image.oci').digest}"
    assert f"app:{TAG}: x86_64: evidence attached to {image}: " in done.stderr
    assert own_tags(repository(registry.host, "app")) == before
    refused = judged("x86_64")
    assert refused.status == 5
    assert "✗ refused    checks" in refused.stderr
    assert "failed, 2026-02-01: mpi" in refused.stderr
    assert judged("ppc64le").status == 0, "the other image is as it was"
    verified_at(folder, "2026-02-02T00:00:00+00:00", failed=[])
    passed(signed(project, registry.host, pair))
    passed(judged("x86_64"))


def test_nights_that_find_the_same_add_nothing(
    project: Path, registry: RealRegistry, published: str, pair: Pair, tmp_path: Path
) -> None:
    """Else what whoever pulls has to read would grow, and one day be too much."""
    [folder] = (project / "out").glob("app-*-x86_64")
    digest, app = read_layout(folder / "image.oci").digest, repository(registry.host, "app")

    def published_on(day: int, *failed: str) -> tuple[int, int]:
        verified_at(folder, f"2026-02-{day:02d}T00:00:00+00:00", failed=list(failed))
        asked = ("--attach-failures",) if failed else ()
        done = signed(project, registry.host, pair, *asked)
        assert done.status == (5 if failed else 0), done.stderr
        _, classic = app.document(f"{digest.replace(':', '-')}.att")
        return len(app.referrers(digest)), len(classic["layers"])

    first = published_on(1)
    assert [published_on(day) for day in (2, 3)] == [first, first]
    bundles, layers = published_on(4, "mpi")
    assert bundles > first[0]
    assert layers > first[1]
    assert [published_on(day) for day in (5, 6)] == [(bundles, layers)] * 2, "a failure stays"
    more = ("--arch=x86_64", "--explain")
    done = passed(pull(published, policy_of(pair), "oci", tmp_path / "out", *more))
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


def test_a_registry_with_tls_and_a_password(
    project: Path, secured: RealRegistry, pair: Pair, tmp_path: Path
) -> None:
    correct_evidence(project)
    passed(signed(project, secured.host, pair, env=secured.environment))
    out, reference = tmp_path / "out", f"{secured.host}/site/app:{TAG}"
    words = (reference, policy_of(pair), "directory", out, "--arch=x86_64")
    for lacking in ("BUILD_IMAGES_REGISTRY_PASSWORD", "SSL_CERT_FILE"):
        refused = pull(*words, env={**secured.environment, lacking: ""})
        assert refused.status in {2, 4}, refused.stderr
        assert not out.exists()
        assert "Traceback" not in refused.stderr
        assert PASSWORD not in refused.stderr
    done = passed(pull(*words, env=secured.environment))
    assert PASSWORD not in done.stdout + done.stderr + (out / "receipt.json").read_text()
