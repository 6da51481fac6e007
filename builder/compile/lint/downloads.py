"""Rules on downloads during a build."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.compile.lint.findings import ERROR, Hit, hit, rule
from builder.compile.lint.reading import (
    DEFINITION,
    DOCKERFILE,
    HOST,
    LABEL,
    SCRIPT,
    SHELL,
    SOURCE,
    TABLES,
    Reading,
    SpecCommand,
)
from builder.model.cells import OWN

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
                yield hit(command, text, "choose by {{ arch }} in the recipe")


def _names(command: SpecCommand) -> Iterator[str]:
    """The files, packages, library folders and images that a command names."""
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
                    text = f"{url} comes without a checksum"
                    yield hit(command, text, "https, or sha256sum -c after it")


def _is_verified(command: SpecCommand, url: str, following: list[SpecCommand]) -> bool:
    """Return whether a later command of the layer checks the file of a download."""
    names = [url.rstrip("/").rsplit("/", 1)[-1].split("?")[0]]
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
            text = f"ADD {remote[0]}: not verified, and a definition has no such thing"
            yield Hit(DOCKERFILE, add.line, text, "download it in a command")


@rule(ERROR)
def unpinned_base(reading: Reading) -> Iterator[Hit]:
    """With a lock, a base from a registry is named by its digest."""
    if not reading.locked:
        return
    for file, text in ((DOCKERFILE, reading.docker), (DEFINITION, reading.definition)):
        names = {"scratch", *(stage.name for stage in text.stages)}
        for stage in text.stages:
            of_registry = stage.agent in _REGISTRIES and stage.source not in names
            pinned = "@sha256:" in stage.source or stage.source.startswith(OWN)
            if of_registry and not pinned:
                problem = (
                    f"{stage.source} is not pinned by its digest, though the project is locked"
                )
                yield Hit(file, stage.line, problem, "build-images lock")
