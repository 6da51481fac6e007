"""What is mirrored with an image: which of it counts as evidence, and how its tags are written."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from pathlib import Path

import pytest
from fake_registry import Fake
from test_publishing import registry_in_memory  # noqa: F401 - fixture

from builder.distribute.publish.mirror import ReleaseMirror, found_release
from builder.distribute.publish.proof import proof_lock
from builder.distribute.publish.publisher import BlobTransfer
from builder.model.errors import Refused
from builder.model.predicates import SLSA, TEST_RESULT
from builder.registry import (
    INDEX,
    MANIFEST,
    Credentials,
    Descriptor,
    Reference,
    Registry,
    RegistryFailed,
    connect,
)
from builder.registry.manifests import SIF, referrer

LACKING = "no evidence refers to it"


def repository(fake: Fake, name: str = "site/a") -> Registry:
    return connect(Reference.parse(f"{fake.host}/{name}"), Credentials(files=()))


def published(source: Registry) -> Descriptor:
    """An image of one architecture, under the tag 1.0; nothing refers to it."""
    image = source.write_manifest(b'{"layers": []}', MANIFEST)
    entry = {**image.as_json(), "platform": {"os": "linux", "architecture": "amd64"}}
    source.write_manifest(json.dumps({"manifests": [entry]}).encode(), INDEX, "1.0")
    return image


def reasons(source: Registry) -> list[str]:
    return found_release(source, "a", ["1.0"], ["amd64"])[1]


@pytest.mark.parametrize(
    ("artifact_type", "note"),
    [
        ("application/vnd.in-toto+json", "in-toto.io/predicate-type"),
        ("application/vnd.dev.sigstore.bundle.v0.3+json", "dev.sigstore.bundle.predicateType"),
    ],
)
def test_evidence_is_what_says_that_it_is(artifact_type: str, note: str, fake: Fake) -> None:
    """Not what has a type in which statements of any kind come."""
    source = repository(fake)
    image = published(source)
    for kind in ("", SLSA, f"{TEST_RESULT}.1", TEST_RESULT):
        content = {
            "artifactType": artifact_type,
            "subject": image.as_json(),
            "annotations": {note: kind} if kind else {},
        }
        assert [one.rpartition(": ")[2] for one in reasons(source)] == [LACKING]
        source.attach(json.dumps(content).encode())
    assert reasons(source) == []


def test_evidence_in_the_classic_format(fake: Fake) -> None:
    source = repository(fake)
    image = published(source)
    for kind in (SLSA, TEST_RESULT):
        assert [one.rpartition(": ")[2] for one in reasons(source)] == [LACKING]
        layer = source.write_blob(kind.encode(), media_type="application/vnd.dsse.envelope.v1+json")
        layers = [{**layer.as_json(), "annotations": {"predicateType": kind}}]
        tag = f"{image.digest.replace(':', '-')}.att"
        source.write_manifest(json.dumps({"layers": layers}).encode(), MANIFEST, tag)
    assert reasons(source) == []


def signed(source: Registry) -> tuple[Descriptor, str]:
    """A published image, and the tag of its signatures."""
    image = published(source)
    layer = source.write_blob(b"{}", media_type="application/vnd.dev.cosign.simplesigning.v1+json")
    tag = f"{image.digest.replace(':', '-')}.sig"
    source.write_manifest(json.dumps({"layers": [layer.as_json()]}).encode(), MANIFEST, tag)
    return image, tag


def test_of_several_files_of_a_format_none_is_named(fake: Fake) -> None:
    """Whoever may write to the source can have one refer to an image."""
    source = repository(fake)
    image = published(source)
    for content, named in ((b"a", True), (b"a", True), (b"b", False)):
        layer = source.write_blob(content, media_type=SIF)
        notes = {"made": str(len(fake.manifests))}
        some = referrer(layer, image, artifact_type=SIF, annotations=notes)
        source.attach(some)
        release, _ = found_release(source, "a", ["1.0"], ["amd64"])
        assert release is not None
        mirror = ReleaseMirror(source=lambda _: source, target=lambda _: source, jobs=1)
        [(_, told)] = mirror.described(release).images.items()
        assert ("sif" in told) is named
        assert told["oci"] == image.digest


def mirror_to(source: Registry, target: Registry) -> None:
    release, _ = found_release(source, "a", ["1.0"], ["amd64"])
    assert release is not None
    ReleaseMirror(source=lambda _: source, target=lambda _: target, jobs=2).send([release])


def test_tags_of_proof_are_written_when_it_is_their_turn(fake: Fake) -> None:
    """`publish` adds to what is there: what it has read is not written over meanwhile."""
    source, target = repository(fake), repository(fake, "site/copy")
    image, tag = signed(source)
    copying = threading.Thread(target=mirror_to, args=(source, target))
    with proof_lock(target, image.digest):
        copying.start()
        while not fake.requests(f"PUT /v2/site/copy/manifests/{image.digest}"):
            time.sleep(0.01)
        time.sleep(0.3)
        assert not fake.requests(f"/v2/site/copy/manifests/{tag}")
    copying.join()
    assert {tag, "1.0"} <= fake.tags("site/copy")


def written_over(fake: Fake, tag: str, content: bytes) -> None:
    """Have another client write over a tag of the copy, before it is read again."""
    name = f"/v2/site/copy/manifests/{tag}"

    def write_over(request: str) -> None:
        if re.fullmatch(f"GET {name}", request) and fake.requests(f"PUT {name}"):
            fake.manifests["site/copy", tag] = (content, MANIFEST)

    fake.before = write_over


def test_proof_that_another_wrote_over_sets_no_tag(fake: Fake) -> None:
    source, target = repository(fake), repository(fake, "site/copy")
    _, tag = signed(source)

    written_over(fake, tag, b'{"layers": []}')
    with pytest.raises(RegistryFailed, match="another client overwrote this proof"):
        mirror_to(source, target)
    assert "1.0" not in fake.tags("site/copy")


def test_proof_of_the_target_that_the_source_lacks_is_not_written_over(fake: Fake) -> None:
    source, target = repository(fake), repository(fake, "site/copy")
    _, tag = signed(source)
    lost = f"sha256:{'0' * 64}"
    layers = {"layers": [{"mediaType": "x", "digest": lost, "size": 1}]}
    theirs = (json.dumps(layers).encode(), MANIFEST)
    fake.manifests["site/copy", tag] = theirs
    said = f"{target.name}:{tag}: the target has proof that the source lacks: {lost}\n"
    with pytest.raises(Refused, match=said) as refused:
        mirror_to(source, target)
    assert "remove the tag from the target, or copy into another namespace" in str(refused.value)
    assert fake.manifests["site/copy", tag] == theirs
    assert "1.0" not in fake.tags("site/copy")


def test_proof_that_another_has_added_to_is_no_loss(fake: Fake) -> None:
    source, target = repository(fake), repository(fake, "site/copy")
    _, tag = signed(source)

    parsed = json.loads(fake.manifests["site/a", tag][0])
    parsed["layers"] += [{"mediaType": "x", "digest": f"sha256:{'0' * 64}", "size": 1}]
    written_over(fake, tag, json.dumps(parsed).encode())
    mirror_to(source, target)
    assert "1.0" in fake.tags("site/copy")


def test_a_blob_on_its_way_has_no_name(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is killed leaves none among the temporary files, which may be large."""
    home, temporary = tmp_path / "new/home", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    source, target, seen = repository(fake), repository(fake, "other/copy"), list[Path]()
    blobs = [source.write_blob(content) for content in (b"a layer", b"another")]
    fake.before = lambda _: seen.extend([*temporary.iterdir(), *home.glob("*")])
    for blob in blobs:
        BlobTransfer(registry=target, blob=blob, origin=source).send()
    assert seen == []
    assert all(target.has_blob(blob.digest) for blob in blobs)
