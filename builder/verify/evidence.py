"""Evidence: what the checks found, bound to the artifacts by their digests.

An in-toto Statement v1 with the predicate test-result v0.1, one for each run of an image's checks:
https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from xml.etree import ElementTree as ET

from builder import __version__
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.package_indices import IndexState
from builder.model.predicates import STATEMENT, TEST_RESULT
from builder.system.host_facts import HostFacts

HARNESS = f"pkg:generic/build-images@{__version__}"  # https://github.com/package-url/purl-spec
IMAGES_OWN = "the image's own"
_LIBRARY = re.compile(r"(\S.*?) v?([0-9][0-9A-Za-z.]*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine(HostFacts):
    """A machine that ranks were started on, by its name in the network."""

    name: str

    @property
    def facts(self) -> HostFacts:
        """It without its name."""
        return HostFacts(**{one.name: getattr(self, one.name) for one in fields(HostFacts)})


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedBy:
    """What started the ranks of MPI programs: without more, each check by the image's own launcher.

    That is of the product and version that its MPI says it is, where a check saw it. Else `name` is
    how it was asked for (`srun`), `product` and `version` are what it says of itself, if it was
    there, and `command` are its words with the container's. It was asked for
    `ranks` ranks on `nodes` nodes, or on as many as it likes where that is 0, and started them on
    `machines`, by name; on none if these were not asked, or did not say.
    """

    name: str = IMAGES_OWN
    product: str = ""
    version: str = ""
    command: str = ""
    ranks: int = 0
    nodes: int = 0
    machines: tuple[Machine, ...] = ()

    @property
    def title(self) -> str:
        """`Slurm 22.05.8`."""
        return f"{self.product} {self.version}".strip()

    def __str__(self) -> str:
        if self.name == IMAGES_OWN:
            return self.name
        return f"{self.name} of {self.title}" if self.product else self.name


def images_own(outcomes: Iterable[Outcome]) -> StartedBy:
    """The image's own launcher: of the product and version that its MPI says it is, if it has one.

    `Open MPI v5.0.7` is what the check `mpi` found, by MPI_Get_library_version.
    """
    for one in outcomes:
        library = one.data.get("library") if one.check == "mpi" else None
        if isinstance(library, str) and (found := _LIBRARY.match(library)):
            return StartedBy(product=found[1], version=found[2])
    return StartedBy()


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where and how the checks of one format were run.

    `emulator` is the program that ran a foreign architecture's code, and empty where the code ran
    on the processor. `gpu` says whether the host's GPUs were
    handed over, and `no_gpu` why not. `indices` are the states of package indices that the image
    was made with. Times are in UTC, as ISO 8601.
    """

    format: str
    runner: str
    runner_version: str
    host: HostFacts
    started: str
    finished: str
    emulator: str = ""
    launcher: StartedBy = StartedBy()
    gpu: bool = False
    no_gpu: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    indices: tuple[IndexState, ...] = ()

    @property
    def as_json(self) -> dict[str, object]:
        return {
            "format": self.format,
            "runner": {"name": self.runner, "version": self.runner_version},
            "launcher": asdict(self.launcher),
            "emulated": bool(self.emulator),
            "emulator": self.emulator,
            "gpu": {"handed_over": self.gpu, "reason": self.no_gpu},
            "started": self.started,
            "finished": self.finished,
            "host": {**asdict(self.host), "gpus": list(self.host.gpus)},
            "tools": dict(self.tools),
            "indices": [asdict(one) for one in self.indices],
        }


def write_evidence(
    folder: Path,
    name: str,
    *,
    identifier: str,
    artifacts: Sequence[Artifact],
    outcomes: Sequence[Outcome],
    scripts: Mapping[str, str],
    setting: Setting,
) -> Path:
    """Write `NAME.json`, and beside it `NAME.xml` for JUnit's readers; the path of the first.

    `scripts` are the SHA-256 of the checks' scripts, by the checks' names.
    """
    made = statement(
        identifier=identifier,
        artifacts=artifacts,
        outcomes=outcomes,
        scripts=scripts,
        setting=setting,
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(made, indent=1, sort_keys=True, allow_nan=False) + "\n"
    path = _write(folder / f"{name}.json", text.encode())
    _write(
        folder / f"{name}.xml",
        junit_xml(
            f"{identifier}.{name}",
            outcomes,
            started=setting.started,
            properties={
                "image": identifier,
                **{one.format: one.digest for one in artifacts},
                "runner": f"{setting.runner} {setting.runner_version}",
                "launcher": str(setting.launcher),
                "emulated": setting.emulator or "no",
                "machine": f"{setting.host.arch}, {setting.host.cpu}",
                "gpus": ", ".join(setting.host.gpus) or "none",
            },
        ),
    )
    return path


def statement(
    *,
    identifier: str,
    artifacts: Sequence[Artifact],
    outcomes: Sequence[Outcome],
    scripts: Mapping[str, str],
    setting: Setting,
) -> dict[str, object]:
    """The statement of one run. Its subjects are all artifacts of the cell and their common tree.

    A skipped check is listed among the warnings, never among the passed ones, and the result is
    then `WARNED`.
    """
    return {
        "_type": STATEMENT,
        "subject": _subjects(identifier, artifacts),
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": _result(outcomes),
            "configuration": [
                {"name": "run", "uri": HARNESS, "annotations": setting.as_json},
                *(_check(one, scripts) for one in outcomes),
            ],
            "passedTests": _names(outcomes, PASSED),
            "warnedTests": _names(outcomes, SKIPPED),
            "failedTests": _names(outcomes, FAILED),
        },
    }


