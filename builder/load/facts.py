"""The tables of facts: those shipped in builder/facts/data, and the rows that a project adds.

A row of a project's `facts/NAME.yaml` replaces the shipped one of the same release.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from builder import facts
from builder.facts import CudaRelease, Facts, LibraryRelease, MpiRelease, SdkRelease, SystemRelease
from builder.facts.places import Where
from builder.load.contradictions import Contradictions, Lines
from builder.load.document import Node, parse
from builder.load.faults import Faults, suggest
from builder.load.readers import (
    Reader,
    Table,
    architecture,
    list_of,
    mapping_of,
    one_of,
    text,
)
from builder.model.architectures import CPU_TARGETS
from builder.model.errors import BadInput, Fault
from builder.model.versions import version_order

T = TypeVar("T")
Row = TypeVar("Row", CudaRelease, LibraryRelease, MpiRelease, SdkRelease, SystemRelease)
Sources = Mapping[str, str]
RowReader = Callable[[Node, Sources, Faults], Row]
AnyRow = CudaRelease | LibraryRelease | MpiRelease | SdkRelease | SystemRelease

FOLDER = "facts"
FILES = ("cuda.yaml", "cudnn.yaml", "nccl.yaml", "nvhpc.yaml", "mpi.yaml", "systems.yaml")
_SHIPPED = Path(facts.__file__).parent / "data"
_SHOWN = "builder/facts/data"  # how messages name the shipped files

# int() refuses thousands of digits
_NUMBER = re.compile(r"[0-9]{1,9}")
_DOTTED = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")


def known_facts(root: Path, consequence: str = "nothing was built") -> Facts:
    """Return the tables with the rows that a project in `root` adds; raises all faults at once."""
    faults = Faults()
    tables = read_facts(root, faults)
    if faults.found:
        raise BadInput.of(faults.found, consequence)
    return tables


def read_facts(root: Path, faults: Faults) -> Facts:
    """The shipped tables with the rows that the project in `root` adds, checked against each other.

    Whatever is wrong is noted in `faults`; the result is then not to be used.
    """
    if (root / FOLDER).is_dir():
        return _read(root, faults)
    tables, known_faults = _shipped_alone()
    faults.found += known_faults
    return tables


@functools.cache
def _shipped_alone() -> tuple[Facts, tuple[Fault, ...]]:
    """The shipped tables, which do not change while a program runs, and what is wrong with them."""
    faults = Faults()
    tables = _read(_SHIPPED, faults)
    return tables, tuple(faults.found)


def _read(root: Path, faults: Faults) -> Facts:
    _check_names(root / FOLDER, faults)
    lines: Lines = {}
    tables = Facts(
        cuda={one.version: one for one in _rows("cuda", root, _cuda(lines), faults)},
        cudnn=_rows("cudnn", root, _library(facts.CUDNN, lines), faults),
        nccl=_rows("nccl", root, _library(facts.NCCL, lines), faults),
        mpi=_rows("mpi", root, _mpi, faults),
        systems=_rows("systems", root, _system, faults),
        sdks=_rows("nvhpc", root, _sdk, faults),
    )
    contradictions = Contradictions(lines, faults)
    contradictions.check_cuda(tables.cuda)
    contradictions.check_libraries((*tables.cudnn, *tables.nccl), tables.cuda)
    return tables


def _check_names(folder: Path, faults: Faults) -> None:
    """A mistyped file would be passed over in silence."""
    for path in sorted(folder.glob("*")):
        if path.suffix in {".yaml", ".yml"} and path.name not in FILES:
            where = Where(file=f"{FOLDER}/{path.name}", line=1)
            faults.add(where, "there is no such table of facts", suggest(path.name, FILES))


def _rows(name: str, root: Path, read: RowReader[Row], faults: Faults) -> tuple[Row, ...]:
    file = f"{name}.yaml"
    rows = _file(_SHIPPED / file, f"{_SHOWN}/{file}", read, faults)
    own = root / FOLDER / file
    if own.exists():
        rows |= _file(own, f"{FOLDER}/{file}", read, faults)
    return tuple(sorted(rows.values(), key=_order))


def _file(
    path: Path, shown: str, read: RowReader[Row], faults: Faults
) -> dict[tuple[str, ...], Row]:
    node = parse(path, shown, faults)
    if node is None:
        return {}
    table = Table(node, faults, required=("releases",), optional=("sources",))
    no_names: dict[str, str] = {}
    names = table.read("sources", mapping_of(_url), no_names)
    no_rows: tuple[Row, ...] = ()
    rows: dict[tuple[str, ...], Row] = {}
    for row in table.read("releases", list_of(_with(read, names)), no_rows):
        key = _key(row)
        first = rows.setdefault(key, row) if all(key) else row
        if first is not row:
            line = first.where.line
            faults.add(row.where, f"{_title(row)} is in this table twice, first in line {line}")
    return rows


def _with(read: RowReader[Row], names: Sources) -> Reader[Row]:
    return lambda node, faults: read(node, names, faults)


def _key(row: AnyRow) -> tuple[str, ...]:
    if isinstance(row, MpiRelease):
        return row.family, row.series
    if isinstance(row, SystemRelease):
        return row.distribution, row.version
    return (row.version, row.build) if isinstance(row, LibraryRelease) else (row.version,)


def _title(row: AnyRow) -> str:
    if isinstance(row, (MpiRelease, SystemRelease)):
        return " ".join(_key(row))
    if isinstance(row, LibraryRelease):
        return f"{row.version} for CUDA {row.build}"
    if isinstance(row, SdkRelease):
        return f"HPC SDK {row.version}"
    return f"CUDA {row.version}"


def _order(row: AnyRow) -> tuple[object, ...]:
    if isinstance(row, (MpiRelease, SystemRelease)):
        name, version = _key(row)
        return name, version_order(version)
    build = version_order(row.build) if isinstance(row, LibraryRelease) else ()
    return build, version_order(row.version)


def _cuda(lines: Lines) -> RowReader[CudaRelease]:
    def read(node: Node, names: Sources, faults: Faults) -> CudaRelease:
        table = Table(
            node,
            faults,
            required=("version", "update", "driver", "architectures", "sources"),
            optional=(
                "shipped_driver",
                "capabilities",
                "gcc",
                "repositories",
                "images",
                "image_tag",
                "image_names",
                "deleted",
                "leaving",
                "notes",
            ),
        )
        lines[table.where] = table.lines()
        return CudaRelease(
            version=table.read("version", _dotted, ""),
            update=table.read("update", _dotted, ""),
            driver=table.read("driver", _dotted, ""),
            shipped_driver=table.read("shipped_driver", _dotted, ""),
            architectures=table.read("architectures", words(architecture), ()),
            capabilities=table.read("capabilities", words(_number), ()),
            gcc=table.read("gcc", _number, ""),
            repositories=table.read("repositories", _by_architecture(words(text)), {}),
            images=table.read("images", _by_architecture(words(text)), {}),
            image_tag=table.read("image_tag", _dotted, ""),
            image_names=table.read("image_names", _by_architecture(text), {}),
            deleted=table.read("deleted", mapping_of(_source(names)), {}),
            leaving=table.read("leaving", _source(names), ""),
            sources=table.read("sources", words(_source(names)), ()),
            notes=table.read("notes", text, ""),
            where=table.where,
        )

    return read


def _library(name: str, lines: Lines) -> RowReader[LibraryRelease]:
    def read(node: Node, names: Sources, faults: Faults) -> LibraryRelease:
        table = Table(
            node,
            faults,
            required=("version", "build", "sources"),
            optional=(*facts.PACKAGINGS, "notes"),
        )
        lines[table.where] = table.lines()
        return LibraryRelease(
            name=name,
            version=table.read("version", _dotted, ""),
            build=table.read("build", _dotted, ""),
            packagings={
                one: table.read(one, words(architecture), ())
                for one in facts.PACKAGINGS
                if one in table
            },
            sources=table.read("sources", words(_source(names)), ()),
            notes=table.read("notes", text, ""),
            where=table.where,
        )

    return read


def _mpi(node: Node, names: Sources, faults: Faults) -> MpiRelease:
    table = Table(
        node,
        faults,
        required=("family", "series", "soname", "sources"),
        optional=("pmix", "notes"),
    )
    return MpiRelease(
        family=table.read("family", one_of(facts.MPI_FAMILIES, "MPI family"), ""),
        series=table.read("series", _dotted, ""),
        soname=table.read("soname", text, ""),
        pmix=table.read("pmix", _dotted, ""),
        sources=table.read("sources", words(_source(names)), ()),
        notes=table.read("notes", text, ""),
        where=table.where,
    )


def _sdk(node: Node, names: Sources, faults: Faults) -> SdkRelease:
    table = Table(node, faults, required=("version", "cuda", "sources"), optional=("notes",))
    return SdkRelease(
        version=table.read("version", _dotted, ""),
        cuda=table.read("cuda", _by_architecture(words(_dotted)), {}),
        sources=table.read("sources", words(_source(names)), ()),
        notes=table.read("notes", text, ""),
        where=table.where,
    )


def _system(node: Node, names: Sources, faults: Faults) -> SystemRelease:
    required = ("distribution", "version", "glibc", "kernel", "sources")
    table = Table(node, faults, required=required, optional=("cpu", "python", "pip", "notes"))
    return SystemRelease(
        distribution=table.read("distribution", text, ""),
        version=table.read("version", _dotted, ""),
        glibc=table.read("glibc", _dotted, ""),
        kernel=table.read("kernel", _by_architecture(_dotted), {}),
        cpu=table.read("cpu", _targets, {}),
        python=table.read("python", _dotted, ""),
        pip=table.read("pip", _dotted, ""),
        sources=table.read("sources", words(_source(names)), ()),
        notes=table.read("notes", text, ""),
        where=table.where,
    )


def _targets(node: Node, faults: Faults) -> dict[str, str]:
    """CPU targets by architecture, each one of its architecture."""
    found = _by_architecture(text)(node, faults)
    for arch, target in found.items():
        if arch and target and target not in CPU_TARGETS[arch]:
            valid = suggest(target, CPU_TARGETS[arch])
            faults.add(node.where, f'"{target}" is no CPU target of {arch}', valid)
    return found


def words(item: Reader[T]) -> Reader[tuple[T, ...]]:
    """A reader of distinct items: the words of a text, or a list."""
    several = list_of(item, least=1, distinct=True)

    def read(node: Node, faults: Faults) -> tuple[T, ...]:
        if isinstance(node.value, str):
            parts = node.value.split()
            nodes = tuple(Node(where=node.where, value=one, text=one) for one in parts)
            node = Node(where=node.where, value=nodes)
        return several(node, faults)

    return read


def _by_architecture(item: Reader[T]) -> Reader[dict[str, T]]:
    return mapping_of(item, key=architecture)


def _dotted(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if not value or _DOTTED.fullmatch(value):
        return value
    faults.add(node.where, f'"{value}" is no version here', "valid: digits and dots: 12.4.1")
    return ""


def _number(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if not value or _NUMBER.fullmatch(value):
        return value
    faults.add(node.where, f'"{value}" is no number', "valid: digits alone")
    return ""


def _url(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not _is_url(value):
        faults.add(node.where, f'"{value}" is no address', "valid: https://...")
    return value


def _source(names: Sources) -> Reader[str]:
    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        if not value or _is_url(value):
            return value
        if value not in names:
            valid = f"valid: https://..., or a name of the table `sources`; {suggest(value, names)}"
            faults.add(node.where, f'"{value}" is no source', valid)
        return names.get(value, "")

    return read


def _is_url(value: str) -> bool:
    return value.startswith(("https://", "http://"))
