"""Signatures by certificates that somebody made on purpose: who is meant, and who counts."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from made_certificates import (
    DIGEST,
    ISSUER,
    SIGNED,
    SUBJECT,
    Authority,
    Extensions,
    Key,
    Log,
    der,
    text,
    usage,
)
from proof_samples import TOO_LARGE, kind_of, replaced
from samples import ROOT
from test_certificates import REKOR_2, bundle_of, judged, roots_of, text_paths

from builder.model.digests import Descriptor
from builder.trust.policy.records import SIGNATURE, Claim, Gathered, Image
from builder.trust.policy.rules import signature
from builder.trust.policy.site_policy import Policy
from builder.trust.proof.attachments import MANIFEST, ProofManifest, Unusable, VerifiedProof
from builder.trust.proof.attestations import bundle as attached
from builder.trust.proof.certificates import MAX_CERTIFICATE, CertifiedBundle
from builder.trust.proof.verification import TrustedIdentity, verified

Bundle = dict[str, Any]
SITE, LOG = Authority(), Log()
PRIVATE = Authority(certificate_log=None)
IMAGE = Descriptor(media_type=MANIFEST, digest=DIGEST, size=1)


def attachment(bundle: Bundle) -> ProofManifest:
    kind = "https://sigstore.dev/cosign/sign/v1"
    return attached(IMAGE, json.dumps(bundle).encode(), kind, created="")


def verdict(*bundles: Bundle, trusted: Sequence[TrustedIdentity] = ()) -> VerifiedProof:
    return verified(DIGEST, map(attachment, bundles), trusted or [identity()], now=SIGNED)


def identity(glob: str = SUBJECT, issuer: str = ISSUER, roots: Any = None) -> TrustedIdentity:
    return TrustedIdentity(glob=glob, issuer=issuer, trusted_root=roots or SITE.roots(LOG))


def counted(judgement: VerifiedProof) -> int:
    """How many signatures a policy counts."""
    proofs = tuple(
        Claim(kind=SIGNATURE, subjects=(DIGEST,), key=key, signer=vouched.signer)
        for vouched in judgement.signatures
        for key in vouched.keys
    )
    image = Image(digest=DIGEST, architecture="x86_64", asked="x86_64")
    gathered = Gathered(reference="", format="oci", now=SIGNED, image=image, proofs=proofs)
    for number in (1, 2, 3):
        if signature(Policy(keys=(), signatures=number), gathered).result != "passed":
            return number - 1
    return 3


def refusal(judgement: VerifiedProof) -> str:
    [rejection] = judgement.rejected
    assert counted(judgement) == 0
    return rejection.reason


@pytest.mark.parametrize("site", [SITE, PRIVATE], ids=["whole", "without a certificate log"])
def test_a_bundle_is_accepted(site: Authority) -> None:
    judgement = verdict(site.bundle(LOG), trusted=[identity(roots=site.roots(LOG))])
    assert (counted(judgement), judgement.rejected) == (1, ())
    [vouched] = judgement.signatures
    assert (vouched.signer, vouched.keys) == (f"{SUBJECT} ({ISSUER})", (f"{SUBJECT} ({ISSUER})",))


IMAGES = "https://git.example/site/images"


@pytest.mark.parametrize(
    ("glob", "name", "is_meant"),
    [
        (f"{IMAGES}/.ci/*@refs/heads/main", f"{IMAGES}/.ci/a.yml@refs/heads/main", True),
        # `git check-ref-format refs/heads/x@refs/heads/main` says that there may be such a branch
        (f"{IMAGES}/.ci/*@refs/heads/main", f"{IMAGES}/.ci/a.yml@refs/heads/x@refs/heads/main", 0),
        (f"{IMAGES}/.ci/*@refs/tags/v*", f"{IMAGES}/.ci/a.yml@refs/tags/v1@x", True),
        (f"{IMAGES}/.ci/*@refs/tags/v*", f"{IMAGES}/.ci/a.yml", False),
        (f"{IMAGES}/*", f"{IMAGES}/.ci/a.yml@refs/heads/x", True),
        ("*@site.example", "an@site.example", True),
        ("*@site.example", "an@other.example@site.example", False),
        ("*@site.example", "an@SITE.example", False),
    ],
)
def test_who_is_meant_by_a_glob(glob: str, name: str, is_meant: bool) -> None:
    assert identity(glob).is_of(name, ISSUER) == bool(is_meant)
    assert not identity(glob).is_of(name, f"{ISSUER}/")


def test_one_signer_is_not_two() -> None:
    """However many entries of the policy are about them, and whatever roots these name."""
    old, new = SITE.roots(LOG), SITE.roots(LOG, second := Log())
    trusted = [identity(roots=old), identity(f"{ISSUER}/*", roots=new)]
    bundles = [SITE.bundle(LOG), SITE.bundle(second), SITE.bundle(LOG, second)]
    assert counted(verdict(*bundles, trusted=trusted)) == 1


@pytest.mark.parametrize("back", [False, True])
def test_two_signers_are_not_one(back: bool) -> None:
    """The order of the policy's entries does not matter, nor does that of the bundles."""
    trusted = [identity(f"{ISSUER}/*"), identity()]
    bundles = [SITE.bundle(LOG, name=f"{ISSUER}/other"), SITE.bundle(LOG)]
    judgement = verdict(*bundles[:: -1 if back else 1], trusted=trusted[:: -1 if back else 1])
    assert counted(judgement) == 2
    assert counted(verdict(*bundles, trusted=trusted[:1])) == 1  # one entry is one signature
    issuers = [ISSUER, "https://other.example"]
    bundles = [SITE.bundle(LOG, issuer=issuer) for issuer in issuers]
    assert counted(verdict(*bundles, trusted=[identity(issuer=name) for name in issuers])) == 2


