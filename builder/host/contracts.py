"""Host contracts of images, read from the file in an image or from its labels."""

from __future__ import annotations

from collections.abc import Mapping

from builder import facts
from builder.facts.tables import Where
from builder.load.document import Faults, Node, inside, parse_bytes
from builder.load.readers import architecture, described, one_of, record, text, version, words
from builder.load.record_readers import dotted, exactly, kernel, plain_capability, target
from builder.model.cells import MPI_ROUTES
from builder.model.contract import LABEL, SCHEMA, HostContract, NeededCpu, NeededCuda, NeededMpi
from builder.model.errors import BadInput

_DEEPEST, _LONGEST = 8, 4000  # parts of a label's key, characters of key and value
_ABIS = sorted({family.abi for family in facts.MPI_FAMILIES.values()})


def contract_from_file(data: bytes, shown: str) -> HostContract:
    """Return the contract in a file; raises `BadInput` with all its faults."""
    faults = Faults()
    return _checked(parse_bytes(data, shown, faults), faults)


def contract_from_labels(labels: Mapping[str, str], shown: str) -> HostContract | None:
    """Return the contract in an image's labels; None if they have none."""
    told = {key.removeprefix(LABEL): text for key, text in labels.items() if key.startswith(LABEL)}
    if not told:
        return None
    if any(len(key + value) > _LONGEST or key.count(".") > _DEEPEST for key, value in told.items()):
        raise BadInput(f"{shown}: a label of its host contract is too long or nested too deeply")
    return _checked(_tree(told, Where(file=shown, line=1, key=LABEL.rstrip("."))), Faults())


def _checked(node: Node | None, faults: Faults) -> HostContract:
    contract = None if node is None else contract_of_node(node, faults)
    if contract is None or faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return contract


def _tree(values: Mapping[str, str], where: Where) -> Node:
    """Return nested mappings for values whose keys are paths: `cuda.driver`."""
    inner: dict[str, dict[str, str]] = {}
    found: dict[str, Node] = {}
    for path, value in sorted(values.items()):
        key, _, rest = path.partition(".")
        if rest:
            inner.setdefault(key, {})[rest] = value
        else:
            found[key] = Node(where=inside(where, key), value=value, text=value)
    for key, some in inner.items():
        found[key] = _tree(some, inside(where, key))
    return Node(where=where, value=found)


_cpu = record(
    NeededCpu,
    {"target": described("the CPU target that it was compiled for", target)},
    {
        "baseline": described("the CPU target of the distribution's packages", target),
        "features": described(
            "features that the processor must have, as in /proc/cpuinfo", words(text)
        ),
    },
)
_cuda = record(
    NeededCuda,
    {
        "version": described("the release of CUDA", dotted),
        "driver": described("the least version of NVIDIA's driver", dotted),
    },
    {
        "update": described("the release's newest update, such as 12.4.1", dotted),
        "shipped_driver": described("the driver that was released with it", dotted),
        "capabilities": described(
            "the GPUs that it has code for: 70 for 7.0", words(plain_capability)
        ),
        "ptx": described("newer GPUs compile its PTX of this capability", plain_capability),
    },
)
_mpi = record(
    NeededMpi,
    {
        "family": described("the family of its MPI", one_of(facts.MPI_FAMILIES, "MPI family")),
        "version": described("the version of its MPI", version),
        "route": described("where its MPI comes from", one_of(MPI_ROUTES, "route")),
    },
    {
        "library": described("the name that the library reports", text),
        "abi": described(
            "the binary interface, which a bound library must have",
            one_of(_ABIS, "binary interface"),
        ),
        "pmix": described("the version of its PMIx", dotted),
    },
)
# A result with faults must not be used.
contract_of_node = record(
    HostContract,
    {
        "schema": exactly(SCHEMA),
        "image": described("the image's identifier", text),
        "architecture": described("as uname -m names it", architecture),
        "cpu": described("the processor that it needs", _cpu),
    },
    {
        "kernel": described("the least kernel", kernel),
        "glibc": described("the version of its glibc", dotted),
        "cuda": described("what its CUDA needs; absent without CUDA", _cuda),
        "mpi": described("its MPI; absent without one", _mpi),
    },
    fields={"schema": ""},
)
