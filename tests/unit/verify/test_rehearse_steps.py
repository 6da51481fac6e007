"""Steps of a spec on a base that stands in: which base, which steps, and what their ends mean."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from samples import base, plan_of, shipped_project

from builder.compile.lint.reading import SpecStage
from builder.model import LockedSource, PlannedImage, Spec
from builder.model.errors import StepFailed
from builder.verify.rehearse.servers import Answer
from builder.verify.rehearse.trials import (
    FAILED,
    NOT_TRIED,
    PASSED,
    CellTrials,
    Trial,
    failed,
    passed,
    read_record,
    write_record,
)
from builder.verify.stand_ins import StandIn, StepTrials, stand_in_for

ERROR = 'Error: building at STEP "RUN ...": while running runtime: exit status 1'
DOCKERFILE = """\
FROM ubuntu:22.04 AS dev
RUN apt-get update -y && apt-get install -y gcc \\
    make
ENV A=1
RUN wget https://lost.example/a.tar && make
RUN cc --version
FROM dev AS child
RUN make child
FROM ubuntu:22.04 AS runtime
RUN ldconfig
COPY --from=dev /opt/a /opt/a
RUN /opt/a/b
COPY files/c /opt/c
LABEL a=b
"""


def cell(base_name: str, arch: str = "x86_64", *, cuda: bool = False) -> PlannedImage:
    """A shipped cell on a base."""
    return next(
        image
        for image in plan_of("mpi-release").images
        if (image.base.name, image.cell.arch) == (base_name, arch) and bool(image.cuda) == cuda
    )


class RecordedStandIn(StandIn):
    """A stand-in whose steps end as is written down: what a text holds, and the output then."""

    def __init__(self, ends: Mapping[str, tuple[str, ...]], *sources: str) -> None:
        self.name, self.log, self.sources = "debian12", "the.log", sources
        self.ends, self.begun, self.ran = ends, list[str](), list[str]()

    def begin(self, stage: SpecStage) -> None:
        self.begun.append(f"{stage.name} from {stage.source}")

    def run(self, stage: str, text: str) -> None:
        self.ran.append(f"{stage}: {text}")
        for part, tail in self.ends.items():
            if part in text:
                raise StepFailed("the engine failed", tail=tail)


def ask(url: str) -> Answer:
    silent = "lost.example" in url
    return Answer(has=None, text="lost.example is silent") if silent else Answer(has=True)


def tried(
    stand_in: RecordedStandIn, dockerfile: str = DOCKERFILE, *, cuda: bool = False
) -> list[Trial]:
    image = cell("ubuntu22.04", cuda=cuda)
    spec = Spec(image=image, dockerfile=dockerfile, singularity="", files={})
    return list(StepTrials(spec, stand_in, ask).trials())


def only(command: str, *output: str) -> Trial:
    """The trial of a spec with one step, which ends with this output, as it fails then."""
    ends = {command: (*output, ERROR)} if output else {}
    [trial] = tried(RecordedStandIn(ends), f"FROM ubuntu:22.04 AS dev\nRUN {command}\n")
    return trial


# The base that stands in.


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [("ubuntu18.04", "debian12"), ("ubuntu22.04", "debian12"), ("ubuntu24.04", "debian13")],
)
@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
def test_debian_of_the_same_time_stands_in(name: str, stand_in: str, arch: str) -> None:
    project = shipped_project()
    image = dataclasses.replace(cell("ubuntu22.04", arch), base=project.bases[name])
    chosen = stand_in_for(image, project.bases.values())
    assert getattr(chosen, "name", chosen) == stand_in


def test_why_nothing_stands_in() -> None:
    bases = shipped_project().bases.values()
    assert "can be built" in str(stand_in_for(cell("debian12"), bases))
    assert "of the family of almalinux8" in str(stand_in_for(cell("almalinux8"), bases))
    others = [base(architectures=("aarch64",)), base(bootstrap=None)]
    assert "Debian's family for x86_64" in str(stand_in_for(cell("ubuntu22.04"), others))


# The steps, in their order.


def test_a_stage_goes_on_without_a_step_that_cannot_run() -> None:
    """What passes has passed; what fails after a step that did not run proves nothing."""
    stand_in = RecordedStandIn(
        {"make child": ("make: *** No rule", ERROR), "COPY --from": ("", 'stat: "/opt/a": no file')}
    )
    trials = tried(stand_in)
    assert [(trial.outcome, trial.line, trial.subject) for trial in trials] == [
        (PASSED, 2, "install gcc, make"),
        (NOT_TRIED, 5, "RUN wget, make"),
        (PASSED, 6, "RUN cc"),
        (NOT_TRIED, 8, "RUN make"),
        (PASSED, 10, "RUN ldconfig"),
        (NOT_TRIED, 11, "COPY --from=dev /opt/a /opt/a"),
        (PASSED, 12, "RUN b"),
    ]
    assert trials[0].text == "on debian12 in place of ubuntu22.04"
    assert trials[1].text == "it needs a server: lost.example is silent"
    needs = "it may depend on steps that did not run (Dockerfile:5): "
    assert trials[3].text == f"{needs}make: *** No rule"
    assert trials[5].text == f'{needs}stat: "/opt/a": no file'
    assert stand_in.begun == [
        "dev from ubuntu:22.04",
        "child from dev",
        "runtime from ubuntu:22.04",
    ]
    assert stand_in.ran[:2] == [
        "dev: RUN apt-get update -y && apt-get install -y gcc \\\n    make",
        "dev: ENV A=1\nRUN cc --version",
    ]
    lost = "RUN wget https://lost.example/a\n"
    text = f"FROM ubuntu:22.04 AS dev\n{lost}{lost}RUN make\n"
    trial = tried(RecordedStandIn({"make": ("no rule",)}), text)[-1]
    assert trial.text == "it may depend on steps that did not run (Dockerfile:2, 3): no rule"
    assert not any("wget" in text or "LABEL" in text for text in stand_in.ran)
    held, stand_in = 'ARG B\nSHELL ["bash"]\nUSER a\nWORKDIR /b\n', RecordedStandIn({})
    tried(stand_in, f"FROM ubuntu:22.04 AS dev\n{held}RUN make\nADD c /c\n")
    assert stand_in.ran == [f"dev: {held}RUN make", "dev: ADD c /c"]


def test_a_step_that_fails_by_itself_is_a_failure() -> None:
    trial = only("cc a.c", "a.c:1: error: x", "subprocess exited with status 1")
    assert (trial.outcome, trial.line) == (FAILED, 2)
    assert trial.text == "on debian12 in place of ubuntu22.04: a.c:1: error: x"
    assert trial.hint == "complete output: the.log"
    assert only("cc a.c").outcome == PASSED
    [silent] = tried(RecordedStandIn({"make": ()}), "FROM ubuntu:22.04 AS dev\nRUN make\n")
    assert silent.text == "on debian12 in place of ubuntu22.04: it printed nothing"
    lost = 'Error: building at STEP "COPY a b": copier: stat: "/opt/a": no such file'
    [trial] = tried(RecordedStandIn({"make": (lost,)}), "FROM ubuntu:22.04 AS dev\nRUN make\n")
    assert trial.text == 'on debian12 in place of ubuntu22.04: "/opt/a": no such file'
    assert only("test -e a", "STEP 2/2: RUN test -e a").text.endswith("22.04: exit status 1")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("E: Unable to locate package g++-9", "debian12 has no package g++-9"),
        ("E: Package 'libucx1' has no installation candidate", "debian12 has no package libucx1"),
        ("E: Version '4.1.2-2' for 'openmpi-bin' was not found", "has no package openmpi-bin"),
        ("ERROR: No matching distribution found for a==1", "pip on debian12 finds no a==1"),
        ("E: Couldn't find any package by glob 'libx*'", "debian12 has no package libx*"),
        ("E: Couldn't find any package by regex 'liby*'", "debian12 has no package liby*"),
        ("curl: (6) Could not resolve host: a.example", "needs a server that cannot be reached"),
        ("wget: unable to resolve host address", "needs a server that cannot be reached"),
        ("a.example: Name or service not known", "needs a server that cannot be reached"),
        ("Temporary failure in name resolution", "needs a server that cannot be reached"),
        ("connect: Network is unreachable", "needs a server that cannot be reached"),
    ],
)
def test_what_the_stand_in_lacks_is_no_failure(line: str, reason: str) -> None:
    trial = only("something", "Reading package lists...", line)
    assert trial.outcome == NOT_TRIED
    assert re.search(rf"{re.escape(reason)}(?!\w)", trial.text)


def test_steps_that_need_cuda_do_not_run_where_none_is() -> None:
    text = "FROM ubuntu:22.04 AS dev\nRUN nvcc a.cu\nRUN cc a.c\nCOPY files/cuda.c /opt\n"
    stand_in = RecordedStandIn({})
    trials = tried(stand_in, text, cuda=True)
    assert [(trial.outcome, trial.line) for trial in trials] == [(NOT_TRIED, 2), (PASSED, 3)]
    assert trials[0].text == "it needs CUDA, which debian12 does not have"
    assert len(stand_in.ran) == 2
    assert [trial.outcome for trial in tried(RecordedStandIn({}), text)] == [PASSED, PASSED]


@pytest.mark.parametrize(
    "command",
    [
        *("make CUDA=/opt/x", "link -lcudnn", "link -lcublas", "make nccl", "nvcc a.cu"),
        *("NVIDIA-SMI -L", "ls /usr/local/cuda"),
    ],
)
def test_what_needs_cuda_is_told_by_its_words(command: str) -> None:
    text = f"FROM ubuntu:22.04 AS dev\nRUN {command}\n"
    [trial] = tried(RecordedStandIn({}), text, cuda=True)
    assert trial.outcome == NOT_TRIED


def test_a_source_that_is_not_in_the_store_is_no_failure() -> None:
    source = LockedSource(url="https://a.example/a.tar", sha256="0" * 64, size=1, file="a.tar")
    text = f"FROM ubuntu:22.04 AS dev\nCOPY {source.in_context} /opt/a.tar\n"
    spec = Spec(
        image=cell("ubuntu22.04"), dockerfile=text, singularity="", files={}, sources=(source,)
    )
    [trial] = StepTrials(spec, RecordedStandIn({}), ask).trials()
    assert (trial.outcome, trial.line) == (NOT_TRIED, 2)
    assert trial.text == "https://a.example/a.tar is not in the store"
    assert not list(StepTrials(spec, RecordedStandIn({}, source.url), ask).trials())


# What is said of the image afterwards.


def test_steps_on_a_stand_in_change_nothing_that_is_said_of_an_image(tmp_path: Path) -> None:
    image = CellTrials(image="a", content_key="k", trials=(passed("sources", "a", "there"),))
    more = image.with_more([passed("steps", "RUN a", "x"), failed("steps", "RUN b", "y")])
    assert more.has_failed
    assert more.asked == image.asked
    folder = tmp_path / "home/records"
    write_record(folder, image, "2026-11-25")
    before = read_record(folder, "k")
    write_record(folder, more, "2026-11-25")
    assert read_record(folder, "k") == before
