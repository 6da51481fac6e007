"""Evidence: the outcomes of checks, bound to the artifacts by their digests.

An in-toto Statement v1 with the predicate test-result v0.1, one for each run of an image's checks:
https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from builder import __version__
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.measurement import HostFacts
from builder.model.package_indices import IndexState
from builder.model.predicates import STATEMENT, TEST_RESULT
from builder.model.records import plain, write
from builder.system.files import read_json, write_texts

HARNESS = f"pkg:generic/build-images@{__version__}"  # https://github.com/package-url/purl-spec
IMAGES_OWN = "the image's own"
_SCHEMA = Path(__file__).with_name("evidence.schema.json")
_LIBRARY = re.compile(r"(\S.*?) v?([0-9][0-9A-Za-z.]*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedBy:
    """The launcher that started MPI ranks; by default each check uses the image's own launcher.

    For the image's own, `product` and `version` are those that its MPI reports, where a check saw
    it. For another launcher, `name` is the requested name (`srun`), `product` and `version` are its
    own answers, if it was found, and `command` is its command line with the container's. `ranks`
    ranks were requested on `nodes` nodes; 0 leaves the number of nodes to the launcher. `machines`
    are those that ran ranks, by host name; empty if they were not asked or did not answer.
    """

    name: str = IMAGES_OWN
    product: str = ""
    version: str = ""
    command: str = ""
    ranks: int = 0
    nodes: int = 0
    machines: Mapping[str, HostFacts] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.name == IMAGES_OWN or not self.product:
            return self.name
        return f"{self.name} of {self.product} {self.version}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class KitRun:
    """A run of a kit (docs/kit.md) on a node without this program: the node is the run's host.

    `kit` is the kit's random name, `imported` the time at which its output was judged, by the clock
    here. `fabric` are the ports of the node's network adapters, `mpi` the first line of its
    `mpirun --version`, `nvidia_smi` its GPUs as nvidia-smi lists them.
    """

    kit: str
    node: str
    imported: str
    fabric: tuple[str, ...] = ()
    mpi: str = ""
    nvidia_smi: tuple[str, ...] = ()


def images_own(outcomes: Iterable[Outcome]) -> StartedBy:
    """Return the image's own launcher, with product and version of its MPI if it has one.

    The check `mpi` reads them by MPI_Get_library_version, for example `Open MPI v5.0.7`.
    """
    libraries = [outcome.data.get("library") for outcome in outcomes if outcome.check == "mpi"]
    matches = [_LIBRARY.match(library) for library in libraries if isinstance(library, str)]
    match = next(filter(None, matches), None)
    return StartedBy(product=match[1], version=match[2]) if match else StartedBy()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvidence:
    """One run of an image's checks in one format: host, runner, times and outcomes.

    It applies to all `artifacts` and their common tree. `scripts` are the SHA-256 of the checks'
    scripts, by the checks' names. `emulator` is the program that ran code of a foreign
    architecture; it is empty if the code ran natively. `no_gpu` says why the host's GPUs were not
    passed to the image; it is empty if they were. `indices` are the states of package indices that
    the image was built with. `kit` is set for a run that was imported. Times are in UTC, as ISO
    8601.
    """

    identifier: str
    artifacts: Sequence[Artifact]
    outcomes: Sequence[Outcome]
    format: str
    runner: str
    runner_version: str
    host: HostFacts
    started: str
    finished: str
    scripts: Mapping[str, str] = field(default_factory=dict)
    emulator: str
    launcher: StartedBy = StartedBy()
    no_gpu: str
    tools: Mapping[str, str] = field(default_factory=dict)
    indices: tuple[IndexState, ...] = ()
    kit: KitRun | None = None

    def statement(self) -> dict[str, object]:
        """Return the in-toto statement.

        A skipped check is listed as a warning, never as passed, and the result is then `WARNED`.
        """
        checks = {
            result: [outcome.check for outcome in self.outcomes if outcome.outcome == result]
            for result in (PASSED, SKIPPED, FAILED)
        }
        return {
            "_type": STATEMENT,
            "subject": [
                {"name": f"{self.identifier}/{name}", "digest": dict([digest.split(":")])}
                for name, digest in self._subjects()
            ],
            "predicateType": TEST_RESULT,
            "predicate": {
                "result": "FAILED" if checks[FAILED] else "WARNED" if checks[SKIPPED] else "PASSED",
                "configuration": [
                    {"name": "run", "uri": HARNESS, "annotations": self._setting()},
                    *(self._check(outcome) for outcome in self.outcomes),
                ],
                "passedTests": checks[PASSED],
                "warnedTests": checks[SKIPPED],
                "failedTests": checks[FAILED],
            },
        }

    def _setting(self) -> dict[str, object]:
        machines = [
            {"name": name, **write(machine)} for name, machine in self.launcher.machines.items()
        ]
        return {
            "format": self.format,
            "runner": {"name": self.runner, "version": self.runner_version},
            "launcher": {**write(self.launcher), "machines": machines},
            "emulated": bool(self.emulator),
            "emulator": self.emulator,
            "gpu": {"handed_over": not self.no_gpu, "reason": self.no_gpu},
            "started": self.started,
            "finished": self.finished,
            "host": write(self.host),
            "tools": dict(self.tools),
            "indices": plain(self.indices),
            **({"kit": write(self.kit)} if self.kit else {}),
        }

    def _subjects(self) -> list[tuple[str, str]]:
        """Return the names and digests of artifacts and trees; equal trees are listed once."""
        trees = [
            (f"{artifact.format}/tree", artifact.tree_digest)
            for artifact in self.artifacts
            if artifact.tree_digest
        ]
        digests = {digest for _, digest in trees}
        if len(digests) == 1:
            trees = [("tree", digests.pop())]
        return [*((artifact.format, artifact.digest) for artifact in self.artifacts), *trees]

    def _check(self, outcome: Outcome) -> dict[str, object]:
        """Return a ResourceDescriptor: the script's digest, or the harness's own check."""
        script = self.scripts.get(outcome.check)
        return {
            "name": outcome.check,
            **({"digest": {"sha256": script}} if script else {"uri": f"{HARNESS}#{outcome.check}"}),
            "annotations": {
                "outcome": outcome.outcome,
                "reason": outcome.reason,
                "duration_s": outcome.duration_s,
                "data": dict(outcome.data),
            },
        }


def write_evidence(folder: Path, name: str, run: RunEvidence) -> str:
    """Write `evidence/NAME.json` in an image's folder, and `NAME.xml` in JUnit's format.

    Return the path of the JSON file, relative to the folder.
    """
    properties = {
        "image": run.identifier,
        **{artifact.format: artifact.digest for artifact in run.artifacts},
        "runner": f"{run.runner} {run.runner_version}",
        "launcher": str(run.launcher),
        "emulated": run.emulator or "no",
        "machine": f"{run.host.arch}, {run.host.cpu}",
        "gpus": ", ".join(run.host.gpus) or "none",
        **({"imported from a kit": f"{run.kit.kit}, run on {run.kit.node}"} if run.kit else {}),
    }
    suite = f"{run.identifier}.{name}"
    xml = junit_xml(suite, run.outcomes, started=run.started, properties=properties)
    text = json.dumps(run.statement(), indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_texts(folder / "evidence", {f"{name}.json": text, f"{name}.xml": xml})
    return f"evidence/{name}.json"


def host_of_checks(files: Iterable[Path]) -> dict[str, object]:
    """Return the facts about the host in evidence; those of several hosts are joined."""
    hosts: list[dict[str, object]] = []
    for path in files:
        match read_json(path):
            case {"predicate": {"configuration": [{"annotations": {"host": dict(host)}}, *_]}}:
                hosts += [host] if host not in hosts else []
    if not hosts[1:]:
        return hosts[0] if hosts else {}
    return {
        name: ", ".join(dict.fromkeys(str(host.get(name, "")) for host in hosts))
        for name in ("arch", "cpu", "os", "kernel")
    }


def evidence_schema() -> dict[str, object]:
    """Return the JSON Schema of `evidence/*.json`."""
    schema: dict[str, object] = json.loads(_SCHEMA.read_text())
    return schema


# ---- JUnit XML, with the elements of https://github.com/testmoapp/junitxml ----

# All characters except https://www.w3.org/TR/xml/#NT-Char
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(
    suite: str, outcomes: Sequence[Outcome], *, started: str, properties: Mapping[str, str]
) -> str:
    """Return JUnit XML: one test suite with a test case for each check.

    `suite` is also the class of its cases. Times are in seconds, `started` is in ISO 8601.
    Characters that XML cannot hold are replaced.
    """
    results = [outcome.outcome for outcome in outcomes]
    numbers = {
        "tests": str(len(outcomes)),
        "failures": str(results.count(FAILED)),
        "errors": "0",
        "skipped": str(results.count(SKIPPED)),
        "time": f"{sum(outcome.duration_s for outcome in outcomes):.3f}",
    }
    root = ET.Element("testsuites", {"name": "build-images", **numbers})
    element = ET.SubElement(root, "testsuite", {"name": suite, "timestamp": started, **numbers})
    listed = ET.SubElement(element, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", {"name": name, "value": value})
    for outcome in outcomes:
        _add_case(element, suite, outcome)
    ET.indent(root, " ")
    text = _NO_XML.sub("\N{REPLACEMENT CHARACTER}", ET.tostring(root, encoding="unicode"))
    return f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n"


def _add_case(element: ET.Element, suite: str, outcome: Outcome) -> None:
    time = f"{outcome.duration_s:.3f}"
    about = {"classname": suite, "name": outcome.check, "time": time}
    case = ET.SubElement(element, "testcase", about)
    if outcome.outcome == SKIPPED:
        ET.SubElement(case, "skipped", {"message": outcome.reason})
    elif outcome.outcome == FAILED:
        failure = ET.SubElement(case, "failure", {"message": outcome.reason, "type": FAILED})
        failure.text = outcome.output
    data = f"data: {json.dumps(dict(outcome.data), sort_keys=True)}" if outcome.data else ""
    lines = filter(None, [outcome.output, data])
    ET.SubElement(case, "system-out").text = "\n".join([*lines, outcome.reason])
