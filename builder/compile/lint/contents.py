"""Rules on the contents of an image: downloads, leftovers, and files lost between stages."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.compile.lint.findings import ERROR, WARNING, Hit, hit, rule
from builder.compile.lint.reading import (
    ARGUMENT,
    COPY,
    DEFINITION,
    DOCKERFILE,
    HOST,
    LABEL,
    SCRIPT,
    SHELL,
    SOURCE,
    TABLES,
    VARIABLE,
    Reading,
    SpecCommand,
    words_of,
)
from builder.model.cells import OWN
from builder.model.errors import shortened

_TOKENS = {
    arch: re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", re.IGNORECASE)
    for arch, pattern in TABLES["spellings"].items()
}
_URL = re.compile(r"(?:https?|ftp|git|s3|docker|library)://[^\s'\"<>|;&)]+")
_PACKAGE_FILE = re.compile(
    r"[^\s'\"=/]+\.(?:deb|rpm|run|whl|sh|tar(?:\.\w+)?|tgz|txz|zip|bin|sif|AppImage|conda)(?!\w)"
)
_LIBRARY_FOLDER = re.compile(r"(?:/lib|/targets)/[\w-]+-linux(?:-gnu)?(?![\w-])")
_INSTALL = re.compile(
    r"\b(?:apt|apt-get|aptitude|yum|dnf|microdnf|zypper|conda|mamba|pip3?)\b.*?\sinstall\s+(.*)"
)
_NO_PACKAGE = re.compile(rf"^-|/|{_PACKAGE_FILE.pattern}")
# Compilers and emulators for another architecture run on this one.
_CROSS = re.compile(
    r"(?:gcc|g\+\+|gfortran|cpp|gobjc|binutils|pkg-config|crossbuild|qemu|cuda-cross)-|.*-cross$"
)
_INSECURE = re.compile(r"(?:http|ftp|git)://")
_REPOSITORY = re.compile(
    r"(?:^|[\"'\s])deb(?:-src)?\s|\bbaseurl\s*=|\bmirrorlist\s*=|\bURIs:|sources\.list|\.repo\b"
    r"|yum\.repos\.d"
)
_WRITES_ONLY = re.compile(r"(?:echo|printf|sed|export)\s")  # URLs in these are text
_LOCAL = re.compile(r"(?:http|ftp)://(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/]|$)")
_CHECKSUM = re.compile(r"\bsha(?:256|384|512)sum\b.*\s(?:-c|--check)\b|--checksum=sha\d+[:-]")
_SAVED_AS = re.compile(r"\s(?:-o|-O|--output|--output-document)[ =]?(\S+)")
_REGISTRIES = frozenset({"docker", "library", "oras", "shub"})  # agents of definitions

_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY"
    r"|CREDENTIALS?)(?:_|$)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?:^|\s)([A-Za-z_]\w*=\S+)")
_STUBS = re.compile(r"/stubs(?:/|:|\"|'|\s|$)")
_PIP = re.compile(r"(?:^|/)pip3?$")
_PREFIX = re.compile(
    r"(?:--prefix|PREFIX|-DCMAKE_INSTALL_PREFIX(?::PATH)?|DESTDIR|--target)[= ](\S+)"
)
_MAKE_INSTALL = re.compile(r"\bmake\b.*\binstall\b|\bcmake\b.*--(?:install|target install)")
_COPIES = frozenset({"cp", "install", "mv", "ln"})
_COMPILER = re.compile(
    r"(?:mpi)?(?:cc|cxx|c\+\+|gcc|g\+\+|gfortran|fort|f77|f90|clang(?:\+\+)?|nv(?:cc|c|c\+\+|fortran))"
    r"(?:-\d+)?"
)
_APPLICATIONS = "/scif"  # https://sci-f.github.io/spec-v1
# Folders of the build, of the checks, or of the package manager.
_PASSING = (
    *("/var/tmp/", "/tmp/", "/root/"),  # noqa: S108 - paths in the image
    *("/opt/build-images/", "/etc/", "/usr/share/keyrings/"),
)


@rule(WARNING)
def cache_left(reading: Reading) -> Iterator[Hit]:
    """Caches of apt, yum, dnf, pip and conda are cleared in the layer that fills them."""
    variables = {command.text.partition("=")[0] for command in reading.of_kind(VARIABLE, ARGUMENT)}
    caches = [row for row in TABLES["caches"] if row.get("variable") not in variables]
    for commands in reading.layers(SHELL):
        for row in caches:
            filling = [
                n for n, command in enumerate(commands) if re.search(row["fills"], command.text)
            ]
            after = commands[filling[-1] :] if filling else []
            if filling and not any(re.search(row["clears"], command.text) for command in after):
                yield hit(after[0], f"not cleared in its layer: {row['cache']}", row["remedy"])


@rule(ERROR)
def secret(reading: Reading) -> Iterator[Hit]:
    """No variable named like a token, password or key has a value."""
    for command in reading.of_kind(VARIABLE, ARGUMENT, SHELL):
        assignments = [command.text]
        if command.kind == SHELL:  # %post repeats the exports of %environment
            is_export = command.text.startswith("export ") and command.file == DOCKERFILE
            assignments = _ASSIGNED.findall(command.text) if is_export else []
        for name, _, value in (assignment.partition("=") for assignment in assignments):
            if _SECRET.search(name) and value.strip("\"'") and not value.startswith("$"):
                text = f"{name} looks like a secret; everyone who has the image can read it"
                yield hit(command, text, "pass it when the image is run")


@rule(ERROR)
def stub_library_path(reading: Reading) -> Iterator[Hit]:
    """No CUDA stubs on the library path of the run-time stage."""
    hint = "stubs are for linking only: use LIBRARY_PATH in the development stage"
    for command, _ in reading.matches(_STUBS, VARIABLE, ARGUMENT, SHELL):
        if not command.final:
            continue
        if command.kind != SHELL and command.text.startswith("LD_LIBRARY_PATH="):
            yield hit(command, "CUDA's stubs are on the run-time library path", hint)
        if command.kind == SHELL and "ld.so.conf" in command.text:
            yield hit(command, "CUDA's stubs are in the loader's configuration", hint)


@rule(ERROR)
def runs_on_host(reading: Reading) -> Iterator[Hit]:
    """No `%setup` and no `%pre`."""
    for section in reading.definition.named("setup", "pre"):
        if section.filled:
            text = f"%{section.name} runs on the building host, outside the image"
            yield Hit(DEFINITION, section.line, text, "use %files or %post")


@rule(ERROR)
def missing_file(reading: Reading) -> Iterator[Hit]:
    """Files that are copied from `files/` are in the spec's folder."""
    spec = reading.spec
    files = {*spec.files, *(source.in_context for source in spec.sources)}
    for command in reading.of_kind(COPY):
        path = command.text.split()[0]
        folder = path.rstrip("/") + "/"
        known = path in files or any(name.startswith(folder) for name in files)
        if path.startswith("files/") and not known:  # a stage's name ends in a colon
            yield hit(command, f"{path} is not in the spec's folder")


