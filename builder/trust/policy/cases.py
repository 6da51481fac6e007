"""Recorded cases: the facts gathered about an image, and the expected result of each rule."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.load.document import Faults, Node, note, parse
from builder.load.readers import (
    Table,
    any_text,
    architecture,
    list_of,
    mapping_of,
    one_of,
    record,
    text,
)
from builder.load.record_readers import capability, count, exactly, truth
from builder.model.cells import FAILED, FORMATS, PASSED, SKIPPED
from builder.model.errors import BadInput
from builder.model.exact_json import member, time_of
from builder.trust.policy.judgement import RULES, judge
from builder.trust.policy.records import (
    KINDS,
    NO,
    PULLED,
    RESULTS,
    UNKNOWN,
    YES,
    Bill,
    Claim,
    Content,
    Contract,
    Evidence,
    Gathered,
    Image,
    Package,
    PackageIndices,
    Previous,
    Provenance,
    PulledFor,
    Ruling,
)
from builder.trust.policy.site_policy import Policy, policy_of

SCHEMA = "build-images/policy-case/v1"
_NEVER = dt.datetime.min.replace(tzinfo=dt.timezone.utc)
_texts = list_of(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyCase:
    """A recorded case; a case without its own `policy` is judged by the policy of the caller.

    Only the rules in `expected` are compared.
    """

    name: str
    about: str
    gathered: Gathered
    expected: Mapping[str, str]
    policy: Policy | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A case and its rulings; `wrong` lists the unexpected ones."""

    case: PolicyCase
    rulings: tuple[Ruling, ...]
    wrong: tuple[str, ...]


def try_case(case: PolicyCase, policy: Policy | None) -> Tried:
    """Judge a case by its own policy, else by `policy`."""
    chosen = case.policy or policy
    if chosen is None:
        raise BadInput(f"{case.name}: no policy in this case", hint="name one with --policy FILE")
    rulings = judge(chosen, case.gathered).rulings
    results = {one.rule: one for one in rulings}
    wrong = tuple(
        f"{rule}: expected {result}, got {results[rule].result}: {results[rule].reason}"
        for rule, result in case.expected.items()
        if results[rule].result != result
    )
    return Tried(case=case, rulings=rulings, wrong=wrong)


