"""The classes of blocks for recipes: hpccm's, with `copy` and `pip` of our own."""

from __future__ import annotations

import inspect
import posixpath
import shlex
from collections.abc import Mapping
from typing import Any

import hpccm.building_blocks
import hpccm.config
import hpccm.primitives
from hpccm.building_blocks.base import bb_base
from hpccm.building_blocks.packages import packages
from hpccm.common import linux_distro
from hpccm.primitives import comment, environment, shell

from builder.model import DEVELOPMENT, PlannedImage
from builder.system.home import PIP_CONFIG

PRIMITIVES = ("comment", "copy", "environment", "label", "raw", "shell", "user", "workdir")
REQUIREMENTS = "/usr/local/src"  # there in every distribution, and no folder that Singularity hides


def block_classes() -> dict[str, type]:
    """The blocks and primitives that every recipe can name."""
    blocks = {
        name: value
        for name, value in vars(hpccm.building_blocks).items()
        if inspect.isclass(value) and not name.startswith("_")
    }
    blocks |= {name: getattr(hpccm.primitives, name) for name in PRIMITIVES}
    return dict(sorted((blocks | {"copy": copy, "pip": pip}).items()))


class copy(hpccm.primitives.copy):  # type: ignore[misc]  # noqa: N801 - hpccm has no types
    """The `copy` block copies files of the project, or of the development stage.

    # Parameters

    dest: Path in the image.

    files: Dictionary of files of the project, each with its path in
    the image.

    from: `development` copies from the development stage, in
    `runtime` alone.

    src: File of the project, or a path in the development stage.

    # Examples
    """


def from_development(
    arguments: Mapping[str, object], image: PlannedImage
) -> hpccm.primitives.shell | hpccm.primitives.copy:
    """The object of hpccm's that copies paths of the development stage into the last one."""
    src, dest = arguments["src"], arguments["dest"]
    if image.cell.flavour == DEVELOPMENT:  # the stages are one
        sources = [str(path) for path in src] if isinstance(src, list) else [str(src)]
        return shell(commands=[_copied(str(dest), sources)])
    is_docker = hpccm.config.get_format() == "docker"
    stage = f"{image.stages[-1].name}-{DEVELOPMENT}" if is_docker else DEVELOPMENT
    return hpccm.primitives.copy(_from=stage, src=src, dest=dest)


def _copied(dest: str, sources: list[str]) -> str:
    """A command that leaves a path alone which is copied to itself."""
    folder = dest if dest.endswith("/") else posixpath.dirname(dest)
    others = [
        source for source in sources if posixpath.normpath(source) != posixpath.normpath(dest)
    ]
    if not others:
        return "true"
    return f"mkdir -p {shlex.quote(folder)} && cp -r {shlex.join(others)} {shlex.quote(dest)}"


class pip(bb_base):  # type: ignore[misc]  # noqa: N801 - a recipe's word, and hpccm has no types
    # Not hpccm's own: that installs Python 2 packages by default, knows no externally managed
    # environments (https://peps.python.org/pep-0668/), and leaves nothing for run time.
    """The `pip` block installs Python packages from an index.

    # Parameters

    args: List of arguments of `pip`, before `install`.  The default
    is `--no-cache-dir`.

    install_args: List of arguments of `pip install`.  The default is
    an empty list.

    ospackages: List of OS packages to install first.  The default
    is what the tool needs.

    packages: List of Python packages to install.

    pip: The name of the tool.  The default is `pip3`; with `venv`, it
    is the environment's own.

    requirements: Path of a requirements file below the project's
    `files/`.

    system_site_packages: Boolean flag to let the virtual environment
    see the Python packages of the distribution.  The default is False.

    upgrade: Boolean flag to upgrade pip first.  The default is False.

    venv: Path of a virtual environment to make and to install into.
    The run-time stage gets it as well.  The default is none.

    # Examples
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._venv = kwargs.get("venv", "")
        self._path = {"PATH": f"{posixpath.join(self._venv, 'bin')}:$PATH"}
        requirements = kwargs.get("requirements", "")
        copied = posixpath.join(REQUIREMENTS, posixpath.basename(requirements))
        self += comment("pip")
        self += packages(ospackages=list(kwargs.get("ospackages", self._needed())))
        if requirements:
            self += hpccm.primitives.copy(src=requirements, dest=copied)
        commands = []
        if self._venv:
            is_open = kwargs.get("system_site_packages", False)
            options = "--system-site-packages " if is_open else ""
            commands.append(f"python3 -m venv {options}{self._venv}")
        install = self._install(kwargs)
        if kwargs.get("upgrade", False):
            commands.append(f"{install} --upgrade pip")
        if requirements:
            commands.append(f"{install} -r {copied}")
        if names := kwargs.get("packages", []):
            commands.append(f"{install} {shlex.join(names)}")
        self += shell(commands=commands)
        if self._venv:
            self += environment(variables=self._path)

    def runtime(self, _from: str = "0") -> str:
        """The virtual environment, and the Python that it is of; nothing without one."""
        if not self._venv:
            return ""
        self.rt += comment("pip")
        self.rt += packages(ospackages=["python3"])
        self.rt += hpccm.primitives.copy(_from=_from, src=self._venv, dest=self._venv)
        self.rt += environment(variables=self._path)
        return str(self.rt)

    def _needed(self) -> list[str]:
        """The packages of the distribution that bring the tool."""
        if hpccm.config.g_linux_distro == linux_distro.UBUNTU:
            return ["python3-venv"] if self._venv else ["python3-pip", "python3-setuptools"]
        return ["python3-pip"]

    def _install(self, kwargs: Mapping[str, Any]) -> str:
        """The command that installs; the index's configuration is there while builds run."""
        tool = kwargs.get("pip", posixpath.join(self._venv, "bin", "pip") if self._venv else "pip3")
        options = kwargs.get("args", ["--no-cache-dir"])
        install = shlex.join([tool, *options, "install", *kwargs.get("install_args", [])])
        # An older pip ignores a variable that it does not know.
        for_system = "" if self._venv else "PIP_BREAK_SYSTEM_PACKAGES=1 "
        return f"{for_system}PIP_CONFIG_FILE={PIP_CONFIG} {install}"
