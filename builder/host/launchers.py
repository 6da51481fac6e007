"""The rules about starting ranks: in one container, in many, with the host's MPI in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from builder import facts
from builder.facts.mpi import PMIX_MEETS_ALL
from builder.host.records import HostMpi
from builder.host.verdict import (
    BIND,
    HYBRID,
    IN_CONTAINER,
    LAUNCHERS,
    NO,
    RuleAnswer,
    RuleCase,
    any_of,
    named,
    no,
    not_known,
    unknown,
    yes,
)
from builder.model.contract import NeededMpi
from builder.model.versions import version_order

_SINGLETONS = 'each rank would be "rank 0 of 1", without an error'
_TRY = "start 2 ranks of the image's check mpi so: it fails unless each finds the other"
_ALONE = "start it with the image's own launcher in one container (in-container)"
_BIND_FIX = "bind the host's MPI in (bind)"


def launched_by(case: RuleCase, names: tuple[str, ...]) -> tuple[RuleAnswer, ...]:
    """Return the answer for each of the ways named, or for all that an image has if none is."""
    mpi = case.contract.mpi
    if mpi is None:
        if not names or names == (IN_CONTAINER,):
            reason = "the image has no MPI: a program is one process"
            return (named(IN_CONTAINER, yes(reason)),)
        answer = no("the image has no MPI", "take an image with one (--mpi)")
        return tuple(named(name, answer) for name in names)
    ways = {IN_CONTAINER: _in_container, HYBRID: _hybrid, BIND: _bind}
    return tuple(named(name, ways[name](case, mpi)) for name in names or LAUNCHERS)


def _in_container(_: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    title = _title(mpi)
    if mpi.route == "host":
        reason = f"the image holds no MPI: {title} is to be bound in from the host"
        return no(reason, _BIND_FIX)
    return yes(f"{title} is in the image, with its launcher: on one node")


def _hybrid(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    """One of the host's launchers has to do."""
    if mpi.route == "host":
        reason = "the image holds no MPI that the host's launcher could start"
        return no(reason, "bind the host's MPI in as well (bind)")
    answers = [*_by_mpirun(case, mpi), _by_srun(case, mpi)]
    answer = any_of(answers)
    deciding = [one for one in answers if one.answer == answer]
    reason = "; ".join(one.reason for one in deciding)
    if case.is_foreign and case.emulated and mpi.family == "openmpi":
        # PMIx's shared memory does not cross architectures: ranks would wait for ever
        reason += "; emulated ranks need PMIX_MCA_gds=hash in their environment"
    fixes = [*dict.fromkeys(one.fix for one in deciding if one.fix)]
    fixes += [_ALONE] if answer == NO else []
    return replace(deciding[0], reason=reason, fix="; or ".join(fixes))


def _by_mpirun(case: RuleCase, mpi: NeededMpi) -> Iterator[RuleAnswer]:
    if case.host.mpi is None:
        yield not_known("which MPI the host has", "mpirun --version")
    elif not case.host.mpi:
        yield no("the host has no MPI on its PATH", f"load or install {_title(mpi)} on the host")
    else:
        yield from (_mpirun(case, mpi, installed) for installed in case.host.mpi)


