"""Host contracts as they are read from images: from the file in it, or from its labels."""

from __future__ import annotations

from collections.abc import Mapping

from builder import facts
from builder.facts.places import Where
from builder.host.records import fields_of
from builder.load.document import Node, parse_bytes
from builder.load.faults import Faults
from builder.load.readers import architecture, one_of, text, version
from builder.load.record_readers import dotted, exactly, kernel, plain_capability, target, words
from builder.model.cells import MPI_ROUTES
from builder.model.contract import LABEL, SCHEMA, HostContract, NeededCpu, NeededCuda, NeededMpi
from builder.model.errors import BadInput

_DEEPEST, _LONGEST = 8, 4000  # parts of a label's key, letters of key and value


_cpu = fields_of(
    NeededCpu, {"target": target, "baseline": target, "features": words(text)}, ("target",)
)
_cuda = fields_of(
    NeededCuda,
    {
        "version": dotted,
        "driver": dotted,
        "update": dotted,
        "shipped_driver": dotted,
        "capabilities": words(plain_capability),
        "ptx": plain_capability,
    },
    required=("version", "driver"),
)
_mpi = fields_of(
    NeededMpi,
    {
        "family": one_of(facts.MPI_FAMILIES, "MPI family"),
        "version": version,
        "route": one_of(MPI_ROUTES, "route"),
        "library": text,
        "abi": one_of(sorted({one.abi for one in facts.MPI_FAMILIES.values()}), "binary interface"),
        "pmix": dotted,
    },
    required=("family", "version", "route"),
)
_contract = fields_of(
    HostContract,
    {
        "schema": exactly(SCHEMA),
        "image": text,
        "architecture": architecture,
        "cpu": _cpu,
        "kernel": kernel,
        "glibc": dotted,
        "cuda": _cuda,
        "mpi": _mpi,
    },
    required=("schema", "image", "architecture", "cpu"),
)


def contract_of_node(node: Node, faults: Faults) -> HostContract:
    """Return a contract; faults are noted, and the result is then not to be used."""
    return _contract(node, faults)


def contract_from_file(data: bytes, shown: str) -> HostContract:
    """Return the contract in a file; raises `BadInput` with all its faults."""
    faults = Faults()
    return _checked(parse_bytes(data, shown, faults), faults)


def contract_from_labels(labels: Mapping[str, str], shown: str) -> HostContract | None:
    """Return the contract in an image's labels; None if they have none."""
    own = {key.removeprefix(LABEL): text for key, text in labels.items() if key.startswith(LABEL)}
    if not own:
        return None
    if any(len(key + value) > _LONGEST or key.count(".") > _DEEPEST for key, value in own.items()):
        raise BadInput(f"{shown}: a label of its host contract is longer than any contract's")
    return _checked(_tree(own, Where(file=shown, line=1, key=LABEL.rstrip("."))), Faults())


def _checked(node: Node | None, faults: Faults) -> HostContract:
    contract = None if node is None else contract_of_node(node, faults)
    if contract is None or faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return contract


def _tree(values: Mapping[str, str], where: Where) -> Node:
    """Return nested mappings of values whose keys are paths: `cuda.driver`."""
    inner: dict[str, dict[str, str]] = {}
    nodes: dict[str, Node] = {}
    for path, value in sorted(values.items()):
        key, _, rest = path.partition(".")
        if rest:
            inner.setdefault(key, {})[rest] = value
        else:
            nodes[key] = Node(where=_inside(where, key), value=value, text=value)
    nodes |= {key: _tree(below, _inside(where, key)) for key, below in inner.items()}
    return Node(where=where, value=nodes)


def _inside(where: Where, key: str) -> Where:
    return Where(file=where.file, line=1, key=f"{where.key}.{key}")