def test_a_bundle_is_judged_once_however_often_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = attachment(SITE.bundle(LOG))
    manifest = json.loads(once.manifest)
    manifest["layers"] *= 5
    times, judge = [], CertifiedBundle.verify

    def counting(bundle: CertifiedBundle, *words: Any) -> dt.datetime:
        times.append(1)
        return judge(bundle, *words)

    monkeypatch.setattr(CertifiedBundle, "verify", counting)
    several = ProofManifest(manifest=json.dumps(manifest).encode(), blobs=once.blobs)
    judgement = verified(DIGEST, [several, once], [identity()], now=SIGNED)
    assert (len(times), counted(judgement)) == (1, 1)
    verdict(SITE.bundle(LOG, name=f"{ISSUER}/stranger"))
    assert len(times) == 1


@pytest.mark.parametrize(
    ("part", "number", "is_bounded"),
    [
        ("timestampVerificationData", 5, True),
        ("timestampVerificationData", 4, False),
        ("stamp", 60, True),
        ("tlogEntries", 9, True),
        ("tlogEntries", 8, False),
        ("chain", 9, True),
        ("chain", 8, False),
    ],
)
def test_what_a_bundle_holds_is_bounded(part: str, number: int, is_bounded: bool) -> None:
    """Whoever may push can copy a sound bundle, and pad it with what takes long to read."""
    bundle = bundle_of(REKOR_2)
    material = bundle["verificationMaterial"]
    if part == "timestampVerificationData":
        material[part]["rfc3161Timestamps"] *= number
    elif part == "stamp":
        [stamp] = material["timestampVerificationData"]["rfc3161Timestamps"]
        stamp["signedTimestamp"] = text(base64.b64decode(stamp["signedTimestamp"]) * number)
    elif part == "tlogEntries":
        material[part] *= number
    else:
        chain = {"certificates": [material.pop("certificate")] * number}
        material["x509CertificateChain"] = chain
    if not is_bounded:
        assert CertifiedBundle(bundle).issuer
        return
    with pytest.raises(Unusable) as raised:
        CertifiedBundle(bundle)
    assert kind_of(str(raised.value)) == TOO_LARGE


