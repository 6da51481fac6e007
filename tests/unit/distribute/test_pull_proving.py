"""Bounds of what is read of an image's proof: whoever may push can attach anything."""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections import Counter
from pathlib import Path

import pytest
from fake_registry import Fake, digest
from proof_samples import our_key, trusted
from registry_site import Content, Published, Site

from builder.distribute.pull import proof
from builder.distribute.pull.proof import proofs_of
from builder.model.errors import Refused
from builder.registry import MANIFEST, Descriptor, NotFound, Registry
from builder.registry.manifests import EMPTY, EMPTY_CONTENT
from builder.trust.policy.evidence import counted_reasons
from builder.trust.policy.records import OTHER, Claim
from builder.trust.proof.attachments import BUNDLE
from builder.trust.proof.attestations import attestation_tag

NOW = dt.datetime.now(dt.timezone.utc)


@pytest.fixture(name="image")
def published_image(fake: Fake, tmp_path: Path) -> tuple[Registry, Published]:
    fake.referrers = True
    site = Site(registry=fake.host, place=tmp_path, known={}, key=our_key())
    made = site.publish(Content())
    return site.repository(), made


def attach(registry: Registry, image: str, contents: list[bytes], note: str = "") -> None:
    """Attach a manifest of bundles to an image, as whoever may push can."""
    manifest = {
        "schemaVersion": 2,
        "artifactType": BUNDLE,
        "config": Descriptor.of(EMPTY_CONTENT, EMPTY).as_json(),
        "layers": [registry.write_blob(one, media_type=BUNDLE).as_json() for one in contents],
        "subject": registry.resolve(image).bare().as_json(),
        "annotations": {"note": note},
    }
    registry.attach(json.dumps(manifest).encode())


def judged(registry: Registry, image: str) -> Counter[str]:
    """How many proofs there are, by kind; those with a fault count as `fault`."""
    found = proofs_of(registry, [image], [trusted()], NOW)
    return Counter("fault" if one.fault else one.kind for one in found)


def test_too_many_claims_are_refused(
    image: tuple[Registry, Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed over, the rest could hide a failure."""
    registry = image[0]
    bare = registry.write_manifest(b"{}", MANIFEST).digest
    for number in range(3):
        attach(registry, bare, [b"{}"] * 10, note=str(number))
    monkeypatch.setattr(proof, "MAX_CLAIMS", 30)
    assert judged(registry, bare) == Counter(fault=30)
    monkeypatch.setattr(proof, "MAX_CLAIMS", 29)
    with pytest.raises(Refused, match="more than 29 claims"):
        judged(registry, bare)


def test_too_many_referrers_are_refused(
    image: tuple[Registry, Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, made = image
    number = len(registry.referrers(made.image))
    monkeypatch.setattr(proof, "_MOST", number)
    assert judged(registry, made.image)
    monkeypatch.setattr(proof, "_MOST", number - 1)
    with pytest.raises(Refused, match=f"{number} referrers; the limit is {number - 1}$"):
        judged(registry, made.image)


def test_rubbish_within_bounds_hides_nothing(image: tuple[Registry, Published]) -> None:
    registry, made = image
    before = judged(registry, made.image)
    attach(registry, made.image, [b"[" * 100, b'{"a":[' + b"[]," * 50_000 + b"0]}"])
    assert judged(registry, made.image) == before + Counter(fault=2)


def test_proof_that_cannot_be_read_names_its_place(
    image: tuple[Registry, Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = image[0]
    bare = registry.write_manifest(b"{}", MANIFEST).digest
    attach(registry, bare, [b"absent"])
    [attached] = registry.referrers(bare)
    tag = attestation_tag(bare)
    registry.write_manifest(b"{}", MANIFEST, tag)
    asked: list[str] = []

    def small_blob(blob: Descriptor, _most: int) -> bytes:
        asked.append(blob.digest)
        raise NotFound("no blob")

    monkeypatch.setattr(registry, "small_blob", small_blob)
    proofs = proofs_of(registry, [bare], [trusted()], NOW)
    assert {(claim.kind, claim.digest, claim.fault) for claim in proofs} == {
        (OTHER, attached.digest, "is missing (no blob)"),
        (OTHER, tag, "is damaged (not an OCI manifest)"),
    }
    assert asked == [digest(b"absent")]


def test_too_many_bytes_are_refused(
    image: tuple[Registry, Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, made = image
    attach(registry, made.image, [b"x" * 100_000])
    reader = proof._ProofReader(source=registry)
    for place in reader.places(made.image):
        reader.read(place)
    used = (128 << 20) - reader.remaining
    assert used > 100_000
    for most in (used, used - 1):
        bounded = functools.partial(type(reader), remaining=most)
        monkeypatch.setattr(proof, "_BYTES", most)
        monkeypatch.setattr(proof, "_ProofReader", bounded)
        if most == used:
            assert judged(registry, made.image)
            continue
        with pytest.raises(Refused, match=f"more than {most:,} bytes of proof"):
            judged(registry, made.image)


def test_of_a_thousand_reasons_the_first_are_told() -> None:
    proofs = [Claim(kind=OTHER, fault=f"is odd in way {number}") for number in range(1000)]
    assert counted_reasons(Counter(one.fault for one in proofs)) == (
        "1 is odd in way 0; 1 is odd in way 1; 1 is odd in way 2; 1 is odd in way 3; "
        "1 is odd in way 4; 995 for other reasons"
    )
    assert counted_reasons({}) == ""
