"""The entries of a folder of native tools, as a list; the tools' digest is over that list.

So they can be carried elsewhere file by file, and put together there with the same digest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from builder.model.digests import sha256_of_file

# A path below the folder, its `st_mode`, and what it holds: of a file the SHA-256 in hexadecimal,
# of a link where it leads, of a folder nothing.
Entry: TypeAlias = "tuple[str, int, str]"
_ENTRIES, _CONTENTS = "entries.json", "contents.tar"
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


def entries_of(root: Path) -> list[Entry]:
    """Everything below a folder, in order: a folder comes before what is in it."""
    entries = []
    for path in sorted(root.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not content:
            content = sha256_of_file(path)
        entries.append((str(path.relative_to(root)), path.lstat().st_mode, content))
    return entries


def digest_of(entries: Sequence[Entry]) -> str:
    """Return a digest over every path, its mode, and its content or where it leads."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(json.dumps(entry).encode())
    return f"sha256:{digest.hexdigest()}"


def read_entries(value: object) -> list[Entry]:
    """Entries as they come from elsewhere: none of them leads out of the folder.

    Raises `ValueError` for anything else.
    """
    entries: list[Entry] = []
    folders, seen = {""}, set[str]()
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, list) or len(entry) != 3:  # noqa: PLR2004
            raise ValueError("not an entry")
        path, mode, content = entry
        if not (isinstance(path, str) and type(mode) is int and isinstance(content, str)):
            raise ValueError("not an entry")
        parent, _, name = path.rpartition("/")
        # A link is no folder here, so nothing is ever written through one.
        below = parent in folders and name not in {"", ".", ".."} and path[:1] != "/"
        if not below or path in seen or "\0" in path:
            raise ValueError(f"not a path below the folder: {path!r}")
        if not _is_kind(mode, content):
            raise ValueError(f"not a file, link or folder: {path!r}")
        if stat.S_ISDIR(mode):
            folders.add(path)
        seen.add(path)
        entries.append((path, mode, content))
    return entries


def _is_kind(mode: int, content: str) -> bool:
    if stat.S_IMODE(mode) & ~_PERMISSIONS:  # nothing that is run as another user
        return False
    if stat.S_ISDIR(mode):
        return not content
    return bool(content) and (stat.S_ISREG(mode) or stat.S_ISLNK(mode))


def put_together(
    entries: Sequence[Entry], root: Path, bring: Callable[[str, Path], object]
) -> None:
    """Make a folder of its entries; `bring` writes the file of a SHA-256 to a path."""
    root.mkdir(mode=0o755)
    for path, mode, content in entries:
        target = root / path
        if stat.S_ISDIR(mode):
            target.mkdir()
        elif stat.S_ISLNK(mode):
            target.symlink_to(content)
        else:
            bring(content, target)
            target.chmod(stat.S_IMODE(mode))
    for path, mode, _ in reversed(entries):  # what is in a folder may be there before its mode
        if stat.S_ISDIR(mode):
            (root / path).chmod(stat.S_IMODE(mode))
    root.chmod(0o755)


def fold(root: Path, folder: Path, entries: Sequence[Entry]) -> None:
    """Write the entries of a folder of native tools as two files: a list, and a tar of contents."""
    (folder / _ENTRIES).write_text(json.dumps(entries))
    contents = {content: path for path, mode, content in entries if stat.S_ISREG(mode)}
    with tarfile.open(folder / _CONTENTS, "w") as archive:
        for content, path in sorted(contents.items()):
            member = tarfile.TarInfo(content)
            member.size = (root / path).stat().st_size
            with (root / path).open("rb") as file:
                archive.addfile(member, file)


def unfold(folder: Path, root: Path) -> str:
    """Make a folder of native tools of the two files, and remove them; return its digest.

    Raises `ValueError` for files that are not from `fold`.
    """
    entries = read_entries(json.loads((folder / _ENTRIES).read_text()))
    with tarfile.open(folder / _CONTENTS) as archive:
        members = {member.name: member for member in archive}

        def bring(content: str, target: Path) -> None:
            source = archive.extractfile(members[content])
            if source is None:
                raise ValueError(f"not a file: {content}")
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)

        put_together(entries, root, bring)
    for name in (_ENTRIES, _CONTENTS):
        (folder / name).unlink()
    return digest_of(entries_of(root))