def uri(name: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(name)


FOR_STAMPS = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), False)
UNKNOWN = (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)
SIGNS = (usage(digital_signature=True), True)
FOR_CODE = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False)
IS_CA = (x509.BasicConstraints(ca=True, path_length=0), True)
IS_HIGH = (x509.BasicConstraints(ca=True, path_length=1), True)
IS_NO_CA = (x509.BasicConstraints(ca=False, path_length=None), True)
CERTIFIES = (usage(key_cert_sign=True), True)
LONG = x509.UnrecognizedExtension(ObjectIdentifier("1.2.3"), b"0" * (17 << 10))


@pytest.mark.parametrize("log", [SITE.certificate_log, None], ids=["whole", "private"])
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"limits": [(x509.NameConstraints([uri("allowed.example")], None), True)]}, "constraint"),
        ({"limits": [(x509.NameConstraints(None, [uri("git.example")]), False)]}, "constraint"),
        ({"limits": [FOR_STAMPS]}, "not from an authority"),
        ({"limits": [UNKNOWN]}, "invalid extension"),
        ({"own": [CERTIFIES]}, "invalid extension"),
        ({"own": [IS_CA]}, "invalid extension"),
        ({"own": [IS_NO_CA, CERTIFIES]}, "cA must be asserted"),
        ({"own": [IS_CA, SIGNS]}, "keyCertSign must be asserted"),
        ({"extensions": [(usage(key_agreement=True), True), FOR_CODE]}, "ignature"),
        ({"extensions": [SIGNS, FOR_STAMPS]}, "code signing"),
        ({"extensions": [SIGNS]}, "ExtendedKeyUsage"),
        ({"extensions": [FOR_CODE]}, "KeyUsage"),
        ({"extensions": [SIGNS, FOR_CODE, IS_CA]}, "must not be asserted"),
        ({"extensions": [SIGNS, FOR_CODE, UNKNOWN]}, "invalid extension"),
        ({"extensions": [SIGNS, FOR_CODE, (LONG, False)]}, f"{MAX_CERTIFICATE} bytes"),
    ],
)
def test_what_certificates_may_is_asked(more: dict[str, Any], why: str, log: Log | None) -> None:
    site = Authority(**more, certificate_log=log)
    assert why in refusal(verdict(site.bundle(LOG), trusted=[identity(roots=site.roots(LOG))]))


def test_only_an_authority_s_first_certificate_issues() -> None:
    """Its own authority may issue others, but not for signers of images."""
    above = Authority(own=[IS_HIGH, CERTIFIES])
    below = above.issued(SITE.key, "authority", SITE.own)
    roots = SITE.roots(LOG)
    [authority] = roots["certificateAuthorities"]
    authority["certChain"]["certificates"] = [
        {"rawBytes": text(der(certificate))} for certificate in (below, above.certificate)
    ]
    assert counted(verdict(SITE.bundle(LOG), trusted=[identity(roots=roots)])) == 1
    above.certificate_log = SITE.certificate_log
    judgement = verdict(above.bundle(LOG), trusted=[identity(roots=roots)])
    assert "not from an authority that the trusted root names" in refusal(judgement)


