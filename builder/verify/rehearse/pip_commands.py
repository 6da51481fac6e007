"""The commands of a spec that install Python packages, and the environments they install into."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name

from builder.compile.lint.dockerfile import read_dockerfile
from builder.model import PlannedImage, Spec
from builder.model.versions import version_order
from builder.verify.rehearse.steps import Step

_PIP = re.compile(r"pip(3(\.\d+)?)?")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")  # files, as pip sees them
_MINICONDA = re.compile(r"Miniconda3-py(3)(\d+)_")
# Options of `pip install` that take a value and are not looked at.
_WITH_VALUE = (
    *("--config-settings", "--global-option", "--build-option", "--install-option", "--prefix"),
    *("--root", "--src", "--progress-bar", "--cache-dir", "--cert", "--proxy", "--log"),
    *("--timeout", "--retries", "--trusted-host", "--report", "--no-binary", "--only-binary"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PipInstall:
    """One `pip install`. `requirements` come from an index, `others` are folders, files and URLs.

    `environment` is the folder of the virtual environment, empty for the distribution's Python;
    `installed` are the packages that commands before it pinned there, by canonical name.
    """

    step: Step
    target: Target
    environment: str
    requirements: tuple[str, ...]
    others: tuple[str, ...]
    index: str
    extra_indexes: tuple[str, ...]
    constraints: tuple[str, ...]
    is_isolated: bool
    with_dependencies: bool
    installed: Mapping[str, str]
    upgrades: bool = False

    @property
    def subject(self) -> str:
        return " ".join(["pip install", *self.requirements, *self.others])


def pip_installs(steps: Iterable[Step], system: Target) -> Iterator[PipInstall]:
    """Every `pip install` of a spec, in its order. `system` is the distribution's Python."""
    targets: dict[str, Target] = {"": system}
    pins: dict[str, dict[str, str]] = {}
    for step in steps:
        targets.update(_made_environment(step, system))
        words = _install_words(step)
        if words is None:
            continue
        environment = _environment(step)
        target = targets.get(environment, system)
        installed = pins.setdefault(environment, {})
        command = _parsed(step, words, target, environment, dict(installed))
        yield command
        if command.upgrades and command.requirements == ("pip",):
            targets[environment] = target.upgraded()
        installed.update(_pinned(command.requirements))


def _made_environment(step: Step, system: Target) -> dict[str, Target]:
    """The environment that a step makes: by Python's venv, or by Miniconda's installer."""
    if _PYTHON.fullmatch(step.program) and step.argv[1:3] == ("-m", "venv"):
        return {posixpath.normpath(step.argv[-1]): system}
    found = next((match for word in step.argv if (match := _MINICONDA.search(word))), None)
    if found and "-p" in step.argv:
        prefix = step.argv[step.argv.index("-p") + 1]
        python = replace(system, python=f"{found[1]}.{found[2]}.0").upgraded()
        return {posixpath.normpath(prefix): python}
    return {}


def _install_words(step: Step) -> tuple[str, ...] | None:
    """The words after `pip install`; None for any other command."""
    words = step.argv
    if _PYTHON.fullmatch(step.program) and words[1:3] == ("-m", "pip"):
        words = words[2:]
    elif not _PIP.fullmatch(step.program):
        return None
    return words[words.index("install") + 1 :] if "install" in words[1:] else None


def _environment(step: Step) -> str:
    folder = posixpath.dirname(step.argv[0])
    return posixpath.dirname(folder) if folder and folder != "/usr/bin" else ""


