"""The rules about starting ranks: in one container, in many, with the host's MPI in each."""

from __future__ import annotations

from collections.abc import Iterator

from builder import facts
from builder.facts.mpi import PMIX_MEETS_ALL
from builder.host.records import HostMpi
from builder.host.verdict import (
    BIND,
    HYBRID,
    IN_CONTAINER,
    LAUNCHERS,
    NO,
    Case,
    Finding,
    any_of,
    no,
    unknown,
    yes,
)
from builder.model.contract import NeededMpi
from builder.model.versions import version_order

_SINGLETONS = 'each rank would be "rank 0 of 1", and no error told'
_TRY = "start 2 ranks of the image's check mpi so: it fails unless each finds the other"
_ALONE = "start it with the image's own launcher in one container (in-container)"


def launched_by(case: Case, names: tuple[str, ...]) -> tuple[Finding, ...]:
    """The answer for each of the ways named; for all that an image has if none is."""
    mpi = case.contract.mpi
    if mpi is None:
        if not names or names == (IN_CONTAINER,):
            return (yes(IN_CONTAINER, "the image has no MPI: a program is one process"),)
        reason = "the image has no MPI"
        return tuple(no(name, reason, "take an image with one (--mpi)") for name in names)
    return tuple(_WAYS[name](case, mpi) for name in names or LAUNCHERS)


def _in_container(_: Case, mpi: NeededMpi) -> Finding:
    title = _title(mpi.family, mpi.version)
    if mpi.route == "host":
        reason = f"the image holds no MPI: {title} is to be bound in from the host"
        return no(IN_CONTAINER, reason, "bind the host's MPI in (bind)")
    return yes(IN_CONTAINER, f"{title} is in the image, with its launcher: on one node")


def _hybrid(case: Case, mpi: NeededMpi) -> Finding:
    """One of the host's launchers has to do."""
    if mpi.route == "host":
        reason = "the image holds no MPI that the host's launcher could start"
        return no(HYBRID, reason, "bind the host's MPI in as well (bind)")
    found = [*_by_mpirun(case, mpi), _by_srun(case, mpi)]
    answer = any_of(one.answer for one in found)
    telling = [one for one in found if one.answer == answer]
    reason = "; ".join(one.reason for one in telling)
    if case.is_foreign and case.emulated and mpi.family == "openmpi":
        # PMIx's shared memory does not cross architectures: ranks would wait for ever
        reason += "; emulated ranks need PMIX_MCA_gds=hash in their environment"
    fixes = [*dict.fromkeys(one.fix for one in telling if one.fix)]
    fixes += [_ALONE] if answer == NO else []
    return Finding(rule=HYBRID, answer=answer, reason=reason, fix="; or ".join(fixes))


def _by_mpirun(case: Case, mpi: NeededMpi) -> Iterator[Finding]:
    if case.host.mpi is None:
        reason = "which MPI the host has is not known"
        yield unknown(HYBRID, reason, "record it: mpirun --version")
        return
    if not case.host.mpi:
        fix = f"load or install {_title(mpi.family, mpi.version)} on the host"
        yield no(HYBRID, "the host has no MPI on its PATH", fix)
    for one in case.host.mpi:
        yield _mpirun(case, mpi, one)


def _mpirun(case: Case, mpi: NeededMpi, host: HostMpi) -> Finding:
    inside, outside = _title(mpi.family, mpi.version), _title(host.family, host.version)
    launcher = host.launcher or "its launcher"
    if mpi.family != host.family:
        return _by_stranger(case, mpi, host)
    if not host.version:
        reason = f"the image has {inside}, and which {outside} the host has is not known"
        return unknown(HYBRID, reason, f"record it: {launcher} --version")
    if mpi.family != "openmpi":
        return yes(HYBRID, f"{launcher} of {outside} starts ranks of {inside}: both speak PMI")
    return _open_mpi(case, mpi, host)


def _by_stranger(case: Case, mpi: NeededMpi, host: HostMpi) -> Finding:
    """A launcher of another family."""
    inside, outside = _title(mpi.family, mpi.version), _title(host.family, host.version)
    if starter := facts.MPI_FAMILIES[host.family].slurm:
        reason = f"{outside} starts ranks of its own by {starter}, and none of {inside}"
        return no(HYBRID, reason, "bind the host's MPI in (bind)" if mpi.abi == "mpich" else "")
    if mpi.abi == _abi(host.family) == "mpich":
        reason = f"{outside} and {inside} both speak PMI, and nobody promises that they meet"
        return unknown(HYBRID, reason, _TRY)
    if facts.MPI_FAMILIES[host.family].made_from == mpi.family:
        return _by_kin(case, mpi, host)
    reason = f"{outside} on the host does not start ranks of {inside}: {_SINGLETONS}"
    return no(HYBRID, reason, f"load {inside} on the host")


