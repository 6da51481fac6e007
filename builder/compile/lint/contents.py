"""Rules on what stays in an image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.compile.lint.commands import SHELL, Command
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

_APT_KEY = re.compile(r"\bapt-key\b")
_KEY_SERVER = re.compile(r"\bapt-key\s+adv\b|--recv-keys?\b|--keyserver\b")
_OPEN_TO_ALL = re.compile(r"\bchmod\s+(?:-\S+\s+)*(?:0?777|a\+\w*w\w*|o\+\w*w\w*|ugo\+\w*w\w*)\b")
_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY"
    r"|CREDENTIALS?)(?:_|$)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?:^|\s)([A-Za-z_]\w*)=(\S+)")
_STUBS = re.compile(r"/stubs(?:/|:|\"|'|\s|$)")

# What leaves a cache behind, and what clears it.
_CACHES = (
    (
        re.compile(r"\bapt(?:-get)?\s+(?:-\S+\s+)*(?:update|install)\b"),
        re.compile(r"\brm\s.*(?:/var/lib/apt/lists|/var/lib/apt/?(?:\s|$))"),
        "apt's package lists",
        "rm -rf /var/lib/apt/lists/*",
    ),
    (
        re.compile(r"\b(?:yum|dnf|microdnf)\s+(?:-\S+\s+)*(?:install|localinstall|groupinstall)\b"),
        re.compile(r"\b(?:yum|dnf|microdnf)\b.*\bclean\b|\brm\s.*/var/cache/(?:yum|dnf|\*)"),
        "the cache of yum or dnf",
        "rm -rf /var/cache/yum/* (or dnf clean all)",
    ),
    (
        re.compile(r"\bpip[\d.]*\s+(?:-\S+\s+)*install\b"),
        re.compile(r"--no-cache-dir|\bpip[\d.]*\s+cache\s+purge|\brm\s.*\.cache|PIP_NO_CACHE_DIR="),
        "pip's cache",
        "pip install --no-cache-dir",
    ),
    (
        re.compile(r"\b(?:conda|mamba|micromamba)\s+(?:-\S+\s+)*(?:install|create|update)\b"),
        re.compile(r"\b(?:conda|mamba|micromamba)\s+clean\b|\brm\s.*/pkgs"),
        "conda's packages",
        "conda clean --all --yes",
    ),
)


def cache_left(reading: Reading) -> Iterator[Hit]:
    variables = {variable.name for variable in reading.variables}
    for commands in reading.layers(SHELL):
        for fills, clears, what, how in _CACHES:
            filling = [command for command in commands if fills.search(command.text)]
            if not filling or (what == "pip's cache" and "PIP_NO_CACHE_DIR" in variables):
                continue
            if not _cleared(filling[-1], commands, clears):
                yield hit(filling[-1], f"{what} stays in the layer", how)


def _cleared(last: Command, commands: list[Command], clears: re.Pattern[str]) -> bool:
    """Return whether the last command that fills a cache, or one after it, clears it."""
    return any(clears.search(one.text) for one in commands[commands.index(last) :])


def apt_key(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL):
        if _APT_KEY.search(command.text):
            hint = "a key under /usr/share/keyrings, named by signed-by="
            yield hit(command, f"apt-key is gone: {shortened(command.text)}", hint)


def key_server(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL):
        if _KEY_SERVER.search(command.text):
            hint = "download the key by https, or copy it in from files/"
            yield hit(command, f"a key from a key server: {shortened(command.text)}", hint)


def open_to_all(reading: Reading) -> Iterator[Hit]:
    for command in reading.of_kind(SHELL):
        if found := _OPEN_TO_ALL.search(command.text):
            hint = "a+rX for all to read; Apptainer and ch-run run as the user"
            yield hit(command, f"{found.group()} lets everybody write", hint)


def secret(reading: Reading) -> Iterator[Hit]:
    named = [(one.file, one.line, one.name, one.value) for one in reading.variables]
    for command in reading.of_kind(SHELL):
        if command.text.startswith("export ") and command.file == DOCKERFILE:
            pairs = _ASSIGNED.findall(command.text)
            named += [(command.file, command.line, name, value) for name, value in pairs]
    for file, line, name, value in named:
        if _SECRET.search(name) and value.strip("\"'") and not value.startswith("$"):
            text = f"{name} looks like a secret, and an image keeps no secret"
            yield Hit(file=file, line=line, text=text, hint="give it when the image is run")


def stub_library_path(reading: Reading) -> Iterator[Hit]:
    hint = "stubs are for linking: LIBRARY_PATH of the development stage"
    for one in reading.variables:
        if one.final and one.name == "LD_LIBRARY_PATH" and _STUBS.search(one.value):
            text = "CUDA's stubs are on the run-time library path"
            yield Hit(file=one.file, line=one.line, text=text, hint=hint)
    for command in reading.of_kind(SHELL):
        if command.final and _STUBS.search(command.text) and "ld.so.conf" in command.text:
            yield hit(command, "CUDA's stubs are in the loader's configuration", hint)


def runs_on_host(reading: Reading) -> Iterator[Hit]:
    for section in reading.definition.named("setup", "pre"):
        if section.filled:
            text = f"%{section.name} runs on the building host, outside the image"
            yield Hit(file=DEFINITION, line=section.line, text=text, hint="%files or %post")


def missing_file(reading: Reading) -> Iterator[Hit]:
    copied = [
        (DOCKERFILE, one.line, word)
        for one in reading.docker.named("COPY", "ADD")
        if "--from=" not in one.flags
        for word in one.words[:-1]
    ]
    copied += [
        (DEFINITION, number, line.split()[0])
        for one in reading.definition.named("files")
        if not one.argument
        for number, line in one.filled
    ]
    for file, line, path in copied:
        folder = path.rstrip("/") + "/"
        known = path in reading.files or any(name.startswith(folder) for name in reading.files)
        if path.startswith("files/") and not known:
            yield Hit(file=file, line=line, text=f"{path} is not in the spec's folder")


RULES = (
    Rule(
        name="cache-left",
        level=WARNING,
        what="caches of apt, yum, dnf, pip and conda are cleared in the layer that fills them",
        why="a later layer cannot make an earlier one smaller",
        check=cache_left,
    ),
    Rule(
        name="key-server",
        level=ERROR,
        what="no `apt-key adv`, no `gpg --recv-keys`",
        why="key servers answer or not by the hour, and take keys from anyone",
        check=key_server,
    ),
    Rule(
        name="apt-key",
        level=WARNING,
        what="no `apt-key`",
        why="it trusts a key for every repository, and Debian 13 no longer has it",
        check=apt_key,
    ),
    Rule(
        name="open-to-all",
        level=ERROR,
        what="no `chmod 777` and its like",
        why="on a shared machine anyone could change what others run",
        check=open_to_all,
    ),
    Rule(
        name="secret",
        level=ERROR,
        what="no variable named like a token, password or key that has a value",
        why="images are published, and their variables with them",
        check=secret,
    ),
    Rule(
        name="stub-library-path",
        level=ERROR,
        what="no CUDA stubs on the library path of the run-time stage",
        why="a stub `libcuda.so` passes every check but a real call (error 34)",
        check=stub_library_path,
    ),
    Rule(
        name="runs-on-host",
        level=ERROR,
        what="no `%setup` and no `%pre`",
        why="they run on the building host with the builder's rights, and no Dockerfile has them",
        check=runs_on_host,
    ),
    Rule(
        name="missing-file",
        level=ERROR,
        what="what is copied from `files/` is in the spec's folder",
        why="a spec is complete in itself",
        check=missing_file,
    ),
)
