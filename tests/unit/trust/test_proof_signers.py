"""Keys that only cosign reaches: one at a time at a token, and told apart when they fail."""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from proof_samples import IMAGE, OTHER, evidence

from builder.distribute.publish import proof
from builder.model.digests import Descriptor
from builder.model.errors import BadInput, Interrupted, MissingPrerequisite, StepFailed
from builder.system.home import Home
from builder.system.locks import locked
from builder.system.process import Completed, Processes
from builder.trust.proof import statements
from builder.trust.proof.attachments import (
    BUNDLE,
    DSSE,
    SIGNATURE_NOTE,
    SIMPLE_SIGNING,
    ProofManifest,
    layers_of,
)
from builder.trust.proof.attestations import bundled, classic_signature, merged
from builder.trust.proof.cosign import keyless_attestations, signer_of
from builder.trust.proof.keys import PublicKey, Signer, generate_key

TOKEN = "pkcs11:token=site;object=signing?module-path=/lib.so"
NAME = "registry.example/site/tool"
CERTIFICATE = "dev.sigstore.cosign/certificate"


class Token(Processes):
    """cosign with a key in a token, whose signatures differ each time; who comes second fails."""

    def __init__(self) -> None:
        super().__init__()
        self.key = self.public_half = ec.generate_private_key(ec.SECP256R1())
        self.open = threading.Lock()
        self.environments: list[dict[str, str]] = []
        self.commands: list[list[str]] = []
        self.files: dict[str, str] = {}
        self.answer = ""  # in the place of a bundle

    def capture(self, argv: Sequence[Any], **more: Any) -> Completed:
        if not self.open.acquire(blocking=False):
            raise StepFailed("cosign ... failed", tail=["Error: CKR_GENERAL_ERROR"])
        try:
            time.sleep(0.01)
            self.environments.append(dict(more["env"]))
            assert more["timeout_s"] == 300
            self.commands.append([str(word) for word in argv])
            return self._answer(self.commands[-1])
        finally:
            self.open.release()

    def _answer(self, words: list[str]) -> Completed:
        if words[1] == "public-key":
            pem = PublicKey(key=self.public_half.public_key(), name="").pem.decode()
            return Completed(argv=tuple(words), returncode=0, stdout=pem)
        self.files = {
            name: Path(words[-1]).with_name(name).read_text() for name in ("config", "root")
        }
        signature = self.key.sign(Path(words[-1]).read_bytes(), ec.ECDSA(hashes.SHA256()))
        content = {"messageSignature": {"signature": base64.b64encode(signature).decode()}}
        target = Path(words[words.index("--bundle") + 1])
        target.write_text(self.answer or json.dumps(content))
        return Completed(argv=tuple(words), returncode=0)


