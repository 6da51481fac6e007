"""Signing without a key: cosign's certificates of a private Sigstore, published, judged, pulled.

The instance is `sigstore_instance`; cosign is its client and the second judge.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import publishing
import pytest
from harness import TOOLS, Ended, need, passed, run_program
from made_releases import correct_evidence
from publishing import TAG, TEST_RESULT, Pair, publish, tool, write_policy
from real_registry import RealRegistry, real_registry
from sigstore_instance import ISSUER, SUBJECT, Instance, sigstore_instance

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]
OTHER = "https://git.site.example/other/.ci/build.yml@refs/heads/main"


@pytest.fixture(name="instance", scope="module")
def running_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    need("cosign", "openssl", "docker-registry")
    with sigstore_instance(tmp_path_factory.mktemp("sigstore")) as running:
        yield running


@pytest.fixture(name="host", scope="module")
def published_without_a_key(
    made: Path, instance: Instance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("keyless")
    project = Path(shutil.copytree(made, folder / "project"))
    with real_registry(folder) as registry:
        passed(signed(project, registry.host, instance))
        yield registry.host


def signed(project: Path, host: str, instance: Instance, **more: str) -> Ended:
    """Publish as a CI job does that has a token, cosign, and no key."""
    correct_evidence(project)
    env = {**instance.environment, "PATH": TOOLS, **more}
    return publish(project, host, "--recipe", "app", "--key", "keyless", env=env)


Pull = Callable[..., Ended]


@pytest.fixture(name="pull")
def pulling(instance: Instance, host: str, tmp_path: Path) -> Pull:
    return functools.partial(pull_into, tmp_path, instance.roots, host)


def pull_into(folder: Path, theirs: Path, host: str, *more: str, **key: Any) -> Ended:
    """Judge the image by a policy that trusts an identity, or what `key` says instead."""
    trusted = {"identity": SUBJECT, "issuer": ISSUER, "roots": str(theirs), **key}
    policy = write_policy(folder, {name: value for name, value in trusted.items() if value})
    reference = f"{host}/site/app:{TAG}"
    return publishing.pull(reference, policy, "oci", folder / "pulled", "--arch=x86_64", *more)


def test_what_a_ci_job_signed_is_accepted_by_cosign_and_pulled(
    host: str, instance: Instance, pull: Pull, tmp_path: Path
) -> None:
    done = passed(pull("--explain"))
    assert "✓ passed     signature" in done.stdout
    receipt = json.loads((tmp_path / "pulled/receipt.json").read_text())
    digest = receipt["image"]["digest"]
    for words in (["verify"], ["verify-attestation", "--type", TEST_RESULT]):
        passed(cosign(*words, f"{host}/site/app@{digest}", instance=instance))
    stranger = cosign("verify", f"{host}/site/app@{digest}", instance=instance, subject=OTHER)
    assert stranger.status != 0


def cosign(*words: str, instance: Instance, subject: str = SUBJECT) -> Ended:
    # There is no log of signatures: the authority of times says when it was.
    trust = (
        *("--trusted-root", instance.roots, "--use-signed-timestamps"),
        *("--insecure-ignore-tlog=true", "--allow-http-registry"),
    )
    signer = ("--certificate-identity", subject, "--certificate-oidc-issuer", ISSUER)
    return run_program(tool("cosign"), words[0], *trust, *signer, *words[1:])


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ({"identity": OTHER}, "who is not trusted"),
        ({"issuer": "https://other.site.example"}, "who is not trusted"),
        ({"until": "2020-01-01"}, "no longer trusted"),
        ({"identity": "https://git.site.example/images/*"}, ""),
    ],
    ids=["another job", "another issuer", "no more", "a glob"],
)
def test_who_signed_decides(key: dict[str, str], reason: str, pull: Pull) -> None:
    done = pull("--dry-run", **key)
    assert done.status == (5 if reason else 0), done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("part", ["certificateAuthorities", "timestampAuthorities", "ctlogs"])
def test_roots_of_another_instance_vouch_for_nothing(
    part: str, instance: Instance, pull: Pull, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Instance(folder=tmp_path / "other", token="")
    roots = {**instance.trusted_root(), part: other.trusted_root()[part]}
    (tmp_path / "roots.json").write_text(json.dumps(roots))
    done = pull(roots="roots.json")
    assert done.status == 5, done.stderr
    assert "✗ refused    signature" in done.stderr
    assert not (tmp_path / "pulled").exists()


def test_a_policy_of_keys_takes_no_certificate(pull: Pull, pair: Pair) -> None:
    done = pull(identity="", issuer="", roots="", file=str(pair.public))
    assert done.status == 5, done.stderr
    assert "only keys are trusted" in done.stderr


def test_a_job_without_a_token_publishes_nothing(
    project: Path, registry: RealRegistry, instance: Instance, tmp_path: Path
) -> None:
    done = signed(project, registry.host, instance, SIGSTORE_ID_TOKEN="a.b.c")
    assert done.status in {1, 4}, done.stderr
    assert "use a CI job that may request an identity token" in done.stderr
    assert "Traceback" not in done.stderr
    asked = pull_into(tmp_path, instance.roots, registry.host)
    assert asked.status == 1, "no tag points at what is not signed"
