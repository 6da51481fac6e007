"""Entries of a log: each kind is believed where every part of it is about just this signature."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import operator
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from made_certificates import Authority, Log, new_key, text

from builder.trust.proof.attachments import MALFORMED, TOO_LARGE, WRONG_KEY, Unusable
from builder.trust.proof.logged import MAX_BODY, Signed, logged
from builder.trust.proof.roots import Log as TrustedLog

AUTHORITY, LOG = Authority(), Log()
CERTIFICATE = AUTHORITY.leaf(new_key())
OTHER = AUTHORITY.leaf(new_key())
PAYLOAD, DATA, SIGNATURE = b'{"a": 1}', b"DSSEv1 what was signed", b"a signature"
SIGNED = Signed(
    data=DATA,
    signature=SIGNATURE,
    certificate=CERTIFICATE,
    hashed=hashes.SHA256(),
    payload=PAYLOAD,
)
PEM = text(CERTIFICATE.public_bytes(serialization.Encoding.PEM))
DER = text(CERTIFICATE.public_bytes(serialization.Encoding.DER))
OTHER_PEM = text(OTHER.public_bytes(serialization.Encoding.PEM))
OTHER_DER = text(OTHER.public_bytes(serialization.Encoding.DER))
TWICE = text(base64.b64encode(SIGNATURE))
SIGNED_2 = {
    "content": text(SIGNATURE),
    "verifier": {"x509Certificate": {"rawBytes": DER}},
}
SPECS: dict[str, dict[str, Any]] = {
    "hashedrekord/0.0.1": {
        "data": {"hash": {"algorithm": "sha256", "value": hashlib.sha256(DATA).hexdigest()}},
        "signature": {"content": text(SIGNATURE), "publicKey": {"content": PEM}},
    },
    "hashedrekord/0.0.2": {
        "hashedRekordV002": {
            "data": {"algorithm": "SHA2_256", "digest": text(hashlib.sha256(DATA).digest())},
            "signature": SIGNED_2,
        }
    },
    "dsse/0.0.1": {
        "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(PAYLOAD).hexdigest()},
        "signatures": [{"signature": text(SIGNATURE), "verifier": PEM}],
    },
    "dsse/0.0.2": {
        "dsseV002": {
            "payloadHash": {
                "algorithm": "SHA2_256",
                "digest": text(hashlib.sha256(PAYLOAD).digest()),
            },
            "signatures": [SIGNED_2],
        }
    },
    "intoto/0.0.2": {
        "content": {
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(PAYLOAD).hexdigest()},
            "envelope": {"signatures": [{"sig": TWICE, "publicKey": PEM}]},
        }
    },
}


def trusted() -> tuple[TrustedLog, ...]:
    return AUTHORITY.roots(LOG).logs


def entry_of(kind: str, spec: Any) -> dict[str, Any]:
    name, _, version = kind.partition("/")
    return LOG.entry({"kind": name, "apiVersion": version, "spec": spec})


def is_believed(kind: str, spec: Any, signed: Signed = SIGNED) -> bool:
    try:
        return logged(entry_of(kind, spec), signed, trusted()) is not None
    except Unusable:
        return False


def leaves(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        if isinstance(one, (dict, list)):
            yield from leaves(one, (*above, key))
        else:
            yield (*above, key)


def changed(spec: Any, path: tuple[Any, ...], new: Any) -> Any:
    made = copy.deepcopy(spec)
    node = made
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = new
    return made


PATHS = [(kind, path) for kind, spec in SPECS.items() for path in leaves(spec)]


@pytest.mark.parametrize("kind", SPECS)
def test_an_entry_about_a_signature_is_believed(kind: str) -> None:
    found = logged(entry_of(kind, SPECS[kind]), SIGNED, trusted())
    assert found is not None
    assert found.time is not None
    assert found.is_believed(found.time)


@pytest.mark.parametrize(("kind", "path"), PATHS, ids=str)
def test_every_part_of_an_entry_counts(kind: str, path: tuple[Any, ...]) -> None:
    spec = SPECS[kind]
    others: list[Any] = ["", "sha512", text(b"another"), "00" * 32, OTHER_PEM, OTHER_DER]
    for new in [*others, None, 7, []]:
        assert not is_believed(kind, changed(spec, path, new)), new


@pytest.mark.parametrize("kind", [kind for kind in SPECS if "hashed" not in kind])
def test_an_envelope_has_one_signature_and_a_payload(kind: str) -> None:
    spec = SPECS[kind]
    above = {"dsse/0.0.1": (), "dsse/0.0.2": ("dsseV002",), "intoto/0.0.2": ("content", "envelope")}
    path = (*above[kind], "signatures")
    [signature] = functools.reduce(operator.getitem, path, spec)
    assert not is_believed(kind, changed(spec, path, [signature, signature]))
    assert not is_believed(kind, changed(spec, path, []))
    assert not is_believed(kind, changed(spec, path, {"0": signature}))
    without = Signed(
        data=DATA, signature=SIGNATURE, certificate=CERTIFICATE, hashed=hashes.SHA256()
    )
    assert not is_believed(kind, spec, without)


@pytest.mark.parametrize(
    ("hashed", "name", "name_2"),
    [
        (hashes.SHA256(), "sha256", "SHA2_256"),
        (hashes.SHA384(), "sha384", "SHA2_384"),
        (hashes.SHA512(), "sha512", "SHA2_512"),
    ],
)
def test_the_hash_is_that_of_the_signature(
    hashed: hashes.HashAlgorithm, name: str, name_2: str
) -> None:
    digest = hashlib.new(name, DATA)
    signed = Signed(data=DATA, signature=SIGNATURE, certificate=CERTIFICATE, hashed=hashed)
    first = changed(SPECS["hashedrekord/0.0.1"], ("data", "hash", "algorithm"), name)
    first = changed(first, ("data", "hash", "value"), digest.hexdigest())
    assert is_believed("hashedrekord/0.0.1", first, signed)
    above = ("hashedRekordV002", "data")
    second = changed(SPECS["hashedrekord/0.0.2"], (*above, "algorithm"), name_2)
    second = changed(second, (*above, "digest"), text(digest.digest()))
    assert is_believed("hashedrekord/0.0.2", second, signed)
    if name != "sha256":
        assert not is_believed("hashedrekord/0.0.1", first)
        assert not is_believed("hashedrekord/0.0.2", second)


def refusal(entry: Any) -> tuple[str, str]:
    with pytest.raises(Unusable) as raised:
        logged(entry, SIGNED, trusted())
    return raised.value.kind, str(raised.value.args[-1])


def test_why_an_entry_is_not_believed() -> None:
    kind = "hashedrekord/0.0.1"
    good = entry_of(kind, SPECS[kind])
    other = changed(SPECS[kind], ("signature", "content"), text(b"another"))
    assert refusal(7)[0] == MALFORMED
    assert refusal(entry_of(kind, other)) == (
        WRONG_KEY,
        "the log's entry is about another signature",
    )
    assert refusal(entry_of("rpm/0.0.1", {})) == (
        MALFORMED,
        "a log's entry of the kind 'rpm/0.0.1', unknown here",
    )
    assert refusal({**good, "kindVersion": {"kind": "dsse", "version": "0.0.1"}}) == (
        MALFORMED,
        "a log's entry of another kind than it says",
    )
    assert refusal({**good, "canonicalizedBody": "A" * (MAX_BODY + 1)})[0] == TOO_LARGE
    assert refusal({**good, "integratedTime": "1"}) == (
        WRONG_KEY,
        "the log did not promise this entry for its time",
    )
    assert logged({**good, "logId": {"keyId": text(b"x" * 32)}}, SIGNED, trusted()) is None
    without = {key: value for key, value in good.items() if key != "inclusionPromise"}
    found = logged(without, SIGNED, trusted())
    assert found is not None
    assert found.time is None
