"""Signatures by certificates, against Sigstore's own conformance suite: real ones, and forged."""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from samples import ROOT

from builder.model.errors import BadInput
from builder.trust.proof import (
    TrustedIdentity,
    attachments,
    chains,
    manifests,
    statements,
    verified,
)
from builder.trust.proof.attachments import Descriptor, Unusable, Verdict
from builder.trust.proof.attestations import bundle as attached
from builder.trust.proof.certified import Allowance, Signer, certified
from builder.trust.proof.roots import Roots, roots_of

SUITE: dict[str, Any] = json.loads(
    lzma.decompress((ROOT / "tests/data/sigstore/conformance.json.xz").read_bytes())
)
BEACON = "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon"
SUBJECT = f"{BEACON}/.github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
ISSUER = "https://token.actions.githubusercontent.com"
IN_TOTO = "happy-path-intoto-in-dsse-v3"
NOW = dt.datetime(2026, 11, 23, tzinfo=dt.timezone.utc)


@cache
def roots(name: str = "production") -> Roots:
    return roots_of(SUITE["roots"][name].encode(), name=name)


def judged(
    bundle: dict[str, Any], artifact: str, trusted: Roots, allowance: Allowance | None = None
) -> Signer:
    """Who signed what a bundle holds, or the artifact that is beside it."""
    if "dsseEnvelope" not in bundle:
        signature = attachments.base64_bytes(
            bundle["messageSignature"]["signature"], "the signature"
        )
        return certified(bundle, artifact.encode(), signature, trusted)
    envelope = statements.envelope_of(bundle["dsseEnvelope"])
    [signature] = envelope.signatures
    return certified(
        bundle, envelope.signed, signature, trusted, payload=envelope.payload, allowance=allowance
    )


def outcome(name: str) -> Signer:
    case = SUITE["cases"][name]
    bundle = attachments.json_object(
        case["bundle"].encode(), "the bundle", limit=attachments.MAX_PAYLOAD
    )
    if bundle.get("mediaType") not in manifests.BUNDLES:
        raise Unusable(attachments.WRONG_TYPE, "not a bundle")
    found = judged(
        bundle,
        case.get("artifact", SUITE["artifact"]),
        roots(case.get("roots", "production")),
    )
    assert found.subject == case.get("identity", SUBJECT)
    assert found.issuer == case.get("issuer", ISSUER)
    return found


@pytest.mark.parametrize("name", [one for one in SUITE["cases"] if not one.endswith("_fail")])
def test_what_sigstore_accepts_is_accepted(name: str) -> None:
    assert dt.datetime(2022, 1, 1, tzinfo=dt.timezone.utc) < outcome(name).time < NOW


@pytest.mark.parametrize("name", [one for one in SUITE["cases"] if one.endswith("_fail")])
def test_what_sigstore_refuses_is_refused(name: str) -> None:
    with pytest.raises((Unusable, BadInput)):
        outcome(name)


