"""Statements about images: in-toto's, of the kinds that this project makes.

https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from builder import __version__
from builder.facts.cuda import capability_of
from builder.model.exact_json import member
from builder.model.records import named, read

STATEMENT = "https://in-toto.io/Statement/v1"  # github.com/in-toto/attestation, spec/v1
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SLSA = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
PROGRAM = "pkg:generic/build-images"  # this one, as a package URL

# Annotations by which a manifest, or a layer of one, says of which predicate type it is: of what
# nobody signed (ours), of a Sigstore bundle, of a layer in cosign's classic format.
UNSIGNED_NOTE = "in-toto.io/predicate-type"
BUNDLE_NOTE = "dev.sigstore.bundle.predicateType"
CLASSIC_NOTE = "predicateType"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHost:
    """A host that checks ran on; its `driver` is None where that is not stated."""

    arch: str
    cpu: str = ""
    os: str = ""
    driver: str | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgram:
    """The program that entered the image for a run."""

    name: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLauncher:
    """The program that started a run's ranks; 0 ranks or nodes are as many as it likes."""

    name: str
    product: str = ""
    ranks: int = 0
    nodes: int = 0
    machines: tuple[RunHost, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunGpus:
    """GPUs of the host were handed over to the containers, or not."""

    handed_over: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """When and where the checks of a test result ran, times as ISO 8601.

    `indices` are the states of package indices that the image was made with; earlier versions did
    not say. `launcher` and `gpu` are None where they are not stated.
    """

    started: str
    finished: str
    emulated: bool
    host: RunHost
    runner: RunProgram = RunProgram()
    launcher: RunLauncher | None = None
    gpu: RunGpus | None = None
    format: str = ""
    indices: tuple[object, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckFinding:
    """Result of a check: its outcome, and what it measured."""

    outcome: str
    data: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TestLists:
    """Summary of a test result."""

    result: str
    passed: tuple[str, ...] = named("passedTests")
    skipped: tuple[str, ...] = named("warnedTests")
    failed: tuple[str, ...] = named("failedTests")


@dataclass(frozen=True, kw_only=True, slots=True)
class TestResult:
    """A statement with a test result: `subjects` are digests (`sha256:…`) by what they are of.

    `checks` are the findings in full, by the checks' names, in order.
    """

    subjects: Mapping[str, str]
    lists: TestLists
    run: RunFacts
    checks: tuple[tuple[str, CheckFinding], ...]


def result_of(statement: Mapping[str, object]) -> TestResult:
    """Read a test result; raises `LookupError`, `TypeError` or `ValueError` if it is malformed."""
    predicate = member(statement, "predicate")
    run, *checks = member(predicate, "configuration")
    return TestResult(
        subjects=dict(subjects_of(statement)),
        lists=read(TestLists, predicate),
        run=read(RunFacts, run["annotations"]),
        checks=tuple(
            (str(check["name"]), read(CheckFinding, check["annotations"])) for check in checks
        ),
    )


def builder_of(environment: Mapping[str, str]) -> str:
    """Return the URI of who builds: GitHub's workflow or GitLab's project, else this program.

    Outside a CI system nothing is known about the builder: SLSA Build level 1.
    """
    if server := environment.get("GITHUB_SERVER_URL"):
        return f"{server}/{environment.get('GITHUB_WORKFLOW_REF', '')}"
    if environment.get("GITLAB_CI"):
        return environment.get("CI_PROJECT_URL", PROGRAM)
    return f"{PROGRAM}@{__version__}"


def subjects_of(statement: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the names and digests, `sha256:…`, of what a statement is about."""
    return [
        (str(subject.get("name", "")), f"sha256:{subject['digest']['sha256']}")
        for subject in member(statement, "subject")
    ]


def capabilities_of(gpus: Iterable[str]) -> tuple[int, ...]:
    """Return the compute capabilities (70 for 7.0) of GPUs by their models, in order, each once.

    A model that is not in the table has none.
    """
    known = {capability_of(model) for model in gpus}
    return tuple(sorted(number for number in known if number is not None))
