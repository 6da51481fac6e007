"""Signatures and attestations: what we make we accept, what cosign made we accept, nothing else."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from proof_samples import (
    EXPIRED_KEY,
    IMAGE,
    KEYLESS,
    MALFORMED,
    NOW,
    OTHER,
    OTHER_SUBJECT,
    REFERENCE,
    TOO_LARGE,
    VECTORS,
    WRONG_KEY,
    WRONG_TYPE,
    attached,
    evidence,
    judged,
    kind_of,
    kinds,
    other_key,
    our_key,
    places,
    rebuilt,
    replaced,
    results,
    trusted,
)

from builder.model.digests import Descriptor, digest_of
from builder.model.errors import BadInput, Refused
from builder.model.exact_json import member
from builder.model.predicates import TEST_RESULT
from builder.trust.proof import attachments, statements
from builder.trust.proof.attachments import (
    ProofManifest,
    Unusable,
    VerifiedProof,
    embedded,
    json_object,
    layers_of,
)
from builder.trust.proof.attestations import (
    attestation_tag,
    bundle,
    bundled,
    classic_attestations,
    merged,
    proofs,
    signature_tag,
)
from builder.trust.proof.keys import public_key
from builder.trust.proof.verification import TrustedKey, verified

[BUNDLE] = [item for item in attached() if not item.tag]
[LAYER] = layers_of(BUNDLE.manifest)


def by_cosign() -> tuple[str, list[ProofManifest]]:
    """An image's digest, and what cosign attached to it."""
    proof = json.loads((VECTORS / "attached.json").read_text())
    return digest_of(proof["image"].encode()), [
        ProofManifest(
            manifest=item["manifest"].encode(),
            blobs={digest: text.encode() for digest, text in item["blobs"].items()},
            tag=item["tag"],
        )
        for item in proof["attached"]
    ]


def verdict_on_cosigns(name: str) -> VerifiedProof:
    """The verdict on what cosign attached, by one of its keys."""
    digest, proof = by_cosign()
    key = TrustedKey(key=public_key(str(VECTORS / f"{name}.pub"), {}), name=name)
    return verified(digest, proof, [key], now=NOW)


def test_what_we_make_we_accept_in_both_formats() -> None:
    verdict = judged(attached(evidence()))
    assert verdict.rejected == ()
    assert [(item.format, item.keys) for item in verdict.signatures] == [
        ("bundle", ("site",)),
        ("classic", ("site",)),
    ]
    claim = verdict.signatures[1].statement
    assert member(claim, "critical", "identity", "docker-reference") == REFERENCE
    assert [item.format for item in verdict.attestations] == ["bundle", "classic"]
    [proof] = results(verdict)
    assert (proof.payload, member(proof.statement, "predicate", "passedTests")) == (
        evidence(),
        ["libraries"],
    )


def test_the_same_key_and_statements_give_the_same_bytes() -> None:
    assert attached(evidence()) == attached(evidence())


def test_what_cosign_made_we_accept() -> None:
    verdict = verdict_on_cosigns("cosign")
    assert [item.format for item in verdict.signatures] == ["bundle", "classic"]
    assert [item.format for item in verdict.attestations] == ["bundle", "classic"]
    assert {member(item.statement, "predicate", "result") for item in results(verdict)} == {
        "PASSED"
    }
    assert kinds(verdict) == [WRONG_KEY]  # those of the other key


def test_of_cosigns_ed25519_the_plain_ones_are_accepted() -> None:
    """cosign signs attestations with the variant Ed25519ph, which is not accepted."""
    verdict = verdict_on_cosigns("ed25519")
    assert len(verdict.rejected) + len(verdict.signatures) + len(verdict.attestations) == 8
    assert kinds(verdict) == [WRONG_KEY]


