"""The builder's home, and errors of a home that cannot be used."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.home import Home, failure_of

try:
    PASSWD = Path(pwd.getpwuid(os.getuid()).pw_dir)
except KeyError:
    pytest.skip("this user is not in passwd", allow_module_level=True)
SHARE = ".local/share/build-images"


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({"BUILD_IMAGES_HOME": "/a", "XDG_DATA_HOME": "/b", "HOME": "/c"}, Path("/a")),
        ({"XDG_DATA_HOME": "/b", "HOME": "/c"}, Path("/b/build-images")),
        ({"XDG_DATA_HOME": "relative", "HOME": "/c"}, Path("/c", SHARE)),
        ({"XDG_DATA_HOME": "", "HOME": "/c"}, Path("/c", SHARE)),
        ({"HOME": "relative"}, PASSWD / SHARE),
        ({"HOME": ""}, PASSWD / SHARE),
        ({}, PASSWD / SHARE),
    ],
)
def test_the_home_of_an_ordinary_user(
    variables: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in ("BUILD_IMAGES_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Home.of_environment().path == home


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.EROFS])
def test_a_home_that_cannot_be_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    failure = failure_of(OSError(number, os.strerror(number), str(tmp_path / "home/work")))
    assert isinstance(failure, MissingPrerequisite)
    assert failure.hint == "set BUILD_IMAGES_HOME to a folder that you can write to"
    elsewhere = failure_of(OSError(number, os.strerror(number), "/elsewhere/file"))
    assert isinstance(elsewhere, BadInput)
    assert "BUILD_IMAGES_HOME" not in elsewhere.hint
