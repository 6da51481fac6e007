"""The ranks of an image's `mpi` check, each in a container of its own that a launcher started."""

from __future__ import annotations

import contextlib
import platform
import shlex
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from builder.build.engines import Tools
from builder.model import FAILED, SKIPPED, Outcome
from builder.model.errors import StepFailed
from builder.system.process import Completed
from builder.verify.container_output import LONGEST, readable
from builder.verify.evidence import Machine, StartedBy
from builder.verify.ranks import launchers, library
from builder.verify.ranks.launchers import SRUN, ImageMpi, Launcher, Start, Unfit
from builder.verify.ranks.library import HostMpi
from builder.verify.ranks.outcomes import GRACE_S, judged
from builder.verify.runners import Around, Container, Kind

PROGRAM = "/opt/build-images/bin/mpi"
_SLACK_S = 15.0
_KILL_AFTER_S = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """An artifact with the MPI in it, what runs it, and how its ranks are to be started.

    `has_program` says whether the image has what the ranks run, the check `mpi`. `bind` is the
    folder of the host's MPI, or `auto`; empty for the image's own library.
    """

    arch: str
    kind: Kind
    artifact: Path
    mpi: ImageMpi | None
    has_program: bool
    start: Start
    bind: str = ""

    @property
    def check(self) -> str:
        """What the outcome is called."""
        return f"mpi-{'bind' if self.bind else 'hybrid'}-{self.start.launcher}"


def verify_ranks(ranks: Ranks, *, work: Path, tools: Tools) -> tuple[Outcome, StartedBy]:
    """Start the ranks and judge what they say; skipped where this host cannot.

    Also what started them, or was asked to.
    """
    start = ranks.start
    asked = StartedBy(name=start.launcher, ranks=start.ranks, nodes=start.nodes)
    if unfit := _unfit(ranks):
        return _skipped(ranks, unfit), asked
    assert ranks.mpi is not None
    job = f"build-images-{uuid.uuid4().hex[:8]}"
    launcher = launchers.find(start, ranks.mpi, tools, job=job)
    if isinstance(launcher, Unfit):
        return _skipped(ranks, launcher), asked
    with _library(ranks, ranks.mpi, launcher, work, tools) as shown:
        if isinstance(shown, Unfit):
            return _skipped(ranks, shown), _started_by(launcher, start, launcher.command)
        try:
            done = _run(ranks, ranks.mpi, launcher, shown, job=job, work=work, tools=tools)
        except StepFailed as error:
            return _not_unpacked(ranks, error), _started_by(launcher, start, launcher.command)
    words = done.argv[done.argv.index(launcher.command[0]) :]
    tuning = launchers.tuning(launchers.environment(tools))
    outcome = judged(ranks.check, start, launcher, shown, done, tuning=tuning)
    by_host = outcome.data.get("ranks_by_host")
    hosts = {*by_host} if isinstance(by_host, dict) else set()
    there = machines(launcher, tools, job=job) if hosts else ()
    if {one.name for one in there} != hosts:
        there = ()  # others than those that the ranks were on
    return outcome, replace(_started_by(launcher, start, words), machines=there)


def _unfit(ranks: Ranks) -> Unfit | None:
    if ranks.mpi is None:
        return Unfit(reason="the image has no MPI")
    if not ranks.has_program:
        return Unfit(reason="the image has no check mpi, whose program the ranks would run")
    if ranks.mpi.family.host_only and not ranks.bind:
        return Unfit(reason=f"the image has no MPI of its own: bind the host's {ranks.mpi.title}")
    if ranks.bind and ranks.arch != platform.machine():
        return Unfit(reason=f"the image is for {ranks.arch}, the host's MPI {platform.machine()}'s")
    return None


@contextlib.contextmanager
def _library(
    ranks: Ranks, mpi: ImageMpi, launcher: Launcher, work: Path, tools: Tools
) -> Iterator[HostMpi | Unfit | None]:
    if not ranks.bind:
        yield None
        return
    with library.shown(ranks.bind, mpi, launcher, work=work, tools=tools) as found:
        yield found


