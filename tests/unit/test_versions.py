from __future__ import annotations

import pytest

from builder.versions import matches, split_mpi


@pytest.mark.parametrize(
    ("axis", "pattern", "value"),
    [
        ("recipe", "hpc-base", "hpc-base"),
        ("recipe", "hpc-*", "hpc-base"),
        ("base", "debian1[23]", "debian13"),
        ("arch", "amd64", "x86_64"),
        ("arch", "ppc64el", "ppc64le"),
        ("arch", "ppc*", "ppc64le"),
        ("cuda", "12", "12.4"),
        ("cuda", "12.4", "12.4"),
        ("cuda", "12.4", "12.4.1"),
        ("cuda", "12.*", "12.4"),
        ("cuda", "none", "none"),
        ("mpi", "openmpi", "openmpi5.0"),
        ("mpi", "openmpi5", "openmpi5.0"),
        ("mpi", "openmpi5.0", "openmpi5.0"),
        ("mpi", "openmpi-5.0", "openmpi5.0"),
        ("mpi", "openmpi=5", "openmpi5.0"),
        ("mpi", "mpich4", "mpich4.0"),
        ("mpi", "none", "none"),
        ("mpi", "*5.0", "openmpi5.0"),
    ],
)
def test_pattern_selects(axis: str, pattern: str, value: str) -> None:
    assert matches(axis, pattern, value)


@pytest.mark.parametrize(
    ("axis", "pattern", "value"),
    [
        ("recipe", "hpc", "hpc-base"),
        ("base", "debian", "debian13"),
        ("arch", "x86", "x86_64"),
        ("cuda", "1", "12.4"),
        ("cuda", "12", "120.1"),
        ("cuda", "12.4", "12"),
        ("cuda", "none", "12.4"),
        ("cuda", "12", "none"),
        ("cuda", "", "12.4"),
        ("mpi", "5.0", "openmpi5.0"),
        ("mpi", "openmpi5", "openmpi50.1"),
        ("mpi", "openmpi4", "openmpi5.0"),
        ("mpi", "mpi", "openmpi5.0"),
        ("mpi", "openmpi-", "openmpi5.0"),
        ("mpi", "none", "openmpi5.0"),
        ("mpi", "openmpi", "none"),
        ("mpi", "", "openmpi5.0"),
    ],
)
def test_pattern_does_not_select(axis: str, pattern: str, value: str) -> None:
    assert not matches(axis, pattern, value)


@pytest.mark.parametrize(
    ("value", "family", "version"),
    [
        ("openmpi5.0", "openmpi", "5.0"),
        ("openmpi-5.0", "openmpi", "5.0"),
        ("openmpi=5.0", "openmpi", "5.0"),
        ("openmpi", "openmpi", ""),
        ("none", "none", ""),
        ("5.0", "", "5.0"),
        ("", "", ""),
        ("open=mpi", "open=mpi", ""),
        ("openmpi\n5", "openmpi\n", "5"),
    ],
)
def test_mpi_is_split(value: str, family: str, version: str) -> None:
    assert split_mpi(value) == (family, version)


@pytest.mark.parametrize(
    ("axis", "pattern", "value"),
    [
        ("cuda", ">=11,<13", "12.4"),
        ("cuda", ">=11, <13", "11.8"),
        ("cuda", "!=12.4", "12.6"),
        ("cuda", "==12.*", "12.4"),
        ("cuda", "~=12.4", "12.9"),
        ("cuda", ">9", "10.1"),
        ("mpi", "openmpi>=4.1", "openmpi5.0"),
        ("mpi", "openmpi>=4.1,<5", "openmpi4.1"),
        ("mpi", "openmpi ==5.*", "openmpi5.0"),
        ("mpi", "mpich!=4.0", "mpich4.2"),
    ],
)
def test_specifier_selects(axis: str, pattern: str, value: str) -> None:
    assert matches(axis, pattern, value)


@pytest.mark.parametrize(
    ("axis", "pattern", "value"),
    [
        ("cuda", ">=11,<13", "10.1"),
        ("cuda", ">=11,<13", "13.0"),
        ("cuda", ">=11", "none"),
        ("cuda", "!=12.4", "none"),
        ("cuda", ">=eleven", "12.4"),
        ("mpi", "openmpi>=4.1", "mpich4.2"),
        ("mpi", ">=4.1", "openmpi5.0"),
        ("mpi", "openmpi<5", "openmpi5.0"),
        ("recipe", ">=1", "hpc-base"),
    ],
)
def test_specifier_does_not_select(axis: str, pattern: str, value: str) -> None:
    assert not matches(axis, pattern, value)
