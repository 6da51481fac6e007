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
    described,
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
_SUFFIXES = (".yaml", ".yml", ".json")
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
        files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    except OSError as error:
        raise BadInput(f"{folder}: not a folder of cases ({error.strerror})") from error
    if not files:
        raise BadInput(f"{folder}: no case (*{', *'.join(_SUFFIXES)}) in this folder")
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
        about=table.read("about", described("one line for people", text), ""),
        policy=table.read("policy", described("the policy to judge by", policy_of), None),
        expected=table.read(
            "expected",
            described("the outcome of rules, by name; others are not compared", outcomes),
            {},
        ),
        gathered=Gathered(
            reference=table.read(
                "reference",
                described("the name under which the image is pulled", text),
                "registry.example/image:tag",
            ),
            format=table.read(
                "format", described("the format that is pulled", one_of(PULLED, "format")), "oci"
            )
            or "oci",
            now=table.read("now", described("the time of the pull", _time), _NEVER),
            image=table.read(
                "image",
                described("the image in the registry", _image),
                Image(digest="", architecture="", asked=""),
            ),
            artifact=table.read(
                "artifact",
                described("the digest of the published file; empty for the layers", any_text),
                "",
            ),
            proofs=table.read("proofs", described("the statements about it", list_of(_proof)), ()),
            host=table.read(
                "host", described("the host that it is pulled for", _host), PulledFor()
            ),
            contract=table.read("contract", described("the answer of check-host", _contract), None),
            previous=table.read(
                "previous", described("the last pull under the same tag", _previous), None
            ),
        ),
    )


def _proof(node: Node, faults: Faults) -> Claim:
    optional = ("subjects", "key", "signer", "fault", "digest", "evidence", "provenance", "sbom")
    table = Table(node, faults, required=("kind",), optional=optional)
    kind = table.read(
        "kind", described("the kind of statement", one_of(KINDS, "kind of proof")), ""
    )
    fault = table.read("fault", described("why the statement cannot be read", any_text), "")
    contents: dict[str, Content | None] = {
        "evidence": table.read(
            "evidence", described("with this kind: the results of checks", _evidence), None
        ),
        "provenance": table.read(
            "provenance", described("with this kind: how it was built", _provenance), None
        ),
        "sbom": table.read("sbom", described("with this kind: what is in it", _bill), None),
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
        subjects=table.read("subjects", described("the digests that it is about", _texts), ()),
        key=table.read(
            "key", described("the trusted key that signed it; empty for none", any_text), ""
        ),
        signer=table.read("signer", described("the identity that signed it", any_text), ""),
        fault=fault,
        digest=table.read("digest", described("its digest", any_text), ""),
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
    of_image = table.read(
        "architecture", described("the architecture in its configuration", architecture), ""
    )
    return Image(
        digest=table.read("digest", described("its digest", text), ""),
        architecture=of_image,
        asked=table.read(
            "asked", described("the architecture that is pulled", architecture), of_image
        ),
        index=table.read("index", described("the digest of the index that names it", any_text), ""),
        created=table.read("created", described("the time in its configuration", _time), None),
    )


_evidence = record(
    Evidence,
    {
        "finished": described("when the checks ended", _time),
        "format": described("the format that was tested", one_of(FORMATS, "format")),
        "architecture": described("the architecture of the image", architecture),
        "outcomes": described(
            "the outcome of each check, by name",
            mapping_of(one_of((PASSED, FAILED, SKIPPED), "outcome of a check")),
        ),
    },
    {
        "started": described("when they started", _time),
        "runner": described("the container runtime", any_text),
        "launcher": described("the launcher of the ranks", any_text),
        "emulated": described("true if they ran under emulation", truth),
        "driver": described("the version of NVIDIA's driver", any_text),
        "capabilities": described(
            "the GPUs' compute capabilities, such as 7.0", list_of(capability)
        ),
        "tree": described("the tree digest", any_text),
        "packages": described(
            "the package indices that it was built with",
            record(
                PackageIndices,
                {"date": described("the day of the newest index", _time)},
                {"behind_days": described("how far it was behind its mirror", count)},
            ),
        ),
    },
)
_provenance = record(
    Provenance,
    {"builder": described("the builder's URI", text)},
    {
        "sources": described("the inputs of the build", _texts),
        "finished": described("when the build ended", _time),
        "recipe": described("the recipe's name", any_text),
        "tag": described("the tag of the image's cell", any_text),
    },
)
_package = record(
    Package,
    {"name": described("the package's name", text)},
    {"version": described("its version", any_text), "licences": described("its licences", _texts)},
)
_bill = record(
    Bill,
    {"packages": described("what the bill of materials lists", list_of(_package))},
    {"complete": described("false if the bill declares itself incomplete", truth)},
)
_host = record(
    PulledFor,
    {},
    {
        "capabilities": described("its GPUs' compute capabilities", list_of(capability)),
        "driver": described("the version of its driver", any_text),
    },
)
_answer = one_of((YES, NO, UNKNOWN), "answer")
_contract = record(
    Contract,
    {"answer": described("yes, no, or cannot tell", _answer)},
    {"reasons": described("the reasons of another answer than yes", _texts)},
)
_times = mapping_of(_time, key=one_of(("provenance", "created", "evidence"), "kind of time"))
_previous = record(
    Previous,
    {"digest": described("its digest", text)},
    {"times": described("its times, by kind", _times)},
)


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
