"""Manifests of a mirrored registry in shapes that no manifest has: refused, in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_registry import fake_registry

from builder.distribute.publish.mirror import CopiedManifest, found_release
from builder.registry import (
    INDEX,
    MANIFEST,
    Credentials,
    Descriptor,
    Reference,
    WrongContent,
    connect,
)


@pytest.mark.parametrize(
    "content",
    [b"?", b"[]", b'{"layers": 5}', b'{"config": null}', b'{"layers": [], "layers": []}'],
)
def test_blobs_of_a_manifest_that_is_none(content: bytes) -> None:
    copied = CopiedManifest(descriptor=Descriptor.of(content, MANIFEST), content=content)
    with pytest.raises(WrongContent, match="sha256:"):
        list(copied.blobs())


def test_layers_may_be_null() -> None:
    content = b'{"layers": null}'
    assert not list(
        CopiedManifest(descriptor=Descriptor.of(content, MANIFEST), content=content).blobs()
    )


@pytest.mark.parametrize("subject", [None, [], "x"])
def test_what_names_no_subject_is_refused(
    subject: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    with fake_registry() as fake:
        source = connect(Reference.parse(f"{fake.host}/site/a"), Credentials(files=()))
        index = source.write_manifest(b'{"manifests": []}', INDEX, "1.0")
        bad = source.write_manifest(json.dumps({"subject": subject}).encode(), MANIFEST)
        listed = json.dumps({"manifests": [bad.as_json()]}).encode()
        source.write_manifest(listed, INDEX, index.digest.replace(":", "-"))
        with pytest.raises(WrongContent, match="does not refer to"):
            found_release(source, "a", ["1.0"], [])


def test_two_images_of_one_architecture_are_refused() -> None:
    with fake_registry() as fake:
        source = connect(Reference.parse(f"{fake.host}/site/a"), Credentials(files=()))
        entries = []
        for content in (b'{"layers": []}', b'{"layers":  []}'):
            image = source.write_manifest(content, MANIFEST).as_json()
            entries.append({**image, "platform": {"os": "linux", "architecture": "amd64"}})
        source.write_manifest(json.dumps({"manifests": entries}).encode(), INDEX, "1.0")
        with pytest.raises(WrongContent, match="two images for amd64"):
            found_release(source, "a", ["1.0"], [])
