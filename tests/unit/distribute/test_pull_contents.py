"""Notes on layers: they say what the layer holds, and are believed only where that is safe."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from test_pull_unpacking import GOOD, HOSTILE, M, layer

from builder.distribute.pull.cache import Contents, noted
from builder.distribute.pull.layers import read, unpack
from builder.distribute.pull.streams import LIMITS
from builder.model.errors import Interrupted, Refused

MEMBERS = [M("a", b"1"), M("b", b"22", mode=0o755)]


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    return Contents(folder=tmp_path / "notes")


@pytest.mark.parametrize("name", GOOD)
def test_notes_come_to_the_same_tree(name: str, tmp_path: Path, contents: Contents) -> None:
    layers = [layer(tmp_path, members) for members in GOOD[name]]
    notes = [(contents.note(*one), one[1]) for one in layers]
    assert unpack(notes, None, reader=noted) == unpack(layers, None)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused_is_refused_by_its_note_too(
    name: str, tmp_path: Path, contents: Contents
) -> None:
    members, reason = HOSTILE[name]
    made, digest = layer(tmp_path, members)
    with pytest.raises(Refused, match=reason):
        unpack([(contents.note(made, digest), digest)], None, reader=noted)


@pytest.mark.parametrize("packed", [True, False])
def test_plain_bytes_are_those_that_the_configuration_names(
    packed: bool, tmp_path: Path, contents: Contents
) -> None:
    """Podman and Skopeo compare them when they take an image."""
    made, digest = layer(tmp_path, MEMBERS, packed=packed)
    data = gzip.decompress(made.read_bytes()) if packed else made.read_bytes()
    good = {digest: f"sha256:{hashlib.sha256(data).hexdigest()}"}
    note = contents.note(made, digest, hashed=True)
    for blob, reader in ((made, read), (note, noted)):
        expected = unpack([(blob, digest)], None, reader=partial(reader, diff_ids=good))
        assert expected == unpack([(made, digest)], None)
        wrong = {digest: "sha256:" + "00" * 32}
        with pytest.raises(Refused, match="and the configuration says sha256:0000"):
            unpack([(blob, digest)], None, reader=partial(reader, diff_ids=wrong))


def test_a_note_without_the_digest_of_plain_bytes_is_made_anew(
    tmp_path: Path, contents: Contents
) -> None:
    made, digest = layer(tmp_path, MEMBERS)
    first = contents.note(made, digest).read_bytes()
    assert contents.note(made, digest, hashed=True).read_bytes() != first
    assert b"diff_id" in contents.note(made, digest, hashed=True).read_bytes().splitlines()[-2]


def test_a_layer_is_read_once(tmp_path: Path, contents: Contents) -> None:
    made, digest = layer(tmp_path, MEMBERS)
    first = contents.note(made, digest)
    made.unlink()
    assert contents.note(made, digest) == first
    assert unpack([(first, digest)], None, reader=noted).paths == 2


def damaged(note: Path) -> None:
    """A wrong byte in the middle, as of a disk."""
    data = bytearray(note.read_bytes())
    data[len(data) // 2] ^= 1
    note.write_bytes(data)


def cut(note: Path) -> None:
    note.write_bytes(note.read_bytes()[:-80])


def longer(note: Path) -> None:
    note.write_bytes(note.read_bytes() + b"[]\n")


def of_another_version(note: Path) -> None:
    note.write_bytes(note.read_bytes().replace(b'"build-images": "', b'"build-images": "9'))


def writable_for_others(note: Path) -> None:
    note.chmod(0o620)


def a_link(note: Path) -> None:
    note.rename(note.with_suffix(".moved"))
    note.symlink_to(note.with_suffix(".moved"))


def of_somebody_else(note: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to somebody else")
    os.chown(note, 12345, 12345)


SPOILT: list[Callable[[Path], None]] = [
    *(damaged, cut, longer, of_another_version, writable_for_others),
    *(a_link, of_somebody_else),
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_cannot_be_believed_is_made_anew(
    spoil: Callable[[Path], None], tmp_path: Path, contents: Contents
) -> None:
    made, digest = layer(tmp_path, MEMBERS)
    note = contents.note(made, digest)
    before = note.read_bytes()
    spoil(note)
    hidden = made.rename(tmp_path / "hidden")
    with pytest.raises(FileNotFoundError):  # so it wants to read the layer again
        contents.note(made, digest)
    hidden.rename(made)
    note = contents.note(made, digest)
    assert note.read_bytes() == before
    assert not note.is_symlink()
    assert note.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_is_read_is_what_is_believed(
    spoil: Callable[[Path], None], tmp_path: Path, contents: Contents
) -> None:
    """Also if the note becomes another after it was looked at."""
    note, digest = contents.note(*(one := layer(tmp_path, MEMBERS))), one[1]
    spoil(note)
    with pytest.raises((Refused, OSError)):
        unpack([(note, digest)], None, reader=noted)


def test_a_note_is_of_its_own_layer_alone(tmp_path: Path, contents: Contents) -> None:
    one, other = layer(tmp_path, MEMBERS), layer(tmp_path, [M("evil", b"x")])
    note, evil = contents.note(*one), contents.note(*other)
    evil.replace(note)
    with pytest.raises(Refused, match="changed while it was read"):
        unpack([(note, one[1])], None, reader=noted)


def test_other_limits_make_another_note(tmp_path: Path, contents: Contents) -> None:
    made, digest = layer(tmp_path, MEMBERS)
    contents.note(made, digest)
    with pytest.raises(Refused, match="more than 1 entries"):
        contents.note(made, digest, replace(LIMITS, entries=1))


def test_nothing_is_noted_of_what_is_refused_or_broken_off(tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted("interrupted")

    folder = tmp_path / "notes"
    made, digest = layer(tmp_path, MEMBERS)
    with pytest.raises(Interrupted):
        Contents(folder=folder, check=stop).note(made, digest)
    other, name = layer(tmp_path, [M("a", b"x"), M("../b")])
    with pytest.raises(Refused, match=r"\.\. in a layer"):
        Contents(folder=folder).note(other, name)
    made.write_bytes(other.read_bytes())
    with pytest.raises(Refused):
        Contents(folder=folder).note(made, digest)
    assert [one.name for one in folder.iterdir() if one.suffix != ".lock"] == []
