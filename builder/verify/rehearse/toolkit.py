"""Where steps look for the CUDA toolkit, against where the image has it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.facts import ARCHITECTURES
from builder.model import PlannedImage
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import TOOLKIT, Trial, failed, passed

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
