"""The command lines of all runners: pure, so that they can be compared and tested.

Each returns the words after the program's name and before the command to be run. The same is
asked of all of them: the image's environment and nothing of the caller's, HOME, the working
directory, an ordinary user, the host's network and shared memory, and, where wanted, its GPUs and
a folder with `data`.

The two that a launcher can start let its variables in then, and are given none but those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from builder.build.engines import Tools
from builder.verify.runners.protocol import DATA_AT, HOME_IN_CONTAINER, Mount

_HOME = f"HOME={HOME_IN_CONTAINER}"
# What a specification of the Container Device Interface calls all of NVIDIA's GPUs:
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
CDI_GPUS = "nvidia.com/gpu=all"


def buildah_run(
    container: str, *, user: str, directory: str, gpu: bool = False, data: str = ""
) -> list[str]:
    """`buildah run` in a working container; chroot needs neither cgroups nor a runtime."""
    return [
        "run",
        "--isolation=chroot",
        f"--env={_HOME}",
        f"--workingdir={directory}",
        *([f"--user={user}"] if user else []),
        *([f"--device={CDI_GPUS}"] if gpu else []),
        *_volume(data),
        container,
        "--",
    ]


def podman_run(
    image: str,
    name: str,
    program: str,
    *,
    user: str,
    directory: str,
    limits: Sequence[str] = (),
    gpu: bool = False,
    data: str = "",
) -> list[str]:
    """`podman run` of a program; with newer runtimes as with Docker, but for how GPUs are named."""
    gpus = [f"--device={CDI_GPUS}"] if gpu else []
    options = [*limits, *gpus, *_volume(data)]
    return _run(image, name, program, user=user, directory=directory, options=options)


def docker_run(
    image: str,
    name: str,
    program: str,
    *,
    user: str,
    directory: str,
    gpu: bool = False,
    data: str = "",
) -> list[str]:
    """`docker run` of a program; `--gpus` is for NVIDIA's container toolkit."""
    options = [*(["--gpus=all"] if gpu else []), *_volume(data)]
    return _run(image, name, program, user=user, directory=directory, options=options)


def _run(
    image: str, name: str, program: str, *, user: str, directory: str, options: Sequence[str]
) -> list[str]:
    return [
        "run",
        "--rm",
        f"--name={name}",
        "--network=host",
        "--ipc=host",
        f"--env={_HOME}",
        f"--workdir={directory}",
        *([f"--user={user}"] if user else []),
        *options,
        f"--entrypoint={program}",
        image,
    ]


def _volume(data: str) -> list[str]:
    return [f"--volume={data}:{DATA_AT}"] if data else []


def apptainer_exec(
    sif: str,
    *,
    directory: str,
    gpu: bool = False,
    data: str = "",
    launched: bool = False,
    mounts: Sequence[Mount] = (),
) -> list[str]:
    """`apptainer exec`. HOME can be set by --home alone, and --no-home keeps the folder out."""
    return [
        "--silent",
        "exec",
        *([] if launched else ["--cleanenv"]),
        "--no-home",
        f"--home={HOME_IN_CONTAINER}",
        f"--pwd={directory}",
        *(["--nv"] if gpu else []),
        *_bind(data),
        *(f"--bind={mount.path}:{mount.at}:ro" for mount in mounts),
        sif,
    ]


def ch_run(
    folder: str,
    *,
    directory: str,
    cdi: bool = False,
    data: str = "",
    launched: bool = False,
    mounts: Sequence[Mount] = (),
) -> list[str]:
    """`ch-run` on an unpacked image; `cdi` where it can do that, and else see `ch_fromhost`.

    The launcher's own path of libraries is none of the container's.
    """
    return [
        "--unset-env=LD_LIBRARY_PATH" if launched else "--unset-env=*",
        "--set-env",
        f"--set-env={_HOME}",
        f"--cd={directory}",
        *([f"--cdi={CDI_GPUS}"] if cdi else []),
        *_bind(data),
        *(f"--bind={mount.path}:{mount.at}" for mount in mounts),
        folder,
        "--",
    ]


def _bind(data: str) -> list[str]:
    return [f"--bind={data}:{DATA_AT}"] if data else []


def ch_fromhost(folder: str) -> list[str]:
    """`ch-fromhost` copies the driver's files into the unpacked image, which it changes."""
    return ["--nvidia", folder]


def around(
    launcher: Sequence[str], environment: Collection[str], outer: Collection[str]
) -> list[str]:
    """What stands before a container that a launcher starts: it takes away the other variables.

    `environment` are the names of those that are left of `outer`. Values are in no command line,
    where anybody could read them.
    """
    others = sorted(name for name in outer if name not in environment)
    return ["env", *(f"--unset={name}" for name in others), *launcher]


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
