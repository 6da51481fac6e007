"""Signing without a key: cosign's certificates of a private Sigstore, published, judged, pulled.

The instance is `sigstore_instance`; cosign is its client and the second judge.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Ended, build_images
from made_releases import correct_evidence
from publishing import TAG, TEST_RESULT, TOOLS, publish, tool
from real_registry import RealRegistry, real_registry
from sigstore_instance import ISSUER, SUBJECT, Instance, sigstore_instance

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]
OTHER = "https://git.site.example/other/.ci/build.yml@refs/heads/main"


@pytest.fixture(name="instance", scope="module")
def running_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    programs = ("cosign", "openssl", "docker-registry")
    if absent := [one for one in programs if not shutil.which(one, path=TOOLS)]:
        pytest.skip(f"missing on this machine: {', '.join(absent)} (make setup-test)")
    with sigstore_instance(tmp_path_factory.mktemp("sigstore")) as found:
        yield found


@pytest.fixture(name="host", scope="module")
def published_without_a_key(
    made: Path, instance: Instance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("keyless")
    project = Path(shutil.copytree(made, folder / "project"))
    with real_registry(folder) as registry:
        done = signed(project, registry.host, instance)
        assert done.status == 0, done.stderr
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
    document = {
        "schema": "build-images/policy/v1",
        "keys": [{name: value for name, value in trusted.items() if value}],
        "evidence": {"required": [], "emulated": "accepted", "max_age": "99999d"},
        "host_contract": "ignored",
    }
    policy = folder / "policy.yaml"
    policy.write_text(json.dumps(document))
    words = ["pull", f"{host}/site/app:{TAG}", "--format", "oci", "--arch", "x86_64"]
    words += ["--policy", str(policy), "--output", str(folder / "pulled")]
    return build_images(*words, *more)


def test_what_a_ci_job_signed_is_accepted_by_cosign_and_pulled(
    host: str, instance: Instance, pull: Pull, tmp_path: Path
) -> None:
    done = pull("--explain")
    assert done.status == 0, done.stdout + done.stderr
    assert "✓ passed     signature" in done.stdout
    receipt = json.loads((tmp_path / "pulled/receipt.json").read_text())
    digest = receipt["image"]["digest"]
    for words in (["verify"], ["verify-attestation", "--type", TEST_RESULT]):
        judged = cosign(*words, f"{host}/site/app@{digest}", instance=instance)
        assert judged.returncode == 0, judged.stderr
    stranger = cosign("verify", f"{host}/site/app@{digest}", instance=instance, subject=OTHER)
    assert stranger.returncode != 0


def cosign(
    *words: str, instance: Instance, subject: str = SUBJECT
) -> subprocess.CompletedProcess[str]:
    # There is no log of signatures: the authority of times says when it was.
    trust = ["--trusted-root", str(instance.roots), "--use-signed-timestamps"]
    trust += ["--insecure-ignore-tlog=true", "--allow-http-registry"]
    who = ["--certificate-identity", subject, "--certificate-oidc-issuer", ISSUER]
    argv = [tool("cosign"), words[0], *trust, *who, *words[1:]]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


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


def test_a_policy_of_keys_takes_no_certificate(pull: Pull, tmp_path: Path) -> None:
    pair = ("--output", str(tmp_path / "site"))
    assert build_images("keys", "generate", *pair, env={"COSIGN_PASSWORD": ""}).status == 0
    done = pull(identity="", issuer="", roots="", file="site.pub")
    assert done.status == 5, done.stderr
    assert "only keys are trusted" in done.stderr


def test_a_job_without_a_token_publishes_nothing(
    project: Path, registry: RealRegistry, instance: Instance, tmp_path: Path
) -> None:
    done = signed(project, registry.host, instance, SIGSTORE_ID_TOKEN="a.b.c")
    assert done.status in {1, 4}, done.stderr
    assert "it needs a CI job that may ask for an identity token" in done.stderr
    assert "Traceback" not in done.stderr
    asked = pull_into(tmp_path, instance.roots, registry.host)
    assert asked.status == 1, "no tag points at what is not signed"
