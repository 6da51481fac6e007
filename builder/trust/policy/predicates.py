"""Read in-toto statements into the records that the rules judge.

Test results: builder.verify.evidence; provenance: https://slsa.dev/spec/v1.0/provenance; bills of
materials: https://cyclonedx.org/docs/1.5/json/. A signed statement can still be malformed: the
claim then has a fault, and proves nothing.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping

from builder.model.agreement import outcomes_of, run_faults
from builder.model.cells import FAILED, FORMATS, NONE, PASSED, SKIPPED, Cell
from builder.model.exact_json import member, part, time_of
from builder.model.package_indices import state_from
from builder.model.predicates import (
    CYCLONEDX,
    SLSA,
    TEST_RESULT,
    TestResult,
    capabilities_of,
    result_of,
    subjects_of,
)
from builder.model.records import read
from builder.trust.policy.records import (
    BILL,
    EVIDENCE,
    OTHER,
    PROVENANCE,
    Bill,
    Claim,
    Content,
    Evidence,
    Package,
    PackageIndices,
    Provenance,
)

TYPES: Mapping[str, str] = {TEST_RESULT: EVIDENCE, SLSA: PROVENANCE, CYCLONEDX: BILL}
_NO_SOURCE = frozenset(["cell", "engine"])  # parameters of this program's builds
_OPERATORS = re.compile(r"[()|,]|\s(?:and|or|with)\s", re.IGNORECASE)  # between licences
_RUNTIMES = {"ch-run": "charliecloud"}  # evidence names the program


def proof_of(statement: Mapping[str, object], *, key: str, digest: str) -> Claim:
    """Return the content of a signed statement; `key` is the policy's name for the key."""
    kind = TYPES.get(str(statement.get("predicateType")).split("/v1.")[0], OTHER)
    try:
        subjects = tuple(digest for _, digest in subjects_of(statement))
        content = _content(kind, statement)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        fault = f"is malformed ({type(error).__name__}: {error})"
        return Claim(kind=kind, key=key, fault=fault, digest=digest)
    return Claim(kind=kind, subjects=subjects, key=key, content=content, digest=digest)


def _content(kind: str, statement: Mapping[str, object]) -> Content | None:
    if kind == EVIDENCE:
        return evidence_of(statement)
    if kind == PROVENANCE:
        return provenance_of(member(statement, "predicate"))
    return bill_of(member(statement, "predicate")) if kind == BILL else None


def evidence_of(statement: Mapping[str, object]) -> Evidence:
    """Read a test result of `build-images verify`; raises `LookupError` or `ValueError`."""
    result = result_of(statement)
    run = result.run
    if faults := run_faults(result):
        raise ValueError("; ".join(faults))
    if run.format not in FORMATS:
        raise ValueError(f"format {run.format}")
    if not (run.launcher and run.gpu and run.runner.name) or run.host.driver is None:
        raise ValueError("runner, launcher, gpu or driver is missing")
    gpus = run.host.gpus if run.gpu.handed_over else ()
    return Evidence(
        started=time_of(run.started),
        finished=time_of(run.finished),
        format=run.format,
        runner=_RUNTIMES.get(run.runner.name, run.runner.name),
        launcher=run.launcher.name,
        emulated=run.emulated,
        architecture=run.host.arch,
        outcomes=_outcomes(result),
        driver=run.host.driver if gpus else "",
        capabilities=capabilities_of(gpus),
        tree=_tree(statement),
        packages=_packages(run.indices or ()),
    )


def _packages(indices: Iterable[object]) -> PackageIndices | None:
    """Return the age of the package indices; None if the evidence has no dated index."""
    oldest, behind = dict[tuple[str, str], dt.datetime](), 0
    for state in map(state_from, indices):
        behind = max(behind, state.behind_days)
        if state.date:
            suite, date = (state.archive, state.suite), time_of(state.date)
            oldest[suite] = min(oldest.get(suite, date), date)
    return PackageIndices(date=max(oldest.values()), behind_days=behind) if oldest else None


