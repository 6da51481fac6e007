"""The machines on which a launcher starts ranks, which need not be the one that it is started on.

Each says what it is outside of any container: in one, a foreign `uname` is QEMU's answer.
"""

from __future__ import annotations

from pathlib import Path

from builder.build.engines import Tools
from builder.verify.evidence import Machine
from builder.verify.ranks import launchers
from builder.verify.ranks.launchers import SRUN, Launcher

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
