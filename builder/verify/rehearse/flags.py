"""Check options of compilers and configure against an image's compilers and CUDA toolkit."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from builder.facts.software import GCC_FLAGS, NVCC_FLAGS
from builder.model import PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.versions import version_order
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import FLAGS, TOOLKIT, Trial, failed, not_tried, passed
from builder.verify.rehearse.workspace import SourceWorkspace

_GCC = frozenset({"cc", "c++", "gcc", "g++", "gfortran", "mpicc", "mpicxx", "mpic++", "mpifort"})
_NVCC = "nvcc"
_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "FCFLAGS")
_IN_SOURCES = re.compile(r"""['"](-{1,2}(?:std|march|mcpu|mtune)=[\w.+-]+)['"]""")
_SETUP = "setup.py"


def flag_trials(image: PlannedImage, step: Step, workspace: SourceWorkspace) -> Iterator[Trial]:
    """Try the options of an image's compilers in a step, and in the setup.py that it runs."""
    if step.program in {*_GCC, _NVCC}:
        words: Iterable[str] = step.argv[1:]
    else:
        words = " ".join(step.variables.get(name, "") for name in _VARIABLES).split()
    yield from _trials(image, step, words, step.program)
    installs = step.program.startswith("pip") and {"install", "."} <= {*step.argv}
    if _SETUP not in step.argv and not installs:
        return
    path = posixpath.join(step.folder, _SETUP)
    text = workspace.read(path)
    if text is None and not workspace.is_at_hand(step.folder):
        yield not_tried(FLAGS, f"options in {path}", "its sources are not available", step.line)
    for number, line in enumerate((text or "").splitlines(), start=1):
        if not line.lstrip().startswith("#"):
            yield from _trials(image, step, _IN_SOURCES.findall(line), f"{path}:{number}")


def _trials(image: PlannedImage, step: Step, words: Iterable[str], place: str) -> Iterator[Trial]:
    if step.program == _NVCC:
        name, version = "CUDA", image.cuda.version if image.cuda else ""
        flags = {flag.name: flag for flag in NVCC_FLAGS}
    else:
        name, version = "gcc", image.base.gcc[0] if image.base.gcc else ""
        flags = {flag.name: flag for flag in GCC_FLAGS}
    for word in words:
        flag = flags.get(f"-{word.lstrip('-')}")
        if flag is None:
            continue
        subject = f"{word} in {place}"
        needs = f"{name} supports {flag.name} since {flag.since} ({flag.source})"
        if not version:
            reason = f"unknown version of {name} in {image.base.name}"
            yield not_tried(FLAGS, subject, reason, step.line)
        elif version_order(version) < version_order(flag.since):
            text = f"the image has {name} {version}, and {needs}"
            yield failed(FLAGS, subject, text, step.line)
        else:
            yield passed(FLAGS, subject, f"{needs}; the image has {version}", step.line)


_WITH_CUDA = re.compile(r"--with-cuda(=yes|=/.*)?")
_BARE = frozenset({"--with-cuda", "--with-cuda=yes"})
_NVIDIAS = re.compile(r"(?<![\w/])/usr/local/cuda(?![\w.-])")
_STUBS = re.compile(r"/\S*/lib64/stubs")
# Programs of steps that look for the toolkit in several places.
_SEARCHES = frozenset({"for", "if", "then", "do", "test", "["})
_HEADERS = "https://packages.debian.org/trixie/amd64/nvidia-cuda-dev/filelist"


def toolkit_trials(image: PlannedImage, step: Step) -> Iterator[Trial]:
    """Try a step of an image that has the distribution's CUDA toolkit, which is below /usr."""
    if not image.cuda or image.cuda.route != "distribution" or step.program in _SEARCHES:
        return
    words = [*step.argv, *step.variables.values()]
    options = [*filter(_WITH_CUDA.fullmatch, words)]
    subject = " ".join(options) or step.program
    if problem := _misplaced(image, step, " ".join(words), options):
        yield failed(TOOLKIT, subject, f"{problem} ({_HEADERS})", step.line)
    elif options:
        yield passed(TOOLKIT, subject, "the toolkit's headers and stubs are there", step.line)


def _misplaced(image: PlannedImage, step: Step, text: str, options: list[str]) -> str:
    stubs = f"/usr/lib/{ARCHITECTURES[image.cell.arch].triplet}/stubs"
    if _BARE.intersection(options):
        return "configure looks for /usr/local/cuda, but the distribution's toolkit is in /usr"
    if match := _NVIDIAS.search(text):
        return f"{match[0]} does not exist: the distribution's toolkit is in /usr"
    if match := _STUBS.search(text):
        return f"{match[0]} does not exist: the toolkit's stubs are in {stubs}"
    # UCX's configure links the driver's library: https://github.com/openucx/ucx (cuda.m4)
    if options and "/ucx" in step.folder and stubs not in text:
        return f"UCX looks for stubs only below lib64, but they are in {stubs}"
    return ""
