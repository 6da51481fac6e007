"""What we sign cosign and skopeo accept, what cosign signs we accept; nothing that was changed."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from harness import Ended, build_images, missing
from loopback import INDEX, MANIFEST, Registry, running_registry

from builder.model.digests import digest_of
from builder.model.errors import StepFailed
from builder.model.predicates import CYCLONEDX, SLSA, TEST_RESULT
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.proof import statements
from builder.trust.proof.attachments import BlobDescriptor, ProofManifest, VerifiedProof
from builder.trust.proof.attestations import attestation_tag, proofs, signature_tag
from builder.trust.proof.cosign import CosignSigner, keyless_attestations, signer_of
from builder.trust.proof.keys import PrivateKey, Signer, private_key, public_key
from builder.trust.proof.statements import signature_statement
from builder.trust.proof.verification import TrustedKey, verified

pytestmark = pytest.mark.engines
PASSWORD = "correct horse"
NO_LOG = ("--insecure-ignore-tlog=true", "--allow-http-registry")
CLASSIC, BUNDLE = "classic", "bundle"
CONFIG = {
    "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
    "rekorTlogConfig": {},
    "tsaConfig": {},
}
RESULT = {
    "result": "PASSED",
    "configuration": [],
    "passedTests": ["libraries"],
    "warnedTests": [],
    "failedTests": [],
}
PREDICATES: dict[str, dict[str, Any]] = {
    TEST_RESULT: RESULT,
    CYCLONEDX: {"bomFormat": "CycloneDX", "specVersion": "1.5", "components": []},
    SLSA: {
        "buildDefinition": {"buildType": "x:y", "externalParameters": {}},
        "runDetails": {"builder": {"id": "x:z"}},
    },
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair of keys as `build-images keys generate` made it."""

    private: Path
    public: Path
    key: PrivateKey

    @property
    def trusted(self) -> TrustedKey:
        return TrustedKey(key=public_key(str(self.public), {}), name="site")


def pair_in(folder: Path, name: str) -> Pair:
    done = build_images(
        "keys", "generate", "--output", folder / name, env={"COSIGN_PASSWORD": PASSWORD}
    )
    assert done.status == 0, done.stderr
    private = folder / f"{name}.key"
    key = private_key(str(private), {"COSIGN_PASSWORD": PASSWORD})
    return Pair(private=private, public=folder / f"{name}.pub", key=key)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_in(tmp_path_factory.mktemp("keys"), "site")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_in(tmp_path_factory.mktemp("keys"), "other")


