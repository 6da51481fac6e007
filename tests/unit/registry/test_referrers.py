"""What refers to an image: the registry's own list, or a tag's, of registries of every kind."""

from __future__ import annotations

import json
import threading

import pytest
from fake_registry import Fake, Fault, client, fake_registry, manifest

from builder.distribute.pull.proof import attachments_of
from builder.registry import INDEX, MANIFEST, Denied, Descriptor, NotFound, RegistryFailed
from builder.trust.proof.attachments import DSSE

LIST = "GET .*/referrers/"
PAGE = {"Content-Type": "text/html"}


def fallback(image: Descriptor) -> str:
    return image.digest.replace(":", "-")


@pytest.mark.parametrize("listed", [True, False])
def test_referrers_with_and_without_a_registrys_list(listed: bool, fake: Fake) -> None:
    fake.referrers = listed
    registry = client(fake)
    image = registry.write_manifest(manifest(), MANIFEST)
    assert registry.referrers(image.digest) == ()
    for kind in ("a/one", "a/two", "a/one"):
        registry.attach(manifest(artifactType=kind, subject=image.as_json()))
    found = registry.referrers(image.digest)
    assert sorted(one.artifact_type for one in found) == ["a/one", "a/two"]
    [one] = registry.referrers(image.digest, "a/one")
    assert one.artifact_type == "a/one"
    assert fake.tags("site/a") == (set() if listed else {fallback(image)})


def test_two_clients_lose_no_entry_of_the_fallback(fake: Fake) -> None:
    image = client(fake).write_manifest(manifest(), MANIFEST)
    contents = [manifest(artifactType=f"a/{n}", subject=image.as_json()) for n in range(8)]
    threads = [threading.Thread(target=client(fake).attach, args=(one,)) for one in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(client(fake).referrers(image.digest)) == 8


def test_an_entry_that_another_machine_wrote_over_is_written_again(fake: Fake) -> None:
    registry = client(fake)
    image = registry.write_manifest(manifest(), MANIFEST)
    tag = fallback(image)
    empty = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
    written: list[str] = []

    def write_over(request: str) -> None:
        """After the first write, what was there before is there again."""
        if request == f"GET /v2/site/a/manifests/{tag}" and written == ["once"]:
            fake.manifests["site/a", tag] = (empty, INDEX)
            written.append("over")
        if request == f"PUT /v2/site/a/manifests/{tag}":
            written.append("once" if not written else "again")

    fake.before = write_over
    registry.attach(manifest(artifactType="a/one", subject=image.as_json()))
    assert written == ["once", "over", "again"]
    assert len(registry.referrers(image.digest)) == 1


def attached(fake: Fake) -> tuple[Descriptor, Descriptor]:
    """An image, and what one client attached to it."""
    registry = client(fake)
    image = registry.write_manifest(manifest(), MANIFEST)
    return image, registry.attach(manifest(artifactType="a/one", subject=image.as_json()))


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_replaced_is_found_no_more(listed: bool, fake: Fake) -> None:
    fake.referrers = listed
    image, one = attached(fake)
    registry = client(fake)
    two = registry.attach(manifest(artifactType="a/two", subject=image.as_json()))
    registry.detach(image.digest, [one.digest])
    assert [one.digest for one in client(fake).referrers(image.digest)] == [two.digest]
    assert ("site/a", one.digest) not in fake.manifests
    registry.detach(image.digest, [one.digest])  # it is gone already


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 500])
@pytest.mark.parametrize("listed", [True, False])
def test_a_registry_that_deletes_nothing_is_no_failure(
    status: int, listed: bool, fake: Fake
) -> None:
    fake.referrers = listed
    image, one = attached(fake)
    fake.faults = [Fault(pattern="DELETE", status=status, times=99)]
    client(fake).detach(image.digest, [one.digest])
    left = client(fake).referrers(image.digest)
    assert [one.digest for one in left] == ([one.digest] if listed else [])


@pytest.mark.parametrize("status", [200, 400, 404, 405, 406])
def test_only_an_index_is_a_list(status: int, fake: Fake) -> None:
    body = b"<html>nothing of the kind</html>"
    fake.faults = [Fault(pattern=LIST, status=status, headers=PAGE, body=body, times=99)]
    image, one = attached(fake)
    assert client(fake).referrers(image.digest) == (one,)
    assert fallback(image) in fake.tags("site/a")


