"""Find faults of recipes' blocks, including those that hpccm would accept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from builder.compile.spec import catalogue
from builder.compile.spec.catalogue import Block, block_notes, block_of, notes_on
from builder.model import DEVELOPMENT, TOOLKITS, BlockUse
from builder.model.errors import Fault, suggestion
from builder.model.inputs import LOCAL_SOURCE
from builder.model.versions import version_order

# A recipe that sets one of these arguments has chosen the sources of a block.
_SOURCES = ("version", "url", "repository")
PRIMITIVES = frozenset({"copy", "environment", "label", "raw", "shell"})
_HIDDEN = ("/tmp/", "/var/tmp/", "/dev/", "/proc/", "/sys/")  # noqa: S108 - paths in the image

TOOLCHAIN_VARIABLES = (
    *("CC", "CFLAGS", "CPPFLAGS", "CUDA_HOME", "CXX", "CXXFLAGS", "F77", "F90", "FC", "FCFLAGS"),
    *("FFLAGS", "FLIBS", "LDFLAGS", "LD_LIBRARY_PATH", "LIBS"),
)
# The blocks that provide a toolchain for later blocks.
TOOLCHAINS = tuple(name for name, notes in block_notes().items() if notes.toolchain)
_TOOLCHAIN = (
    f"valid: an earlier block ({', '.join(TOOLCHAINS)}; mpi is the last MPI), or a mapping "
    f"of {', '.join(TOOLCHAIN_VARIABLES)}"
)


def block_faults(use: BlockUse) -> list[Fault]:
    """Return the faults of a recipe's block, before its templates are rendered.

    Faults are an unknown block or argument, a value of the wrong type, a missing version, and an
    argument that works in only one of the two formats.
    """
    if use.name in TOOLKITS:
        return []
    block = block_of(use.name)
    if block is None:
        refused = {name for name, notes in block_notes().items() if notes.refused}
        names = {*catalogue.hpccm_blocks(), *TOOLKITS, *catalogue.registered_names()} - refused
        return [_unknown(use, "block", use.name, names)]
    unknown = [argument for argument in use.arguments if not block.takes(argument)]
    keys = {f"{use.where.key}.{argument}" for argument in unknown}
    others = [*_type_faults(use, block, rendered=False), *_rule_faults(use, block)]
    return [
        *(_unknown(use, f"argument of {use.name}", one, block.kinds, one) for one in unknown),
        *(other for other in others if other.key not in keys),
    ]


def rendered_faults(use: BlockUse) -> list[Fault]:
    """Return the faults of a block with rendered templates: arguments of the wrong type."""
    block = block_of(use.name)
    return block_faults(use) if block is None else [*_type_faults(use, block, rendered=True)]


def _unknown(
    use: BlockUse, kind: str, name: str, names: Iterable[str], argument: str = ""
) -> Fault:
    names = sorted(names)
    guess = suggestion(name, names, '; did you mean "{}"?')
    return fault(use, f'unknown {kind} "{name}"{guess}', f"valid: {', '.join(names)}", argument)


def _type_faults(use: BlockUse, block: Block, *, rendered: bool) -> Iterator[Fault]:
    """Yield arguments of another type than the block documents.

    Before templates are rendered, texts with a template are accepted.
    """
    for argument, value in use.arguments.items():
        if rendered or not _is_template(value):
            kind = block.kind(argument)
            problem = _mismatch(kind, value)
            if problem and not (argument == "version" and _is_number(value) and not rendered):
                yield fault(use, problem, _valid(kind, value), argument)


def _rule_faults(use: BlockUse, block: Block) -> Iterator[Fault]:
    """Yield missing arguments, and those that work in only one of the two formats."""
    if refused := notes_on(use.name).refused:
        yield fault(use, f"{use.name} is not allowed in recipes: {refused}")
        return
    yield from _version_faults(use, block)
    for argument in use.arguments:
        private = argument.startswith("_") and use.name in PRIMITIVES
        if private or argument == "_run_arguments":
            problem = "this argument works in only one of Dockerfile and Singularity definition"
            yield fault(use, problem, argument=argument)
    yield from _file_faults(use, block)
    if use.name in _CHECKED:
        yield from _CHECKED[use.name](use)


def _version_faults(use: BlockUse, block: Block) -> Iterator[Fault]:
    arguments, notes = use.arguments, notes_on(use.name)
    if default := _missing_version(use, block):
        problem = f"{use.name} needs a version: hpccm would use {default}"
        sources = [name for name in _SOURCES if name in block.documented]
        yield fault(use, problem, f"valid: one of {', '.join(sources)}")
    before, version = notes.alone_before, _version(use)
    named_by_version = before and version and version_order(version) < version_order(before)
    for group in () if named_by_version else notes.version_too:
        if not any(arguments.get(name) for name in group):
            names, taken = " or ".join(group), block.defaults.get(group[0])
            would = f": hpccm would use {taken}" if taken else ""
            yield fault(use, f"{use.name} needs {names}{would}", f"valid: {names}")
    if version and notes.refused_version and re.fullmatch(notes.refused_version, version):
        problem, valid = (text.format(version) for text in notes.refused_because)
        yield fault(use, problem, f"valid: {valid}", "version")
    clones = notes.clones or arguments.get("repository")
    if clones and not (arguments.get("branch") or arguments.get("commit")):
        problem = f"{use.name} needs a commit or a branch of the repository that it clones"
        yield fault(use, problem, "valid: commit, or branch with the name of a tag")


def _missing_version(use: BlockUse, block: Block) -> str:
    """Return the version that hpccm would use by itself; empty if the recipe names one."""
    arguments, notes = use.arguments, notes_on(use.name)
    of_distribution = notes.distribution and not (
        arguments.get("upstream") or arguments.get("source")
    )
    named = any(arguments.get(name) for name in _SOURCES) or (
        notes.package and arguments.get("package")
    )
    if of_distribution or named or "version" not in block.documented:
        return ""
    return block.defaults.get("version") or "the newest one"


def _file_faults(use: BlockUse, block: Block) -> Iterator[Fault]:
    notes = notes_on(use.name)
    for argument in notes.local_files:
        value = use.arguments.get(argument)
        if isinstance(value, str) and not value.startswith(("https://", LOCAL_SOURCE, "{{")):
            valid = f"valid: {LOCAL_SOURCE}PATH of a file in the project, as locked in lock.yaml"
            yield fault(use, f'"{value}" has no checksum', valid, argument)
    value = use.arguments.get("package")
    takes_package = "branch" in block.documented or notes.package_file
    if takes_package and isinstance(value, str) and not value.startswith("https://"):
        problem = f'"{value}" is a file beside the recipe, and specs do not include such files'
        valid = f"valid: url, which builds can download, or url: {LOCAL_SOURCE}PATH"
        yield fault(use, problem, valid, "package")


def _raw_faults(use: BlockUse) -> Iterator[Fault]:
    missing = [name for name in ("docker", "singularity") if name not in use.arguments]
    if missing:
        problem = f"raw without {' and '.join(missing)}: the two formats would differ"
        valid = 'valid: {docker: ..., singularity: ...}; "" for a format that needs nothing'
        yield fault(use, problem, valid)


def _shell_faults(use: BlockUse) -> Iterator[Fault]:
    if not use.arguments.get("commands"):
        yield fault(use, "shell without commands", "valid: {commands: [make, make install]}")


def _copy_faults(use: BlockUse) -> Iterator[Fault]:
    arguments = use.arguments
    if "from" in arguments:
        yield from _copy_from_faults(use)
    files = arguments.get("files")
    if not ("files" in arguments) ^ ("src" in arguments and "dest" in arguments):
        yield fault(use, "copy needs src and dest, or files", "valid: {src: a.conf, dest: /etc/}")
    for dest in [arguments.get("dest"), *(files.values() if isinstance(files, Mapping) else ())]:
        if isinstance(dest, str) and not _is_template(dest):
            if not dest.startswith("/"):
                yield fault(use, f'"{dest}" is not an absolute path', argument="dest")
            elif f"{dest}/".startswith(_HIDDEN):
                problem = f"Singularity cannot copy files to {dest}: it mounts over it"
                yield fault(use, problem, "valid: another folder, such as /usr/local/src/", "dest")


def _copy_from_faults(use: BlockUse) -> Iterator[Fault]:
    stage, sources = use.arguments["from"], use.arguments.get("src")
    if stage != DEVELOPMENT:
        problem = f'cannot copy from stage "{stage}"'
        yield fault(use, problem, f"valid: {DEVELOPMENT}", "from")
    if use.where.key.startswith(f"{DEVELOPMENT}["):
        yield fault(use, "the development stage cannot copy from itself", argument="from")
    for source in sources if isinstance(sources, list) else [sources]:
        if isinstance(source, str) and not source.startswith(("/", "{{")):
            problem = f'"{source}" is not an absolute path in the development stage'
            yield fault(use, problem, argument="src")


def _pip_faults(use: BlockUse) -> Iterator[Fault]:
    """Yield arguments with a space: each is quoted, so pip would receive the space."""
    for argument in ("args", "install_args"):
        values = use.arguments.get(argument)
        for value in values if isinstance(values, list) else ():
            if isinstance(value, str) and value.startswith("-") and not _is_template(value):
                option, blank, rest = value.partition(" ")
                if blank and "=" not in option:
                    problem = f'"{value}" is one argument that contains a space'
                    yield fault(use, problem, f"valid: [{option}, {rest.strip()}]", argument)


_CHECKED = {"copy": _copy_faults, "pip": _pip_faults, "raw": _raw_faults, "shell": _shell_faults}
_FITS = {
    catalogue.BOOLEAN: lambda value: isinstance(value, bool),
    catalogue.TEXT: lambda value: isinstance(value, str),
    catalogue.LIST: lambda value: isinstance(value, list),
    catalogue.MAPPING: lambda value: isinstance(value, Mapping),
    catalogue.FLAG: lambda value: isinstance(value, (bool, str)),
    catalogue.TEXT_OR_LIST: lambda value: isinstance(value, (str, list)),
    catalogue.TEXT_OR_NUMBER: lambda value: (
        isinstance(value, (str, int)) and not isinstance(value, bool)
    ),
}


def _mismatch(kind: str, value: object) -> str:
    """Return the reason why a value does not fit; empty if it does."""
    if kind == catalogue.TOOLCHAIN:
        return _toolchain_problem(value)
    if not _FITS[kind](value):
        return f"expected {kind}, found {described(value)}"
    if isinstance(value, Mapping):  # numbers and booleans need no quotes here
        wrong = [item for item in value.values() if not isinstance(item, (str, int))]
    else:
        items = value if isinstance(value, list) else []
        wrong = [item for item in items if not isinstance(item, str)]
    return f"expected only texts in it, found {described(wrong[0])}" if wrong else ""


def _toolchain_problem(value: object) -> str:
    if isinstance(value, str):
        return "" if value in (*TOOLCHAINS, "mpi") else f'unknown toolchain: "{value}"'
    if not isinstance(value, Mapping):
        return f"expected a toolchain, found {described(value)}"
    unknown = [name for name in value if name not in TOOLCHAIN_VARIABLES]
    if unknown:
        return f"unknown toolchain variable: {', '.join(map(str, unknown))}"
    wrong = [name for name, text in value.items() if not isinstance(text, str)]
    return f"expected text for {', '.join(wrong)}" if wrong else ""


def _valid(kind: str, value: object) -> str:
    if kind == catalogue.TOOLCHAIN:
        return _TOOLCHAIN
    if kind == catalogue.LIST and isinstance(value, str):
        return f"valid: [{value}]"
    if kind in {catalogue.LIST, catalogue.MAPPING} and _FITS[kind](value):
        return "valid: texts; write a number in quotes"
    if kind == catalogue.TEXT and _is_number(value):
        return f'write it in quotes: "{value}"'
    return f"valid: {kind}"


def described(value: object) -> str:
    """Return a value as error messages describe it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if _is_number(value):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value}"'
    return "a list" if isinstance(value, list) else "a mapping"


def fault(use: BlockUse, problem: str, valid: str = "", argument: str = "") -> Fault:
    """Return a fault of a block, or of one argument of it."""
    where = use.place_of(argument) if argument else use.where
    return Fault(file=where.file, line=where.line, key=where.key, problem=problem, valid=valid)


def _version(use: BlockUse) -> str:
    """Return the version that a recipe names; empty for none and for a template."""
    version = use.arguments.get("version")
    return version if isinstance(version, str) and not _is_template(version) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_template(value: object) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value)