class Failing(Processes):
    """cosign that says why it cannot."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.said = message

    def capture(self, argv: Sequence[Any], **_: Any) -> Completed:
        if self.said.startswith("exit status"):
            raise StepFailed(f"cosign public-key: {self.said}")
        again = f"error during command execution: {self.said}"
        tail = f"Error: {self.said}\n{again}".splitlines()
        raise StepFailed(f"{argv} failed", tail=tail)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))


def test_a_token_is_opened_by_one_at_a_time() -> None:
    token = Token()
    signer = signer_of(TOKEN, {}, token)
    with ThreadPoolExecutor(4) as threads:
        result = list(threads.map(signer.sign, [b"%d" % number for number in range(8)]))
    assert all(signer.public.verifies(one, b"%d" % number) for number, one in enumerate(result))


def test_what_is_no_token_is_asked_by_several() -> None:
    kms = Token()
    signer = signer_of("awskms:///alias/key", {}, kms)
    with ThreadPoolExecutor(4) as threads, pytest.raises(StepFailed, match="CKR_GENERAL_ERROR"):
        list(threads.map(signer.sign, [b"data"] * 8))


def test_cosign_signs_with_keys_that_are_elsewhere() -> None:
    cosign = Token()
    signer = signer_of("awskms:///alias/key", {}, cosign)
    assert signer.public.verifies(signer.sign(b"data"), b"data")
    asked, signed = cosign.commands
    assert asked == ["cosign", "public-key", "--key", "awskms:///alias/key"]
    scratch = Path(signed[-1]).parent
    assert signed == [
        *("cosign", "sign-blob", "--key", "awskms:///alias/key"),
        *("--signing-config", f"{scratch}/config", "--trusted-root", f"{scratch}/root"),
        *("--bundle", f"{scratch}/bundle", "--yes", f"{scratch}/payload"),
    ]
    assert scratch.name.startswith("build-images-sign.")
    assert not scratch.exists()
    kinds = "application/vnd.dev.sigstore.signingconfig.v0.2+json", "trustedroot+json;version=0.1"
    assert {name: json.loads(text) for name, text in cosign.files.items()} == {
        "config": {"mediaType": kinds[0], "rekorTlogConfig": {}, "tsaConfig": {}},
        "root": {"mediaType": f"application/vnd.dev.sigstore.{kinds[1]}"},
    }


def test_what_cosign_signs_is_checked() -> None:
    cosign = Token()
    cosign.public_half = Token().key
    with pytest.raises(StepFailed, match="does not match the public key of k8s://ns/name"):
        signer_of("k8s://ns/name", {}, cosign).sign(b"data")
    signer = signer_of("k8s://ns/name", {}, cosign)
    for answer, message in (("NaN", "cosign's bundle "), ("{}", "the signature in the bundle")):
        cosign.answer = answer
        with pytest.raises(StepFailed, match=f"^cosign sign-blob: {message}"):
            signer.sign(b"data")


def test_a_certificate_in_a_token_is_not_used() -> None:
    token = Token()
    signer_of(TOKEN, {}, token, path="/bin").sign(b"data")
    expected = {"COSIGN_PKCS11_IGNORE_CERTIFICATE": "1", "PATH": "/bin"}
    assert token.environments == [expected, expected]


@pytest.mark.parametrize("name", ["pin-value", "PIN-value", "pin%2Dvalue", "%70in-value"])
def test_a_pin_in_the_uri_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="contains a PIN") as caught:
        signer_of(f"{TOKEN}&{name}=1234", {}, Token())
    assert "1234" not in str(caught.value)


def test_signing_again_adds_no_signature() -> None:
    token = Token()
    signer = signer_of(TOKEN, {}, token)
    first = classic_signature(IMAGE.digest, NAME, signer)
    assert classic_signature(IMAGE.digest, NAME, signer, existing=first).manifest == first.manifest
    elsewhere = signed_over(first, f"{NAME}-2", signer)
    assert len(layers_of(elsewhere.manifest)) == 2
    other = signed_over(elsewhere, NAME, signer_of(TOKEN, {}, Token()))
    assert len(layers_of(other.manifest)) == 3
    again = classic_signature(IMAGE.digest, NAME, signer, existing=other)
    assert merged(again, other.manifest) is None


def signed_over(existing: ProofManifest, name: str, signer: Signer) -> ProofManifest:
    """What is at the tag after one more signature."""
    signature = classic_signature(IMAGE.digest, name, signer, existing=existing)
    written = merged(signature, existing.manifest)
    assert written
    return written


def urlsafe(layer: dict[str, Any]) -> dict[str, Any]:
    signature = layer["annotations"][SIGNATURE_NOTE]
    return {SIGNATURE_NOTE: signature.replace("+", "-").replace("/", "_")}


def note(layer: Descriptor) -> str:
    return (layer.annotations or {})[SIGNATURE_NOTE]


@pytest.mark.parametrize(
    "changed",
    [
        lambda _: {"mediaType": DSSE},
        lambda layer: {"size": layer["size"] + 1},
        lambda layer: {"annotations": urlsafe(layer)},
        lambda layer: {"annotations": {**layer["annotations"], CERTIFICATE: "rubbish"}},
    ],
    ids=["type", "size", "alphabet", "note"],
)
def test_what_others_would_refuse_is_signed_anew(
    changed: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """Whoever may push could otherwise keep a signature from coming: no client takes these."""
    signer = signer_of(TOKEN, {}, Token())
    ours = classic_signature(IMAGE.digest, NAME, signer)
    while not {"+", "/"} & set(note(layers_of(ours.manifest)[0])):
        ours = classic_signature(IMAGE.digest, NAME, signer)
    manifest = json.loads(ours.manifest)
    [layer] = manifest["layers"]
    manifest["layers"] = [{**layer, **changed(layer)}]
    crafted = replace(ours, manifest=json.dumps(manifest).encode())
    signed_manifest = signed_over(crafted, NAME, signer)
    last = layers_of(signed_manifest.manifest)[-1]
    notes = {SIGNATURE_NOTE: note(last)}
    good = Descriptor(media_type=SIMPLE_SIGNING, digest=layer["digest"], size=layer["size"])
    assert last == replace(good, annotations=notes)
    signature = base64.b64decode(notes[SIGNATURE_NOTE], validate=True)
    assert signer.public.verifies(signature, signed_manifest.blobs[layer["digest"]])
    assert {one.size for one in layers_of(signed_manifest.manifest)} == {layer["size"]}


def test_ctrl_c_is_heard_behind_another_command() -> None:
    """Another command's cosign may be at the token for minutes."""
    token = Token()
    signer = signer_of(TOKEN, {}, token)
    with (
        ThreadPoolExecutor(1) as threads,
        locked(Home.of_environment().path / "tokens", "pkcs11"),
    ):
        waiting = threads.submit(signer.sign, b"data")
        time.sleep(0.2)
        assert not waiting.done()
        token.stop()
        with pytest.raises(Interrupted):
            waiting.result(timeout=2)