def _parsed(
    step: Step, words: tuple[str, ...], target: Target, environment: str, installed: dict[str, str]
) -> PipInstall:
    given, _ = _parser().parse_known_intermixed_args([word for word in words if word != "--"])
    requirements = tuple(word for word in given.what if _is_index_requirement(word))
    others = [word for word in given.what if word not in requirements]
    others += [f"-e {path}" for path in given.editable] + [f"-r {path}" for path in given.files]
    return PipInstall(
        step=step,
        target=target,
        environment=environment,
        requirements=requirements,
        others=tuple(others),
        index=given.index or "",
        extra_indexes=tuple(given.extra),
        constraints=tuple(given.constraints),
        is_isolated=not given.no_isolation,
        with_dependencies=not given.no_deps,
        installed=installed,
        upgrades=given.upgrade,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("what", nargs="*")
    parser.add_argument("--index-url", "-i", dest="index")
    parser.add_argument("--extra-index-url", dest="extra", action="append", default=[])
    parser.add_argument("--constraint", "-c", dest="constraints", action="append", default=[])
    parser.add_argument("--requirement", "-r", dest="files", action="append", default=[])
    parser.add_argument("--editable", "-e", dest="editable", action="append", default=[])
    parser.add_argument("--target", "-t")
    parser.add_argument("--find-links", "-f", action="append")
    parser.add_argument("--no-build-isolation", dest="no_isolation", action="store_true")
    parser.add_argument("--no-deps", dest="no_deps", action="store_true")
    parser.add_argument("--upgrade", "-U", action="store_true")
    for name in _WITH_VALUE:
        parser.add_argument(name, action="append")
    for name in ("--no-cache-dir", "--user", "--ignore-installed", "--quiet", "-q", "--no-compile"):
        parser.add_argument(name, action="store_true")
    return parser


def _is_index_requirement(word: str) -> bool:
    try:
        return not Requirement(word).url and not word.endswith(_ARCHIVES)
    except InvalidRequirement:
        return False


def _pinned(requirements: Iterable[str]) -> dict[str, str]:
    """The versions that requirements name exactly, by canonical name."""
    found: dict[str, str] = {}
    for requirement in map(Requirement, requirements):
        for specifier in requirement.specifier:
            if specifier.operator == "==":
                found[canonicalize_name(requirement.name)] = specifier.version
    return found


# pip takes manylinux_X_Y wheels since 20.3, manylinux2014 since 19.3, manylinux2010 since 19.0:
# https://pip.pypa.io/en/stable/news/. There are no older ones for ppc64le and aarch64:
# https://github.com/pypa/manylinux
_PERENNIAL, _OF_2014, _OF_2010 = (20, 3), (19, 3), (19, 0)
# glibc of the legacy names: PEP 513, 571 and 599.
_LEGACY = (("manylinux1", 5), ("manylinux2010", 12), ("manylinux2014", 17))
_FIRST = {"x86_64": 5}
_FIRST_ELSEWHERE = 17
_FLAG_M_UNTIL = (3, 7)  # the ABI is called cp37m, and cp38 since
# The last pip for each Python: https://pip.pypa.io/en/stable/news/
_LAST_PIP = {(3, 6): "21.3.1", (3, 7): "24.0", (3, 8): "25.0.1"}
_NEWEST_PIP = "25.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One Python on one distribution, by the versions of Python, pip and glibc."""

    arch: str
    python: str
    pip: str
    glibc: str

    @property
    def short(self) -> str:
        """As messages name it: `Python 3.6, glibc 2.27, ppc64le`."""
        series = ".".join(map(str, self.series))
        return f"Python {series}, glibc {self.glibc}, {self.arch}"

    @property
    def series(self) -> tuple[int, int]:
        major, minor, *_ = (*version_order(self.python), 0, 0)
        return int(major), int(minor)

    @property
    def abi(self) -> str:
        flag = "m" if self.series <= _FLAG_M_UNTIL else ""
        return f"cp{''.join(map(str, self.series))}{flag}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms whose wheels its pip takes, the newest first."""
        return tuple(f"{name}_{self.arch}" for name in (*self._manylinux(), "linux"))

    @property
    def tags(self) -> frozenset[Tag]:
        interpreter = f"cp{''.join(map(str, self.series))}"
        return frozenset(
            [
                *cpython_tags(self.series, [self.abi], self.platforms),
                *compatible_tags(self.series, interpreter, self.platforms),
            ]
        )

    def upgraded(self) -> Target:
        """The same with the newest pip that its Python runs."""
        return Target(
            arch=self.arch,
            python=self.python,
            pip=_LAST_PIP.get(self.series, _NEWEST_PIP),
            glibc=self.glibc,
        )

    def _manylinux(self) -> list[str]:
        pip, least = version_order(self.pip), _FIRST.get(self.arch, _FIRST_ELSEWHERE)
        minor = int(self.glibc.partition(".")[2] or 0)
        names = (
            [f"manylinux_2_{n}" for n in range(minor, least - 1, -1)] if pip >= _PERENNIAL else []
        )
        since = {"manylinux2014": _OF_2014, "manylinux2010": _OF_2010}
        for name, glibc in reversed(_LEGACY):
            if least <= glibc <= minor and pip >= since.get(name, (0,)):
                names.append(name)
        return names


def target_of(image: PlannedImage) -> Target | None:
    """The distribution's own Python of an image; None where the tables of facts do not know it."""
    system = image.system
    if system is None or not system.python:
        return None
    return Target(arch=image.cell.arch, python=system.python, pip=system.pip, glibc=system.glibc)


def copied_texts(spec: Spec) -> dict[str, str]:
    """The texts of a spec's files, at the paths where its COPY instructions put them."""
    texts = {}
    for instruction in read_dockerfile(spec.dockerfile).named("COPY"):
        if "--from" in instruction.flags:
            continue
        *sources, target = instruction.words
        for source in sources:
            is_folder = target.endswith("/") or len(sources) > 1
            path = posixpath.join(target, posixpath.basename(source)) if is_folder else target
            if source in spec.files:
                texts[posixpath.normpath(path)] = spec.files[source]
    return texts
