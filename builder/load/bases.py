"""One file under `base-images/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder import facts
from builder.load.document import Node, inside, key_node, note
from builder.load.faults import Faults, suggest
from builder.load.readers import (
    Table,
    architecture,
    identifier,
    list_of,
    mapping,
    mapping_of,
    one_of,
    text,
    variable,
    version,
)
from builder.model import (
    MPI_ROUTES,
    OPTIONAL,
    BaseImage,
    BlockUse,
    Bootstrap,
    CudaSupport,
    EndOfLife,
    PackagedCuda,
    PackagedExtra,
    PackagedMpi,
)
from builder.model.errors import Fault

# hpccm.config.set_linux_distro falls back to Ubuntu 16.04 for any other name.
# https://github.com/NVIDIA/hpc-container-maker/blob/master/hpccm/config.py
HPCCM_DISTROS = (
    *(f"ubuntu{release}" for release in (16, 18, 20, 22, 24, 26)),
    *("centos7", "centos8", "rhel7", "rhel8"),
    *("rockylinux8", "rockylinux9", "rockylinux10"),
)

# Suites beside a Debian release, https://wiki.debian.org/DebianSuites
POCKETS = ("updates", "security", "proposed-updates", "backports")

_REQUIRED = ("base", "about", "distribution", "version", "hpccm", "architectures")
_SOURCES = ("bootstrap", "references")
_OPTIONAL = ("mpi", "cuda", "gcc", "prepare", "end_of_life")


def read_base(node: Node, faults: Faults) -> BaseImage:
    """A base image. Its root file system has one source, for each of its architectures."""
    table = Table(node, faults, required=_REQUIRED, optional=(*_SOURCES, *_OPTIONAL))
    base = BaseImage(
        name=table.read("base", identifier, ""),
        about=table.read("about", text, ""),
        distribution=table.read("distribution", text, ""),
        version=table.read("version", text, ""),
        hpccm_distro=table.read("hpccm", one_of(HPCCM_DISTROS, "distribution in hpccm"), ""),
        architectures=table.read(
            "architectures", list_of(architecture, least=1, distinct=True), ()
        ),
        bootstrap=table.read("bootstrap", _bootstrap, None),
        references=table.read("references", mapping_of(_reference, key=architecture), {}),
        mpi=table.read("mpi", _mpis, ()),
        cuda=table.read("cuda", read_cuda, CudaSupport()),
        where=table.where,
        gcc=table.read("gcc", list_of(version, least=1, distinct=True), ()),
        prepare=table.read("prepare", list_of(text), ()),
        end_of_life=table.read("end_of_life", _end_of_life, None),
    )
    note(node, oneOf=[{"required": [source]} for source in _SOURCES])
    if isinstance(node.value, Mapping):
        _check_source(table, base, faults)
    return base


def _check_source(table: Table, base: BaseImage, faults: Faults) -> None:
    found = [source for source in _SOURCES if source in table]
    if len(found) != 1:
        problem = "there are both bootstrap and references" if found else "there is no source"
        valid = "valid: either bootstrap (from a Debian mirror) or references (from a registry)"
        faults.add(table.where, f"{problem} for the root file system", valid)
    references = table.entry("references")
    if references:
        _check_references(references, base, faults)


def _check_references(references: Node, base: BaseImage, faults: Faults) -> None:
    for arch in filter(None, base.architectures):
        if arch not in base.references:
            where = inside(references.where, arch)
            faults.add(where, f"the architecture {arch} has no image reference")
    for name, entry in (mapping(references, Faults()) or {}).items():
        arch = architecture(key_node(name, entry), Faults())
        if arch and base.architectures and arch not in base.architectures:
            faults.add(entry.where, f"the architecture {arch} is not under architectures")


def _bootstrap(node: Node, faults: Faults) -> Bootstrap:
    required, optional = ("suite", "components", "keyring"), ("packages", "pockets")
    table = Table(node, faults, required=required, optional=optional)
    return Bootstrap(
        suite=table.read("suite", text, ""),
        components=table.read("components", list_of(text, least=1), ()),
        packages=table.read("packages", list_of(text), ()),
        keyring=table.read("keyring", text, ""),
        pockets=table.read("pockets", list_of(one_of(POCKETS, "pocket"), distinct=True), ()),
    )


def _reference(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and value.split() != [value]:
        valid = "valid: such as docker.io/library/debian:13"
        faults.add(node.where, f'"{value}" is not an image reference', valid)
    return value


def _mpis(node: Node, faults: Faults) -> tuple[PackagedMpi, ...]:
    family = one_of(facts.MPI_FAMILIES, "MPI family")
    return tuple(
        _mpi(family(key_node(name, entry), faults), entry, faults)
        for name, entry in (mapping(node, faults) or {}).items()
    )


def _mpi(family: str, node: Node, faults: Faults) -> PackagedMpi:
    required = ("version", "development", "runtime")
    table = Table(node, faults, required=required, optional=("environment", "pmix"))
    return PackagedMpi(
        family=family,
        version=table.read("version", version, ""),
        development=table.read("development", list_of(text), ()),
        runtime=table.read("runtime", list_of(text), ()),
        environment=table.read("environment", mapping_of(text, key=variable), {}),
        pmix=table.read("pmix", version, ""),
    )


def _end_of_life(node: Node, faults: Faults) -> EndOfLife:
    table = Table(node, faults, required=("since", "about"))
    return EndOfLife(since=table.read("since", text, ""), about=table.read("about", text, ""))


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