def test_cosigns_own_proof_is_kept_when_ours_comes() -> None:
    digest, proof = by_cosign()
    image = Descriptor(media_type=IMAGE.media_type, digest=digest, size=431)
    before = {item.tag: item for item in proof if item.tag}
    statements = [evidence(digest)]
    for item in proofs(image, statements, our_key(), reference="r", created="", before=before):
        if item.tag:
            existing = before[item.tag].manifest
            both = merged(item, existing)
            assert both
            layers = layers_of(both.manifest)
            assert layers[: len(layers_of(existing))] == layers_of(existing)
            assert merged(item, both.manifest) is None


def test_what_is_no_proof_at_the_tag_is_not_replaced() -> None:
    for tag_of in (signature_tag, attestation_tag):
        tag = tag_of(IMAGE.digest)
        existing = {tag: ProofManifest(manifest=b"{}", blobs={}, tag=tag)}
        with pytest.raises(Refused, match="was not replaced: not an OCI manifest"):
            proofs(IMAGE, [evidence()], our_key(), reference="r", created="", before=existing)


def test_the_tags_are_cosigns() -> None:
    assert signature_tag("sha256:ab") == "sha256-ab.sig"
    assert attestation_tag("sha256:ab") == "sha256-ab.att"


def test_a_statement_about_another_image_is_not_signed() -> None:
    with pytest.raises(BadInput, match="about another image"):
        attached(evidence(OTHER))


def test_another_key_and_none_vouch_for_nothing() -> None:
    verdict = judged(attached(evidence(), key=other_key()))
    assert (verdict.signatures, verdict.attestations) == ((), ())
    assert kinds(verdict) == [WRONG_KEY]
    verdict = verified(IMAGE.digest, attached(evidence()), [], now=NOW)
    assert (verdict.signatures, verdict.attestations) == ((), ())


def test_one_of_several_keys_is_enough_and_is_named() -> None:
    other = dataclasses.replace(trusted(other_key()), name="other")
    verdict = judged(attached(evidence()), other, trusted())
    assert {item.keys for item in verdict.attestations} == {("site",)}


def test_a_key_that_is_trusted_no_more() -> None:
    ended = trusted(until=NOW - dt.timedelta(days=1))
    verdict = judged(attached(evidence()), ended)
    assert (verdict.signatures, kinds(verdict)) == ((), [EXPIRED_KEY])
    assert "site until 2026-11-20" in verdict.rejected[0].reason
    assert judged(attached(evidence()), trusted(until=NOW)).rejected == ()


def test_the_proof_of_another_image() -> None:
    """Also where its manifests are copied to the tags of this one."""
    image = dataclasses.replace(IMAGE, digest=OTHER)
    existing = attached(evidence(OTHER), image=image)
    moved = [rebuilt(item, {} if item.tag else {"subject": IMAGE.as_json()}) for item in existing]
    for proof in (existing, moved):
        verdict = judged(proof)
        assert (verdict.signatures, verdict.attestations) == ((), ())
        assert kinds(verdict) == [OTHER_SUBJECT]
        assert len(verdict.rejected) == 4


def test_what_refers_to_another_image_does_not_count() -> None:
    proof = [
        rebuilt(item, {"subject": {**IMAGE.as_json(), "digest": OTHER}}) for item in attached()
    ]
    assert kinds(judged(proof)) == [OTHER_SUBJECT]


def holding(item: ProofManifest, content: bytes, **changes: Any) -> ProofManifest:
    """A manifest of one layer made anew for another content, as who owns the registry would."""
    [layer] = layers_of(item.manifest)
    digest = digest_of(content)
    descriptor = {**layer.as_json(), "digest": digest, "size": len(content), **changes}
    return dataclasses.replace(rebuilt(item, {"layers": [descriptor]}), blobs={digest: content})


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_changed_bit_anywhere_in_a_blob_is_found() -> None:
    for item in attached(evidence()):
        for layer in layers_of(item.manifest):
            data = item.blobs[layer.digest]
            for at in range(0, len(data), 7):
                blobs = {**item.blobs, layer.digest: flipped(data, at)}
                verdict = judged([dataclasses.replace(item, blobs=blobs)])
                assert (verdict.signatures, verdict.attestations) == ((), ())
                assert kinds(verdict) == [MALFORMED]


