"""What in-toto statements say, as values that rules judge.

Test results: builder.verify.evidence; provenance: https://slsa.dev/spec/v1.0/provenance; bills of
materials: https://cyclonedx.org/docs/1.5/json/. A statement that was signed may still be malformed:
it is then a fault, and vouches for nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping

from builder.model.agreement import outcomes_of, run_faults
from builder.model.cells import FAILED, FORMATS, NONE, Cell
from builder.model.exact_json import member, part
from builder.model.package_indices import state_from
from builder.model.predicates import (
    CYCLONEDX,
    SLSA,
    TEST_RESULT,
    TestResult,
    capabilities_of,
    result_of,
)
from builder.trust.policy.records import (
    BILL,
    EVIDENCE,
    OTHER,
    PROVENANCE,
    Bill,
    Content,
    Evidence,
    Package,
    PackageIndices,
    Proof,
    Provenance,
)

TYPES: Mapping[str, str] = {TEST_RESULT: EVIDENCE, SLSA: PROVENANCE, CYCLONEDX: BILL}
_RUNTIMES = {"ch-run": "charliecloud"}  # evidence names the program


def proof_of(statement: Mapping[str, object], *, key: str, digest: str) -> Proof:
    """A statement that somebody signed: `key` is the policy's name for that key."""
    kind = TYPES.get(str(statement.get("predicateType")).split("/v1.")[0], OTHER)
    try:
        subjects = tuple(f"sha256:{digests['sha256']}" for _, digests in _subjects(statement))
        content = _content(kind, statement)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        fault = f"is malformed ({type(error).__name__}: {error})"
        return Proof(kind=kind, key=key, fault=fault, digest=digest)
    return Proof(kind=kind, subjects=subjects, key=key, content=content, digest=digest)


def _content(kind: str, statement: Mapping[str, object]) -> Content | None:
    if kind == EVIDENCE:
        return evidence_of(statement)
    if kind == PROVENANCE:
        return provenance_of(member(statement, "predicate"))
    return bill_of(member(statement, "predicate")) if kind == BILL else None


def evidence_of(statement: Mapping[str, object]) -> Evidence:
    """A test result of `build-images verify`; raises `KeyError` and its like if it is none."""
    predicate = member(statement, "predicate")
    run = member(predicate, "configuration", 0, "annotations")
    host = run["host"]
    result = result_of(statement)
    if faults := run_faults(result):
        raise ValueError("; ".join(faults))
    gpus = host["gpus"] if run["gpu"]["handed_over"] else []
    return Evidence(
        started=time_of(run["started"]),
        finished=time_of(run["finished"]),
        format=_one_of(run["format"], FORMATS),
        runner=_RUNTIMES.get(str(run["runner"]["name"]), str(run["runner"]["name"])),
        launcher=str(run["launcher"]["name"]),
        emulated=_truth(run["emulated"]),
        architecture=str(host["arch"]),
        outcomes=_outcomes(result),
        driver=str(host["driver"]) if gpus else "",
        capabilities=capabilities_of(map(str, gpus)),
        tree=_tree(statement),
        packages=_packages(run.get("indices") or ()),
    )


def _packages(said: Iterable[object]) -> PackageIndices | None:
    """How old the package indices were; None where evidence names none, or none with a date."""
    oldest, behind = dict[tuple[str, str], dt.datetime](), 0
    for state in map(state_from, said):
        behind = max(behind, state.behind_days)
        if state.date:
            suite, date = (state.archive, state.suite), time_of(state.date)
            oldest[suite] = min(oldest.get(suite, date), date)
    return PackageIndices(date=max(oldest.values()), behind_days=behind) if oldest else None


def _outcomes(result: TestResult) -> dict[str, str]:
    """Each check's outcome: the worst that a list or its details say."""
    found, said = outcomes_of(result), result.lists.result
    if said not in {"PASSED", "WARNED", "FAILED"}:
        raise ValueError(f"result {said}")
    if said == "FAILED" and FAILED not in found.values():
        raise ValueError("it failed, and names no check that did")
    return found


