"""What decides which files an image can install: its Python, C library, compiler, architecture."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from packaging.tags import Tag, compatible_tags, cpython_tags

from builder.compile.lint.dockerfile import read_dockerfile
from builder.facts.versions import version_order
from builder.model import PlannedImage, Spec

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
