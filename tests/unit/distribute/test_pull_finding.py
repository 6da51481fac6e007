"""Which image of a registry a reference comes to, and what is taken from its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.distribute.pull.artifacts import environment_of
from builder.distribute.pull.remote_image import find
from builder.distribute.pull.streams import LIMITS
from builder.model.digests import digest_of
from builder.model.errors import BadInput, Refused
from builder.registry import INDEX, MANIFEST, Descriptor, Source

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PLAIN = [f"sha256:{digit * 64}" for digit in "ab"]
SETTINGS = {
    "architecture": "amd64",
    "created": "2026-01-02T03:04:05Z",
    "config": {"Env": ["A=1"], "Labels": {"title": "x"}, "WorkingDir": "/srv"},
    "rootfs": {"type": "layers", "diff_ids": PLAIN},
}


class Shelf(Source):
    """A repository in memory: documents by tag and digest."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[Descriptor, bytes]] = {}

    @property
    def name(self) -> str:
        return "shelf/tools"

    def put(self, value: Any, media_type: str, tag: str = "") -> Descriptor:
        content = json.dumps(value).encode()
        descriptor = Descriptor.of(content, media_type)
        for name in (tag, descriptor.digest):
            self.documents[name] = descriptor, content
        return descriptor

    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        return self.documents[target if isinstance(target, str) else target.digest]

    def small_blob(self, wanted: Descriptor, limit: int = 0) -> bytes:
        assert wanted.size <= limit
        return self.documents[wanted.digest][1]

    def read_blob(self, wanted: Descriptor, path: Path) -> None:
        raise NotImplementedError

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    check = stop


@pytest.fixture(name="shelf")
def empty_shelf() -> Shelf:
    return Shelf()


def put_image(
    shelf: Shelf, tag: str = "", settings: Mapping[str, Any] = SETTINGS, **more: Any
) -> Descriptor:
    layers = [Descriptor.of(name.encode(), LAYER).as_json() for name in ("one", "two")]
    config = shelf.put(settings, CONFIG).as_json()
    return shelf.put({"config": config, "layers": layers, **more}, MANIFEST, tag)


def entry(of: Descriptor, architecture: str, system: str = "linux") -> dict[str, Any]:
    return {**of.as_json(), "platform": {"os": system, "architecture": architecture}}


def put_index(shelf: Shelf, entries: Sequence[Mapping[str, Any]]) -> Descriptor:
    return shelf.put({"manifests": entries}, INDEX, "1.0")


def test_what_is_taken_from_an_image(shelf: Shelf) -> None:
    manifest = put_image(shelf, "1.0")
    found = find(shelf, "1.0", "x86_64")
    assert found.manifest == manifest
    assert digest_of(found.content) == manifest.digest
    assert digest_of(found.config) == found.config_descriptor.digest
    assert found.labels == {"title": "x"}
    assert found.environment == ("A=1",)
    assert found.directory == "/srv"
    assert list(found.diff_ids.values()) == PLAIN
    assert list(found.diff_ids) == [layer.digest for layer in found.layers]
    assert (found.image.digest, found.image.index) == (manifest.digest, "")
    assert (found.image.architecture, found.image.asked) == ("x86_64", "x86_64")
    assert found.image.created is not None
    assert found.image.created.isoformat() == "2026-01-02T03:04:05+00:00"


def test_quotes_around_a_variable_reach_programs_under_ch_run(shelf: Shelf) -> None:
    variables = ["A='b'", "C=d=e", "F=g\nh", "I=", "é=\ud800"]
    config = {"architecture": "amd64", "config": {"Env": variables}}
    put_image(shelf, "1.0", config, layers=[])
    expected = "A=''b''\nC=d=e\nI=\né=\\ud800\n"
    assert environment_of(find(shelf, "1.0", "x86_64")) == expected.encode()


def test_a_configuration_that_says_little(shelf: Shelf) -> None:
    put_image(shelf, "1.0", {"architecture": "sparc"}, layers=[])
    found = find(shelf, "1.0", "x86_64")
    assert (found.labels, found.environment, found.directory) == ({}, (), "/")
    assert (found.diff_ids, found.image.created) == ({}, None)
    assert found.image.architecture == "sparc"


