"""What we sign cosign and skopeo accept, what cosign signs we accept; nothing that was changed."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness import Ended, build_images, need, passed, run_program
from proof_samples import PASSWORD, RESULT
from published import attached, repository
from publishing import write_image
from real_registry import real_registry

from builder.model.digests import Descriptor, digest_of
from builder.model.errors import StepFailed
from builder.model.predicates import CYCLONEDX, SLSA, TEST_RESULT
from builder.registry import MANIFEST, Registry
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.proof import statements
from builder.trust.proof.attachments import ProofManifest, VerifiedProof
from builder.trust.proof.attestations import merged, proofs
from builder.trust.proof.cosign import CosignSigner, keyless_attestations, signer_of
from builder.trust.proof.keys import PrivateKey, Signer, private_key, public_key
from builder.trust.proof.statements import signature_statement
from builder.trust.proof.verification import TrustedKey, verified

pytestmark = pytest.mark.engines
NO_LOG = ("--insecure-ignore-tlog=true", "--allow-http-registry")
CLASSIC, BUNDLE = "classic", "bundle"
CONFIG = {
    "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
    "rekorTlogConfig": {},
    "tsaConfig": {},
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
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need("docker-registry")
    with real_registry(tmp_path_factory.mktemp("registry"), in_memory=True) as running:
        yield running.host


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
    env = {"COSIGN_PASSWORD": PASSWORD}
    passed(build_images("keys", "generate", "--output", folder / name, env=env))
    private = folder / f"{name}.key"
    key = private_key(str(private), env)
    return Pair(private=private, public=folder / f"{name}.pub", key=key)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_in(tmp_path_factory.mktemp("keys"), "site")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_in(tmp_path_factory.mktemp("keys"), "other")


def run(*argv: str | Path, folder: Path) -> Ended:
    """A client of others, with the keys' password."""
    need(str(argv[0]))
    path = Home.of_environment().search_path()
    env = {"PATH": path, "COSIGN_PASSWORD": PASSWORD, "HOME": str(folder)}
    return run_program(*argv, env=env, cwd=folder)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in a registry, and what is attached to it there."""

    registry: Registry
    name: str
    image: Descriptor
    folder: Path

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
        created = "2026-11-21T12:00:00Z"
        made = proofs(self.image, statements, signer, reference=self.name, created=created)
        return list(made)

    def attach(self, attachments: Sequence[ProofManifest]) -> None:
        """Push proof; this registry has no referrers, so their tag is used."""
        for attachment in attachments:
            for content in attachment.blobs.values():
                self.registry.write_blob(content)
            if attachment.tag:
                self.registry.write_manifest(attachment.manifest, MANIFEST, attachment.tag)
        self.registry.attach_all([each.manifest for each in attachments if not each.tag])

    def attached(self) -> list[ProofManifest]:
        """What is in the registry now, whoever pushed it."""
        return list(attached(self.registry, self.image.digest))

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
def image(host: str, request: pytest.FixtureRequest, tmp_path: Path) -> Image:
    """An image of its own for each test."""
    name = str(abs(hash(request.node.name)))
    registry = repository(host, name)
    written = write_image(registry, "ppc64le")
    descriptor = Descriptor(media_type=MANIFEST, digest=written["digest"], size=written["size"])
    return Image(registry=registry, name=f"{host}/site/{name}", image=descriptor, folder=tmp_path)


def of_format(found: Sequence[ProofManifest], form: str) -> list[ProofManifest]:
    return [one for one in found if bool(one.tag) == (form == CLASSIC)]


@pytest.mark.parametrize("form", [CLASSIC, BUNDLE, "both"])
def test_cosign_accepts_what_we_sign(image: Image, pair: Pair, other: Pair, form: str) -> None:
    made = image.proofs(pair.key, *PREDICATES)
    image.attach(made if form == "both" else of_format(made, form))
    passed(image.verify(pair))
    for predicate_type in PREDICATES:
        attested = passed(image.verify_attestation(pair, predicate_type))
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
    passed(image.cosign("sign", *options))
    predicate = ("--type", TEST_RESULT, "--predicate", "predicate.json")
    passed(image.cosign("attest", *options, *predicate))


@pytest.mark.parametrize("form", [CLASSIC, BUNDLE])
def test_we_accept_what_cosign_signs(image: Image, pair: Pair, other: Pair, form: str) -> None:
    cosign_signs(image, pair, form)
    verdict = image.verdict(pair)
    assert verdict.rejected == ()
    assert [one.format for one in verdict.signatures] == [form]
    [attestation] = verdict.attestations
    assert attestation.statement["predicate"] == RESULT
    refused = image.verdict(other)
    assert (refused.signatures, refused.attestations) == ((), ())
    assert len(refused.rejected) == 2


def test_ours_and_cosigns_live_side_by_side(image: Image, pair: Pair) -> None:
    cosign_signs(image, pair, CLASSIC)
    before = {one.tag: one for one in image.attached()}
    keys = {"reference": image.name, "created": ""}
    made = proofs(image.image, [image.statement()], pair.key, before=before, **keys)
    both = [merged(one, before[one.tag].manifest) for one in of_format(made, CLASSIC)]
    image.attach([one for one in both if one])
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
    assert ["by a trusted key" in rejected.reason for rejected in verdict.rejected] == [True]
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
            manifest["subject"] = image.image.as_json()
        tag = one.tag and image.referrers_tag + Path(one.tag).suffix
        moved.append(replace(one, manifest=json.dumps(manifest).encode(), tag=tag))
    image.attach(moved)
    assert image.verify(pair).status != 0
    assert image.verify_attestation(pair).status != 0
    verdict = image.verdict(pair)
    assert (verdict.signatures, verdict.attestations) == ((), ())
    reasons = [rejected.reason for rejected in verdict.rejected]
    assert reasons
    assert all("another image" in reason or " is for " in reason for reason in reasons)


def test_an_image_without_proof_is_refused_by_both(image: Image, pair: Pair) -> None:
    assert image.verify(pair).status != 0
    assert image.verdict(pair) == VerifiedProof()


def test_cosign_signs_with_a_key_that_it_alone_can_reach(image: Image, pair: Pair) -> None:
    """The way of PKCS#11 and KMS; here the key is a file, and cosign reads it."""
    need("cosign")
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
    need("cosign")
    (image.folder / "config.json").write_text(json.dumps(CONFIG))
    processes = Processes()
    processes.mark = {"COSIGN_PASSWORD": PASSWORD}
    made = keyless_attestations(
        image.image,
        [signature_statement(image.image.digest), *map(image.statement, PREDICATES)],
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
    assert "built without PKCS#11, like Debian's" in caught.value.hint


def policy_in(folder: Path, key: Pair, host: str) -> list[str | Path]:
    """Options of skopeo: only what a key signed is copied."""
    requirement = {
        "type": "sigstoreSigned",
        "keyPath": str(key.public),
        "signedIdentity": {"type": "matchRepository"},
    }
    policy = {
        "default": [{"type": "reject"}],
        "transports": {"docker": {host: [requirement]}},
    }
    (folder / "policy.json").write_text(json.dumps(policy))
    (folder / "registries.d").mkdir(exist_ok=True)
    (folder / "registries.d" / "here.yaml").write_text(
        f"docker:\n  {host}:\n    use-sigstore-attachments: true\n"
    )
    return ["--policy", folder / "policy.json", "--registries.d", folder / "registries.d"]


def test_the_policies_of_podman_and_skopeo_see_the_classic_signature(
    image: Image, host: str, pair: Pair, other: Pair
) -> None:
    image.attach(image.proofs(pair.key))
    for key, accepted in ((pair, True), (other, False)):
        options = policy_in(image.folder, key, host)
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
