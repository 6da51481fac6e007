"""The rules for the machine and for starting ranks, and the verdict by all rules.

Ranks start in one container, in many, or with the host's MPI in each.
"""

from __future__ import annotations

from dataclasses import replace

from builder import facts
from builder.facts import NO_FACTS, Facts
from builder.facts.mpi import PMIX_MEETS_ALL
from builder.facts.software import APART
from builder.host import gpus
from builder.host.records import Host, HostMpi
from builder.host.runtimes import started_by
from builder.host.verdict import (
    BIND,
    HYBRID,
    IN_CONTAINER,
    LAUNCHERS,
    NO,
    HostVerdict,
    RuleAnswer,
    RuleCase,
    all_of,
    any_of,
    named,
    title_of,
)
from builder.model.architectures import ARCHITECTURES, EMULATED, cpu_features, level_of
from builder.model.cells import GENERIC
from builder.model.contract import HostContract, NeededMpi
from builder.model.versions import version_order

_SHOWN = 8
# On these hosts QEMU's user mode never had correct 64-bit atomic instructions, and from 10.0 on it
# is not built for them: https://www.qemu.org/docs/master/about/removed-features.html
_NARROW = ("armv6l", "armv7l", "armv8l", "i386", "i486", "i586", "i686", "ppc", "riscv32", "mips")
_KERNEL_PARTS = 3  # 4.14.0 of 4.14.0-115.35.1.el7a: the rest is the distribution's


def judge(
    contract: HostContract,
    host: Host,
    known: Facts = NO_FACTS,
    *,
    runtimes: tuple[str, ...] = (),
    launchers: tuple[str, ...] = (),
    emulated: bool = False,
) -> HostVerdict:
    """Return the verdict on an image and a host. It is never yes if a required fact is unknown.

    Without `runtimes`, any of the host's may start the image; without `launchers`, any way of
    starting ranks is enough. `emulated` allows programs of another architecture under QEMU.
    """
    case = RuleCase(contract=contract, host=host, facts=known, emulated=emulated)
    answers = {
        "architecture": _architecture(case),
        "processor": _processor(case),
        "kernel": _kernel(case),
        "driver": gpus.driver(case),
        "GPUs": gpus.devices(case),
        "compute capability": gpus.capabilities(case),
    }
    started = started_by(case, runtimes)
    return HostVerdict(
        image=contract.image,
        host=host.name,
        rules=tuple(named(rule, answer) for rule, answer in answers.items() if answer),
        runtimes=started,
        launchers=launched_by(case, launchers, started),
        emulated=emulated and case.is_foreign,
    )


def _architecture(case: RuleCase) -> RuleAnswer:
    """Answer whether the image's programs start natively or, if requested, emulated."""
    host, needed = case.host, case.contract.architecture
    if host.architecture is None:
        return case.unknown("architecture-unknown")
    if not case.is_foreign:
        return case.yes("architecture-native")
    if case.emulated:
        return _emulation(case)
    if host.architecture in ARCHITECTURES:
        twin = case.contract.image.removesuffix(needed) + host.architecture
        answer = case.no("architecture-foreign", twin=twin)
    else:
        answer = case.no("architecture-without-images")
    if needed in (host.emulators or ()) and host.architecture not in _NARROW:
        return case.no("emulation-not-asked-for", fix=answer.fix)
    return answer


def _emulation(case: RuleCase) -> RuleAnswer:
    host = case.host
    if host.architecture in _NARROW:
        return case.no("emulation-narrow")
    if host.emulators is None:
        return case.unknown("emulation-unknown")
    if case.contract.architecture not in host.emulators:
        return case.no("emulation-none")
    return case.yes("emulation")


def _processor(case: RuleCase) -> RuleAnswer | None:
    """Answer whether the processor has all features that the compiled code uses."""
    needed = case.contract.cpu
    if case.is_foreign and not case.emulated:
        return None
    names = [name for name in (needed.target, needed.baseline) if name not in ("", GENERIC)]
    features = needed.features or tuple(feature for name in names for feature in cpu_features(name))
    if not names and not features:
        return case.yes("processor-any")
    title = " and ".join(names) or " ".join(features)
    if not features:
        return case.unknown("processor-in-no-table", title=title)
    if not case.is_foreign:
        return _native_processor(case, title, features)
    if {*features} <= EMULATED.get(case.contract.architecture, set()):
        return case.yes("processor-emulated", title=title)
    return case.unknown("processor-emulation-unknown", title=title)


def _native_processor(case: RuleCase, title: str, features: tuple[str, ...]) -> RuleAnswer:
    cpu, baseline = case.host.cpu, case.contract.cpu.baseline
    if cpu.features is None:
        return case.unknown("processor-unknown", title=title)
    name = cpu.model or "the host's processor"
    missing = [feature for feature in features if feature not in cpu.features]
    if not missing:
        return case.yes("processor-fits", name=name, title=title)
    lacking = " ".join(missing[:_SHOWN])
    if len(missing) > _SHOWN:
        lacking += f" and {len(missing) - _SHOWN} more"
    if not {*cpu_features(baseline)} <= {*cpu.features}:
        return case.no("processor-lacks-baseline", title=title, name=name, lacking=lacking)
    level = level_of(case.contract.architecture, cpu.features)
    row = "processor-lacks" if level in ("", baseline) else "processor-lacks-with-level"
    return case.no(row, title=title, name=name, lacking=lacking, level=level)