def _write(path: Path, data: bytes) -> Path:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    return partial.replace(path)


def _subjects(identifier: str, artifacts: Sequence[Artifact]) -> list[dict[str, object]]:
    subjects: list[dict[str, object]] = [
        {"name": f"{identifier}/{one.format}", "digest": _digest(one.digest)} for one in artifacts
    ]
    trees = {one.tree_digest for one in artifacts if one.tree_digest}
    if len(trees) == 1:
        return [*subjects, {"name": f"{identifier}/tree", "digest": _digest(trees.pop())}]
    return subjects + [
        {"name": f"{identifier}/{one.format}/tree", "digest": _digest(one.tree_digest)}
        for one in artifacts
        if one.tree_digest
    ]


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    return {algorithm: value}


def _result(outcomes: Sequence[Outcome]) -> str:
    if any(one.outcome == FAILED for one in outcomes):
        return "FAILED"
    return "WARNED" if any(one.outcome == SKIPPED for one in outcomes) else "PASSED"


def _check(outcome: Outcome, scripts: Mapping[str, str]) -> dict[str, object]:
    """What was run, a ResourceDescriptor: the script's digest, or the harness's own check."""
    script = scripts.get(outcome.check)
    return {
        "name": outcome.check,
        **({"digest": {"sha256": script}} if script else {"uri": f"{HARNESS}#{outcome.check}"}),
        "annotations": {
            "outcome": outcome.outcome,
            "reason": outcome.reason,
            "duration_s": round(outcome.duration_s, 3),
            "data": dict(outcome.data),
        },
    }


def _names(outcomes: Sequence[Outcome], outcome: str) -> list[str]:
    return [one.check for one in outcomes if one.outcome == outcome]


# Everything but https://www.w3.org/TR/xml/#NT-Char
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def junit_xml(
    suite: str, outcomes: Sequence[Outcome], *, started: str, properties: Mapping[str, str]
) -> bytes:
    """The file's bytes: one test suite with a test case for each check.

    `suite` is also the class of its cases. Times are in seconds, `started` is in ISO 8601. What
    XML cannot hold is replaced.
    """
    numbers = {
        "tests": str(len(outcomes)),
        "failures": str(sum(one.outcome == FAILED for one in outcomes)),
        "errors": "0",
        "skipped": str(sum(one.outcome == SKIPPED for one in outcomes)),
        "time": _seconds(sum(one.duration_s for one in outcomes)),
    }
    root = ET.Element("testsuites", {"name": "build-images", **numbers})
    element = ET.SubElement(
        root, "testsuite", {"name": _safe(suite), "timestamp": started, **numbers}
    )
    listed = ET.SubElement(element, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", {"name": name, "value": _safe(value)})
    for one in outcomes:
        element.append(_case(suite, one))
    ET.indent(root, " ")
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(suite: str, outcome: Outcome) -> ET.Element:
    case = ET.Element(
        "testcase",
        {
            "classname": _safe(suite),
            "name": _safe(outcome.check),
            "time": _seconds(outcome.duration_s),
        },
    )
    if outcome.outcome == SKIPPED:
        ET.SubElement(case, "skipped", {"message": _safe(outcome.reason)})
    elif outcome.outcome == FAILED:
        attributes = {"message": _safe(outcome.reason), "type": FAILED}
        ET.SubElement(case, "failure", attributes).text = _safe(outcome.output)
    ET.SubElement(case, "system-out").text = _safe("\n".join(_said(outcome)))
    return case


def _said(outcome: Outcome) -> list[str]:
    data = [f"data: {json.dumps(dict(outcome.data), sort_keys=True)}"] if outcome.data else []
    return [*([outcome.output] if outcome.output else []), *data, outcome.reason]


def _seconds(duration: float) -> str:
    return f"{duration:.3f}"


def _safe(text: str) -> str:
    return _NO_XML.sub(_REPLACEMENT, text)
