"""What a key has said already is not said again, and newer evidence takes the place of older."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from proof_samples import (
    CREATED,
    IMAGE,
    REFERENCE,
    evidence,
    judged,
    other_key,
    our_key,
    results,
    trusted,
)

from builder.model.exact_json import member
from builder.trust.proof.attachments import ProofManifest, layers_of
from builder.trust.proof.attestations import attestation_tag, merged, proofs, signature_tag
from builder.trust.proof.existing import ExistingProof
from builder.trust.proof.keys import PrivateKey
from builder.trust.proof.statements import statement

TAG = attestation_tag(IMAGE.digest)
HOST = {"arch": "x86_64", "cpu": "AMD EPYC", "driver": "", "gpus": [], "kernel": "6.1"}
LAUNCHER = {"name": "the image's own", "product": "", "ranks": 0, "nodes": 0, "machines": []}
RUN: dict[str, Any] = {
    "format": "sif",
    "started": "2026-03-01T00:00:00+00:00",
    "emulated": False,
    "gpu": {"handed_over": False},
    "runner": {"name": "apptainer", "version": "1.4"},
    "host": HOST,
    "launcher": LAUNCHER,
}


def night(number: int, *, failed: tuple[str, ...] = (), **changed: Any) -> bytes:
    """Evidence of a night."""
    run = {**RUN, **changed, "finished": f"2026-03-{number:02d}T01:00:00+00:00"}
    result: dict[str, Any] = {
        "failedTests": list(failed),
        "result": "FAILED" if failed else "PASSED",
    }
    return evidence(configuration=[{"name": "run", "annotations": run}], **result)


def provenance(started: str, source: str = "git+https://git.site.example/a@1") -> bytes:
    """A build's, which began at a time."""
    predicate = {"buildDefinition": source, "runDetails": {"metadata": {"startedOn": started}}}
    kind = "https://slsa.dev/provenance/v1"
    return statement(name="it", digest=IMAGE.digest, predicate_type=kind, predicate=predicate)


class Place:
    """A repository, as `publish` leaves it."""

    def __init__(self, *, deletes: bool = True) -> None:
        self.deletes, self.there = deletes, dict[str, ProofManifest]()

    def publish(self, *statements: bytes, key: PrivateKey | None = None) -> None:
        signer = key or our_key()
        existing = ExistingProof(IMAGE.digest, self.there.values(), signer.public)
        new = existing.new_statements(statements)
        before = existing.tagged
        own = proofs(IMAGE, new, signer, reference=REFERENCE, created=CREATED, before=before)
        known = {
            digest: data for item in self.there.values() for digest, data in item.blobs.items()
        }
        for item in existing.completed(own, statements):
            current = before[item.tag].manifest if item.tag in before else b""
            written = merged(item, current) if item.tag else item
            if written:
                blobs = {**known, **written.blobs}
                self.there[item.tag or item.digest] = dataclasses.replace(written, blobs=blobs)
            for digest in item.replaces if self.deletes else ():
                del self.there[digest]

    @property
    def bundles(self) -> int:
        return len([item for item in self.there.values() if not item.tag])

    @property
    def layers(self) -> int:
        return len(layers_of(self.there[TAG].manifest))

    def evidence(self) -> list[tuple[str, str]]:
        """What is found by who looks: when, and with which result."""
        verdict = judged([*self.there.values()], trusted(), trusted(other_key()))
        predicates = [member(item.statement, "predicate") for item in results(verdict)]
        runs = [member(item, "configuration", 0, "annotations", "finished") for item in predicates]
        outcomes = [str(item["result"]) for item in predicates]
        return sorted(zip((run[8:10] for run in runs), outcomes, strict=True))


def test_a_hundred_nights_that_find_the_same_are_one() -> None:
    place = Place()
    for _ in range(4):
        for number in range(1, 29):
            place.publish(night(number), provenance(f"2026-03-{number:02d}"))
    assert place.evidence() == [("28", "PASSED")]
    assert (place.bundles, place.layers) == (3, 2)  # with signature and provenance


