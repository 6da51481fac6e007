"""Jinja2 expressions over a cell, in the strings of recipes and checks.

A string that is one expression and nothing else (`"{{ mpi.development }}"`) keeps the type of its
value; a list that stands in a list is spliced into it. Everything else renders to text. A name
that does not exist is an error, never an empty string.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from builder import facts
from builder.model import GENERIC, NONE, RUNTIME, BaseImage, Cell, PlannedCuda, PlannedMpi
from builder.model.inputs import Lock, source_folder

_WHOLE = re.compile(r"\A\s*\{\{((?:(?!\}\}).)*)\}\}\s*\Z", re.DOTALL)


class TemplateError(ValueError):
    """A template does not parse, or names something that does not exist."""


class TemplateSyntax(TemplateError):
    """A template does not parse."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiNames:
    """`mpi` in a template. Without an MPI, `family` is `none` and the lists are empty."""

    family: str
    version: str
    development: tuple[str, ...]
    runtime: tuple[str, ...]
    route: str = "package"

    @property
    def library(self) -> str:
        """Return the name that this version of the library gives itself."""
        if self.family == NONE:
            return ""
        return facts.MPI_FAMILIES[self.family].library.format(version=self.version)

    def launch(self, ranks: int) -> str:
        """Return the command prefix that starts `ranks` ranks on one node."""
        if self.family == NONE:
            return ""
        return facts.MPI_FAMILIES[self.family].launch.format(ranks=ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseNames:
    """`base` in a template."""

    name: str
    distribution: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaNames:
    """`cuda` in a template. Without a CUDA, `version` is `none` and the rest is empty.

    `capabilities` are those that nvcc compiles for, as plain numbers: 70. `driver` is the least.
    """

    version: str
    route: str
    capabilities: tuple[str, ...]
    gcc: str
    driver: str = ""

    @property
    def dashed(self) -> str:
        """The version as NVIDIA's packages write it: 12-4."""
        return self.version.replace(".", "-")

    @property
    def gencode(self) -> str:
        """Flags for nvcc: code for each capability, and PTX of the newest for those to come."""
        flags = [f"-gencode arch=compute_{n},code=sm_{n}" for n in self.capabilities]
        newest = [f"-gencode arch=compute_{n},code=compute_{n}" for n in self.capabilities[-1:]]
        return " ".join([*flags, *newest])


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeNames:
    """`recipe` in a template: the recipe that the image is made of, not an ancestor."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceNames:
    """`sources.NAME` in a template: a file of the recipe's own `sources`.

    `url` is for the argument of that name of a block, which fetches and unpacks it; `file` is the
    path in the image, for commands.
    """

    url: str
    file: str


class _AnySource(dict[str, SourceNames]):
    """A source for every name, to test templates before the recipe's own sources are known."""

    def __missing__(self, key: str) -> SourceNames:
        return SourceNames(url=f"https://sample.example/{key}.tar.gz", file=f"/sample/{key}.tar.gz")


def source_names(
    recipe: str, sources: Mapping[str, Sequence[str]], lock: Lock
) -> dict[str, SourceNames]:
    """`sources` in the templates of one recipe: the locked URL of each, else its first."""
    return {
        name: SourceNames(url=lock.asked(urls), file=source_file(recipe, urls, lock=lock))
        for name, urls in sources.items()
    }


def source_file(recipe: str, urls: Sequence[str], *, lock: Lock) -> str:
    """Return the path in the image of a recipe's source, by its alternatives."""
    return f"{source_folder(recipe)}/{posixpath.basename(lock.asked(urls))}"


def names(
    cell: Cell, base: BaseImage, mpi: PlannedMpi | None, cuda: PlannedCuda | None = None
) -> dict[str, object]:
    """Return the names that a template can refer to for one cell."""
    return {
        "arch": cell.arch,
        "base": BaseNames(name=base.name, distribution=base.distribution, version=base.version),
        "cuda": CudaNames(
            version=cell.cuda,
            route=cuda.route if cuda else "",
            capabilities=cuda.capabilities if cuda else (),
            gcc=(cuda.gcc or cuda.packages.gcc) if cuda else "",
            driver=cuda.driver if cuda else "",
        ),
        "cpu": cell.cpu,
        "flavour": cell.flavour,
        "mpi": MpiNames(
            family=mpi.family if mpi else NONE,
            version=mpi.version if mpi else NONE,
            development=mpi.development if mpi else (),
            runtime=mpi.runtime if mpi else (),
            route=mpi.route if mpi else "",
        ),
        "recipe": RecipeNames(name=cell.recipe, version=cell.recipe_version),
        "sources": {},  # each recipe's own: source_names
    }


def sample_names() -> dict[str, object]:
    """Names of the shape that `names` gives, to try a template before any cell is known."""
    return {
        "arch": "x86_64",
        "base": BaseNames(name="debian13", distribution="debian", version="13"),
        "cuda": CudaNames(
            version="12.4", route="image", capabilities=("70",), gcc="13", driver="525.60.13"
        ),
        "cpu": GENERIC,
        "flavour": RUNTIME,
        "mpi": MpiNames(
            family="openmpi", version="5.0.7", development=("mpi-dev",), runtime=("mpi",)
        ),
        "recipe": RecipeNames(name="sample", version="1.0"),
        "sources": _AnySource(),
    }


VALID_NAMES = (
    "arch, base.name, base.distribution, base.version, cpu, cuda.version, cuda.dashed, cuda.route, "
    "cuda.capabilities, cuda.gencode, cuda.gcc, cuda.driver, flavour, mpi.family, mpi.version, "
    "mpi.route, mpi.development, mpi.runtime, mpi.launch(RANKS), mpi.library, recipe.name, "
    "recipe.version, sources.NAME.url, sources.NAME.file"
)


def render(value: object, context: Mapping[str, object]) -> Any:
    """Return `value` with every string in it rendered; raises `TemplateError`."""
    if isinstance(value, str):
        return _render_text(value, context)
    if isinstance(value, Mapping):
        return {key: render(item, context) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _spliced(render(item, context) for item in value)
    return value


def _render_text(text: str, context: Mapping[str, object]) -> object:
    if "{" not in text:
        return text
    try:
        match = _WHOLE.match(text)
        if match:
            return _plain(_expression(match[1])(**context))
        return _template(text).render(**context)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateSyntax(str(error).rstrip(".")) from error
    except Exception as error:  # an expression can raise anything
        raise TemplateError(str(error)) from error


def _plain(value: object) -> object:
    if isinstance(value, jinja2.Undefined):
        str(value)  # a strict undefined value raises here, with its name
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, int, float, bool)):
        return value
    raise TemplateError(f"the expression gives a {type(value).__name__}, not text or a list")


def _scalar(value: object) -> object:
    """Let text, numbers and undefined names (which raise by themselves) into a longer text."""
    if isinstance(value, (str, int, float, jinja2.Undefined)):
        return value
    raise TemplateError(f"an expression within a text gives a {type(value).__name__}, not text")


class _Unknown(jinja2.StrictUndefined):
    """A name that does not exist; of the mapping `sources`, the error lists those that do."""

    @property
    def _undefined_message(self) -> str:
        holder = self._undefined_obj
        if not isinstance(holder, Mapping):
            return super()._undefined_message
        return (
            f"unknown source {self._undefined_name!r}; its recipe has {', '.join(holder) or 'none'}"
        )


# Sandboxed: a recipe from elsewhere must be safe to look at, as `plan` does.
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=_Unknown, finalize=_scalar, keep_trailing_newline=True
)
_ENVIRONMENT.globals.clear()


def _spliced(items: Iterable[object]) -> list[object]:
    return [part for item in items for part in (item if isinstance(item, list) else [item])]


@functools.lru_cache(maxsize=4096)
def _expression(source: str) -> Callable[..., object]:
    return _ENVIRONMENT.compile_expression(source, undefined_to_none=False)


@functools.lru_cache(maxsize=4096)
def _template(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)
