"""The input files as values: recipes, base images, checks, the matrix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from builder.facts import NO_FACTS, Facts
from builder.facts.tables import Where
from builder.model.cells import NONE, OWN
from builder.model.digests import sha256_of_json
from builder.model.site import Layers, Site, at_digest

LOCK = "lock.yaml"
DEBIAN_SOURCE = "debian-source:"  # debian-source:PACKAGE/VERSION, upstream's part of a package
LOCAL_SOURCE = "local:"  # local:PATH, a file of the project: an archive that may not be passed on
WHEEL_SOURCE = "wheel:"  # wheel:NAME/VERSION/ARCHITECTURE[/PYTHON], of the Python package index
SDIST_SOURCE = "sdist:"  # sdist:NAME/VERSION, the source distribution of a release on that index
INDEX_SOURCES = (WHEEL_SOURCE, SDIST_SOURCE)
LOOKED_UP = (DEBIAN_SOURCE, *INDEX_SOURCES)  # the lock has the names of their files


def source_folder(recipe: str) -> str:
    """Return the folder in an image for a recipe's source files, which its steps remove."""
    return f"/opt/build-images/sources/{recipe}"


def public_url(url: str) -> str:
    """Return a URL without a user, a password or a query: those may be secrets."""
    parts = urlsplit(url)
    if not parts.netloc:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def locked_url(asked: str) -> str:
    """Return the URL by which a source is locked, for a URL in a block."""
    return asked.rpartition("/")[0] if asked.startswith(LOOKED_UP) else asked


