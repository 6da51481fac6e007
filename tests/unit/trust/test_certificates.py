"""Signatures by certificates, against Sigstore's own conformance suite: real ones, and forged."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import importlib
import json
import logging
import lzma
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from proof_samples import EXPIRED_KEY, KEYLESS, WRONG_KEY, kind_of, places, replaced
from samples import ROOT

pytest.importorskip("sigstore.verify", reason="missing on this machine: the extra [keyless]")

from sigstore.verify import Verifier

import builder.trust.proof
from builder.model.digests import Descriptor
from builder.model.errors import BadInput
from builder.model.exact_json import member
from builder.trust.proof import certificates
from builder.trust.proof.attachments import BUNDLES, MANIFEST, Unusable, VerifiedProof, json_object
from builder.trust.proof.attestations import bundle as attached
from builder.trust.proof.certificates import CertifiedBundle
from builder.trust.proof.statements import IN_TOTO as PAYLOAD_TYPE
from builder.trust.proof.statements import Envelope, envelope_of
from builder.trust.proof.verification import TrustedIdentity, read_trusted_root, verified

SUITE: dict[str, Any] = json.loads(
    lzma.decompress((ROOT / "tests/data/sigstore/conformance.json.xz").read_bytes())
)
BEACON = "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon"
SUBJECT = f"{BEACON}/.github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
ISSUER = "https://token.actions.githubusercontent.com"
IN_TOTO, REKOR_2 = "happy-path-intoto-in-dsse-v3", "rekor2-dsse-happy-path"
# cosign 2 logged attestations as `intoto` entries, which sigstore has never read.
UNREAD = ["intoto-with-custom-trust-root"]
NOW = dt.datetime(2026, 11, 23, tzinfo=dt.timezone.utc)


def roots_of(name: str) -> dict[str, Any]:
    case = SUITE["cases"][name]
    roots: dict[str, Any] = json.loads(SUITE["roots"][case.get("roots", "production")])
    return roots


def bundle_of(name: str) -> dict[str, Any]:
    content = SUITE["cases"][name]["bundle"].encode()
    return json_object(content, "the bundle", limit=1 << 20)


def judged(bundle: dict[str, Any], roots: dict[str, Any]) -> tuple[str, str, dt.datetime]:
    certified = CertifiedBundle(bundle)
    time = certified.verify(envelope_of(bundle["dsseEnvelope"]), roots)
    return certified.subject, certified.issuer, time


def outcome(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, dt.datetime]:
    case, bundle = SUITE["cases"][name], bundle_of(name)
    if bundle.get("mediaType") not in BUNDLES:
        raise Unusable("not a bundle")
    if "dsseEnvelope" in bundle:
        return judged(bundle, roots_of(name))
    # Images have no signatures of bare files: those of the suite show how all the rest is judged.
    artifact = case.get("artifact", SUITE["artifact"]).encode()
    envelope = Envelope(payload=artifact, signatures=(b"",))

    def of_a_file(verifier: Verifier, *words: Any) -> tuple[str, bytes]:
        verifier.verify_artifact(artifact, *words)
        return PAYLOAD_TYPE, artifact

    monkeypatch.setattr(Verifier, "verify_dsse", of_a_file)
    certified = CertifiedBundle(bundle)
    return certified.subject, certified.issuer, certified.verify(envelope, roots_of(name))


@pytest.mark.parametrize("name", [name for name in SUITE["cases"] if not name.endswith("_fail")])
def test_what_sigstore_accepts_is_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in UNREAD:
        with pytest.raises(Unusable, match="only supported for dsse/hashedrekord"):
            outcome(name, monkeypatch)
        return
    subject, issuer, time = outcome(name, monkeypatch)
    case = SUITE["cases"][name]
    assert (subject, issuer) == (case.get("identity", SUBJECT), case.get("issuer", ISSUER))
    assert dt.datetime(2022, 1, 1, tzinfo=dt.timezone.utc) < time < NOW


@pytest.mark.parametrize("name", [name for name in SUITE["cases"] if name.endswith("_fail")])
def test_what_sigstore_refuses_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unusable):
        outcome(name, monkeypatch)


def test_the_suite_is_whole() -> None:
    assert len(SUITE["cases"]) == 65
    assert sum(name.endswith("_fail") for name in SUITE["cases"]) == 46


def text_paths(value: Any) -> list[tuple[Any, ...]]:
    """The paths of all texts in a document."""
    return [path for path in places(value) if isinstance(member(value, *path), str)]


def changed(text: str, chance: random.Random) -> Any:
    """Something else in its place: a bit of what is in Base64, or rubbish."""
    try:
        data = bytearray(base64.b64decode(text, validate=True))
    except ValueError:
        data = bytearray()
    if data and chance.random() < 0.7:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return base64.b64encode(data).decode()
    rubbish: tuple[Any, ...] = (None, "", 7, [], {}, "\u0661", "9" * 5000, text[: len(text) // 2])
    return chance.choice((*rubbish, True))


# What a bundle says beside what is proven: where an entry is in all of a log's trees, and, where no
# promise of the log covers it, its time. Behind a checkpoint there may be anybody's signatures, and
# in a time stamp certificates, which are not looked at.
UNPROVEN = {"logIndex", "integratedTime", "keyid", "mediaType", "checkpoint", "signedTimestamp"}


@pytest.mark.parametrize("name", [IN_TOTO, REKOR_2])
def test_whatever_is_changed_in_a_bundle_is_refused_in_words(name: str) -> None:
    bundle, roots, chance = bundle_of(name), roots_of(name), random.Random(name)
    sound, paths = judged(bundle, roots), text_paths(bundle)
    for number in range(250):
        path = paths[number % len(paths)]
        text = changed(member(bundle, *path), chance)
        spoilt = replaced(bundle, path, text)
        if spoilt == bundle:
            continue
        try:
            signer = judged(spoilt, roots)
        except Unusable:
            continue
        assert set(path) & UNPROVEN, (path, text)
        assert signer == sound


@pytest.mark.parametrize(
    "part", ["certificateAuthorities", "timestampAuthorities", "tlogs", "ctlogs"]
)
def test_everybody_in_the_roots_is_needed(part: str) -> None:
    bundle, roots, other = bundle_of(REKOR_2), roots_of(REKOR_2), roots_of(IN_TOTO)
    assert judged(bundle, roots)[0] == SUBJECT
    with pytest.raises(Unusable):
        judged(bundle, {**roots, part: other[part]})


def end_trust(entries: list[dict[str, Any]]) -> None:
    period = {"start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z"}
    for entry in entries:
        entry.get("publicKey", entry)["validFor"] = period


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            "certificateAuthorities",
            "not from an authority that the trusted root names for that time",
        ),
        ("timestampAuthorities", "no Timestamp Authorities"),
        ("tlogs", "signature is not in a log that the trusted root names for that time"),
        ("ctlogs", "certificate is not in a log that the trusted root names for that time"),
    ],
)
def test_whom_the_roots_trusted_before_is_trusted_no_more(part: str, words: str) -> None:
    bundle, roots = bundle_of(REKOR_2), roots_of(REKOR_2)
    end_trust(roots[part])
    with pytest.raises(Unusable, match=words):
        judged(bundle, roots)


@functools.cache
def recorded() -> str:
    return (ROOT / "tests/data/sigstore/private.json").read_text()


def private() -> tuple[dict[str, Any], dict[str, Any]]:
    """A bundle of a private instance without a log of signatures, and its roots."""
    value = json.loads(recorded())
    return value["bundle"], value["roots"]


def test_time_stamps_are_enough_where_the_roots_name_no_log() -> None:
    bundle, roots = private()
    subject = "https://git.site.example/images/.ci/build.yml@refs/heads/main"
    assert judged(bundle, roots)[:2] == (subject, "https://git.site.example")
    assert judged(bundle, {**roots, "ctlogs": []})[0] == subject
    del roots["tlogs"]
    assert judged(bundle, roots)[0] == subject


@pytest.mark.parametrize("part", ["certificateAuthorities", "timestampAuthorities", "ctlogs"])
def test_a_private_instance_is_held_to_its_roots(part: str) -> None:
    bundle, roots = private()
    with pytest.raises(Unusable):
        judged(bundle, {**roots, part: roots_of(REKOR_2)[part]})
    end_trust(roots[part])
    with pytest.raises(Unusable):
        judged(bundle, roots)


def with_another_payload(bundle: dict[str, Any], _: Any) -> None:
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(b"{}").decode()


def with_another_signature(bundle: dict[str, Any], _: Any) -> None:
    bundle["dsseEnvelope"]["signatures"] = bundle_of(REKOR_2)["dsseEnvelope"]["signatures"]


def with_another_stamp(bundle: dict[str, Any], _: Any) -> None:
    key = "timestampVerificationData"
    bundle["verificationMaterial"][key] = bundle_of(REKOR_2)["verificationMaterial"][key]


def without_a_stamp(bundle: dict[str, Any], _: Any) -> None:
    del bundle["verificationMaterial"]["timestampVerificationData"]


def with_a_log(_: Any, roots: dict[str, Any]) -> None:
    roots["tlogs"] = roots_of(REKOR_2)["tlogs"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_another_payload, "does not match the key in the certificate"),
        (with_another_signature, "not enough sources of verified time"),
        (with_another_stamp, "not enough sources of verified time"),
        (without_a_stamp, "no log or authority of the trusted root confirms"),
        (with_a_log, "not in a log that the trusted root names"),
    ],
)
def test_what_is_not_stamped_and_signed_is_refused(
    change: Callable[[Any, Any], None], words: str
) -> None:
    bundle, roots = private()
    change(bundle, roots)
    with pytest.raises(Unusable, match=words):
        judged(bundle, roots)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"certificate": {"rawBytes": 7}}, "malformed at verificationMaterial.certificate.rawByt"),
        ({"certificate": {"rawBytes": "AAAA"}}, "the bundle is malformed$"),
        ({"tlogEntries": 7}, "the bundle is malformed$"),
        ({"tlogEntries": [{"inclusionProof": {}}]}, "malformed at verificationMaterial.tlogEntr"),
    ],
)
def test_a_malformed_bundle_is_refused_in_one_plain_sentence(
    change: dict[str, Any], words: str
) -> None:
    bundle = bundle_of(IN_TOTO)
    bundle["verificationMaterial"] |= change
    with pytest.raises(Unusable, match=words) as raised:
        CertifiedBundle(bundle)
    assert "validation error" not in str(raised.value)


def verdict(*trusted: TrustedIdentity) -> VerifiedProof:
    payload = json.loads(base64.b64decode(bundle_of(IN_TOTO)["dsseEnvelope"]["payload"]))
    digest = f"sha256:{payload['subject'][0]['digest']['sha256']}"
    image = Descriptor(media_type=MANIFEST, digest=digest, size=1)
    content = SUITE["cases"][IN_TOTO]["bundle"].encode()
    manifest = attached(image, content, "https://slsa.dev/provenance/v1", created="")
    return verified(digest, [manifest], trusted, now=NOW)


def identity(name: str = SUBJECT, issuer: str = ISSUER, **more: Any) -> TrustedIdentity:
    return TrustedIdentity(glob=name, issuer=issuer, **{"trusted_root": roots_of(IN_TOTO), **more})


def test_an_identity_vouches_for_what_it_signed() -> None:
    judgement = verdict(identity())
    [attestation] = judgement.attestations
    assert (attestation.keys, attestation.format) == ((f"{SUBJECT} ({ISSUER})",), "bundle")
    assert judgement.rejected == ()
    others = [identity("https://github.com/other/*"), identity(f"{BEACON}/*")]
    [attestation] = verdict(*others).attestations
    assert attestation.keys == (f"{BEACON}/* ({ISSUER})",)


@pytest.mark.parametrize(
    ("trusted", "kind", "words"),
    [
        ([], KEYLESS, "only keys are trusted"),
        ([identity("https://github.com/other/*")], WRONG_KEY, f"signed by {BEACON}"),
        ([identity(issuer="https://other.example")], WRONG_KEY, "who is not trusted"),
        (
            [identity(until=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))],
            EXPIRED_KEY,
            "until 2026-01-01",
        ),
        (
            [identity(trusted_root=roots_of("intoto-with-custom-trust-root"))],
            WRONG_KEY,
            "not in a log that the trusted root names",
        ),
    ],
)
def test_who_is_not_trusted_vouches_for_nothing(
    trusted: list[TrustedIdentity], kind: str, words: str
) -> None:
    judgement = verdict(*trusted)
    [rejection] = judgement.rejected
    assert (kind_of(rejection.reason), judgement.attestations, judgement.signatures) == (
        kind,
        (),
        (),
    )
    assert words in rejection.reason


def test_without_the_extra_only_keys_vouch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "builder.trust.proof.certificates")
    monkeypatch.setitem(sys.modules, "sigstore.verify", None)
    (file := tmp_path / "roots.json").write_text(json.dumps(roots_of(IN_TOTO)))
    [rejection] = verdict(identity(trusted_root=read_trusted_root(file))).rejected
    assert kind_of(rejection.reason) == KEYLESS
    assert "need the extra [keyless] or cosign" in rejection.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mediaType": "application/json"}, "not a trusted_root.json of Sigstore"),
        ({"certificateAuthorities": []}, "names no certificate authority"),
        ({"tlogs": [], "timestampAuthorities": []}, "neither a log nor a time-stamping"),
        ({"tlogs": {"a": 1}}, "cannot be read: "),
        ({"tlogs": [7]}, "cannot be read: "),
        ({"ctlogs": [{"publicKey": {"rawBytes": "AAAA"}}]}, "cannot be read: "),
        ({"certificateAuthorities": [{"certChain": {"certificates": []}}]}, "cannot be read: "),
    ],
)
def test_roots_that_are_none_are_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "roots.json"
    file.write_text(json.dumps({**roots_of(IN_TOTO), **change}))
    with pytest.raises(BadInput, match=r"roots\.json: ") as raised:
        read_trusted_root(file)
    assert words in str(raised.value)


def test_roots_that_cannot_be_read_are_bad_input(tmp_path: Path) -> None:
    roots, file = roots_of(IN_TOTO), tmp_path / "roots.json"
    certificate = roots["certificateAuthorities"][0]["certChain"]["certificates"][0]
    raw, version = base64.b64decode(certificate["rawBytes"]), b"\xa0\x03\x02\x01"
    raw = raw.replace(version + b"\2", version + b"\4", 1)
    certificate["rawBytes"] = base64.b64encode(raw).decode()
    file.write_text(json.dumps(roots))
    with pytest.raises(BadInput, match="cannot be read: "):
        read_trusted_root(file)
    for name in ("a\0b", "absent"):
        with pytest.raises(BadInput):
            read_trusted_root(tmp_path / name)


@pytest.mark.parametrize(
    ("case", "left_out"), [(IN_TOTO, "timestampAuthorities"), (REKOR_2, "tlogs")]
)
def test_roots_name_logs_or_authorities_of_time(case: str, left_out: str, tmp_path: Path) -> None:
    roots, file = {**roots_of(case), left_out: []}, tmp_path / "roots.json"
    file.write_text(json.dumps(roots))
    assert read_trusted_root(file) == roots


def test_roots_may_leave_out_what_cosign_leaves_out(tmp_path: Path) -> None:
    """`cosign trusted-root create` names no organization, and no logs where there are none."""
    roots, file = roots_of(REKOR_2), tmp_path / "roots.json"
    for authority in (*roots["certificateAuthorities"], *roots["timestampAuthorities"]):
        authority["subject"] = {"commonName": "a"}
    assert judged(bundle_of(REKOR_2), roots)[0] == SUBJECT
    del roots["tlogs"], roots["ctlogs"]
    file.write_text(json.dumps(roots))
    assert read_trusted_root(file) == roots


def test_what_sigstore_warns_of_is_not_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints a warning, and a message of a logger without a handler, to standard error."""
    logger, name = logging.getLogger("sigstore"), CertifiedBundle.__module__
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builder.trust.proof, "certificates", certificates)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        importlib.import_module(name)
        for module in ("builder.trust.proof.verification", "sigstore.verify", "rfc3161_client.x"):
            warnings.warn_explicit("odd", UserWarning, "x.py", 1, module=module)
        assert shown == []
        warnings.warn_explicit("odd", UserWarning, "x.py", 1, module="builder.trust.policy")
    assert len(shown) == 1
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
