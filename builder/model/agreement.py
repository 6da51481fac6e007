"""Find contradictions between an image's manifest, its evidence and its artifacts.

A summary is never believed where the details are there. Main job, report, publish and pull judge by
the functions here, and by nothing of their own.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from builder.model.cells import FAILED, NONE, PASSED, SKIPPED
from builder.model.exact_json import member, part, time_of
from builder.model.manifest import Manifest, Outcome, ProvenImage, required_runs
from builder.model.package_indices import states_in
from builder.model.predicates import STATEMENT, TEST_RESULT, TestResult, result_of

CHECK = "agreement"  # the outcome that stands for a run whose evidence contradicts the manifest
BENCH = "-bench"  # ends the names of evidence of measurements, of which manifests have no outcomes
ALWAYS = ("formats-equal", "environment")  # the harness's own checks, part of every run
MPI = "mpi"  # the check that every image with an MPI has
_RESULTS = {"PASSED": PASSED, "WARNED": SKIPPED, "FAILED": FAILED}
WORST_LAST = (PASSED, SKIPPED, FAILED)
# in-toto's Statement v1 is of that year: https://github.com/in-toto/attestation/releases
_EARLIEST = dt.datetime(2023, 1, 1, tzinfo=dt.timezone.utc)
_CLOCKS_DIFFER = dt.timedelta(days=1)

Statement = Mapping[str, object]


def required_checks(declared: Collection[str], mpi: str) -> set[str]:
    """Return the checks that every run must have: those declared, and `mpi` if there is an MPI."""
    return {*ALWAYS, *declared, *([MPI] if mpi != NONE else [])}


def outcomes_of(result: TestResult) -> dict[str, str]:
    """Return each check's outcome in a test result: the worst in its lists and details."""
    outcomes = _listed(result)
    for check, outcome in _details(result):
        ranked = (outcome, outcomes.get(check, outcome))
        outcomes[check] = max(ranked, key=WORST_LAST.index)
    return outcomes


def wrong_numbers(data: Mapping[str, object]) -> list[int]:
    """Return the numbers that ranks reported, unless they are 0 to `ranks` - 1."""
    numbers: list[int] = part(data, "rank_numbers") or []  # earlier programs report none
    return numbers if numbers and numbers != [*range(member(data, "ranks"))] else []


def run_faults(result: TestResult, *, arch: str = "") -> list[str]:
    """Return where a test result contradicts itself on when and where it ran.

    `arch` is the image's architecture, where known. Raises `ValueError` for times that are none.
    """
    run = result.run
    host, is_emulated = run.host.arch, run.emulated
    faults = []
    if time_of(run.finished) < time_of(run.started):
        faults.append(f"it ended at {run.finished}, before it began at {run.started}")
    if arch and is_emulated is not (host != arch):
        how = "emulated" if is_emulated else "native"
        faults.append(f"a run of {arch} on {host} is marked as {how}")
    expected = arch or ("" if is_emulated else host)
    for name, finding in result.checks:
        seen = (finding.data or {}).get("uname", expected)
        if expected and seen != expected:
            faults.append(f"{name} saw {seen}, expected {expected}")
    return faults


def faults_of(
    manifest: Manifest,
    statements: Mapping[str, Statement | None],
    *,
    required: Collection[str] = (),
    harness: Mapping[str, str] | None = None,
) -> list[str]:
    """Return where manifest and evidence contradict each other, or lack what has to be there.

    `statements` are by the names that the manifest has for their files, None where one cannot be
    read. `required` are checks that are declared beside those that the manifest lists. `harness`
    has the digests of the scripts that ran the checks, where the builder's are known.
    """
    return [
        *_wrong_summary(manifest),
        *_wrong_runs(manifest, statements, {*required}),
        *_wrong_harness(manifest, statements, harness or {}),
    ]


def formats_not_run(manifest: ProvenImage) -> list[str]:
    """Return a manifest's formats without a run of the checks; a run is `oci` or `oci-podman`."""
    run = {name.partition("-")[0] for name in manifest.checks}
    return sorted(manifest.artifacts.keys() - run)


def checked_outcomes(
    manifest: Manifest, run: str, statements: Mapping[str, Statement | None]
) -> tuple[Outcome, ...]:
    """Return a manifest's outcomes of a run, and a failed one if evidence contradicts them."""
    ran = run.partition("-")[0]
    is_emulated = manifest.emulated
    if manifest.emulated_runs is not None:
        is_emulated = run in manifest.emulated_runs
    alone = dataclasses.replace(
        manifest,
        checks={run: manifest.checks[run]},
        artifacts={name: artifact for name, artifact in manifest.artifacts.items() if name == ran},
        launched={},
        emulated=is_emulated,
        emulated_runs=(run,) if is_emulated else (),
    )
    own = {file: statement for file, statement in statements.items() if _run_of(file) == run}
    return as_judged(alone, faults_of(alone, own)).checks[run]


