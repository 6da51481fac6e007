"""Options of `verify`: what runs checks, the ranks that launchers start, and measuring."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from builder.cli.arguments import a_path, not_empty, positive_number

RUNNER_NAMES = ("buildah", "podman", "docker", "apptainer", "charliecloud")
REPEATS = 5
LAUNCHERS = ("mpirun", "srun")
LAUNCHED = ("apptainer", "charliecloud")  # what an ordinary user starts, on every node
_RANKS = 4
_ALONE = ("ranks", "nodes", "bind_mpi", "launcher_option", "timeout")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """How ranks are to be started: by each of `launchers`.

    `nodes` and `timeout_s` are 0, and `bind_mpi` is empty, where nothing was said of them.
    `options` go to the launcher as they are.
    """

    launchers: tuple[str, ...]
    ranks: int
    nodes: int = 0
    bind_mpi: str = ""
    options: tuple[str, ...] = ()
    timeout_s: int = 0


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument(
        "path",
        type=a_path,
        metavar="PATH",
        help="an image's folder, such as out/IDENTIFIER, or what pull left",
    )
    parser.add_argument(
        "--runner",
        action="append",
        choices=RUNNER_NAMES,
        help="run the checks by this program alone (may be repeated; default: one a format)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the manifest, or the measurement, as JSON"
    )
    group = parser.add_argument_group(
        "ranks in containers of their own, started by this host's launcher, and nothing else"
    )
    group.add_argument(
        "--launcher",
        dest="rank_launcher",
        action="append",
        choices=LAUNCHERS,
        help="mpirun of the image's MPI family, or srun --mpi=pmix (may be repeated)",
    )
    group.add_argument(
        "--ranks", type=positive_number, metavar="N", help=f"how many (default: {_RANKS})"
    )
    group.add_argument(
        "--nodes",
        type=positive_number,
        metavar="N",
        help="on so many nodes, at most one for each rank, and fail on any other number",
    )
    group.add_argument(
        "--bind-mpi",
        type=not_empty,
        metavar="DIR",
        help="once more with the host's MPI library in the place of the image's: the one below "
        "DIR, or wherever the host has it (auto)",
    )
    group.add_argument(
        "--launcher-option",
        action="append",
        metavar="OPTION",
        help="give the launcher this one too: --launcher-option=--partition=test",
    )
    group.add_argument(
        "--timeout",
        type=positive_number,
        metavar="SECONDS",
        help="how long ranks may take (default: what the image's check mpi may)",
    )
    bench = parser.add_argument_group("measuring")
    bench.add_argument(
        "--bench",
        action="store_true",
        help="run no checks, but measure how fast programs are in each format, compared with bare",
    )
    bench.add_argument(
        "--repeats",
        type=positive_number,
        metavar="N",
        help=f"rounds, in each of which all places are measured by turns (default: {REPEATS})",
    )
    bench.add_argument(
        "--prometheus",
        type=a_path,
        metavar="FILE",
        help="write the measurement in Prometheus' text format, too",
    )


def rank_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> RankOptions | None:
    """What was asked for; None without a launcher. What means nothing is a usage error."""
    launchers = getattr(given, "rank_launcher", None) or []
    if not launchers:
        _refuse_without_launcher(parser, given)
        return None
    if given.bench:
        parser.error("--bench measures, --launcher checks: one of them")
    if others := [name for name in given.runner or () if name not in LAUNCHED]:
        runners = " and ".join(LAUNCHED)
        parser.error(f"--runner {others[0]}: launchers start containers of {runners}")
    ranks, nodes = given.ranks or _RANKS, given.nodes or 0
    if nodes > ranks:
        few = f"{ranks} rank{'s' if ranks > 1 else ''}"
        parser.error(f"--nodes {nodes}: {few} cannot be on so many; --ranks {nodes} can")
    return RankOptions(
        launchers=tuple(dict.fromkeys(launchers)),
        ranks=ranks,
        nodes=nodes,
        bind_mpi=given.bind_mpi or "",
        options=tuple(given.launcher_option or ()),
        timeout_s=given.timeout or 0,
    )


def _refuse_without_launcher(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """What says how ranks are started says nothing without a launcher."""
    if said := [f"--{name.replace('_', '-')}" for name in _ALONE if getattr(given, name, None)]:
        parser.error(f"{', '.join(said)}: for ranks, which --launcher mpirun or srun starts")
