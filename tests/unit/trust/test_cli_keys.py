"""`build-images keys`: a pair that can be read again, and nothing written over."""

from __future__ import annotations

import getpass
import stat
import sys
from pathlib import Path

import pytest

from builder.cli import main
from builder.trust.proof.keys import private_key, public_key


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COSIGN_PASSWORD", "correct horse")
    return tmp_path / "site"


def generate(prefix: Path) -> int:
    return main(["keys", "generate", "--output", str(prefix)])


def test_a_pair_is_made(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(prefix) == 0
    private, public = prefix.with_suffix(".key"), prefix.with_suffix(".pub")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    key = private_key(str(private), {"COSIGN_PASSWORD": "correct horse"})
    assert key.public.pem == public.read_bytes()
    out = capsys.readouterr().out
    fingerprint = public_key(str(public), {}).fingerprint
    assert out == f"private key  {private}\npublic key   {public}\nSHA-256      {fingerprint}\n"
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert "correct horse" not in out + private.read_text()


@pytest.mark.parametrize("named", ["/", "//", ".", "..", "../.."])
def test_a_folder_is_no_prefix(
    named: str,
    prefix: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`/` had a traceback, and with `.` the files were beside the folder, not in it."""
    monkeypatch.chdir(prefix.parent)
    assert main(["keys", "generate", "--output", named]) == 2
    said = capsys.readouterr().err
    assert "this is a folder, not a PREFIX of files\n  hint: --output site makes site" in said
    assert list(prefix.parent.parent.glob("*.key")) == []


@pytest.mark.parametrize("existing", ["site.key", "site.pub"])
def test_nothing_is_written_over(
    prefix: Path, existing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (prefix.parent / existing).write_text("mine")
    assert generate(prefix) == 2
    assert "is not overwritten\n  hint: choose another PREFIX\n" in capsys.readouterr().err
    assert [one.name for one in prefix.parent.iterdir()] == [existing]


def test_on_a_terminal_the_password_is_asked_for_twice(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COSIGN_PASSWORD")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked, answers = list[str](), iter(["one", "two", "one", "one"])

    def answer(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr(getpass, "getpass", answer)
    assert generate(prefix) == 2
    said = capsys.readouterr().err
    assert said == "build-images: the two passwords differ; no key was created\n"
    assert generate(prefix) == 0
    assert asked == ["password for the private key: ", "repeat the password: "] * 2
    assert private_key(str(prefix.with_suffix(".key")), {"COSIGN_PASSWORD": "one"})


def test_a_folder_that_is_not_there(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(getpass, "getpass", lambda _: pytest.fail("asked in vain"))
    monkeypatch.delenv("COSIGN_PASSWORD")
    assert generate(prefix / "none" / "key") == 2
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_terminal", "words"),
    [
        (False, "COSIGN_PASSWORD is not set, and there is no terminal"),
        (True, "build-images: no password was entered; no key was created\n"),  # it ends
    ],
)
def test_without_a_password_no_key_is_made(
    prefix: Path,
    is_terminal: bool,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ended(_: str) -> str:
        raise EOFError

    monkeypatch.delenv("COSIGN_PASSWORD")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(getpass, "getpass", ended)
    assert generate(prefix) == 2
    assert words in capsys.readouterr().err
    assert list(prefix.parent.iterdir()) == []


def test_an_unknown_action_is_named() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["keys", "steal"])