def test_a_registry_that_deletes_nothing_keeps_bundles() -> None:
    place = Place(deletes=False)
    for number in range(1, 5):
        place.publish(night(number))
    assert (place.bundles, place.layers) == (5, 1)


def test_a_failure_stays_beside_the_next_pass() -> None:
    place = Place()
    place.publish(night(1))
    place.publish(night(2, failed=("mpi",)))
    place.publish(night(3))
    place.publish(night(4))
    assert place.evidence() == [("02", "FAILED"), ("04", "PASSED")]


def test_what_policies_tell_apart_is_kept_apart() -> None:
    place = Place()
    others: list[dict[str, Any]] = [
        {},
        {"format": "oci"},
        {"emulated": True},
        {"runner": {"name": "singularity"}},
        {"gpu": {"handed_over": True}},
        {"host": {**HOST, "driver": "535.54.03"}},
        {"host": {**HOST, "gpus": ["Tesla V100, 7.0"]}},
        {"launcher": {**LAUNCHER, "name": "srun", "nodes": 2}},
    ]
    for number, changed in enumerate(others, 1):
        place.publish(night(number, **changed))
    for number in (9, 10):  # with another artifact each
        about_more = json.loads(night(number))
        digest = {"sha256": f"{number:064x}"}
        about_more["subject"].append({"name": "more", "digest": digest})
        place.publish(json.dumps(about_more).encode())
    for names in (("sha256", "sha512"), ("sha512", "sha256")):  # the order says nothing
        about_more["subject"][-1]["digest"] = dict.fromkeys(names, f"{11:064x}")
        place.publish(json.dumps(about_more).encode())
    place.publish(night(20, host={**HOST, "kernel": "6.6", "cpu": "Xeon"}))
    predicates = [day for day, _ in place.evidence()]
    assert predicates == ["02", "03", "04", "05", "06", "07", "08", "09", "10", "10", "20"]


def test_what_is_said_already_is_not_said_again() -> None:
    place = Place()
    place.publish(night(5), provenance("2026-01-01"))
    before = dict(place.there)
    place.publish(night(5), provenance("2026-01-02"))
    turned = json.loads(provenance("2026-01-02"))
    turned["predicate"] = dict(reversed(turned["predicate"].items()))
    place.publish(json.dumps(turned).encode())
    place.publish(night(4))  # older than what is there
    assert {name: item.manifest for name, item in place.there.items()} == {
        name: item.manifest for name, item in before.items()
    }
    place.publish(provenance("2026-01-03", "git+https://git.site.example/b@1"))
    assert (place.bundles, place.layers) == (4, 3)
    existing = ExistingProof(IMAGE.digest, place.there.values(), our_key().public)
    later = proofs(IMAGE, [], our_key(), reference=REFERENCE, created="2027-01-01T00:00:00Z")
    assert [item.tag for item in existing.completed(later, [])] == [signature_tag(IMAGE.digest)]


def test_what_is_there_in_one_format_alone_is_made_whole() -> None:
    place = Place()
    place.publish(night(5))
    for name in [name for name, item in place.there.items() if not item.tag]:
        del place.there[name]
    place.publish(night(5))
    assert (place.bundles, place.layers) == (2, 1)


def test_only_the_own_word_counts() -> None:
    """Whoever may write to a registry cannot keep evidence out with some of his own."""
    place = Place()
    place.publish(night(9), key=other_key())
    place.publish(night(3))
    place.publish(night(4))
    assert place.evidence() == [("04", "PASSED"), ("09", "PASSED")]


def test_rubbish_is_no_reason_to_stop() -> None:
    place = Place()
    place.publish(night(1), evidence(configuration=3), evidence(configuration=[{}]))
    odd = json.loads(place.there[TAG].manifest)
    assert len(odd["layers"]) == 3
    rubbish = ProofManifest(manifest=b"{}", blobs={})
    place.there["rubbish"] = rubbish
    place.publish(night(2), evidence(configuration=3))
    assert place.layers == 3
