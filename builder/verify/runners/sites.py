"""Runners of sites, as an ordinary user: Apptainer and Charliecloud; and bare execution.

Bare execution is the reference for measurements: the tarball is unpacked, and entered by chroot
with only the image's variables.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from builder.build.engines import Tools
from builder.build.engines.apptainer import environment as apptainer_environment
from builder.model.errors import BadInput
from builder.model.measurement import BARE
from builder.verify.runners.protocol import (
    CDI_GPUS,
    DATA_AT,
    HOME_IN_CONTAINER,
    NOBODY,
    PRIVATE_HOME,
    Container,
    CopiesDriver,
    Kind,
    Prefixed,
    Runner,
    cdi_problem,
    missing,
    offers,
    scratch,
    with_home,
)

# The caller's settings of Apptainer mount other files (_BIND), or set variables in the image.
SETTINGS = re.compile(r"(APPTAINER|SINGULARITY)(ENV)?_\w+")
# The launcher's folder for temporary files has a path that does not exist for ranks.
_NOT_OF_RANKS = {"TMPDIR"}


@contextlib.contextmanager
def apptainer_runner(container: Container) -> Iterator[Runner]:
    """Run `apptainer exec` on the SIF."""
    with scratch(container) as folder:
        container = with_home(container, folder)
        argv = apptainer_argv(container.tools.program("apptainer"), container)
        yield _runner(container, argv, apptainer_environment(folder), folder)


def apptainer_argv(program: str, container: Container) -> list[str]:
    """Return the argv before a command. Only --home sets HOME; --no-home keeps the folder out."""
    return [
        program,
        "--silent",
        "exec",
        *([] if container.around else ["--cleanenv"]),
        "--no-home",
        f"--home={PRIVATE_HOME}",
        f"--pwd={container.directory}",
        *(["--nv"] if container.gpu else []),
        *container.bind_options("bind"),
        *(f"--bind={path}:{at}:ro" for at, path in container.mounts.items()),
        str(container.artifact),
    ]


@contextlib.contextmanager
def charliecloud_runner(container: Container) -> Iterator[Runner]:
    """Run `ch-run` on a folder into which the tarball is unpacked."""
    tools, around = container.tools, container.around
    capture, user = tools.processes.capture, tools.ordinary_user
    cdi = container.gpu and has_cdi(tools)
    with unpacked(container, user=user) as image:
        container = with_home(container, image.parent)
        line = ch_run_argv(tools.program("ch-run"), container, str(image), cdi=cdi)
        own = {"USER": _user(tools)}
        if user and not around:  # who may have no rights in root's $TMPDIR
            own["TMPDIR"] = "/tmp"  # noqa: S108 - ch-run's default
        runner: Runner = _runner(container, line, own, image.parent)
        if container.gpu and not cdi:
            fromhost = [tools.program("ch-fromhost"), "--nvidia", str(image)]
            copy_driver = partial(capture, fromhost, user=user, env=tools.environment)
            if around:
                copy_driver()
            else:
                runner = CopiesDriver(inner=runner, copy_driver=copy_driver)
        # ch-run mounts only on existing paths
        for path in _mount_points(image, {*container.mounts, *container.binds} - {DATA_AT}):
            capture(["mkdir", "-p", str(path)], user=user)
        yield runner


def ch_run_argv(program: str, container: Container, image: str, *, cdi: bool) -> list[str]:
    """Return the argv before a command, for an unpacked image; GPUs are passed with `cdi`."""
    return [
        program,
        # The launcher's library path must not reach the container.
        "--unset-env=LD_LIBRARY_PATH" if container.around else "--unset-env=*",
        "--set-env",
        f"--set-env=HOME={PRIVATE_HOME}",
        f"--cd={container.directory}",
        *([f"--cdi={CDI_GPUS}"] if cdi else []),
        *container.bind_options("bind"),
        *(f"--bind={path}:{at}" for at, path in container.mounts.items()),
        image,
        "--",
    ]


@contextlib.contextmanager
def unpacked(container: Container, *, user: str | None) -> Iterator[Path]:
    """Unpack the tarball to a user's folder, below one that the ordinary user can write to.

    Without a `user` the folder is the caller's; root keeps the owners that the tarball has.
    """
    tools = container.tools
    capture = tools.processes.capture
    with scratch(container) as folder:
        image = folder / "image"
        capture(["mkdir", str(image)], user=user)
        unpacker = f"--use-compress-program={tools.program('pigz')}"
        try:
            capture(
                ["tar", "-x", unpacker, "-f", str(container.artifact), "-C", str(image)], user=user
            )
            yield image
        finally:
            with contextlib.suppress(Exception):  # the rest is removed with the work folder
                capture(["chmod", "-R", "u+rwX", str(image)], check=False)


def _mount_points(root: Path, paths: Iterable[str]) -> list[Path]:
    """Return the folders of an unpacked image to mount on; raises `BadInput` for one outside."""
    folders = {at: root / at.lstrip("/") for at in sorted(paths)}
    for at, folder in folders.items():
        if root.resolve() not in folder.resolve().parents:
            raise BadInput(f"{at}: the image has a link there, so nothing can be mounted on it")
    return [*folders.values()]


def charliecloud_problem(tools: Tools) -> str:
    """Return why Charliecloud cannot pass this machine's GPUs to containers; empty if it can."""
    if has_cdi(tools):
        return cdi_problem(kind="*.json")
    return missing(tools, "ch-fromhost", "nvidia-container-cli")