@pytest.mark.parametrize("log", [SITE.certificate_log, None], ids=["whole", "private"])
@pytest.mark.parametrize(
    ("own", "days", "is_accepted"),
    [
        ([IS_HIGH, CERTIFIES], 3650, True),
        ([IS_HIGH, CERTIFIES, FOR_CODE], 3650, True),
        ([IS_HIGH, CERTIFIES], 30, False),
        ([IS_HIGH, CERTIFIES, FOR_STAMPS], 3650, False),
        ([IS_HIGH, CERTIFIES, UNKNOWN], 3650, False),
        ([IS_CA, CERTIFIES], 3650, False),
        ([IS_NO_CA], 3650, False),
        ([], 3650, False),
    ],
)
def test_what_stands_above_an_authority_counts(
    own: Extensions, days: int, is_accepted: bool, log: Log | None
) -> None:
    site, above = Authority(key=SITE.key, certificate_log=log), Authority(certificate_log=None)
    below = above.issued(site.key, "authority", site.own)
    bundle, roots = site.bundle(LOG), site.roots(LOG)
    [authority] = roots["certificateAuthorities"]
    for key, counts in ((above.key, is_accepted), (Authority().key, False)):
        last = Authority(key=key, certificate_log=None).issued(key, "authority", own, days=days)
        chain = [{"rawBytes": text(der(certificate))} for certificate in (below, last)]
        authority["certChain"]["certificates"] = chain
        judgement = verdict(bundle, trusted=[identity(roots=roots)])
        assert (counted(judgement), len(judgement.rejected)) == (counts, not counts)


def test_a_certificate_is_in_a_log() -> None:
    bare = Authority(key=SITE.key, certificate_log=None)
    assert "signed certificate timestamp" in refusal(verdict(bare.bundle(LOG)))
    other = Authority(key=SITE.key)
    assert "SCT verify failed" in refusal(verdict(other.bundle(LOG)))


def test_a_certificate_of_two_names_names_nobody() -> None:
    names = x509.SubjectAlternativeName([uri(SUBJECT), uri(f"{ISSUER}/other")])

    class Both(Authority):
        def issued(self, key: Key, name: str, extensions: Extensions, **more: Any) -> Any:
            several = extensions if name else [(names, True), *extensions[1:]]
            return super().issued(key, name, several, **more)

    site = Both()
    judgement = verdict(site.bundle(LOG), trusted=[identity("*", roots=site.roots(LOG))])
    assert "does not name one signer" in refusal(judgement)


@pytest.mark.parametrize("name", [f"{SUBJECT}\0", f"{ISSUER}/ü", f"{ISSUER}/a\nb", ""])
def test_a_signer_with_a_name_that_cannot_be_shown(name: str) -> None:
    assert refusal(verdict(SITE.bundle(LOG, name=name), trusted=[identity("*")]))


@pytest.mark.parametrize("length", [1, 127, 128, 200])
def test_the_issuer_s_name_may_be_long(length: int) -> None:
    assert CertifiedBundle(SITE.bundle(issuer="a" * length)).issuer == "a" * length


def test_a_bundle_brings_no_authority_of_its_own() -> None:
    bundle = SITE.bundle(LOG)
    material = bundle["verificationMaterial"]
    own = {"rawBytes": text(der(SITE.certificate))}
    material["x509CertificateChain"] = {"certificates": [material.pop("certificate"), own]}
    assert "contains its own authority" in refusal(verdict(bundle))


def test_nothing_was_signed_in_the_future() -> None:
    bundle = attachment(SITE.bundle(LOG))
    clocks_differ, before = SIGNED - dt.timedelta(minutes=5), SIGNED - dt.timedelta(minutes=6)
    assert counted(verified(DIGEST, [bundle], [identity()], now=clocks_differ)) == 1
    judgement = verified(DIGEST, [bundle], [identity()], now=before)
    assert refusal(judgement) == "signed in the future, 2026-05-01 12:00 UTC"


@pytest.mark.parametrize("back", [False, True])
def test_of_several_roots_each_tells_why(back: bool) -> None:
    trusted = [identity(roots=Authority().roots(LOG)), identity(roots=SITE.roots(Log()))]
    reason = refusal(verdict(SITE.bundle(LOG), trusted=trusted[:: -1 if back else 1]))
    assert "the signature is not in a log that the trusted root names" in reason
    assert "the certificate is not from an authority that the trusted root names" in reason