def _with_file(url: str) -> str:
    """Return a URL for a block before it is locked; file names that are looked up are guessed."""
    if url.startswith(DEBIAN_SOURCE):
        package, _, version = url.removeprefix(DEBIAN_SOURCE).partition("/")
        return f"{url}/{package}_{version}.orig.tar.xz"
    for kind, ending in ((WHEEL_SOURCE, "whl"), (SDIST_SOURCE, "tar.gz")):
        if url.startswith(kind):
            return f"{url}/{url.removeprefix(kind).replace('/', '-')}.{ending}"
    return url


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedSource:
    """One file that is downloaded while an image is built.

    `url` is what recipes and hpccm's blocks ask for; `mirrors` are URLs of the same bytes. `file`
    is its name, `sha256` in hexadecimal, `size` in bytes. `recipes` are those whose blocks ask for
    it. `path` is where a Debian archive holds the file, for `debian-source:` alone. `line` is its
    line in lock.yaml.
    """

    url: str
    file: str
    sha256: str
    size: int
    mirrors: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    path: str = ""
    line: int = field(default=0, compare=False)

    @property
    def asked(self) -> str:
        """The URL for blocks; its last part is always the file's name."""
        return f"{self.url}/{self.file}" if self.url.startswith(LOOKED_UP) else self.url

    @property
    def in_context(self) -> str:
        """The file's path in a spec's folder, from which the specs copy it."""
        return f"files/sources/{self.sha256[:12]}/{self.file}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """Pins of lock.yaml: sources by URL, and digests (`sha256:...`) by reference and arch."""

    sources: Mapping[str, LockedSource] = field(default_factory=dict)
    references: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def over(self, below: Lock) -> Lock:
        """Return the pins of both; these replace those below."""
        return Lock(
            sources={**below.sources, **self.sources},
            references={**below.references, **self.references},
        )

    def beyond(self, below: Lock) -> Lock:
        """Return the pins that are not below, or differ there."""
        return Lock(
            sources={
                url: source
                for url, source in self.sources.items()
                if below.sources.get(url) != source
            },
            references={
                key: digest
                for key, digest in self.references.items()
                if below.references.get(key) != digest
            },
        )

    def of_stages(self, stages: Mapping[str, Collection[str]]) -> tuple[LockedSource, ...]:
        """Return the sources of some recipes, by URL; `stages` maps each to the URLs that it names.

        A wheel is that of the stages that name it, whichever recipes it was locked for: which do
        depends on the cell.
        """
        sources: list[LockedSource] = []
        for source in self.sources.values():
            if source.url.startswith(WHEEL_SOURCE):
                if users := tuple(name for name, urls in stages.items() if source.url in urls):
                    sources.append(replace(source, recipes=users))
            elif not stages.keys().isdisjoint(source.recipes):
                sources.append(source)
        return tuple(sorted(sources, key=lambda source: source.url))

    def asked(self, urls: Sequence[str]) -> str:
        """Return the locked one of several alternatives as a URL for blocks; else the first."""
        locked = next((self.sources[url].asked for url in urls if url in self.sources), "")
        return locked or _with_file(urls[0])

    def pinned(self, reference: str, arch: str) -> str:
        """Return `name@sha256:...` for a locked reference, and any other unchanged."""
        return at_digest(reference, self.references.get((reference, arch), ""))


_BASE_FORMAT = "3"  # raised when the same declaration would make another base


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockUse:
    """One hpccm building block or primitive of a recipe, with arguments that may hold templates.

    Two names are not hpccm's: `cuda` and `mpi` stand for the cell's toolkit and MPI, by whichever
    route the cell has them. `when` maps axes to patterns: the block is for cells that they match.
    `lines` gives the line of each argument, by name; `files` the texts of the project's files
    that the block copies, by path below `files/`.
    """

    name: str
    arguments: Mapping[str, Any]
    where: Where
    lines: Mapping[str, int] = field(default_factory=dict)
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def place_of(self, argument: str) -> Where:
        """Return the place of an argument: the block's own line if it is not given."""
        line = self.lines.get(argument, self.where.line)
        return Where(file=self.where.file, line=line, key=f"{self.where.key}.{argument}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One file under `recipes/`. `limits` narrows axes for this recipe and its children.

    `sources` maps a name to URLs of a file, the first choice first. `command` are the words that
    the image runs by itself, `entrypoint` those before any command; a child has its own or its
    ancestor's.
    """

    name: str
    version: str
    about: str
    where: Where
    parent: str | None = None
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    development: tuple[BlockUse, ...] = ()
    runtime: tuple[BlockUse, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """Arguments by which mmdebstrap makes a base's root file system from a Debian mirror.

    `pockets` are suites beside the release itself: `updates`, `security`, `backports`.
    """

    suite: str
    components: tuple[str, ...]
    keyring: str
    packages: tuple[str, ...] = ()
    pockets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedMpi:
    """An MPI that a base's distribution packages. `version` is upstream's, without revision.

    `environment` is what its programs need to be found, where they are in no usual folder. `pmix`
    is the PMIx that it is packaged with (`4.2`), which may be newer than upstream's own; empty if
    that is not known, or there is none.
    """

    family: str
    version: str
    development: tuple[str, ...]
    runtime: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    pmix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedCuda:
    """A CUDA toolkit that a base's distribution packages, or an addition to one (NCCL, cuDNN).

    `gcc` is the major version of the host compiler that its nvcc uses by default. `prepare` are
    commands before its packages are installed, `clean` commands after them: in each stage.
    """

    version: str
    development: tuple[str, ...]
    runtime: tuple[str, ...]
    gcc: str = ""
    capabilities: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    clean: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, PackagedExtra] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedExtra:
    """An addition to a CUDA toolkit: `cudnn` or `nccl`, as packages of both stages."""

    version: str
    development: tuple[str, ...]
    runtime: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaSupport:
    """The routes by which a base gets CUDA.

    `image` ends the tags of NVIDIA's images (`ubuntu18.04`), `repository` names NVIDIA's package
    repository (`ubuntu1804`): builder.facts says for which releases and architectures they exist.
    `distribution` holds the toolkits that the distribution packages itself. `wheels`: NVIDIA's
    wheels run on the base.
    """

    image: str = ""
    repository: str = ""
    distribution: tuple[PackagedCuda, ...] = ()
    wheels: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOfLife:
    """End of a distribution's updates: since when (ISO date), and where its packages are now."""

    since: str
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """One file under `base-images/`.

    Its root file system comes from `bootstrap`, or from a registry: `references` maps an
    architecture to an image reference. `hpccm_distro` is what hpccm is told (of Debian the nearest
    Ubuntu). `gcc` are the major versions of its packaged compilers, its default first. `prepare`
    are the first commands of every stage. `mirrors` are the archives that the site names for it.
    """

    name: str
    about: str
    distribution: str
    version: str
    hpccm_distro: str
    architectures: tuple[str, ...]
    where: Where
    bootstrap: Bootstrap | None = None
    references: Mapping[str, str] = field(default_factory=dict)
    mpi: tuple[PackagedMpi, ...] = ()
    cuda: CudaSupport = field(default_factory=CudaSupport)
    gcc: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    end_of_life: EndOfLife | None = None
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One test that runs inside the container, from `tests/images/checks.yaml`.

    `sources` are files beside it. `build` are commands of the development stage that make the
    program `$OUT/<name>` from `$SRC`. `run` is the command inside the image: exit status 0 is
    passed, 77 skipped (Automake's convention), anything else failed; its last line of standard
    output is the reason or the finding. `needs` names what must be there: mpi, gpu.
    """

    name: str
    about: str
    run: str
    timeout_s: int
    where: Where
    sources: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclude:
    """Cells that the maintainer leaves out: `when` maps axes (and `recipe`) to patterns."""

    when: Mapping[str, tuple[str, ...]]
    reason: str
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatingTag:
    """A tag of a recipe's repository that moves (`latest`): the cell that it means today."""

    recipe: str
    tag: str
    base: str
    where: Where
    cuda: str = NONE
    mpi: str = NONE


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """`matrix.yaml`: the values of each axis in order, what is excluded, the default selection.

    `files` names the file that the values of an axis are from, and `inherited` has the values that
    the axes have in the layer below.
    """

    axes: Mapping[str, tuple[str, ...]]
    where: Where
    excludes: tuple[Exclude, ...] = ()
    default: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tags: tuple[FloatingTag, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """All input files of a project, loaded and free of faults. Names are in file order.

    `lock` has the pins of all layers, `inherited` those of the lower ones.
    """

    layers: Layers
    matrix: Matrix
    recipes: Mapping[str, Recipe]
    bases: Mapping[str, BaseImage]
    checks: Mapping[str, Check]
    facts: Facts = NO_FACTS
    site: Site = field(default_factory=Site)
    lock: Lock = field(default_factory=Lock)
    inherited: Lock = field(default_factory=Lock)

    def chain(self, recipe: str) -> tuple[Recipe, ...]:
        """Return a recipe's ancestors and the recipe itself, the oldest first."""
        recipes: list[Recipe] = []
        name: str | None = recipe
        while name is not None:
            recipes.append(self.recipes[name])
            name = recipes[-1].parent
        return tuple(reversed(recipes))


def base_name(base: BaseImage, arch: str) -> str:
    """Return the base as specs name it: a reference, or a local name with its declaration's key."""
    if base.bootstrap is None:
        return base.references[arch]
    return f"{OWN}{base.name}:{declared_key(base, arch)[:12]}-{arch}"


def declared_key(base: BaseImage, arch: str) -> str:
    """Return a SHA-256 over what the base's file declares, the mirror left out."""
    bootstrap = base.bootstrap
    assert bootstrap is not None
    packages = (bootstrap.suite, bootstrap.components, bootstrap.pockets, bootstrap.packages)
    return sha256_of_json([_BASE_FORMAT, base.name, arch, *packages])
