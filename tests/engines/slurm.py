"""A real Slurm for a test: two nodes on this machine, started and ended by process number.

Debian's slurmctld, two slurmd and munged, all on loopback. What makes two nodes of one machine:

* each slurmd has a host name of its own, and a /dev/shm of its own, or Open MPI's shared memory
  would reach from "node" to "node";
* `%n` is in TmpFS and SlurmdSpoolDir, or the second node's PMIx does not start;
* they lie below /tmp, which containers see: Open MPI keeps its session there;
* proctrack/linuxproc and task/none need no cgroups.

https://slurm.schedmd.com/slurm.conf.html, https://slurm.schedmd.com/mpi_guide.html#open_mpi
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness import passed, run_program
from launching import YIELD

PROGRAMS = (
    *("munged", "slurmctld", "slurmd", "unshare"),
    *("srun", "sinfo", "squeue", "scancel", "scontrol"),
)
NODES = ("n1", "n2")
_READY_S = 60.0
_GRACE_S = 10.0

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN\n"
)
_PARTITION = "PartitionName=test Nodes={nodes} Default=YES MaxTime=30 State=UP\n"
_ON_A_NODE = 'hostname "$1" && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N "$1" -f "$2"'


def why_not() -> str:
    """Why this machine cannot have one; empty if it can."""
    if absent := [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]:
        return f"missing on this machine: {', '.join(absent)} (make setup-test)"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started by root"


@contextlib.contextmanager
def two_nodes() -> Iterator[dict[str, str]]:
    """A Slurm of two nodes, as the environment in which its commands find it."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        configuration = _configure(folder)
        environment = {"SLURM_CONF": str(configuration), **YIELD}
        with contextlib.ExitStack() as daemons:
            _start(daemons, folder, _munged(folder), "munged")
            _wait_for(folder, (folder / "munge.socket").exists, "munged")
            _start(daemons, folder, ["slurmctld", "-D", "-f", configuration], "slurmctld")
            for node in NODES:
                words = ["sh", "-c", _ON_A_NODE, "sh", node, str(configuration)]
                _start(daemons, folder, ["unshare", "--mount", "--uts", *words], node)
            daemons.callback(_end_jobs, environment)
            _wait_for(folder, lambda: _idle(environment) == len(NODES), "its nodes")
            yield environment


def jobs(environment: dict[str, str]) -> list[str]:
    """The queue and the steps that run; a job that is completing has a minute for it."""
    deadline = time.monotonic() + 60
    while True:
        asked = (["squeue", "--noheader"], ["squeue", "--noheader", "--steps"])
        lines = [line for words in asked for line in _ask(words, environment).splitlines()]
        if time.monotonic() > deadline or not any(" CG " in line for line in lines):
            return lines
        time.sleep(0.5)


def users(environment: dict[str, str]) -> set[str]:
    """Whose jobs it knows, those that ended a moment ago included."""
    told = _ask(["scontrol", "show", "jobs", "--oneliner"], environment)
    return set(re.findall(r"\bUserId=([^\s(]+)", told))


def submit(script: Path, *words: str, user: str, env: dict[str, str]) -> tuple[int, str]:
    """Submit a script as an ordinary user, and wait: its exit code, and what it printed."""
    folder = script.parent.parent
    options = (
        *("--parsable", "--ntasks-per-node=2", "--time=5"),
        *(f"--output={folder}/printed", f"--chdir={folder}"),
    )
    as_user = [] if os.geteuid() else ["runuser", "-u", user, "--"]
    submitted = passed(run_program(*as_user, "sbatch", *options, script, *words, env=env))
    code = exit_code(submitted.stdout.strip(), env, timeout_s=300)
    return code, (folder / "printed").read_text()


def exit_code(job: str, environment: dict[str, str], timeout_s: float) -> int:
    """Wait for a batch job; the exit code of its script.

    `sbatch --wait` asks after 2, 10 and 42 seconds, and then every 32: jobs here take some.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        told = _ask(["scontrol", "show", "job", job, "--oneliner"], environment)
        if re.search(r"\bJobState=(PENDING|CONFIGURING|RUNNING|COMPLETING)\b", told) is None:
            found = re.search(r"\bExitCode=(\d+):(\d+)", told)
            assert found, f"Slurm does not know of job {job}: {told}"
            return int(found[1]) or int(found[2])
        time.sleep(0.3)
    raise AssertionError(f"Slurm: job {job} did not end in {timeout_s} s")


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _configure(folder: Path) -> Path:
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    for node in NODES:
        (folder / f"tmp-{node}").mkdir()
        (folder / f"tmp-{node}").chmod(0o1777)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    control, *ports = _free_ports(1 + len(NODES))
    text = _CONFIGURATION.format(folder=folder, control=control)
    for name, port in zip(NODES, ports, strict=True):
        text += _NODE.format(name=name, port=port)
    configuration = folder / "slurm.conf"
    configuration.write_text(text + _PARTITION.format(nodes=",".join(NODES)))
    return configuration


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _munged(folder: Path) -> list[str | Path]:
    """`--force`: the key lies below /tmp, which others may write to."""
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
    files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    return ["munged", "--foreground", "--force", *(f"--{k}={folder / v}" for k, v in files.items())]


def _start(
    daemons: contextlib.ExitStack, folder: Path, words: Sequence[str | Path], name: str
) -> None:
    with (folder / f"{name}.out").open("wb") as sink:
        child = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, "PATH": _path()},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    daemons.callback(_end, child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _end_jobs(environment: dict[str, str]) -> None:
    _ask(["scancel", "--quiet", "--user=root"], environment)
    for line in _ask(["squeue", "--noheader", "--format=%i"], environment).split():
        _ask(["scancel", "--quiet", line], environment)
    deadline = time.monotonic() + _GRACE_S
    while jobs(environment) and time.monotonic() < deadline:
        time.sleep(0.2)


def _idle(environment: dict[str, str]) -> int:
    words = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%n"]
    return len(_ask(words, environment).split())


def _ask(words: Sequence[str], environment: dict[str, str]) -> str:
    return run_program(*words, env={**environment, "PATH": _path()}, timeout_s=60).stdout


def _wait_for(folder: Path, ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not ready():
        if time.monotonic() > deadline:
            said = [f"{path.name}: {path.read_text()[-2000:]}" for path in folder.glob("*.out")]
            raise AssertionError(f"Slurm: {what} did not start\n" + "\n".join(said))
        time.sleep(0.1)
