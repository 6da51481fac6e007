"""Rules on what a build brings in from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.compile.lint.commands import COPY, ENVIRONMENT, HOST, OTHER, SHELL, SOURCE, Command
from builder.compile.lint.findings import (
    DEFINITION,
    DOCKERFILE,
    ERROR,
    WARNING,
    Hit,
    Rule,
    shortened,
)
from builder.compile.lint.reading import Reading, hit
from builder.model.cells import OWN

# How each architecture is spelt in URLs, package names and folders.
SPELLINGS = {
    "x86_64": r"x86[-_]64|amd64|linux-64|linux[-_]x86|x64|x86|i[3-6]86",
    "ppc64le": r"ppc64(?:le|el)?|powerpc64(?:le)?|power[89]le",
    "aarch64": r"aarch64|arm64(?:v8)?|armv[678]\w*|armhf|armel|sbsa",
}
_TOKENS = {
    arch: re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", re.IGNORECASE)
    for arch, pattern in SPELLINGS.items()
}
_URL = re.compile(r"(?:https?|ftp|git|s3|docker|library)://[^\s'\"<>|;&)]+")
_PACKAGE_FILE = re.compile(
    r"[^\s'\"=/]+\.(?:deb|rpm|run|whl|sh|tar(?:\.\w+)?|tgz|txz|zip|bin|sif|AppImage|conda)(?!\w)"
)
_LIBRARY_FOLDER = re.compile(r"(?:/lib|/targets)/[\w-]+-linux(?:-gnu)?(?![\w-])")
_INSTALL = re.compile(
    r"\b(?:apt|apt-get|aptitude|yum|dnf|microdnf|zypper|conda|mamba|pip3?)\b.*?\sinstall\s+(.*)"
)
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
_TO_SHELL = re.compile(
    r"\b(?:curl|wget)\b[^|]*\|\s*(?:sudo\s+)?(?:env\s+\S+\s+)?(?:/bin/)?(?:ba|da|z|k)?sh\b"
    r"|\b(?:ba|da|z|k)?sh\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)\b"
)
# These fail by themselves when nothing, or half of it, comes through the pipe.
_NOTICES = r"(?:sudo\s+)?(?:gpg|apt-key|tar|gzip|gunzip|bunzip2|xz|unxz|zstd|sha\d+sum)\b"
_TO_OTHERS = re.compile(rf"\b(?:curl|wget)\b[^|]*\|(?!\||\s*{_NOTICES})")
_SAVED_AS = re.compile(r"\s(?:-o|-O|--output|--output-document)[ =]?(\S+)")
_UNSIGNED = re.compile(
    r"trusted=yes|--allow-unauthenticated|--force-yes|--nogpgcheck|gpgcheck\s*=\s*0"
    r"|--no-gpg-checks?|--trusted-host|AllowInsecureRepositories"
)


def foreign_architecture(reading: Reading) -> Iterator[Hit]:
    others = {arch: token for arch, token in _TOKENS.items() if arch != reading.arch}
    for command in reading.of_kind(SHELL, COPY, SOURCE, ENVIRONMENT, HOST, OTHER):
        for name in _brought_in(command):
            found = [arch for arch, token in others.items() if token.search(name)]
            if found and not _TOKENS[reading.arch].search(name):
                text = f"{name} is for {found[0]}, the image for {reading.arch}"
                yield hit(command, text, "choose by {{ arch }} in the recipe")


def _brought_in(command: Command) -> Iterator[str]:
    """Whatever in a command names a file, package, library folder or image from elsewhere."""
    text = command.text
    if command.kind == SOURCE:
        yield text
        return
    urls = _URL.findall(text)
    yield from urls
    rest = _URL.sub(" ", text)
    yield from _PACKAGE_FILE.findall(rest)
    yield from _LIBRARY_FOLDER.findall(rest)
    if found := _INSTALL.search(rest):
        words = [word for word in found.group(1).split() if not word.startswith("-")]
        packages = (word for word in words if "/" not in word and not _PACKAGE_FILE.search(word))
        yield from (word for word in packages if not _CROSS.match(word))


def unverified_download(reading: Reading) -> Iterator[Hit]:
    for commands in [*reading.layers(SHELL), *reading.layers(HOST)]:
        for number, command in enumerate(commands):
            if _REPOSITORY.search(command.text) or _WRITES_ONLY.match(command.text):
                continue  # package managers check signatures; see unsigned-repository
            insecure = [
                url
                for url in _URL.findall(command.text)
                if _INSECURE.match(url) and not _LOCAL.match(url)
            ]
            yield from (
                hit(command, f"{url} comes without a checksum", "https, or sha256sum -c after it")
                for url in insecure
                if not _verified(command, url, commands[number:])
            )


def _verified(command: Command, url: str, following: list[Command]) -> bool:
    """Return whether a later command of the layer checks what a download left."""
    saved = _SAVED_AS.search(command.text)
    names = {url.rstrip("/").rsplit("/", 1)[-1].split("?")[0]}
    if saved:
        names.add(saved.group(1).rsplit("/", 1)[-1])
    return any(
        _CHECKSUM.search(other.text) and any(name in other.text for name in names if name)
        for other in following
    )


def remote_add(reading: Reading) -> Iterator[Hit]:
    for one in reading.docker.named("ADD"):
        remote = [word for word in one.words[:-1] if _URL.match(word) or word.startswith("git@")]
        if remote and not _CHECKSUM.search(one.flags):
            text = f"ADD {remote[0]}: not verified, and a definition has no such thing"
            yield Hit(file=DOCKERFILE, line=one.line, text=text, hint="download it in a command")


def piped_installer(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL, HOST):
        if _TO_SHELL.search(command.text):
            text = f"what is downloaded is run unseen: {shortened(command.text)}"
            yield hit(command, text, "save it, check its SHA-256, then run it")


def piped_download(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL, HOST):
        if _TO_OTHERS.search(command.text) and not _TO_SHELL.search(command.text):
            text = f"the pipe hides a download that failed: {shortened(command.text)}"
            yield hit(command, text, "save it first: sh has no pipefail")


def unsigned_repository(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL, HOST):
        if found := _UNSIGNED.search(command.text):
            text = f"{found.group()} takes packages that nobody signed"
            yield hit(command, text, "install the repository's key first")


def unpinned_base(reading: Reading) -> Iterator[Hit]:
    if not reading.locked:
        return
    stages = {stage.name for stage in reading.docker.stages}
    for stage in reading.docker.stages:
        if not _pinned(stage.source) and stage.source not in stages:
            yield Hit(file=DOCKERFILE, line=stage.line, text=_loose(stage.source), hint=_RELOCK)
    for header in reading.definition.stages:
        source, agent = header.values.get("from", ""), header.values.get("bootstrap", "")
        if agent.lower() in {"docker", "library", "oras", "shub"} and not _pinned(source):
            line = header.lines.get("from", 1)
            yield Hit(file=DEFINITION, line=line, text=_loose(source), hint=_RELOCK)


_RELOCK = "build-images lock"


def _pinned(source: str) -> bool:
    return "@sha256:" in source or source.startswith(OWN) or source == "scratch"


def _loose(source: str) -> str:
    return f"{source} is not pinned by its digest, though the project is locked"


RULES = (
    Rule(
        name="foreign-architecture",
        level=ERROR,
        what="no URL, package, library folder or image of another architecture",
        why="an x86_64 file in a ppc64le image installs without a word and fails at run time",
        check=foreign_architecture,
    ),
    Rule(
        name="unverified-download",
        level=ERROR,
        what="what comes by `http:`, `ftp:` or `git:` is checked with `sha256sum -c` in its layer",
        why="anyone on the way can change it; package repositories are signed and so left alone",
        check=unverified_download,
    ),
    Rule(
        name="unsigned-repository",
        level=ERROR,
        what="no package repository without signatures (`trusted=yes`, `--nogpgcheck`, ...)",
        why="it undoes the reason why `http:` is allowed for repositories",
        check=unsigned_repository,
    ),
    Rule(
        name="remote-add",
        level=ERROR,
        what="no `ADD` of a URL without `--checksum`",
        why="it is not verified, and has no counterpart in a definition",
        check=remote_add,
    ),
    Rule(
        name="piped-installer",
        level=ERROR,
        what="no download is piped into a shell",
        why="a cut-off download runs half of a script, and nobody saw what ran",
        check=piped_installer,
    ),
    Rule(
        name="piped-download",
        level=WARNING,
        what="no download is piped into what does not notice a cut-off end (`tar` and `gpg` do)",
        why="`sh` reports the last command of a pipe only: a download that failed goes unseen",
        check=piped_download,
    ),
    Rule(
        name="unpinned-base",
        level=ERROR,
        what="with a lock, a base from a registry is named by its digest",
        why="a tag is moved or deleted; bases made here are named by their content key",
        check=unpinned_base,
    ),
)