def test_a_changed_bit_never_makes_another_statement() -> None:
    """The manifest is made anew for the changed blob, as one who owns the registry would."""
    [item] = [item for item in attached(evidence()) if item.tag == attestation_tag(IMAGE.digest)]
    [layer] = layers_of(item.manifest)
    data, accepted = item.blobs[layer.digest], 0
    for at in range(0, len(data), 3):
        verdict = judged([holding(item, flipped(data, at))])
        assert len(verdict.attestations) + len(verdict.rejected) == 1
        for attestation in verdict.attestations:
            assert attestation.payload == evidence()
            accepted += 1
    assert accepted < 5  # bits that Base64 leaves unused


@pytest.mark.parametrize(("tagged", "title"), [(False, "the bundle"), (True, "the envelope")])
def test_what_is_no_json_is_named(tagged: bool, title: str) -> None:
    tag = attestation_tag(IMAGE.digest) if tagged else ""
    item, *_ = (item for item in attached(evidence()) if item.tag == tag)
    [rejection] = judged([holding(item, b"[")]).rejected
    assert title in rejection.reason


def test_a_blob_that_is_missing() -> None:
    [item] = [dataclasses.replace(item, blobs={}) for item in attached() if not item.tag]
    assert "is missing" in judged([item]).rejected[0].reason


def sealed(payload: bytes) -> bytes:
    """A bundle with any bytes that our key signed as a statement."""
    return bundled(statements.sealed_envelope(payload, our_key()), our_key().public)


def changed_bundle(change: Callable[[dict[str, Any]], object]) -> VerifiedProof:
    """The verdict on a bundle that something was done to."""
    value = json.loads(sealed(evidence()))
    change(value)
    content = json.dumps(value).encode()
    return judged([bundle(IMAGE, content, TEST_RESULT, created="")])


def of_envelope(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """What changes a bundle's envelope."""
    return lambda item: item["dsseEnvelope"].update(changes)


BUNDLES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another media type": (lambda item: item.update(mediaType="x"), WRONG_TYPE),
    "no envelope": (lambda item: item.pop("dsseEnvelope"), WRONG_TYPE),
    "an envelope that is a list": (lambda item: item.update(dsseEnvelope=[]), WRONG_TYPE),
    "a message signature": (
        lambda item: item.update(messageSignature=item.pop("dsseEnvelope")),
        WRONG_TYPE,
    ),
    "a certificate": (
        lambda item: item.update(verificationMaterial={"certificate": {"rawBytes": "AAAA"}}),
        KEYLESS,
    ),
    "another payload type": (of_envelope(payloadType="text/plain"), WRONG_TYPE),
    "no signatures": (of_envelope(signatures=[]), MALFORMED),
    "too many signatures": (
        lambda item: item["dsseEnvelope"].update(
            signatures=item["dsseEnvelope"]["signatures"] * 17
        ),
        MALFORMED,
    ),
    "a signature that is a text": (of_envelope(signatures=["x"]), MALFORMED),
    "a signature that is not Base64": (of_envelope(signatures=[{"sig": "é"}]), MALFORMED),
    "an empty signature": (of_envelope(signatures=[{"sig": ""}]), WRONG_KEY),
    "no payload": (lambda item: item["dsseEnvelope"].pop("payload"), MALFORMED),
    "another payload": (of_envelope(payload=base64.b64encode(b"{}").decode()), WRONG_KEY),
}


@pytest.mark.parametrize(("change", "kind"), BUNDLES.values(), ids=BUNDLES)
def test_a_bundle_that_is_not_as_it_should_be(
    change: Callable[[dict[str, Any]], object], kind: str
) -> None:
    verdict = changed_bundle(change)
    assert (verdict.attestations, kinds(verdict)) == ((), [kind])


