"""Options of compilers against the compiler that the image has."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.facts.software import GCC_FLAGS, NVCC_FLAGS, CompilerFlag
from builder.model import PlannedImage
from builder.model.versions import version_order
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import FLAGS, Trial, failed, not_tried, passed
from builder.verify.rehearse.workspace import Workspace

_GCC = frozenset({"cc", "c++", "gcc", "g++", "gfortran", "mpicc", "mpicxx", "mpic++", "mpifort"})
_NVCC = "nvcc"
_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "FCFLAGS")
_IN_SOURCES = re.compile(r"""['"](-{1,2}(?:std|march|mcpu|mtune)=[\w.+-]+)['"]""")
_SETUP = "setup.py"


class FlagTrials:
    """Tries the options of one image's compilers, and of the setup.py that it runs."""

    def __init__(self, image: PlannedImage) -> None:
        self._gcc = image.base.gcc[0] if image.base.gcc else ""
        self._base = image.base.name
        self._cuda = image.cuda.version if image.cuda else ""

    def of(self, step: Step, workspace: Workspace) -> Iterator[Trial]:
        if step.program in _GCC:
            yield from self._trials(step, step.argv[1:], step.program)
        elif step.program == _NVCC:
            yield from self._nvcc(step)
        else:
            named = [word for name in _VARIABLES for word in step.variables.get(name, "").split()]
            yield from self._trials(step, named, step.program)
        if folder := _builds_python(step):
            yield from self._of_setup(step, folder, workspace)

    def _of_setup(self, step: Step, folder: str, workspace: Workspace) -> Iterator[Trial]:
        path = posixpath.join(folder, _SETUP)
        text = workspace.read(path)
        if text is None:
            if not workspace.is_at_hand(folder):
                reason = "its sources are not at hand"
                yield not_tried(FLAGS, f"options in {path}", reason, step.line)
            return
        for number, line in enumerate(text.splitlines(), start=1):
            found = [] if line.lstrip().startswith("#") else _IN_SOURCES.findall(line)
            yield from self._trials(step, found, f"{path}:{number}")

    def _trials(
        self, step: Step, words: Iterator[str] | list[str] | tuple[str, ...], who: str
    ) -> Iterator[Trial]:
        for word in words:
            if flag := _known(GCC_FLAGS, word):
                yield self._against(step, flag, word, who, "gcc", self._gcc)

    def _nvcc(self, step: Step) -> Iterator[Trial]:
        for word in step.argv[1:]:
            if flag := _known(NVCC_FLAGS, word):
                yield self._against(step, flag, word, _NVCC, "CUDA", self._cuda)

    def _against(
        self, step: Step, flag: CompilerFlag, word: str, who: str, name: str, has: str
    ) -> Trial:
        subject = f"{word} in {who}"
        if not has:
            reason = f"which {name} {self._base} has is not known"
            return not_tried(FLAGS, subject, reason, step.line)
        needs = f"{name} takes {flag.name} since {flag.since} ({flag.source})"
        if version_order(has) < version_order(flag.since):
            return failed(FLAGS, subject, f"the image has {name} {has}, and {needs}", step.line)
        return passed(FLAGS, subject, f"{needs}; the image has {has}", step.line)


def _known(table: tuple[CompilerFlag, ...], word: str) -> CompilerFlag | None:
    name = f"-{word.lstrip('-')}"
    return next((flag for flag in table if flag.name == name), None)


def _builds_python(step: Step) -> str:
    """The folder whose setup.py a step runs; empty for any other step."""
    if _SETUP in step.argv:
        return step.folder
    is_pip = step.program.startswith("pip") and "install" in step.argv
    return step.folder if is_pip and "." in step.argv else ""
