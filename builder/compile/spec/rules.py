"""What a recipe must say, and what it cannot say, whatever hpccm would make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from builder.compile.spec import catalogue
from builder.compile.spec.kinds import (
    BOOLEAN,
    FLAG,
    LIST,
    MAPPING,
    TEXT,
    TEXT_OR_LIST,
    TEXT_OR_NUMBER,
    TOOLCHAIN,
    Block,
)
from builder.compile.spec.limits import limit_faults
from builder.compile.spec.registered import registered_names
from builder.model import DEVELOPMENT, TOOLKITS, BlockUse, PlannedImage
from builder.model.errors import Fault
from builder.model.inputs import LOCAL_SOURCE
from builder.model.versions import version_order

# What stands for a version: whoever names one of these has said which sources are taken.
_SOURCES = ("version", "url", "repository")
# Their packages are the distribution's, in its own version.
_OF_DISTRIBUTION = frozenset({"gnu", "llvm"})
# What decides on a version beside `version`; of each group one is enough.
_VERSIONS_TOO: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "conda": (("python_subversion",),),
    "hpcx": (("cuda", "buildlabel"),),
    "multi_ofed": (("mlnx_versions",),),
    "mvapich2_gdr": (("package", "cuda_version"), ("package", "mlnx_ofed_version")),
    "nccl": (("cuda", "build"),),
    "nvhpc": (("cuda",),),
}
# Releases before these are named by their version alone: conda.py, hpcx.py.
_VERSIONS_TOO_SINCE = {"conda": "4.8", "hpcx": "2.10"}
# They clone the newest commit of a branch where no commit is named.
_CLONES = frozenset({"amgx", "sensei", "xpmem"})

# What recipes cannot have, most of it because a definition and a Dockerfile have it not both.
NOT_FOR_RECIPES = {
    "comment": "its text has no name that YAML could give it: write # in the recipe",
    "user": "the user of a SIF is whoever starts it: the Dockerfile alone would have it",
    "workdir": "a definition keeps no working directory: name absolute paths, or cd in shell",
    "scif": "the formats would have other files by it, and a second image none: copy a SCI-F "
    "recipe, and run scif install in shell (docs/recipes.md#applications-by-sci-f)",
}
PRIMITIVES = frozenset({"copy", "environment", "label", "raw", "shell"})
# What these copy is a file of the project that lock.yaml has the checksum of: local:PATH.
LOCAL_FILES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("arm_allinea_studio", "pgi"), ("tarball",)),
    "intel_psxe": ("tarball", "license"),
    "nsight_compute": ("runfile",),
}
# A package stands for the version: of MVAPICH2-GDR by name, of NVSHMEM as a file beside the recipe.
_BY_PACKAGE = frozenset({"mvapich2_gdr", "nvshmem"})
_WITH_PACKAGE = frozenset({"generic_build", "nvhpc", "nvshmem"})
_HIDDEN = ("/tmp/", "/var/tmp/", "/dev/", "/proc/", "/sys/")  # noqa: S108 - paths in the image

TOOLCHAIN_VARIABLES = (
    *("CC", "CFLAGS", "CPPFLAGS", "CUDA_HOME", "CXX", "CXXFLAGS", "F77", "F90", "FC", "FCFLAGS"),
    *("FFLAGS", "FLIBS", "LDFLAGS", "LD_LIBRARY_PATH", "LIBS"),
)
# The blocks that leave a toolchain for those after them.
TOOLCHAINS = (
    *("arm_allinea_studio", "gnu", "hpcx", "intel_mpi", "intel_psxe", "llvm", "mpich"),
    *("mvapich2", "mvapich2_gdr", "nvhpc", "openmpi", "pgi"),
)
_TOOLCHAIN = (
    f"valid: a block before this one ({', '.join(TOOLCHAINS)}; mpi is the last MPI), or a mapping "
    f"of {', '.join(TOOLCHAIN_VARIABLES)}"
)
MPIS = ("hpcx", "intel_mpi", "mpich", "mvapich2", "mvapich2_gdr", "openmpi")


def type_faults(use: BlockUse, block: Block, *, rendered: bool) -> Iterator[Fault]:
    """Arguments of another type than the block documents.

    Before templates are rendered, texts that hold one are let through.
    """
    for argument, value in use.arguments.items():
        if rendered or not _is_template(value):
            kind = block.kind(argument)
            problem = _mismatch(kind, value)
            if problem and not (argument == "version" and _is_number(value) and not rendered):
                yield fault(use, problem, _valid(kind, value), argument)


def rule_faults(use: BlockUse, block: Block) -> Iterator[Fault]:
    """What is missing, and what only one of the two formats would have."""
    if use.name in NOT_FOR_RECIPES:
        yield fault(use, f"{use.name} is not for recipes: {NOT_FOR_RECIPES[use.name]}")
        return
    yield from _version_faults(use, block)
    yield from _format_faults(use)
    yield from _file_faults(use, block)
    if use.name in _CHECKED:
        yield from _CHECKED[use.name](use)


def _version_faults(use: BlockUse, block: Block) -> Iterator[Fault]:
    given = use.arguments
    default = _missing_version(use, block)
    if default:
        problem = f"{use.name} needs a version: hpccm would take {default}"
        sources = [name for name in _SOURCES if name in block.documented]
        yield fault(use, problem, f"valid: one of {', '.join(sources)}")
    for group in _VERSIONS_TOO.get(use.name, ()) if _names_more_than_its_version(use) else ():
        if not any(given.get(name) for name in group):
            taken = block.defaults.get(group[0])
            would = f": hpccm would take {taken}" if taken else ""
            valid = f"valid: {' or '.join(group)}"
            yield fault(use, f"{use.name} needs {' or '.join(group)}{would}", valid)
    clones = use.name in _CLONES or given.get("repository")
    if clones and not (given.get("branch") or given.get("commit")):
        problem = f"{use.name} needs a commit or a branch of the repository that it clones"
        yield fault(use, problem, "valid: commit, or branch with the name of a tag")


def _names_more_than_its_version(use: BlockUse) -> bool:
    """Return whether what a block downloads is called by more than its version, as it is named."""
    since, version = _VERSIONS_TOO_SINCE.get(use.name), use.arguments.get("version")
    if since is None or not isinstance(version, str) or _is_template(version):
        return True
    return version_order(version) >= version_order(since)


def _missing_version(use: BlockUse, block: Block) -> str:
    """The version that hpccm would take by itself; empty where the recipe names one."""
    given = use.arguments
    if use.name in _OF_DISTRIBUTION and not (given.get("upstream") or given.get("source")):
        return ""
    if "version" not in block.documented or any(given.get(name) for name in _SOURCES):
        return ""
    if use.name in _BY_PACKAGE and given.get("package"):
        return ""
    return block.defaults.get("version") or "its newest"


def _format_faults(use: BlockUse) -> Iterator[Fault]:
    for argument in use.arguments:
        private = argument.startswith("_") and use.name in PRIMITIVES
        if private or argument == "_run_arguments":
            problem = "this holds for one of Dockerfile and Singularity definition only"
            yield fault(use, problem, argument=argument)


def _file_faults(use: BlockUse, block: Block) -> Iterator[Fault]:
    for argument in LOCAL_FILES.get(use.name, ()):
        value = use.arguments.get(argument)
        if isinstance(value, str) and not value.startswith(("https://", LOCAL_SOURCE, "{{")):
            problem = f'"{value}" has no checksum'
            valid = f"valid: {LOCAL_SOURCE}PATH in the project's folder, which lock.yaml has one of"
            yield fault(use, problem, valid, argument)
    if "branch" in block.documented or use.name in _WITH_PACKAGE:
        value = use.arguments.get("package")
        if isinstance(value, str) and not value.startswith("https://"):
            problem = f'"{value}" is a file beside the recipe, and specs bring no such files'
            valid = f"valid: url, which builds can fetch, or url: {LOCAL_SOURCE}PATH"
            yield fault(use, problem, valid, "package")


def _raw_faults(use: BlockUse) -> Iterator[Fault]:
    missing = [name for name in ("docker", "singularity") if name not in use.arguments]
    if missing:
        problem = f"raw without {' and '.join(missing)}: the two formats would differ"
        valid = 'valid: {docker: ..., singularity: ...}; "" where a format really needs nothing'
        yield fault(use, problem, valid)


def _shell_faults(use: BlockUse) -> Iterator[Fault]:
    if not use.arguments.get("commands"):
        yield fault(use, "shell without commands", "valid: {commands: [make, make install]}")


def _copy_faults(use: BlockUse) -> Iterator[Fault]:
    given = use.arguments
    if "from" in given:
        yield from _copy_from_faults(use)
    if not ("files" in given) ^ ("src" in given and "dest" in given):
        yield fault(use, "copy needs src and dest, or files", "valid: {src: a.conf, dest: /etc/}")
    files = given.get("files")
    for dest in [given.get("dest"), *(files.values() if isinstance(files, Mapping) else ())]:
        if isinstance(dest, str) and not _is_template(dest):
            if not dest.startswith("/"):
                yield fault(use, f'"{dest}" is no absolute path', argument="dest")
            elif f"{dest}/".startswith(_HIDDEN):
                problem = f"Singularity cannot copy files to {dest}: it mounts over it"
                yield fault(use, problem, "valid: such as /usr/local/src/", "dest")


def _copy_from_faults(use: BlockUse) -> Iterator[Fault]:
    given = use.arguments
    if given["from"] != DEVELOPMENT:
        problem = f'there is no stage "{given["from"]}" to copy from'
        yield fault(use, problem, f"valid: {DEVELOPMENT}", "from")
    if use.where.key.startswith(f"{DEVELOPMENT}["):
        yield fault(use, "the development stage cannot copy from itself", argument="from")
    sources = given.get("src")
    for source in sources if isinstance(sources, list) else [sources]:
        if isinstance(source, str) and not source.startswith(("/", "{{")):
            yield fault(use, f'"{source}" is no absolute path in that stage', argument="src")


def _toolchain_problem(value: object) -> str:
    if isinstance(value, str):
        return "" if value in (*TOOLCHAINS, "mpi") else f'no block "{value}" has a toolchain'
    if not isinstance(value, Mapping):
        return f"expected a toolchain, found {described(value)}"
    unknown = [name for name in value if name not in TOOLCHAIN_VARIABLES]
    if unknown:
        return f"a toolchain has no {', '.join(map(str, unknown))}"
    wrong = [name for name, text in value.items() if not isinstance(text, str)]
    return f"expected text for {', '.join(wrong)}" if wrong else ""


def _mismatch(kind: str, value: object) -> str:
    """What is wrong with a value; empty where nothing is."""
    if kind == TOOLCHAIN:
        return _toolchain_problem(value)
    if not _FITS[kind](value):
        return f"expected {kind}, found {described(value)}"
    items = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(items, list):
        return ""
    fits = _fits_mapping_value if kind == MAPPING else lambda item: isinstance(item, str)
    wrong = [item for item in items if not fits(item)]
    if wrong:
        return f"expected texts in it, found {described(wrong[0])}"
    return ""


def _fits_mapping_value(value: object) -> bool:
    """Whole numbers and truth values read the same in any spelling; 1.10 does not."""
    return isinstance(value, (str, int))


_FITS = {
    BOOLEAN: lambda value: isinstance(value, bool),
    TEXT: lambda value: isinstance(value, str),
    LIST: lambda value: isinstance(value, list),
    MAPPING: lambda value: isinstance(value, Mapping),
    FLAG: lambda value: isinstance(value, (bool, str)),
    TEXT_OR_LIST: lambda value: isinstance(value, (str, list)),
    TEXT_OR_NUMBER: lambda value: isinstance(value, (str, int)) and not isinstance(value, bool),
}


def _valid(kind: str, value: object) -> str:
    if kind == TOOLCHAIN:
        return _TOOLCHAIN
    if kind == LIST and isinstance(value, str):
        return f"valid: [{value}]"
    if kind in {LIST, MAPPING} and _FITS[kind](value):
        return "valid: texts; a number in quotes is one"
    if kind == TEXT and _is_number(value):
        return f'write it in quotes: "{value}"'
    return f"valid: {kind}"


def described(value: object) -> str:
    """A value in the words of an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if _is_number(value):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value}"'
    return "a list" if isinstance(value, list) else "a mapping"