def test_a_stamp_that_was_not_granted_is_none() -> None:
    bundle = bundle_of(REKOR_2)
    [stamp] = bundle["verificationMaterial"]["timestampVerificationData"]["rfc3161Timestamps"]
    granted, rejected = b"\x30\x03\x02\x01\x00", b"\x30\x03\x02\x01\x02"
    content = base64.b64decode(stamp["signedTimestamp"])
    assert granted in content[:16]
    stamp["signedTimestamp"] = text(content.replace(granted, rejected, 1))
    with pytest.raises(Unusable, match="not enough sources of verified time"):
        judged(bundle, roots_of(REKOR_2))


def test_a_wrong_signature_of_a_log_s_state_is_not_passed_over() -> None:
    bundle = SITE.bundle(LOG)
    [entry] = bundle["verificationMaterial"]["tlogEntries"]
    checkpoint = entry["inclusionProof"]["checkpoint"]
    note, _, own = checkpoint["envelope"].partition("\n\n")
    checkpoint["envelope"] = f"{note}\n\n\u2014 x {text(LOG.identifier[:4] + bytes(64))}\n{own}"
    assert "checkpoint: invalid signature" in refusal(verdict(bundle))


def without_zeros(bundle: Bundle) -> None:
    [entry] = bundle["verificationMaterial"]["tlogEntries"]
    del entry["logIndex"], entry["inclusionProof"]["logIndex"], entry["inclusionProof"]["hashes"]


def with_an_unknown_log(bundle: Bundle) -> None:
    entries = bundle["verificationMaterial"]["tlogEntries"]
    entries.insert(0, Log().entry({"kind": "other", "apiVersion": "7"}))


def with_a_stranger_s_stamp(bundle: Bundle) -> None:
    stamps = bundle_of(REKOR_2)["verificationMaterial"]["timestampVerificationData"]
    bundle["verificationMaterial"]["timestampVerificationData"] = stamps


@pytest.mark.parametrize("site", [SITE, PRIVATE])
@pytest.mark.parametrize("change", [without_zeros, with_an_unknown_log, with_a_stranger_s_stamp])
def test_what_does_not_matter_does_not(change: Callable[[Bundle], None], site: Authority) -> None:
    """JSON of protocol buffers leaves out what is 0; strangers' logs and stamps are nobody's."""
    change(bundle := site.bundle(LOG))
    judgement = verdict(bundle, trusted=[identity(roots=site.roots(LOG))])
    assert (counted(judgement), judgement.rejected) == (1, ())


@pytest.mark.parametrize("back", [False, True])
def test_a_log_whose_key_is_trusted_for_two_times(back: bool) -> None:
    periods = [("2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"), ("2021-01-01T00:00:00Z", None)]
    log = Log(periods=periods[:: -1 if back else 1])
    bundle = SITE.bundle(log, LOG)
    assert counted(verdict(bundle, trusted=[identity(roots=SITE.roots(log, LOG))])) == 1
    ended = Log(key=log.key, periods=periods[:1])
    assert refusal(verdict(bundle, trusted=[identity(roots=SITE.roots(ended, LOG))]))


SECOND = dt.timedelta(seconds=1)


@pytest.mark.parametrize(
    ("start", "end", "is_trusted"),
    [
        (SIGNED, None, True),
        (SIGNED + SECOND, None, False),
        (SIGNED - SECOND, SIGNED, True),
        (SIGNED - 2 * SECOND, SIGNED - SECOND, False),
    ],
)
def test_a_log_is_trusted_from_its_first_to_its_last_second(
    start: dt.datetime, end: dt.datetime | None, is_trusted: bool
) -> None:
    log = Log(periods=[(start.isoformat(), end.isoformat() if end else None)])
    judgement = verdict(SITE.bundle(log), trusted=[identity(roots=SITE.roots(log))])
    assert counted(judgement) == is_trusted


OTHERS: list[Any] = ["", "sha512", text(b"another"), "00" * 32, text(der(SITE.certificate))]
OTHERS += [None, 7, []]