def _tree(statement: Mapping[str, object]) -> str:
    """The tree digest that all formats have; empty if they differ."""
    trees = [
        digests["sha256"]
        for name, digests in _subjects(statement)
        if name.count("/") == 1 and name.endswith("/tree")
    ]
    return f"sha256:{trees[0]}" if len(trees) == 1 else ""


def provenance_of(predicate: Mapping[str, object]) -> Provenance:
    """SLSA provenance v1. The sources are all that the build is said to have been given.

    A material that has no URI is named, and once more with its digest: `matrix.yaml@sha256:...`.
    """
    definition, details = member(predicate, "buildDefinition"), member(predicate, "runDetails")
    given = definition["externalParameters"]
    sources = list(_texts(given))
    cell = _cell(given.get("cell"))
    for one in definition.get("resolvedDependencies") or []:
        sources += [str(one[key]) for key in ("uri", "name") if one.get(key)]
        if one.get("name") and one.get("digest"):
            sources.append(f"{one['name']}@sha256:{one['digest']['sha256']}")
    metadata = details.get("metadata") or {}
    finished = metadata.get("finishedOn") or metadata.get("startedOn")
    return Provenance(
        builder=str(details["builder"]["id"]),
        sources=tuple(dict.fromkeys(sources)),
        finished=time_of(finished) if finished else None,
        recipe=cell.recipe if cell else "",
        tag=cell.tag if cell else "",
    )


def _cell(said: object) -> Cell | None:
    """The cell that was built; None for a build of something else."""
    if not isinstance(said, Mapping) or not {"recipe", "recipe_version", "base"} <= said.keys():
        return None
    values = {"cuda": NONE, "mpi": NONE, "arch": ""}
    for key, value in said.items():
        if not isinstance(value, str):
            raise TypeError(f"{key} of the cell is no text")
        if key in Cell.__slots__:
            values[key] = value
    return Cell(**values)


def bill_of(predicate: Mapping[str, object]) -> Bill:
    """A bill of materials by CycloneDX. Components may hold components.

    It says itself where it is incomplete: https://cyclonedx.org/docs/1.5/json/#compositions.
    """
    parts = [str(one["aggregate"]) for one in part(predicate, "compositions") or []]
    return Bill(
        complete=not any(one.startswith("incomplete") for one in parts),
        packages=tuple(
            Package(
                name=str(one["name"]),
                version=str(one.get("version", "")),
                licences=tuple(_licences(one)),
            )
            for one in _components(predicate)
        ),
    )


def _components(predicate: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    left = [iter(part(predicate, "components") or [])]
    while left:
        for one in left[-1]:
            yield one
            left.append(iter(part(one, "components") or []))
            break
        else:
            left.pop()


def _licences(component: Mapping[str, object]) -> Iterator[str]:
    for one in part(component, "licenses") or []:
        if "expression" in one:
            words = str(one["expression"]).replace("(", " ").replace(")", " ").split()
            yield from (word for word in words if word not in {"AND", "OR", "WITH"})
        else:
            yield str(one["license"].get("id") or one["license"]["name"])


def time_of(text: object) -> dt.datetime:
    """A time as ISO 8601, with its zone; `ValueError` if it is none."""
    found = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    try:
        return found.astimezone(dt.timezone.utc)
    except OverflowError as error:
        raise ValueError(f"the time {text} is before the year 1 or after 9999") from error


def _subjects(statement: Mapping[str, object]) -> list[tuple[str, Mapping[str, str]]]:
    return [(str(one.get("name", "")), one["digest"]) for one in member(statement, "subject")]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _one_of(value: object, names: tuple[str, ...]) -> str:
    if value not in names:
        raise ValueError(f"{value} is none of {', '.join(names)}")
    return str(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value} is neither true nor false")
    return value