@rule(WARNING)
def lost_between_stages(reading: Reading) -> Iterator[Hit]:
    """Everything that only a development stage installs is copied into the run-time stage."""
    stages = reading.docker.stages
    names = {stage.name for stage in stages[:-1]}
    if not names or stages[-1].source in names:
        return  # the image is the development stage itself
    copied = [
        source
        for copy in reading.docker.named("COPY")
        if reading.docker.is_final(copy) and "--from=" in copy.flags
        for source in copy.words[:-1]
    ]
    layers = [layer for layer in reading.layers(SHELL) if layer[0].file == DOCKERFILE]
    again = {command.text for layer in layers for command in layer if command.final}
    for layer in layers:
        text = " ".join(command.text for command in layer)
        for command in layer:
            if command.final or command.text in again:
                continue
            target = _installs_into(command, text)
            if target and not target.startswith(_PASSING) and not _is_copied(target, copied):
                message = f"not copied into the run-time stage: {target}: {shortened(command.text)}"
                hint = "set prefix (generic_build) or venv (pip), or add a copy {from: development}"
                yield hit(command, message, hint)


def _installs_into(command: SpecCommand, layer: str) -> str:
    """Return the folder or file that a command installs; empty if it installs none."""
    words = [word for word in words_of(command.text) if "=" not in word.split("/")[0]]
    if not words:
        return ""
    target = ""
    if _PIP.search(words[0]) and "install" in words:
        if "--target" not in words[:-1]:  # the environment's Python, or the distribution's
            folder = posixpath.dirname(posixpath.dirname(words[0]))
            return folder if folder not in {"", "/usr", "/"} else "/usr/lib/python3"
        target = words[words.index("--target") + 1]
    elif posixpath.basename(words[0]) == "scif" and words[1:2] == ["install"]:
        return _APPLICATIONS
    elif _MAKE_INSTALL.search(command.text):
        match = _PREFIX.search(layer)
        return match[1] if match else "/usr/local"
    elif words[0] in _COPIES and len(words) > 2:  # noqa: PLR2004 - from and to
        target = words[-1]
    elif _COMPILER.fullmatch(posixpath.basename(words[0])) and "-o" in words[:-1]:
        target = words[words.index("-o") + 1]
    return target if target.startswith("/") else ""


