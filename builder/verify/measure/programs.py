"""The programs that measure: what each finds, how it is started, and how its output is read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from builder.verify.measure import disk, hpcc, messages
from builder.verify.measure.measurement import BARE, Quantity
from builder.verify.runners import DATA_AT, Container, Kind, Runner
from builder.verify.runners.protocol import HOME_IN_CONTAINER, NOBODY, Prefixed
from builder.verify.runners.sites import unpacked


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How much the programs do, for runs of some seconds each.

    `hpl` is the order of HPL's matrix. HPC Challenge's arrays follow from it, and fit into caches
    where it is small. `memory_mib` is one of three arrays. `largest` are the bytes of the largest
    message, `rounds` the repetitions of small ones. `file_mib` is what fio writes and reads, and
    `seconds` how long it reads at random.
    """

    hpl: int = 2048
    memory_mib: int = 256
    largest: int = 1 << 22
    rounds: int = 1000
    file_mib: int = 128
    seconds: int = 2


# Emulated code takes 10 to 100 times as long.
EMULATED = Sizes(hpl=192, memory_mib=32, largest=1 << 20, rounds=100, file_mib=64, seconds=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program that may be in an image.

    `path` is what must be there; `script` is for sh(1), from the sizes and the launcher of two
    ranks; `read` makes values by quantity of what it prints, and raises `Unreadable`.
    """

    name: str
    path: str
    quantities: tuple[Quantity, ...]
    script: Callable[[Sizes, str], str]
    read: Callable[[str], Mapping[str, float]]
    needs_mpi: bool = False


def _osu(program: str, folder: str, quantity: Quantity) -> Program:
    """One of the OSU micro-benchmarks, as recipe hpc-bench-osu installs them."""
    path = f"/usr/local/osu/libexec/osu-micro-benchmarks/mpi/{folder}/{program}"

    def script(sizes: Sizes, launch: str) -> str:
        return f"exec {launch} {path} -m 1:{sizes.largest} -i {sizes.rounds}"

    return Program(
        name=program,
        path=path,
        quantities=(quantity,),
        script=script,
        read=lambda text: messages.read_osu(text, quantity),
        needs_mpi=True,
    )


PROGRAMS = (
    Program(
        name="hpcc",
        path="hpcc",
        quantities=hpcc.QUANTITIES,
        script=lambda sizes, launch: hpcc.script(sizes.hpl, launch, DATA_AT),
        read=hpcc.read,
        needs_mpi=True,
    ),
    Program(
        name="memory-speed",
        path="memory-speed",
        quantities=(messages.MEMORY_TRIAD,),
        script=lambda sizes, _launch: f"exec memory-speed {sizes.memory_mib} 5",
        read=messages.read_memory_speed,
    ),
    Program(
        name="mpi-speed",
        path="mpi-speed",
        quantities=messages.SPEED,
        script=lambda sizes, launch: f"exec {launch} mpi-speed {sizes.largest} {sizes.rounds}",
        read=messages.read_mpi_speed,
        needs_mpi=True,
    ),
    *(_osu(*one) for one in messages.OSU),
    Program(
        name="fio",
        path="fio",
        quantities=disk.QUANTITIES,
        script=lambda sizes, _launch: disk.script(sizes.file_mib, sizes.seconds, DATA_AT),
        read=disk.read,
    ),
)


FORMAT = "charliecloud"  # the artifact that tar unpacks
_MOUNT_POINTS = ("proc", "sys", "dev", DATA_AT.lstrip("/"))  # an image may lack them

_ENTER = f"""\
root=$1 data=$2
shift 2
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder" || exit 125; done
mount --bind "$data" "$root{DATA_AT}" || exit 125
exec setpriv --no-new-privs chroot "$@"
"""
_IN_FOLDER = 'cd "$0" && exec "$@"'


def how(*, is_root: bool) -> str:
    """Return how the root file system is entered, in words."""
    entered = "the image's root file system, unpacked and entered by chroot"
    return entered if is_root else f"{entered} in a user namespace"


@contextlib.contextmanager
def bare_runner(container: Container, environment: Mapping[str, str]) -> Iterator[Runner]:
    """The tarball unpacked, and entered with the image's variables and none of the caller's."""
    tools, is_root = container.tools, os.geteuid() == 0
    with unpacked(container, user=None) as root:
        for name in _MOUNT_POINTS:
            (root / name).mkdir(exist_ok=True)
        yield Prefixed(
            prefix=tuple(
                words(
                    str(root),
                    container.shown,
                    {**environment, "HOME": HOME_IN_CONTAINER},
                    directory=container.directory,
                    is_root=is_root,
                )
            ),
            tools=tools,
            cwd=root.parent,
        )


def words(
    root: str, data: str, environment: Mapping[str, str], *, directory: str, is_root: bool
) -> list[str]:
    """The command line before the command. Mounts are gone with the process that made them."""
    namespaces = ["--mount"] if is_root else ["--user", "--map-root-user", "--mount"]
    user = [f"--userspec={NOBODY}", "--groups=65534"] if is_root else []
    variables = [f"{name}={value}" for name, value in environment.items()]
    return [
        "unshare",
        *namespaces,
        *["sh", "-c", _ENTER, BARE, root, data, *user, root],
        *["/usr/bin/env", "-i", *variables, "sh", "-c", _IN_FOLDER, directory],
    ]


def bare_kind(environment: Mapping[str, str]) -> Kind:
    """Bare as a runner of an image with these variables."""
    return Kind(
        name=BARE,
        format=FORMAT,
        program="chroot",
        open=lambda container: bare_runner(container, environment),
    )
