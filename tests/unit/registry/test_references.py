"""Image references, as people write them."""

from __future__ import annotations

import pytest

from builder.model.errors import BadInput
from builder.registry import Descriptor, Reference

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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a repository"),
        ("Debian", "not a repository"),
        ("a//b", "not a repository"),
        ("a/b-", "not a repository"),
        ("../etc", "not a host|not a repository"),
        ("quay.io/" + "a" * 248, "a name has at most 255 characters"),
        ("a:b:c", "not a tag"),
        ("a:", "not a tag"),
        ("a:-x", "not a tag"),
        ("a@sha256:00", "^a@sha256:00: not an image reference: a digest is sha256"),
        ("a@md5:00", "^a: not an image reference: a digest is sha256"),
        ("a@", "a digest is sha256"),
        ("quay .io/a", "not a host|not a repository"),
        ("https://quay.io/a", "no scheme"),
        ("localhost:0/a", "is not a host"),
        ("localhost:65536/a", "a port up to 65535"),
        (f"[::1]:{'9' * 200}/a", "a port up to 65535"),
    ],
)
def test_what_is_no_reference(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        Reference.parse(text)
    assert caught.value.exit_code == 2
    assert caught.value.hint == ("write HOST/NAMESPACE/NAME:TAG, or HOST/NAMESPACE/NAME@sha256:...")


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
        assert Descriptor.read(one.as_json(), "here") == one


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
