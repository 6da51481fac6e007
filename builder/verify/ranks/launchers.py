"""Launchers of this host: how to find them, which MPI they belong to, how they start ranks.

A launcher starts N containers, each of which is one rank. This is the hybrid model,
https://apptainer.org/docs/user/latest/mpi.html#hybrid-model. A launcher passes information to its
ranks in variables, so the environment has only these and the variables that tune an MPI.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines import Tools
from builder.facts import MPI_FAMILIES, MpiFamily
from builder.facts.mpi import launcher_family
from builder.model.measurement import HostFacts
from builder.model.versions import first_version
from builder.system.home import Home
from builder.system.process import Completed, Processes

MPIRUN, SRUN = LAUNCHERS = ("mpirun", "srun")

# Names of launchers for each binary interface (ABI); the first one on the search path is used.
_NAMES = {
    "openmpi": ("mpirun", "mpirun.openmpi", "mpiexec", "orterun"),
    "mpich": ("mpirun", "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich", "mpiexec"),
}
_HYDRA = "Hydra"  # starts programs of every MPI derived from MPICH
# The caller's variables that are passed to a launcher: the allocation in which it starts ranks,
# settings of MPI and fabric, and Apptainer's folders.
_PASSED_ON = re.compile(
    r"(SLURM|SBATCH|SLURMD|PBS|LSB|OMPI|OPAL|PMIX|PRTE|HYDRA|MPIEXEC|MPICH|MPIR|MPIO|I_MPI|MV2|UCX"
    r"|FI|PSM2?|NCCL|IBV|RDMAV|APPTAINER|SINGULARITY)_\w+"
    r"|LANG|LC_ALL|LD_LIBRARY_PATH|HOME|USER|LOGNAME|XDG_RUNTIME_DIR"
)
# These are not needed, since the SIF is a file and not encrypted.
_SECRET = re.compile(r"(APPTAINER|SINGULARITY)_\w*(PASSWORD|PASSPHRASE|PEM_DATA)")
_TUNING = re.compile(r"(OMPI_MCA|PMIX_MCA|UCX|FI|PSM2?|MPICH|MPIR_CVAR|I_MPI|MV2)_")
# Slurm's commands authenticate with a token. A launcher needs it, its ranks do not:
# https://slurm.schedmd.com/jwt.html
WITHOUT_TOKENS = ("env", "--unset=SLURM_JWT")
# PMIx's store in shared memory works neither across architectures nor across mount namespaces:
# a rank in a container does not see the server's folder, and hangs or prints an error.
_RANKS_STORE = {"PMIX_MCA_gds": "hash"}
# Options and variables that name other hosts or a host file: mpirun(1), mpiexec(1).
_OPTION = re.compile(r"--?(?:\w+[-_]?)*(?:host|machine)\w*(?:=.*)?|-H|-f")
_VARIABLE = re.compile(
    r"\w*_MCA_\w*hostfile|HYDRA_HOST_FILE|I_MPI_HYDRA_HOST_FILE|PBS_NODEFILE|LSB_DJOB_HOSTFILE"
    r"|LSB_HOSTS|PE_HOSTFILE|OAR_NODEFILE|COBALT_NODEFILE"
)
_SLURM = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")


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
        """The library's own name, as the check `mpi` expects it."""
        return self.family.library.format(version=self.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A way to start ranks.

    `nodes` is the number of nodes; 0 leaves it to the launcher. `options` are passed to the
    launcher unchanged. A rank is ended after `timeout_s` seconds, by default those of the image's
    check. `bind` is the folder of the host's MPI, or `auto`; empty for the image's own library.
    """

    launcher: str
    ranks: int
    timeout_s: int
    nodes: int
    options: tuple[str, ...] = ()
    bind: str = ""

    @property
    def check(self) -> str:
        """The name of the outcome."""
        return f"mpi-{'bind' if self.bind else 'hybrid'}-{self.launcher}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """A launcher of this host: `command` is the argv before the command of each rank.

    `name` is the requested name, `product` the launcher's project. `job` names Slurm's job.
    """

    name: str
    product: str
    version: str
    command: tuple[str, ...]
    job: str = ""

    def __str__(self) -> str:
        return f"{self.name} of {self.product} {self.version}".rstrip()


class Unfit(Exception):
    """Raised if this host cannot start ranks in the requested way; its text says why."""


def find(start: Start, mpi: ImageMpi, tools: Tools) -> Launcher:
    """Find the launcher that starts programs of the image's MPI; raises `Unfit`."""
    return _srun(start, mpi, tools) if start.launcher == SRUN else _mpirun(start, mpi, tools)


def environment(tools: Tools) -> dict[str, str]:
    """Return the variables of a launcher: the search path, and some of the caller's."""
    of_the_caller = {
        name: value
        for name, value in os.environ.items()
        if _PASSED_ON.fullmatch(name) and not _SECRET.fullmatch(name)
    }
    return {**_RANKS_STORE, **of_the_caller, **tools.environment, **tools.processes.mark}


def tuning(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a launcher's variables that change how ranks connect and communicate."""
    return {name: value for name, value in variables.items() if _TUNING.match(name)}


def _mpirun(start: Start, mpi: ImageMpi, tools: Tools) -> Launcher:
    allocated = nodes_of(os.environ, start.options)
    if 0 < allocated < start.nodes:
        nodes = "only this node" if allocated == 1 else f"{allocated} nodes"
        raise Unfit(f"{start.nodes} nodes are requested, but mpirun has {nodes}")
    unsuitable = []
    for name in _NAMES[mpi.family.abi]:
        program = tools.which(name)
        if program is None:
            continue
        done = ask(tools, program, "--version")
        output = done.stdout + done.stderr
        family = MPI_FAMILIES.get(launcher_family(output))
        if family is None:
            unsuitable.append(f"{name} belongs to an unknown MPI")
            continue
        product = _HYDRA if family.name == "mpich" else family.title
        version = first_version(output)
        if family.abi == mpi.family.abi:
            command = (program, *_ranks(start, mpi.family), *start.options)
            return Launcher(name=MPIRUN, product=product, version=version, command=command)
        unsuitable.append(f"{name} is {product} {version}".rstrip())
    present = f"this host's {unsuitable[0]}" if unsuitable else "no mpirun on this host"
    raise Unfit(f"{present}, but the image has {mpi.title}")


def nodes_of(environment: Mapping[str, str], options: Sequence[str]) -> int:
    """Return the number of mpirun's nodes; 0 if options or another batch system set it."""
    is_named = any(_OPTION.fullmatch(word) for word in options)
    if is_named or any(_VARIABLE.fullmatch(name) for name in environment):
        return 0
    allocated = next((environment[name] for name in _SLURM if name in environment), "1")
    return int(allocated) if allocated.isdecimal() else 0


def _ranks(start: Start, family: MpiFamily) -> list[str]:
    """Return the options for the requested numbers of ranks and nodes.

    Nodes are filled one after the other; the allocation may have more of them. If equal shares do
    not use all nodes (4 ranks on 3 nodes), ranks are distributed over all nodes of the allocation:
    Hydra does so with the remaining ranks, Open MPI with `--map-by node` (mpiexec(1), mpirun(1)).
    """
    options = family.launch.format(ranks=start.ranks).split()[1:]
    if not start.nodes:
        return options
    on_each = -(-start.ranks // start.nodes)
    fills = -(-start.ranks // on_each) == start.nodes
    if family.abi == "openmpi":
        return ["--map-by", f"ppr:{on_each}:node" if fills else "node", *options]
    return ["-ppn", str(on_each if fills else max(1, start.ranks // start.nodes)), *options]


def _srun(start: Start, mpi: ImageMpi, tools: Tools) -> Launcher:
    program, job = tools.which(SRUN), f"build-images-{uuid.uuid4().hex[:8]}"
    if program is None:
        raise Unfit("no srun on this host")
    if not mpi.pmix:
        reason = f"{mpi.title} has none: its own launcher is mpirun"
        raise Unfit(f"srun starts ranks through PMIx, but {reason}")
    asked = ask(tools, program, "--mpi=list")
    offered = asked.stdout + asked.stderr
    if fatal := re.search("fatal: (.*)", offered):
        raise Unfit(f"Slurm is not configured on this host: {fatal[1]}")
    if "pmix" not in offered.split():
        raise Unfit("this host's srun has no plugin pmix (srun --mpi=list)")
    ping = ask(tools, "scontrol", "ping")
    if " is UP" not in ping.stdout:
        answer = (ping.stdout + ping.stderr).strip().splitlines() or ["scontrol ping"]
        raise Unfit(f"no Slurm controller answers: {answer[0]}")
    return Launcher(
        name=SRUN,
        product="Slurm",
        version=tools.version(program),
        job=job,
        command=(
            program,
            "--mpi=pmix",
            f"--ntasks={start.ranks}",
            *([f"--nodes={start.nodes}"] if start.nodes else []),
            "--kill-on-bad-exit=1",
            f"--time={start.timeout_s // 60 + 2}",  # minutes; ends a job that nothing else ended
            f"--job-name={job}",
            *start.options,
        ),
    )


def cancel(launcher: Launcher, home: Home) -> None:
    """Cancel what remains of Slurm's job by its name, even if it was a step of another job.

    It uses new `Processes`, since those of an interrupted run start nothing more.
    """
    if launcher.job:
        tools, name = Tools(processes=Processes(), home=home), f"--name={launcher.job}"
        listed = ask(tools, "squeue", "--noheader", "--steps", name, "--format=%i")
        ask(tools, "scancel", "--quiet", name)
        if steps := listed.stdout.split():
            ask(tools, "scancel", "--quiet", *steps)


def ask(
    tools: Tools, *command: str, timeout_s: float = 20, env: Mapping[str, str] | None = None
) -> Completed:
    """Run a program of this host as an ordinary user; a failure is returned, not raised."""
    return tools.processes.capture(
        command,
        env=env or tools.environment,
        user=tools.ordinary_user,
        cwd=Path("/"),
        timeout_s=timeout_s,
        check=False,
    )


_MARK = "build-images-machine"
# Prints one line per rank: fields separated by tabs, the models of GPUs by semicolons.
# https://docs.kernel.org/filesystems/proc.html, and NVIDIA's own files beside it
_LOOK = rf"""
exec 2>/dev/null
of() {{ sed -n "s/^\($1\)[[:blank:]]*$2[[:blank:]]*//p" "$3" | tr -d '\t"' | head -n 1; }}
nvidia=/proc/driver/nvidia
driver=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9][0-9.]*\).*/\1/p' $nvidia/version)
[ -n "$driver" ] || [ ! -f $nvidia/version ] || driver=loaded
gpus=$(cat $nvidia/gpus/*/information | sed -n 's/^Model:[[:blank:]]*//p' | tr '\n' ';')
printf '{_MARK}\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(uname -n)" \
    "$(cat /proc/sys/kernel/arch || uname -m)" "$(uname -r)" \
    "$(of 'model name\|cpu' : /proc/cpuinfo)" "$(getconf _NPROCESSORS_ONLN)" \
    "$(of PRETTY_NAME = /etc/os-release)" "$driver" "$gpus"
"""


def machines(launcher: Launcher, tools: Tools) -> dict[str, HostFacts]:
    """Return the machines on which a launcher starts ranks, by name; empty without an answer.

    The launcher itself starts this query, with the options of the ranks.
    """
    look = (*launcher.command, *WITHOUT_TOKENS, "sh", "-c", _LOOK)
    done = ask(tools, *look, timeout_s=60, env=environment(tools))
    if done.timed_out:
        cancel(launcher, tools.home)
    return {} if done.returncode or done.timed_out else machines_in(done.stdout)


def machines_in(output: str) -> dict[str, HostFacts]:
    """Return the machines in the output of `_LOOK`, by name; other lines are ignored."""
    machines = {}
    for line in sorted(output.splitlines()):
        if not re.fullmatch(rf"{_MARK}(\t[^\t]*){{8}}", line):
            continue
        _, name, arch, kernel, cpu, cores, system, driver, gpus = line.split("\t")
        machines[name] = HostFacts(
            arch=arch,
            kernel=kernel,
            cpu=cpu or "unknown",
            cores=int(cores) if cores.isdecimal() else 1,
            os=system or "unknown",
            driver=driver,
            gpus=tuple(filter(None, gpus.split(";"))),
        )
    return machines
