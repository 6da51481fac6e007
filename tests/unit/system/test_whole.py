"""Files of which nothing half-made is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from builder.system.files import (
    create_file,
    discard,
    temporary_folder,
    unnamed,
    write_atomically,
    write_new,
)


class Killed(BaseException):
    """Ends a program where it is."""


def killed(*_: object) -> None:
    raise Killed


def test_a_file_is_as_it_was_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some" / "file"
    write_atomically(file, "old", durable=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(Killed):
            write_atomically(file, "new", durable=True)
    assert file.read_text() == "old"
    write_atomically(file, "new", durable=True)
    assert {one.name: one.read_text() for one in file.parent.iterdir()} == {"file": "new"}


def full(*_: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_of_a_new_file_or_folder_is_left_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            create_file(tmp_path / "key", b"data", mode=0o600)
        write = Path.write_text
        patch.setattr(
            Path,
            "write_text",
            lambda file, *a, **b: (full if file.name == "last" else write)(file, *a, **b),
        )
        for names in (
            ["last"],
            ["README.md", "deep/a", "deep/er/last"],
            ["deep/a", "b", "c", "last"],
        ):
            with pytest.raises(OSError, match="No space left"):
                write_new(project, dict.fromkeys(names, ""))
    assert [path.name for path in tmp_path.rglob("*")] == ["project", ".git"]
    write_new(project, {"deep/file": ""})
    create_file(tmp_path / "key", b"data", mode=0o600)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "key", b"other", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b"data"


def test_a_temporary_folder_is_in_a_folder_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "deep/below"
    for _ in range(2):
        with temporary_folder(folder, "run-") as made:
            assert (made.parent, made.name[:4]) == (folder, "run-")
            assert made.is_dir()
        assert list(folder.iterdir()) == []


def test_an_unnamed_file_is_in_no_folder(tmp_path: Path) -> None:
    with unnamed(tmp_path) as file:
        for piece in (b"some", b"thing"):
            with file.open("ab+") as opened:
                opened.write(piece)
        discard(file)
        assert file.read_bytes() == b"something"
        assert list(tmp_path.iterdir()) == []


def test_a_file_is_discarded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    discard(tmp_path / "file")
    discard(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
