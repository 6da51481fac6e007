"""The kernel, the users, the keyring and the GPU driver of this machine, read from files.

For the ranges of user and group ids that users may use in containers, see subuid(5) and subgid(5).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from builder.host.doctor.diagnosis import GPU, USER, Item, SystemRoots
from builder.host.doctor.programs import SETUP
from builder.model.errors import MissingPrerequisite
from builder.system import nvml
from builder.system.descendants import text_of
from builder.system.home import folder_of_user

KEYRING = "debian-archive-keyring.gpg"
ID_FILES = ("subuid", "subgid")
IDS = 65536  # the ids that a container may use
# The default values of SUB_UID_MIN and SUB_UID_MAX:
# https://manpages.debian.org/bookworm/login/login.defs.5
_FIRST, _LAST = 100_000, 600_100_000
_FIRST_USER = 1000  # UID_MIN of the same page
_READ_WRITE = 0o006  # mode bits of a device for others


def machine_items(*, user: str, as_root: bool, search_path: str, roots: SystemRoots) -> list[Item]:
    """Return all items that are read from files; no program is started."""
    return [
        _ordinary_user(user, as_root=as_root, roots=roots),
        _namespaces(roots),
        *id_items(user, roots),
        _fuse(roots, as_root=as_root),
        _policy(roots, as_root=as_root),
        _keyring(roots),
        *_gpu_items(search_path, roots),
    ]


def _ordinary_user(user: str, *, as_root: bool, roots: SystemRoots) -> Item:
    """Return the user who runs images: as root, Apptainer may lack capabilities in a container."""
    text, remedy = f"{user}, the caller", ""
    if as_root:
        text = f"{user}, for Apptainer and Charliecloud"
        if user not in _users(roots):
            text = f"{user} is missing; root runs Apptainer and Charliecloud as this user"
            remedy = SETUP
    return Item("user", USER, "ordinary user", text, remedy)


def _namespaces(roots: SystemRoots) -> Item:
    text, remedy = namespaces_problem(roots)
    if not text and restricted_namespaces(roots):
        text = (
            "open to programs with an AppArmor profile (build-images setup host writes Apptainer's)"
        )
    return Item("userns", USER, "user namespaces", text or "open to ordinary users", remedy)


def namespaces_problem(roots: SystemRoots) -> tuple[str, str]:
    """Return why ordinary users cannot create user namespaces, and the remedy; else empty texts."""
    if _number(roots, "kernel/unprivileged_userns_clone") == 0:
        return "closed to ordinary users", "sysctl kernel.unprivileged_userns_clone=1"
    limit = _number(roots, "user/max_user_namespaces")
    if limit is None:
        return "not supported by this kernel", "use a kernel with CONFIG_USER_NS"
    return ("their limit is 0", "sysctl user.max_user_namespaces=10000") if limit == 0 else ("", "")


def restricted_namespaces(roots: SystemRoots) -> bool:
    """Return whether AppArmor allows only programs with a profile to create user namespaces."""
    return _number(roots, "kernel/apparmor_restrict_unprivileged_userns") == 1


def _number(roots: SystemRoots, name: str) -> int | None:
    text = text_of(roots.proc / "sys" / name).strip()
    return int(text) if text.isdigit() else None


def _fuse(roots: SystemRoots, *, as_root: bool) -> Item:
    """Return the item of /dev/fuse; without it Apptainer unpacks a SIF first, which is slower."""
    device = roots.dev / "fuse"
    text, remedy = "open to ordinary users", ""
    if not device.exists():
        text, remedy = "missing: SIF images are unpacked before they run", "modprobe fuse"
    elif not (is_open(device) if as_root else os.access(device, os.R_OK | os.W_OK)):
        text, remedy = "closed to ordinary users", f"chmod 666 /dev/fuse, or {SETUP}"
    return Item("fuse", USER, "/dev/fuse", text, remedy, optional=True)


def is_open(device: Path) -> bool:
    """Return whether ordinary users can read and write a device."""
    try:
        return device.stat().st_mode & _READ_WRITE == _READ_WRITE
    except OSError:
        return False


def _policy(roots: SystemRoots, *, as_root: bool) -> Item:
    own = (folder_of_user() or Path("/")) / ".config/containers/policy.json"
    files = [roots.etc / "containers/policy.json", *([] if as_root else [own])]
    text = next((str(file) for file in files if file.is_file()), "")
    remedy = "" if text else f"apt-get install golang-github-containers-common, or {SETUP}"
    absent = "missing: buildah and skopeo do not work without it"
    return Item("policy", USER, "policy.json", text or absent, remedy)


def _keyring(roots: SystemRoots) -> Item:
    file = roots.keyrings / KEYRING
    text, remedy = str(file), ""
    if not file.is_file():
        text = f"{KEYRING} is missing: packages from the Debian mirror cannot be verified"
        remedy = f"apt-get install debian-archive-keyring, or {SETUP}"
    return Item("keyring", USER, "Debian's keyring", text, remedy)


def _gpu_items(search_path: str, roots: SystemRoots) -> list[Item]:
    """Return the items of driver and nvidia-smi; /proc is read, since nvidia-smi may be slow."""
    version = nvml.kernel_driver(roots.proc)
    models = [model for model in nvml.gpu_models(roots.proc) if model]
    text, remedy, data = ", ".join([version or "loaded", *models]), "", {}
    if not nvml.is_loaded(roots.proc):
        text = "not loaded"
    elif not (roots.dev / "nvidiactl").exists():
        text = f"{version} is loaded, but /dev/nvidiactl is missing"
    else:
        data = {"version": version, "gpus": models}
    if not data:
        remedy = "install NVIDIA's driver; in a container, pass its devices to it"
    smi = shutil.which("nvidia-smi", path=search_path)
    smi_remedy = "" if smi else "it comes with NVIDIA's driver"
    return [
        Item("gpu", GPU, "NVIDIA driver", text, remedy, optional=True, data=data),
        Item("nvidia-smi", GPU, "nvidia-smi", smi or "not found", smi_remedy, optional=True),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class IdRange:
    """A line of subuid(5): `count` ids from `first` on, which belong to `owner`."""

    owner: str
    first: int
    count: int = IDS

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def overlaps(self, other: IdRange) -> bool:
        """Return whether the ranges have an id in common."""
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.count > 1 else str(self.first)


def id_items(user: str, roots: SystemRoots) -> list[Item]:
    """Return the items of a user's ranges, and whether users of this host share ids."""
    return [*(range_item(name, user, roots) for name in ID_FILES), _overlap_item(user, roots)]


