"""One kind of proof that is damaged, or another image's: what is refused says which kind."""

from __future__ import annotations

import json
import re

import pytest
from faulty_proxy import Fault, Proxy
from harness import Ended, passed
from pulling import assert_refused, known_images, one_registry, proxy, pull, site
from registry_site import BILL, SLSA, TEST_RESULT, Content, Site

from builder.model.predicates import BUNDLE_NOTE, CLASSIC_NOTE
from builder.registry import INDEX, MANIFEST, Descriptor
from builder.trust.proof import attestations
from builder.trust.proof.attestations import attestation_tag, signature_tag
from builder.trust.proof.statements import SIGN

pytestmark = pytest.mark.engines
__all__ = ["known_images", "one_registry", "proxy", "site"]  # fixtures
KINDS = {"signature": SIGN, "evidence": TEST_RESULT, "provenance": SLSA, "sbom": BILL}
BUNDLE, CLASSIC = "bundle", "classic"


@pytest.fixture(params=["short", "long"], name="length")
def _length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short bundle stands in its manifest, a long one is a blob of its own."""
    if request.param == "long":
        monkeypatch.setattr(attestations, "_SHORT", 0)
    return str(request.param)


def bundles_of(site: Site, subject: str, kind: str) -> list[Descriptor]:
    referring = site.repository().referrers(subject)
    return [one for one in referring if one.annotations.get(BUNDLE_NOTE) == kind]


def places_of(site: Site, subject: str, kind: str, form: str) -> list[str]:
    """Where one kind of proof of an image or an index is fetched from, in one format."""
    registry = site.repository()
    if form == BUNDLE:
        found = []
        for one in bundles_of(site, subject, kind):
            [layer] = registry.document(one)[1]["layers"]
            found.append(f"manifests/{one.digest}" if "data" in layer else layer["digest"])
        return found
    if kind == SIGN:
        layers = registry.document(signature_tag(subject))[1]["layers"]
    else:
        some = registry.document(attestation_tag(subject))[1]["layers"]
        layers = [one for one in some if one["annotations"][CLASSIC_NOTE] == kind]
    return [one["digest"] for one in layers]


def spoil(site: Site, proxy: Proxy, kind: str, *forms: str) -> None:
    """A byte of each proof of one kind is wrong; the signature of the index is one, too."""
    published = site.publish()
    subjects = [published.image, *([published.index] if kind == SIGN else [])]
    for form in forms:
        found = [place for one in subjects for place in places_of(site, one, kind, form)]
        assert found
        proxy.faults += [Fault(path=f"/{one}$", changed=True) for one in found]


def refused_by(done: Ended) -> set[str]:
    return set(re.findall(r"✗ refused +(\S+)", done.stderr))


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_byte_in_one_kind_of_proof_is_refused_and_named(
    site: Site, proxy: Proxy, kind: str, length: str
) -> None:
    del length
    spoil(site, proxy, KINDS[kind], BUNDLE, CLASSIC)
    done = pull(site, "directory", host=proxy.host)
    assert_refused(done, site)
    # Of which recipe an image is, its provenance says.
    also = {"identity"} if kind == "provenance" else set()
    assert refused_by(done) == {kind} | also
    assert "damaged" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [BUNDLE, CLASSIC])
def test_the_other_format_will_do_for_any_kind(
    site: Site, proxy: Proxy, kind: str, form: str, length: str
) -> None:
    del length
    spoil(site, proxy, KINDS[kind], form)
    done = passed(pull(site, "directory", "--explain", host=proxy.host))
    assert f"✓ passed     {kind}" in done.stdout
    assert any(fault.seen for fault in proxy.faults)


@pytest.mark.parametrize("form", [BUNDLE, CLASSIC, "list of bundles"])
def test_proof_of_another_image_is_refused(site: Site, form: str) -> None:
    """Both are of the same publisher; the second has no proof but that of the first."""
    thief = site.publish(Content(note=f"thief of a {form}"), proof=False).image
    owner = site.publish(Content(note="owner"), tag="owner").image
    steal = {BUNDLE: steal_bundles, CLASSIC: steal_tags}.get(form, steal_list)
    steal(site, owner, thief)
    done = pull(site, "directory")
    assert_refused(done, site)
    assert refused_by(done) >= KINDS.keys()
    reasons = {
        BUNDLE: f"6 the statement is about another image, not {thief}",
        CLASSIC: f"the signature is for '{owner}'; 5 the statement is about another image",
    }
    assert reasons.get(form, f"6 the manifest refers to {owner}") in done.stderr


def steal_tags(site: Site, owner: str, thief: str) -> None:
    registry = site.repository()
    for tag_of in (signature_tag, attestation_tag):
        registry.write_manifest(registry.manifest(tag_of(owner)), MANIFEST, tag_of(thief))


def steal_bundles(site: Site, owner: str, thief: str) -> None:
    """The same signed bundles in manifests of the thief's, which refer to another image."""
    registry = site.repository()
    subject = registry.resolve(thief).as_json()
    bundles = [one for one in registry.referrers(owner) if BUNDLE_NOTE in one.annotations]
    assert bundles
    manifests = [{**registry.document(one)[1], "subject": subject} for one in bundles]
    registry.attach_all([json.dumps(one).encode() for one in manifests])


def steal_list(site: Site, owner: str, thief: str) -> None:
    """The list of what refers to the owner, as it is: its manifests say of whom they are."""
    registry = site.repository()
    content = registry.manifest(owner.replace(":", "-"))
    registry.write_manifest(content, INDEX, thief.replace(":", "-"))
