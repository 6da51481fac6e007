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


OTHERS: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda partial, victim: partial.symlink_to(victim),
    "a hard link": lambda partial, victim: partial.hardlink_to(victim),
    "a pipe": lambda partial, _: os.mkfifo(partial),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_put_there_is_not_written_to(name: str, tmp_path: Path) -> None:
    victim, partial = tmp_path / "victim", tmp_path / ".site.tar.partial"
    victim.write_text(SECRET)
    OTHERS[name](partial, victim)
    write_archive(tmp_path / "site.tar", ArchiveContents())
    assert victim.read_text() == SECRET
    assert not os.path.lexists(partial)
    assert (tmp_path / "site.tar").stat().st_nlink == 1


def test_a_folder_in_the_place_of_the_half_archive(tmp_path: Path) -> None:
    (tmp_path / ".site.tar.partial").mkdir()
    with pytest.raises(BadInput, match=r"\.partial: cannot create the file"):
        write_archive(tmp_path / "site.tar", ArchiveContents())
    assert not (tmp_path / "site.tar").exists()


def test_of_two_that_write_at_once_one_is_refused(tmp_path: Path) -> None:
    contents, target = ArchiveContents(), tmp_path / "site.tar"
    contents.add_blob(Descriptor.of(b"some", "x"), b"some")

    def write_too(_: int) -> None:
        write_archive(target, ArchiveContents())
        (tmp_path / ".site.tar.partial").write_text("a third one's")

    with pytest.raises(BadInput, match="another build-images is writing this file"):
        write_archive(target, contents, on_bytes=write_too)
    assert opened(target).archive.blobs == {}
    assert (tmp_path / ".site.tar.partial").read_text() == "a third one's"


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_where_no_file_can_be_made_is_no_full_disk(folder: str) -> None:
    with pytest.raises(BadInput, match=f"{folder}/x.tar: cannot create a file there"):
        write_archive(Path(folder) / "x.tar", ArchiveContents())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_what_a_killed_one_left_is_begun_anew(umask: int, mode: int, tmp_path: Path) -> None:
    partial = tmp_path / ".site.tar.partial"
    partial.write_text("x" * 100_000)
    partial.chmod(0o666)
    contents = ArchiveContents()
    blob = Descriptor.of(b"some", "x")
    contents.add_blob(blob, b"some")
    before = os.umask(umask)
    try:
        write_archive(tmp_path / "site.tar", contents)
    finally:
        os.umask(before)
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