def _kernel(case: RuleCase) -> RuleAnswer:
    """Answer for the kernel: the C library refuses to start on one older than it needs."""
    least, running = case.contract.kernel, case.host.kernel
    if not least:
        return case.unknown("kernel-not-said")
    if running is None:
        return case.unknown("kernel-unknown")
    glibc = f"glibc {case.contract.glibc}" if case.contract.glibc else "its C library"
    if version_order(running)[:_KERNEL_PARTS] >= version_order(least):
        return case.yes("kernel-fits", glibc=glibc)
    return case.no("kernel-too-old", glibc=glibc)


_ALONE = "start it with the image's own launcher in one container (in-container)"


def launched_by(
    case: RuleCase, names: tuple[str, ...], runtimes: tuple[RuleAnswer, ...]
) -> tuple[RuleAnswer, ...]:
    """Return the answer for each named way, or without names, for all ways.

    `runtimes` are the answers for those that may start the image.
    """
    mpi = case.contract.mpi
    if mpi is None:
        if not names or names == (IN_CONTAINER,):
            return (named(IN_CONTAINER, case.yes("no-mpi")),)
        return tuple(named(name, case.no("no-mpi-to-launch")) for name in names)
    ways = {IN_CONTAINER: _in_container, HYBRID: _hybrid, BIND: _bind}
    answers = {name: ways[name](case, mpi) for name in names or LAUNCHERS}
    return tuple(
        named(name, answer if name == IN_CONTAINER else _reached(case, answer, runtimes))
        for name, answer in answers.items()
    )


def _reached(case: RuleCase, answer: RuleAnswer, runtimes: tuple[RuleAnswer, ...]) -> RuleAnswer:
    """Return the answer, or a worse one if the host's launcher cannot reach ranks in containers."""
    apart = [each for each in runtimes if each.rule in APART]
    others = [each for each in runtimes if each.rule not in APART]
    reach = any_of(others)
    if reach == any_of(runtimes) or all_of((reach, answer.answer)) == answer.answer:
        return answer
    names = ", ".join(each.rule for each in apart if each.answer != NO)
    if reach == NO:
        return case.no("ranks-apart", names=names)
    other = ", ".join(each.rule for each in others if each.answer == reach)
    return case.unknown("ranks-perhaps-apart", names=names, other=other)


