"""Pipelines for CI systems, made from the plan: a job per image, and a job per publication.

Planned images become the text of one YAML file. All differences between images are decided here;
the YAML has jobs, but no logic. The same images give the same text. docs/ci.md describes it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from builder import __version__
from builder.model import GENERIC, RUNTIME, Cell, PlannedImage, Selection
from builder.model.errors import BadInput
from builder.reports.templates import text_environment

# Labels of the systems' own runners; none is ppc64le:
# https://docs.github.com/en/actions/reference/github-hosted-runners-reference
# https://docs.gitlab.com/ci/runners/hosted_runners/linux/
RUNNERS: Mapping[str, Mapping[str, str]] = {
    "github": {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"},
    "gitlab": {"x86_64": "saas-linux-medium-amd64", "aarch64": "saas-linux-medium-arm64"},
}
_NO_RUNNER = "none"
_EMULATING = "x86_64"  # architecture of the runners that emulate the others
_PROGRAM = ".venv/bin/build-images"
# Sets a job up that has no clone of build-images; in a clone, ci/setup does.
INSTALL = (
    "apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3-venv"
    f" && python3 -m venv .venv && .venv/bin/pip install build-images=={__version__}"
    f" && {_PROGRAM} setup"
)
SECRET_KEY, KEYLESS = "env://COSIGN_PRIVATE_KEY", "keyless"
# Minutes. GitHub ends a job after six hours, GitLab.com's default is one hour.
# https://docs.github.com/en/actions/reference/limits
_NATIVE_MINUTES, _EMULATED_MINUTES = 120, 350


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineJob:
    """A job that builds and verifies one image; `runner` is a label (in GitLab: a tag).

    At night it builds with today's packages (`$REFRESH`): an image that did not change gets the
    same digest.
    """

    image: str
    runner: str
    emulated: bool
    selectors: str

    @property
    def minutes(self) -> int:
        return _EMULATED_MINUTES if self.emulated else _NATIVE_MINUTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Images with one tag in the registry, which differ only in their architecture.

    `selectors` also name the architectures, all of which the registry's index must have.
    """

    name: str
    jobs: tuple[PipelineJob, ...]
    selectors: str
    runner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """All jobs; `command` prints the pipeline, and `key` signs: see `publish --key`.

    Unless the project `has_scripts`, as a clone has in ci/, jobs install the program with pip.
    """

    jobs: tuple[PipelineJob, ...]
    publications: tuple[Publication, ...]
    command: str
    key: str = SECRET_KEY
    has_scripts: bool = True

    @property
    def is_keyless(self) -> bool:
        """True if cosign signs with the identity of the publishing job."""
        return self.key == KEYLESS

    @property
    def setup(self) -> str:
        """The command that sets a job up."""
        return f"{self._retry}ci/setup images" if self.has_scripts else INSTALL

    @property
    def publishing_setup(self) -> str:
        """The command that sets a publishing job up."""
        return f"{self.setup}{' --with-cosign' if self.is_keyless else ''}"

    @property
    def _retry(self) -> str:
        return "ci/retry " if self.has_scripts else ""

    def building(self, job: PipelineJob) -> str:
        """Return the command that builds and verifies."""
        return f"{self._retry}{_PROGRAM} {job.selectors} ${{REFRESH:+--refresh}}"

    def publishing(self, publication: Publication, registry: str) -> str:
        """Return the command that publishes; `registry` is a variable of the shell, `$NAME`."""
        command = f"{self._retry}{_PROGRAM} publish {publication.selectors}"
        return f'{command} --to "{registry}" --key {self.key} --attach-failures'


def pipeline_of(
    images: Sequence[PlannedImage],
    runners: Mapping[str, str],
    *,
    command: str,
    key: str = SECRET_KEY,
    has_scripts: bool = True,
) -> Pipeline:
    """Return the jobs for images in build order; `runners` are labels of runners by architecture.

    Raises BadInput where there is no runner for x86_64, which emulates the others.
    """
    labels = {arch: label for arch, label in runners.items() if label != _NO_RUNNER}
    if _EMULATING not in labels:
        raise BadInput(f"no runner for {_EMULATING}", hint=f"--native-runner {_EMULATING}=LABEL")
    emulating = labels[_EMULATING]
    jobs: dict[str, PipelineJob] = {}
    groups: dict[str, list[Cell]] = {}
    for cell in (image.cell for image in images):
        jobs[cell.identifier] = PipelineJob(
            image=cell.identifier,
            runner=labels.get(cell.arch, emulating),
            emulated=cell.arch not in labels,
            selectors=_selectors(cell),
        )
        groups.setdefault(cell.identifier.removesuffix(f"-{cell.arch}"), []).append(cell)
    publications = tuple(
        Publication(
            name=name,
            jobs=tuple(jobs[cell.identifier] for cell in cells),
            selectors=_selectors(*cells, arches=[cell.arch for cell in cells]),
            runner=emulating,
        )
        for name, cells in groups.items()
    )
    return Pipeline(
        jobs=tuple(jobs.values()),
        publications=publications,
        command=command,
        key=key,
        has_scripts=has_scripts,
    )


def _selectors(*cells: Cell, arches: Sequence[str] = ()) -> str:
    """Return options that select exactly these cells, which differ only in architecture."""
    words = [word for cell in cells for word in ("--image", cell.identifier)]
    if cells[0].flavour != RUNTIME:
        words += ["--flavour", cells[0].flavour]
    if cells[0].cpu != GENERIC:
        words += ["--cpu-target", cells[0].cpu]
    return shlex.join([*words, *(word for arch in arches for word in ("--arch", arch))])


def selectors_of(selection: Selection) -> list[str]:
    """Return a selection as command-line options."""
    targets, flavours = selection.cpu_targets, selection.flavours
    return [
        *(f"--{name}={text}" for name, texts in selection.patterns.items() for text in texts),
        *(f"--image={image}" for image in selection.images),
        *(f"--flavour={flavour}" for flavour in flavours if flavours != (RUNTIME,)),
        *(f"--cpu-target={target}" for target in targets if targets != (GENERIC,)),
        *(["--all"] if selection.everything else []),
    ]


def pipeline_text(system: str, pipeline: Pipeline) -> str:
    """Return the YAML of a pipeline for one of the systems in `RUNNERS`."""
    environment = text_environment(
        Path(__file__).parent,
        variable_start_string="[[",  # GitHub's expressions have braces
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    environment.filters.update(scalar=_scalar, key=_key)
    return environment.get_template(f"{system}.yaml.j2").render(pipeline=pipeline)


def _scalar(text: str) -> str:
    dumped = yaml.safe_dump(text, width=math.inf, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _key(text: str) -> str:
    """https://docs.github.com/en/actions/reference/workflow-syntax-for-github-actions#jobsjob_id"""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)