def free_range(user: str, roots: SystemRoots, *, anew: bool = False) -> IdRange:
    """Return a range without ids from other users' lines and without user ids of this host.

    Both files get the same range; with `anew`, it differs from the user's current one. The search
    starts at a number that depends on the user: concurrent calls for two users do not collide.
    """
    users = _users(roots)
    taken = [ids for name in ID_FILES for ids in _ranges(name, roots) if anew or ids.owner != user]
    taken += [IdRange(owner=owner, first=uid, count=1) for owner, uid in users.items()]
    slots = (_LAST - _FIRST) // IDS
    begin = users.get(user, _FIRST_USER) - _FIRST_USER
    for number in range(slots):
        ids = IdRange(owner=user, first=_FIRST + (begin + number) % slots * IDS)
        if not any(map(ids.overlaps, taken)):
            return ids
    raise MissingPrerequisite("this host has no free range of sub-ids", hint="see /etc/subuid")


def range_item(name: str, user: str, roots: SystemRoots) -> Item:
    """Return the item of a user's range in a file of `ID_FILES`."""
    title = "sub-user ids" if name == "subuid" else "sub-group ids"
    if count := sum(ids.count for ids in _ranges(name, roots) if ids.owner == user):
        return Item(name, USER, title, f"{count} for {user}")
    ids = free_range(user, roots)
    remedy = f"echo {user}:{ids.first}:{ids.count} | sudo tee --append /etc/{name}"
    if user in _users(roots):  # usermod(8) does not know users of a directory service
        remedy = f"sudo usermod --add-{name}s {ids} {user}"
    return Item(name, USER, title, f"no line for {user} in /etc/{name}", remedy)


def _overlap_item(user: str, roots: SystemRoots) -> Item:
    """Return whether users share ids: they could read and change each other's files."""
    key, title = "subids", "separate sub-ids"
    shared = [(name, *pair) for name in ID_FILES for pair in _overlapping(name, roots)]
    if not shared:
        return Item(key, USER, title, "no two users of this host share ids")
    of_user = [entry for entry in shared if user in {entry[1].owner, entry[2].owner}]
    name, first, second = (of_user or shared)[0]
    more = f", and {len(shared) - 1} more" if len(shared) > 1 else ""
    text = f"{first.owner} ({first}) and {second.owner} ({second}) share ids in /etc/{name}{more}"
    text += ": each can read and change files of the other"
    old = second if second.count > 1 else first
    new = free_range(old.owner, roots, anew=True)
    remedy = f"sudo usermod --del-{name}s {old} --add-{name}s {new} {old.owner}"
    remedy += "  (while logged out; data with the old ids must be created again)"
    return Item(key, USER, title, text, remedy, optional=not of_user)


def _overlapping(name: str, roots: SystemRoots) -> Iterator[tuple[IdRange, IdRange]]:
    """Yield pairs of ranges with a common id; a user's own id is a range, too."""
    ranges = _ranges(name, roots)
    users = _users(roots) if name == "subuid" else {}
    own = [IdRange(owner=owner, first=uid, count=1) for owner, uid in users.items()]
    pairs = [*combinations(ranges, 2), *((user, ids) for ids in ranges for user in own)]
    for first, second in pairs:
        if first.owner != second.owner and first.overlaps(second):
            yield first, second


def _ranges(name: str, roots: SystemRoots) -> list[IdRange]:
    """Return the ranges in a file; a line may begin with a user id in place of a name."""
    names = {str(uid): owner for owner, uid in _users(roots).items()}
    lines = [line.strip().split(":") for line in text_of(roots.etc / name).splitlines()]
    return [
        IdRange(owner=names.get(line[0], line[0]), first=int(line[1]), count=int(line[2]))
        for line in lines
        if len(line) == 3 and line[1].isdecimal() and line[2].isdecimal() and int(line[2])  # noqa: PLR2004
    ]


def _users(roots: SystemRoots) -> dict[str, int]:
    """Return user ids by name: those of passwd(5), and the caller's, who may not be in it."""
    lines = [line.split(":") for line in text_of(roots.etc / "passwd").splitlines()]
    known = {line[0]: int(line[2]) for line in lines if line[2:] and line[2].isdecimal()}
    return {**roots.caller, **known}
