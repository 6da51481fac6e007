"""Steps that run on a stand-in: with which Dockerfiles, and for which images they do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from samples import base, shipped_project
from test_rehearse_steps import ask, cell
from test_stages import FakeEngine, Site, made_site  # noqa: F401 - one is a fixture

from builder.build import stages
from builder.build.engines import DockerfileBuild, Tools
from builder.build.run import BuildSettings, Run
from builder.model import PlannedImage, Spec
from builder.model.cells import base_tag, rehearsal_tag
from builder.model.errors import StepFailed
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify import stand_ins
from builder.verify.rehearse.trials import FAILED, NOT_TRIED, PASSED, Trial

STEPS = "RUN cc --version\nRUN make lost\n"
DOCKERFILE = f"FROM ubuntu:24.04 AS dev\n{STEPS}FROM ubuntu:24.04 AS runtime\nRUN ldconfig\n"


class KeepingEngine(FakeEngine):
    """Keeps the Dockerfiles that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def build(self, build: DockerfileBuild) -> None:
        self.texts.append((build.context / "Dockerfile").read_text())
        super().build(build)


@pytest.fixture(name="prepared")
def prepared_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[PlannedImage]]:
    """The images that runs are prepared for, on a machine that has all that it needs."""
    calls: list[Sequence[PlannedImage]] = []

    def prepare(
        options: BuildSettings,
        progress: Progress,
        images: Sequence[PlannedImage],
        *,
        todo: int,
        held: ExitStack,
    ) -> Run:
        assert todo == 1, "one at a time; without any, nothing that is missing would be said"
        del held
        calls.append(images)
        tools = Tools(processes=Processes(), home=site.home)
        return Run(
            settings=options, tools=tools, engine=site.engine, progress=progress, host=host_facts()
        )

    project = dataclasses.replace(shipped_project(), bases={"debian13": base()})
    monkeypatch.setattr(stand_ins, "load_project", lambda *_, **__: project)
    monkeypatch.setattr(stand_ins, "prepare", prepare)
    site.engine = KeepingEngine()
    return calls


def trials_of(site: Site, *images: PlannedImage) -> list[list[Trial]]:
    """The trials of the steps of specs for images, which are all tried in one run."""
    options = BuildSettings(
        project=site.root / "project", engine="fake", out=site.home.rehearsals, formats=("oci",)
    )
    specs = [Spec(image=one, dockerfile=DOCKERFILE, singularity="", files={}) for one in images]
    site.home.rehearsals.mkdir(parents=True, exist_ok=True)
    with stand_ins.steps_on_stand_ins(options, specs, Progress(stream=site.said), ask) as tried:
        return [tried(spec) for spec in specs]


UBUNTU = cell("ubuntu22.04")
TAG = rehearsal_tag(UBUNTU.identifier, "dev")
ON_BASE = base_tag("sha256:1")


def of_ubuntu24(image: PlannedImage) -> PlannedImage:
    return dataclasses.replace(
        image,
        base=shipped_project().bases["ubuntu24.04"],
        base_image="ubuntu:24.04",
        runtime_image="ubuntu:24.04",
    )


def test_each_step_is_built_on_what_the_stage_was_before(
    site: Site,
    prepared: list[Sequence[PlannedImage]],
) -> None:
    """A stage begins with the stand-in; a step that failed changes nothing for those after it."""
    site.engine.fails["make lost"] = StepFailed("fake: exit status 2", tail=["no rule for lost"])
    for _ in range(2):  # the second finds the log and the names of the first
        [trials] = trials_of(site, of_ubuntu24(UBUNTU))
        assert [(one.outcome, one.line) for one in trials][:2] == [(PASSED, 2), (FAILED, 3)]
        assert trials[1].text.endswith("no rule for lost")
        assert trials[2].outcome == PASSED
    log = site.home.rehearsals / f"{UBUNTU.identifier}.log"
    assert trials[1].hint == f"complete output: {log}"
    assert log.read_text().count("base ") == 1
    texts: Any = site.engine.texts  # type: ignore[attr-defined]
    assert (
        texts[:3]
        == texts[3:]
        == [
            f"FROM {ON_BASE} AS step\nRUN cc --version\n",
            f"FROM {TAG} AS step\nRUN make lost\n",
            f"FROM {ON_BASE} AS step\nRUN ldconfig\n",
        ]
    )
    assert not (site.home.work / f"rehearsal-{UBUNTU.identifier}").exists()
    [image] = prepared[0]
    assert (image.base.name, image.is_bootstrapped) == ("debian13", True)
    assert "on debian13: RUN make lost" in site.said.getvalue()


def test_images_without_a_stand_in_are_not_tried(
    site: Site,
    prepared: list[Sequence[PlannedImage]],
) -> None:
    """Nothing is prepared where no image has one."""
    alma = cell("almalinux8")
    reason = "the project makes no base of the family of almalinux8"
    for images in ([alma], [of_ubuntu24(UBUNTU), alma]):
        [*others, trials] = trials_of(site, *images)
        [trial] = trials
        assert (trial.outcome, trial.subject, trial.text) == (NOT_TRIED, "all steps", reason)
        assert all(one.outcome == PASSED for trials in others for one in trials)
    assert [len(images) for images in prepared] == [1]


def test_a_base_that_cannot_be_made_is_no_failure(
    site: Site,
    prepared: list[Sequence[PlannedImage]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unmade(*_: object, **__: object) -> None:
        raise StepFailed("mmdebstrap of debian13 for x86_64: exit status 25")

    monkeypatch.setattr(stages, "ensure_base", unmade)
    [[trial]] = trials_of(site, of_ubuntu24(UBUNTU))
    assert (trial.outcome, trial.subject) == (NOT_TRIED, "all steps")
    assert trial.text.startswith("debian13 for x86_64 cannot be made: mmdebstrap of")
    assert len(prepared) == 1
