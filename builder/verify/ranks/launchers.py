"""Launchers of this host: which there are, whose MPI they belong to, and how they start ranks.

A launcher starts N containers, each of which is one rank: the hybrid way of MPI in containers,
https://apptainer.org/docs/user/latest/mpi.html#hybrid-model. What it tells its ranks, it tells
them in environment variables: so nothing but these, and what tunes an MPI, is in the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines import Tools
from builder.facts import MPI_FAMILIES, MpiFamily
from builder.facts.mpi import launcher_family
from builder.model.versions import first_version
from builder.system.home import Home
from builder.system.process import Completed, Processes

MPIRUN, SRUN = LAUNCHERS = ("mpirun", "srun")

# Under which names a launcher for programs of that binary interface may be found.
_NAMES = {
    "openmpi": ("mpirun", "mpirun.openmpi", "mpiexec", "orterun"),
    "mpich": ("mpirun", "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich", "mpiexec"),
}
_HYDRA = "Hydra"  # which starts what any kin of MPICH made
# The caller's variables that a launcher is given: the allocation that it starts ranks in, what
# tunes MPI and fabric, where Apptainer works.
_KEPT = re.compile(
    r"(SLURM|SBATCH|SLURMD|PBS|LSB|OMPI|OPAL|PMIX|PRTE|HYDRA|MPIEXEC|MPICH|MPIR|MPIO|I_MPI|MV2|UCX"
    r"|FI|PSM2?|NCCL|IBV|RDMAV|APPTAINER|SINGULARITY)_\w+"
    r"|LANG|LC_ALL|LD_LIBRARY_PATH|HOME|USER|LOGNAME|XDG_RUNTIME_DIR"
)
# What nothing here needs: the SIF is a file, and not encrypted.
_SECRET = re.compile(r"(APPTAINER|SINGULARITY)_\w*(PASSWORD|PASSPHRASE|PEM_DATA)")
# What Slurm's commands ask its controller with, which a launcher needs and its ranks do not:
# https://slurm.schedmd.com/jwt.html
TOKENS = ("SLURM_JWT",)
# PMIx's store in shared memory crosses neither architectures nor mount namespaces: a rank in a
# container does not see the server's folder, and hangs or complains.
_RANKS_STORE = {"PMIX_MCA_gds": "hash"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageMpi:
    """The MPI of an image: `soname` is what its programs are linked to, `pmix` may be empty."""

    family: MpiFamily
    version: str
    soname: str
    pmix: str = ""

    @property
    def title(self) -> str:
        return f"{self.family.title} {self.version}"

    @property
    def library(self) -> str:
        """How the library names itself, as the check `mpi` wants to know it."""
        return self.family.library.format(version=self.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """How ranks are to be started.

    On `nodes` nodes, or on as many as the launcher likes if that is 0. `options` go to the
    launcher as they are. A rank is ended after `timeout_s` seconds.
    """

    launcher: str
    ranks: int
    timeout_s: int
    nodes: int = 0
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """A launcher of this host: `command` is what stands before what each rank runs.

    `name` is what the caller called it, `product` says whose it is.
    """

    name: str
    product: str
    version: str
    command: tuple[str, ...]

    @property
    def title(self) -> str:
        """`Open MPI 4.1.4`."""
        return f"{self.product} {self.version}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfit:
    """Why this host cannot start the ranks of an image in that way."""

    reason: str


def find(start: Start, mpi: ImageMpi, tools: Tools, *, job: str) -> Launcher | Unfit:
    """The launcher that starts programs of the image's MPI; `job` names what it starts."""
    if start.launcher == SRUN:
        return _srun(start, mpi, tools, job)
    return _mpirun(start, mpi, tools)


def environment(tools: Tools) -> dict[str, str]:
    """All that a launcher is given: the search path, and what is kept of the caller's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if _KEPT.fullmatch(name) and not _SECRET.fullmatch(name)
    }
    return {**_RANKS_STORE, **kept, **tools.environment, **tools.processes.mark}


def tuning(given: Mapping[str, str]) -> dict[str, str]:
    """Those of a launcher's variables that change how ranks find each other and talk."""
    return {
        name: value
        for name, value in given.items()
        if re.match(r"(OMPI_MCA|PMIX_MCA|UCX|FI|PSM2?|MPICH|MPIR_CVAR|I_MPI|MV2)_", name)
    }


# ---- mpirun ----


def _mpirun(start: Start, mpi: ImageMpi, tools: Tools) -> Launcher | Unfit:
    has = nodes_of(os.environ, start.options)
    if 0 < has < start.nodes:
        nodes = "this node alone" if has == 1 else f"{has} nodes"
        return Unfit(reason=f"mpirun has {nodes} here, and {start.nodes} are asked for")
    others = []
    for name in _NAMES[mpi.family.abi]:
        program = tools.which(name)
        if program is None:
            continue
        abi, product, version = _about(ask(tools, program, "--version"))
        if abi == mpi.family.abi:
            return Launcher(
                name=MPIRUN,
                product=product,
                version=version,
                command=(program, *_ranks(start, mpi.family), *start.options),
            )
        others.append(f"{name} is {product} {version}".rstrip())
    found = f"this host's {others[0]}" if others else "there is no mpirun on this host"
    return Unfit(reason=f"{found}, and the image has {mpi.title}")