def signed(payload: bytes) -> VerifiedProof:
    """The verdict on any bytes that our key signed as a statement."""
    return judged([bundle(IMAGE, sealed(payload), "x", created="")])


GOOD = json.loads(evidence())


def good_with(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


STATEMENTS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", MALFORMED),
    "not UTF-8": (b'{"a": "\xff"}', MALFORMED),
    "a list": (b"[]", MALFORMED),
    "deep": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", MALFORMED),
    "half a character": (evidence().replace(b"libraries", b"\\ud800"), MALFORMED),
    "a key twice": (evidence()[:-1] + b',"predicateType":"x"}', MALFORMED),
    "not a number": (evidence()[:-1] + b',"a":NaN}', MALFORMED),
    "a number without a bound": (evidence()[:-1] + b',"a":1e999}', MALFORMED),
    "another type": (good_with(_type="x"), WRONG_TYPE),
    "no predicate type": (good_with(predicateType=1), MALFORMED),
    "a predicate that is a text": (good_with(predicate=""), MALFORMED),
    "no subjects": (good_with(subject=None), MALFORMED),
    "odd subjects": (good_with(subject=[1, {}, {"digest": []}]), OTHER_SUBJECT),
    "another algorithm": (
        good_with(subject=[{"digest": {"sha512": IMAGE.digest.removeprefix("sha256:")}}]),
        OTHER_SUBJECT,
    ),
}


@pytest.mark.parametrize(("payload", "kind"), STATEMENTS.values(), ids=STATEMENTS)
def test_a_signed_statement_that_is_none(payload: bytes, kind: str) -> None:
    verdict = signed(payload)
    assert (verdict.attestations, verdict.signatures) == ((), ())
    assert kinds(verdict) == [kind]


def test_several_subjects_may_be_named() -> None:
    subjects = [{"name": "sif", "digest": {"sha256": "0" * 64}}, *GOOD["subject"]]
    assert signed(good_with(subject=subjects)).rejected == ()


SIMPLE: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"type": "atomic container signature"}, WRONG_TYPE),
    "another image": ({"image": {"docker-manifest-digest": OTHER}}, OTHER_SUBJECT),
    "no image": ({"image": None}, OTHER_SUBJECT),
    "no name": ({"identity": {}}, MALFORMED),
}


@pytest.mark.parametrize(("change", "kind"), SIMPLE.values(), ids=SIMPLE)
def test_a_classic_signature_that_says_something_else(change: dict[str, Any], kind: str) -> None:
    [item] = [item for item in attached() if item.tag]
    [layer] = layers_of(item.manifest)
    claim = json.loads(item.blobs[layer.digest])
    payload = json.dumps({**claim, "critical": {**claim["critical"], **change}}).encode()
    notes = {attachments.SIGNATURE_NOTE: base64.b64encode(our_key().sign(payload)).decode()}
    verdict = judged([holding(item, payload, annotations=notes)])
    assert (verdict.signatures, kinds(verdict)) == ((), [kind])


MANIFESTS: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": ({"layers": None}, MALFORMED),
    "an old schema": ({"schemaVersion": 1}, MALFORMED),
    "many layers": ({"layers": [{}] * 201}, MALFORMED),
    "a subject that is a text": ({"subject": "x"}, MALFORMED),
}
LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "a large one": ({"size": attachments.MAX_PAYLOAD + 1}, TOO_LARGE),
    "the largest, which is another": ({"size": attachments.MAX_PAYLOAD}, MALFORMED),
    "a size that is a text": ({"size": "1"}, MALFORMED),
    "a size below 0": ({"size": -1}, MALFORMED),
    "another size": ({"size": 1}, MALFORMED),
    "annotations that are a list": ({"annotations": ["x"]}, MALFORMED),
    "annotations that are numbers": ({"annotations": {"a": 1}}, MALFORMED),
    "another algorithm": ({"digest": "md5:00"}, MALFORMED),
    "a path": ({"digest": "sha256:../x"}, MALFORMED),
}
CHANGED = {
    **MANIFESTS,
    **{
        name: ({"layers": [{**LAYER.as_json(), **change}]}, kind)
        for name, (change, kind) in LAYERS.items()
    },
}


