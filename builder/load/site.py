"""`site.yaml`: the registries, mirrors, routes and shared folder of one site."""

from __future__ import annotations

import os
import re
from pathlib import Path

from builder.load.document import Node, key_node, parse
from builder.load.faults import Faults
from builder.load.readers import Table, list_of, mapping, mapping_of, one_of, text
from builder.model import CUDA_ROUTES, MPI_ROUTES, Site

SITE = "site.yaml"
VARIABLE = "BUILD_IMAGES_SITE"
_ADDRESS = re.compile(
    r"https?://(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:/.*)?"  # no user name, no password
    r"|file:///+[^/].*"
)


def read_site(root: Path, faults: Faults) -> Site:
    """The site of `$BUILD_IMAGES_SITE`, else of the project's site.yaml, else the defaults."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else root / SITE
    if not named and not path.exists() and not path.is_symlink():
        return Site()
    node = parse(path, named or SITE, faults)
    return Site() if node is None else site_of(node, faults)


def site_of(node: Node, faults: Faults) -> Site:
    """A site's file as a value."""
    optional = ("registries", "sources", "packages", "routes", "shared")
    table = Table(node, faults, required=(), optional=optional)
    default: tuple[tuple[str, ...], tuple[str, ...]] = ((), MPI_ROUTES)
    cuda, mpi = table.read("routes", _routes, default)
    return Site(
        registries=table.read("registries", _registries, {}),
        sources=table.read("sources", list_of(_address, distinct=True), ()),
        packages=table.read("packages", mapping_of(list_of(_address, least=1, distinct=True)), {}),
        cuda_routes=cuda,
        mpi_routes=mpi,
        shared=table.read("shared", _folder, ""),
    )


def _folder(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not value.startswith("/"):
        faults.add(node.where, f'"{value}" is no folder', "valid: a whole path: /opt/build-images")
    return value


def _routes(node: Node, faults: Faults) -> tuple[tuple[str, ...], tuple[str, ...]]:
    table = Table(node, faults, required=(), optional=("cuda", "mpi"))
    some = [
        table.read(name, list_of(one_of(routes, "route"), least=1, distinct=True), default)
        for name, routes, default in (("cuda", CUDA_ROUTES, ()), ("mpi", MPI_ROUTES, MPI_ROUTES))
    ]
    return some[0], some[1]


def _registries(node: Node, faults: Faults) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, entry in (mapping(node, faults) or {}).items():
        for one in (key_node(name, entry), entry):
            _check_registry(one, faults)
        found[name] = text(entry, faults).rstrip("/")
    return found


def _check_registry(node: Node, faults: Faults) -> None:
    value = text(node, faults)
    if value and ("://" in value or "@" in value or value.split() != [value]):
        valid = "valid: a host, with a port and a path if need be: registry.site.example/dockerhub"
        faults.add(node.where, f"{_shown(value)} is no registry", valid)


def _shown(value: str) -> str:
    return "what stands here, with a password perhaps," if "@" in value else f'"{value}"'


def _address(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not _ADDRESS.fullmatch(value):
        valid = "valid: https://HOST/PATH without a user name, or file:///PATH"
        faults.add(node.where, f"{_shown(value)} is no URL of a folder", valid)
        return ""  # else a repetition would show it
    return value.rstrip("/")
