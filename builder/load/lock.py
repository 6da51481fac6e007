"""`lock.yaml`: what `build-images lock` wrote. People read it; only the command changes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from builder.load.document import Node, parse
from builder.load.faults import Faults
from builder.load.patterns import Known
from builder.load.readers import Reader, Table, architecture, list_of, one_of, text
from builder.model import Where
from builder.model.inputs import DEBIAN_SOURCE, LOCAL_SOURCE, LOCK, Lock, LockedSource

SCHEMA = "build-images/lock/v1"
_AGAIN = "run build-images lock, which drops it"
_TAKE_OUT = "take the entry out and run build-images lock, which writes this file"
_URL = re.compile(r"(?:https?|ftp)://[^\s/@]+/\S+")
_DEBIAN = re.compile(re.escape(DEBIAN_SOURCE) + r"[a-z0-9][a-z0-9+.-]+/\d[\w.+~-]*")
_FILE = re.compile(r"[\w+~][\w.+~%=-]*")
_LOCAL = re.compile(rf"{re.escape(LOCAL_SOURCE)}(?:{_FILE.pattern}/)*{_FILE.pattern}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(rf"sha256:{_SHA256.pattern}")

_Pinned = tuple[tuple[str, str], str]  # reference and architecture, digest


def read_lock(root: Path, faults: Faults) -> Lock:
    """The lock of a project; an empty one where nothing was locked yet."""
    if not (root / LOCK).exists():
        return Lock()
    node = parse(root / LOCK, LOCK, faults)
    return _lock(node, faults) if node else Lock()


def check_recipes(lock: Lock, known: Known, faults: Faults) -> None:
    """Note entries of recipes that do not exist: nobody needs those."""
    for source in lock.sources.values():
        for name in source.recipes:
            if known.recipes is not None and name not in known.recipes:
                where = Where(file=LOCK, line=source.line, key="recipes")
                problem = f'{source.url} is locked for "{name}", and there is no such recipe'
                faults.add(where, problem, _AGAIN)


def _lock(node: Node, faults: Faults) -> Lock:
    table = Table(node, faults, required=("schema",), optional=("sources", "references"))
    table.read("schema", one_of((SCHEMA,), "schema of a lock"), "")
    nothing: tuple[()] = ()
    sources: tuple[LockedSource, ...] = table.read("sources", list_of(_source), nothing)
    references: tuple[_Pinned, ...] = table.read("references", list_of(_reference), nothing)
    _note_repeats(table.entry("sources"), [one.url for one in sources], faults)
    _note_repeats(table.entry("references"), [" for ".join(key) for key, _ in references], faults)
    return Lock(sources={one.url: one for one in sources}, references=dict(references))


def _source(node: Node, faults: Faults) -> LockedSource:
    required = ("url", "file", "sha256", "size", "recipes")
    table = Table(node, faults, required=required, optional=("mirrors", "path"))
    source = LockedSource(
        url=table.read("url", source_url, ""),
        file=table.read("file", _matching(_FILE, "the name of a file"), ""),
        sha256=table.read("sha256", _matching(_SHA256, "a SHA-256 in hexadecimal"), ""),
        size=table.read("size", _size, 0),
        mirrors=table.read("mirrors", list_of(_plain_url, distinct=True), ()),
        recipes=table.read("recipes", list_of(text, least=1, distinct=True), ()),
        path=table.read("path", _path, ""),
        line=node.where.line,
    )
    if source.url and ("path" in table) != source.url.startswith(DEBIAN_SOURCE):
        problem = f"path belongs to a {DEBIAN_SOURCE} URL, and to no other"
        faults.add(node.where, problem, _TAKE_OUT)
    return source


def _reference(node: Node, faults: Faults) -> _Pinned:
    table = Table(node, faults, required=("reference", "arch", "digest"))
    reference = table.read("reference", text, "")
    arch = table.read("arch", architecture, "")
    digest = table.read("digest", _digest, "")
    return (reference, arch), digest


def source_url(node: Node, faults: Faults) -> str:
    """A URL without user name and password, `debian-source:PACKAGE/VERSION` or `local:PATH`."""
    value = text(node, faults)
    if value and not any(one.fullmatch(value) for one in (_URL, _DEBIAN, _LOCAL)):
        valid = (
            f"valid: https://HOST/PATH, {DEBIAN_SOURCE}PACKAGE/VERSION without a revision, or "
            f"{LOCAL_SOURCE}PATH of a file in the project's folder"
        )
        faults.add(node.where, f'"{value}" is not the URL of a source', valid)
    return value


def _plain_url(node: Node, faults: Faults) -> str:
    return _matching(_URL, "a URL")(node, faults)


def _digest(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not _DIGEST.fullmatch(value):
        valid = f"valid: sha256: and 64 hexadecimal digits; {_TAKE_OUT}"
        faults.add(node.where, f'"{value}" is not a digest', valid)
    return value


def _matching(pattern: re.Pattern[str], what: str) -> Reader[str]:
    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        if value and not pattern.fullmatch(value):
            faults.add(node.where, f'"{value}" is not {what}', _TAKE_OUT)
        return value

    return read


def _path(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    path = PurePosixPath(value)
    if value and (path.is_absolute() or ".." in path.parts or path.parts[:1] != ("pool",)):
        faults.add(node.where, f'"{value}" is not a path in a Debian archive', _TAKE_OUT)
    return value


def _size(node: Node, faults: Faults) -> int:
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    faults.add(node.where, f"expected a size in bytes, found {node.describe()}", _TAKE_OUT)
    return 0


def _note_repeats(node: Node | None, names: Sequence[str], faults: Faults) -> None:
    if node is None or not isinstance(node.value, tuple) or len(node.value) != len(names):
        return
    for index, (item, name) in enumerate(zip(node.value, names, strict=True)):
        if name and name in names[:index]:
            faults.add(item.where, f"{name} is locked twice", _TAKE_OUT)
