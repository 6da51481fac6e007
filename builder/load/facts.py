"""Read the fact tables: the shipped ones in builder/facts/data, and the rows that layers add.

A row of a layer's `facts/NAME.yaml` replaces the row below it of the same release.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from builder import facts
from builder.facts import CudaRelease, Facts, LibraryRelease, MpiRelease, SdkRelease, SystemRelease
from builder.facts.tables import Where
from builder.load.document import Faults, Node, inside, parse, suggest
from builder.load.readers import (
    Reader,
    Table,
    architecture,
    list_of,
    mapping_of,
    matching,
    one_of,
    record,
    text,
    words,
)
from builder.load.site import layers_of
from builder.model import Layer, Layers
from builder.model.architectures import CPU_TARGETS
from builder.model.errors import BadInput, Fault
from builder.model.versions import version_order

T = TypeVar("T")
Row = TypeVar("Row", CudaRelease, LibraryRelease, MpiRelease, SdkRelease, SystemRelease)
# Returns the reader of a row for the reader of its sources, whose names each table defines.
RowReader = Callable[[Reader[str]], Reader[Row]]

FOLDER = "facts"
FILES = ("cuda.yaml", "cudnn.yaml", "nccl.yaml", "nvhpc.yaml", "mpi.yaml", "systems.yaml")
_SHIPPED = Path(facts.__file__).parent / "data"
_SHOWN = "builder/facts/data"  # the folder's name in messages

# int() refuses thousands of digits
_number = matching(re.compile(r"[0-9]{1,9}"), "is not a number", "valid: digits only")
_dotted = matching(
    re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*"), "is not a version", "valid: digits and dots: 12.4.1"
)
_url = matching(re.compile(r"https?://.*"), "is not a URL", "valid: https://...")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Key:
    """The fields that identify a row (names, then versions), and its title in messages."""

    title: str
    names: tuple[str, ...] = ()
    versions: tuple[str, ...] = ("version",)

    def of(self, row: object) -> tuple[str, ...]:
        return tuple(getattr(row, field) for field in (*self.names, *self.versions))

    def order(self, row: object) -> tuple[object, ...]:
        names, versions = self.of(row)[: len(self.names)], self.of(row)[len(self.names) :]
        return (*names, *map(version_order, versions))


_LIBRARY = _Key(title="{1} for CUDA {0}", versions=("build", "version"))
_KEYS = {
    "cuda": _Key(title="CUDA {0}"),
    "cudnn": _LIBRARY,
    "nccl": _LIBRARY,
    "mpi": _Key(title="{0} {1}", names=("family",), versions=("series",)),
    "systems": _Key(title="{0} {1}", names=("distribution",)),
    "nvhpc": _Key(title="HPC SDK {0}"),
}


def known_facts(root: Path, consequence: str = "nothing was built") -> Facts:
    """Return the tables with the rows of the project in `root`; raises all faults at once."""
    faults = Faults()
    tables = read_facts(layers_of(root), faults)
    if faults.found:
        raise BadInput.of(faults.found, consequence)
    return tables


def read_facts(layers: Layers, faults: Faults) -> Facts:
    """Return the shipped tables with the rows of a project's layers, checked against each other.

    Faults are added to `faults`; do not use the result if there are any.
    """
    if layers.holders(FOLDER):
        return _read(layers, faults)
    tables, known_faults = _shipped_alone()
    faults.found += known_faults
    return tables


@functools.cache
def _shipped_alone() -> tuple[Facts, tuple[Fault, ...]]:
    """Return the shipped tables, which do not change while the program runs, and their faults."""
    faults = Faults()
    tables = _read(Layers(each=()), faults)
    return tables, tuple(faults.found)


def _read(layers: Layers, faults: Faults) -> Facts:
    for layer in layers.each:
        _check_names(layer, faults)
    lines: dict[Where, Mapping[str, int]] = {}

    def rows(name: str, read: RowReader[Row]) -> tuple[Row, ...]:
        file, key = f"{name}.yaml", _KEYS[name]
        rows_by_key = _rows(_SHIPPED / file, f"{_SHOWN}/{file}", read, key, lines, faults)
        for layer in layers.holders(own := f"{FOLDER}/{file}"):
            path, shown = layer.folder / own, layer.shown(own)
            rows_by_key |= _rows(path, shown, read, key, lines, faults)
        return tuple(sorted(rows_by_key.values(), key=key.order))

    tables = Facts(
        cuda={release.version: release for release in rows("cuda", _cuda)},
        cudnn=rows("cudnn", functools.partial(_library, facts.CUDNN)),
        nccl=rows("nccl", functools.partial(_library, facts.NCCL)),
        mpi=rows("mpi", _mpi),
        systems=rows("systems", _system),
        sdks=rows("nvhpc", _sdk),
    )
    for place, field, problem, valid in contradictions(tables):
        faults.add(inside(place, field, lines.get(place, {}).get(field)), problem, valid)
    return tables


def _check_names(layer: Layer, faults: Faults) -> None:
    """Report files with unknown names, which would be ignored silently."""
    for path in sorted((layer.folder / FOLDER).glob("*")):
        if path.suffix in {".yaml", ".yml"} and path.name not in FILES:
            where = Where(file=layer.shown(f"{FOLDER}/{path.name}"), line=1)
            faults.add(where, "unknown fact table", suggest(path.name, FILES))


def _rows(
    path: Path,
    shown: str,
    read: RowReader[Row],
    key: _Key,
    lines: dict[Where, Mapping[str, int]],
    faults: Faults,
) -> dict[tuple[str, ...], Row]:
    """Return the rows of a file by key; add the line of each of their fields to `lines`."""
    node = parse(path, shown, faults)
    if node is None:
        return {}
    table = Table(node, faults, required=("releases",), optional=("sources",))
    reader = read(_source(table.read("sources", mapping_of(_url), {})))
    rows: dict[tuple[str, ...], Row] = {}

    def note_row(entry: Node, faults: Faults) -> None:
        row = reader(entry, faults)
        if isinstance(entry.value, Mapping):
            lines[row.where] = {name: part.where.line for name, part in entry.value.items()}
        first = rows.setdefault(key.of(row), row) if all(key.of(row)) else row
        if first is not row:
            title = key.title.format(*key.of(row))
            line = first.where.line
            faults.add(row.where, f"duplicate row: {title}, first in line {line}")

    nothing: tuple[None, ...] = ()
    table.read("releases", list_of(note_row), nothing)
    return rows


def _cuda(source: Reader[str]) -> Reader[CudaRelease]:
    return record(
        CudaRelease,
        {
            "version": _dotted,
            "update": _dotted,
            "driver": _dotted,
            "architectures": _words(architecture),
            "sources": _words(source),
        },
        {
            "shipped_driver": _dotted,
            "capabilities": _words(_number),
            "gcc": _number,
            "repositories": _by_architecture(_words(text)),
            "images": _by_architecture(_words(text)),
            "image_tag": _dotted,
            "image_names": _by_architecture(text),
            "deleted": mapping_of(source),
            "leaving": source,
            "wheels": mapping_of(_dotted),
            "notes": text,
        },
        placed=True,
    )


def _library(name: str, source: Reader[str]) -> Reader[LibraryRelease]:
    return record(
        functools.partial(LibraryRelease, name=name),
        {"version": _dotted, "build": _dotted, "sources": _words(source)},
        {**dict.fromkeys(facts.PACKAGINGS, _words(architecture)), "notes": text},
        placed=True,
    )


def _mpi(source: Reader[str]) -> Reader[MpiRelease]:
    return record(
        MpiRelease,
        {
            "family": one_of(facts.MPI_FAMILIES, "MPI family"),
            "series": _dotted,
            "soname": text,
            "sources": _words(source),
        },
        {"pmix": _dotted, "notes": text},
        placed=True,
    )


def _sdk(source: Reader[str]) -> Reader[SdkRelease]:
    return record(
        SdkRelease,
        {"version": _dotted, "cuda": _by_architecture(_words(_dotted)), "sources": _words(source)},
        {"notes": text},
        placed=True,
    )


def _system(source: Reader[str]) -> Reader[SystemRelease]:
    return record(
        SystemRelease,
        {
            "distribution": text,
            "version": _dotted,
            "glibc": _dotted,
            "kernel": _by_architecture(_dotted),
            "sources": _words(source),
        },
        {"cpu": _targets, "python": _dotted, "pip": _dotted, "notes": text},
        placed=True,
    )


def _targets(node: Node, faults: Faults) -> dict[str, str]:
    """Read CPU targets by architecture; each must exist for its architecture."""
    targets = _by_architecture(text)(node, faults)
    for arch, target in targets.items():
        if arch and target and target not in CPU_TARGETS[arch]:
            valid = suggest(target, CPU_TARGETS[arch])
            faults.add(node.where, f'unknown CPU target for {arch}: "{target}"', valid)
    return targets


def _words(item: Reader[T]) -> Reader[tuple[T, ...]]:
    return words(item, least=1, distinct=True)


def _by_architecture(item: Reader[T]) -> Reader[dict[str, T]]:
    return mapping_of(item, key=architecture)


def _source(names: Mapping[str, str]) -> Reader[str]:
    """Return a reader of a URL, or of the name of a URL in the table `sources`."""

    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        if not value or value.startswith(("https://", "http://")):
            return value
        if value not in names:
            valid = f"valid: https://..., or a name in the table `sources`; {suggest(value, names)}"
            faults.add(node.where, f'unknown source: "{value}"', valid)
        return names.get(value, "")

    return read


# The place of a row, the key in it, the problem, and a hint about valid values.
Contradiction = tuple[Where, str, str, str]


def contradictions(tables: Facts) -> Iterator[Contradiction]:
    """Yield the contradictions in the tables of CUDA, cuDNN and NCCL."""
    releases = tables.cuda
    for release in releases.values():
        yield from _in_versions(release)
        yield from _in_architectures(release)
        yield from _in_capabilities(release)
    for older, newer in itertools.pairwise(releases.values()):  # the oldest is first
        yield from _falling(older, newer)
    for library in (*tables.cudnn, *tables.nccl):
        yield from _in_library(library, releases)


def _in_versions(release: CudaRelease) -> Iterator[Contradiction]:
    for key, value in (("update", release.update), ("image_tag", release.image_tag)):
        if value and not f"{value}.".startswith(f"{release.version}."):
            problem = f"{value} is not an update of CUDA {release.version}"
            yield release.where, key, problem, f"valid: {release.version}, {release.version}.1"
    shipped = release.shipped_driver
    if shipped and version_order(release.driver) > version_order(shipped):
        problem = f"the minimum driver, {release.driver}, is newer than the shipped driver"
        yield release.where, "driver", problem, f"valid: up to {shipped}"


def _in_architectures(release: CudaRelease) -> Iterator[Contradiction]:
    valid = f"valid, as in its `architectures`: {', '.join(release.architectures)}"
    for key in ("repositories", "images", "image_names"):
        if problem := _without_toolkit(
            release.version, getattr(release, key), release.architectures
        ):
            yield release.where, key, problem, valid


def _without_toolkit(cuda: str, archs: Collection[str], known: Collection[str]) -> str:
    strange = [arch for arch in archs if arch and arch not in known]
    return f"CUDA {cuda} has no toolkit for {', '.join(strange)}" if strange else ""


def _in_capabilities(release: CudaRelease) -> Iterator[Contradiction]:
    numbers = [int(capability) for capability in release.capabilities if capability]
    for before, after in itertools.pairwise(numbers):
        if before > after:
            problem = f"{after} comes after {before}"
            yield release.where, "capabilities", problem, "valid: in ascending order"


def _falling(older: CudaRelease, newer: CudaRelease) -> Iterator[Contradiction]:
    """Check that the minimum driver and the newest host compiler never decrease."""
    for key, title in (("driver", "the minimum driver"), ("gcc", "the newest gcc")):
        before, after = getattr(older, key), getattr(newer, key)
        if before and after and version_order(after) < version_order(before):
            previous = f"that of CUDA {older.version} in {older.where}"
            problem = f"{title} of CUDA {newer.version}, {after}, is older than {previous}"
            yield newer.where, key, problem, f"valid: {before} or newer"


def _in_library(
    library: LibraryRelease, releases: Mapping[str, CudaRelease]
) -> Iterator[Contradiction]:
    """Check that a library's CUDA release exists for the library's architectures."""
    pairs = [cuda for cuda in releases.values() if library.pairs_with(cuda.version)]
    if not pairs:
        valid = "valid: a release of cuda.yaml, or the major version of one"
        yield library.where, "build", f"unknown CUDA release: {library.build}", valid
    elif not _is_replaced(library, pairs):
        known = sorted({arch for cuda in pairs for arch in cuda.architectures})
        for packaging, archs in library.packagings.items():
            if problem := _without_toolkit(library.build, archs, known):
                yield library.where, packaging, problem, f"valid: {', '.join(known)}"


def _is_replaced(library: LibraryRelease, pairs: Sequence[CudaRelease]) -> bool:
    """Return whether a project's own row replaces a CUDA release of a shipped library's table."""
    return any(cuda.where.file.count("/") < library.where.file.count("/") for cuda in pairs)
