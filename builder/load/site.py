"""Read `site.yaml`, and find the layers of a project: the shipped files, its site's, its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from builder.load.document import Faults, Node, parse, suggest
from builder.load.readers import (
    architecture,
    described,
    identifier,
    line,
    list_of,
    mapping_of,
    matching,
    one_of,
    one_or_more,
    positive,
    record,
    text,
)
from builder.model import (
    CUDA_ROUTES,
    MPI_ROUTES,
    BaseImage,
    Layer,
    Layers,
    Site,
    SitePool,
    SlurmJobs,
    TlsFiles,
    Where,
)
from builder.model.inputs import LOCK
from builder.model.site import PACKED, PROJECT, SHIPPED, SITE

SITE_FILE = "site.yaml"
MATRIX = "matrix.yaml"
INHERIT = "inherit"
_PROGRAM = Path(__file__).resolve().parents[2]
_IN_WHEEL = "build_images"  # setup.py puts the files there
_ARCHIVES = 2  # of Debian: the release and security updates
_MIRRORS = {
    "a Debian archive": "valid: the URL of a Debian archive, and perhaps that of security updates",
    "a registry": "valid: a repository, such as registry.site.example/rockylinux/rockylinux",
}
VARIABLE = "BUILD_IMAGES_SITE"
HOSTS = "hosts"  # records of a site's hosts: no input of an image
LAYER_FILES = (MATRIX, "recipes", "base-images", "tests/images", "facts", "files", HOSTS, LOCK)
_ADDRESS = re.compile(
    r"https?://(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:/.*)?"  # no user name, no password
    r"|file:///+[^/].*"
)
# A folder, or a repository of a registry; a name without dot or port would be one of Docker Hub.
STORE = re.compile(
    r"/.+|(?:https?://)?(?:localhost|\w[\w-]*\.[\w.-]*|\w[\w.-]*:\d+|\[[0-9A-Fa-f:.]+\](?::\d+)?)"
    r"(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)+"
)


def read_site(root: Path, faults: Faults) -> Site:
    """Return the site of `$BUILD_IMAGES_SITE`, else of the project's site.yaml, else defaults."""
    node = _parsed(root, faults)
    return Site() if node is None else site_of(node, faults)


def check_layer(root: Path, faults: Faults) -> None:
    """Report a layer that the site names, and that is no folder with some file of a layer."""
    node = _parsed(root, Faults())
    named = node.value.get("layer") if node and isinstance(node.value, Mapping) else None
    folder = Path(named.text) if named else root
    if named is None or any((folder / name).exists() for name in LAYER_FILES):
        return
    problem = "it has none of the files of a layer" if folder.is_dir() else "not a folder"
    problem = problem if folder.exists() else "no such folder"
    faults.add(named.where, f"{folder}: {problem}", f"valid: one with {', '.join(LAYER_FILES)}")


def _parsed(root: Path, faults: Faults) -> Node | None:
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else root / SITE_FILE
    if not named and not path.exists() and not path.is_symlink():
        return None
    return parse(path, named or SITE_FILE, faults)