def as_judged(manifest: Manifest, faults: Sequence[str]) -> Manifest:
    """Return the manifest, marked as failed if there are faults."""
    if not faults:
        return manifest
    failure = Outcome(check=CHECK, outcome=FAILED, reason="; ".join(faults))
    runs = {**dict.fromkeys(manifest.artifacts, ()), **manifest.checks}
    checks = {
        name: (*(outcome for outcome in outcomes if outcome.check != CHECK), failure)
        for name, outcomes in runs.items()
    }
    return dataclasses.replace(manifest, outcome="failed", checks=checks)


# ---- One statement ----


def _listed(result: TestResult) -> dict[str, str]:
    """Return each check's outcome in the lists, the worst if it is in several."""
    lists = result.lists
    listed = {PASSED: lists.passed, SKIPPED: lists.skipped, FAILED: lists.failed}
    return {check: outcome for outcome in WORST_LAST for check in listed[outcome]}


def _details(result: TestResult) -> Iterator[tuple[str, str]]:
    for name, finding in result.checks:
        if finding.outcome not in WORST_LAST:
            raise ValueError(f"outcome {finding.outcome} of {name}")
        yield name, finding.outcome


def _wrong_lists(result: TestResult) -> Iterator[str]:
    listed, details = _listed(result), dict(_details(result))
    for check in sorted(listed.keys() | details.keys()):
        if details.get(check) != listed.get(check):
            yield (
                f"{check} is {listed.get(check, 'missing')} in its lists, "
                f"but {details.get(check, 'missing')} in its details"
            )
    worst = max(outcomes_of(result).values(), key=WORST_LAST.index, default=PASSED)
    if _RESULTS.get(result.lists.result) != worst:
        yield f"its result is {result.lists.result}, but its worst outcome is {worst}"


def _impossible_times(manifest: Manifest, started: str, finished: str) -> Iterator[str]:
    """Yield impossible times of a run; `pull` leaves these to the policy's rule on age."""
    latest = dt.datetime.now(tz=dt.timezone.utc) + _CLOCKS_DIFFER
    if time_of(started) < _EARLIEST or time_of(finished) > latest:
        yield f"impossible times: it ran from {started} to {finished}"
    begun = manifest.started or started
    if time_of(started) < time_of(begun) - _CLOCKS_DIFFER:
        yield f"it started at {started}, before the image was built ({begun})"


# ---- A manifest and its statements ----


def _wrong_summary(manifest: Manifest) -> Iterator[str]:
    """Return where the manifest contradicts itself."""
    if manifest.outcome != "verified":
        return
    for name in formats_not_run(manifest):
        yield f"marked as verified, but its checks did not run as {name}"
    for run in sorted(required_runs(manifest.checks)):
        for outcome in manifest.checks[run]:
            if outcome.outcome == FAILED:
                yield f"marked as verified, but {outcome.check} failed in {run}"
    if manifest.formats_equal is False:
        yield "marked as verified, but its formats are not equal"
    trees = {
        manifest.tree_digest,
        *(artifact.tree_digest for artifact in manifest.artifacts.values()),
    }
    if len(trees - {""}) > 1:
        yield f"its formats have {len(trees - {''})} different tree digests"
    if manifest.proven_on_gpu and (unproven := sorted(_unproven(manifest))):
        yield f"marked as proven on a GPU, but {unproven[0]} did not pass"


def _unproven(manifest: Manifest) -> set[str]:
    """Return the GPU checks that passed in no run of some format."""
    passed = {
        (run.partition("-")[0], outcome.check)
        for run, outcomes in manifest.checks.items()
        for outcome in outcomes
        if (outcome.outcome == PASSED and not outcome.lacked_gpu) or not outcome.applies
    }
    return {
        check
        for check in manifest.gpu_checks
        for name in manifest.artifacts
        if (name, check) not in passed
    }


