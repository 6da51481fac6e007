"""One cell's rehearsal: every step of its spec, handed to the trials that know something of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from builder.compile.lint.reading import read
from builder.model import PlannedImage, Spec
from builder.model.architectures import ARCHITECTURES
from builder.verify.rehearse import modules
from builder.verify.rehearse.conda_pins import CondaTrials
from builder.verify.rehearse.flags import FlagTrials
from builder.verify.rehearse.imports import LibraryTrials, import_trials
from builder.verify.rehearse.packages import PackageTrials, installed_by
from builder.verify.rehearse.pip_commands import PipInstall, pip_installs, target_of
from builder.verify.rehearse.python_pins import PythonTrials
from builder.verify.rehearse.source_urls import SourceTrials
from builder.verify.rehearse.steps import Step, steps_of
from builder.verify.rehearse.trials import TOOLKIT, CellTrials, Trial, failed, in_order, passed
from builder.verify.rehearse.workspace import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """Rehearses cells; what several have in common is asked of servers once."""

    python: PythonTrials
    conda: CondaTrials
    sources: SourceTrials
    packages: PackageTrials
    libraries: LibraryTrials
    new_workspace: Callable[[Spec], Workspace]

    def of(self, spec: Spec) -> CellTrials:
        """Every trial of one cell. Nothing is built, and nothing of a recipe is executed."""
        image, steps = spec.image, steps_of(read(spec, locked=False))
        workspace = self.new_workspace(spec)
        trials = [*self._of_sources(image, steps, workspace)]
        target = target_of(image)
        commands = tuple(pip_installs(steps, target)) if target else ()
        trials += [
            *self.sources.locked(spec.sources),
            *self.sources.of(steps),
            *self.packages.of(steps, image),
            *self.python.of(steps, target),
            *self.conda.of(steps, image.cell.arch),
            *self._of_libraries(steps, commands),
            *self._of_imports(steps, commands, workspace),
        ]
        return CellTrials(
            image=image.identifier, content_key=image.content_key, trials=in_order(trials)
        )

    def _of_sources(
        self, image: PlannedImage, steps: tuple[Step, ...], workspace: Workspace
    ) -> Iterator[Trial]:
        """What clones, patches and compilers' options come to, step by step."""
        flags, toolkit = FlagTrials(image), ToolkitTrials(image)
        for step in steps:
            workspace.follow(step)
            yield from flags.of(step, workspace)
            yield from toolkit.of(step)
        yield from workspace.trials

    def _of_libraries(
        self, steps: tuple[Step, ...], commands: tuple[PipInstall, ...]
    ) -> Iterator[Trial]:
        installed = {name for step in steps if step.final for name in installed_by(step)}
        for command in commands:
            packages = self.python.packages(command)
            yield from self.libraries.of(packages, installed, command.step.line)

    def _of_imports(
        self, steps: tuple[Step, ...], commands: tuple[PipInstall, ...], workspace: Workspace
    ) -> Iterator[Trial]:
        names = {*modules.of_distribution(name for step in steps for name in installed_by(step))}
        for command in commands:
            resolved = [package.name for package in self.python.packages(command)]
            names |= {*modules.of_packages(resolved or _named(command))}
            names |= {name for url in command.others for name in modules.of_archive(url)}
        names |= {name for clone in workspace.cloned for name in modules.of_repository(clone.url)}
        for folder in workspace.copied():
            yield from import_trials(workspace, folder, names)


def _named(command: PipInstall) -> list[str]:
    return [name.partition("==")[0] for name in command.requirements]


_BARE = re.compile(r"--with-cuda(=yes)?")
_WITH = re.compile(r"--with-cuda=(?P<home>/.*)")
_NVIDIAS = re.compile(r"(?<![\w/])/usr/local/cuda(?![\w.-])")
_STUBS = re.compile(r"/\S*/lib64/stubs")
# A step that looks in several places.
_SEARCHES = frozenset({"for", "if", "then", "do", "test", "["})
_HEADERS = "https://packages.debian.org/trixie/amd64/nvidia-cuda-dev/filelist"


class ToolkitTrials:
    """Tries the steps of images whose toolkit is the distribution's: it is below /usr."""

    def __init__(self, image: PlannedImage) -> None:
        cuda = image.cuda
        self._is_concerned = cuda is not None and cuda.route == "distribution"
        self._stubs = f"/usr/lib/{ARCHITECTURES[image.cell.arch].triplet}/stubs"

    def of(self, step: Step) -> Iterator[Trial]:
        if not self._is_concerned or step.program in _SEARCHES:
            return
        words = [*step.argv, *step.variables.values()]
        options = [word for word in words if _BARE.fullmatch(word) or _WITH.fullmatch(word)]
        text = " ".join(words)
        subject = " ".join(options) or step.program
        if problem := self._problem(text, options) or self._of_ucx(step, text, options):
            yield failed(TOOLKIT, subject, f"{problem} ({_HEADERS})", step.line)
        elif options:
            yield passed(TOOLKIT, subject, "the toolkit's headers and stubs are there", step.line)

    def _of_ucx(self, step: Step, text: str, options: list[str]) -> str:
        """UCX's configure links the driver's library: https://github.com/openucx/ucx (cuda.m4)."""
        if options and "/ucx" in step.folder and self._stubs not in text:
            return f"UCX looks for stubs below lib64 alone, and they are in {self._stubs}"
        return ""

    def _problem(self, text: str, options: list[str]) -> str:
        if any(map(_BARE.fullmatch, options)):
            return "configure looks for /usr/local/cuda, and the distribution's toolkit is in /usr"
        if found := _NVIDIAS.search(text):
            return f"there is no {found[0]}: the distribution's toolkit is in /usr"
        if found := _STUBS.search(text):
            return f"there is no {found[0]}: the toolkit's stubs are in {self._stubs}"
        return ""