def has_cdi(tools: Tools) -> bool:
    """Return whether ch-run supports the Container Device Interface, as some after 0.39 do."""
    return offers(tools, ["ch-run"], "--cdi")


def _user(tools: Tools) -> str:
    try:
        return tools.ordinary_user or getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no entry
        return str(os.getuid())


def _runner(
    container: Container, line: Sequence[str], own: Mapping[str, str], folder: Path
) -> Prefixed:
    """Run `line` in a folder, started by the container's launcher if there is one.

    The launcher's variables are in its environment and not in an argv, which anybody could read.
    All other variables are removed; without a launcher, the caller's settings of Apptainer are.
    """
    tools, around = container.tools, container.around
    prefix, env = tuple(line), own
    settings = sorted(name for name in os.environ if SETTINGS.fullmatch(name) and name not in own)
    if settings and not around:
        prefix = ("env", *(f"--unset={name}" for name in settings), *line)
    if around:
        env = {**around.environment, **own}
        outer = {*os.environ, *tools.environment, *env}
        others = sorted(outer - (env.keys() - _NOT_OF_RANKS))
        prefix = ("env", *(f"--unset={name}" for name in others), *around.command, *line)
    return Prefixed(prefix=prefix, tools=tools, env=env, user=tools.ordinary_user, cwd=folder)


BARE_FORMAT = "charliecloud"  # the artifact that tar unpacks
_MOUNTED = ("/proc", "/sys", "/dev")

_ENTER = """\
root=$1
shift
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder" || exit 125; done
while [ "$1" != -- ]; do mount --bind "$2" "$root$1" || exit 125; shift 2; done
shift
exec setpriv --no-new-privs chroot "$@"
"""
_IN_FOLDER = 'cd "$0" && exec "$@"'


def bare_kind(environment: Mapping[str, str]) -> Kind:
    """Return bare execution as a kind of runner, for an image with these variables."""
    return Kind(
        name=BARE,
        format=BARE_FORMAT,
        program="chroot",
        open=lambda container: _bare_runner(container, environment),
    )


@contextlib.contextmanager
def _bare_runner(container: Container, environment: Mapping[str, str]) -> Iterator[Runner]:
    with unpacked(container, user=None) as root:
        for path in _mount_points(root, [*_MOUNTED, *container.binds]):
            path.mkdir(parents=True, exist_ok=True)
        prefix = chroot_argv(
            str(root),
            container.binds,
            {**environment, "HOME": HOME_IN_CONTAINER},
            directory=container.directory,
            is_root=os.geteuid() == 0,
        )
        yield Prefixed(prefix=tuple(prefix), tools=container.tools, cwd=root.parent)


def chroot_argv(
    root: str,
    binds: Mapping[str, Path],
    environment: Mapping[str, str],
    *,
    directory: str,
    is_root: bool,
) -> list[str]:
    """Return the argv before the command. Its mounts end with the process that makes them."""
    namespaces = ["--mount"] if is_root else ["--user", "--map-root-user", "--mount"]
    user = [f"--userspec={NOBODY}", "--groups=65534"] if is_root else []
    variables = [f"{name}={value}" for name, value in environment.items()]
    mounts = [word for at, path in binds.items() for word in (at, str(path))]
    return [
        *("unshare", *namespaces, "sh", "-c", _ENTER, BARE, root, *mounts, "--", *user, root),
        *("/usr/bin/env", "-i", *variables, "sh", "-c", _IN_FOLDER, directory),
    ]