def _mpirun(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    inside, outside = _title(mpi), _title(host)
    launcher = host.launcher or "its launcher"
    if mpi.family == host.family:
        if not host.version:
            fact = f"the image has {inside}, and which {outside} the host has"
            return not_known(fact, f"{launcher} --version")
        if mpi.family != "openmpi":
            return yes(f"{launcher} of {outside} starts ranks of {inside}: both speak PMI")
        return _open_mpi(case, mpi, host)
    return _by_other_family(case, mpi, host)


def _by_other_family(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    inside, outside, family = _title(mpi), _title(host), facts.MPI_FAMILIES[host.family]
    if family.slurm:
        reason = f"{outside} starts ranks of its own by {family.slurm}, and none of {inside}"
        return no(reason, _BIND_FIX if mpi.abi == "mpich" else "")
    if mpi.abi == family.abi == "mpich":
        reason = f"{outside} and {inside} both speak PMI; that they work together is not guaranteed"
        return unknown(reason, _TRY)
    if family.made_from == mpi.family:
        return _open_mpi(case, mpi, host)
    reason = f"{outside} on the host does not start ranks of {inside}: {_SINGLETONS}"
    return no(reason, f"load {inside} on the host")


def _open_mpi(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    """Open MPI, or what was made from it, starts ranks of Open MPI by PMIx.

    Open MPI promises nothing between versions; PMIx does between its own from 2.1.1 on:
    https://github.com/open-mpi/ompi/wiki/Container-Versioning
    """
    inside, outside = _title(mpi), _title(host)
    is_derived = host.family != mpi.family
    if not is_derived and version_order(mpi.version)[:2] == version_order(host.version)[:2]:
        return yes(f"mpirun of {outside} starts ranks of {inside}: one series")
    own, other = _pmix(case, mpi), _pmix(case, host)
    fix = f"load Open MPI {'.'.join(mpi.version.split('.')[:2])} on the host"
    if "" in (own, other):
        both = f"PMIx {other or 'none'} outside, {own or 'none'} inside"
        reason = f"mpirun of {outside} does not start ranks of {inside} ({both})"
        return no(f"{reason}: {_SINGLETONS}", fix)
    prospect = "whose PMIx is not known"
    if own and other:
        meet = min(version_order(own), version_order(other)) >= version_order(PMIX_MEETS_ALL)
        end = "made to meet" if meet else "which may not meet"
        prospect = f"PMIx {other} outside and {own} inside, {end}"
    reason = f"whether mpirun of {outside} starts ranks of {inside} ({prospect}) is not guaranteed"
    return unknown(reason, f"{_TRY}; {fix}")


def _pmix(case: RuleCase, mpi: NeededMpi | HostMpi) -> str | None:
    """Return the PMIx of an MPI: the one that is known of it, else its series' own.

    Empty if it has none; None if the series is not known.
    """
    series = case.facts.mpi_series(mpi.family, mpi.version)
    return mpi.pmix or (series.pmix if series else None)


def _by_srun(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    kinds, title = case.host.slurm.pmi, _title(mpi)
    if kinds is None:
        return not_known("whether there is Slurm, and which PMI it speaks,", "srun --mpi=list")
    if not kinds:
        return no("the host has no Slurm", "")
    listed = f"(srun --mpi=list: {', '.join(kinds)})"
    if mpi.family != "openmpi":
        if not any(kind.startswith("pmi") for kind in kinds):
            return no(f"Slurm has no pmi2 {listed}: {_SINGLETONS}", _BIND_FIX)
        reason = f"whether {title} in the image was built for Slurm's PMI is not known"
        return unknown(reason, f"{_TRY} (srun --mpi=pmi2)")
    return _open_mpi_by_srun(case, mpi, kinds, listed)


def _open_mpi_by_srun(
    case: RuleCase, mpi: NeededMpi, kinds: tuple[str, ...], listed: str
) -> RuleAnswer:
    """Slurm serves PMIx by a plug-in for each version: pmix_v4."""
    title, own = _title(mpi), _pmix(case, mpi)
    served = [kind for kind in kinds if kind.startswith("pmix")]
    if not served or own == "":
        lacks = f"{title} has no PMIx" if served else "Slurm has no pmix"
        return no(f"{lacks} {listed}: {_SINGLETONS}", "install Slurm's PMIx plug-in")
    newest = max((version_order(kind)[0] for kind in served if version_order(kind)), default=0)
    first = version_order(PMIX_MEETS_ALL)
    if own and version_order(own) >= first and newest > first[0]:
        return yes(f"srun --mpi=pmix_v{newest} starts ranks of {title} (PMIx {own})")
    return unknown(
        f"{title} has PMIx {own or 'of some version'}, Slurm {', '.join(served)}: versions from "
        f"{PMIX_MEETS_ALL} on meet, and whether these do is not known",
        f"{_TRY} (srun --mpi=pmix)",
    )


def _bind(case: RuleCase, mpi: NeededMpi) -> RuleAnswer:
    """The host's library replaces the image's: one name, one interface, one C library."""
    installed, title = case.host.mpi, facts.MPI_FAMILIES[mpi.family].title
    if case.is_foreign:
        reason = f"the host's MPI is for {case.host.architecture}"
        return no(reason, "a host of the image's architecture")
    if installed is None:
        return not_known("which MPI the host has", "mpirun --version")
    if not mpi.library or not mpi.abi:
        reason = "the image does not say which library its programs are linked to"
        return unknown(reason, "ldd of a program in the image tells")
    alike = [one for one in installed if facts.MPI_FAMILIES[one.family].abi == mpi.abi]
    if not alike:
        has = ", ".join(map(_title, installed)) or "none"
        reason = f"no MPI of the host has the binary interface of {title} (it has: {has})"
        return no(reason, f"load {title} on the host")
    answers = [_bound(case, mpi, one) for one in alike]
    return next(one for one in answers if one.answer == any_of(answers))


def _bound(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    outside = _title(host)
    expected = f"programs of the image look for {mpi.library}, and"
    if host.libraries is None:
        return not_known(
            f"{expected} what {outside} has", "the names of its libraries, libmpi.so.*"
        )
    if mpi.library not in host.libraries:
        fix = f"bind its library under the name {mpi.library}, if its interface is the same"
        if host.family == "craympich":
            fix = f"load cray-mpich-abi: its lib-abi-mpich has {mpi.library}"
        return no(f"{expected} {outside} has {', '.join(host.libraries) or 'none'}", fix)
    if mpi.family == "openmpi" and version_order(host.version) < version_order(mpi.version):
        older = f"{outside} is older than the image's {mpi.version}" if host.version else outside
        reason = f"{older}: functions that the older library lacks are missing"
        return unknown(reason, f"try it, or load Open MPI {mpi.version} or newer")
    return _on_glibc(case, mpi, host)


def _on_glibc(case: RuleCase, mpi: NeededMpi, host: HostMpi) -> RuleAnswer:
    """Host libraries in a container run on the image's C library."""
    outside = _title(host)
    glibc, needed = case.contract.glibc, host.glibc or case.host.glibc
    if not glibc or not needed:
        fact = "the glibc that the host's MPI needs" if glibc else "the image's glibc"
        return not_known(fact, "ldd --version")
    if version_order(needed) <= version_order(glibc):
        also = ", ".join(facts.MPI_FAMILIES[host.family].brings)
        more = f"; bind in with it: {also}" if also else ""
        return yes(f"{mpi.library} of {outside} runs on the image's glibc {glibc}{more}")
    fix = "take an image on a newer base, or use the image's own MPI (hybrid, in-container)"
    if host.glibc:
        error = f'("GLIBC_{needed} not found")'
        return no(f"{outside} needs glibc {needed}, and the image has {glibc} {error}", fix)
    return unknown(f"{outside} may need glibc {needed}, the host's, and the image has {glibc}", fix)


def _title(mpi: NeededMpi | HostMpi) -> str:
    return f"{facts.MPI_FAMILIES[mpi.family].title} {mpi.version}".strip()
