"""What storage drivers note of one change differs; the layers that are made of it do not."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from samples import a_file, a_folder, a_hard_link, a_link, blob, tar_bytes
from samples import member as made_member

from builder.artifacts.flatten import TreeNode, lay
from builder.artifacts.layers import changes_of
from builder.artifacts.tars import PAX
from builder.model import EPOCH
from builder.model.errors import StepFailed

Layer = Sequence[tuple[tarfile.TarInfo, bytes]]


def a_device(major: int, minor: int) -> tuple[tarfile.TarInfo, bytes]:
    made = made_member("etc/n", tarfile.CHRTYPE)
    made.devmajor, made.devminor = major, minor
    return made, b""


BASE: Layer = [
    a_folder("etc"),
    a_file("etc/a", "a"),
    a_file("etc/b", "b"),
    a_folder("opt"),
    a_folder("opt/deep", mode=0o700),
    a_file("opt/deep/c", "c"),
    a_file("opt/deep/d", "d"),
    a_link("etc/l", "x"),
    a_device(1, 3),
]
DEEP: Layer = [a_folder("opt"), a_folder("opt/deep", mode=0o700)]
NOTES = {f"{PAX}user.overlay.origin": "\0\1", f"{PAX}user.overlay.impure": "y"}


def changes(folder: Path, *layers: Layer) -> list[TreeNode]:
    """The changes of the last layer; of those below it the tree is made."""
    nodes: dict[str, TreeNode] = {}
    for layer in layers[:-1]:
        lay(blob(folder, tar_bytes(*layer)), nodes)
    last = blob(folder, tar_bytes(*layers[-1]))
    return list(changes_of(last, nodes, epoch=EPOCH, lowest=len(layers) == 1))


def shown(found: Sequence[TreeNode]) -> list[tuple[object, ...]]:
    """Changes as what is written of them."""
    lines: list[tuple[object, ...]] = []
    for change in found:
        member, content = change.member, b""
        if member.isreg():
            with change.open() as stream:
                content = stream.read()
        about = (member.name, member.type, member.mode, member.linkname, member.mtime, content)
        lines.append((*about, *sorted(member.pax_headers)))
    return lines


def noted(layer: Layer) -> Layer:
    """The layer with the attributes that overlay leaves for an ordinary user."""
    for member, _ in layer:
        member.pax_headers = dict(NOTES)
    return layer


@pytest.mark.parametrize(
    ("overlay", "vfs"),
    [
        pytest.param(
            [a_folder("opt"), a_folder("opt/deep", mode=0o700), a_file("opt/deep/c", "new")],
            [a_file("opt/deep/c", "new")],
            id="folders above a file",
        ),
        pytest.param([a_folder("etc"), a_file("etc/a", "a")], [], id="what stayed as it was"),
        pytest.param(
            [*DEEP, a_file("opt/deep/.wh..wh..opq", ""), a_file("opt/deep/d", "d")],
            [a_file("opt/deep/.wh.c", "")],
            id="a folder that is made anew",
        ),
        pytest.param(
            [a_file("opt/.wh.deep", ""), a_file("opt/deep/.wh.c", "")],
            [a_file("opt/.wh.deep", "")],
            id="what goes with its folder",
        ),
        pytest.param(
            [a_folder("etc"), a_file("etc/a", "a"), a_hard_link("etc/e", "etc/a")],
            [a_file("etc/e", "a")],
            id="another name for a file",
        ),
        pytest.param([a_hard_link("etc/e", "etc/a")], [a_file("etc/e", "a")], id="into the base"),
        pytest.param([a_file("etc/.wh.never", "")], [], id="what was never there"),
        pytest.param([a_folder(".native"), a_folder(".packages")], [], id="of the build steps"),
    ],
)
def test_drivers_agree(tmp_path: Path, overlay: Layer, vfs: Layer) -> None:
    one, other = changes(tmp_path, BASE, noted(overlay)), changes(tmp_path, BASE, vfs)
    assert shown(one) == shown(other)


def test_a_folder_above_a_change_keeps_its_mode(tmp_path: Path) -> None:
    """Whoever unpacks each layer by itself would give it another."""
    found = changes(tmp_path, BASE, [a_file("opt/deep/c", "new")])
    assert [(one.member.name, one.member.mode) for one in found] == [
        ("opt", 0o755),
        ("opt/deep", 0o700),
        ("opt/deep/c", 0o644),
    ]


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        ([a_file("etc/a", "A")], ["etc", "etc/a"]),
        ([a_file("etc/a", "a", mode=0o600)], ["etc", "etc/a"]),
        ([a_link("etc/a", "b")], ["etc", "etc/a"]),
        ([a_file("etc/a", "")], ["etc", "etc/a"]),
        ([a_link("etc/l", "y")], ["etc", "etc/l"]),
        ([a_device(2, 3)], ["etc", "etc/n"]),
        ([a_device(1, 4)], ["etc", "etc/n"]),
        ([a_folder("var/log/dnf"), a_file("var/log/dnf/x")], ["var/log/dnf"]),
        ([a_file("opt/deep", "file")], ["opt", "opt/deep"]),  # in the place of a folder
        ([a_folder("etc/a"), a_file("etc/a/x", "x")], ["etc", "etc/a", "etc/a/x"]),
    ],
)
def test_what_changed_is_there(tmp_path: Path, layer: Layer, names: list[str]) -> None:
    assert [change.member.name for change in changes(tmp_path, BASE, layer)] == names


def test_an_attribute_and_an_owner_are_changes(tmp_path: Path) -> None:
    for name, value in {
        "uid": 7,
        "gid": 7,
        "mtime": 3,
        "pax_headers": {f"{PAX}user.a": "b"},
    }.items():
        member, data = a_file("etc/a", "a")
        setattr(member, name, value)
        assert [one.member.name for one in changes(tmp_path, BASE, [(member, data)])][1:], name


def test_the_times_of_folders_say_nothing(tmp_path: Path) -> None:
    layer = [a_folder("etc"), a_folder("opt")]
    for number, (member, _) in enumerate(layer):
        member.mtime = EPOCH + number
    assert changes(tmp_path, BASE, layer) == []
    assert {one.member.mtime for one in changes(tmp_path, BASE) if one.member.isdir()} == {EPOCH}


def test_what_is_emptied_has_no_size(tmp_path: Path) -> None:
    [change] = changes(tmp_path, [a_file("etc/machine-id", "0123\n")])
    assert (change.member.size, change.read()) == (0, b"")


def test_what_only_begins_like_compiled_python_stays_as_it_is(tmp_path: Path) -> None:
    text = "ab\r\n\xff\xff\xff\xff and more"
    found = changes(tmp_path, [a_file("etc/dos", text), a_link("etc/machine-id", "x")])
    assert [(one.path, one.read() if one.member.isreg() else "") for one in found] == [
        ("etc/dos", text.encode()),
        ("etc/machine-id", ""),
    ]


def test_of_several_roots_the_last_counts(tmp_path: Path) -> None:
    [change] = changes(tmp_path, [a_folder("./", 0o700), a_folder("./", 0o711)])
    assert (change.member.name, change.member.mode) == (".", 0o711)


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="/x: a hard link to /y, which is missing"):
        changes(tmp_path, BASE, [a_hard_link("x", "y")])


# ---- Random trees, as two drivers would note them ----

Tree = Mapping[str, tuple[str, str, int]]  # kind, content or target, mode


def random_tree(rng: random.Random) -> dict[str, tuple[str, str, int]]:
    tree: dict[str, tuple[str, str, int]] = {}
    for _ in range(rng.randrange(3, 25)):
        parts = [rng.choice("abc") for _ in range(rng.randrange(1, 5))]
        for n in range(1, len(parts)):
            folder = "/".join(parts[:n])
            if tree.get(folder, ("folder",))[0] != "folder":
                break
            tree.setdefault(folder, ("folder", "", 0o755))
        else:
            path = "/".join(parts)
            if path not in tree:
                tree[path] = rng.choice(
                    [
                        ("file", rng.choice("xyz"), rng.choice([0o755, 0o700])),
                        ("folder", "", rng.choice([0o755, 0o700])),
                        ("link", rng.choice("xyz"), 0),
                    ]
                )
    return tree


def mutated(tree: Tree, rng: random.Random) -> dict[str, tuple[str, str, int]]:
    other = random_tree(rng)
    kept = {path: one for path, one in tree.items() if rng.random() < 0.8}
    made: dict[str, tuple[str, str, int]] = {}
    for path, one in sorted({**other, **kept}.items()):
        above = path.rpartition("/")[0]
        if not above or made.get(above, ("",))[0] == "folder":
            made[path] = one
    return made


def as_member(path: str, one: tuple[str, str, int]) -> tuple[tarfile.TarInfo, bytes]:
    kind, text, mode = one
    if kind == "folder":
        return a_folder(path, mode=mode)
    return a_file(path, text, mode=mode) if kind == "file" else a_link(path, text)


def above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def as_noted(lower: Tree, upper: Tree, rng: random.Random, *, noise: float) -> Layer:
    """The layer from `lower` to `upper`, with unchanged paths and folders that are made anew."""
    paths = {path for path, one in upper.items() if lower.get(path) != one or rng.random() < noise}
    whiteouts = set()
    for path in {one for one in upper if upper[one][0] == "folder" and rng.random() < noise}:
        whiteouts.add(f"{path}/.wh..wh..opq")
        paths |= {one for one in upper if one.startswith(f"{path}/")}
    for path in lower.keys() - upper.keys():
        folder, _, name = path.rpartition("/")
        if not folder or upper.get(folder, ("",))[0] == "folder":
            whiteouts.add(f"{folder}/.wh.{name}".lstrip("/"))
    if noise:
        paths |= {folder for path in [*paths, *whiteouts] for folder in above(path)}
    members = [a_file(path, "") for path in sorted(whiteouts)]
    return [*(as_member(path, upper[path]) for path in sorted(paths & upper.keys())), *members]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_driver_notes_the_layer_is_the_same_and_gives_the_tree(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    lower = random_tree(rng)
    upper = mutated(lower, rng)
    base = [as_member(path, one) for path, one in sorted(lower.items())]
    found = [
        changes(tmp_path, base, as_noted(lower, upper, rng, noise=noise)) for noise in (0, 0.5)
    ]
    assert shown(found[0]) == shown(found[1])
    nodes: dict[str, TreeNode] = {}
    for layer in (changes(tmp_path, base), found[1]):
        lay(blob(tmp_path, tar_bytes(*map(written, layer))), nodes)
    assert {path: kind_of(node) for path, node in nodes.items()} == upper


def written(change: TreeNode) -> tuple[tarfile.TarInfo, bytes]:
    if not change.member.isreg():
        return change.member, b""
    with change.open() as stream:
        return change.member, stream.read()


def kind_of(node: TreeNode) -> tuple[str, str, int]:
    if node.member.isdir():
        return "folder", "", node.member.mode
    if node.member.issym():
        return "link", node.member.linkname, 0
    return "file", node.read().decode(), node.member.mode
