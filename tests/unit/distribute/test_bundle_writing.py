"""Where an archive is written, when somebody else may write there, too."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.distribute.bundle import ArchiveContents, opened, write_archive
from builder.distribute.bundle.contents import EmptyRepository
from builder.model.errors import BadInput
from builder.registry import Descriptor, WrongContent
from builder.system.files import discard

SECRET = "a key of this user\n"


def _link(partial: Path, victim: Path) -> None:
    partial.symlink_to(victim)


def _hard_link(partial: Path, victim: Path) -> None:
    partial.hardlink_to(victim)


def _pipe(partial: Path, _: Path) -> None:
    os.mkfifo(partial)


def _folder(partial: Path, _: Path) -> None:
    partial.mkdir()


@pytest.mark.parametrize("put", [_link, _hard_link, _pipe, _folder])
def test_what_others_put_there_is_not_written_to(
    put: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    put(tmp_path / ".site.tar.partial", victim)
    with pytest.raises(BadInput, match=r"\.partial: this is not a regular file of this user"):
        write_archive(tmp_path / "site.tar", ArchiveContents())
    assert victim.read_text() == SECRET
    assert not os.path.lexists(tmp_path / "site.tar")


def test_a_file_of_another_user_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".site.tar.partial").write_text(SECRET)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match="not a regular file of this user"):
        write_archive(tmp_path / "site.tar", ArchiveContents())
    assert (tmp_path / ".site.tar.partial").read_text() == SECRET


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_where_no_file_can_be_made_is_no_full_disk(folder: str) -> None:
    with pytest.raises(BadInput, match=f"{folder}/x.tar: a file cannot be created there"):
        write_archive(Path(folder) / "x.tar", ArchiveContents())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_what_a_killed_one_left_is_begun_anew(umask: int, mode: int, tmp_path: Path) -> None:
    partial = tmp_path / ".site.tar.partial"
    partial.write_text("x" * 100_000)
    partial.chmod(0o666)
    modes = []
    contents = ArchiveContents()
    blob = Descriptor.of(b"some", "x")
    contents.add_blob(blob, b"some")
    before = os.umask(umask)
    try:
        write_archive(
            tmp_path / "site.tar", contents, on_bytes=lambda _: modes.append(partial.stat().st_mode)
        )
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one) for one in modes] == [0o600]
    assert stat.S_IMODE((tmp_path / "site.tar").stat().st_mode) == mode
    assert opened(tmp_path / "site.tar").archive.blobs.keys() == {blob.digest}
    assert not partial.exists()


class _Elsewhere(EmptyRepository):
    """Has one blob, and notes what is beside the archive while it is brought."""

    def __init__(self, folder: Path, content: bytes) -> None:
        super().__init__("tools")
        self.folder, self.content, self.beside = folder, content, list[str]()

    def read_blob(self, wanted: Descriptor, path: Path) -> None:
        path.write_bytes(self.content)
        self.beside = [one.name for one in self.folder.iterdir()]
        if Descriptor.of(self.content, "").digest != wanted.digest:
            discard(path)
            raise WrongContent("another blob")


def test_a_blob_from_elsewhere_has_no_name_beside_the_archive(tmp_path: Path) -> None:
    """Whoever is killed leaves the half archive alone, which the next one begins anew."""
    blob = Descriptor.of(b"some", "x")
    for content in (b"some", b"else"):
        elsewhere, contents = _Elsewhere(tmp_path, content), ArchiveContents()
        contents.add_blob(blob, elsewhere)
        if content == b"some":
            write_archive(tmp_path / "site.tar", contents)
        else:
            with pytest.raises(WrongContent, match="another blob"):
                write_archive(tmp_path / "site.tar", contents)
        assert [one for one in elsewhere.beside if one != "site.tar"] == [".site.tar.partial"]
    assert opened(tmp_path / "site.tar").archive.blobs.keys() == {blob.digest}