def _in_container(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    if mpi.route == "host":
        return case.no("inside-none")
    return case.yes("inside", launch=facts.MPI_FAMILIES[mpi.family].launch.format(ranks=4))


def _hybrid(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    """Answer whether one of the host's launchers can start the ranks."""
    if mpi.route == "host":
        return case.no("hybrid-none")
    answers = [*_by_mpirun(case, mpi), _by_srun(case, mpi)]
    answer = any_of(answers)
    deciding = [part for part in answers if part.answer == answer]
    reason = "; ".join(part.reason for part in deciding)
    if case.is_foreign and case.emulated and mpi.family == "openmpi":
        # PMIx's shared memory does not work across architectures: ranks would wait for ever
        reason += "; emulated ranks need PMIX_MCA_gds=hash in their environment"
    fixes = [*dict.fromkeys(part.fix for part in deciding if part.fix)]
    fixes += [_ALONE] if answer == NO else []
    return replace(deciding[0], reason=reason, fix="; or ".join(fixes))


def _by_mpirun(case: RuleCase, mpi: NeededMpi) -> list[RuleAnswer]:
    if case.host.mpi is None:
        return [case.unknown("host-mpi-unknown")]
    if not case.host.mpi:
        return [case.no("host-mpi-none")]
    return [_mpirun(case, mpi, installed) for installed in case.host.mpi]


def _mpirun(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    outside = title_of(host)
    launcher = host.launcher or "its launcher"
    if mpi.family != host.family:
        return _by_other_family(case, mpi, host)
    if not host.version:
        return case.unknown("host-version-unknown", launcher=launcher, outside=outside)
    if mpi.family != "openmpi":
        return case.yes("both-speak-pmi", launcher=launcher, outside=outside)
    return _open_mpi(case, mpi, host)


def _by_other_family(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    outside = title_of(host)
    family = facts.MPI_FAMILIES[host.family]
    if family.slurm:
        row = "starts-own-alone-bind" if mpi.abi == "mpich" else "starts-own-alone"
        return case.no(row, way=family.slurm, outside=outside)
    if mpi.abi == family.abi == "mpich":
        return case.unknown("pmi-not-guaranteed", outside=outside)
    if family.made_from == mpi.family:
        return _open_mpi(case, mpi, host)
    return case.no("family-differs", outside=outside)


def _open_mpi(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    """Answer for Open MPI, or an MPI derived from it, which starts ranks of Open MPI by PMIx.

    Open MPI's versions are not guaranteed to work together; those of PMIx are, from 2.1.1 on:
    https://github.com/open-mpi/ompi/wiki/Container-Versioning
    """
    outside = title_of(host)
    is_derived = host.family != mpi.family
    if not is_derived and version_order(mpi.version)[:2] == version_order(host.version)[:2]:
        return case.yes("one-series", outside=outside)
    own, other = _pmix(case, mpi), _pmix(case, host)
    series = ".".join(mpi.version.split(".")[:2])
    if "" in (own, other):
        pmix = {"own": own or "none", "other": other or "none"}
        return case.no("pmix-on-one-side", series=series, **pmix, outside=outside)
    if own is None or other is None:
        return case.unknown("pmix-unknown", series=series, outside=outside)
    meet = min(version_order(own), version_order(other)) >= version_order(PMIX_MEETS_ALL)
    end = "meant to work together" if meet else "perhaps incompatible"
    parts = {"own": own, "other": other, "end": end}
    return case.unknown("pmix-not-guaranteed", series=series, **parts, outside=outside)


def _pmix(case: RuleCase, mpi: NeededMpi | HostMpi) -> str | None:
    """Return the PMIx version of an MPI: the known one, else that of its series.

    It is empty if the MPI has no PMIx, None if the series is not known.
    """
    series = case.facts.mpi_series(mpi.family, mpi.version)
    return mpi.pmix or (series.pmix if series else None)


def _by_srun(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    kinds = case.host.slurm.pmi
    if kinds is None:
        return case.unknown("slurm-unknown")
    if not kinds:
        return case.no("slurm-none")
    if mpi.family == "openmpi":
        return _open_mpi_by_srun(case, mpi, kinds)
    if any(kind.startswith("pmi") for kind in kinds):
        return case.unknown("slurm-pmi-unknown")
    return case.no("slurm-without-pmi2", kinds=", ".join(kinds))


def _open_mpi_by_srun(case: RuleCase, mpi: NeededMpi, kinds: tuple[str, ...]) -> RuleAnswer:
    """Answer for Slurm, which has a plug-in for each PMIx version: pmix_v4."""
    own = _pmix(case, mpi)
    served = [kind for kind in kinds if kind.startswith("pmix")]
    if not served:
        return case.no("slurm-without-pmix", kinds=", ".join(kinds))
    if own == "":
        return case.no("image-without-pmix", kinds=", ".join(kinds))
    newest = max((version_order(kind)[0] for kind in served if version_order(kind)), default=0)
    first = version_order(PMIX_MEETS_ALL)
    if own and version_order(own) >= first and newest > first[0]:
        return case.yes("slurm-pmix", newest=newest, own=own)
    return case.unknown(
        "slurm-pmix-unknown",
        own=own or "of unknown version",
        served=", ".join(served),
        meets_all=PMIX_MEETS_ALL,
    )


def _bind(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    """Answer for binding: the host's library needs the name, ABI and C library of the image's."""
    installed, title = case.host.mpi, facts.MPI_FAMILIES[mpi.family].title
    if case.is_foreign:
        return case.no("bind-foreign")
    if installed is None:
        return case.unknown("host-mpi-unknown")
    if not mpi.library or not mpi.abi:
        return case.unknown("bind-library-not-said")
    alike = [host for host in installed if facts.MPI_FAMILIES[host.family].abi == mpi.abi]
    if not alike:
        titles = ", ".join(map(title_of, installed)) or "none"
        return case.no("bind-none-alike", title=title, installed=titles)
    answers = [_bound(case, mpi, host) for host in alike]
    return next(answer for answer in answers if answer.answer == any_of(answers))


def _bound(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    outside = title_of(host)
    if host.libraries is None:
        return case.unknown("bind-libraries-unknown", outside=outside)
    if mpi.library not in host.libraries:
        is_cray = host.family == "craympich"
        row = "bind-other-name-of-cray" if is_cray else "bind-other-name"
        return case.no(row, outside=outside, libraries=", ".join(host.libraries) or "none")
    title, is_same = facts.MPI_FAMILIES[mpi.family].title, host.family == mpi.family
    if is_same and version_order(host.version) < version_order(mpi.version):
        row = "bind-older" if host.version else "bind-version-unknown"
        return case.unknown(row, outside=outside, title=title)
    note = "" if is_same else "; programs have the functions of this MPI only"
    return _on_glibc(case, host, note)


def _on_glibc(case: RuleCase, host: HostMpi, note: str) -> RuleAnswer:
    """Answer for the C library: bound host libraries run on the image's."""
    outside = title_of(host)
    glibc, needed = case.contract.glibc, host.glibc or case.host.glibc
    if not glibc:
        return case.unknown("glibc-of-image-unknown")
    if not needed:
        return case.unknown("glibc-of-mpi-unknown")
    if version_order(needed) <= version_order(glibc):
        brought = ", ".join(facts.MPI_FAMILIES[host.family].brings)
        also = f"; also bind {brought}" if brought else ""
        return case.yes("bind-fits", outside=outside, also=f"{also}{note}")
    if not host.glibc:
        return case.unknown("bind-glibc-unknown", outside=outside, needed=needed)
    return case.no("bind-glibc-too-old", outside=outside, needed=needed)
