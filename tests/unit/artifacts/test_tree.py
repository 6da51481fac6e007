"""The tree digest: what makes two root file systems equal, and what does not."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest
from samples import a_file, a_folder, a_hard_link, a_link, member, tar_bytes

from builder.artifacts import flatten
from builder.artifacts.flatten import MOUNT_POINTS, entries_of_tar
from builder.artifacts.oci import read_layout, write_archive
from builder.artifacts.tars import PAX
from builder.artifacts.tree import (
    ALLOWED,
    TreeEntry,
    clean,
    comparable,
    differences,
    is_allowed,
    keeps_owners,
    owner_differences,
    tree_digest,
)
from builder.model.errors import StepFailed

Member = tuple[tarfile.TarInfo, bytes]


def tree(*members: Member) -> dict[str, TreeEntry]:
    return comparable(entries_of_tar(io.BytesIO(tar_bytes(*members))))


def digest(*members: Member) -> str:
    return tree_digest(tree(*members))


def whole() -> list[Member]:
    return [
        a_folder("usr"),
        a_folder("usr/bin"),
        a_file("usr/bin/sh", "shell", 0o755),
        a_file("usr/bin/su", "su", 0o4755),
        a_hard_link("usr/bin/bash", "usr/bin/sh"),
        a_link("bin", "usr/bin"),
        (member("usr/pipe", tarfile.FIFOTYPE), b""),
        a_file("usr/empty", ""),
        a_file("usr/ünïcode name", "x"),
    ]


def test_an_image_has_the_same_digest_for_ever() -> None:
    """Manifests and evidence hold it."""
    marked = a_file("marked")
    marked[0].pax_headers = {f"{PAX}user.b": "1", f"{PAX}user.a": "2"}
    devices = [(member(str(kind), kind), b"") for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE)]
    expected = "sha256:348ac4179212415e17daee96424e2692288df55e10eff8901c1d49c2734e6ddb"
    assert digest(*whole(), marked, *devices) == expected


def test_order_does_not_count() -> None:
    members = [one for one in whole() if not one[0].islnk()]
    shuffled = [*members]
    random.Random(1).shuffle(shuffled)
    assert shuffled != members
    assert digest(*shuffled) == digest(*members)


@pytest.mark.parametrize("prefix", ["./", "/", ".//"])
def test_how_names_begin_does_not_count(prefix: str) -> None:
    members = whole()
    for info, _ in members:
        info.name = prefix + info.name
        if info.islnk():
            info.linkname = prefix + info.linkname
    assert digest(a_folder("./"), *members) == digest(*whole())


def test_owners_and_times_do_not_count() -> None:
    members = whole()
    for info, _ in members:
        info.uid, info.gid, info.uname, info.gname, info.mtime = 1000, 7, "me", "us", 1_700_000_000
    assert digest(*members) == digest(*whole())


def test_owners_are_read_and_compared_by_themselves() -> None:
    members = whole()
    for info, _ in members:
        if info.name in {"usr/bin/su", "bin", "usr"}:
            info.uid, info.gid = 0, 42
    ours, theirs = tree(*whole()), tree(*members)
    assert differences(ours, theirs) == []
    assert owner_differences(ours, theirs) == [
        "/bin: owner 0:0, not 0:42",
        "/usr: owner 0:0, not 0:42",
        "/usr/bin/su: owner 0:0, not 0:42",
    ]
    assert (keeps_owners(ours), keeps_owners(theirs)) == (False, True)
    assert owner_differences(ours, {}) == []


def test_what_else_tar_sets_as_root_belongs_to_the_owner() -> None:
    """tar prefers names to numbers, and reads access lists from headers of their own."""
    named, listed, device = a_file("a", "x"), a_file("b", "x"), a_file("c", "")
    named[0].uname = "games"
    listed[0].pax_headers = {"SCHILY.acl.access": "user::rwx"}
    device[0].type, device[0].devmajor, device[0].devminor = tarfile.CHRTYPE, 1, 3
    other, _ = a_file("c", "")
    other.type, other.devmajor, other.devminor = tarfile.CHRTYPE, 1, 1
    ours = tree(a_file("a", "x"), a_file("b", "x"), (other, b""))
    assert owner_differences(tree(named, listed, device), ours) == [
        "/a: owner 0:0 user 'games', not 0:0",
        "/b: owner 0:0 SCHILY.acl.access='user::rwx', not 0:0",
        "/c: owner 0:0 device 1:3, not 0:0 device 1:1",
    ]


def test_which_of_two_hard_links_comes_first_does_not_count() -> None:
    one = [a_file("a", "text", 0o755), a_hard_link("b", "a")]
    other = [a_file("b", "text", 0o755), a_hard_link("a", "b")]
    copies = [a_file("a", "text", 0o755), a_file("b", "text", 0o755)]
    assert digest(*one) == digest(*other) == digest(*copies)


def test_a_hard_link_to_a_link_is_a_link() -> None:
    assert digest(a_link("a", "x"), a_hard_link("b", "a")) == digest(
        a_link("a", "x"), a_link("b", "x")
    )


def test_the_mode_of_a_link_does_not_count() -> None:
    link = member("bin", tarfile.SYMTYPE, mode=0o755, target="usr/bin")
    assert digest((link, b"")) == digest(a_link("bin", "usr/bin"))


CHANGED = {
    "content": [a_file("a", "texu")],
    "length": [a_file("a", "text ")],
    "mode": [a_file("a", mode=0o600)],
    "setuid": [a_file("a", mode=0o4644)],
    "sticky": [a_file("a", mode=0o1644)],
    "name": [a_file("b")],
    "kind": [a_folder("a", 0o644)],
    "link": [a_link("a", "text")],
    "more": [a_file("a"), a_file("b")],
    "less": [],
}


@pytest.mark.parametrize("change", sorted(CHANGED))
def test_everything_else_counts(change: str) -> None:
    assert digest(*CHANGED[change]) != digest(a_file("a"))


def test_the_target_of_a_link_counts() -> None:
    assert digest(a_link("a", "b")) != digest(a_link("a", "c"))


def layout_of(members: list[Member], folder: Path) -> Path:
    (folder / "rootfs.tar").write_bytes(tar_bytes(*members))
    archive = folder / "image.tar"
    write_archive(
        folder / "rootfs.tar", archive, architecture="amd64", environment={}, name="debian13"
    )
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "layout", filter="data")
    return folder / "layout"


@pytest.mark.parametrize("link", [a_hard_link("usr/ln", "bin"), a_hard_link("usr/x", "usr/pipe")])
def test_a_layout_has_the_digest_of_its_tar(link: Member, tmp_path: Path) -> None:
    members = [*whole(), link]
    layout = read_layout(layout_of(members, tmp_path))
    assert tree_digest(comparable(flatten.entries_of_layout(layout))) == digest(*members)


def test_every_allowance_has_a_reason_and_a_plain_path() -> None:
    assert all(len(reason) > 20 for reason in ALLOWED.values())
    assert all(path == clean(path) for path in ALLOWED)


@pytest.mark.parametrize("path", ALLOWED)
def test_what_is_allowed_may_differ_with_all_below_it(path: str) -> None:
    base = [a_folder("usr")]
    assert digest(*base, a_folder(path)) == digest(*base)
    if path not in MOUNT_POINTS:
        assert digest(*base, a_file(path)) == digest(*base)
    assert digest(*base, a_file(f"{path}/deep/below")) == digest(*base)


@pytest.mark.parametrize(
    "path",
    ["device", "etc", "etc/hosts.allow", "usr/dev", "tmpfile", "ch2/x", "etc/resolv", "var/run"],
)
def test_nothing_else_is_allowed(path: str) -> None:
    assert not is_allowed(path)
    assert digest(a_file(path)) != digest()


def test_a_hard_link_to_nothing_is_a_failure() -> None:
    with pytest.raises(StepFailed, match="/b: a hard link to /a, which is missing"):
        digest(a_hard_link("b", "a"))


def entry(path: str, **fields: str | int) -> dict[str, TreeEntry]:
    given = {"kind": "file", "mode": 0o644, **fields}
    return {path: TreeEntry(path=path, **given)}  # type: ignore[arg-type]


def test_differences_are_sorted_and_name_the_tree() -> None:
    one = {**entry("b"), **entry("d"), **entry("e", kind="link", target="x"), **entry("f")}
    one |= entry("g", mode=0o60)
    other = {**entry("a"), **entry("c"), **entry("d", size=2), **entry("f", kind="directory")}
    other |= entry("g", mode=0o4755)
    other |= entry("e", kind="link", target="y")
    assert differences(one, one) == []
    assert differences(one, other) == [
        "/a: only in the second",
        "/b: only in the first",
        "/c: only in the second",
        "/d: different content (0 bytes, not 2)",
        "/e: links to x, not y",
        "/f: file, not directory",
        "/g: mode 0060, not 4755",
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [("./a/b", "a/b"), ("/a", "a"), ("a/", "a"), (".", ""), ("./", ""), ("a/../../b", "b")],
)
def test_names_are_cleaned(name: str, path: str) -> None:
    assert clean(name) == path


def test_a_large_tar_is_read_as_a_stream() -> None:
    class Stream(io.BytesIO):
        """Gives bytes in order, and cannot go back."""

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

    assert tree_digest(comparable(entries_of_tar(Stream(tar_bytes(*whole()))))) == digest(*whole())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_in_place_of_what_describes_an_image_is_not_left_out(kind: bytes) -> None:
    """Apptainer would run it as any other script of a SIF."""
    path = ".singularity.d/env/91-more.sh"
    link = a_link(path, "f") if kind == tarfile.SYMTYPE else a_hard_link(path, "f")
    kept: dict[str, bytes] = {}
    entries = list(entries_of_tar(io.BytesIO(tar_bytes(a_file("f"), link)), kept))
    assert len(entries) == 2
    assert kept == {path: b"\0"}


# ---- Extended attributes: the image's own count, and the build host's do not ----


def noted(*named: tuple[str, str]) -> dict[str, TreeEntry]:
    """A tree of a folder and a file with attributes."""
    members = [a_folder("etc"), a_file("etc/x")]
    for info, _ in members:
        info.pax_headers = {PAX + name: text for name, text in named}
    return comparable(entries_of_tar(io.BytesIO(tar_bytes(*members))))


def test_the_tree_digest_counts_attributes() -> None:
    plain, one, other = noted(), noted(("user.note", "a")), noted(("user.note", "b"))
    assert len({tree_digest(plain), tree_digest(one), tree_digest(other)}) == 3
    assert differences(one, other)[0] == "/etc: different extended attribute user.note"


@pytest.mark.parametrize(
    "name",
    [
        "security.selinux",
        "trusted.overlay.opaque",
        "user.overlay.origin",
        "user.overlay.impure",
        "user.rootlesscontainers",
        "user.fuseoverlayfs.opaque",
        "user.containers.override_stat",
    ],
)
def test_what_the_build_host_notes_is_not_the_images(name: str) -> None:
    assert noted((name, "x")) == noted()
    assert tree_digest(noted((name, "x"))) == tree_digest(noted())


def test_what_only_root_may_give_is_compared_like_owners() -> None:
    """An ordinary user's SIF cannot keep a capability."""
    plain, able = noted(), noted(("security.capability", "\1\0"))
    assert tree_digest(plain) == tree_digest(able) == tree_digest(noted(("trusted.note", "x")))
    assert owner_differences(plain, able) == [
        "/etc: owner 0:0, not 0:0 security.capability='\\x01\\x00'",
        "/etc/x: owner 0:0, not 0:0 security.capability='\\x01\\x00'",
    ]