def fault(use: BlockUse, problem: str, valid: str = "", argument: str = "") -> Fault:
    """A fault of a block, or of one argument of it."""
    return Fault(
        file=use.where.file,
        line=use.lines.get(argument, use.where.line),
        key=f"{use.where.key}.{argument}" if argument else use.where.key,
        problem=problem,
        valid=valid,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def _pip_faults(use: BlockUse) -> Iterator[Fault]:
    """Each argument is quoted, so that a blank in it reaches pip."""
    for argument in ("args", "install_args"):
        values = use.arguments.get(argument)
        for value in values if isinstance(values, list) else ():
            if isinstance(value, str) and value.startswith("-") and not _is_template(value):
                option, blank, rest = value.partition(" ")
                if blank and "=" not in option:
                    problem = f'"{value}" is one argument with a blank in it'
                    yield fault(use, problem, f"valid: [{option}, {rest.strip()}]", argument)


# Its file names: https://mvapich.cse.ohio-state.edu/downloads/. The folder kept its name.
_MVAPICH_FOLDER = "https://mvapich.cse.ohio-state.edu/download/mvapich/mv2"
_RENAMED_SINCE = (3,)


def _mvapich2_faults(use: BlockUse) -> Iterator[Fault]:
    """MVAPICH2 is called MVAPICH since 3.0, and hpccm would fetch a file that does not exist."""
    version = use.arguments.get("version")
    if not isinstance(version, str) or _is_template(version):
        return
    if version_order(version) >= _RENAMED_SINCE:
        problem = f"hpccm would fetch mvapich2-{version}.tar.gz, and it is mvapich-{version}"
        url = f"{_MVAPICH_FOLDER}/mvapich-{version}.tar.gz"
        yield fault(use, problem, f"valid: generic_autotools with url: {url}", "version")


_HPCX_IN_FOLDERS_UNTIL = (2, 8)


def _hpcx_faults(use: BlockUse) -> Iterator[Fault]:
    """Up to 2.8, hpcx.py takes the name of a folder from a version of three numbers."""
    version = use.arguments.get("version")
    if not isinstance(version, str) or _is_template(version) or version.count(".") > 1:
        return
    if version_order(version) <= _HPCX_IN_FOLDERS_UNTIL:
        problem = f'HPC-X "{version}" has three numbers in its files\' names'
        yield fault(use, problem, f"valid: such as {version}.0", "version")


_CHECKED = {
    "copy": _copy_faults,
    "hpcx": _hpcx_faults,
    "mvapich2": _mvapich2_faults,
    "pip": _pip_faults,
    "raw": _raw_faults,
    "shell": _shell_faults,
}


def block_faults(use: BlockUse) -> list[Fault]:
    """What is wrong with a block of a recipe, before its templates are rendered.

    An unknown block or argument, a value of another type than the argument's, a version that is
    left to hpccm, and what only one of the two formats would have.
    """
    if use.name in TOOLKITS:
        return []
    block = catalogue.block(use.name)
    if block is None:
        usable = {*catalogue.names()} - NOT_FOR_RECIPES.keys()
        names = sorted({*usable, *TOOLKITS, *registered_names()})
        return [_unknown(use, use.name, "block", names, use.where.line)]
    unknown = _unknown_arguments(use, block)
    strange = {fault.key for fault in unknown}
    more = [*type_faults(use, block, rendered=False), *rule_faults(use, block)]
    return [*unknown, *(fault for fault in more if fault.key not in strange)]


def rendered_faults(use: BlockUse, image: PlannedImage) -> list[Fault]:
    """What is wrong with a block of one cell: types after rendering, and where it works."""
    block = catalogue.block(use.name)
    if block is None:
        return block_faults(use)
    limits = limit_faults(use, image.cell.arch, image.base.hpccm_distro, image.base.distribution)
    return [*type_faults(use, block, rendered=True), *limits]


def _unknown_arguments(use: BlockUse, block: Block) -> list[Fault]:
    return [
        _unknown(use, argument, f"argument of {use.name}", sorted(block.kinds), line)
        for argument in use.arguments
        for line in [use.lines.get(argument, use.where.line)]
        if not block.takes(argument)
    ]


def _unknown(use: BlockUse, name: str, what: str, valid: Sequence[str], line: int) -> Fault:
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    close = get_close_matches(name, valid, n=1)
    guess = f'; did you mean "{close[0]}"?' if close else ""
    key = use.where.key if name == use.name else f"{use.where.key}.{name}"
    return Fault(
        file=use.where.file,
        line=line,
        key=key,
        problem=f'unknown {what} "{name}"{guess}',
        valid=f"valid: {', '.join(valid)}",
    )
