"""One cell's rehearsal: every step of its spec, handed to the trials that know something of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from builder.compile.lint.reading import read
from builder.model import PlannedImage, Spec
from builder.verify.rehearse import modules
from builder.verify.rehearse.conda_pins import CondaTrials
from builder.verify.rehearse.flags import FlagTrials
from builder.verify.rehearse.imports import import_trials
from builder.verify.rehearse.libraries import LibraryTrials
from builder.verify.rehearse.package_names import PackageTrials, installed_by
from builder.verify.rehearse.pip_commands import PipInstall, pip_installs
from builder.verify.rehearse.python_pins import PythonTrials
from builder.verify.rehearse.source_urls import SourceTrials
from builder.verify.rehearse.steps import Step, steps_of
from builder.verify.rehearse.targets import target_of
from builder.verify.rehearse.toolkit import ToolkitTrials
from builder.verify.rehearse.trials import CellTrials, Trial, in_order
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