def _wrong_runs(
    manifest: Manifest, statements: Mapping[str, Statement | None], required: set[str]
) -> Iterator[str]:
    runs = _runs(manifest)
    declared = {check.name for check in manifest.in_image_checks} | required
    required = required_checks(declared, manifest.cell.mpi)
    for name in sorted(runs.keys() - {_run_of(file) for file in statements}):
        yield f"{name}: evidence of this run is missing"
    emulated = set()
    for file, statement in statements.items():
        run = _run_of(file)
        try:
            lacking = required if run in manifest.checks else set()
            outcomes = runs.get(run, None if run.endswith(BENCH) else {})
            for fault in _wrong_run(manifest, statement or {}, outcomes, lacking):
                yield f"{file}: {fault}"
            if statement and result_of(statement).run.emulated:
                emulated |= {run} & runs.keys()
        except (LookupError, TypeError, ValueError, AttributeError):
            yield f"{file}: this evidence is missing, or cannot be read"
    # Ranks that were not started ran nowhere.
    emulated -= {run for run, outcomes in runs.items() if {*outcomes.values()} == {SKIPPED}}
    listed = emulated if manifest.emulated_runs is None else {*manifest.emulated_runs}
    if listed != emulated or (runs and manifest.emulated is not bool(emulated)):
        yield f"emulated runs according to the evidence: {', '.join(sorted(emulated)) or 'none'}"


def _wrong_harness(
    manifest: Manifest, statements: Mapping[str, Statement | None], harness: Mapping[str, str]
) -> Iterator[str]:
    """Yield runs whose scripts or programs differ from the builder's own."""
    programs = manifest.inputs.programs.items()
    expected = {name.removeprefix("files/"): digest[len("sha256:") :] for name, digest in programs}
    expected |= harness
    for file, statement in statements.items():
        if not expected or _run_of(file) not in manifest.checks:
            continue
        try:
            checks = result_of(statement or {}).checks
            [equal] = [finding.data for name, finding in checks if name == ALWAYS[0]]
            digests = member(equal, "harness")
            unlike = sorted(path for path in expected if digests.get(path) != expected[path])
        except (LookupError, TypeError, ValueError, AttributeError):
            yield f"{file}: it does not say which scripts ran the checks"
            continue
        if unlike:
            yield f"{file}: scripts differ from the builder's: {', '.join(unlike[:3])}"


def _runs(manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return a manifest's outcomes of each run, by the name of its evidence."""
    runs = {
        name: {outcome.check: outcome.outcome for outcome in outcomes if outcome.check != CHECK}
        for name, outcomes in manifest.checks.items()
    }
    for name, outcomes in (manifest.launched or {}).items():
        runs |= {
            f"{name}-{outcome.check}": {outcome.check: outcome.outcome} for outcome in outcomes
        }
    return runs


def _run_of(file: str) -> str:
    return Path(file).stem


def _wrong_run(
    manifest: Manifest, statement: Statement, outcomes: Mapping[str, str] | None, required: set[str]
) -> Iterator[str]:
    """Yield contradictions between a statement and the manifest's `outcomes` of that run.

    They are None where a manifest has none of such a run.
    """
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, TEST_RESULT):
        yield "not a test result"
        return
    result = result_of(statement)
    yield from run_faults(result, arch=manifest.cell.arch)
    yield from _wrong_lists(result)
    yield from _wrong_subjects(manifest, result.subjects, of_all=bool(required))
    proven = outcomes_of(result)
    if lacking := sorted(required - proven.keys()):
        yield f"missing outcomes: {', '.join(lacking)}"
    if outcomes is not None and outcomes != proven:
        unlike = sorted(
            check for check in {*proven, *outcomes} if proven.get(check) != outcomes.get(check)
        )
        yield f"the manifest has different outcomes for {', '.join(unlike)}"
    yield from _impossible_times(manifest, result.run.started, result.run.finished)
    yield from _wrong_ranks(result)
    states = tuple(asdict(state) for state in states_in(manifest.inputs))
    if result.run.indices not in (None, states):
        yield "its package index states differ from those in the manifest"


def _wrong_ranks(result: TestResult) -> Iterator[str]:
    """Yield passed checks whose ranks are not numbered from 0, each once."""
    for name, finding in result.checks:
        if finding.outcome == PASSED and (numbers := wrong_numbers(finding.data or {})):
            yield f"{name} passed, but its ranks are numbered {numbers}"


def _wrong_subjects(
    manifest: Manifest, subjects: Mapping[str, str], *, of_all: bool
) -> Iterator[str]:
    """Yield digests in a statement's subjects that are missing or differ from the manifest's."""
    identifier = manifest.image
    for name, artifact in manifest.artifacts.items():
        subject = subjects.get(f"{identifier}/{name}")
        if subject != artifact.digest and (of_all or subject):
            yield f"its subject {name} is {subject or 'missing'}, expected {artifact.digest}"
        tree = subjects.get(f"{identifier}/tree") or subjects.get(f"{identifier}/{name}/tree")
        if of_all and artifact.tree_digest and tree != artifact.tree_digest:
            yield f"its tree of {name} is {tree or 'missing'}, expected {artifact.tree_digest}"
