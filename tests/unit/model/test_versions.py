from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from builder.model.versions import is_specifier, matches, meets, split_mpi


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
        ("mvapich2", "mvapich2", ""),
        ("mvapich22.3.7", "mvapich2", "2.3.7"),
        ("mvapich2=2.3", "mvapich2", "2.3"),
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


NUMBER = st.sampled_from(["0", "00", "1", "2", "01", "10", "123456789"])
RELEASE = st.lists(NUMBER, min_size=1, max_size=4).map(".".join)
VERSION = st.one_of(
    RELEASE,
    RELEASE.map("{}rc1".format),
    RELEASE.map("{}.post1".format),
    RELEASE.map("{}+x.1".format),
    st.sampled_from(["none", "", "1.", "1\n", "1!2", "\u0661"]),
)
OPERATOR = st.sampled_from(["<", "<=", "==", "!=", ">=", ">", "~=", "===", "=", "", " >= ", "\t<"])
TAIL = st.sampled_from(["", "", "", ".*", " ", ".*.*", "\n", "*"])
CLAUSE = st.tuples(OPERATOR, VERSION, TAIL).map("".join)
SPECIFIER = st.lists(CLAUSE, max_size=3).map(",".join)


@given(version=VERSION, specifier=SPECIFIER)
def test_specifiers_are_those_of_packaging(version: str, specifier: str) -> None:
    try:
        known = SpecifierSet(specifier)
    except InvalidSpecifier:
        assert not is_specifier(specifier)
        assert not meets(version, specifier)
        return
    assert is_specifier(specifier)
    try:
        expected = known.contains(version, prereleases=True)
    except InvalidVersion:
        expected = False
    assert meets(version, specifier) == expected