def _run(
    ranks: Ranks,
    mpi: ImageMpi,
    launcher: Launcher,
    shown: HostMpi | None,
    *,
    job: str,
    work: Path,
    tools: Tools,
) -> Completed:
    """Each rank ends itself in time, and says what it waits for; if it cannot, `timeout` does.

    The launcher may take as long once more, since it may have to wait for nodes.
    """
    seconds = ranks.start.timeout_s
    without = ("env", *(f"--unset={name}" for name in launchers.TOKENS))
    limit = ("timeout", f"--kill-after={_KILL_AFTER_S}", str(seconds + GRACE_S))
    around = Around(
        command=(*launcher.command, *without, *limit),
        environment=launchers.environment(tools),
        mounts=shown.mounts if shown else (),
    )
    own = (PROGRAM, "-t", str(seconds), str(ranks.start.ranks))
    program = shown.program(*own, "single") if shown else (*own, "multiple", mpi.library)
    assert ranks.kind.launched is not None
    container = Container(artifact=ranks.artifact, work=work, tools=tools)
    ended = False
    try:
        with ranks.kind.launched(container, around) as runner:
            done = runner.run(program, timeout_s=2 * seconds + _SLACK_S)
        ended = not done.timed_out and done.returncode == 0
    finally:
        if launcher.name == SRUN and not ended:
            launchers.cancel(job, tools.home)
    return done


def _started_by(launcher: Launcher, start: Start, words: tuple[str, ...]) -> StartedBy:
    return StartedBy(
        name=launcher.name,
        product=launcher.product,
        version=launcher.version,
        command=shlex.join(words),
        ranks=start.ranks,
        nodes=start.nodes,
    )


def _skipped(ranks: Ranks, unfit: Unfit) -> Outcome:
    return Outcome(check=ranks.check, outcome=SKIPPED, reason=readable(unfit.reason[:LONGEST]))


def _not_unpacked(ranks: Ranks, error: StepFailed) -> Outcome:
    said = error.tail[-1] if error.tail else error.message
    reason = readable(f"the container could not be unpacked: {said}"[:LONGEST])
    return Outcome(check=ranks.check, outcome=FAILED, reason=reason)


_SAYS = "build-images-machine"
_SECONDS = 60.0
_FIELDS = 8
# One line a rank: fields with tabs between them, the models of GPUs with semicolons.
# https://docs.kernel.org/filesystems/proc.html, and NVIDIA's own files beside it
_ASK = rf"""
exec 2>/dev/null
of() {{ sed -n "s/^\($1\)[[:blank:]]*$2[[:blank:]]*//p" "$3" | tr -d '\t"' | head -n 1; }}
nvidia=/proc/driver/nvidia
driver=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9][0-9.]*\).*/\1/p' $nvidia/version)
[ -n "$driver" ] || [ ! -f $nvidia/version ] || driver=loaded
gpus=$(cat $nvidia/gpus/*/information | sed -n 's/^Model:[[:blank:]]*//p' | tr '\n' ';')
printf '{_SAYS}\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(uname -n)" "$(uname -m)" "$(uname -r)" \
    "$(of 'model name\|cpu' : /proc/cpuinfo)" "$(getconf _NPROCESSORS_ONLN)" \
    "$(of PRETTY_NAME = /etc/os-release)" "$driver" "$gpus"
"""


def machines(launcher: Launcher, tools: Tools, *, job: str) -> tuple[Machine, ...]:
    """The machines that a launcher starts ranks on, by name; none if they do not say.

    They are asked by the launcher itself, with the options that the ranks are started with; `job`
    names what Slurm starts.
    """
    without = [f"--unset={name}" for name in launchers.TOKENS]
    done = tools.processes.capture(
        [*launcher.command, "env", *without, "sh", "-c", _ASK],
        env=launchers.environment(tools),
        user=tools.ordinary_user,
        cwd=Path("/"),
        timeout_s=_SECONDS,
        check=False,
    )
    if done.timed_out and launcher.name == SRUN:
        launchers.cancel(job, tools.home)
    return said(done.stdout) if done.returncode == 0 and not done.timed_out else ()


def said(text: str) -> tuple[Machine, ...]:
    """What machines say of themselves, each once; whatever else stands between is passed over."""
    found: dict[str, Machine] = {}
    for line in text.splitlines():
        mark, *fields = line.split("\t")
        if mark != _SAYS or len(fields) != _FIELDS:
            continue
        name, arch, kernel, cpu, cores, system, driver, gpus = fields
        found[name] = Machine(
            name=name,
            arch=arch,
            kernel=kernel,
            cpu=cpu or "unknown",
            cores=int(cores) if cores.isdecimal() else 1,
            os=system or "unknown",
            driver=driver,
            gpus=tuple(one for one in gpus.split(";") if one),
        )
    return tuple(found[name] for name in sorted(found))