@pytest.mark.parametrize(("change", "kind"), CHANGED.values(), ids=CHANGED)
def test_a_manifest_or_a_layer_that_cannot_be_read(change: dict[str, Any], kind: str) -> None:
    verdict = judged([rebuilt(BUNDLE, change)])
    assert (verdict.signatures, kinds(verdict)) == ((), [kind])


@pytest.mark.parametrize("digest", ["sha256:../../x", "md5:00", "sha256:" + "A" * 64, None])
def test_no_other_digest_is_asked_for(digest: str | None) -> None:
    """Clients make addresses and paths of what `layers_of` gives."""
    with pytest.raises(Unusable, match="a layer has no SHA-256 digest"):
        layers_of(rebuilt(BUNDLE, {"layers": [{**LAYER.as_json(), "digest": digest}]}).manifest)


@pytest.mark.parametrize(
    "change", [{}, {"digest": OTHER}, {"size": 1}, {"data": "é"}, {"data": None}, {"data": "e30="}]
)
def test_a_blob_in_its_descriptor_is_the_one_that_it_names(change: dict[str, Any]) -> None:
    """Who reads the manifest does not ask for the blob."""
    [layer] = json.loads(BUNDLE.manifest)["layers"]
    changed_manifest = rebuilt(BUNDLE, {"layers": [{**layer, **change}]}).manifest
    content = {LAYER.digest: BUNDLE.blobs[LAYER.digest]}
    assert embedded(changed_manifest) == ({} if change else content)


def test_what_is_as_large_as_allowed_is_read_and_embedded() -> None:
    assert json_object(b"{}", "it", limit=2) == {}
    with pytest.raises(Unusable, match="it has 3 bytes; at most 2 are read"):
        json_object(b"{} ", "it", limit=2)
    [empty] = layers_of(rebuilt(BUNDLE, {"layers": [{**LAYER.as_json(), "size": 0}]}).manifest)
    assert empty.size == 0
    for size, is_embedded in ((1 << 16, True), ((1 << 16) + 1, False)):
        [layer] = json.loads(bundle(IMAGE, b"x" * size, "x", created="").manifest)["layers"]
        assert ("data" in layer) is is_embedded
    assert changed_bundle(
        lambda item: item["dsseEnvelope"].update(signatures=item["dsseEnvelope"]["signatures"] * 16)
    ).attestations


def test_a_classic_manifest_has_as_many_layers_as_are_read() -> None:
    names = [f"{number}" for number in range(attachments.MAX_LAYERS + 1)]
    envelopes = [statements.sealed_envelope(evidence(result=one), our_key()) for one in names]
    proof = classic_attestations(IMAGE.digest, envelopes[:-1])
    digests = [layer.digest for layer in layers_of(proof.manifest)]
    assert len(digests) == 200
    config = json.loads(proof.blobs[json.loads(proof.manifest)["config"]["digest"]])
    unused = {"architecture": "", "os": "", "config": {}}
    assert config == {**unused, "rootfs": {"type": "layers", "diff_ids": digests}}
    with pytest.raises(Refused, match="201 layers; at most 200 are read"):
        classic_attestations(IMAGE.digest, envelopes)


def test_manifests_of_other_things_are_passed_over() -> None:
    other = {"schemaVersion": 2, "layers": [{"mediaType": "x", "digest": "y", "size": 1 << 40}]}
    proof = ProofManifest(manifest=json.dumps(other).encode(), blobs={})
    assert judged([proof, *attached()]).rejected == ()


