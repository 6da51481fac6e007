"""Image references, as people write them."""

from __future__ import annotations

import pytest
from samples import compare_with_golden

from builder.model.errors import BadInput, BuildImagesError
from builder.registry import Descriptor, Reference
from builder.registry.references import read_descriptor

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("debian", ("docker.io", "library/debian", "", "")),
        ("debian@" + DIGEST, ("docker.io", "library/debian", "", DIGEST)),
        ("nvidia/cuda:12.4.1-base", ("docker.io", "nvidia/cuda", "12.4.1-base", "")),
        ("docker.io/debian:13", ("docker.io", "library/debian", "13", "")),
        ("index.docker.io/library/debian", ("docker.io", "library/debian", "", "")),
        ("registry-1.docker.io/debian:13", ("docker.io", "library/debian", "13", "")),
        ("quay.io/" + "a" * 247, ("quay.io", "a" * 247, "", "")),
        ("nvcr.io/nvidia/cuda:1", ("nvcr.io", "nvidia/cuda", "1", "")),
        ("localhost/a/b:2", ("localhost", "a/b", "2", "")),
        ("127.0.0.1:5000/a", ("127.0.0.1:5000", "a", "", "")),
        ("localhost:65535/a", ("localhost:65535", "a", "", "")),
        ("[::1]:5000/a:1", ("[::1]:5000", "a", "1", "")),
        ("quay.io/a/b_c__d-e:1@" + DIGEST, ("quay.io", "a/b_c__d-e", "1", DIGEST)),
    ],
)
def test_a_reference_in_parts(text: str, parts: tuple[str, str, str, str]) -> None:
    found = Reference.parse(text)
    assert (found.registry, found.repository, found.tag, found.digest) == parts
    assert Reference.parse(str(found)) == found


NO_REFERENCES = (
    *("", "Debian", "a//b", "a/b-", "../etc", "quay.io/" + "a" * 248, "a:b:c", "a:", "a:-x"),
    *("a@sha256:00", "a@md5:00", "a@", "quay .io/a", "https://quay.io/a", "localhost:0/a"),
    *("localhost:65536/a", f"[::1]:{'9' * 200}/a"),
)
NO_DESCRIPTORS: dict[str, object] = {
    "none": None,
    "no digest": {},
    "another digest": {"digest": "sha512:0"},
    "no size": {"digest": DIGEST},
    "a size below zero": {"digest": DIGEST, "size": -1},
    "a size in words": {"digest": DIGEST, "size": "1"},
    "a size that is true": {"digest": DIGEST, "size": True},
    "no media type": {"digest": DIGEST, "size": 1},
    "another media type": {"digest": DIGEST, "size": 1, "mediaType": 1},
}


def test_what_is_no_reference_or_descriptor() -> None:
    """All that is told of it: one hint is for all references."""
    lines = []
    for text in NO_REFERENCES:
        with pytest.raises(BadInput) as caught:
            Reference.parse(text)
        message, _, hint = str(caught.value).partition("\n")
        assert hint == "  hint: write HOST/NAMESPACE/NAME:TAG, or HOST/NAMESPACE/NAME@sha256:..."
        lines.append(f"{caught.value.exit_code} {message}\n")
    for name, entry in NO_DESCRIPTORS.items():
        with pytest.raises(BuildImagesError) as wrong:
            read_descriptor(entry, "it")
        lines.append(f"{wrong.value.exit_code} {name}: {wrong.value}\n")
    compare_with_golden("".join(lines), "no-references.txt")


@pytest.mark.parametrize(
    "text", ["https://me:secret@quay.io/a", "me:secret@quay.io/a", "me:secret@quay.io", "me@secret"]
)
def test_a_password_is_not_repeated(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        Reference.parse(text)
    assert "secret" not in str(caught.value)
    if "/" in text:
        assert "a reference has no scheme, no user name and no password" in str(caught.value)


def test_a_descriptor_is_read_as_it_was_written() -> None:
    for one in (Descriptor.of(b"", "text/plain"), Descriptor.of(b"x", "text/plain")):
        assert read_descriptor(one.as_json(), "here") == one


@pytest.mark.parametrize(
    "parts",
    [
        {"registry": "quay.io/a"},
        {"repository": "../b"},
        {"repository": ""},
        {"tag": "/../../b"},
        {"tag": "1\x1b[2J"},
        {"tag": "x\ud800"},
        {"digest": "sha256:00"},
    ],
)
def test_parts_that_make_no_reference(parts: dict[str, str]) -> None:
    """Not those that a text is parsed to, but those that somebody else's names are put in."""
    with pytest.raises(BadInput, match="not an image reference") as caught:
        Reference(**{"registry": "quay.io", "repository": "a", **parts})
    assert "\x1b" not in str(caught.value)
    str(caught.value).encode()
    if tag := parts.get("tag"):
        with pytest.raises(BadInput, match="not an image reference"):
            Reference.parse("quay.io/a").at(tag)


def test_the_same_repository_elsewhere() -> None:
    reference = Reference.parse("quay.io/a/b:1")
    assert str(reference.at("2")) == "quay.io/a/b:2"
    assert str(reference.at(DIGEST)) == f"quay.io/a/b@{DIGEST}"
    assert reference.name == "quay.io/a/b"