def read_cases(folder: Path) -> tuple[PolicyCase, ...]:
    """Read the cases in a folder, sorted by name; raises `BadInput` with the faults of all."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in {".yaml", ".json"})
    except OSError as error:
        raise BadInput(f"{folder}: not a folder of cases ({error.strerror})") from error
    if not files:
        raise BadInput(f"{folder}: no case (*.yaml, *.json) in this folder")
    faults, cases = Faults(), list[PolicyCase]()
    for file in files:
        node = parse(file, str(file), faults)
        if node is not None:
            cases.append(case_of(node, faults, name=file.stem))
    if faults.found:
        raise BadInput.of(faults.found, "no case was tested")
    return tuple(cases)


def case_of(node: Node, faults: Faults, *, name: str = "") -> PolicyCase:
    """Read a case; faults are added to `faults`, and the result is not valid after a fault."""
    table = Table(
        node,
        faults,
        required=("schema", "format", "now", "image", "proofs", "expected"),
        optional=("about", "reference", "policy", "artifact", "host", "contract", "previous"),
    )
    table.read("schema", exactly(SCHEMA), "")
    outcomes = mapping_of(one_of(RESULTS, "outcome"), key=one_of(RULES, "rule"))
    return PolicyCase(
        name=name,
        about=table.read("about", text, ""),
        policy=table.read("policy", policy_of, None),
        expected=table.read("expected", outcomes, {}),
        gathered=Gathered(
            reference=table.read("reference", text, "registry.example/image:tag"),
            format=table.read("format", one_of(PULLED, "format"), "oci") or "oci",
            now=table.read("now", _time, _NEVER),
            image=table.read("image", _image, Image(digest="", architecture="", asked="")),
            artifact=table.read("artifact", any_text, ""),
            proofs=table.read("proofs", list_of(_proof), ()),
            host=table.read("host", _host, PulledFor()),
            contract=table.read("contract", _contract, None),
            previous=table.read("previous", _previous, None),
        ),
    )


def _proof(node: Node, faults: Faults) -> Claim:
    optional = ("subjects", "key", "signer", "fault", "digest", "evidence", "provenance", "sbom")
    table = Table(node, faults, required=("kind",), optional=optional)
    kind = table.read("kind", one_of(KINDS, "kind of proof"), "")
    fault = table.read("fault", any_text, "")
    contents: dict[str, Content | None] = {
        "evidence": table.read("evidence", _evidence, None),
        "provenance": table.read("provenance", _provenance, None),
        "sbom": table.read("sbom", _bill, None),
    }
    for key, content in contents.items():
        entry = table.entry(key)
        if key == kind and content is None and not fault:
            faults.add(
                node.where, f"the content of the {kind} is missing", f"write it under {kind}"
            )
        elif key != kind and entry is not None:
            faults.add(entry.where, f"not allowed in a proof of the kind {kind}")
    return Claim(
        kind=kind,
        subjects=table.read("subjects", _texts, ()),
        key=table.read("key", any_text, ""),
        signer=table.read("signer", any_text, ""),
        fault=fault,
        digest=table.read("digest", any_text, ""),
        content=contents.get(kind),
    )


def _time(node: Node, faults: Faults) -> dt.datetime:
    value = text(node, faults)
    note(node, format="date-time")
    try:
        return time_of(value) if value else _NEVER
    except ValueError:
        valid = 'valid: ISO 8601 with a zone, in quotes: "2026-11-21T12:00:00+00:00"'
        faults.add(node.where, f'not a time: "{value}"', valid)
        return _NEVER


def _image(node: Node, faults: Faults) -> Image:
    required, optional = ("digest", "architecture"), ("asked", "index", "created")
    table = Table(node, faults, required=required, optional=optional)
    of_image = table.read("architecture", architecture, "")
    return Image(
        digest=table.read("digest", text, ""),
        architecture=of_image,
        asked=table.read("asked", architecture, of_image),
        index=table.read("index", any_text, ""),
        created=table.read("created", _time, None),
    )


_evidence = record(
    Evidence,
    {
        "finished": _time,
        "format": one_of(FORMATS, "format"),
        "architecture": architecture,
        "outcomes": mapping_of(one_of((PASSED, FAILED, SKIPPED), "outcome of a check")),
    },
    {
        "started": _time,
        "runner": any_text,
        "launcher": any_text,
        "emulated": truth,
        "driver": any_text,
        "capabilities": list_of(capability),
        "tree": any_text,
        "packages": record(PackageIndices, {"date": _time}, {"behind_days": count}),
    },
)
_provenance = record(
    Provenance,
    {"builder": text},
    {"sources": _texts, "finished": _time, "recipe": any_text, "tag": any_text},
)
_package = record(Package, {"name": text}, {"version": any_text, "licences": _texts})
_bill = record(Bill, {"packages": list_of(_package)}, {"complete": truth})
_host = record(PulledFor, {}, {"capabilities": list_of(capability), "driver": any_text})
_answer = one_of((YES, NO, UNKNOWN), "answer")
_contract = record(Contract, {"answer": _answer}, {"reasons": _texts})
_times = mapping_of(_time, key=one_of(("provenance", "created", "evidence"), "kind of time"))
_previous = record(Previous, {"digest": text}, {"times": _times})


def as_case(gathered: Gathered, rulings: Sequence[Ruling]) -> dict[str, object]:
    """Return the gathered facts and the rulings as a case that can be judged again."""
    document = {
        name: _plain(one, name) for name, one in asdict(gathered).items() if one is not None
    }
    for proof in member(document, "proofs"):
        content = proof.pop("content", None)
        if content is not None:
            proof[proof["kind"]] = content
    return {
        "schema": SCHEMA,
        **document,
        "expected": {one.rule: one.result for one in rulings if one.rule in RULES},
    }


def _plain(value: object, key: str = "") -> object:
    """Return JSON values: unknown values are omitted, and capabilities are written as 7.0."""
    if isinstance(value, dict):
        return {name: _plain(one, name) for name, one in value.items() if one is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(one, key) for one in value]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return (
        "{}.{}".format(*divmod(value, 10))
        if key == "capabilities" and isinstance(value, int)
        else value
    )
