"""Manifests and evidence that contradict themselves or each other, as a forger would change them.

They are judged as the main job, report and publish judge them: by `builder/model/agreement.py`.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import Case
from made_releases import images_of, make_images, make_project

from builder.artifacts.manifests import read_statements
from builder.model import FORMATS
from builder.model.agreement import faults_of
from builder.model.manifest import manifest_from
from builder.model.records import write
from builder.verify.finished_images import read_finished

_NO_DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Forged:
    """A manifest and its evidence by file, to be changed; `run` is the one that is changed."""

    manifest: Any
    statements: dict[str, Any]
    run: str

    @property
    def file(self) -> str:
        return f"evidence/{self.run}.json"

    @property
    def statement(self) -> Any:
        return self.statements[self.file]

    @property
    def predicate(self) -> Any:
        return self.statement["predicate"]

    @property
    def facts(self) -> Any:
        """When, where and how it ran."""
        return self.predicate["configuration"][0]["annotations"]

    @property
    def detail(self) -> Any:
        """Of its last check, `architecture`."""
        return self.predicate["configuration"][-1]["annotations"]

    @property
    def artifact(self) -> Any:
        return self.manifest["artifacts"][self.run]

    @property
    def outcomes(self) -> Any:
        return self.manifest["checks"][self.run]


@functools.cache
def _sound() -> tuple[Any, dict[str, Any]]:
    """The manifest and the evidence of an image without a fault."""
    with tempfile.TemporaryDirectory() as name:
        project = make_project(Path(name) / "project", recipes=["tools"])
        make_images(project, size=2000)
        image = next(one for one in images_of(project) if one.cell.arch == "x86_64")
        folder = project / "out" / image.identifier
        manifest = read_finished(folder)
        return write(manifest), dict(read_statements(folder, manifest))


def _times(year: str) -> dict[str, str]:
    return {"started": f"{year}-01-01T00:00:00+00:00", "finished": f"{year}-01-01T00:00:01+00:00"}


def _drop_details(forged: Forged, check: str) -> None:
    forged.predicate["configuration"] = [
        one for one in forged.predicate["configuration"] if one["name"] != check
    ]


def _drop_check(forged: Forged) -> None:
    """Out of manifest and evidence alike."""
    forged.outcomes[:] = [one for one in forged.outcomes if one["check"] != "environment"]
    forged.predicate["passedTests"].remove("environment")
    _drop_details(forged, "environment")


def _empty(forged: Forged) -> None:
    forged.manifest.update({"checks": {}, "evidence": [], "in_image_checks": [], "emulated": False})
    forged.statements.clear()


def _other_subject(forged: Forged) -> None:
    for subject in forged.statement["subject"]:
        subject["digest"] = {"sha256": "0" * 64}


def _swap(forged: Forged) -> None:
    """The evidence of another format."""
    other = next(name for name in FORMATS if name != forged.run)
    forged.statements[forged.file] = forged.statements[f"evidence/{other}.json"]
    forged.statements[forged.file]["predicate"]["passedTests"].append("more")


_EACH_RUN: dict[str, tuple[Callable[[Forged], object], str]] = {
    "failed in its details": (
        lambda forged: forged.detail.update(outcome="failed"),
        "architecture is passed in its lists, but failed in its details",
    ),
    "failed on the list alone": (
        lambda forged: forged.predicate["failedTests"].append("architecture"),
        "its result is PASSED, but its worst outcome is failed",
    ),
    "skipped in its details": (
        lambda forged: forged.detail.update(outcome="skipped"),
        "but skipped in its details",
    ),
    "not in its details": (
        lambda forged: _drop_details(forged, "architecture"),
        "missing in its details",
    ),
    "a check that is listed alone": (
        lambda forged: forged.predicate["passedTests"].append("mpi"),
        "mpi is passed in its lists, but missing",
    ),
    "another result": (lambda forged: forged.predicate.update(result="WARNED"), "its result is"),
    "no such result": (lambda forged: forged.predicate.update(result="FINE"), "its result is FINE"),
    "failed in the manifest": (
        lambda forged: forged.outcomes[0].update(outcome="failed"),
        "marked as verified, but formats-equal failed",
    ),
    "skipped in the manifest": (
        lambda forged: forged.outcomes[0].update(outcome="skipped"),
        "the manifest has different outcomes for formats-equal",
    ),
    "an outcome dropped from the manifest": (
        lambda forged: forged.outcomes.pop(),
        "the manifest has different outcomes for architecture",
    ),
    "a check dropped everywhere": (_drop_check, "missing outcomes: environment"),
    "of 2001": (lambda forged: forged.facts.update(_times("2001")), "it ran from 2001"),
    "of 2099": (lambda forged: forged.facts.update(_times("2099")), "it ran from 2099"),
    "before the build": (
        lambda forged: forged.facts.update(_times("2024")),
        "before the image was built",
    ),
    "the end first": (
        lambda forged: forged.facts.update(finished="2025-12-31T23:59:59+00:00"),
        "before it began",
    ),
    "another host": (
        lambda forged: forged.facts["host"].update(arch="s390x"),
        "is marked as native",
    ),
    "said to be emulated": (
        lambda forged: forged.facts.update(emulated=True),
        "marked as emulated",
    ),
    "saw another architecture": (
        lambda forged: forged.detail.update(data={"uname": "s390x"}),
        "architecture saw s390x",
    ),
    "another digest": (
        lambda forged: forged.artifact.update(digest=_NO_DIGEST),
        "expected sha256:",
    ),
    "another tree": (
        lambda forged: forged.artifact.update(tree_digest=_NO_DIGEST),
        "its formats have 2 different tree digests",
    ),
    "other subjects": (_other_subject, "expected sha256:"),
    "of another kind": (
        lambda forged: forged.statement.update(predicateType="https://slsa.dev/provenance/v1"),
        "not a test result",
    ),
    "gone": (lambda forged: forged.statements.pop(forged.file), "evidence of this run is missing"),
    "that is none": (
        lambda forged: forged.statements.update({forged.file: None}),
        "missing, or cannot be read",
    ),
    "of another run": (_swap, "more"),
}
_OF_ALL: dict[str, tuple[Callable[[Forged], object], str]] = {
    "formats that are not equal": (
        lambda forged: forged.manifest.update(formats_equal=False),
        "its formats are not equal",
    ),
    "the checks emptied": (
        lambda forged: forged.manifest["checks"].clear(),
        "its checks did not run",
    ),
    "everything emptied": (_empty, "its checks did not run as charliecloud"),
    "a format without a run": (
        lambda forged: forged.manifest["checks"].pop("sif"),
        "its checks did not run as sif",
    ),
    "a declared check that was not run": (
        lambda forged: forged.manifest["in_image_checks"].append(
            {"name": "ucx", "script": "/ucx", "needs": [], "timeout_s": 1}
        ),
        "missing outcomes: ucx",
    ),
    "an MPI without its check": (
        lambda forged: forged.manifest["cell"].update(mpi="openmpi5.0"),
        "missing outcomes: mpi",
    ),
    "another architecture": (
        lambda forged: forged.manifest["cell"].update(arch="ppc64le"),
        "is marked as native",
    ),
    "said to be emulated": (
        lambda forged: forged.manifest.update(emulated=True, emulated_runs=["sif"]),
        "emulated runs according to the evidence: none",
    ),
    "proven on a GPU that no check saw": (
        lambda forged: forged.manifest.update(
            proven_on_gpu=True, in_image_checks=[{"name": "gpu-blas", "needs": ["gpu"]}]
        ),
        "as proven on a GPU, but gpu-blas did not pass",
    ),
    "another tree of all": (
        lambda forged: forged.manifest.update(tree_digest=_NO_DIGEST),
        "its formats have 2 different tree digests",
    ),
    "other scripts ran the checks": (
        lambda forged: forged.manifest["inputs"].update(programs={"files/bin/mpi": _NO_DIGEST}),
        "it does not say which scripts ran the checks",
    ),
}


def judge(change: Callable[[Forged], object], run: str) -> Sequence[str]:
    manifest, statements = _sound()
    forged = Forged(manifest=copy.deepcopy(manifest), statements=copy.deepcopy(statements), run=run)
    change(forged)
    return faults_of(manifest_from(forged.manifest), forged.statements)


def cases() -> list[Case]:
    """All forgeries: those of one run for each format."""
    all_cases = [
        (f"{name}: {run}", change, run, named)
        for name, (change, named) in _EACH_RUN.items()
        for run in FORMATS
    ]
    all_cases += [(name, change, "sif", named) for name, (change, named) in _OF_ALL.items()]
    return [
        Case(
            family="manifests",
            name=name,
            faults=lambda _folder, change=change, run=run: judge(change, run),  # type: ignore[misc]
            named=named,
        )
        for name, change, run, named in all_cases
    ]
