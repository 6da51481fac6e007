"""One image from its spec to its folder: what is written, and what is verified of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import compare_with_golden, recipe
from test_check_outcomes import FakeRunner, done, env
from test_proving import HOST
from test_stages import CORE, ONE, Site, made_site  # noqa: F401 - a fixture

from builder import __version__
from builder.artifacts.manifests import ImageState
from builder.build.executor import ThreadExecutor
from builder.build.run import BuildSettings
from builder.build.schedule import Attempt
from builder.build.stages import RunStages
from builder.build.tasks import Task
from builder.build.workers import Pool, Requirement, Worker
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.package_indices import IndexState
from builder.verify.main_job import run_job
from builder.verify.runners import RUNNERS
from builder.verify.targets import ProofTarget

ONE_ALONE = recipe("one")
INDEX = IndexState(archive="debian", suite="trixie", taken_as="trixie", date="", sha256="0" * 64)
IMAGE = "one-1.0-debian13-x86_64"


@pytest.fixture(name="results")
def results_of_commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What commands in a container come to; an `error` if it cannot be opened."""
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://ci.example.org")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "site/images/build.yml@refs/heads/main")
    results: dict[str, Any] = {"sh": done(env("HOME=/tmp", directory="/"))}

    @contextlib.contextmanager
    def opened(_container: object) -> Iterator[Any]:
        if error := results.get("error"):
            raise error
        yield FakeRunner(results)

    kind = dataclasses.replace(RUNNERS["buildah"], open=opened)
    monkeypatch.setitem(RUNNERS, "buildah", kind)
    monkeypatch.setattr("builder.verify.proof.machines_fault", lambda *_: "")
    return results


def shown(folder: Path) -> str:
    """The manifest and the folder's files, without what differs between days and versions."""
    text = (folder / "manifest.json").read_text()
    for pattern, name in (
        (r"[0-9a-f]{64}", "DIGEST"),
        (r":[0-9a-f]{12}-", ":KEY-"),
        (r'(?<=: )"(20\d\d-[^"]*|hpccm .*)"', '"..."'),
        (r"\d+\.\d+(?=,?\n)", "SECONDS"),
        (r'(?<="size": )\d+', "SIZE"),
    ):
        text = re.sub(pattern, name, text)
    text = text.replace(f'"{__version__}"', '"..."')
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    files = sorted(str(path) for path in paths if path.parts[0] != "previous")
    return text + "\n".join([*(name for name in files if "sha256/" not in name), ""])


def said(site: Site) -> str:
    """What the job has shown, without its times."""
    return re.sub(r"\[ *[\d.]+ s\]|(?<=in )\d+ s", "...", site.said.getvalue())