def _open_mpi(case: Case, mpi: NeededMpi, host: HostMpi) -> Finding:
    """Open MPI promises nothing between versions; PMIx does between its own from 2.1.1 on.

    https://github.com/open-mpi/ompi/wiki/Container-Versioning
    """
    inside, outside = _title(mpi.family, mpi.version), _title(host.family, host.version)
    series = ".".join(mpi.version.split(".")[:2])
    if version_order(mpi.version)[:2] == version_order(host.version)[:2]:
        return yes(HYBRID, f"mpirun of {outside} starts ranks of {inside}: one series")
    ours = _pmix(case, mpi.family, mpi.version, mpi.pmix)
    theirs = _pmix(case, host.family, host.version, host.pmix)
    both = f"PMIx {theirs or 'none'} outside, {ours or 'none'} inside"
    same = f"load Open MPI {series} on the host"
    if "" in (ours, theirs):
        reason = f"mpirun of {outside} does not start ranks of {inside} ({both}): {_SINGLETONS}"
        return no(HYBRID, reason, same)
    reason = (
        f"whether mpirun of {outside} starts ranks of {inside} ({_told(ours, theirs)}) Open MPI "
        "promises for equal versions alone"
    )
    return unknown(HYBRID, reason, f"{_TRY}; {same}")


def _by_kin(case: Case, mpi: NeededMpi, host: HostMpi) -> Finding:
    """A launcher that was made from the image's family's: nobody promises anything of it."""
    inside, outside = _title(mpi.family, mpi.version), _title(host.family, host.version)
    ours = _pmix(case, mpi.family, mpi.version, mpi.pmix)
    theirs = _pmix(case, host.family, host.version, host.pmix)
    if "" in (ours, theirs):
        reason = f"mpirun of {outside} does not start ranks of {inside}, which has no PMIx"
        return no(HYBRID, f"{reason}: {_SINGLETONS}", f"load {inside} on the host")
    told = f"made from {facts.MPI_FAMILIES[mpi.family].title}, {_told(ours, theirs)}"
    reason = f"whether mpirun of {outside} ({told}) starts ranks of {inside} nobody promises"
    return unknown(HYBRID, reason, f"{_TRY}; load {inside} on the host")


def _told(ours: str | None, theirs: str | None) -> str:
    """What the PMIx of both sides let hope for."""
    if ours is None or theirs is None:
        return "whose PMIx is not known"
    meet = min(version_order(ours), version_order(theirs)) >= version_order(PMIX_MEETS_ALL)
    how = "made to meet" if meet else "which may not meet"
    return f"PMIx {theirs} outside and {ours} inside, {how}"


def _pmix(case: Case, family: str, version: str, said: str) -> str | None:
    """The PMIx of an MPI: what is said of it, else its series' own.

    Empty if it has none; None if the series is not known.
    """
    series = case.facts.mpi_series(family, version)
    return said or (series.pmix if series else None)


def _by_srun(case: Case, mpi: NeededMpi) -> Finding:
    kinds, title = case.host.slurm.pmi, _title(mpi.family, mpi.version)
    if kinds is None:
        reason = "whether there is Slurm, and which PMI it speaks, is not known"
        return unknown(HYBRID, reason, "record it: srun --mpi=list")
    if not kinds:
        return no(HYBRID, "the host has no Slurm", "")
    if mpi.family != "openmpi" and not any(kind.startswith("pmi") for kind in kinds):
        reason = f"Slurm has no pmi2 (srun --mpi=list: {', '.join(kinds)}): {_SINGLETONS}"
        return no(HYBRID, reason, "bind the host's MPI in (bind)")
    if mpi.family != "openmpi":
        reason = f"whether {title} in the image was built for Slurm's PMI is not known"
        return unknown(HYBRID, reason, f"{_TRY} (srun --mpi=pmi2)")
    return _open_mpi_by_srun(case, mpi, kinds)


