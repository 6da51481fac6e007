"""Whether a runner can hand over this machine's GPUs, and if not, why.

Nothing here has run on a machine with a GPU yet: docs/gpus.md says so.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.build.engines import Tools
from builder.verify.runners.commands import CDI_GPUS

# https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_VENDOR = CDI_GPUS.partition("=")[0]


def cdi_problem(folders: tuple[Path, ...] = _CDI_FOLDERS, *, kind: str = "*") -> str:
    """Why GPUs cannot be named by the Container Device Interface; nothing if they can.

    `kind` is a pattern of the files that are read: the standard has JSON and YAML.
    """
    files = [file for folder in folders for file in folder.glob(kind) if file.is_file()]
    if any(_VENDOR in file.read_text(errors="replace") for file in files):
        return ""
    places = " or ".join(f"{folder}/{kind}" for folder in folders)
    return f"no specification of {_VENDOR} in {places}: nvidia-ctk makes it"


def buildah_problem(tools: Tools) -> str:
    if not offers(tools, ["buildah", "run"], "--device"):
        return "this buildah cannot hand over devices"
    return cdi_problem()


def podman_problem(_tools: Tools) -> str:
    return cdi_problem()


def docker_problem(tools: Tools) -> str:
    return _missing(tools, "nvidia-container-runtime")


def charliecloud_problem(tools: Tools) -> str:
    if has_cdi(tools):
        return cdi_problem(kind="*.json")
    return _missing(tools, "ch-fromhost") or _missing(tools, "nvidia-container-cli")


def has_cdi(tools: Tools) -> bool:
    """Return whether this ch-run knows the Container Device Interface, as those after 0.39 may."""
    return offers(tools, ["ch-run"], "--cdi")


def offers(tools: Tools, command: list[str], option: str) -> bool:
    """Return whether a program's help names an option."""
    done = tools.processes.capture(
        [tools.program(command[0]), *command[1:], "--help"],
        env={**tools.environment, "USER": tools.ordinary_user or "user"},
        check=False,
        timeout_s=20,
    )
    words = re.split(r"[\s,=\[]+", done.stdout + done.stderr)
    return option in words


def _missing(tools: Tools, name: str) -> str:
    return "" if tools.has(name) else f"there is no {name} on this machine"
