"""How axis values are written, and which of them a pattern selects.

A version selects by prefix, component by component: `12` takes 12.4 and not 120.
"""

from __future__ import annotations

import fnmatch
import re

from builder import facts

_MPI = re.compile(r"(?P<family>[^\d=]*?)(?:[-=]?(?P<version>\d.*))?", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")


def matches(axis: str, pattern: str, value: str) -> bool:
    """Whether `pattern` selects `value` of an axis (`recipe`, `arch`, `base`, `cuda`, `mpi`).

    A pattern with `*`, `?` or `[` in it is a glob over the whole value, on every axis. Any other
    is the name itself for `recipe` and `base`; any name of the architecture for `arch`; a version
    or the beginning of one for `cuda`; a family, alone or with a version or the beginning of one,
    for `mpi` (`openmpi`, `openmpi5`, `openmpi-5.0`, `openmpi=5.0`). `none` selects `none` alone.
    """
    if axis == "arch":
        pattern, value = _canonical(pattern), _canonical(value)
    if _GLOB.search(pattern):
        return fnmatch.fnmatchcase(value, pattern)
    if axis == "cuda":
        return _begins(value, pattern)
    if axis == "mpi":
        return _mpi_matches(pattern, value)
    return pattern == value


def split_mpi(value: str) -> tuple[str, str]:
    """Family and version of an MPI: `openmpi5.0` gives `("openmpi", "5.0")`.

    One `-` or `=` between the two is accepted. What is not there is empty: `openmpi` gives
    `("openmpi", "")`, `none` gives `("none", "")`, `5.0` gives `("", "5.0")`.
    """
    found = _MPI.fullmatch(value)
    return (found["family"], found["version"] or "") if found else (value, "")


def _mpi_matches(pattern: str, value: str) -> bool:
    family, version = split_mpi(pattern)
    value_family, value_version = split_mpi(value)
    return family == value_family and (not version or _begins(value_version, version))


def _begins(version: str, prefix: str) -> bool:
    parts = prefix.split(".")
    return version.split(".")[: len(parts)] == parts


def _canonical(arch: str) -> str:
    known = facts.architecture(arch)
    return known.name if known else arch