def _outcomes(result: TestResult) -> dict[str, str]:
    """Return the outcome of each check: the worst in the lists and in its details.

    A check that needs a GPU, and passed in a run to which none was handed over, counts as skipped.
    """
    outcomes = outcomes_of(result)
    if not (result.run.gpu and result.run.gpu.handed_over):
        for name, finding in result.checks:
            if part(finding.data, "gpu_here") is False and outcomes[name] == PASSED:
                outcomes[name] = SKIPPED
    if result.lists.result not in {"PASSED", "WARNED", "FAILED"}:
        raise ValueError(f"result {result.lists.result}")
    if result.lists.result == "FAILED" and FAILED not in outcomes.values():
        raise ValueError("result FAILED without a failed check")
    return outcomes


def _tree(statement: Mapping[str, object]) -> str:
    """Return the tree digest of all formats; empty if they differ."""
    trees = [
        digest
        for name, digest in subjects_of(statement)
        if name.count("/") == 1 and name.endswith("/tree")
    ]
    return trees[0] if len(trees) == 1 else ""


def provenance_of(predicate: Mapping[str, object]) -> Provenance:
    """Read SLSA provenance v1; raises `LookupError`, `TypeError`, `ValueError`, `AttributeError`.

    The sources are all parameters but engine and cell, and materials. A material without a URI is
    listed by its name, and again with its digest: `matrix.yaml@sha256:...`.
    """
    definition, details = member(predicate, "buildDefinition"), member(predicate, "runDetails")
    parameters = definition["externalParameters"]
    sources = [
        text for key, value in parameters.items() if key not in _NO_SOURCE for text in _texts(value)
    ]
    cell = _cell(parameters.get("cell"))
    for material in definition.get("resolvedDependencies") or []:
        sources += [str(material[key]) for key in ("uri", "name") if material.get(key)]
        if material.get("name") and material.get("digest"):
            sources.append(f"{material['name']}@sha256:{material['digest']['sha256']}")
    metadata = details.get("metadata") or {}
    finished = metadata.get("finishedOn") or metadata.get("startedOn")
    return Provenance(
        builder=str(details["builder"]["id"]),
        sources=tuple(dict.fromkeys(sources)),
        finished=time_of(finished) if finished else None,
        recipe=cell.recipe if cell else "",
        tag=cell.tag if cell else "",
    )


def _cell(value: object) -> Cell | None:
    """Return the cell that was built; None for a build of something else."""
    if not isinstance(value, Mapping) or not {"recipe", "recipe_version", "base"}.issubset(value):
        return None
    return read(Cell, {"cuda": NONE, "mpi": NONE, "arch": "", **value})


def bill_of(predicate: Mapping[str, object]) -> Bill:
    """Read a CycloneDX bill of materials, with nested components.

    Compositions state whether it is incomplete: https://cyclonedx.org/docs/1.5/json/#compositions.
    One that names the operating system alone is incomplete, too.
    """
    kinds = {component.get("type") for component in _components(predicate)}
    aggregates = [str(one["aggregate"]) for one in part(predicate, "compositions") or []]
    return Bill(
        complete=kinds != {"operating-system"}
        and not any(aggregate.startswith("incomplete") for aggregate in aggregates),
        packages=tuple(
            Package(
                name=str(component["name"]),
                version=str(component.get("version", "")),
                licences=tuple(_licences(component)),
            )
            for component in _components(predicate)
        ),
    )


def _components(predicate: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield all components, parents first; without recursion, because nesting may be deep."""
    remaining = [*reversed(part(predicate, "components") or [])]
    while remaining:
        component = remaining.pop()
        yield component
        remaining += reversed(part(component, "components") or [])


def _licences(component: Mapping[str, object]) -> Iterator[str]:
    for entry in part(component, "licenses") or []:
        stated = entry.get("license") or {}
        name = str(entry.get("expression") or stated.get("id") or stated["name"])
        parts = [part.strip() for part in _OPERATORS.split(name)]
        if "expression" not in entry:  # a name may contain such a word: also as it is
            parts.insert(0, name)
        yield from dict.fromkeys(filter(None, parts))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
