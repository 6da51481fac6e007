"""The blocks `cuda` and `mpi` of a recipe, which are not hpccm's: what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.load.document import Node, key_node
from builder.load.faults import Faults, suggest
from builder.load.readers import (
    Table,
    architecture,
    list_of,
    mapping,
    mapping_of,
    text,
    variable,
    version,
)
from builder.model import MPI_ROUTES, OPTIONAL, BlockUse, CudaSupport, PackagedCuda, PackagedExtra
from builder.model.errors import Fault

# Each argument with what its value must be, in words.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "capabilities": 'a list of compute capabilities, such as ["70"]',
        "cudnn": "true, false or optional (with it where the route has it)",
        "nccl": "true, false or optional (with it where the route has it)",
        "sdk": 'version and eula of an HPC SDK, such as {version: "23.9", eula: true}',
    },
    "mpi": {
        "routes": f"a list of some of {', '.join(MPI_ROUTES)}",
        "source": "the arguments of hpccm's block, as a mapping",
    },
}


def toolkit_faults(use: BlockUse) -> Iterator[Fault]:
    """Arguments that the block does not have, and values of another kind."""
    valid = ARGUMENTS[use.name]
    for name, value in use.arguments.items():
        if name not in valid:
            yield _fault(
                use, name, f'unknown argument of {use.name} "{name}"', suggest(name, valid)
            )
        elif not _fits(name, value):
            yield _fault(use, name, f"expected {valid[name]}", "")


def _fits(name: str, value: object) -> bool:
    if name in {"cudnn", "nccl"}:
        return isinstance(value, bool) or value == OPTIONAL
    if name == "source":
        return isinstance(value, dict)
    if name == "sdk":
        return _is_sdk(value)
    if not isinstance(value, list) or not value:
        return False
    if name == "routes":
        return all(one in MPI_ROUTES for one in value)
    return all(isinstance(one, str) and one.isdecimal() for one in value)


def _is_sdk(value: object) -> bool:
    """Whoever builds the image accepts NVIDIA's terms, and the recipe has to say it."""
    if not isinstance(value, dict) or set(value) != {"version", "eula"}:
        return False
    return isinstance(value["version"], str) and value["eula"] is True


def _fault(use: BlockUse, name: str, problem: str, valid: str) -> Fault:
    line = use.lines.get(name, use.where.line)
    key = f"{use.where.key}.{name}"
    return Fault(file=use.where.file, line=line, key=key, problem=problem, valid=valid)


EXTRAS = ("cudnn", "nccl")


def read_cuda(node: Node, faults: Faults) -> CudaSupport:
    """Which of NVIDIA's images and repositories fit the base, and its own packages of CUDA."""
    table = Table(node, faults, required=(), optional=("image", "repository", "distribution"))
    return CudaSupport(
        image=table.read("image", text, ""),
        repository=table.read("repository", text, ""),
        distribution=table.read("distribution", _packaged, ()),
    )


def _packaged(node: Node, faults: Faults) -> tuple[PackagedCuda, ...]:
    return tuple(
        _toolkit(version(key_node(name, entry), faults), entry, faults)
        for name, entry in (mapping(node, faults) or {}).items()
    )


def _toolkit(number: str, node: Node, faults: Faults) -> PackagedCuda:
    table = Table(
        node,
        faults,
        required=("development", "runtime", "gcc"),
        optional=("architectures", "capabilities", "prepare", "clean", "environment", *EXTRAS),
    )
    extras = {name: table.read(name, _extra, None) for name in EXTRAS}
    return PackagedCuda(
        version=number,
        development=table.read("development", list_of(text), ()),
        runtime=table.read("runtime", list_of(text), ()),
        gcc=table.read("gcc", version, ""),
        capabilities=table.read("capabilities", list_of(text, distinct=True), ()),
        architectures=table.read("architectures", list_of(architecture, distinct=True), ()),
        prepare=table.read("prepare", list_of(text), ()),
        clean=table.read("clean", list_of(text), ()),
        environment=table.read("environment", mapping_of(text, key=variable), {}),
        extras={name: extra for name, extra in extras.items() if extra},
    )


def _extra(node: Node, faults: Faults) -> PackagedExtra:
    table = Table(node, faults, required=("version", "development", "runtime"))
    return PackagedExtra(
        version=table.read("version", version, ""),
        development=table.read("development", list_of(text), ()),
        runtime=table.read("runtime", list_of(text), ()),
    )
