"""Workers that Slurm starts: the batch script of a pool, and the jobs of one run."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.model import SitePool, SlurmJobs, TlsFiles
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.system.process import Processes
from builder.verify.cluster.orders import POOL

_SUBMIT_S = 60.0
_LONELY_S = 60  # a worker without its scheduler ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduler:
    """A scheduler as workers see it: its address, and the files for TLS, in `folder`."""

    address: str
    tls: TlsFiles | None = None
    folder: Path = Path()


def script_of(name: str, pool: SitePool, scheduler: Scheduler) -> str:
    """Return the batch script that adds a pool's workers, one a job of an array."""
    slurm = pool.slurm or SlurmJobs()
    logs = f"{scheduler.folder.parent}/" if scheduler.folder.is_absolute() else ""
    options = [
        f"--job-name=build-images-{name}",
        f"--array=1-{slurm.workers}",
        f"--output={logs}%x-%A-%a.log",
        *slurm.options,
    ]
    words = [
        *(sys.executable, "-m", "distributed.cli.dask_worker", scheduler.address),
        # One worker is one task at a time. The memory of a task is that of its own processes.
        *("--nworkers", "1", "--nthreads", "1", "--no-nanny", "--memory-limit", "0"),
        *("--death-timeout", str(_LONELY_S), "--no-dashboard"),
    ]
    if tls := scheduler.tls:
        words += ["--tls-ca-file", tls.ca, "--tls-cert", tls.certificate, "--tls-key", tls.key]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        *slurm.setup,
        f"export {POOL}={shlex.quote(name)}",
        f'exec {shlex.join(words)} --local-directory "${{TMPDIR:-/tmp}}"',
    ]
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def slurm_workers(
    scheduler: Scheduler,
    pools: Mapping[str, SitePool],
    processes: Processes,
    say: Callable[[str], object],
) -> Iterator[None]:
    """Submit the jobs of pools, and cancel them at the end.

    Raises `MissingPrerequisite` if Slurm refuses a job.
    """
    jobs: dict[str, str] = {}
    try:
        with TemporaryDirectory(prefix="build-images-jobs-") as folder:
            for name, pool in pools.items():
                script = Path(folder) / f"{name}.sh"
                script.write_text(script_of(name, pool, scheduler))
                jobs[name] = _submit(name, script, processes)
                number = pool.slurm.workers if pool.slurm else 1
                say(f"Slurm job {jobs[name]}: {number} x {name}")
        yield
    finally:
        if jobs:
            with contextlib.suppress(StepFailed):
                # Not `processes`: after an interruption that starts nothing more.
                Processes().capture(["scancel", *jobs.values()], timeout_s=_SUBMIT_S)


def _submit(name: str, script: Path, processes: Processes) -> str:
    try:
        done = processes.capture(["sbatch", "--parsable", str(script)], timeout_s=_SUBMIT_S)
    except StepFailed as error:
        reason = "".join(error.tail[-1:]) or error.message
        raise MissingPrerequisite(
            f"Slurm refuses the job of pool {name}: {reason}",
            hint=f"'build-images workers script --pool {name}' prints it; "
            "its options are those of pools: in site.yaml",
        ) from error
    return done.stdout.strip().partition(";")[0]
