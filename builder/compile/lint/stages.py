"""What a development stage installs, and no later stage takes over."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from builder.compile.lint.commands import SHELL, Command, words_of
from builder.compile.lint.findings import DOCKERFILE, WARNING, Hit, Rule, shortened
from builder.compile.lint.reading import Reading, hit

_PIP = re.compile(r"(?:^|/)pip3?$")
_PREFIX = re.compile(
    r"(?:--prefix|PREFIX|-DCMAKE_INSTALL_PREFIX(?::PATH)?|DESTDIR|--target)[= ](\S+)"
)
_MAKE_INSTALL = re.compile(r"\bmake\b.*\binstall\b|\bcmake\b.*--(?:install|target install)")
_COPIES = frozenset({"cp", "install", "mv", "ln"})
_DEFAULT_PREFIX = "/usr/local"
_APPLICATIONS = "/scif"  # https://sci-f.github.io/spec-v1
# What is in these is of the build, of the checks, or of the package manager.
_TEMPORARY = ("/var/tmp/", "/tmp/", "/root/")  # noqa: S108 - paths in the image
_PASSING = (*_TEMPORARY, "/opt/build-images/", "/etc/", "/usr/share/keyrings/")


def lost_between_stages(reading: Reading) -> Iterator[Hit]:
    """Commands of development stages whose results no COPY of the last stage names."""
    stages = reading.docker.stages
    final = len(stages) - 1
    if final < 1 or any(stage.name == stages[final].source for stage in stages[:final]):
        return  # the image is the development stage itself
    copied = [
        source
        for copy in reading.docker.named("COPY")
        if copy.final and "--from=" in copy.flags
        for source in copy.words[:-1]
    ]
    layers = [layer for layer in reading.layers(SHELL) if layer[0].file == DOCKERFILE]
    again = {command.text for layer in layers for command in layer if command.final}
    for layer in layers:
        if not layer[0].final:
            yield from _lost(layer, copied, again)


def _lost(layer: list[Command], copied: list[str], again: set[str]) -> Iterator[Hit]:
    """Those of one layer; what the last stage does `again` is not lost."""
    text = " ".join(command.text for command in layer)
    for command in layer:
        if command.text in again:
            continue
        place = _installs_into(command, text)
        if place and not place.startswith(_PASSING) and not _is_copied(place, copied):
            hint = "name a prefix (generic_build), a venv (pip), or copy {from: development} it"
            told = f"the run-time stage does not get what is put into {place}"
            yield hit(command, f"{told}: {shortened(command.text)}", hint)


def _installs_into(command: Command, layer: str) -> str:
    """The folder or file that a command writes; empty where it installs nothing of its own."""
    words = [word for word in words_of(command.text) if "=" not in word.split("/")[0]]
    if not words:
        return ""
    if _PIP.search(words[0]) and "install" in words:
        return _of_pip(words)
    if posixpath.basename(words[0]) == "scif" and words[1:2] == ["install"]:
        return _APPLICATIONS
    if _MAKE_INSTALL.search(command.text):
        found = _PREFIX.search(layer)
        return found[1] if found else _DEFAULT_PREFIX
    if words[0] in _COPIES and len(words) > 2:  # noqa: PLR2004 - from and to
        target = words[-1]
        return target if target.startswith("/") else ""
    return ""


def _of_pip(words: list[str]) -> str:
    """The target, the environment of the program, or the distribution's Python."""
    if "--target" in words[:-1]:
        target = words[words.index("--target") + 1]
        return target if target.startswith("/") else ""
    folder = posixpath.dirname(posixpath.dirname(words[0]))
    return folder if folder not in {"", "/usr", "/"} else "/usr/lib/python3"


def _is_copied(place: str, copied: list[str]) -> bool:
    """Return whether a COPY takes the place, what holds it, or a part of it."""
    return any(
        f"{place}/".startswith(f"{source.rstrip('/')}/")
        or source.startswith(f"{place.rstrip('/')}/")
        for source in copied
    )


RULES = (
    Rule(
        name="lost-between-stages",
        level=WARNING,
        what="what a development stage installs by itself is copied into the run-time stage",
        why="`shell`, `generic_build` without `prefix` and `pip` without `venv` leave nothing",
        check=lost_between_stages,
    ),
)