@pytest.mark.usefixtures("results")
def test_an_image_is_built_and_verified(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.recipes, site.host, site.versions = [CORE, ONE], HOST, {"buildah": "1.28.2"}
    monkeypatch.setattr(RunStages, "indices", lambda _stages, _image: {INDEX: ["base"]})
    assert site.job(jobs=1, verify=True).exit_code == 0
    assert site.job(verify=True).exit_code == 0  # finds both unchanged
    folder = site.root / "out" / IMAGE
    text = said(site) + shown(folder)
    compare_with_golden(text, "verify/image-job.txt")
    bill = (folder / "sbom.cdx.json").read_text()
    assert bill == json.dumps(json.loads(bill), indent=1, sort_keys=True) + "\n"
    assert not [*site.home.work.rglob("build.log")]
    for name in ("image.sif", "evidence/sif.json"):
        (folder / name).touch()
    assert site.job(cache=False, verify=True).exit_code == 0
    assert text.endswith(shown(folder))
    assert sorted(one.name for one in (folder / "previous").iterdir()) == [
        *("contents.json.gz", "manifest.json", "sbom.cdx.json")
    ]
    assert site.job(cache=False).exit_code == 0
    for name in ("contents.json.gz", "evidence"):
        assert not (folder / name).exists(), "of the build before"


@pytest.mark.usefixtures("results")
def test_a_clock_that_is_wrong_is_said_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the report and `publish` alone."""
    site.recipes, site.host = [ONE_ALONE], HOST
    monkeypatch.setattr("builder.verify.proof.now", lambda: "1970-01-01T00:00:09+00:00")
    done = site.job(verify=True)
    assert (done.exit_code, done.manifests[IMAGE].outcome) == (1, "failed")
    assert "oci/agreement: evidence/oci.json: impossible times" in said(site)


def test_what_was_built_before_is_only_verified(
    site: Site, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.recipes, site.host = [ONE_ALONE], dataclasses.replace(HOST, arch="aarch64")
    folder = site.root / "out" / IMAGE
    first = site.job().manifests[IMAGE]
    assert (first.outcome, first.emulated, first.emulated_build) == ("built", True, True)
    assert first.proven_on_gpu is None
    assert first.durations_s.keys() == {"base", "build", "oci", "stages"}
    assert site.built()
    with monkeypatch.context() as patch:
        patch.setattr(ProofTarget, "needs_gpu", property(lambda _: True))
        assert site.job(cache=False).manifests[IMAGE].proven_on_gpu is False
    assert site.built()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["in_image_checks"] = [{"name": "x", "script": "/x", "needs": [], "timeout_s": 1}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    results["error"] = MissingPrerequisite("no user namespaces")
    (folder / "failed-step.json").touch()
    untried = site.job(verify=True)
    assert not (folder / "failed-step.json").exists(), "no step failed"
    assert untried.exit_code == 4
    assert f"{IMAGE}: this machine lacks what its checks need. Not run, not recorded:\n" in str(
        untried.errors[IMAGE]
    )
    assert not untried.manifests
    del results["error"]
    results["sh"] = done(env("HOME=/tmp", "OTHER=x", directory="/"))
    failed = site.job(verify=True)
    assert failed.exit_code == 1
    reason = "OTHER is set, but not by the image"
    assert failed.manifests[IMAGE].checks["oci"][-1].reason == reason
    output = "".join(f"      | {line}\n" for line in ("/", "HOME=/tmp", "OTHER=x"))
    assert said(site).endswith(f"failed, oci in ...\n    oci/environment: {reason}\n{output}")
    assert site.built() == []
    assert json.loads((folder / "manifest.json").read_text())["emulated_runs"] == ["oci"]
    evidence = json.loads((folder / "evidence/oci.json").read_text())
    assert evidence["predicate"]["configuration"][0]["annotations"]["emulator"] == "qemu"
    results["sh"] = done(env("HOME=/tmp", directory="/"))
    state = ImageState(work="build", text="")  # as it was before another builder made it
    monkeypatch.setattr("builder.verify.main_job.state_of_image", lambda *_: state)
    assert site.job(verify=True).manifests[IMAGE].outcome == "verified", "not what failed"


def test_an_image_that_this_machine_cannot_verify_is_not_finished(
    site: Site, results: dict[str, Any]
) -> None:
    site.recipes, folder = [ONE_ALONE], site.root / "out" / IMAGE
    results["error"] = MissingPrerequisite("no user namespaces")
    untried = site.job(verify=True)
    assert untried.exit_code == 4
    assert "  oci: no user namespaces" in str(untried.errors[IMAGE])
    assert not (folder / "manifest.json").exists()
    log = (folder / "build.log").read_text()
    assert re.findall(r"FROM \S+ AS (\S+)", log) == ["one-development", "runtime"]
    del results["error"]
    finished = site.job(verify=True).manifests[IMAGE]
    assert finished.outcome == "verified"
    assert (folder / "build.log").read_text() == log, "the build was an earlier run's"
    assert "oci" in finished.durations_s
    assert site.said.getvalue().count("packing the OCI layout") == 1
    (folder / "evidence/oci.json").write_text("{}")
    for verify, end in ((False, "unchanged, verified"), (True, "verified, oci in ...")):
        (folder / "failed-step.json").touch()
        assert site.job(verify=verify).exit_code == 0
        assert not (folder / "failed-step.json").exists()
        assert said(site).endswith(f"{end}\n")


# ---- On workers ----


class Elsewhere(ThreadExecutor):
    """A worker of another machine, which fills output folders with what it makes."""

    def __init__(self, site: Site, *, verify: bool) -> None:
        super().__init__(threads=1, stop=lambda: None)
        self.pools = (Pool(name="x86", architectures=("x86_64",), gpus=1),)
        self.seconds: dict[str, float] = {}
        self.started: list[Task] = []
        self._site, self._verify = site, verify

    def capacity(self) -> list[Worker]:
        return [Worker(name="tcp://n1", machine="n1", pool=self.pools[0])]

    def start(self, task: Task, attempt: Attempt) -> None:
        self.started.append(task)
        super().start(dataclasses.replace(task, work=lambda: self._carry_out(task.kind)), attempt)

    def _carry_out(self, kind: str) -> None:
        if kind == ("verify" if self._verify else "image"):
            self._site.job(jobs=1, verify=self._verify)

    def accept(self, attempt: Attempt) -> None:
        self.seconds[attempt.name] = 41.5


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.usefixtures("results")
def test_an_image_is_made_by_workers(
    verify: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.recipes, site.host = [ONE_ALONE], HOST
    (site.root / "out").mkdir()
    settings = BuildSettings(
        project=site.root / "project",
        engine="fake",
        out=site.root / "out",
        formats=("oci",),
        verify=verify,
    )
    elsewhere = Elsewhere(site, verify=verify)
    results = run_job(site.run(settings), site.specs(), jobs=1, elsewhere=elsewhere)
    assert (results.exit_code, list(results.errors)) == (0, [])
    image = results.manifests[IMAGE]
    assert image.outcome == ("verified" if verify else "built")
    kinds = ["base", "stage", "image", *(["verify"] if verify else [])]
    assert [task.kind for task in elsewhere.started] == kinds
    native = Requirement(arch="x86_64", native=True)
    assert [task.requires for task in elsewhere.started] == [
        *([Requirement(arch="x86_64")] * 3),
        *([native] if verify else []),
    ]
    assert [task.number for task in elsewhere.started] == [0] * len(kinds)
    known = json.loads((site.home.path / "durations.json").read_text())
    assert {known[f"fake {task.label}"] for task in elsewhere.started} == {41.5}
    end = f"{IMAGE}: {image.outcome}, oci in {sum(image.durations_s.values()):.0f} s"
    assert site.said.getvalue().splitlines()[-1].endswith(end)
    again = Elsewhere(site, verify=verify)
    results = run_job(site.run(settings), site.specs(), jobs=1, elsewhere=again)
    assert (list(results.manifests), again.started) == ([IMAGE], [])
    assert said(site).endswith(f"{IMAGE}: unchanged, {image.outcome}\n")

    def breaks(_kind: str) -> None:
        raise StepFailed("the build failed", tail=["oh"])

    monkeypatch.setattr(again, "_carry_out", breaks)
    verbose = site.run(dataclasses.replace(settings, verbose=True, cache=False))
    [error] = run_job(verbose, site.specs(), jobs=1, elsewhere=again).errors.values()
    assert "| oh" in str(error), "what workers print is not shown as it comes"
