"""Keys: read from where they are, refused with a reason, never shown."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from proof_samples import PASSWORD, VECTORS, our_key
from samples import private_file

from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.process import Processes
from builder.trust.proof import keys
from builder.trust.proof.cosign import signer_of
from builder.trust.proof.keys import as_cosign_key, generate_key, private_key, public_key

SECRET = {"COSIGN_PASSWORD": PASSWORD}
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


RSA = rsa.generate_private_key(65537, 2048)


def pem(key: Key, password: bytes = b"") -> str:
    how = serialization.BestAvailableEncryption(password) if password else None
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        how or serialization.NoEncryption(),
    ).decode()


@pytest.mark.parametrize("name", ["cosign", "ed25519"])
def test_cosigns_own_pair(name: str) -> None:
    private = private_key(str(private_file(name)), SECRET)
    public = public_key(str(VECTORS / f"{name}.pub"), {})
    assert private.public.pem == public.pem == (VECTORS / f"{name}.pub").read_bytes()
    assert public.verifies(private.sign(b"data"), b"data")
    assert not public.verifies(private.sign(b"data"), b"other data")
    text = private_file(name).read_text()  # cosign up to 2.0 wrote its own name
    old = private_key("env://KEY", {"KEY": text.replace("SIGSTORE", "COSIGN"), **SECRET})
    assert old.public.pem == public.pem


class OldKey:
    """A key of OpenSSL before 3.2, which makes no deterministic signatures."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self.key = key

    def sign(self, data: bytes, algorithm: ec.ECDSA) -> bytes:
        if algorithm.deterministic_signing:
            raise UnsupportedAlgorithm("deterministic")
        return self.key.sign(data, algorithm)


def test_an_old_openssl_signs_too() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private = keys.PrivateKey(key=key, name="site.key")
    old = keys.PrivateKey(key=OldKey(key), name="site.key")  # type: ignore[arg-type]
    signatures = {old.sign(b"data") for _ in range(2)}
    assert len(signatures) == 2
    assert private.sign(b"data") == private.sign(b"data")
    assert all(private.public.verifies(one, b"data") for one in signatures)


def test_the_fingerprint_is_that_of_openssl() -> None:
    """openssl pkey -pubin -in cosign.pub -outform DER | sha256sum"""
    result = public_key(str(VECTORS / "cosign.pub"), {})
    assert result.fingerprint == base64.b64decode(result.hint).hex()
    der = base64.b64decode("".join((VECTORS / "cosign.pub").read_text().splitlines()[1:-1]))
    assert result.fingerprint == hashlib.sha256(der).hexdigest()


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()]
)
def test_a_plain_key_from_the_environment(key: Key) -> None:
    result = private_key("env://CI_KEY", {"CI_KEY": pem(key)})
    assert result.public.verifies(result.sign(b"data"), b"data")


def test_a_cosign_key_from_the_environment() -> None:
    text = (VECTORS / "cosign.key").read_text()
    assert private_key("env://K", {**SECRET, "K": text}).public.pem == our_key().public.pem


