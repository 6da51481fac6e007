"""Rules on downloads during a build."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.compile.lint.findings import WARNING, Hit, hit, rule, shortened
from builder.compile.lint.reading import (
    DEFINITION,
    DOCKERFILE,
    HOST,
    LABEL,
    SCRIPT,
    SHELL,
    SOURCE,
    Reading,
    SpecCommand,
)
from builder.model.cells import OWN

# Spellings of each architecture in URLs, package names and folders.
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


@rule(
    "no URL, package, library folder or image of another architecture",
    "an x86_64 file in a ppc64le image installs without a word and fails at run time",
)
def foreign_architecture(reading: Reading) -> Iterator[Hit]:
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


@rule(
    "what comes by `http:`, `ftp:` or `git:` is checked with `sha256sum -c` in its layer",
    "anyone on the way can change it; package repositories are signed and so left alone",
)
def unverified_download(reading: Reading) -> Iterator[Hit]:
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


@rule(
    "no package repository without signatures (`trusted=yes`, `--nogpgcheck`, ...)",
    "it undoes the reason why `http:` is allowed for repositories",
)
def unsigned_repository(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL, HOST):
        if match := _UNSIGNED.search(command.text):
            text = f"{match.group()} takes packages without a signature"
            yield hit(command, text, "install the repository's key first")


@rule(
    "no `ADD` of a URL without `--checksum`",
    "it is not verified, and has no counterpart in a definition",
)
def remote_add(reading: Reading) -> Iterator[Hit]:
    for add in reading.docker.named("ADD"):
        remote = [word for word in add.words[:-1] if _URL.match(word) or word.startswith("git@")]
        if remote and not _CHECKSUM.search(add.flags):
            text = f"ADD {remote[0]}: not verified, and a definition has no such thing"
            yield Hit(DOCKERFILE, add.line, text, "download it in a command")


@rule(
    "no download is piped into a shell",
    "a cut-off download runs half of a script, and nobody saw what ran",
)
def piped_installer(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL, HOST):
        if _TO_SHELL.search(command.text):
            text = f"a download is run unseen: {shortened(command.text)}"
            yield hit(command, text, "save it, check its SHA-256, then run it")


@rule(
    "no download is piped into what does not notice a cut-off end (`tar` and `gpg` do)",
    "`sh` reports the last command of a pipe only: a download that failed goes unseen",
    WARNING,
)
def piped_download(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL, HOST):
        if _TO_OTHERS.search(command.text) and not _TO_SHELL.search(command.text):
            text = f"the pipe hides a failed download: {shortened(command.text)}"
            yield hit(command, text, "save it first: sh has no pipefail")


@rule(
    "with a lock, a base from a registry is named by its digest",
    "a tag is moved or deleted; bases made here are named by their content key",
)
def unpinned_base(reading: Reading) -> Iterator[Hit]:
    if not reading.locked:
        return
    stages = {stage.name for stage in reading.docker.stages}
    sources = [
        (DOCKERFILE, stage.line, stage.source)
        for stage in reading.docker.stages
        if stage.source not in stages
    ]
    for header in reading.definition.headers:
        agent = header.get("bootstrap", (1, ""))[1].lower()
        if agent in {"docker", "library", "oras", "shub"}:
            sources.append((DEFINITION, *header.get("from", (1, ""))))
    for file, line, source in sources:
        if "@sha256:" not in source and not source.startswith(OWN) and source != "scratch":
            text = f"{source} is not pinned by its digest, though the project is locked"
            yield Hit(file, line, text, "build-images lock")