def test_the_suite_is_whole() -> None:
    assert len(SUITE["cases"]) == 65
    assert sum(one.endswith("_fail") for one in SUITE["cases"]) == 46


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts in a document."""
    if isinstance(value, str):
        yield path
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, dict | list):
        for key, one in pairs:
            yield from places(one, (*path, key))


def changed(text: str, chance: random.Random) -> Any:
    """Something else in its place: a bit of what is in Base64, or rubbish."""
    try:
        data = bytearray(base64.b64decode(text, validate=True))
    except ValueError:
        data = bytearray()
    if data and chance.random() < 0.7:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return base64.b64encode(data).decode()
    rubbish: tuple[Any, ...] = (
        None,
        "",
        7,
        [],
        {},
        "\u0661",
        "9" * 5000,
        text[: len(text) // 2],
        text + "A",
        True,
    )
    return chance.choice(rubbish)


# What a bundle says beside what is proven: where an entry is in all of a log's trees, and, where no
# promise of the log covers it, its time. Behind a checkpoint there may be anybody's signatures, and
# in a time stamp certificates, which are not looked at.
UNPROVEN = {"logIndex", "integratedTime", "keyid", "mediaType", "checkpoint", "signedTimestamp"}


@pytest.mark.parametrize(
    "name", [IN_TOTO, "rekor2-dsse-happy-path", "intoto-with-custom-trust-root"]
)
def test_whatever_is_changed_in_a_bundle_is_refused_in_words(name: str) -> None:
    case = SUITE["cases"][name]
    bundle, chance = json.loads(case["bundle"]), random.Random(name)
    trusted = roots(case.get("roots", "production"))
    sound, paths = judged(bundle, "", trusted), list(places(bundle))
    for number in range(250):
        path = paths[number % len(paths)]
        spoilt = copy.deepcopy(bundle)
        holder = spoilt
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = changed(holder[path[-1]], chance)
        if spoilt == bundle:
            continue
        try:
            found = judged(spoilt, "", trusted)
        except Unusable:
            continue
        assert set(path) & UNPROVEN, (path, holder[path[-1]])
        assert found == sound


@pytest.mark.parametrize("part", ["certifiers", "stampers", "logs", "certificate_logs"])
def test_everybody_in_the_roots_is_needed(part: str) -> None:
    """Without logs in the roots nobody is asked to be in one; a time must still be vouched for."""
    whole, other = roots(SUITE["cases"]["rekor2-dsse-happy-path"]["roots"]), roots()
    bundle = json.loads(SUITE["cases"]["rekor2-dsse-happy-path"]["bundle"])
    assert judged(bundle, "", whole).subject == SUBJECT
    with pytest.raises(Unusable):
        judged(bundle, "", replace(whole, **{part: getattr(other, part)}))


def statement_digest() -> str:
    payload = json.loads(SUITE["cases"][IN_TOTO]["bundle"])["dsseEnvelope"]["payload"]
    [subject] = json.loads(base64.b64decode(payload))["subject"]
    return f"sha256:{subject['digest']['sha256']}"


def verdict(*trusted: TrustedIdentity) -> Verdict:
    image = Descriptor(media_type=attachments.MANIFEST, digest=statement_digest(), size=1)
    content = SUITE["cases"][IN_TOTO]["bundle"].encode()
    one = attached(image, content, "https://slsa.dev/provenance/v1", created="")
    return verified(image.digest, [one], trusted, now=NOW)


def identity(name: str = SUBJECT, issuer: str = ISSUER, **more: Any) -> TrustedIdentity:
    return TrustedIdentity(glob=name, issuer=issuer, **{"roots": roots(), **more})


def test_an_identity_vouches_for_what_it_signed() -> None:
    found = verdict(identity())
    [one] = found.attestations
    assert (one.keys, one.format) == ((f"{SUBJECT} ({ISSUER})",), "bundle")
    assert found.rejected == ()
    [one] = verdict(identity("https://github.com/other/*"), identity(f"{BEACON}/*")).attestations
    assert one.keys == (f"{BEACON}/* ({ISSUER})",)


@pytest.mark.parametrize(
    ("trusted", "kind", "words"),
    [
        ([], attachments.KEYLESS, "no identity is trusted, only keys"),
        ([identity("https://github.com/other/*")], attachments.WRONG_KEY, f"signed by '{BEACON}"),
        ([identity(issuer="https://other.example")], attachments.WRONG_KEY, "knows: not trusted"),
        (
            [identity(until=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))],
            attachments.EXPIRED_KEY,
            "until 2026-01-01",
        ),
        (
            [identity(roots=roots(SUITE["cases"]["intoto-with-custom-trust-root"]["roots"]))],
            attachments.WRONG_KEY,
            "of no authority that the roots name",
        ),
    ],
)
def test_who_is_not_trusted_vouches_for_nothing(
    trusted: list[TrustedIdentity], kind: str, words: str
) -> None:
    found = verdict(*trusted)
    [one] = found.rejected
    assert (one.kind, found.attestations, found.signatures) == (kind, (), ())
    assert words in one.reason


def test_of_strangers_nothing_more_is_read() -> None:
    """Everybody can have a certificate, and attach to an image what takes long to read."""
    bundle = json.loads(SUITE["cases"]["rekor2-dsse-happy-path"]["bundle"])
    bundle["verificationMaterial"]["timestampVerificationData"] = {"rfc3161Timestamps": [7] * 9}
    trusted = roots(SUITE["cases"]["rekor2-dsse-happy-path"]["roots"])
    with pytest.raises(Unusable, match="more than 4"):
        judged(bundle, "", trusted)
    with pytest.raises(Unusable, match="not trusted"):
        certified(bundle, b"", b"", trusted, wanted=lambda *_: False)


@pytest.mark.parametrize("length", [1, 127, 128, 255])
def test_the_issuer_s_name_may_be_long(length: int) -> None:
    head = bytes([0x0C, length]) if length < 128 else bytes([0x0C, 0x81, length])
    assert chains._utf8(head + b"a" * length) == b"a" * length
    for spoilt in (head + b"a" * (length - 1), head + b"a" * (length + 1), b"\x13" + head[1:]):
        with pytest.raises(Unusable):
            chains._utf8(spoilt)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mediaType": "application/json"}, "not a trusted_root.json of Sigstore"),
        ({"certificateAuthorities": []}, "names no certificate authority"),
        ({"tlogs": [], "timestampAuthorities": []}, "neither a log nor a time-stamping"),
        ({"tlogs": {}}, "tlogs is no list"),
        ({"tlogs": [7]}, "can be read: "),
        ({"ctlogs": [{"publicKey": {"rawBytes": "AAAA"}}]}, "can be read: "),
        ({"certificateAuthorities": [{"certChain": {"certificates": []}}]}, "without certificates"),
    ],
)
def test_roots_that_are_none_are_named(change: dict[str, Any], words: str) -> None:
    made = {**json.loads(SUITE["roots"]["production"]), **change}
    with pytest.raises(BadInput, match=r"^roots\.json: ") as raised:
        roots_of(json.dumps(made).encode(), name="roots.json")
    assert words in str(raised.value)
