"""Read `lock.yaml`, which only `build-images lock` writes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from builder.load.document import Faults, Node, parse
from builder.load.patterns import Known
from builder.load.readers import (
    Table,
    architecture,
    list_of,
    matching,
    one_of,
    positive,
    record,
    text,
)
from builder.model import Layer, Where
from builder.model.architectures import ARCHITECTURES
from builder.model.inputs import (
    DEBIAN_SOURCE,
    LOCAL_SOURCE,
    LOCK,
    SDIST_SOURCE,
    WHEEL_SOURCE,
    Lock,
    LockedSource,
)
from builder.model.site import PROJECT

SCHEMA = "build-images/lock/v1"
_AGAIN = "run build-images lock, which removes the entry"
_AGAIN_THERE = "in that layer: build-images lock --project {folder}, which removes the entry"
_TAKE_OUT = "remove the entry and run build-images lock, which writes this file"
_FILE = r"[\w+~][\w.+~%=-]*"
_URL = r"(?:https?|ftp)://[^\s/@]+/\S+"  # no user name, no password
_DEBIAN = DEBIAN_SOURCE + r"[a-z0-9][a-z0-9+.-]+/\d[\w.+~-]*"
_MACHINE = rf"(?:any|\{{\{{ arch \}}\}}|{'|'.join(ARCHITECTURES)})"
_RELEASE = r"[a-z0-9]+(?:[.-][a-z0-9]+)*/\d[\w.]*"
_WHEEL = rf"{WHEEL_SOURCE}{_RELEASE}/{_MACHINE}(?:/[a-z]+\d+)?"
_SDIST = rf"{SDIST_SOURCE}{_RELEASE}"
_LOCAL = rf"{LOCAL_SOURCE}(?:{_FILE}/)*{_FILE}"
_SHA256 = r"[0-9a-f]{64}"

_SOURCE = f"{_URL}|{_DEBIAN}|{_WHEEL}|{_SDIST}|{_LOCAL}"
_SOURCES = (
    f"valid: https://HOST/PATH, {DEBIAN_SOURCE}PACKAGE/VERSION without a revision, "
    f"{WHEEL_SOURCE}NAME/VERSION/ARCHITECTURE[/PYTHON], {SDIST_SOURCE}NAME/VERSION, or "
    f"{LOCAL_SOURCE}PATH for a file in the project's folder"
)

source_url = matching(re.compile(_SOURCE), "is not the URL of a source", _SOURCES)
locked_source_url = matching(
    re.compile(rf"(?!{WHEEL_SOURCE}.*\{{)(?:{_SOURCE})"), "is not the URL of a source", _SOURCES
)
_source = record(
    LockedSource,
    {
        "url": locked_source_url,
        "file": matching(re.compile(_FILE), "is not a file name", _TAKE_OUT),
        "sha256": matching(re.compile(_SHA256), "is not a SHA-256 in hexadecimal", _TAKE_OUT),
        "size": positive("a size in bytes", _TAKE_OUT),
        "recipes": list_of(text, least=1, distinct=True),
    },
    {
        "mirrors": list_of(matching(re.compile(_URL), "is not a URL", _TAKE_OUT), distinct=True),
        "path": matching(
            re.compile(r"pool(?:/(?!\.\.?(?:/|$))[^/]+)+"),
            "is not a path in a Debian archive",
            _TAKE_OUT,
        ),
    },
)
_reference = record(
    dict[str, str],
    {
        "reference": text,
        "arch": architecture,
        "digest": matching(
            re.compile(f"sha256:{_SHA256}"),
            "is not a digest",
            f"valid: sha256: and 64 hexadecimal digits; {_TAKE_OUT}",
        ),
    },
)


def read_lock(layer: Layer, faults: Faults) -> Lock:
    """Return the lock of a layer; an empty lock if it has no lock.yaml."""
    if not (layer.folder / LOCK).exists():
        return Lock()
    node = parse(layer.folder / LOCK, layer.shown(LOCK), faults)
    return _lock(node, faults) if node else Lock()


def check_recipes(lock: Lock, layer: Layer, known: Known, faults: Faults) -> None:
    """Report entries of a layer's lock for recipes that do not exist, which are not needed."""
    again = _AGAIN if layer.name == PROJECT else _AGAIN_THERE.format(folder=layer.folder)
    for source in lock.sources.values():
        for name in source.recipes:
            if known.recipes is not None and name not in known.recipes:
                where = Where(file=layer.shown(LOCK), line=source.line, key="recipes")
                problem = f'{source.url} is locked for an unknown recipe: "{name}"'
                faults.add(where, problem, again)


def _lock(node: Node, faults: Faults) -> Lock:
    table = Table(node, faults, required=("schema",), optional=("sources", "references"))
    table.read("schema", one_of((SCHEMA,), "schema of a lock"), "")
    nothing: tuple[()] = ()
    sources: tuple[LockedSource, ...] = table.read("sources", list_of(_placed_source), nothing)
    pins: tuple[dict[str, str], ...] = table.read("references", list_of(_reference), nothing)
    references = {(pin["reference"], pin["arch"]): pin["digest"] for pin in pins}
    _note_repeats(table.entry("sources"), [source.url for source in sources], faults)
    names = [f"{pin['reference']} for {pin['arch']}" for pin in pins]
    _note_repeats(table.entry("references"), names, faults)
    return Lock(sources={source.url: source for source in sources}, references=references)


def _placed_source(node: Node, faults: Faults) -> LockedSource:
    source = _source(node, faults)
    entries = node.value if isinstance(node.value, Mapping) else {}
    url = entries.get("url")
    if url and ("path" in entries) != url.text.startswith(DEBIAN_SOURCE):
        problem = f"path is needed for {DEBIAN_SOURCE} URLs, and not allowed for others"
        faults.add(node.where, problem, _TAKE_OUT)
    return dataclasses.replace(source, line=node.where.line)


def _note_repeats(node: Node | None, names: Sequence[str], faults: Faults) -> None:
    entries = node.value if node and isinstance(node.value, tuple) else ()
    for index, (item, name) in enumerate(zip(entries, names, strict=bool(entries))):
        if name in names[:index]:
            faults.add(item.where, f"{name} is locked twice", _TAKE_OUT)