def test_of_too_many_attachments_the_rest_is_not_read() -> None:
    rubbish = ProofManifest(manifest=b"x", blobs={})
    verdict = judged([*[rubbish] * attachments.MAX_ATTACHMENTS, *attached()])
    assert verdict.signatures == ()
    assert "the rest was not read" in verdict.rejected[-1].reason
    assert kinds(verdict) == [MALFORMED, TOO_LARGE]


def test_of_too_many_claims_the_rest_is_not_read() -> None:
    """Each may take the checks of 16 signatures by every key."""
    manifest = json.loads(attached()[0].manifest)
    layers = manifest["layers"] * (attachments.MAX_LAYERS // len(manifest["layers"]))
    many = rebuilt(attached()[0], {"layers": layers})
    verdict = judged([many] * (attachments.MAX_CLAIMS // len(layers) + 1))
    assert len(verdict.signatures) == attachments.MAX_CLAIMS
    assert [kind_of(item.reason) for item in verdict.rejected] == [TOO_LARGE]


@pytest.mark.parametrize("filler", ["[]", "{}", "0"])
def test_a_bundle_of_many_values_is_not_read(filler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """31 MiB of `[],` took 900 MB of memory before a signature was looked for."""
    sound = json.loads(sealed(evidence()))
    text = ",".join([filler] * 5 * attachments.MOST_VALUES)
    content = json.dumps({**sound, "more": 0}).replace('"more": 0', f'"more": [{text}]').encode()
    manifests = bundle(IMAGE, content, TEST_RESULT, created="")
    loads = json.loads

    def only_small(document: str, **more: Any) -> Any:
        assert len(document) < len(text)
        return loads(document, **more)

    monkeypatch.setattr("builder.model.exact_json.json.loads", only_small)
    verdict = judged([manifests])
    assert (verdict.attestations, kinds(verdict)) == ((), [MALFORMED])


def test_rubbish_beside_it_does_not_hide_what_is_good() -> None:
    rubbish = [ProofManifest(manifest=text, blobs={}) for text in (b"", b"null", b"\xff", b"[1]")]
    verdict = judged([*rubbish, *attached(evidence())])
    assert (len(verdict.signatures), len(verdict.attestations), len(verdict.rejected)) == (2, 2, 4)


def test_several_attestations_lie_in_one_classic_manifest() -> None:
    said = ["PASSED", "FAILED"]
    envelopes = [statements.sealed_envelope(evidence(result=one), our_key()) for one in said]
    verdict = judged([classic_attestations(IMAGE.digest, envelopes)])
    found = [member(item.statement, "predicate", "result") for item in verdict.attestations]
    assert found == said


ODD: list[Any] = [None, True, -1, 1e400, "", "\u001b[2J", [], {}, [[]], {"": ""}]
ODD += ["x" * 1000, 10**4000]


@pytest.mark.parametrize("index", range(4))
def test_whatever_is_written_somewhere_it_is_rejected_with_a_reason(index: int) -> None:
    """Every place of a manifest and of its payload in turn, with every odd value."""
    item = attached(evidence())[index]
    [layer] = layers_of(item.manifest)
    payload = json.loads(item.blobs[layer.digest])
    manifest = json.loads(item.manifest)
    proof = [
        ProofManifest(manifest=text, blobs=item.blobs, tag=item.tag)
        for path in places(manifest)
        for new in ODD
        if (text := json.dumps(replaced(manifest, path, new)).encode())
    ]
    proof += [
        holding(item, json.dumps(replaced(payload, path, new)).encode())
        for path in places(payload)
        for new in ODD
    ]
    for each in proof:
        verdict = judged([each])
        assert all(said.payload == evidence() for said in verdict.attestations)
        assert all(said.reason.isprintable() for said in verdict.rejected)


def test_a_signed_statement_may_say_anything_somewhere() -> None:
    for path in places(GOOD):
        for new in ODD:
            verdict = signed(json.dumps(replaced(GOOD, path, new)).encode())
            assert len(verdict.attestations) + len(verdict.rejected) == 1
            assert all(said.reason.isprintable() for said in verdict.rejected)
