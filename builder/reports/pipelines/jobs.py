"""What a pipeline has to do: jobs as values, the same for every CI system."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from builder.model import GENERIC, RUNTIME, Cell, PlannedImage, Selection
from builder.model.errors import BadInput

NO_RUNNER = "none"
EMULATING = "x86_64"  # the architecture whose runners stand in for those that there are none of
# What both systems call an environment: what is set for it reaches the jobs that name it alone.
ENVIRONMENT = "registry"
PROGRAM = ".venv/bin/build-images"
SECRET_KEY, KEYLESS = "env://COSIGN_PRIVATE_KEY", "keyless"
# Minutes. GitHub ends a job after six hours, GitLab.com's default is one hour.
# https://docs.github.com/en/actions/reference/limits
NATIVE_MINUTES, EMULATED_MINUTES = 120, 350


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One image to be built and verified, on a runner with this label (GitLab says tag)."""

    image: str
    runner: str
    emulated: bool
    selectors: str

    @property
    def key(self) -> str:
        """A name of letters, digits, hyphens and underscores that begins with a letter."""
        return job_key(self.image)

    @property
    def title(self) -> str:
        return f"{self.image}{' (emulated)' if self.emulated else ''}"

    @property
    def minutes(self) -> int:
        return EMULATED_MINUTES if self.emulated else NATIVE_MINUTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """Images that are one in the registry: the same but for their architecture.

    `selectors` name the architectures, too: those are what the registry's index is to have.
    """

    name: str
    jobs: tuple[Job, ...]
    selectors: str
    runner: str

    @property
    def key(self) -> str:
        return f"publish-{job_key(self.name)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """All jobs. `command` is what prints the pipeline, `key` what signs: see `publish --key`."""

    jobs: tuple[Job, ...]
    publications: tuple[Publication, ...]
    command: str
    key: str = SECRET_KEY

    @property
    def is_keyless(self) -> bool:
        """True if the identity of the job that publishes signs, by cosign."""
        return self.key == KEYLESS

    @property
    def setup(self) -> str:
        """The command that sets a publishing job up."""
        return f"ci/retry ci/setup images{' --with-cosign' if self.is_keyless else ''}"

    def publishing(self, one: Publication, registry: str) -> str:
        """The command that publishes; `registry` is a variable of the shell, `$NAME`."""
        command = f"ci/retry {PROGRAM} publish {one.selectors}"
        return f'{command} --to "{registry}" --key {self.key} --attach-failures'


def pipeline_of(
    images: Sequence[PlannedImage],
    runners: Mapping[str, str],
    *,
    command: str,
    key: str = SECRET_KEY,
) -> Pipeline:
    """The jobs for images in build order; `runners` are labels of runners by architecture.

    Raises BadInput where there is no runner for x86_64, which emulates the others.
    """
    known = {arch: label for arch, label in runners.items() if label != NO_RUNNER}
    if EMULATING not in known:
        raise BadInput(f"no runner for {EMULATING}", hint=f"--native-runner {EMULATING}=LABEL")
    jobs = {image.identifier: _job(image.cell, known) for image in images}
    groups: dict[str, list[Cell]] = {}
    for image in images:
        groups.setdefault(image.identifier.removesuffix(f"-{image.cell.arch}"), []).append(
            image.cell
        )
    return Pipeline(
        jobs=tuple(jobs.values()),
        publications=tuple(
            Publication(
                name=name,
                jobs=tuple(jobs[cell.identifier] for cell in cells),
                selectors=f"{_selectors(*cells)} {_architectures(cells)}",
                runner=known[EMULATING],
            )
            for name, cells in groups.items()
        ),
        command=command,
        key=key,
    )


def _job(cell: Cell, runners: Mapping[str, str]) -> Job:
    return Job(
        image=cell.identifier,
        runner=runners.get(cell.arch, runners[EMULATING]),
        emulated=cell.arch not in runners,
        selectors=_selectors(cell),
    )


def _selectors(*cells: Cell) -> str:
    """The options that select these cells and no others; they differ in architecture alone."""
    words = [word for cell in cells for word in ("--image", cell.identifier)]
    if cells[0].flavour != RUNTIME:
        words += ["--flavour", cells[0].flavour]
    if cells[0].cpu != GENERIC:
        for target in sorted({cell.cpu for cell in cells}):
            words += ["--cpu-target", target]
    return shlex.join(words)


def _architectures(cells: Sequence[Cell]) -> str:
    return shlex.join([word for cell in cells for word in ("--arch", cell.arch)])


def job_key(text: str) -> str:
    """https://docs.github.com/en/actions/reference/workflow-syntax-for-github-actions#jobsjob_id"""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def words_of(selection: Selection) -> list[str]:
    """A selection as the command line has it."""
    words = [f"--{name}={one}" for name, some in selection.patterns.items() for one in some]
    words += [f"--image={one}" for one in selection.images]
    words += [f"--flavour={one}" for one in selection.flavours if selection.flavours != (RUNTIME,)]
    targets = selection.cpu_targets
    words += [f"--cpu-target={one}" for one in targets if targets != (GENERIC,)]
    return [*words, *(["--all"] if selection.everything else [])]


HEADER = """\
# Made by: {command}
# Change recipes or matrix.yaml, not this file, and print it again. docs/ci.md tells of it.
"""


class _Dumper(yaml.SafeDumper):
    """Without anchors and aliases, and with lists indented."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(pipeline: Pipeline, document: Mapping[str, object]) -> str:
    """The text of a pipeline, with a head that says where it comes from."""
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return HEADER.format(command=pipeline.command) + body