@pytest.mark.parametrize("status", [200, 401, 403, 404, 429, 500])
def test_a_web_site_is_no_list_whatever_it_answers(status: int, fake: Fake) -> None:
    """GHCR leads to GitHub's, others to their page for logins."""
    with fake_registry() as site:
        site.faults = [Fault(pattern="GET", status=status, headers=PAGE, body=b"<p>", times=99)]
        where = {"Location": f"http://{site.host}/packages"}
        fake.faults = [Fault(pattern=LIST, status=303, headers=where, times=99)]
        image, one = attached(fake)
        assert client(fake).referrers(image.digest) == (one,)
        assert len(site.asked) == 1, "it is not asked again"


def test_a_list_of_nothing_may_be_of_a_registry_that_keeps_none(fake: Fake) -> None:
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
    kind = {"Content-Type": f"{INDEX}; charset=utf-8"}
    fake.faults = [Fault(pattern=LIST, status=200, headers=kind, body=body, times=99)]
    image, one = attached(fake)
    assert client(fake).referrers(image.digest) == (one,)


def test_a_list_that_takes_no_note_of_a_subject_is_not_relied_on(fake: Fake) -> None:
    """The specification asks for the tag's list, too, where a write is answered without a word."""
    fake.referrers, fake.notes_subjects = True, False
    image, one = attached(fake)
    assert fallback(image) in fake.tags("site/a")
    assert [found.digest for found in client(fake).referrers(image.digest)] == [one.digest]


@pytest.mark.parametrize(
    ("status", "error"), [(403, Denied), (500, RegistryFailed), (429, RegistryFailed)]
)
def test_a_registry_that_does_not_answer_may_have_a_list(
    status: int, error: type[Exception], fake: Fake
) -> None:
    image, _ = attached(fake)
    fake.faults = [Fault(pattern=LIST, status=status, times=99)]
    with pytest.raises(error, match=str(status)):
        client(fake).referrers(image.digest)


def test_a_list_that_breaks_off_is_not_taken_for_none(fake: Fake) -> None:
    image, one = attached(fake)
    link = {"Link": f'</v2/site/a/referrers/{image.digest}>; rel="next"', "Content-Type": INDEX}
    body = json.dumps({"manifests": [one.as_json()]}).encode()
    fake.faults = [Fault(pattern=LIST, status=200, headers=link, body=body)]
    with pytest.raises(NotFound, match="referrers"):
        client(fake).referrers(image.digest)


def test_a_registry_that_takes_the_tag_for_the_digest(fake: Fake) -> None:
    """GitLab's gives the image itself, whose own list is none of what refers to it."""
    registry = client(fake)
    child = registry.write_manifest(manifest(), MANIFEST)
    listed = json.dumps({"mediaType": INDEX, "manifests": [child.as_json()]}).encode()
    image = registry.write_manifest(listed, INDEX)
    fake.manifests["site/a", fallback(image)] = (listed, INDEX)
    assert registry.referrers(image.digest) == ()
    with pytest.raises(RegistryFailed, match="the list of referrers is not an index"):
        registry.attach(manifest(subject=image.as_json()))
    assert fake.manifests["site/a", fallback(image)] == (listed, INDEX)


def test_a_registry_without_lists_is_asked_for_one_once(fake: Fake) -> None:
    image, _ = attached(fake)
    registry = client(fake)
    asked = len(fake.requests(LIST))
    assert registry.referrers(image.digest) == registry.referrers(image.digest) != ()
    assert len(fake.requests(LIST)) == asked + 1


@pytest.mark.parametrize("layer", ["one whose blob is gone", "none that is proof"])
def test_what_is_at_a_tag_of_cosigns_is_kept_in_sight(layer: str, fake: Fake) -> None:
    """Who attaches proof there writes the manifest anew, and others' proof has to stay in it."""
    registry = client(fake)
    image = registry.write_manifest(manifest(), MANIFEST)
    gone = {"mediaType": DSSE, "digest": f"sha256:{'5' * 64}", "size": 5, "annotations": {}}
    content = manifest(layers=[gone] if "gone" in layer else 3)
    registry.write_manifest(content, MANIFEST, f"{fallback(image)}.att")
    [found] = attachments_of(registry, image.digest)
    assert (found.tag, found.manifest) == (f"{fallback(image)}.att", content)
    assert found.blobs == {}
    assert len(fake.requests(rf"GET .*manifests/{fallback(image)}\.att")) == 1