def test_what_we_encrypt_we_read() -> None:
    key = generate_key()
    for password in ("", "secret"):
        text = as_cosign_key(key, password.encode()).decode()
        _, *lines, _ = text.splitlines()
        kdf = json.loads(base64.b64decode("".join(lines)))["kdf"]
        assert (len(base64.b64decode(kdf["salt"])), len(lines[0])) == (32, 64)
        assert text.startswith("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
        assert max(len(line) for line in text.splitlines()) == 64
        again = private_key("env://K", {"K": text, "COSIGN_PASSWORD": password})
        assert again.public.pem == key.public.pem


def test_a_key_may_take_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_MAX_MEMORY", 64 << 20)
    monkeypatch.setattr(keys, "_MAX_ROUNDS", 1)
    assert private_key(str(private_file("cosign")), SECRET).public.pem == our_key().public.pem


def test_a_key_is_never_shown() -> None:
    assert repr(our_key()) == f"PrivateKey({str(private_file('cosign'))!r})"


BODY = base64.b64decode("".join((VECTORS / "cosign.key").read_text().splitlines()[1:-1]))
CIPHERTEXT = json.loads(BODY)["ciphertext"]


def damaged(**changes: Any) -> str:
    """cosign's key with something else in its JSON."""
    content = json.loads(BODY)
    content["kdf"]["params"].update(changes.pop("params", {}))
    content.update(changes)
    text = base64.b64encode(json.dumps(content).encode()).decode()
    return f"-----BEGIN {keys._LABELS[0]}-----\n{text}\n-----END {keys._LABELS[0]}-----\n"


REFUSED = {
    "rubbish": ("rubbish", "not a private key in PEM"),
    "a public key": ((VECTORS / "cosign.pub").read_text(), "not a private key in PEM"),
    "RSA": (pem(RSA), "unsupported kind of key"),
    "another curve": (pem(ec.generate_private_key(ec.SECP384R1())), "unsupported kind of key"),
    "encrypted otherwise": (
        pem(ed25519.Ed25519PrivateKey.generate(), b"secret"),
        "encrypted, but not in cosign's format",
    ),
    "a cut one": (damaged()[:200], "not a complete cosign key"),
    "padding within it": (damaged().replace("\neyJr", "\neyJr="), "not a complete cosign key"),
    "another cipher": (damaged(cipher={"name": "none", "nonce": ""}), "not a complete cosign key"),
    "blanks in the text": (damaged(ciphertext=f" {CIPHERTEXT}"), "not a complete cosign key"),
    "no text": (damaged(ciphertext=None), "not a complete cosign key"),
    "a changed text": (damaged(ciphertext="AAAA" * 20), "cannot be decrypted with this password"),
    "a little more memory": (
        damaged(params={"N": 2, "r": (1 << 21) + 1}),
        "needs 512 MiB of memory and 1 rounds; at most 512 MiB and 16 rounds",
    ),
    "much memory": (damaged(params={"N": 1 << 24}), "needs 16384 MiB of memory"),
    "much time": (damaged(params={"p": 17}), "needs 64 MiB of memory and 17 rounds"),
    "a cost that is no power of 2": (damaged(params={"N": 65537}), "not a complete cosign key"),
    "a cost that is a text": (damaged(params={"N": "65536"}), "not a complete cosign key"),
    "a cost of 0": (damaged(params={"r": 0}), "not a complete cosign key"),
    "a cost below 0": (damaged(params={"r": -1}), "not a complete cosign key"),
    "a cost that is a truth": (damaged(params={"p": True}), "not a complete cosign key"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_private_key_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        private_key("env://CI_KEY", {**SECRET, "CI_KEY": text})
    assert "env://CI_KEY" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert text not in str(caught.value)


def test_a_wrong_password_and_none() -> None:
    name = str(private_file("cosign"))
    with pytest.raises(BadInput, match="cannot be decrypted with this password"):
        private_key(name, {"COSIGN_PASSWORD": "wrong"})
    with pytest.raises(BadInput, match="the key is encrypted, and COSIGN_PASSWORD is not set"):
        private_key(name, {})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    """ssh does the same; a public key, and what a variable holds, may be known to all."""
    file = tmp_path / "site.key"
    file.write_bytes(private_file("cosign").read_bytes())
    file.chmod(mode)
    with pytest.raises(BadInput, match=f"mode {mode:04o}") as caught:
        private_key(str(file), SECRET)
    assert f"chmod 600 {file}" in caught.value.hint
    assert "env://NAME" in caught.value.hint
    for good in (0o600, 0o400):
        file.chmod(good)
        assert private_key(str(file), SECRET)


@pytest.mark.parametrize("reference", ["{}", "env://{}"])
def test_a_keys_text_as_its_name_is_not_shown(reference: str) -> None:
    """`--key "$(cat site.key)"`"""
    text = pem(our_key().key)
    for named in (text, " ".join(text.splitlines()), text.splitlines()[1] + "\n"):
        for read in (
            lambda name: signer_of(name, {}, Processes()),
            lambda name: public_key(name, {}),
        ):
            with pytest.raises(BadInput, match="the text of a key") as caught:
                read(reference.format(named))
            assert text.splitlines()[1] not in str(caught.value)


def test_a_key_out_of_a_pipe_has_no_mode() -> None:
    """`--key <(pass show site)`"""
    reading, writing = os.pipe()
    os.write(writing, private_file("cosign").read_bytes())
    os.close(writing)
    try:
        assert private_key(f"/proc/self/fd/{reading}", SECRET)
    finally:
        os.close(reading)


def public_pem(key: Key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


PUBLIC = {
    "another curve": (
        public_pem(ec.generate_private_key(ec.SECP384R1())),
        "unsupported kind of key",
    ),
    "RSA": (public_pem(RSA), "unsupported kind of key"),
    "rubbish": (b"rubbish", "not a public key in PEM"),
    "a private key": ((VECTORS / "cosign.key").read_bytes(), "a private key; name the public key"),
}


@pytest.mark.parametrize(("data", "message"), PUBLIC.values(), ids=PUBLIC)
def test_a_public_key_that_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(BadInput, match=message):
        public_key(str(tmp_path / "key"), {})


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"the key cannot be read \(No such file"):
        private_key(str(tmp_path / "none"), {})
    with pytest.raises(BadInput, match="the environment variable NONE is not set, or empty"):
        private_key("env://NONE", {"NONE": ""})
    plain = pem(ed25519.Ed25519PrivateKey.generate()).ljust(64 << 10, "\n")
    (tmp_path / "large").write_text(plain)
    (tmp_path / "large").chmod(0o600)
    assert private_key(str(tmp_path / "large"), {})
    (tmp_path / "large").write_text(f"{plain}\n")
    with pytest.raises(BadInput, match="too large for a key"):
        private_key(str(tmp_path / "large"), {})


def test_a_local_key_needs_no_program() -> None:
    result = signer_of(str(private_file("cosign")), SECRET, Processes(), path="/nowhere")
    assert result.public.pem == our_key().public.pem


@pytest.mark.parametrize("uri", ["pkcs11:token=site;object=key", "awskms:///alias/key"])
def test_other_keys_are_cosigns(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingPrerequisite, match="only the cosign program can reach this key"):
        signer_of(uri, {}, Processes(), path="/nowhere")
