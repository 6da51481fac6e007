"""Rehearse cells: give every step of a spec to the trials that apply to it.

The options of compilers and configure are tried here, against an image's compilers and its CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import json
import posixpath
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from builder.build.mirror import apt_archives, find_mirror
from builder.compile.lint.reading import read, read_dockerfile
from builder.facts.software import GCC_FLAGS, NVCC_FLAGS
from builder.load.document import Faults
from builder.load.site import read_site
from builder.model import PlannedImage, Spec
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import MissingPrerequisite
from builder.model.versions import version_order
from builder.system.home import Home
from builder.system.host_facts import own_index
from builder.system.process import Processes
from builder.verify.rehearse.imports import (
    LARGEST_WHEEL,
    LibraryTrials,
    import_trials,
    modules_of_distribution,
    modules_of_packages,
    modules_of_source,
)
from builder.verify.rehearse.packages import UBUNTU_SUITES, Archives, PackageTrials, installed_by
from builder.verify.rehearse.python_packages import CondaTrials, PythonTrials
from builder.verify.rehearse.resolution import Resolver, pip_of_this_machine
from builder.verify.rehearse.servers import Index, Servers, SourceTrials, Unavailable, read_url
from builder.verify.rehearse.steps import PipInstall, Step, pip_installs, steps_of, target_of
from builder.verify.rehearse.trials import (
    FLAGS,
    TOOLKIT,
    CellTrials,
    Trial,
    failed,
    in_order,
    not_tried,
    passed,
)
from builder.verify.rehearse.workspace import Clones, SourceWorkspace, write_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """Rehearses cells; servers are asked once for what several cells share."""

    python: PythonTrials
    conda: CondaTrials
    sources: SourceTrials
    packages: PackageTrials
    libraries: LibraryTrials
    workspace_of: Callable[[Spec], AbstractContextManager[SourceWorkspace]]

    def of(self, spec: Spec) -> CellTrials:
        """Make every trial of one cell. Nothing is built, and nothing of a recipe is executed."""
        image, steps = spec.image, steps_of(read(spec))
        target = target_of(image)
        commands = tuple(pip_installs(steps, target)) if target else ()
        trials = [
            *self._of_sources(spec, steps, commands),
            *self.sources.locked(spec.sources),
            *self.sources.of(steps),
            *self.packages.of(steps, image),
            *self.python.of(steps, target),
            *self.conda.of(steps, image.cell.arch),
            *self._of_libraries(steps, commands),
        ]
        return CellTrials(
            image=image.identifier, content_key=image.content_key, trials=in_order(trials)
        )

    def _of_sources(
        self, spec: Spec, steps: Sequence[Step], commands: Sequence[PipInstall]
    ) -> Iterator[Trial]:
        with self.workspace_of(spec) as workspace:
            for step in steps:
                workspace.follow(step)
                yield from flag_trials(spec.image, step, workspace)
                yield from toolkit_trials(spec.image, step)
            yield from workspace.trials
            yield from self._of_imports(steps, commands, workspace)

    def _of_libraries(
        self, steps: Sequence[Step], commands: Sequence[PipInstall]
    ) -> Iterator[Trial]:
        installed = {name for step in steps if step.final for name in installed_by(step)}
        for command in commands:
            packages = self.python.packages(command)
            yield from self.libraries.of(packages, installed, command.step.line)

    def _of_imports(
        self, steps: Sequence[Step], commands: Sequence[PipInstall], workspace: SourceWorkspace
    ) -> Iterator[Trial]:
        packages = [name for step in steps for name in installed_by(step)]
        modules = {*modules_of_distribution(packages)}
        for command in commands:
            resolved = [package.name for package in self.python.packages(command)]
            named = [name.partition("==")[0] for name in command.requirements]
            modules |= {*modules_of_packages(resolved or named)}
        urls = [clone.url for clone in workspace.cloned.values()]
        urls += [url for command in commands for url in command.others]
        modules |= {name for url in urls for name in modules_of_source(url)}
        for folder in workspace.copied():
            yield from import_trials(workspace, folder, modules)


# ---- This machine's servers, stores and clones ----


def rehearsal_here(
    project: Path, clones_in: Sequence[Path], home: Home, servers: Servers
) -> Rehearsal:
    """Return a rehearsal that asks the servers which this machine and the site name.

    Raises `MissingPrerequisite` where pip names no package index.
    """
    processes = Processes()
    index_url = own_index(processes)
    if not index_url:
        raise MissingPrerequisite(
            "this machine's pip names no package index", hint="pip config set global.index-url URL"
        )
    index = Index(index_url)
    clones = Clones(processes, (*clones_in, home.path / "clones"))
    resolver = Resolver(index=index, run_pip=pip_of_this_machine(processes, index_url))
    return Rehearsal(
        python=PythonTrials(resolver, servers.ask),
        conda=CondaTrials(read_channel),
        sources=SourceTrials(servers.ask, lambda source: home.source(source.sha256)),
        packages=PackageTrials(read_url, package_archives(project)),
        libraries=LibraryTrials(functools.partial(read_url, limit=LARGEST_WHEEL)),
        workspace_of=lambda spec: _workspace(processes, clones, home, spec),
    )


@contextlib.contextmanager
def _workspace(
    processes: Processes, clones: Clones, home: Home, spec: Spec
) -> Iterator[SourceWorkspace]:
    paths = {source.file: home.source(source.sha256) for source in spec.sources}
    with tempfile.TemporaryDirectory(prefix="build-images-") as folder:
        for path, text in copied_texts(spec).items():
            write_file(Path(folder, path.lstrip("/")), text.encode())
        yield SourceWorkspace(
            root=Path(folder),
            check_out=clones.check_out,
            processes=processes,
            stored={name: path for name, path in paths.items() if path.exists()},
        )


def copied_texts(spec: Spec) -> dict[str, str]:
    """Return the texts of a spec's files, at the paths where its COPY instructions put them."""
    texts = {}
    for instruction in read_dockerfile(spec.dockerfile).named("COPY"):
        if "--from" in instruction.flags:
            continue
        *sources, target = instruction.words
        for source in sources:
            is_folder = target.endswith("/") or len(sources) > 1
            path = posixpath.join(target, posixpath.basename(source)) if is_folder else target
            if source in spec.files:
                texts[posixpath.normpath(posixpath.join("/", path))] = spec.files[source]
    return texts


def package_archives(project: Path) -> Archives:
    """Return the repositories that the site names, and those that this machine's apt uses."""
    try:
        debian = find_mirror().main
    except MissingPrerequisite:
        debian = ""
    ubuntu = apt_archives({*UBUNTU_SUITES.values()})
    return Archives(named=read_site(project, Faults()).packages, debian=debian, ubuntu=ubuntu)


def read_channel(channel: str, subdir: str) -> Mapping[str, object] | str:
    """Return a channel's index; a name alone stands for one of Anaconda's channels."""
    url = channel if "://" in channel else f"https://conda.anaconda.org/{channel}"
    try:
        index: Mapping[str, object] = json.loads(
            read_url(f"{url.rstrip('/')}/{subdir}/repodata.json")
        )
    except (Unavailable, ValueError) as error:
        return str(error)
    return index


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
    installs = step.program.startswith("pip") and {"install", "."}.issubset(step.argv)
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