def _registry(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and ("://" in value or "@" in value or value.split() != [value]):
        valid = "valid: HOST[:PORT][/PATH], such as registry.site.example/dockerhub"
        faults.add(node.where, f"{_shown(value)} is not a registry", valid)
    return value.rstrip("/")


def _shown(value: str) -> str:
    return "this value (it may hold a password)" if "@" in value else f'"{value}"'


def _address(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not _ADDRESS.fullmatch(value):
        valid = "valid: https://HOST/PATH without a user name, or file:///PATH"
        faults.add(node.where, f"{_shown(value)} is not the URL of a folder", valid)
        return ""  # so that a message about duplicates does not show the password
    return value.rstrip("/")


def _mirror(node: Node, faults: Faults) -> str:
    """Read the mirror of a base; which of both a base has is known later."""
    is_address = "://" in node.text or "@" in node.text
    return _address(node, faults) if is_address else _registry(node, faults)


def with_mirrors(
    root: Path, site: Site, bases: Mapping[str, BaseImage], faults: Faults
) -> tuple[Site, dict[str, BaseImage]]:
    """Return the site and the bases of a project, with the site's mirrors of single bases.

    An image of a registry is mirrored under its whole reference.
    """
    registries, named = dict(site.registries), dict(bases)
    node = _parsed(root, Faults()) if site.mirrors else None
    table = node.value["mirrors"].value if node and isinstance(node.value, Mapping) else {}
    for name, mirrors in site.mirrors.items():
        where = table[name].where if isinstance(table, Mapping) else Where(file=SITE_FILE, line=1)
        base = bases.get(name)
        are_addresses = all("://" in mirror for mirror in mirrors)
        if base is None:
            faults.add(where, f'unknown base image: "{name}"', suggest(name, bases))
        elif base.bootstrap and are_addresses and len(mirrors) <= _ARCHIVES:
            named[name] = replace(base, mirrors=mirrors)
        elif not base.bootstrap and len(mirrors) == 1 and "://" not in mirrors[0]:
            for reference in base.references.values():
                image = reference.partition("@")[0]
                tag = image.rpartition("/")[2].partition(":")[2]
                registries[image] = f"{mirrors[0]}:{tag}" if tag else mirrors[0]
        else:
            kind = "a Debian archive" if base.bootstrap else "a registry"
            faults.add(where, f"not a mirror for {name}, which comes from {kind}", _MIRRORS[kind])
    return replace(site, registries=registries), named


def _store(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not STORE.fullmatch(value):
        valid = "valid: a folder such as /nfs/build-cache, or registry.site.example/build-cache"
        faults.add(
            node.where, f"{_shown(value)} is neither an absolute path nor a repository", valid
        )
        return ""
    return value


def _site(*, routes: Mapping[str, object] = MappingProxyType({}), **values: object) -> Site:
    kind: Callable[..., Site] = Site
    return kind(**routes, **values)


_number = positive("a whole number above 0", "valid: 1, 2, ...")
_pool = record(
    SitePool,
    {"arch": described("the architecture of its machines", architecture)},
    {
        "builds": described(
            "the architectures that it builds (default: its own)",
            list_of(architecture, least=1, distinct=True),
        ),
        "gpus": described("the GPUs of each machine", _number),
        "slurm": described(
            "the jobs that start its workers",
            record(
                SlurmJobs,
                {},
                {
                    "options": described("options of sbatch", list_of(line)),
                    "workers": described("the number of jobs", _number),
                    "setup": described("commands before a worker starts", list_of(line)),
                },
            ),
        ),
    },
)
_path = matching(re.compile("/.*"), "is not an absolute path", "valid: such as /opt/build-images")

# Reads the content of a site's file.
site_of = record(
    _site,
    {},
    {
        "registries": described(
            "mirrors, each by its registry or a namespace of one",
            mapping_of(_registry, key=_registry),
        ),
        "mirrors": described(
            "the mirror of one base, by its name: the URL of a Debian archive (and of its security "
            "archive), or a repository of a registry",
            mapping_of(one_or_more(_mirror)),
        ),
        "sources": described(
            "URLs of folders with sources by checksum", list_of(_address, distinct=True)
        ),
        "packages": described(
            "URLs of package repositories that rehearse reads, by base",
            mapping_of(list_of(_address, least=1, distinct=True)),
        ),
        "routes": described(
            "the ways to CUDA and to an MPI, the preferred one first",
            record(
                dict[str, object],
                {},
                {
                    "cuda": described(
                        "ways to CUDA",
                        list_of(one_of(CUDA_ROUTES, "route"), least=1, distinct=True),
                    ),
                    "mpi": described(
                        "ways to an MPI",
                        list_of(one_of(MPI_ROUTES, "route"), least=1, distinct=True),
                    ),
                },
                fields={"cuda": "cuda_routes", "mpi": "mpi_routes"},
            ),
        ),
        "shared": described("the administrator's folder of tools, bases and sources", _path),
        "layer": described("the folder of the site's own recipes, bases and checks", _path),
        "store": described(
            "where machines share stages and images: a folder, or a repository", _store
        ),
        "pools": described(
            "workers of other machines that are alike, by the pool's name",
            mapping_of(_pool, key=identifier),
        ),
        "security": described(
            "the files for TLS between the machines",
            record(
                TlsFiles,
                {
                    "ca": described("the authority", _path),
                    "certificate": described("the certificate of each machine", _path),
                    "key": described("its key", _path),
                },
            ),
        ),
    },
)


def shipped_folder() -> Path:
    """Return the folder of the shipped files: in a clone its root, else a package beside this."""
    packed = _PROGRAM / _IN_WHEEL
    return packed if (packed / MATRIX).is_file() else _PROGRAM


def layers_of(root: Path, faults: Faults | None = None) -> Layers:
    """Return the layers of the project in a folder, the lowest first.

    A project inherits the shipped layer and its site's, unless its matrix says `inherit: false`. A
    project that was packed for another machine brings its layers. A site's layer that does not
    exist, or has no file of a layer, is a fault.
    """
    if (root / PACKED / SHIPPED / MATRIX).is_file():
        lower = {name: root / PACKED / name for name in (SHIPPED, SITE)}
    elif _is_alone(root):
        lower = {}
    else:
        site = read_site(root, Faults()).layer  # its faults are reported with the project's
        lower = {SHIPPED: shipped_folder(), **({SITE: Path(site)} if site else {})}
        if faults and site:
            check_layer(root, faults)
    return Layers(
        each=(
            *(
                Layer(name=name, folder=folder)
                for name, folder in lower.items()
                if folder.is_dir() and folder.resolve() != root.resolve()
            ),
            Layer(name=PROJECT, folder=root),
        ),
        shipped=shipped_folder(),
    )


def _is_alone(root: Path) -> bool:
    if root.resolve() == shipped_folder():
        return True
    if not (root / MATRIX).is_file():
        return False
    return inherits_nothing(parse(root / MATRIX, MATRIX, Faults())) is not None


def inherits_nothing(matrix: Node | None) -> Node | None:
    """Return the value of `inherit: false` in a matrix; None if it is not there."""
    entries = matrix.value if matrix and isinstance(matrix.value, dict) else {}
    inherit = entries.get(INHERIT)
    return inherit if isinstance(inherit, Node) and inherit.value is False else None
