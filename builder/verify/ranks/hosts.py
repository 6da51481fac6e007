"""How many nodes a launcher has, as far as that can be told before it starts ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
