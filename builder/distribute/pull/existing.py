"""An existing output, compared with what is judged now, not with what it says."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.oci import read_layout
from builder.artifacts.tree import Entry, comparable, is_allowed, tree_digest
from builder.distribute.pull.owning import is_own
from builder.distribute.pull.packing import ENVIRONMENT, NAMES
from builder.distribute.pull.receipts import NAME, PullReceipt, read_receipt
from builder.distribute.pull.unpacking import unpack
from builder.model.digests import sha256_of_file
from builder.model.errors import BadInput, BuildImagesError, Refused
from builder.system.atomic import read_regular

_ELSEWHERE = "name another folder with --output, or move this one away"
_BROKEN = (OSError, BuildImagesError, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The output that a pull needs: `digest` is that of the image, or of its SIF or tarball.

    `tree` is the tree digest that the evidence names, `environment` the file of a folder.
    """

    format: str
    image: str
    digest: str
    tree: str
    environment: bytes


def existing_output(output: Path, expected: Expected) -> tuple[Path, PullReceipt]:
    """Return an output and its receipt, if it is the expected one and complete.

    To the folder, the receipt and the artifact nobody else may write; of a layout, to nothing in
    it. The receipt is believed only for the tree of a folder on disk, whose modes differ from the
    image's. Raises `BadInput` for what is something else, `Refused` for what was changed.
    """
    try:
        receipt = read_receipt(output)
    except ValueError:
        receipt = None
    if receipt is None:
        raise BadInput(f"{output} is there already, and is not what a pull left", hint=_ELSEWHERE)
    for path in (output, output / NAME):
        _ours(path)
    for part, wish, actual in (
        ("the format", expected.format, receipt.format),
        ("the image", expected.image, receipt.image.digest),
        (f"the {expected.format}", expected.digest, receipt.digest),
    ):
        if actual != wish:
            shown = actual if actual and actual.isprintable() else "not known"
            problem = f"{output} is there already: {part} is {shown}, not {wish}"
            raise BadInput(problem, hint=_ELSEWHERE)
    path = output / NAMES[expected.format]
    _ours(path)
    for file in path.rglob("*") if expected.format == "oci" else ():
        _ours(file)
    try:
        is_intact = _is_whole(path, expected, receipt)
    except _BROKEN:
        is_intact = False
    if not is_intact:
        raise Refused(
            f"{path} is not what was pulled: it was changed since",
            hint="move it away, and pull it again",
        )
    return path, receipt


def _ours(path: Path) -> None:
    """Raise `Refused` unless a path is this user's own, and nobody else may write to it."""
    try:
        status = path.lstat()
    except OSError as error:
        raise Refused(
            f"{path} is not there any more ({error.strerror})",
            hint="move the folder away, and pull it again",
        ) from error
    if stat.S_ISLNK(status.st_mode):
        problem = "is a link"
    elif status.st_uid != os.geteuid():
        problem = "belongs to somebody else, who could change it at any time"
    elif not is_own(status):
        problem = "can be written to by others, who could change it at any time"
    else:
        return
    raise Refused(f"{path} {problem}", hint=_ELSEWHERE)


def _is_whole(path: Path, expected: Expected, receipt: PullReceipt) -> bool:
    if expected.format == "oci":
        layout = read_layout(path)
        layers = [(blob, f"sha256:{blob.name}") for blob in layout.layers]
        return (layout.digest, unpack(layers, None).tree) == (expected.digest, expected.tree)
    if expected.format != "directory":
        proven = expected.format == "sif" or receipt.tree == expected.tree
        return proven and f"sha256:{sha256_of_file(path)}" == expected.digest
    file = path / ENVIRONMENT
    return (
        receipt.tree == expected.tree
        and file.parent.is_dir()
        and not file.parent.is_symlink()
        and read_regular(file, len(expected.environment)) == expected.environment
        and tree_on_disk(path) == receipt.on_disk
    )


def tree_on_disk(folder: Path) -> str:
    """The tree digest of a folder; raises `OSError` where something cannot be read."""
    return tree_digest(comparable(_entries(folder)))


def _entries(folder: Path) -> Iterator[Entry]:
    known: dict[tuple[int, int], str] = {}
    todo = [""]
    while todo:
        above = todo.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                path = f"{above}/{entry.name}" if above else entry.name
                if is_allowed(path):
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(path)
                yield _entry(folder / path, path, status, known)


def _entry(
    file: Path, path: str, status: os.stat_result, known: dict[tuple[int, int], str]
) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry(path=path, kind="link", mode=0o777, target=os.readlink(file))  # noqa: PTH115 - as it is
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "pipe"
        return Entry(path=path, kind=kind, mode=mode)
    inode = status.st_dev, status.st_ino
    if inode not in known:
        known[inode] = sha256_of_file(file)
    return Entry(path=path, kind="file", mode=mode, size=status.st_size, content=known[inode])
