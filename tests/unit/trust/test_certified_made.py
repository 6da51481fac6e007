"""Signatures by certificates that somebody made on purpose: who is meant, and who counts."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
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
    new_key,
    text,
    usage,
)
from samples import ROOT
from test_certified import SUITE, judged
from test_certified import roots as suites_roots

from builder.model.errors import BadInput
from builder.trust.policy.records import SIGNATURE, Gathered, Image, Proof
from builder.trust.policy.rules import signature
from builder.trust.policy.site_policy import Policy
from builder.trust.proof import TrustedIdentity, verified
from builder.trust.proof.attachments import (
    MANIFEST,
    TOO_LARGE,
    Attachment,
    Descriptor,
    Unusable,
    Verdict,
)
from builder.trust.proof.attestations import bundle as attached
from builder.trust.proof.certified import Allowance, Signer, certified
from builder.trust.proof.chains import is_chain
from builder.trust.proof.roots import Roots, roots_in, roots_of

Bundle = dict[str, Any]
SITE, LOG = Authority(), Log()
IMAGE = Descriptor(media_type=MANIFEST, digest=DIGEST, size=1)


def attachment(bundle: Bundle) -> Attachment:
    kind = "https://sigstore.dev/cosign/sign/v1"
    return attached(IMAGE, json.dumps(bundle).encode(), kind, created="")


def verdict(*bundles: Bundle, trusted: list[TrustedIdentity]) -> Verdict:
    return verified(DIGEST, map(attachment, bundles), trusted, now=SIGNED)


def identity(glob: str = SUBJECT, issuer: str = ISSUER, roots: Roots | None = None) -> Any:
    return TrustedIdentity(glob=glob, issuer=issuer, roots=roots or SITE.roots(LOG))


def counted(found: Verdict) -> int:
    """How many signatures a policy counts."""
    proofs = tuple(
        Proof(kind=SIGNATURE, subjects=(DIGEST,), key=key, signer=one.signer)
        for one in found.signatures
        for key in one.keys
    )
    image = Image(digest=DIGEST, architecture="x86_64", asked="x86_64")
    gathered = Gathered(reference="", format="oci", now=SIGNED, image=image, proofs=proofs)
    for number in (1, 2, 3):
        if signature(Policy(keys=(), signatures=number), gathered).result != "passed":
            return number - 1
    return 3


def test_a_bundle_is_accepted() -> None:
    found = verdict(SITE.bundle(LOG), trusted=[identity()])
    assert (counted(found), found.rejected) == (1, ())
    [one] = found.signatures
    assert (one.signer, one.keys) == (f"{SUBJECT} ({ISSUER})", (f"{SUBJECT} ({ISSUER})",))


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
    found = verdict(*bundles[:: -1 if back else 1], trusted=trusted[:: -1 if back else 1])
    assert counted(found) == 2
    assert counted(verdict(*bundles, trusted=trusted[:1])) == 1  # one entry is one signature
    issuers = [ISSUER, "https://other.example"]
    bundles = [SITE.bundle(LOG, issuer=one) for one in issuers]
    assert counted(verdict(*bundles, trusted=[identity(issuer=one) for one in issuers])) == 2


def test_a_bundle_is_judged_once_however_often_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = attachment(SITE.bundle(LOG))
    manifest = json.loads(one.manifest)
    manifest["layers"] *= 5
    times = []

    def counting(*words: Any, **more: Any) -> Signer:
        times.append(1)
        return certified(*words, **more)

    monkeypatch.setattr("builder.trust.proof.certified.certified", counting)
    several = Attachment(manifest=json.dumps(manifest).encode(), blobs=one.blobs)
    found = verified(DIGEST, [several, one], [identity()], now=SIGNED)
    assert (len(times), counted(found)) == (1, 1)


def test_what_time_stamps_take_is_bounded() -> None:
    """Whoever may push can copy a sound bundle, and pad what nobody signed of its stamps."""
    case = SUITE["cases"]["rekor2-dsse-happy-path"]
    bundle = json.loads(case["bundle"])
    material = bundle["verificationMaterial"]["timestampVerificationData"]
    stamp = material["rfc3161Timestamps"][0]
    material["rfc3161Timestamps"] = [stamp] * 4
    assert judged(bundle, "", suites_roots(case["roots"]))
    length = len(base64.b64decode(stamp["signedTimestamp"]))
    allowance = Allowance(left=6 * length)
    for _ in range(2):  # one that is read is enough
        judged(bundle, "", suites_roots(case["roots"]), allowance)
    with pytest.raises(Unusable) as raised:
        judged(bundle, "", suites_roots(case["roots"]), allowance)
    assert raised.value.kind == TOO_LARGE
    material["rfc3161Timestamps"] = [{"signedTimestamp": text(b"0" * (9 << 10))}]
    with pytest.raises(Unusable, match="at most 8192"):
        judged(bundle, "", suites_roots(case["roots"]))


def uri(name: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(name)


@pytest.mark.parametrize(
    "limits",
    [
        [(x509.NameConstraints([uri("allowed.example")], None), True)],
        [(x509.NameConstraints(None, [uri("git.example")]), False)],
        [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), False)],
        [(x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)],
    ],
)
def test_an_authority_s_limits_hold(limits: Extensions) -> None:
    site = Authority(limits=limits)
    found = verdict(site.bundle(LOG), trusted=[identity(roots=site.roots(LOG))])
    [one] = found.rejected
    assert (counted(found), "authority was not believed" in one.reason) == (0, True)


SIGNS = (usage(digital_signature=True), True)
FOR_CODE = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False)
IS_CA = (x509.BasicConstraints(ca=True, path_length=0), True)
CERTIFIES = (usage(key_cert_sign=True), True)


@pytest.mark.parametrize(
    ("extensions", "why"),
    [
        ([(usage(key_agreement=True), True), FOR_CODE], "not for signing code"),
        (
            [SIGNS, (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)],
            "not for signing code",
        ),
        ([SIGNS], "no ExtendedKeyUsage"),
        ([FOR_CODE], "no KeyUsage"),
        ([SIGNS, FOR_CODE, IS_CA], "is an authority's"),
        (
            [SIGNS, FOR_CODE, (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3"), b""), True)],
            "not known here",
        ),
        (
            [
                SIGNS,
                FOR_CODE,
                (x509.UnrecognizedExtension(ObjectIdentifier("1.2.3"), b"0" * (17 << 10)), False),
            ],
            "more than 16384 bytes",
        ),
    ],
)
def test_a_signer_s_certificate_is_for_signing(extensions: Extensions, why: str) -> None:
    site = Authority(extensions=extensions)
    found = verdict(site.bundle(LOG), trusted=[identity(roots=site.roots(LOG))])
    [one] = found.rejected
    assert counted(found) == 0
    assert why in one.reason


@pytest.mark.parametrize(
    "own",
    [
        [CERTIFIES],
        [IS_CA],
        [(x509.BasicConstraints(ca=False, path_length=None), True), CERTIFIES],
        [IS_CA, (usage(digital_signature=True), True)],
    ],
)
def test_an_authority_may_certify(own: Extensions) -> None:
    site = Authority(own=own)
    found = verdict(site.bundle(LOG), trusted=[identity(roots=site.roots(LOG))])
    [one] = found.rejected
    assert (counted(found), "authority was not believed" in one.reason) == (0, True)


@pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (None, True)])
def test_a_chain_is_no_longer_than_its_authority_allows(length: int | None, fits: bool) -> None:
    root = Authority(own=[(x509.BasicConstraints(ca=True, path_length=length), True), CERTIFIES])
    middle = root.issued(SITE.key, "authority", SITE.own)
    chain = SITE.leaf(new_key()), middle, root.certificate
    assert is_chain(chain, SIGNED, ExtendedKeyUsageOID.CODE_SIGNING) == fits


def test_a_certificate_of_two_names_names_nobody() -> None:
    names = x509.SubjectAlternativeName([uri(SUBJECT), uri(f"{ISSUER}/other")])

    class Both(Authority):
        def issued(self, key: Key, name: str, extensions: Extensions, **more: Any) -> Any:
            is_of_a_signer = not name
            some = [(names, True), *extensions[1:]] if is_of_a_signer else extensions
            return super().issued(key, name, some, **more)

    site = Both()
    found = verdict(site.bundle(LOG), trusted=[identity("*", roots=site.roots(LOG))])
    [one] = found.rejected
    assert (counted(found), "does not name one signer" in one.reason) == (0, True)


def test_a_bundle_brings_no_authority_of_its_own() -> None:
    bundle = SITE.bundle(LOG)
    material = bundle["verificationMaterial"]
    own = {"rawBytes": text(SITE.certificate.public_bytes(serialization.Encoding.DER))}
    chain = {"certificates": [material.pop("certificate"), own]}
    found = verdict(
        {**bundle, "verificationMaterial": {**material, "x509CertificateChain": chain}},
        trusted=[identity()],
    )
    [one] = found.rejected
    assert (counted(found), "an authority of its own" in one.reason) == (0, True)


def test_nothing_was_signed_in_the_future() -> None:
    one = attachment(SITE.bundle(LOG))
    clocks_differ, before = SIGNED - dt.timedelta(minutes=4), SIGNED - dt.timedelta(minutes=6)
    assert counted(verified(DIGEST, [one], [identity()], now=clocks_differ)) == 1
    found = verified(DIGEST, [one], [identity()], now=before)
    [rejected] = found.rejected
    assert (counted(found), rejected.reason) == (0, "signed in the future, 2026-05-01 12:00 UTC")


@pytest.mark.parametrize("back", [False, True])
def test_of_several_roots_those_tell_why_that_know_the_authority(back: bool) -> None:
    stranger = Authority()
    trusted = [identity(roots=stranger.roots(LOG)), identity(roots=SITE.roots(LOG))]
    found = verdict(SITE.bundle(), trusted=trusted[:: -1 if back else 1])
    [one] = found.rejected
    assert one.reason == "the signature is in no log that the roots name"


def test_a_stamp_too_long_is_not_counted() -> None:
    """One of 2 MiB would keep all others from being read."""
    case = SUITE["cases"]["rekor2-dsse-happy-path"]
    bundle, trusted = json.loads(case["bundle"]), suites_roots(case["roots"])
    padded, allowance = json.loads(case["bundle"]), Allowance()
    stamps = {"rfc3161Timestamps": [{"signedTimestamp": text(bytes(3 << 20))}]}
    padded["verificationMaterial"]["timestampVerificationData"] = stamps
    with pytest.raises(Unusable, match="at most 8192"):
        judged(padded, "", trusted, allowance)
    assert judged(bundle, "", trusted, allowance)


def test_a_stamp_that_was_not_granted_is_none() -> None:
    case = SUITE["cases"]["rekor2-dsse-happy-path"]
    bundle = json.loads(case["bundle"])
    material = bundle["verificationMaterial"]["timestampVerificationData"]
    stamp = base64.b64decode(material["rfc3161Timestamps"][0]["signedTimestamp"])
    granted, rejected = b"\x30\x03\x02\x01\x00", b"\x30\x03\x02\x01\x02"
    assert granted in stamp[:16]
    changed = stamp.replace(granted, rejected, 1)
    material["rfc3161Timestamps"] = [{"signedTimestamp": text(changed)}]
    with pytest.raises(Unusable, match="not granted"):
        judged(bundle, "", suites_roots(case["roots"]))


def test_few_signatures_of_a_log_s_state_are_tried() -> None:
    bundle = SITE.bundle(LOG)
    [entry] = bundle["verificationMaterial"]["tlogEntries"]
    checkpoint = entry["inclusionProof"]["checkpoint"]
    note, _, own = checkpoint["envelope"].partition("\n\n")
    wrong = f"\u2014 x {text(LOG.identifier[:4] + bytes(64))}\n"
    for number, accepted in ((2, 1), (3, 0)):
        checkpoint["envelope"] = f"{note}\n\n{wrong * number}{own}"
        assert counted(verdict(bundle, trusted=[identity()])) == accepted


def test_roots_that_cannot_be_read_are_bad_input(tmp_path: Path) -> None:
    value = json.loads(SUITE["roots"]["production"])
    certificate = value["certificateAuthorities"][0]["certChain"]["certificates"][0]
    raw, version = base64.b64decode(certificate["rawBytes"]), b"\xa0\x03\x02\x01"
    certificate["rawBytes"] = text(raw.replace(version + b"\2", version + b"\4", 1))
    with pytest.raises(BadInput, match="that can be read: "):
        roots_of(json.dumps(value).encode(), name="roots.json")
    with pytest.raises(BadInput, match="no name of a file"):
        roots_in(tmp_path / "a\0b")


def test_limits_that_fit_are_none() -> None:
    site = Authority(limits=[(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), True)])
    assert counted(verdict(site.bundle(LOG), trusted=[identity(roots=site.roots(LOG))])) == 1


def without_zeros(bundle: Bundle) -> None:
    [entry] = bundle["verificationMaterial"]["tlogEntries"]
    del entry["logIndex"], entry["inclusionProof"]["logIndex"]
    entry["inclusionProof"]["hashes"] = None


def with_an_unknown_log(bundle: Bundle) -> None:
    entries = bundle["verificationMaterial"]["tlogEntries"]
    entries.insert(0, Log().entry({"kind": "other", "apiVersion": "7"}))


def with_rubbish_for_a_stamp(bundle: Bundle) -> None:
    stamps = {"rfc3161Timestamps": [{"signedTimestamp": "AAAA"}]}
    bundle["verificationMaterial"]["timestampVerificationData"] = stamps


@pytest.mark.parametrize("change", [without_zeros, with_an_unknown_log, with_rubbish_for_a_stamp])
def test_what_does_not_matter_does_not(change: Callable[[Bundle], None]) -> None:
    """JSON of protocol buffers leaves out what is 0; strangers' logs and stamps are nobody's."""
    change(bundle := SITE.bundle(LOG))
    found = verdict(bundle, trusted=[identity()])
    assert (counted(found), found.rejected) == (1, ())


def test_a_stamp_of_nobody_s_is_said_where_nothing_else_is_there() -> None:
    case = SUITE["cases"]["rekor2-dsse-happy-path"]
    bundle = json.loads(case["bundle"])
    with_rubbish_for_a_stamp(bundle)
    with pytest.raises(Unusable, match="time stamp that cannot be read"):
        judged(bundle, "", suites_roots(case["roots"]))


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_log_whose_key_is_believed_for_two_times(promised: bool, back: bool) -> None:
    spans = [("2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"), ("2021-01-01T00:00:00Z", None)]
    log = Log(spans=spans[:: -1 if back else 1])
    bundle = SITE.bundle(log, LOG)
    if not promised:
        del bundle["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]
    assert counted(verdict(bundle, trusted=[identity(roots=SITE.roots(log, LOG))])) == 1
    ended = Log(key=log.key, spans=spans[:1])
    found = verdict(bundle, trusted=[identity(roots=SITE.roots(ended, LOG))])
    assert (counted(found), len(found.rejected)) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("hashedrekord/0.0.1", {"data": {"hash": "x"}}),
        ("hashedrekord/0.0.1", {"signature": 7}),
        ("hashedrekord/0.0.1", [7]),
        ("hashedrekord/0.0.2", {"hashedRekordV002": 7}),
        ("dsse/0.0.1", [7]),
        ("dsse/0.0.1", {"payloadHash": 7, "signatures": [7]}),
        ("dsse/0.0.1", 7),
        ("dsse/0.0.2", {"dsseV002": "x"}),
        ("dsse/0.0.2", {"dsseV002": {"signatures": [7], "payloadHash": 7}}),
        ("intoto/0.0.2", {"content": 7}),
        ("intoto/0.0.2", {"content": {"envelope": {"signatures": ["x"]}}}),
        ("intoto/0.0.2", [7]),
    ],
)
def test_whatever_a_log_says_is_read_or_refused(kind: str, spec: object) -> None:
    name, _, version = kind.partition("/")
    bundle = SITE.bundle()
    entry = LOG.entry({"kind": name, "apiVersion": version, "spec": spec})
    bundle["verificationMaterial"]["tlogEntries"] = [entry]
    found = verdict(bundle, trusted=[identity()])
    assert (counted(found), len(found.rejected)) == (0, 1)


@pytest.mark.parametrize("name", [f"{SUBJECT}\0", f"{ISSUER}/ü", f"{ISSUER}/a\nb", ""])
def test_a_signer_with_a_name_that_cannot_be_shown(name: str) -> None:
    found = verdict(SITE.bundle(LOG, name=name), trusted=[identity("*")])
    assert (counted(found), len(found.rejected)) == (0, 1)


def test_odd_certificates_write_nothing(tmp_path: Path) -> None:
    """Not even as warnings, which Python shows with lines of the program that reads them."""
    key = tmp_path / "key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += [
        "-nodes",
        "-keyout",
        str(key),
        "-subj",
        "/CN=a",
        "-set_serial",
        "-1",
        "-outform",
        "DER",
    ]
    made = subprocess.run(words, check=True, capture_output=True).stdout
    bundle = SITE.bundle(LOG)
    bundle["verificationMaterial"]["certificate"]["rawBytes"] = text(made)
    (tmp_path / "bundle.json").write_text(json.dumps(bundle))
    script = (
        "import json, sys; from builder.trust.proof.certified import certified;"
        "from test_certified_made import LOG, SITE;"
        "certified(json.load(open(sys.argv[1])), b'', b'', SITE.roots(LOG))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "always",
            "-W",
            "ignore::ResourceWarning",
            "-c",
            script,
            tmp_path / "bundle.json",
        ],
        capture_output=True,
        check=False,
        text=True,
        cwd=Path(__file__).parent,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/unit'}"},
    )
    assert "Unusable: " in done.stderr
    assert "Warning" not in done.stderr, done.stderr
