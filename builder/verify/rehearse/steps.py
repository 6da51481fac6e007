"""The commands of a spec, each with its working directory and its variables; and those of pip."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.compile.lint.reading import DOCKERFILE, SHELL, Reading, SpecCommand, words_of
from builder.model import PlannedImage
from builder.model.versions import version_order

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_HOME = "/"
_GROUPING = frozenset({"{", "}", ";"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command of a Dockerfile's RUN. `folder` is where it runs; `variables` are set for it.

    `argv` excludes the assignments before the command. `line` is its line in the Dockerfile;
    `layer` is the number of the RUN; `final` marks the last stage. A command that `has_fallback`
    may fail: another command follows after `||`.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    folder: str
    line: int
    layer: int
    final: bool
    has_fallback: bool

    @property
    def program(self) -> str:
        """The command's name, without its folder."""
        return posixpath.basename(self.argv[0])

    def path(self, name: str) -> str:
        """Return the absolute path of a path in the command."""
        return posixpath.normpath(posixpath.join(self.folder, name))


def steps_of(reading: Reading) -> tuple[Step, ...]:
    """Return every command of the Dockerfile; `cd` and `export` hold until the RUN ends."""
    return tuple(_steps(reading))


def _steps(reading: Reading) -> Iterator[Step]:
    layer, folder, exported = -1, _HOME, dict[str, str]()
    for command in reading.commands:
        if command.file != DOCKERFILE or command.kind != SHELL:
            continue
        if command.layer != layer:
            layer, folder, exported = command.layer, _HOME, {}
        for words, has_fallback in _alternatives(command):
            variables, argv = _assignments(words)
            if not argv:
                exported |= variables
            elif argv[0] == "export":
                exported |= _assignments(tuple(filter(_ASSIGNMENT.fullmatch, argv)))[0]
            elif argv[0] == "cd" and len(argv) > 1:
                folder = _HOME if argv[1] == "-" else posixpath.join(folder, argv[1])
            else:
                yield Step(
                    argv=argv,
                    variables={**exported, **variables},
                    folder=posixpath.normpath(folder),
                    line=command.line,
                    layer=command.layer,
                    final=command.final,
                    has_fallback=has_fallback,
                )


def _alternatives(command: SpecCommand) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the commands of a group `{ a || b ; }`, each with whether a fallback follows it."""
    words: list[str] = []
    for word in words_of(command.text):
        if word == "||":
            yield tuple(words), True
            words = []
        elif word not in _GROUPING:
            words.append(word.removesuffix(";"))
    yield tuple(words), False


def _assignments(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    variables: dict[str, str] = {}
    for count, word in enumerate(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            return variables, words[count:]
        variables[match[1]] = match[2]
    return variables, ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """The arguments of a command: values by option, options without a value, and the others."""

    values: Mapping[str, Sequence[str]]
    flags: Sequence[str]
    words: Sequence[str]

    def all(self, *names: str) -> list[str]:
        """Return all values of an option, which may have several names."""
        return [value for name in names for value in self.values.get(name, ())]

    def last(self, *names: str) -> str:
        """Return the last value of an option; empty without one."""
        return (self.all(*names) or [""])[-1]


def arguments_of(words: Sequence[str], with_value: Collection[str] = ()) -> Arguments:
    """Parse arguments; the options `with_value` take a value: `-p 1`, `-p1`, `--strip=1`."""
    values: dict[str, list[str]] = {}
    flags, others = list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in with_value:
            values.setdefault(word, []).append(next(rest, ""))
        elif equals and name in with_value:
            values.setdefault(name, []).append(value)
        elif word[:2] in with_value:
            values.setdefault(word[:2], []).append(word[2:])
        elif word.startswith("-"):
            flags.append(word)
        else:
            others.append(word)
    return Arguments(values=values, flags=flags, words=others)


# ---- Commands that install Python packages ----

_PIP = re.compile(r"pip(3(\.\d+)?)?")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")  # files, as pip sees them
_MINICONDA = re.compile(r"Miniconda3-py(3)(\d+)_")
_INDEX, _EXTRA_INDEX = ("--index-url", "-i"), "--extra-index-url"
_REQUIREMENTS, _EDITABLE = ("--requirement", "-r"), ("--editable", "-e")
# Options of `pip install` that take a value.
_WITH_VALUE = (
    *(*_INDEX, _EXTRA_INDEX, *_REQUIREMENTS, *_EDITABLE),
    *("--constraint", "-c", "--target", "-t", "--find-links", "-f"),
    *("--config-settings", "--global-option", "--build-option", "--install-option", "--prefix"),
    *("--root", "--src", "--progress-bar", "--cache-dir", "--cert", "--proxy", "--log"),
    *("--timeout", "--retries", "--trusted-host", "--report", "--no-binary", "--only-binary"),
)


# pip accepts manylinux_X_Y wheels since 20.3: https://pip.pypa.io/en/stable/news/
_PERENNIAL = (20, 3)
# Legacy names, their glibc (PEP 513, 571 and 599), and the first pip that accepts them.
_LEGACY = (("manylinux2014", 17, (19, 3)), ("manylinux2010", 12, (19, 0)), ("manylinux1", 5, ()))
# No older wheels are made for ppc64le and aarch64: https://github.com/pypa/manylinux
_FIRST_GLIBC = {"x86_64": 5}
_FIRST_GLIBC_ELSEWHERE = 17
_FLAG_M_UNTIL = (3, 7)  # the ABI's name is cp37m, but cp38 for the next version
# The last pip for each Python: https://pip.pypa.io/en/stable/news/
_LAST_PIP = {(3, 6): "21.3.1", (3, 7): "24.0", (3, 8): "25.0.1"}
_NEWEST_PIP = "25.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonTarget:
    """One Python on one distribution, by the versions of Python, pip and glibc."""

    arch: str
    python: str
    pip: str
    glibc: str

    @property
    def short(self) -> str:
        """The target as messages name it: `Python 3.6, glibc 2.27, ppc64le`."""
        major, minor = self.series
        return f"Python {major}.{minor}, glibc {self.glibc}, {self.arch}"

    @property
    def series(self) -> tuple[int, int]:
        version = Version(self.python)
        return version.major, version.minor

    @property
    def abi(self) -> str:
        major, minor = self.series
        return f"cp{major}{minor}{'m' if self.series <= _FLAG_M_UNTIL else ''}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms whose wheels its pip accepts, the newest first."""
        pip, first = version_order(self.pip), _FIRST_GLIBC.get(self.arch, _FIRST_GLIBC_ELSEWHERE)
        last = Version(self.glibc).minor
        perennial = range(last, first - 1, -1) if pip >= _PERENNIAL else ()
        names = [
            *(f"manylinux_2_{minor}" for minor in perennial),
            *(name for name, glibc, since in _LEGACY if first <= glibc <= last and pip >= since),
            "linux",
        ]
        return tuple(f"{name}_{self.arch}" for name in names)

    @property
    def tags(self) -> frozenset[Tag]:
        return frozenset(
            [
                *cpython_tags(self.series, [self.abi], self.platforms),
                *compatible_tags(self.series, self.abi.removesuffix("m"), self.platforms),
            ]
        )

    def upgraded(self) -> PythonTarget:
        """Return the target with the newest pip that its Python runs."""
        return replace(self, pip=_LAST_PIP.get(self.series, _NEWEST_PIP))


