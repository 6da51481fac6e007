"""Ordinary users of this host, whom the tests make: homes that are closed to others, umask 077."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import PROJECT, Ended, manifest_of

from builder.host.doctor.diagnosis import Roots
from builder.host.doctor.machine import ID_FILES, free_range
from builder.system.locks import locked

_MASKED = 'umask 077 && cd && exec "$@"'
# What says to a build where packages come from, and how old their indices may be.
_PASSED_ON = (
    *("BUILD_IMAGES_MIRROR", "BUILD_IMAGES_SECURITY_MIRROR", "BUILD_IMAGES_MAX_INDEX_AGE"),
    *("http_proxy", "https_proxy"),
)


def verified_digest(folder: Path) -> str:
    """The OCI digest of the image in a folder, which is verified."""
    manifest = manifest_of(folder)
    assert manifest["outcome"] == "verified"
    digest = manifest["artifacts"]["oci"]["digest"]
    assert isinstance(digest, str)
    return digest


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user, and the words that start Python as the user can."""

    name: str
    home: Path
    python: tuple[str, ...]
    variables: Mapping[str, str]

    def run(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Ended:
        """Run a program as the user does, in a clean environment."""
        with self.started(*words, env=env) as process:
            out, err = process.communicate(timeout=900)
        return Ended(status=process.returncode, stdout=out, stderr=err)

    def started(
        self, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """The same, to go on meanwhile."""
        variables = {**self.variables, **(env or {})}
        return subprocess.Popen(
            [
                *("setpriv", "--reuid", self.name, "--regid", self.name, "--init-groups"),
                *("env", "-i", f"HOME={self.home}", f"USER={self.name}"),
                *(f"{key}={value}" for key, value in variables.items()),
                *("bash", "-c", _MASKED, "-", *map(str, words)),
            ],
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build_images(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Ended:
        """Run `build-images` as the user does."""
        return self.run(*self.python, "-m", "builder", *words, env=env)


@contextlib.contextmanager
def users(*names: str, without_ids: tuple[str, ...] = ()) -> Iterator[list[User]]:
    """Users with homes of mode 0700, gone afterwards; those `without_ids` have no sub-ids.

    Skips where none can be made, or where they cannot start Python with the project's packages.
    """
    if os.geteuid() != 0 or not shutil.which("useradd"):
        pytest.skip("missing on this machine: root, who makes users")
    place = Path(tempfile.mkdtemp(prefix="build-images-users-", dir="/var/tmp"))
    place.chmod(0o755)
    made = list[str]()
    try:
        for name in names:
            made.append(name)
            with locked(place.parent, "build-images-users"):  # no two get the same sub-ids
                _remove(name)  # what a run that was killed left
                _add(name, place / name, with_ids=name not in without_ids)
        yield [_user(name, place / name) for name in names]
    finally:
        for name in made:
            _remove(name)
        shutil.rmtree(place, ignore_errors=True)


def _add(name: str, home: Path, *, with_ids: bool) -> None:
    subprocess.run(
        ["useradd", "--create-home", "--home-dir", home, "--shell", "/bin/bash", name],
        check=True,
        capture_output=True,
    )
    home.chmod(0o700)
    _without_ids(name)
    if with_ids:
        ids = free_range(name, Roots())
        options = [word for file in ID_FILES for word in (f"--add-{file}s", str(ids))]
        subprocess.run(["usermod", *options, name], check=True)


def _without_ids(name: str) -> None:
    """Take the ranges away that `useradd` may have given."""
    for file in (Path("/etc") / one for one in ID_FILES):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(one for one in lines if one.partition(":")[0] != name))


def _remove(name: str) -> None:
    """Remove a user, with all processes; nothing happens if there is no such user."""
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        return
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid:
                os.kill(int(process.name), signal.SIGKILL)
    subprocess.run(["userdel", "--force", name], check=False, capture_output=True)
    _without_ids(name)


def _user(name: str, home: Path) -> User:
    """A user with the first interpreter that the user can start."""
    packages = sysconfig.get_path("purelib")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = os.environ.get("PATH", os.defpath)
    for python in (sys.executable, f"/usr/bin/python{version}"):
        variables = {
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(PROJECT), packages]),
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        }
        user = User(name=name, home=home, python=(python,), variables=variables)
        if user.build_images("--version").status == 0:
            return user
    return pytest.skip(f"missing on this machine: a Python {version} that others than root start")