def test_a_reason_of_several_lines_is_kept() -> None:
    """Those of Vault and Azure."""
    message = (
        "reading the key: Error making API request.\n\nCode: 403. Errors:\n* permission denied"
    )
    with pytest.raises(StepFailed, match="request") as caught:
        signer_of("hashivault://key", {}, Failing(message))
    assert "permission denied" in str(caught.value)
    assert str(caught.value).count("Code: 403") == 1


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("opening pkcs11 token key: unimplemented", "built without PKCS#11"),
        ("failed to log into long term session: pkcs11: 0xA0: CKR_PIN_INCORRECT", "PIN is wrong"),
        ("opening pkcs11 token key: get pin: inappropriate ioctl", "put the PIN into"),
        ("opening pkcs11 token key: could not find PKCS#11 token", "list-tokens"),
        ("initializing pkcs11 token signer verifier: signer not set", "no such key"),
        ("invalid uri: module-path or COSIGN_PKCS11_MODULE_PATH must be set", "token's library"),
        ("opening pkcs11 token key: could not open PKCS#11", "token's library"),
        ("loading the PKCS11 module: no such file", "token's library"),
        ("the modulePath is empty", "token's library"),
        ("pkcs11: could not find a slot", "list-tokens"),
        ("unknown flag: --signing-config", "install cosign 3"),
        ("AccessDeniedException", ""),
        ("exit status 2", ""),
    ],
)
def test_what_cosign_says_is_told_once(message: str, hint: str) -> None:
    with pytest.raises(StepFailed) as caught:
        signer_of(TOKEN, {}, Failing(message))
    first, *rest = str(caught.value).splitlines()
    assert first == f"{TOKEN}: cosign public-key: {message}"
    assert hint in "".join(rest)
    assert len(rest) == bool(hint)


def test_the_cosign_of_the_machine_comes_before_the_builders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of set-up knows no PKCS#11."""
    theirs = tmp_path / "theirs"
    for folder in (theirs, Home.of_environment().tools):
        folder.mkdir(parents=True)
        program = folder / "cosign"
        program.write_text(f"#!/bin/sh\n[ {folder} = {theirs} ] && cat {tmp_path}/key.pub\n")
        program.chmod(0o755)
    pem = PublicKey(key=Token().key.public_key(), name="").pem
    (tmp_path / "key.pub").write_bytes(pem)
    monkeypatch.setenv("PATH", f"{theirs}{os.pathsep}{os.environ['PATH']}")
    proof.attest_with(TOKEN, Processes())
    (tmp_path / "key.pub").write_text("")
    with pytest.raises((BadInput, StepFailed), match="pkcs11"):
        proof.attest_with(TOKEN, Processes())


class FakeKeyless(Processes):
    """Answers as cosign does to `attest-blob`, with what it is told to."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes, self.command = changes, list[str]()
        self.environment: Mapping[str, str] | None = None

    def capture(self, argv: Sequence[Any], **more: Any) -> Completed:
        self.command, self.environment = [str(word) for word in argv], more["env"]
        options = dict(itertools.pairwise(self.command))
        payload = Path(options["--statement"]).read_bytes()
        envelope = statements.sealed_envelope(payload, generate_key())
        value = {**json.loads(bundled(envelope, generate_key().public)), **self.changes}
        Path(options["--bundle"]).write_text(json.dumps(value))
        return Completed(argv=tuple(self.command), returncode=0)


def test_without_a_key_cosign_signs_statements() -> None:
    cosign = FakeKeyless()
    attested = keyless_attestations(IMAGE, [evidence()], cosign, created="")
    assert [json.loads(one.manifest)["artifactType"] for one in attested] == [BUNDLE]
    scratch = Path(cosign.command[-1]).parent
    assert scratch.name.startswith("build-images-sign.")
    files = ("--statement", f"{scratch}/statement.json", "--bundle", f"{scratch}/bundle.json")
    assert cosign.command == ["cosign", "attest-blob", "--yes", *files]
    assert cosign.environment == {}
    keyless_attestations(IMAGE, [evidence()], cosign, created="", path="/bin")
    assert cosign.environment == {"PATH": "/bin"}


def test_what_cosign_signed_without_a_key_is_looked_at() -> None:
    other = statements.sealed_envelope(evidence(OTHER), generate_key()).as_json
    for changes, message in (
        ({"mediaType": "x"}, "does not contain the statement to sign"),
        ({"dsseEnvelope": other}, "does not contain the statement to sign"),
        ({"dsseEnvelope": None}, "the payload's type is None"),
        ({"n": float("nan")}, "^cosign attest-blob: cosign's bundle "),
    ):
        with pytest.raises(StepFailed, match=message):
            keyless_attestations(IMAGE, [evidence()], FakeKeyless(**changes), created="")
    with pytest.raises(BadInput, match="about another image"):
        keyless_attestations(IMAGE, [evidence(OTHER)], FakeKeyless(), created="")
    with pytest.raises(MissingPrerequisite, match="needs the cosign program"):
        keyless_attestations(IMAGE, [evidence()], Processes(), created="", path="/nowhere")