def _open_mpi_by_srun(case: Case, mpi: NeededMpi, kinds: tuple[str, ...]) -> Finding:
    """Slurm serves PMIx by a plug-in for each version: pmix_v4."""
    title, ours = _title(mpi.family, mpi.version), _pmix(case, mpi.family, mpi.version, mpi.pmix)
    served = [kind for kind in kinds if kind.startswith("pmix")]
    if not served or ours == "":
        lacks = f"{title} has no PMIx" if served else "Slurm has no pmix"
        reason = f"{lacks} (srun --mpi=list: {', '.join(kinds)}): {_SINGLETONS}"
        return no(HYBRID, reason, "install Slurm's PMIx plug-in")
    newest = max((version_order(kind)[0] for kind in served if version_order(kind)), default=0)
    first = version_order(PMIX_MEETS_ALL)
    if ours and version_order(ours) >= first and newest > first[0]:
        return yes(HYBRID, f"srun --mpi=pmix_v{newest} starts ranks of {title} (PMIx {ours})")
    reason = (
        f"{title} has PMIx {ours or 'of some version'}, Slurm {', '.join(served)}: versions from "
        f"{PMIX_MEETS_ALL} on meet, and whether these do is not known"
    )
    return unknown(HYBRID, reason, f"{_TRY} (srun --mpi=pmix)")


def _bind(case: Case, mpi: NeededMpi) -> Finding:
    """The host's library stands in for the image's: one name, one interface, one C library."""
    found = case.host.mpi
    if case.is_foreign:
        reason = f"the host's MPI is for {case.host.architecture}"
        return no(BIND, reason, "a host of the image's architecture")
    if found is None:
        return unknown(BIND, "which MPI the host has is not known", "record it: mpirun --version")
    if not mpi.library or not mpi.abi:
        reason = "the image does not say which library its programs are linked to"
        return unknown(BIND, reason, "ldd of a program in the image tells")
    bound = [_bound(case, mpi, one) for one in found if _abi(one.family) == mpi.abi]
    if not bound:
        has = ", ".join(_title(one.family, one.version) for one in found) or "none"
        title = facts.MPI_FAMILIES[mpi.family].title
        reason = f"no MPI of the host has the binary interface of {title} (it has: {has})"
        return no(BIND, reason, f"load {title} on the host")
    answer = any_of(one.answer for one in bound)
    return next(one for one in bound if one.answer == answer)


def _bound(case: Case, mpi: NeededMpi, host: HostMpi) -> Finding:
    outside, names = _title(host.family, host.version), host.libraries
    looks = f"programs of the image look for {mpi.library}, and"
    if names is None:
        fix = "record the names of its libraries: libmpi.so.*"
        return unknown(BIND, f"{looks} what {outside} has is not known", fix)
    if mpi.library not in names:
        fix = f"bind its library under the name {mpi.library}, if its interface is the same"
        if host.family == "craympich":
            fix = f"load cray-mpich-abi: its lib-abi-mpich has {mpi.library}"
        return no(BIND, f"{looks} {outside} has {', '.join(names) or 'none'}", fix)
    if mpi.family == "openmpi" and version_order(host.version) < version_order(mpi.version):
        older = f"{outside} is older than the image's {mpi.version}" if host.version else outside
        reason = f"{older}: what an older library lacks is missing"
        return unknown(BIND, reason, f"try it, or load Open MPI {mpi.version} or newer")
    return _on_glibc(case, mpi, host)


def _on_glibc(case: Case, mpi: NeededMpi, host: HostMpi) -> Finding:
    """Host libraries in a container run on the image's C library."""
    ours, outside = case.contract.glibc, _title(host.family, host.version)
    needs = host.glibc or case.host.glibc
    if not ours or not needs:
        whose = "the glibc that the host's MPI needs" if ours else "the image's glibc"
        return unknown(BIND, f"{whose} is not known", "record it: ldd --version")
    if version_order(needs) <= version_order(ours):
        brings = ", ".join(facts.MPI_FAMILIES[host.family].brings)
        more = f"; bind in with it: {brings}" if brings else ""
        return yes(BIND, f"{mpi.library} of {outside} runs on the image's glibc {ours}{more}")
    fix = "take an image on a newer base, or use the image's own MPI (hybrid, in-container)"
    if not host.glibc:
        reason = f"{outside} may need glibc {needs}, the host's, and the image has {ours}"
        return unknown(BIND, reason, fix)
    reason = f'{outside} needs glibc {needs}, and the image has {ours} ("GLIBC_{needs} not found")'
    return no(BIND, reason, fix)


def _abi(family: str) -> str:
    return facts.MPI_FAMILIES[family].abi


def _title(family: str, version: str) -> str:
    return f"{facts.MPI_FAMILIES[family].title} {version}".strip()


_WAYS = {IN_CONTAINER: _in_container, HYBRID: _hybrid, BIND: _bind}
