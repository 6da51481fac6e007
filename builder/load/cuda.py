"""The key `cuda` of a file under `base-images/`: the base's ways to a CUDA toolkit."""

from __future__ import annotations

from builder.load.document import Node, key_node
from builder.load.faults import Faults
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
from builder.model import CudaSupport, PackagedCuda, PackagedExtra

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
