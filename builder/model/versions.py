"""Spelling of axis values, and their selection by patterns.

A version selects by prefix, component by component: `12` takes 12.4 and not 120. A PEP 440
specifier selects by order: `>=11,<13`.
"""

from __future__ import annotations

import fnmatch
import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder import facts
from builder.model.architectures import architecture

# https://packaging.python.org/en/latest/specifications/version-specifiers/
_OPERATOR = r"(?:[<>!~=]=|[<>]|===)"
_MPI = re.compile(r"(?P<family>[^\d=]*?)(?:[-=]?(?P<version>\d.*))?", re.DOTALL)
_VERSION = re.compile(r"[-=]?(?P<version>\d.*)|", re.DOTALL)
_NUMBERED = tuple(family for family in facts.MPI_FAMILIES if family[-1].isdigit())
_SPECIFIED = re.compile(rf"(?P<name>[^<>!~=]*?)\s*(?P<specifier>{_OPERATOR}.*)", re.DOTALL)
# Not go1.24, the compiler of a program that states no version of its own.
_PRINTED = re.compile(r"(?<![\d.])(?<!\bgo)\d+(?:\.\d+)+")
_GLOB = re.compile(r"[*?\[]")


def matches(axis: str, pattern: str, value: str) -> bool:
    """Return whether `pattern` selects `value` of an axis: recipe, arch, base, cuda or mpi.

    A pattern with `*`, `?` or `[` in it is a glob over the whole value, on every axis. Any other
    is the name itself for `recipe` and `base`; any name of the architecture for `arch`; a version
    or the beginning of one for `cuda`; a family, alone or with a version or the beginning of one,
    for `mpi` (`openmpi`, `openmpi5`, `openmpi-5.0`, `openmpi=5.0`). For these two a version may
    be a PEP 440 specifier (`>=11,<13`, `openmpi>=4.1`, `!=12.0`), which `none` never meets: `none`
    selects `none` alone.
    """
    if axis == "arch":
        pattern, value = _canonical(pattern), _canonical(value)
    if axis in {"cuda", "mpi"} and (specified := split_specifier(pattern)):
        value_family, version = split_mpi(value) if axis == "mpi" else ("", value)
        return value_family == specified[0] and meets(version, specified[1])
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
    `("openmpi", "")`, `none` gives `("none", "")`, `5.0` gives `("", "5.0")`. A family may end
    with a digit: `mvapich2-2.3.7` gives `("mvapich2", "2.3.7")`.
    """
    for family in _NUMBERED:
        match = _VERSION.fullmatch(value.removeprefix(family)) if value.startswith(family) else None
        if match:
            return family, match["version"] or ""
    match = _MPI.fullmatch(value)
    return (match["family"], match["version"] or "") if match else (value, "")


def join_mpi(family: str, version: str) -> str:
    """Family and version as axis values write them: `openmpi5.0`, `mvapich2-2.3.7`."""
    return f"{family}-{version}" if family in _NUMBERED else family + version


def split_specifier(pattern: str) -> tuple[str, str] | None:
    """`openmpi>=4.1` gives `("openmpi", ">=4.1")`, `>=11` `("", ">=11")`; None without one."""
    match = _SPECIFIED.fullmatch(pattern)
    return (match["name"], match["specifier"]) if match else None


def is_version(text: str) -> bool:
    """Return whether `text` is a PEP 440 version."""
    try:
        Version(text)
    except ValueError:  # InvalidVersion is one; int() refuses thousands of digits with another
        return False
    return True


def is_specifier(text: str) -> bool:
    """Return whether `text` is a PEP 440 version specifier, or several separated by commas."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def version_order(version: str) -> tuple[int, ...]:
    """Return a key that sorts versions of digits and dots: 10.1 after 9.2, 4.1 before 4.1.4."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version))


def first_version(text: str) -> str:
    """Return the first version number in a program's output, such as 5.0.7; empty if none."""
    match = _PRINTED.search(text)
    return match[0] if match else ""


def meets(version: str, specifier: str) -> bool:
    """Return whether a version meets a PEP 440 specifier; `none` and malformed ones do not."""
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):  # `none` is no version
        return False


def _mpi_matches(pattern: str, value: str) -> bool:
    family, version = split_mpi(pattern)
    value_family, value_version = split_mpi(value)
    return family == value_family and (not version or _begins(value_version, version))


def _begins(version: str, prefix: str) -> bool:
    parts = prefix.split(".")
    return version.split(".")[: len(parts)] == parts


def _canonical(arch: str) -> str:
    known = architecture(arch)
    return known.name if known else arch
