"""Host contracts as they are read from images: from the file in it, or from its labels."""

from __future__ import annotations

from collections.abc import Mapping

from builder import facts
from builder.facts.places import Where
from builder.load.document import Node, parse_bytes
from builder.load.faults import Faults
from builder.load.readers import Table, architecture, one_of, text, version
from builder.load.record_readers import dotted, exactly, kernel, plain_capability, target, words
from builder.model.contract import LABEL, SCHEMA, HostContract, NeededCpu, NeededCuda, NeededMpi
from builder.model.errors import BadInput
from builder.model.names import MPI_ROUTES

_DEEPEST, _LONGEST = 8, 4000  # parts of a label's key, letters of key and value
_ABIS = sorted({one.abi for one in facts.MPI_FAMILIES.values()})


def contract_from_file(data: bytes, shown: str) -> HostContract:
    """The contract in a file; raises `BadInput` with all that is wrong in it."""
    faults = Faults()
    node = parse_bytes(data, shown, faults)
    return _checked(node, faults)


def contract_from_labels(labels: Mapping[str, str], shown: str) -> HostContract | None:
    """The contract that an image's labels tell; None if they tell of none."""
    told = {key.removeprefix(LABEL): text for key, text in labels.items() if key.startswith(LABEL)}
    if not told:
        return None
    if any(len(key + value) > _LONGEST or key.count(".") > _DEEPEST for key, value in told.items()):
        raise BadInput(f"{shown}: a label of its host contract is longer than any contract's")
    return _checked(_tree(told, Where(file=shown, line=1, key=LABEL.rstrip("."))), Faults())


def _checked(node: Node | None, faults: Faults) -> HostContract:
    contract = None if node is None else contract_of_node(node, faults)
    if contract is None or faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return contract


def _tree(values: Mapping[str, str], where: Where) -> Node:
    """Nested mappings of values whose keys are paths: `cuda.driver`."""
    inner: dict[str, dict[str, str]] = {}
    found: dict[str, Node] = {}
    for path, value in sorted(values.items()):
        key, _, rest = path.partition(".")
        if rest:
            inner.setdefault(key, {})[rest] = value
        else:
            place = Where(file=where.file, line=1, key=f"{where.key}.{key}")
            found[key] = Node(where=place, value=value, text=value)
    for key, some in inner.items():
        found[key] = _tree(some, Where(file=where.file, line=1, key=f"{where.key}.{key}"))
    return Node(where=where, value=found)


def contract_of_node(node: Node, faults: Faults) -> HostContract:
    """A contract; whatever is wrong is noted, and the result is then not to be used."""
    table = Table(
        node,
        faults,
        required=("schema", "image", "architecture", "cpu"),
        optional=("kernel", "glibc", "cuda", "mpi"),
    )
    table.read("schema", exactly(SCHEMA), "")
    return HostContract(
        image=table.read("image", text, ""),
        architecture=table.read("architecture", architecture, ""),
        cpu=table.read("cpu", _cpu, NeededCpu(target="")),
        kernel=table.read("kernel", kernel, ""),
        glibc=table.read("glibc", dotted, ""),
        cuda=table.read("cuda", _cuda, None),
        mpi=table.read("mpi", _mpi, None),
    )


def _cpu(node: Node, faults: Faults) -> NeededCpu:
    table = Table(node, faults, required=("target",), optional=("baseline", "features"))
    return NeededCpu(
        target=table.read("target", target, ""),
        baseline=table.read("baseline", target, ""),
        features=table.read("features", words(text), ()),
    )


def _cuda(node: Node, faults: Faults) -> NeededCuda:
    optional = ("update", "shipped_driver", "capabilities", "ptx")
    table = Table(node, faults, required=("version", "driver"), optional=optional)
    return NeededCuda(
        version=table.read("version", dotted, ""),
        driver=table.read("driver", dotted, ""),
        update=table.read("update", dotted, ""),
        shipped_driver=table.read("shipped_driver", dotted, ""),
        capabilities=table.read("capabilities", words(plain_capability), ()),
        ptx=table.read("ptx", plain_capability, ""),
    )


def _mpi(node: Node, faults: Faults) -> NeededMpi:
    required, optional = ("family", "version", "route"), ("library", "abi", "pmix")
    table = Table(node, faults, required=required, optional=optional)
    return NeededMpi(
        family=table.read("family", one_of(facts.MPI_FAMILIES, "MPI family"), ""),
        version=table.read("version", version, ""),
        route=table.read("route", one_of(MPI_ROUTES, "route"), ""),
        library=table.read("library", text, ""),
        abi=table.read("abi", one_of(_ABIS, "binary interface"), ""),
        pmix=table.read("pmix", dotted, ""),
    )
