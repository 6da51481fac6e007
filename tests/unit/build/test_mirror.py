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


def test_deb822(tmp_path: Path) -> None:
    text = f"# the archive\n{stanza()}\n{stanza(SECURITY + '/', 'trixie-security')}"
    assert found(tmp_path, sources_list="", deb822=text) == DebianMirror(
        main=MAIN, security=SECURITY
    )


def test_deb822_over_several_lines(tmp_path: Path) -> None:
    text = (
        f"Types: deb deb-src\nURIs:\n {MAIN}/\n# a comment between\n"
        "Suites: trixie\n trixie-updates\n"
        "Components: main\n contrib\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n Comment: x\n"
    )
    assert found(tmp_path, deb822=text).main == MAIN


@pytest.mark.parametrize("separator", ["\n", "\n\n", " \n", "\t\n\n"])
def test_deb822_stanzas_are_parted_by_blank_lines(separator: str, tmp_path: Path) -> None:
    text = stanza() + separator + stanza(SECURITY, "trixie-security")
    assert found(tmp_path, deb822=text) == DebianMirror(main=MAIN, security=SECURITY)


@pytest.mark.parametrize(
    "fields",
    [
        {"Enabled": "no"},
        {"Enabled": "false"},
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
        f"deb\t{MAIN}\tstable\tmain",
        f"deb-src http://other.example.org/ trixie main\ndeb {MAIN} trixie main",
    ],
)
def test_one_line_entries(line: str, tmp_path: Path) -> None:
    security = f"deb {SECURITY} trixie-security main\n"
    assert found(tmp_path, sources_list=f"# first\n\n{security}{line}\n") == DebianMirror(
        main=MAIN, security=SECURITY
    )


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
        tmp_path,
        sources_list=f"{other}deb {MAIN} trixie main\n",
        deb822=text,
        other_list=other,
    ) == DebianMirror(main=MAIN, security=None)


def test_there_may_be_no_security_archive(tmp_path: Path) -> None:
    assert found(tmp_path, sources_list=f"deb {MAIN} trixie main\n").security is None


def test_machines_that_are_not_debian_have_no_mirror(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite):
        found(
            tmp_path,
            os_release="ID=ubuntu\nVERSION_CODENAME=trixie\nID_LIKE=debian\n",
            sources_list=f"deb {MAIN} trixie main\n",
        )


def test_machines_without_apt_have_no_mirror(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite):
        find_mirror(apt=tmp_path / "no", os_release=tmp_path / "neither")


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not name is still apt's: a base takes security updates."""
    monkeypatch.setenv(VARIABLE, "http://ours.example.org/debian/")
    line = f"deb {MAIN} trixie main\ndeb {SECURITY} trixie-security main\n"
    assert found(tmp_path, sources_list=line) == DebianMirror(
        main="http://ours.example.org/debian", security=SECURITY
    )


def test_security_updates_are_left_out_by_a_word_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECURITY_VARIABLE, "none")
    line = f"deb {MAIN} trixie main\ndeb {SECURITY} trixie-security main\n"
    assert found(tmp_path, sources_list=line).security == ""


def test_the_environment_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, MAIN)
    monkeypatch.setenv(SECURITY_VARIABLE, f"{SECURITY}/")
    assert found(tmp_path) == DebianMirror(main=MAIN, security=SECURITY)


def test_the_environment_names_security_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECURITY_VARIABLE, "http://ours.example.org/security")
    line = f"deb {MAIN} trixie main\ndeb {SECURITY} trixie-security main\n"
    assert found(tmp_path, sources_list=line) == DebianMirror(
        main=MAIN, security="http://ours.example.org/security"
    )
