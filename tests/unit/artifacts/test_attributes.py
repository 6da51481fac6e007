"""Extended attributes: the image's own count, in every format, and the build host's do not."""

from __future__ import annotations

import io

import pytest
from samples import a_file, a_folder, tar_bytes

from builder.artifacts.flatten import entries_of_tar
from builder.artifacts.tars import PAX
from builder.artifacts.tree import (
    TreeEntry,
    comparable,
    differences,
    owner_differences,
    tree_digest,
)


def tree(*named: tuple[str, str]) -> dict[str, TreeEntry]:
    """A tree of a folder and a file with attributes."""
    members = [a_folder("etc"), a_file("etc/x")]
    for member, _ in members:
        member.pax_headers = {PAX + name: text for name, text in named}
    return comparable(entries_of_tar(io.BytesIO(tar_bytes(*members))))


def test_the_tree_digest_counts_attributes() -> None:
    plain, noted, other = tree(), tree(("user.note", "a")), tree(("user.note", "b"))
    assert len({tree_digest(plain), tree_digest(noted), tree_digest(other)}) == 3
    assert differences(noted, other)[0] == "/etc: another extended attribute user.note"


@pytest.mark.parametrize(
    "name",
    [
        "security.selinux",
        "trusted.overlay.opaque",
        "user.overlay.origin",
        "user.overlay.impure",
        "user.rootlesscontainers",
        "user.containers.override_stat",
    ],
)
def test_what_the_build_host_notes_is_not_the_images(name: str) -> None:
    assert tree((name, "x")) == tree()
    assert tree_digest(tree((name, "x"))) == tree_digest(tree())


def test_what_only_root_may_give_is_compared_like_owners() -> None:
    """An ordinary user's SIF cannot keep a capability."""
    plain, able = tree(), tree(("security.capability", "\1\0"))
    assert tree_digest(plain) == tree_digest(able)
    assert owner_differences(plain, able) == [
        "/etc: owner 0:0, not 0:0 security.capability='\\x01\\x00'",
        "/etc/x: owner 0:0, not 0:0 security.capability='\\x01\\x00'",
    ]