def test_the_manifest_says_when_it_was_made(shelf: Shelf) -> None:
    notes = {"org.opencontainers.image.created": "2026-02-03T00:00:00Z"}
    put_image(shelf, "1.0", annotations=notes)
    created = find(shelf, "1.0", "x86_64").image.created
    assert created is not None
    assert created.isoformat() == "2026-02-03T00:00:00+00:00"


@pytest.mark.parametrize(("arch", "name"), [("x86_64", "amd64"), ("ppc64le", "ppc64le")])
def test_an_index_has_an_image_for_each_architecture(arch: str, name: str, shelf: Shelf) -> None:
    images = {
        other: put_image(shelf, settings={**SETTINGS, "architecture": other})
        for other in ("amd64", "arm64", "ppc64le")
    }
    windows = put_image(shelf, settings={**SETTINGS, "os": "windows"})
    entries = [entry(windows, name, "windows"), *(entry(of, key) for key, of in images.items())]
    index = put_index(shelf, [*entries, entry(images[name], name)])
    found = find(shelf, "1.0", arch)
    assert found.manifest == images[name]
    assert found.image.index == index.digest
    assert (found.image.architecture, found.image.asked) == (arch, arch)


@pytest.mark.parametrize(
    ("names", "there"),
    [
        (["amd64", "arm64"], "available: x86_64, aarch64"),
        (["sparc", "amd64", "amd64", "\x1b"], "available: x86_64, sparc"),
        (["", ""], "available: none"),
        ([], "available: none"),
    ],
)
def test_an_index_without_an_image_says_which_there_are(
    names: list[str], there: str, shelf: Shelf
) -> None:
    image = put_image(shelf)
    index = put_index(shelf, [entry(image, name) for name in names])
    with pytest.raises(BadInput) as refused:
        find(shelf, "1.0", "ppc64le")
    expected = f"shelf/tools@{index.digest}: no image for ppc64le; {there}"
    hint = "name another architecture with --arch, or ask for the image to be built"
    assert str(refused.value).splitlines() == [expected, f"  hint: {hint}"]


def test_two_images_for_one_architecture_are_refused(shelf: Shelf) -> None:
    images = [put_image(shelf, settings={**SETTINGS, "author": name}) for name in "ab"]
    put_index(shelf, [entry(image, "amd64") for image in images])
    with pytest.raises(Refused, match="2 images for x86_64, expected one"):
        find(shelf, "1.0", "x86_64")


def test_an_index_of_as_many_images_as_may_be(shelf: Shelf) -> None:
    entries = [entry(put_image(shelf), "amd64")] * LIMITS.layers
    put_index(shelf, entries)
    assert find(shelf, "1.0", "x86_64").image.architecture == "x86_64"
    put_index(shelf, [*entries, entries[0]])
    with pytest.raises(Refused, match=f"longer than {LIMITS.layers}"):
        find(shelf, "1.0", "x86_64")


@pytest.mark.parametrize("layers", [{}, None])
def test_what_is_no_image_is_refused(layers: object, shelf: Shelf) -> None:
    put_image(shelf, "1.0", layers=layers)
    with pytest.raises(Refused, match="list of layers missing, or longer than"):
        find(shelf, "1.0", "x86_64")


def test_another_type_of_manifest_is_refused(shelf: Shelf) -> None:
    shelf.put({}, "text/x", "1.0")
    with pytest.raises(Refused, match="not an OCI image, but text/x"):
        find(shelf, "1.0", "x86_64")


@pytest.mark.parametrize("diff_ids", [PLAIN[:1], [*PLAIN, PLAIN[0]], ["sha256:1", PLAIN[0]], "ab"])
def test_every_layer_has_one_digest_of_what_it_unpacks_to(diff_ids: object, shelf: Shelf) -> None:
    put_image(shelf, "1.0", {**SETTINGS, "rootfs": {"diff_ids": diff_ids}})
    with pytest.raises(Refused, match="its diff_ids do not match its 2 layers"):
        find(shelf, "1.0", "x86_64")
    layer = Descriptor.of(b"one", LAYER).as_json()
    put_image(shelf, "1.0", layers=[layer, layer])
    with pytest.raises(Refused, match="it has two diff_ids for one layer"):
        find(shelf, "1.0", "x86_64")