def _is_copied(target: str, copied: list[str]) -> bool:
    """Return whether a COPY takes the target, a folder above it, or a part of it."""
    return any(
        f"{target}/".startswith(f"{source.rstrip('/')}/")
        or source.startswith(f"{target.rstrip('/')}/")
        for source in copied
    )


@rule(ERROR)
def foreign_architecture(reading: Reading) -> Iterator[Hit]:
    """No URL, package, library folder or image of another architecture."""
    own = reading.spec.image.cell.arch
    for command in reading.commands:
        if command.kind in {LABEL, SCRIPT}:
            continue
        for name in _names(command):
            archs = [arch for arch, token in _TOKENS.items() if token.search(name)]
            if archs and own not in archs:
                text = f"{name} is for {archs[0]}, the image for {own}"
                yield hit(command, text, "use {{ arch }} in the recipe")


def _names(command: SpecCommand) -> Iterator[str]:
    """Yield the files, packages, library folders and images that a command names."""
    if command.kind == SOURCE:
        yield command.text
        return
    yield from _URL.findall(command.text)
    rest = _URL.sub(" ", command.text)
    yield from _PACKAGE_FILE.findall(rest)
    yield from _LIBRARY_FOLDER.findall(rest)
    if match := _INSTALL.search(rest):
        for word in match[1].split():
            if not (_NO_PACKAGE.search(word) or _CROSS.match(word)):
                yield word


@rule(ERROR)
def unverified_download(reading: Reading) -> Iterator[Hit]:
    """Downloads by `http:`, `ftp:` or `git:` are checked with `sha256sum -c` in their layer."""
    for commands in reading.layers(SHELL, HOST):
        for number, command in enumerate(commands):
            if _REPOSITORY.search(command.text) or _WRITES_ONLY.match(command.text):
                continue  # package managers check signatures; see unsigned-repository
            for url in _URL.findall(command.text):
                insecure = _INSECURE.match(url) and not _LOCAL.match(url)
                if insecure and not _is_verified(command, url, commands[number:]):
                    text = f"{url} is downloaded without a checksum"
                    yield hit(command, text, "use https, or check the file with sha256sum -c")


def _is_verified(command: SpecCommand, url: str, following: list[SpecCommand]) -> bool:
    """Return whether a later command of the layer checks the file of a download."""
    names = [url.split("?", maxsplit=1)[0].rstrip("/").rsplit("/", 1)[-1]]
    if saved := _SAVED_AS.search(command.text):
        names.append(saved[1].rsplit("/", 1)[-1])
    return any(
        _CHECKSUM.search(other.text) and any(name in other.text for name in names if name)
        for other in following
    )


@rule(ERROR)
def remote_add(reading: Reading) -> Iterator[Hit]:
    """No `ADD` of a URL without `--checksum`."""
    for add in reading.docker.named("ADD"):
        remote = [word for word in add.words[:-1] if _URL.match(word) or word.startswith("git@")]
        if remote and not _CHECKSUM.search(add.flags):
            text = f"ADD {remote[0]}: not verified, and a definition has no counterpart"
            yield Hit(DOCKERFILE, add.line, text, "download it in a command")


@rule(ERROR)
def unpinned_base(reading: Reading) -> Iterator[Hit]:
    """If the project has a lock, bases from a registry are pinned by digest."""
    if not reading.locked:
        return
    for file, text in ((DOCKERFILE, reading.docker), (DEFINITION, reading.definition)):
        # In a definition, no stage starts from another.
        names = {"scratch", *(stage.name for stage in text.stages if file == DOCKERFILE)}
        for stage in text.stages:
            of_registry = stage.agent in _REGISTRIES and stage.source not in names
            pinned = "@sha256:" in stage.source or stage.source.startswith(OWN)
            if of_registry and not pinned:
                problem = (
                    f"{stage.source} is not pinned by its digest, though the project is locked"
                )
                yield Hit(file, stage.line, problem, "run: build-images lock")