def run(*argv: str | Path, folder: Path) -> Ended:
    """A client of others, with the keys' password."""
    path = Home.of_environment().search_path()
    if shutil.which(str(argv[0]), path=path) is None:
        pytest.skip(f"missing on this machine: {argv[0]}")
    environment = {"PATH": path, "COSIGN_PASSWORD": PASSWORD, "HOME": str(folder)}
    done = subprocess.run(
        list(map(str, argv)),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in a registry, and what is attached to it there."""

    registry: Registry
    repository: str
    image: BlobDescriptor
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.registry.host}/{self.repository}"

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.image.digest}"

    @property
    def referrers_tag(self) -> str:
        return self.image.digest.replace(":", "-")

    def statement(self, predicate_type: str = TEST_RESULT) -> bytes:
        return statements.statement(
            name="image/oci",
            digest=self.image.digest,
            predicate_type=predicate_type,
            predicate=PREDICATES[predicate_type],
        )

    def proofs(self, signer: Signer, *predicate_types: str) -> list[ProofManifest]:
        statements = [self.statement(one) for one in predicate_types or [TEST_RESULT]]
        made = proofs(
            self.image,
            statements,
            signer,
            reference=self.name,
            created="2026-11-21T12:00:00Z",
        )
        return list(made)

    def attach(self, found: Sequence[ProofManifest]) -> None:
        """Push proof, as any client does; this registry has no referrers, so their tag is used."""
        index = []
        for one in found:
            for content in one.blobs.values():
                self.registry.push(self.repository, content)
            self.registry.put_bytes(self.repository, one.tag, one.manifest, one.media_type)
            if not one.tag:
                index.append(
                    {
                        **BlobDescriptor.of(one.manifest, one.media_type).as_json,
                        "artifactType": one.artifact_type,
                    }
                )
        if index:
            whole = {"schemaVersion": 2, "mediaType": INDEX, "manifests": index}
            self.registry.put(self.repository, self.referrers_tag, whole)

    def get(self, path: str) -> bytes:
        url = f"http://{self.registry.host}/v2/{self.repository}/{path}"
        done = requests.get(url, headers={"Accept": f"{MANIFEST}, {INDEX}"}, timeout=10)
        return done.content if done.ok else b""

    def attached(self) -> list[ProofManifest]:
        """What is there now, whoever pushed it."""
        index = json.loads(self.get(f"manifests/{self.referrers_tag}") or b"{}")
        names = [one["digest"] for one in index.get("manifests", [])]
        tags = [signature_tag(self.image.digest), attestation_tag(self.image.digest)]
        found = []
        for name in [*names, *tags]:
            if manifest := self.get(f"manifests/{name}"):
                layers = [one["digest"] for one in json.loads(manifest)["layers"]]
                blobs = {digest: self.get(f"blobs/{digest}") for digest in layers}
                tag = name if name in tags else ""
                found.append(ProofManifest(manifest=manifest, blobs=blobs, tag=tag))
        return found

    def verdict(self, *pairs: Pair) -> VerifiedProof:
        trusted = [one.trusted for one in pairs]
        now = dt.datetime.now(tz=dt.timezone.utc)
        return verified(self.image.digest, self.attached(), trusted, now=now)

    def cosign(self, *words: str | Path) -> Ended:
        return run("cosign", *words, self.reference, folder=self.folder)

    def verify(self, key: Pair) -> Ended:
        return self.cosign("verify", "--key", key.public, *NO_LOG)

    def verify_attestation(self, key: Pair, predicate_type: str = TEST_RESULT) -> Ended:
        options = ("--key", key.public, "--type", predicate_type, *NO_LOG)
        return self.cosign("verify-attestation", *options)


@pytest.fixture
def image(registry: Registry, request: pytest.FixtureRequest, tmp_path: Path) -> Image:
    """An image of its own for each test."""
    repository = f"site/{abs(hash(request.node.name))}"
    made = registry.image(repository, "ppc64le")
    descriptor = BlobDescriptor(media_type=MANIFEST, digest=made["digest"], size=made["size"])
    return Image(registry=registry, repository=repository, image=descriptor, folder=tmp_path)


def of_format(found: Sequence[ProofManifest], form: str) -> list[ProofManifest]:
    return [one for one in found if bool(one.tag) == (form == CLASSIC)]


@pytest.mark.parametrize("form", [CLASSIC, BUNDLE, "both"])
def test_cosign_accepts_what_we_sign(image: Image, pair: Pair, other: Pair, form: str) -> None:
    made = image.proofs(pair.key, *PREDICATES)
    image.attach(made if form == "both" else of_format(made, form))
    signed = image.verify(pair)
    assert signed.status == 0, signed.stderr
    for predicate_type in PREDICATES:
        attested = image.verify_attestation(pair, predicate_type)
        assert attested.status == 0, attested.stderr
        payloads = [json.loads(line)["payload"] for line in attested.stdout.splitlines()]
        assert image.statement(predicate_type) in map(base64.b64decode, payloads)
    assert image.verify(other).status != 0
    assert image.verify_attestation(other).status != 0
    assert image.verdict(pair).rejected == ()
    assert image.verdict(other).signatures == ()


def cosign_signs(image: Image, pair: Pair, form: str) -> None:
    """Sign and attest with cosign, in one of its formats."""
    (image.folder / "config.json").write_text(json.dumps(CONFIG))
    (image.folder / "predicate.json").write_text(json.dumps(RESULT))
    how = ["--signing-config", "config.json"]
    if form == CLASSIC:
        how = ["--new-bundle-format=false", "--use-signing-config=false", "--tlog-upload=false"]
    options: list[str | Path] = ["--key", pair.private, "--allow-http-registry", "--yes", *how]
    done = image.cosign("sign", *options)
    assert done.status == 0, done.stderr
    done = image.cosign("attest", *options, "--type", TEST_RESULT, "--predicate", "predicate.json")
    assert done.status == 0, done.stderr


@pytest.mark.parametrize("form", [CLASSIC, BUNDLE])
def test_we_accept_what_cosign_signs(image: Image, pair: Pair, other: Pair, form: str) -> None:
    cosign_signs(image, pair, form)
    verdict = image.verdict(pair)
    assert verdict.rejected == ()
    assert [one.format for one in verdict.signatures] == [form]
    [found] = verdict.attestations
    assert found.statement["predicate"] == RESULT
    refused = image.verdict(other)
    assert (refused.signatures, refused.attestations) == ((), ())
    assert len(refused.rejected) == 2


def test_ours_and_cosigns_live_side_by_side(image: Image, pair: Pair) -> None:
    cosign_signs(image, pair, CLASSIC)
    before = {one.tag: one for one in image.attached()}
    made = proofs(
        image.image,
        [image.statement()],
        pair.key,
        reference=image.name,
        created="",
        before=before,
    )
    image.attach(of_format(made, CLASSIC))
    assert len(image.verdict(pair).attestations) == 2
    assert image.verify(pair).status == 0
    attested = image.verify_attestation(pair)
    assert len(attested.stdout.splitlines()) == 2


def changed_blob(one: ProofManifest, change: Callable[[bytes], bytes]) -> ProofManifest:
    """A manifest made anew for a blob that was changed, as one who owns the registry can."""
    manifest = json.loads(one.manifest)
    [layer] = manifest["layers"]
    content = change(one.blobs[layer["digest"]])
    layer.update(digest=digest_of(content), size=len(content))
    blobs = {**one.blobs, layer["digest"]: content}
    return replace(one, manifest=json.dumps(manifest).encode(), blobs=blobs)


def other_payload(content: bytes) -> bytes:
    """Another result in an envelope or in a bundle, under the same signature."""
    value = json.loads(content)
    envelope = value.get("dsseEnvelope", value)
    payload = base64.b64decode(envelope["payload"]).replace(b"PASSED", b"FAILED")
    envelope["payload"] = base64.b64encode(payload).decode()
    return json.dumps(value).encode()


def no_signature(content: bytes) -> bytes:
    value = json.loads(content)
    envelope = value.get("dsseEnvelope", value)
    envelope["signatures"][0]["sig"] = base64.b64encode(b"0" * 64).decode()
    return json.dumps(value).encode()


@pytest.mark.parametrize("form", [CLASSIC, BUNDLE])
@pytest.mark.parametrize("change", [other_payload, no_signature])
def test_a_changed_attestation_is_refused_by_both(
    image: Image, pair: Pair, form: str, change: Callable[[bytes], bytes]
) -> None:
    made = of_format(image.proofs(pair.key), form)
    [attestation] = [one for one in made if TEST_RESULT.encode() in one.manifest]
    [signature] = [one for one in made if one != attestation]
    image.attach([signature, changed_blob(attestation, change)])
    assert image.verify_attestation(pair).status != 0
    verdict = image.verdict(pair)
    assert (len(verdict.signatures), verdict.attestations) == (1, ())
    assert ["no trusted key" in one.reason for one in verdict.rejected] == [True]
    assert image.verify(pair).status == 0  # the signature is whole


@pytest.mark.parametrize("form", [CLASSIC, BUNDLE])
def test_the_proof_of_another_image_is_refused_by_both(image: Image, pair: Pair, form: str) -> None:
    """Signed by the right key, and moved to this image."""
    elsewhere = replace(image.image, digest=digest_of(b"another image"))
    made = replace(image, image=elsewhere).proofs(pair.key)
    moved = []
    for one in of_format(made, form):
        manifest = json.loads(one.manifest)
        if not one.tag:
            manifest["subject"] = image.image.as_json
        tag = one.tag and image.referrers_tag + Path(one.tag).suffix
        moved.append(replace(one, manifest=json.dumps(manifest).encode(), tag=tag))
    image.attach(moved)
    assert image.verify(pair).status != 0
    assert image.verify_attestation(pair).status != 0
    verdict = image.verdict(pair)
    assert (verdict.signatures, verdict.attestations) == ((), ())
    assert all("another image" in one.reason or " is of " in one.reason for one in verdict.rejected)


def test_an_image_without_proof_is_refused_by_both(image: Image, pair: Pair) -> None:
    assert image.verify(pair).status != 0
    assert image.verdict(pair) == VerifiedProof()


def test_cosign_signs_with_a_key_that_it_alone_can_reach(image: Image, pair: Pair) -> None:
    """The way of PKCS#11 and KMS; here the key is a file, and cosign reads it."""
    if absent := missing(["cosign"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    path = Home.of_environment().search_path()
    processes = Processes()
    processes.mark = {"COSIGN_PASSWORD": PASSWORD}
    signer = CosignSigner(str(pair.private), processes, path=path)
    image.attach(image.proofs(signer))
    assert image.verify(pair).status == 0
    assert image.verify_attestation(pair).status == 0
    assert image.verdict(pair).rejected == ()


def test_cosigns_bundles_of_our_statements(image: Image, pair: Pair) -> None:
    """The way of signing without a key. No issuer is at hand: cosign is given a key after all."""
    if absent := missing(["cosign"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    (image.folder / "config.json").write_text(json.dumps(CONFIG))
    processes = Processes()
    processes.mark = {"COSIGN_PASSWORD": PASSWORD}
    made = keyless_attestations(
        image.image,
        [
            signature_statement(image.image.digest),
            *(image.statement(one) for one in PREDICATES),
        ],
        processes,
        created="2026-11-21T12:00:00Z",
        path=Home.of_environment().search_path(),
        options=["--key", pair.private, "--signing-config", image.folder / "config.json"],
    )
    image.attach(made)
    assert image.verify(pair).status == 0
    assert all(image.verify_attestation(pair, one).status == 0 for one in PREDICATES)
    verdict = image.verdict(pair)
    assert (len(verdict.signatures), len(verdict.attestations)) == (1, len(PREDICATES))


def test_why_debians_cosign_reaches_no_token() -> None:
    path = str(Home.of_environment().tools)  # that of set-up, and no other
    if not Path(path, "cosign").exists():
        pytest.skip("missing on this machine: set-up's cosign")
    uri = "pkcs11:token=none;object=none?module-path=/nowhere.so"
    with pytest.raises(StepFailed, match="token key: unimplemented") as caught:
        signer_of(uri, {}, Processes(), path=path)
    assert "built without PKCS#11, as Debian's is" in caught.value.hint


def policy_in(folder: Path, key: Pair, registry: Registry) -> list[str | Path]:
    """Options of skopeo: only what a key signed is copied."""
    requirement = {
        "type": "sigstoreSigned",
        "keyPath": str(key.public),
        "signedIdentity": {"type": "matchRepository"},
    }
    policy = {
        "default": [{"type": "reject"}],
        "transports": {"docker": {registry.host: [requirement]}},
    }
    (folder / "policy.json").write_text(json.dumps(policy))
    (folder / "registries.d").mkdir(exist_ok=True)
    (folder / "registries.d" / "here.yaml").write_text(
        f"docker:\n  {registry.host}:\n    use-sigstore-attachments: true\n"
    )
    return ["--policy", folder / "policy.json", "--registries.d", folder / "registries.d"]


def test_the_policies_of_podman_and_skopeo_see_the_classic_signature(
    image: Image, pair: Pair, other: Pair
) -> None:
    image.attach(image.proofs(pair.key))
    for key, accepted in ((pair, True), (other, False)):
        options = policy_in(image.folder, key, image.registry)
        target = f"dir:{image.folder / key.public.stem}"
        done = run(
            "skopeo-sid",  # Debian 12's is built without support for these signatures
            *options,
            "copy",
            "--src-tls-verify=false",
            f"docker://{image.reference}",
            target,
            folder=image.folder,
        )
        assert (done.status == 0) == accepted, done.stderr
    assert "Source image rejected" in done.stderr