def _about(done: Completed) -> tuple[str, str, str]:
    """The binary interface of the programs that a launcher starts, whose it is, its version."""
    said = done.stdout + done.stderr
    family = MPI_FAMILIES.get(launcher_family(said))
    if family is None:
        return "", "of an MPI that does not name itself", ""
    product = _HYDRA if family.name == "mpich" else family.title
    return family.abi, product, first_version(said)


def _ranks(start: Start, family: MpiFamily) -> list[str]:
    words = family.launch.format(ranks=start.ranks).split()[1:]
    if not start.nodes:
        return words
    many, fills = _on_each(start)
    if family.abi != "openmpi":
        return ["-ppn", str(many), *words]
    return ["--map-by", f"ppr:{many}:node" if fills else "node", *words]


def _on_each(start: Start) -> tuple[int, bool]:
    """How many ranks a node gets, and whether so many a node are on as many nodes as asked for.

    Nodes are filled one after the other, in an allocation that may have more. 4 ranks fill no 3
    nodes: then they are dealt out, to all nodes of the allocation. Hydra deals out what is left
    over in another round, Open MPI with `--map-by node`: mpiexec(1), mpirun(1).
    """
    many = -(-start.ranks // start.nodes)
    if -(-start.ranks // many) == start.nodes:
        return many, True
    return max(1, start.ranks // start.nodes), False


# ---- srun ----


def _srun(start: Start, mpi: ImageMpi, tools: Tools, job: str) -> Launcher | Unfit:
    program = tools.which(SRUN)
    if program is None:
        return Unfit(reason="there is no srun on this host")
    if not mpi.pmix:
        why = f"srun starts ranks by PMIx, and {mpi.title} brings none: its own launcher is mpirun"
        return Unfit(reason=why)
    offered = ask(tools, program, "--mpi=list")
    if "pmix" not in (offered.stdout + offered.stderr).split():
        return Unfit(reason="this host's srun has no plugin pmix (srun --mpi=list)")
    ping = ask(tools, "scontrol", "ping")
    if " is UP" not in ping.stdout:
        said = (ping.stdout + ping.stderr).strip().splitlines()
        return Unfit(reason=f"no Slurm controller answers: {said[0] if said else 'scontrol ping'}")
    version = tools.version(program)
    return Launcher(
        name=SRUN,
        product="Slurm",
        version=version,
        command=(
            program,
            "--mpi=pmix",
            f"--ntasks={start.ranks}",
            *([f"--nodes={start.nodes}"] if start.nodes else []),
            "--kill-on-bad-exit=1",
            f"--time={start.timeout_s // 60 + 2}",  # minutes: the end of what nobody ended
            f"--job-name={job}",
            *start.options,
        ),
    )


def cancel(job: str, home: Home) -> None:
    """End what is left of a job by its name, also where `srun` was a step of another job.

    An interrupted run starts nothing more by itself, and this is its last.
    """
    tools = Tools(processes=Processes(), home=home)
    listed = ask(tools, "squeue", "--noheader", "--steps", f"--name={job}", "--format=%i")
    steps = listed.stdout.split()
    ask(tools, "scancel", "--quiet", f"--name={job}")
    if steps:
        ask(tools, "scancel", "--quiet", *steps)


def ask(tools: Tools, *command: str, timeout_s: float = 20) -> Completed:
    """What a program of this host says, to an ordinary user; its failure is returned."""
    return tools.processes.capture(
        command,
        env=tools.environment,
        user=tools.ordinary_user,
        cwd=Path("/"),
        timeout_s=timeout_s,
        check=False,
    )


# Options and variables that name other hosts, or a file of them: mpirun(1), mpiexec(1).
_OPTION = re.compile(r"--?(?:\w+[-_]?)*(?:host|machine)\w*(?:=.*)?|-H|-f")
_VARIABLE = re.compile(
    r"\w*_MCA_\w*hostfile|HYDRA_HOST_FILE|I_MPI_HYDRA_HOST_FILE|PBS_NODEFILE|LSB_DJOB_HOSTFILE"
    r"|LSB_HOSTS|PE_HOSTFILE|OAR_NODEFILE|COBALT_NODEFILE"
)
_SLURM = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
# What srun says when it is given no nodes at all: https://slurm.schedmd.com/srun.html
_REFUSED = re.compile(
    r"srun: error: (?:Unable to (?:allocate resources|create step)|[^:]*: Requested)"
)


def nodes_of(environment: Mapping[str, str], options: Sequence[str]) -> int:
    """The nodes that mpirun has; 0 if options, or a batch system other than Slurm, say which."""
    named = any(_OPTION.fullmatch(word) for word in options)
    if named or any(_VARIABLE.fullmatch(name) for name in environment):
        return 0
    allocated = next((environment[name] for name in _SLURM if name in environment), "1")
    return int(allocated) if allocated.isdecimal() else 0


def was_refused(complaints: str) -> bool:
    """Return whether srun was given no nodes: then no rank was started."""
    return _REFUSED.search(complaints) is not None