def target_of(image: PlannedImage) -> PythonTarget | None:
    """Return an image's own Python of the distribution; None if the tables of facts lack it."""
    system = image.system
    if system is None or not system.python:
        return None
    return PythonTarget(
        arch=image.cell.arch, python=system.python, pip=system.pip, glibc=system.glibc
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PipInstall:
    """One `pip install`. `requirements` come from an index, `others` are folders, files and URLs.

    `environment` is the folder of the virtual environment, empty for the distribution's Python;
    `installed` are the packages that commands before it pinned there, by canonical name.
    """

    step: Step
    target: PythonTarget
    environment: str
    requirements: tuple[str, ...]
    others: tuple[str, ...]
    index: str
    extra_indexes: tuple[str, ...]
    is_isolated: bool
    with_dependencies: bool
    installed: Mapping[str, str]
    upgrades: bool

    @property
    def subject(self) -> str:
        return " ".join(["pip install", *self.requirements, *self.others])


def pip_installs(steps: Iterable[Step], system: PythonTarget) -> Iterator[PipInstall]:
    """Yield every `pip install` of a spec, in order. `system` is the distribution's Python."""
    targets: dict[str, PythonTarget] = {"": system}
    pins: dict[str, dict[str, str]] = {}
    for step in steps:
        targets.update(_new_environments(step, system))
        words = _install_words(step)
        if words is None:
            continue
        folder = posixpath.dirname(step.argv[0])
        environment = posixpath.dirname(folder) if folder != "/usr/bin" else ""
        target = targets.get(environment, system)
        installed = pins.setdefault(environment, {})
        command = _parsed(step, words, target, environment, dict(installed))
        yield command
        if command.upgrades and command.requirements == ("pip",):
            targets[environment] = target.upgraded()
        for requirement in map(Requirement, command.requirements):
            for specifier in requirement.specifier:
                if specifier.operator == "==":
                    installed[canonicalize_name(requirement.name)] = specifier.version


def _new_environments(step: Step, system: PythonTarget) -> Iterator[tuple[str, PythonTarget]]:
    """Yield the environment that Miniconda's installer makes in a step; venv's have `system`."""
    if "-p" in step.argv and (match := _MINICONDA.search(" ".join(step.argv))):
        prefix = step.argv[step.argv.index("-p") + 1]
        python = replace(system, python=f"{match[1]}.{match[2]}.0").upgraded()
        yield posixpath.normpath(prefix), python


def _install_words(step: Step) -> tuple[str, ...] | None:
    words = step.argv
    if _PYTHON.fullmatch(step.program) and words[1:3] == ("-m", "pip"):
        words = words[2:]
    elif not _PIP.fullmatch(step.program):
        return None
    return words[words.index("install") + 1 :] if "install" in words[1:] else None


def _parsed(
    step: Step,
    words: tuple[str, ...],
    target: PythonTarget,
    environment: str,
    installed: dict[str, str],
) -> PipInstall:
    arguments = arguments_of(words, _WITH_VALUE)
    requirements = tuple(filter(_is_index_requirement, arguments.words))
    return PipInstall(
        step=step,
        target=target,
        environment=environment,
        requirements=requirements,
        others=(
            *(word for word in arguments.words if word not in requirements),
            *(f"-e {path}" for path in arguments.all(*_EDITABLE)),
            *(f"-r {path}" for path in arguments.all(*_REQUIREMENTS)),
        ),
        index=arguments.last(*_INDEX),
        extra_indexes=tuple(arguments.all(_EXTRA_INDEX)),
        is_isolated="--no-build-isolation" not in arguments.flags,
        with_dependencies="--no-deps" not in arguments.flags,
        installed=installed,
        upgrades=not {"--upgrade", "-U"}.isdisjoint(arguments.flags),
    )


def _is_index_requirement(word: str) -> bool:
    try:
        return not Requirement(word).url and not word.endswith(_ARCHIVES)
    except InvalidRequirement:
        return False
