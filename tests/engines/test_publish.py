"""Publishing to a real registry, Debian's docker-registry on loopback, and copying from it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from faulty_proxy import proxy_before
from harness import build_images, need, passed, run_program
from publishing import (
    BILL,
    PROVENANCE,
    TAG,
    TEST_RESULT,
    cosign,
    lacking,
    publish,
    published,
    repository,
    tool,
    unproven,
)
from real_registry import PASSWORD, USER, RealRegistry, real_registry
from tunnel import tls_proxy

from builder.registry import Credentials, Reference, connect
from builder.registry.manifests import STATEMENT

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


def test_published_with_tls_and_a_password_and_nothing_is_sent_twice(
    made: Path, secured: RealRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    dry = passed(publish(made, secured.host, "--dry-run", env=secured.environment))
    assert f"{secured.host}/site/app:{TAG}, latest\n" in dry.stdout
    assert "dry run, nothing was sent: 5 blobs mounted" in dry.stdout
    assert not (secured.store / "docker").exists() or not list(secured.store.rglob("tags"))

    done = passed(publish(made, secured.host, "--json", env=secured.environment))
    report = json.loads(done.stdout)
    assert report["blobs"]["sent"]["count"] == 21
    assert report["blobs"]["mounted"]["count"] == 5, (
        "the child's images share their parent's layers"
    )
    again = publish(made, secured.host, "--json", env=secured.environment)
    assert json.loads(again.stdout)["releases"] == report["releases"]
    assert json.loads(again.stdout)["blobs"]["there"]["count"] == 26
    assert PASSWORD not in done.stdout + done.stderr + dry.stdout + dry.stderr

    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority))
    for name, text in secured.environment.items():
        monkeypatch.setenv(name, text)
    credentials = Credentials(own=secured.host)
    registry = connect(Reference.parse(f"{secured.host}/site/app"), credentials)
    index, parsed = registry.document(TAG)
    [release] = [one for one in report["releases"] if one["repository"].endswith("/app")]
    assert index.digest == release["digest"] == registry.resolve("latest").digest
    platforms = [one["platform"]["architecture"] for one in parsed["manifests"]]
    assert platforms == ["ppc64le", "amd64"]
    for one in parsed["manifests"]:
        assert lacking(registry, one["digest"]) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SSL_CERT_FILE": "", "REQUESTS_CA_BUNDLE": ""}, "TLS fails: "),
        ({"BUILD_IMAGES_REGISTRY_PASSWORD": "wrong"}, "answers 401 Unauthorized"),
        ({"BUILD_IMAGES_REGISTRY_USER": "", "BUILD_IMAGES_REGISTRY_PASSWORD": ""}, "answers 401"),
    ],
)
def test_a_wrong_password_or_authority_sends_nothing(
    changed: dict[str, str], said: str, made: Path, secured: RealRegistry
) -> None:
    done = publish(made, secured.host, env={**secured.environment, **changed})
    assert done.status == 4
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "right secret" not in done.stderr
    assert not list(secured.store.rglob("link"))


def test_a_proxy_with_tls_is_trusted_as_the_registry_is(made: Path, secured: RealRegistry) -> None:
    assert secured.authority is not None
    key = secured.authority.with_name("key.pem")
    with tls_proxy(secured.authority, key) as (url, asked):
        led = {"https_proxy": url, "no_proxy": "", "NO_PROXY": ""}
        trusted = {"SSL_CERT_FILE": "", "REQUESTS_CA_BUNDLE": str(secured.authority)}
        env = {**secured.environment, **led, **trusted}
        passed(publish(made, secured.host, "--dry-run", env=env))
        assert set(asked) == {secured.host}
        asked.clear()
        done = publish(
            made, secured.host, env={**env, "SSL_CERT_FILE": "", "REQUESTS_CA_BUNDLE": ""}
        )
        assert done.status == 4
        assert "certificate" in done.stderr
        assert asked == []


def test_credentials_of_podman_and_of_a_helper(
    made: Path, secured: RealRegistry, tmp_path: Path
) -> None:
    trusted = {"SSL_CERT_FILE": str(secured.authority)}
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {f"{secured.host}/site": {"auth": pair}}}))
    passed(publish(made, secured.host, env={**trusted, "REGISTRY_AUTH_FILE": str(file)}))
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    answer = json.dumps({"ServerURL": secured.host, "Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "tests"}))
    environment = {
        **trusted,
        "DOCKER_CONFIG": str(tmp_path),
        "PATH": f"{helper.parent}:{os.environ['PATH']}",
    }
    done = passed(publish(made, secured.host, "--dry-run", env=environment))
    assert "26 blobs already there" in done.stdout


def test_a_mirror_has_the_proof_too(made: Path, tmp_path: Path, secured: RealRegistry) -> None:
    with real_registry(tmp_path / "source", in_memory=True) as source:
        absent = publish(made, source.host, "--from", f"{source.host}/elsewhere")
        assert absent.status == 5
        assert f"{source.host}/elsewhere/tools:{TAG}: not found" in absent.stderr
        assert publish(made, source.host).status == 0
        words = ("--from", f"{source.host}/site")
        done = passed(publish(made, secured.host, *words, "--json", env=secured.environment))
        same = passed(publish(made, f"{source.host}/mirror", *words))
        assert "blobs sent" not in same.stdout, "the same registry mounts them"
        assert unproven(source.host, "mirror/site") == []
    report = json.loads(done.stdout)
    [release] = [one for one in report["releases"] if one["repository"].endswith("/app")]
    assert release["images"].keys() == {"x86_64", "ppc64le"}
    assert release["images"]["ppc64le"].keys() == {"oci", "sif", "charliecloud"}


def test_what_is_signed_is_accepted_by_cosign(
    made: Path, registry: RealRegistry, tmp_path: Path
) -> None:
    need("cosign", "oras")
    key, env = tmp_path / "site", {"COSIGN_PASSWORD": "of the key"}
    passed(build_images("keys", "generate", "--output", key, env=env))
    done = passed(publish(made, registry.host, "--key", f"{key}.key", env=env))
    assert "of the key" not in done.stdout + done.stderr
    registered = repository(registry.host, "app")
    before = sorted(registered.tags())
    passed(publish(made, registry.host, "--key", f"{key}.key", env=env))
    assert sorted(registered.tags()) == before, "the same proof is made again"
    with proxy_before(registry.host) as proxy:
        words = ("--from", f"{proxy.host}/site")
        assert publish(made, f"{registry.host}/mirror", *words).status == 0
    for name in ("site", "mirror/site"):
        whole = f"{registry.host}/{name}/app:{TAG}"
        for more in ([], ["--new-bundle-format=false"]):
            cosign("verify", f"{key}.pub", *more, whole)
        for digests in published(made, registry, "app").values():
            image = f"{registry.host}/{name}/app@{digests['oci']}"
            for kind in (TEST_RESULT, PROVENANCE, BILL):
                cosign("verify-attestation", f"{key}.pub", "--type", kind, image)
            discovered = passed(run_program(tool("oras"), "discover", "--plain-http", image)).stdout
            assert STATEMENT not in discovered, "signed, and not without a signature too"