def body_of(bundle: Bundle) -> Any:
    [entry] = bundle["verificationMaterial"]["tlogEntries"]
    return json.loads(base64.b64decode(entry["canonicalizedBody"]))


@pytest.mark.parametrize("site", [SITE, PRIVATE], ids=["whole", "without a certificate log"])
def test_every_part_of_an_entry_counts(site: Authority) -> None:
    """But for the hash of an envelope, of which a bundle has no bytes."""
    bundle, roots = site.bundle(LOG), site.roots(LOG)
    body = body_of(bundle)
    for path in text_paths(body["spec"]):
        for other in [] if "envelopeHash" in path else OTHERS:
            spoilt = replaced(body, ("spec", *path), other)
            bundle["verificationMaterial"]["tlogEntries"] = [LOG.entry(spoilt)]
            with pytest.raises(Unusable):
                judged(bundle, roots)


@pytest.mark.parametrize("number", [0, 2])
def test_an_entry_has_one_signature(number: int) -> None:
    bundle = SITE.bundle(LOG)
    body = body_of(bundle)
    body["spec"]["signatures"] *= number
    bundle["verificationMaterial"]["tlogEntries"] = [LOG.entry(body)]
    assert refusal(verdict(bundle))


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("hashedrekord/0.0.1", {"data": {"hash": "x"}}),
        ("hashedrekord/0.0.1", [7]),
        ("hashedrekord/0.0.2", {"hashedRekordV002": 7}),
        ("dsse/0.0.1", [7]),
        ("dsse/0.0.1", {"payloadHash": 7, "signatures": [7]}),
        ("dsse/0.0.1", 7),
        ("dsse/0.0.2", {"dsseV002": {"signatures": [7], "payloadHash": 7}}),
        ("intoto/0.0.2", {"content": {"envelope": {"signatures": ["x"]}}}),
        ("rpm/0.0.1", {}),
    ],
)
def test_whatever_a_log_says_is_read_or_refused(kind: str, spec: object) -> None:
    name, _, version = kind.partition("/")
    bundle = SITE.bundle()
    entry = LOG.entry({"kind": name, "apiVersion": version, "spec": spec})
    bundle["verificationMaterial"]["tlogEntries"] = [entry]
    assert refusal(verdict(bundle))


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Another Python, which has the builder."""
    argv, environment = [sys.executable, *words], {"PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, capture_output=True, check=False, text=True, env=environment)


def test_odd_certificates_write_nothing(tmp_path: Path) -> None:
    """Not even as warnings, which Python shows with lines of the program that reads them."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-keyout", str(tmp_path / "key"), "-subj", "/CN=a", "-set_serial", "-1"]
    certificate = subprocess.run(
        [*words, "-outform", "DER"], check=True, capture_output=True
    ).stdout
    bundle = SITE.bundle(LOG)
    bundle["verificationMaterial"]["certificate"]["rawBytes"] = text(certificate)
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    script = (
        "import json, sys; from builder.trust.proof.certificates import CertifiedBundle;"
        "CertifiedBundle(json.load(open(sys.argv[1])))"
    )
    options = ["-W", "always", "-W", "ignore::ResourceWarning", "-c", script]
    done = python(*options, tmp_path / "bundle.json")
    assert "Unusable: " in done.stderr
    assert "Warning" not in done.stderr, done.stderr


def test_odd_certificates_in_time_stamps_write_nothing() -> None:
    """Nothing signs these: anybody can add one to a sound stamp."""
    certificates = "builder.trust.proof.certificates"
    code = f"import logging, warnings, {certificates}; "
    code += "logging.getLogger('sigstore.verify').warning('odd'); warnings.warn_explicit"
    words = "('a serial number', UserWarning, 'verify.py', 248, module='rfc3161_client.verify')"
    done = python("-c", code + words)
    assert (done.returncode, done.stderr) == (0, "")
