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
    described,
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
from builder.load.record_readers import truth
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

_package_version = described("the version that the packages install", version)
_reference = matching(
    re.compile(r"\S+"), "is not an image reference", "valid: such as docker.io/library/debian:13"
)
_packages = {
    "development": described("the packages of the development stage", list_of(text)),
    "runtime": described("the packages of the image", list_of(text)),
}
_extra = record(PackagedExtra, {"version": _package_version, **_packages})


def _packaged_mpi(family: str) -> Reader[PackagedMpi]:
    return record(
        functools.partial(PackagedMpi, family=family),
        {"version": _package_version, **_packages},
        {
            "environment": described("variables of the image", mapping_of(text, key=variable)),
            "pmix": described("the version of the PMIx that it is built with", version),
        },
    )


def _packaged_cuda(number: str) -> Reader[PackagedCuda]:
    def toolkit(**values: object) -> PackagedCuda:
        extras = {name: values.pop(name) for name in EXTRAS if name in values}
        kind: Callable[..., PackagedCuda] = PackagedCuda
        return kind(version=number, extras=extras, **values)

    return record(
        toolkit,
        {**_packages, "gcc": described("the major version of its nvcc's host compiler", version)},
        {
            "architectures": described(
                "the architectures that have these packages (default: the base's)",
                list_of(architecture, distinct=True),
            ),
            "capabilities": described(
                "the targets of its nvcc, such as 7.0 (default: all of the release)",
                list_of(text, distinct=True),
            ),
            "prepare": described("commands before the packages are installed", list_of(text)),
            "clean": described("commands after they are installed", list_of(text)),
            "environment": described("variables of the image", mapping_of(text, key=variable)),
            **{name: described(f"the packages of {name}", _extra) for name in EXTRAS},
        },
    )


_bootstrap = record(
    Bootstrap,
    {
        "suite": described("the release's code name, such as trixie", text),
        "components": described(
            "the components of its archive, such as main", list_of(text, least=1)
        ),
        "keyring": described("the file with the keys that sign the archive", text),
    },
    {
        "packages": described("packages beside the essential ones", list_of(text)),
        "pockets": described(
            "additional suites of the release, such as updates",
            list_of(one_of(POCKETS, "pocket"), distinct=True),
        ),
    },
)
_cuda = record(
    CudaSupport,
    {},
    {
        "image": described("the end of the tags of NVIDIA's images, such as ubuntu18.04", text),
        "repository": described(
            "the name of NVIDIA's package repository, such as ubuntu1804", text
        ),
        "distribution": described(
            "the packages of the distribution itself, by CUDA release",
            keyed(version, _packaged_cuda),
        ),
        "wheels": described("NVIDIA's wheels run on this base", truth),
    },
)
_base = record(
    BaseImage,
    {
        "base": described("the name; the file is NAME.yaml", identifier),
        "about": described("one line for reports", text),
        "distribution": described("the ID of /etc/os-release, such as debian", text),
        "version": described("the VERSION_ID of /etc/os-release, in quotes", text),
        "hpccm": described(
            "the system that hpccm takes it for", one_of(HPCCM_DISTROS, "distribution in hpccm")
        ),
        "architectures": described(
            "as uname -m names them", list_of(architecture, least=1, distinct=True)
        ),
    },
    {
        "bootstrap": described("build the root file system from a Debian mirror", _bootstrap),
        "references": described(
            "take the root file system from a registry, for each architecture",
            mapping_of(_reference, key=architecture),
        ),
        "mpi": described(
            "the distribution's packages, by MPI family",
            keyed(one_of(facts.MPI_FAMILIES, "MPI family"), _packaged_mpi),
        ),
        "cuda": described("the ways to CUDA on this base", _cuda),
        "gcc": described(
            "major versions of the packaged GCC, the default first",
            list_of(version, least=1, distinct=True),
        ),
        "prepare": described("commands that run before the first block", list_of(text)),
        "end_of_life": described(
            "since the distribution has no updates",
            record(
                EndOfLife,
                {
                    "since": described("the day, in quotes", text),
                    "about": described("where its packages are now", text),
                },
            ),
        ),
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
