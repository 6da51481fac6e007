"""Read one file under `base-images/`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from builder import facts
from builder.load.document import Faults, Node, inside, key_node, note
from builder.load.readers import (
    Reader,
    architecture,
    flag,
    identifier,
    keyed,
    list_of,
    mapping,
    mapping_of,
    matching,
    one_of,
    record,
    text,
    variable,
    version,
)
from builder.model import (
    BaseImage,
    Bootstrap,
    CudaSupport,
    EndOfLife,
    PackagedCuda,
    PackagedExtra,
    PackagedMpi,
    Where,
)

# hpccm.config.set_linux_distro falls back to Ubuntu 16.04 for any other name.
# https://github.com/NVIDIA/hpc-container-maker/blob/master/hpccm/config.py
HPCCM_DISTROS = (
    *(f"ubuntu{release}" for release in (16, 18, 20, 22, 24, 26)),
    *("centos7", "centos8", "rhel7", "rhel8"),
    *("rockylinux8", "rockylinux9", "rockylinux10"),
)

# Additional suites of a Debian release, https://wiki.debian.org/DebianSuites
POCKETS = ("updates", "security", "proposed-updates", "backports")

_SOURCES = ("bootstrap", "references")
EXTRAS = ("cudnn", "nccl")


_reference = matching(
    re.compile(r"\S+"),
    "is not an image reference",
    "valid: such as docker.io/library/debian:13",
)
_packages = {"development": list_of(text), "runtime": list_of(text)}
_extra = record(PackagedExtra, {"version": version, **_packages})


def _packaged_mpi(family: str) -> Reader[PackagedMpi]:
    return record(
        functools.partial(PackagedMpi, family=family),
        {"version": version, **_packages},
        {"environment": mapping_of(text, key=variable), "pmix": version},
    )


def _packaged_cuda(number: str) -> Reader[PackagedCuda]:
    def toolkit(**values: object) -> PackagedCuda:
        extras = {name: values.pop(name) for name in EXTRAS if name in values}
        kind: Callable[..., PackagedCuda] = PackagedCuda
        return kind(version=number, extras=extras, **values)

    return record(
        toolkit,
        {**_packages, "gcc": version},
        {
            "architectures": list_of(architecture, distinct=True),
            "capabilities": list_of(text, distinct=True),
            "prepare": list_of(text),
            "clean": list_of(text),
            "environment": mapping_of(text, key=variable),
            **dict.fromkeys(EXTRAS, _extra),
        },
    )


_bootstrap = record(
    Bootstrap,
    {"suite": text, "components": list_of(text, least=1), "keyring": text},
    {"packages": list_of(text), "pockets": list_of(one_of(POCKETS, "pocket"), distinct=True)},
)
_cuda = record(
    CudaSupport,
    {},
    {
        "image": text,
        "repository": text,
        "distribution": keyed(version, _packaged_cuda),
        "wheels": flag,
    },
)
_base = record(
    BaseImage,
    {
        "base": identifier,
        "about": text,
        "distribution": text,
        "version": text,
        "hpccm": one_of(HPCCM_DISTROS, "distribution in hpccm"),
        "architectures": list_of(architecture, least=1, distinct=True),
    },
    {
        "bootstrap": _bootstrap,
        "references": mapping_of(_reference, key=architecture),
        "mpi": keyed(one_of(facts.MPI_FAMILIES, "MPI family"), _packaged_mpi),
        "cuda": _cuda,
        "gcc": list_of(version, least=1, distinct=True),
        "prepare": list_of(text),
        "end_of_life": record(EndOfLife, {"since": text, "about": text}),
    },
    fields={"base": "name", "hpccm": "hpccm_distro"},
    placed=True,
)


def read_base(node: Node, faults: Faults) -> BaseImage:
    """Return a base image; its root file system must have exactly one source."""
    base = _base(node, faults)
    note(node, oneOf=[{"required": [source]} for source in _SOURCES])
    if isinstance(node.value, Mapping):
        _check_source(node.where, node.value, base, faults)
    return base


def _check_source(
    where: Where, entries: Mapping[str, Node], base: BaseImage, faults: Faults
) -> None:
    sources = [source for source in _SOURCES if source in entries]
    if len(sources) != 1:
        problem = "two sources" if sources else "no source"
        valid = "valid: either bootstrap (from a Debian mirror) or references (from a registry)"
        faults.add(where, f"{problem} for the root file system", valid)
    if "references" in sources:
        _check_references(entries["references"], base, faults)


def _check_references(references: Node, base: BaseImage, faults: Faults) -> None:
    for arch in filter(None, base.architectures):
        if arch not in base.references:
            where = inside(references.where, arch)
            faults.add(where, f"no image reference for the architecture {arch}")
    for name, entry in (mapping(references, Faults()) or {}).items():
        arch = architecture(key_node(name, entry), Faults())
        if arch and base.architectures and arch not in base.architectures:
            faults.add(entry.where, f"{arch} is missing in architectures")
