"""What the kernel, the user's entries, the GPU driver and the disks allow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from builder.host.doctor.diagnosis import DISK, GPU, USER, Item, Roots, lines_of
from builder.host.doctor.folders import free_bytes
from builder.host.doctor.programs import SETUP
from builder.host.doctor.subids import id_items
from builder.system import nvml
from builder.system.home import folder_of_user

KEYRING = "debian-archive-keyring.gpg"


def examined(*, user: str, as_root: bool, search_path: str, roots: Roots) -> list[Item]:
    """Everything that is read from files; nothing is started."""
    return [
        _ordinary_user(user, as_root=as_root, roots=roots),
        _namespaces(roots),
        *id_items(user, roots),
        _fuse(roots, as_root=as_root),
        _policy(roots, as_root=as_root),
        _keyring(roots),
        _driver(roots),
        _smi(search_path),
        _here(Path.cwd()),
    ]


def _ordinary_user(user: str, *, as_root: bool, roots: Roots) -> Item:
    """As root, Apptainer asks for capabilities that containers often lack."""
    title = "ordinary user"
    if not as_root:
        return Item(key="user", group=USER, title=title, ok=True, text=f"{user}, the caller")
    if any(line.startswith(f"{user}:") for line in lines_of(roots.etc / "passwd")):
        text = f"{user}, for Apptainer and Charliecloud"
        return Item(key="user", group=USER, title=title, ok=True, text=text)
    text = f"no user {user}, as whom root runs Apptainer and Charliecloud"
    return Item(key="user", group=USER, title=title, ok=False, text=text, remedy=SETUP)


def _namespaces(roots: Roots) -> Item:
    problem, remedy = namespaces_problem(roots)
    text = problem or "open to ordinary users"
    if not problem and _number(roots, "kernel/apparmor_restrict_unprivileged_userns") == 1:
        text = (
            "open to programs with an AppArmor profile (build-images setup host writes Apptainer's)"
        )
    return Item(
        key="userns", group=USER, title="user namespaces", ok=not problem, text=text, remedy=remedy
    )


def namespaces_problem(roots: Roots) -> tuple[str, str]:
    """What closes user namespaces to ordinary users, and what opens them; empty if open."""
    if _number(roots, "kernel/unprivileged_userns_clone") == 0:
        return "closed to ordinary users", "sysctl kernel.unprivileged_userns_clone=1"
    limit = _number(roots, "user/max_user_namespaces")
    if limit is None:
        return "this kernel has none", "a kernel with CONFIG_USER_NS"
    return ("none allowed", "sysctl user.max_user_namespaces=10000") if limit == 0 else ("", "")


def _fuse(roots: Roots, *, as_root: bool) -> Item:
    """Without it Apptainer unpacks a SIF before it runs it, which works and takes longer."""
    device, title = roots.dev / "fuse", "/dev/fuse"
    try:
        mode = device.stat().st_mode
    except OSError:
        text, remedy, ok = "not there: SIF images are unpacked to be run", "modprobe fuse", False
    else:
        ok = bool(mode & 0o006 == 0o006) if as_root else os.access(device, os.R_OK | os.W_OK)  # noqa: PLR2004
        text = "open to ordinary users" if ok else "closed to ordinary users"
        remedy = "" if ok else f"chmod 666 /dev/fuse, or {SETUP}"
    return Item(key="fuse", group=USER, title=title, ok=ok, text=text, remedy=remedy, optional=True)


def _policy(roots: Roots, *, as_root: bool) -> Item:
    own = (folder_of_user() or Path("/")) / ".config/containers/policy.json"
    files = [roots.etc / "containers/policy.json", *([] if as_root else [own])]
    found = next((file for file in files if file.is_file()), None)
    remedy = "" if found else f"apt-get install golang-github-containers-common, or {SETUP}"
    text = str(found) if found else "not there: buildah and skopeo refuse to work without it"
    return Item(
        key="policy",
        group=USER,
        title="policy.json",
        ok=bool(found),
        text=text,
        remedy=remedy,
    )


def _keyring(roots: Roots) -> Item:
    file = roots.keyrings / KEYRING
    ok = file.is_file()
    text = str(file) if ok else f"{KEYRING} is not there: it proves what the Debian mirror sends"
    remedy = "" if ok else f"apt-get install debian-archive-keyring, or {SETUP}"
    return Item(
        key="keyring", group=USER, title="Debian's keyring", ok=ok, text=text, remedy=remedy
    )


def _driver(roots: Roots) -> Item:
    """The loaded driver and its devices, from /proc: nvidia-smi may take seconds to answer."""
    title = "NVIDIA driver"
    remedy = "install NVIDIA's driver, and in a container hand its devices over"
    version = driver_version(roots)
    if version is None:
        return _gpu("gpu", title, "not loaded", remedy)
    if not (roots.dev / "nvidiactl").exists():
        return _gpu("gpu", title, f"{version} is loaded, and /dev/nvidiactl is not there", remedy)
    models = gpu_models(roots)
    text = ", ".join([version or "loaded", *models]).strip(", ")
    data = {"version": version, "gpus": models}
    return Item(key="gpu", group=GPU, title=title, ok=True, text=text, optional=True, data=data)


def driver_version(roots: Roots) -> str | None:
    """The loaded driver's version; empty if it does not say one, None if there is none."""
    if not (roots.proc / "driver/nvidia/version").is_file():
        return None
    return nvml.kernel_driver(roots.proc)


def gpu_models(roots: Roots) -> list[str]:
    """The models of the GPUs that the driver has, as it names them."""
    return [model for model in nvml.gpu_models(roots.proc) if model]


def _smi(search_path: str) -> Item:
    found = shutil.which("nvidia-smi", path=search_path)
    if not found:
        return _gpu("nvidia-smi", "nvidia-smi", "not found", "it comes with NVIDIA's driver")
    return Item(key="nvidia-smi", group=GPU, title="nvidia-smi", ok=True, text=found, optional=True)


def _gpu(key: str, title: str, text: str, remedy: str) -> Item:
    return Item(key=key, group=GPU, title=title, ok=False, text=text, remedy=remedy, optional=True)


def _here(folder: Path) -> Item:
    free = free_bytes(folder)
    text = f"{free / 1e9:.1f} GB free at {folder}"
    data = {"free_bytes": free, "folder": str(folder)}
    return Item(key="here", group=DISK, title="this folder", ok=True, text=text, data=data)


def _number(roots: Roots, name: str) -> int | None:
    text = "".join(lines_of(roots.proc / "sys" / name)).strip()
    return int(text) if text.isdigit() else None
