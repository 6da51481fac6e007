"""What two builds of one image may not differ in: times, logs and caches, what engines leave.

Everything is decided from a path and its bytes alone, so that layers which images share stay
shared. docs/reproducible.md gives the reasons at length.
"""

from __future__ import annotations

import fnmatch
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from builder.artifacts.tars import as_headers, attributes_of
from builder.model import EPOCH
from builder.model.errors import BadInput

VARIABLE = "SOURCE_DATE_EPOCH"
_LATEST = 1 << 32  # a .pyc holds its source's time in 32 bits
_DAY_S = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Volatile:
    """Files that are not kept, by a pattern in which `*` also goes into folders; the reason."""

    pattern: str
    reason: str


VOLATILE: tuple[Volatile, ...] = (
    Volatile(pattern="var/cache/ldconfig/aux-cache", reason="inode numbers and times"),
    Volatile(pattern="var/log/apt/*", reason="a log of the build"),
    Volatile(pattern="var/log/dpkg.log", reason="a log of the build"),
    Volatile(pattern="var/log/alternatives.log", reason="a log of the build"),
    Volatile(pattern="var/log/bootstrap.log", reason="a log of the build"),
    Volatile(pattern="var/log/fontconfig.log", reason="a log of the build"),
    Volatile(pattern="var/log/dnf*", reason="a log of the build"),
    Volatile(pattern="var/log/hawkey.log", reason="a log of the build"),
    Volatile(pattern="var/log/yum.log", reason="a log of the build"),
    Volatile(pattern="var/lib/apt/lists/*", reason="what the mirror held on the day"),
    Volatile(pattern="var/cache/apt/*", reason="what the mirror held on the day"),
    Volatile(pattern="var/cache/dnf/*", reason="what the mirror held on the day"),
    Volatile(pattern="var/cache/yum/*", reason="what the mirror held on the day"),
    Volatile(pattern="var/cache/man/*", reason="an index with times"),
    Volatile(pattern="var/cache/fontconfig/*", reason="an index with times"),
    Volatile(pattern="var/lib/dbus/machine-id", reason="random, and each machine's own"),
    Volatile(pattern="var/lib/systemd/random-seed", reason="random, and each machine's own"),
    # Copies with their times: vfs takes one of another file, as long and as old, for unchanged.
    *(
        Volatile(pattern=pattern, reason="a copy of the file beside it, before its last change")
        for pattern in (
            *(f"etc/{name}-" for name in ("group", "gshadow", "passwd", "shadow")),
            *("etc/subgid-", "etc/subuid-", "var/lib/dpkg/*-old", "var/cache/debconf/*-old"),
        )
    ),
    Volatile(pattern="etc/ssh/ssh_host_*", reason="a secret that all copies would share"),
)
# Engines put the build host's in a layer; runtimes bring their own. Those of the base stay.
STUBS = frozenset(["etc/hosts", "etc/hostname", "etc/resolv.conf"])
_VOLATILE = re.compile("|".join(fnmatch.translate(one.pattern) for one in VOLATILE))
_SHADOW = "etc/shadow"
_MACHINE_ID = "etc/machine-id"
# A .pyc: https://peps.python.org/pep-0552/; since the magic number of 3.7, flags come before the
# source's time. Python 2's numbers are above 20000, and its time comes second, too.
_PYC_MARK = b"\r\n"
_PYC_WITH_FLAGS = range(3392, 20000)


def epoch_of(environment: Mapping[str, str]) -> int:
    """The time that no time stamp is later than: $SOURCE_DATE_EPOCH, else the one of ours.

    Seconds since 1970, https://reproducible-builds.org/specs/source-date-epoch/
    """
    given = environment.get(VARIABLE, "")
    if not given:
        return EPOCH
    if not (given.isascii() and given.isdecimal() and int(given) < _LATEST):
        raise BadInput(
            f"{VARIABLE}={given} is not a number of seconds since 1970",
            hint="unset it, or set it as in: SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)",
        )
    return int(given)


def is_kept(path: str, *, lowest: bool) -> bool:
    """Whether a file, or the mark of a removed one, stays in a layer; `lowest` is the base's."""
    return _VOLATILE.match(path) is None and (lowest or path not in STUBS)


def settled(member: tarfile.TarInfo, path: str, epoch: int) -> tarfile.TarInfo:
    """A member with what counts alone: type, mode, owner, content, links, attributes.

    Times are clamped to `epoch`: what is older stays as it is, so nothing gets newer than what
    it was made from. A folder's is `epoch`: it tells when something was made or removed in there,
    also of what is not kept.
    """
    new = tarfile.TarInfo(path or ".")
    new.type, new.size, new.linkname = member.type, member.size, member.linkname
    new.mode = 0o777 if member.issym() else member.mode & 0o7777
    new.uid, new.gid = member.uid, member.gid
    new.devmajor, new.devminor = member.devmajor, member.devminor
    new.mtime = epoch if member.isdir() else max(0, min(int(member.mtime), epoch))
    new.pax_headers = as_headers(attributes_of(member))
    return new


def is_rewritten(path: str) -> bool:
    """Return whether a file's content goes through `rewritten`."""
    return path.endswith((".pyc", ".pyo")) or path in {_SHADOW, _MACHINE_ID}


def rewritten(path: str, data: bytes, epoch: int) -> bytes:
    """A file's content without the time of the build.

    A .pyc holds the time of its source, which is clamped here as there: it does not go stale.
    """
    if path == _MACHINE_ID:
        return b""
    if path == _SHADOW:
        return b"".join(_shadow_line(line, epoch) for line in data.splitlines(keepends=True))
    return _pyc(data, epoch)


def _pyc(data: bytes, epoch: int) -> bytes:
    if data[2:4] != _PYC_MARK:
        return data
    at = 4
    if int.from_bytes(data[:2], "little") in _PYC_WITH_FLAGS:
        if data[4:8] != bytes(4):  # checked by the source's hash, not by its time
            return data
        at = 8
    if len(data) < at + 4:
        return data
    time = int.from_bytes(data[at : at + 4], "little")
    return data[:at] + min(time, epoch).to_bytes(4, "little") + data[at + 4 :]


def _shadow_line(line: bytes, epoch: int) -> bytes:
    """The third field of shadow(5) is the day of the last change, in days since 1970."""
    fields = line.split(b":")
    if len(fields) > 2 and fields[2].isdigit():  # noqa: PLR2004 - name, password, day
        fields[2] = str(min(int(fields[2]), epoch // _DAY_S)).encode()
    return b":".join(fields)
