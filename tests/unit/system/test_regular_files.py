"""Files that may have been replaced by anything are read, or refused at once."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.distribute.pull.receipts import Last, read_receipt
from builder.model.errors import BadInput, Refused
from builder.system.files import irregular, read_bound, read_regular


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def an_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"{}")
    path.symlink_to(path.with_name("elsewhere"))


def a_folder(path: Path) -> None:
    path.mkdir()


def a_large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


OTHERS = [a_pipe, an_endless_device, a_link, a_folder, a_large_file]


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_regular(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="large") as caught:
        read_regular(tmp_path / "file", 3)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "file"))


def test_a_file_of_an_image_is_the_one_that_its_manifest_names(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    digest = f"sha256:{hashlib.sha256(b'1234').hexdigest()}"
    manifest: Any = SimpleNamespace(digests={"file": digest, "gone": digest})
    assert read_bound(tmp_path, manifest, "file") == b"1234"
    manifest.digests["file"] = digest[::-1]
    (tmp_path / "new").touch()
    why = {
        "gone": "cannot be read (No such file or directory)",
        "new": "manifest.json has no digest for it",
        "file": "its digest differs from manifest.json",
    }
    for name, problem in why.items():
        with pytest.raises(BadInput) as caught:
            read_bound(tmp_path, manifest, name)
        assert str(caught.value).splitlines() == [
            f"{tmp_path / name}: {problem}",
            "  hint: build the image again; build-images verify renews only evidence",
        ]


@pytest.mark.parametrize("made", OTHERS)
def test_what_else_is_there_is_not_waited_for(made: object, tmp_path: Path) -> None:
    assert callable(made)
    made(tmp_path / "file")
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        read_regular(tmp_path / "file", 1000)


@pytest.mark.parametrize("made", OTHERS)
def test_a_record_of_the_last_pull_is_one_or_refuses(made: object, tmp_path: Path) -> None:
    """A link to /dev/zero took all memory, a pipe was waited for."""
    assert callable(made)
    last = Last(folder=tmp_path / "pulls/last")
    last.folder.parent.mkdir(mode=0o700)
    last.folder.mkdir(mode=0o700)
    made(last._file("registry.example/a:1", "x86_64"))
    with pytest.raises(Refused, match="the record of the last pull cannot be read") as caught:
        last.read("registry.example/a:1", "x86_64")
    hint = "remove the file to pull again; then the next pull accepts an older image"
    assert str(caught.value).endswith(f"\n  hint: {hint}")


@pytest.mark.parametrize("made", OTHERS)
def test_a_receipt_that_is_none(made: object, tmp_path: Path) -> None:
    assert callable(made)
    made(tmp_path / "receipt.json")
    assert read_receipt(tmp_path) is None


def test_a_link_is_followed_where_asked_and_what_is_no_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("text")
    (tmp_path / "link").symlink_to("folder/file")
    assert read_regular(tmp_path / "link", follow=True) == b"text"
    assert list(irregular(tmp_path)) == []
    os.mkfifo(tmp_path / "folder/pipe")
    (tmp_path / "nowhere").symlink_to("nothing")
    found = {path.name for path in irregular(tmp_path)}
    assert found == {"pipe", "nowhere"}
    with pytest.raises(OSError, match="Not a regular file"):
        read_regular(tmp_path / "folder/pipe", follow=True)
