"""What does not count is dropped or clamped; what counts stays."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from builder.artifacts.layers import (
    is_kept,
    is_rewritten,
    rewritten,
    settled,
)
from builder.artifacts.manifests import epoch_of
from builder.model import EPOCH
from builder.model.errors import BadInput

LATER = EPOCH + 800_000_000


def member(**values: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo("usr/bin/x")
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("mtime", "expected"), [(LATER, EPOCH), (EPOCH, EPOCH), (12.9, 12), (-5, 0)]
)
def test_times_are_clamped(mtime: float, expected: int) -> None:
    assert settled(member(mtime=mtime), "usr/bin/x", EPOCH).mtime == expected


def test_a_folder_has_no_time_of_its_own() -> None:
    """It would tell of what was made and removed in there, which storage drivers see otherwise."""
    folder = member(type=tarfile.DIRTYPE, mtime=12)
    assert settled(folder, "usr/bin", EPOCH).mtime == EPOCH


def test_attributes_stay_and_times_and_names_go() -> None:
    capability = {"SCHILY.xattr.security.capability": "\1\0\0\2", "SCHILY.xattr.user.a": "b"}
    times = {"atime": "1.5", "ctime": "1.5", "mtime": "1.5", "uname": "me"}
    names = ("security.selinux", "user.overlay.origin", "trusted.overlay.opaque")
    of_host = {f"SCHILY.xattr.{name}": "x" for name in names}
    given = member(
        pax_headers={**times, **capability, **of_host}, uname="me", gname="us", mode=0o104755
    )
    found = settled(given, "usr/bin/x", EPOCH)
    assert found.pax_headers == capability
    assert (found.uname, found.gname, found.mode) == ("", "", 0o4755)
    link = settled(member(type=tarfile.SYMTYPE, mode=0o755), "usr/bin/x", EPOCH)
    assert link.mode == 0o777


@pytest.mark.parametrize(
    "path",
    [
        "var/cache/ldconfig/aux-cache",
        "var/log/apt/term.log",
        "var/log/dpkg.log",
        "var/log/dnf.librepo.log",
        "var/lib/apt/lists/partial/x",
        "etc/ssh/ssh_host_rsa_key",
        "etc/group-",
        "var/lib/dpkg/status-old",
    ],
)
def test_what_package_managers_leave_is_dropped(path: str) -> None:
    assert not is_kept(path, lowest=True)
    assert is_kept(f"opt/{path}", lowest=False)


@pytest.mark.parametrize("path", ["var/lib/dpkg/status", "etc/ssh/sshd_config", "etc/hostsx"])
def test_the_rest_stays(path: str) -> None:
    assert is_kept(path, lowest=False)


@pytest.mark.parametrize("path", ["etc/hosts", "etc/hostname", "etc/resolv.conf"])
def test_engines_stubs_go_and_the_bases_own_stay(path: str) -> None:
    assert is_kept(path, lowest=True)
    assert not is_kept(path, lowest=False)


def test_a_pyc_whose_source_is_clamped_does_not_go_stale(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("VALUE = 1\n")
    os.utime(source, (LATER, LATER))
    by_time = py_compile.PycInvalidationMode.TIMESTAMP
    compiled = Path(str(py_compile.compile(str(source), invalidation_mode=by_time)))
    # Another value under the same size and time shows which of the two is run.
    code = compile("VALUE = 2\n", str(source), "exec")
    planted = compiled.read_bytes()[:16] + marshal.dumps(code)
    compiled.write_bytes(rewritten("module.pyc", planted, EPOCH))
    os.utime(source, (EPOCH, EPOCH))
    command = [sys.executable, "-B", "-c", "import module; print(module.VALUE)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


@pytest.mark.parametrize("magic", [62211, 3379, 3391], ids=["2.7", "3.6", "3.7a"])
def test_older_pythons_have_the_time_second(magic: int) -> None:
    def data(time: int) -> bytes:
        return struct.pack("<H2sII", magic, b"\r\n", time, 9) + b"code"

    assert rewritten("a.pyo", data(LATER), EPOCH) == data(EPOCH)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\r\n", b"text", b"\xcb\r\r\n", b"\xcb\r\r\n\0\0\0\0\1"),
        importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, EPOCH - 1, 3) + b"of an older source",
        importlib.util.MAGIC_NUMBER + struct.pack("<IQ", 1, 2**64 - 1) + b"with a hash",
    ],
)
def test_what_has_no_later_time_stays_as_it_is(data: bytes) -> None:
    assert rewritten("a.pyc", data, EPOCH) == data


def test_the_day_of_a_password_is_clamped() -> None:
    given = b"root:*:19000:0:99999:7:::\nsshd:!:20778::::::\nodd\nnone:!::::::"
    day = EPOCH // 86_400
    expected = given.replace(b"19000", b"%d" % day).replace(b"20778", b"%d" % day)
    assert rewritten("etc/shadow", given, EPOCH) == expected
    assert all(map(is_rewritten, ("etc/shadow", "etc/machine-id", "usr/a.pyc", "usr/a.pyo")))


def test_a_machine_id_is_emptied() -> None:
    assert rewritten("etc/machine-id", b"0123\n", EPOCH) == b""


def test_the_epoch_is_fixed_or_given() -> None:
    assert epoch_of({}) == epoch_of({"SOURCE_DATE_EPOCH": ""}) == EPOCH
    assert epoch_of({"SOURCE_DATE_EPOCH": "1"}) == 1


@pytest.mark.parametrize("text", ["-1", "now", "1.5", "4294967296", "²"])
def test_an_epoch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not a number of seconds(?s:.*)hint: unset it, or set"):
        epoch_of({"SOURCE_DATE_EPOCH": text})
