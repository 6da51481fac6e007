"""Which Debian mirror is taken from this machine's apt, and from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.mirror import SECURITY_VARIABLE, VARIABLE, DebianMirror, find_mirror
from builder.model.errors import MissingPrerequisite

MAIN = "http://mirror.example.org/debian"
SECURITY = "http://security.example.org/debian-security"
TRIXIE = 'ID=debian\nVERSION_CODENAME="trixie"\nNAME="Debian GNU/Linux"\n'

NAMES = {
    "sources_list": "sources.list",
    "other_list": "sources.list.d/other.list",
    "deb822": "sources.list.d/debian.sources",
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(SECURITY_VARIABLE, raising=False)


def found(root: Path, os_release: str = TRIXIE, **files: str) -> DebianMirror:
    """The mirror on a machine with these files in /etc/apt."""
    (root / "apt/sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        (root / "apt" / NAMES[name]).write_text(text)
    (root / "os-release").write_text(os_release)
    return find_mirror(apt=root / "apt", os_release=root / "os-release")


def stanza(uris: str = MAIN, suites: str = "trixie trixie-updates", **fields: str) -> str:
    given = {"Types": "deb", "URIs": uris, "Suites": suites, "Components": "main", **fields}
    return "".join(f"{name}: {value}\n" for name, value in given.items())


LINES = f"""\
# the archive
Types: deb deb-src
URIs:
 {MAIN}/
# a comment between
Suites: trixie
 trixie-updates
Components: main
 contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 Comment: x
"""


@pytest.mark.parametrize("first", [stanza(), LINES])
@pytest.mark.parametrize("separator", ["\n", "\n\n", " \n", "\t\n\n"])
def test_deb822_stanzas_are_parted_by_blank_lines(
    first: str, separator: str, tmp_path: Path
) -> None:
    text = first + separator + stanza(f"{SECURITY}/", "trixie-security")
    assert found(tmp_path, sources_list="", deb822=text) == DebianMirror(
        main=MAIN, security=SECURITY
    )


@pytest.mark.parametrize(
    "fields",
    [
        *({"Enabled": word} for word in ("no", "false", "without", "Off", "disable")),
        {"Types": "deb-src"},
        {"Components": "contrib"},
        {"Suites": "bookworm"},
        {"URIs": ""},
    ],
)
def test_deb822_stanzas_that_do_not_count(fields: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite):
        found(tmp_path, deb822=stanza(**fields))


@pytest.mark.parametrize(
    "line",
    [
        f"deb {MAIN} trixie main",
        f"deb {MAIN}/ trixie main contrib non-free-firmware  # comment",
        f"deb [signed-by=/usr/share/keyrings/x.gpg] {MAIN} trixie main",
        f"deb [ arch=amd64,ppc64el trusted=yes ] {MAIN} trixie main",
        *(f"deb\t{MAIN}\t{suite}\tmain" for suite in ("stable", "testing", "unstable", "sid")),
        f"deb-src http://other.example.org/ trixie main\ndeb {MAIN} trixie main",
    ],
)
def test_one_line_entries(line: str, tmp_path: Path) -> None:
    security = f"deb {SECURITY} trixie-security main\n"
    mirror = found(tmp_path, sources_list=f"# first\n\n{line}\n", other_list=security)
    assert mirror == DebianMirror(main=MAIN, security=SECURITY)


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"# deb {MAIN} trixie main",
        f"deb-src {MAIN} trixie main",
        f"deb {MAIN} trixie contrib",
        f"deb {MAIN} trixie",
        f"deb {MAIN} bookworm main",
        f"deb {MAIN} ./",
        "deb cdrom:[Debian GNU/Linux 13 Trixie]/ trixie contrib main",
        "deb [broken",
    ],
)
def test_one_line_entries_that_do_not_count(line: str, tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite, match="no Debian mirror is known") as caught:
        found(tmp_path, sources_list=f"{line}\n")
    assert caught.value.exit_code == 4
    assert VARIABLE in caught.value.hint


def test_third_parties_do_not_count(tmp_path: Path) -> None:
    other = "deb https://packages.example.org/apt any-version main\n"
    text = stanza("https://tool.example.org/linux", "nodistro")
    assert found(
        tmp_path, sources_list=f"{other}deb {MAIN} trixie main\n", deb822=text, other_list=other
    ) == DebianMirror(main=MAIN, security=None)


@pytest.mark.parametrize(
    "os_release", ["ID=ubuntu\nVERSION_CODENAME=trixie\nID_LIKE=debian\n", "", "ID=debian\n"]
)
def test_machines_that_are_not_debian_have_no_mirror(os_release: str, tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite):
        found(tmp_path, os_release=os_release, sources_list=f"deb {MAIN} trixie main\n")
    with pytest.raises(MissingPrerequisite):
        find_mirror(apt=tmp_path / "no", os_release=tmp_path / "neither")


OURS = "http://ours.example.org/debian"


@pytest.mark.parametrize(
    ("variables", "has_apt", "expected"),
    [
        ({VARIABLE: f"{OURS}/"}, True, (OURS, SECURITY)),  # a base takes security updates
        ({SECURITY_VARIABLE: "none"}, True, (MAIN, "")),
        ({SECURITY_VARIABLE: OURS}, True, (MAIN, OURS)),
        ({VARIABLE: MAIN, SECURITY_VARIABLE: f"{SECURITY}/"}, False, (MAIN, SECURITY)),
    ],
)
def test_the_environment_wins(
    variables: dict[str, str],
    has_apt: bool,
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    line = f"deb {MAIN} trixie main\ndeb {SECURITY} trixie-security main\n" if has_apt else ""
    mirror = found(tmp_path, sources_list=line)
    assert (mirror.main, mirror.security) == expected
