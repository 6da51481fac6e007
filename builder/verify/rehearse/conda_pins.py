"""Packages of conda against a channel's own index."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from builder.model.exact_json import part
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import CONDA, FAILED, Trial, failed, not_tried, passed

SUBDIRS: Mapping[str, str] = {
    "x86_64": "linux-64",
    "ppc64le": "linux-ppc64le",
    "aarch64": "linux-aarch64",
}
_PIN = re.compile(r"(?P<name>[\w.-]+)=(?P<version>[\w.]+)(?:=.*)?")
_WITH_VALUE = frozenset({"-c", "--channel", "-n", "--name", "-p", "--prefix", "-f", "--file"})

# A channel's repodata.json for a subdir; a text that says why it cannot be read.
ReadChannel = Callable[[str, str], Mapping[str, object] | str]


class CondaTrials:
    """Tries the packages that images install with conda."""

    def __init__(self, read_channel: ReadChannel) -> None:
        self._read = read_channel

    def of(self, steps: Iterable[Step], arch: str) -> Iterator[Trial]:
        channels: list[str] = []
        for step in steps:
            if step.program != "conda":
                continue
            channels += _channels(step)
            if "install" in step.argv:
                for pin in _pins(step):
                    yield _excused(step, self._trial(pin, channels, arch, step.line))

    def _trial(self, pin: re.Match[str], channels: list[str], arch: str, line: int) -> Trial:
        subject, reasons, seen = f"conda {pin[0]}", [], set[str]()
        for channel in dict.fromkeys(channels):
            index = self._read(channel, SUBDIRS[arch])
            if isinstance(index, str):
                reasons.append(f"{channel}: {index}")
                continue
            versions = set(_versions(index, pin["name"]))
            if any(_is_prefix(pin["version"], version) for version in versions):
                return passed(CONDA, subject, f"{channel} has it for {SUBDIRS[arch]}", line)
            seen |= versions
        if reasons or not channels:
            return not_tried(CONDA, subject, "; ".join(reasons) or "no channel is named", line)
        has = ", ".join(sorted(seen)) or "no version of it"
        return failed(CONDA, subject, f"the channels have {has} for {SUBDIRS[arch]}", line)


def _excused(step: Step, trial: Trial) -> Trial:
    """A package that a channel lacks is no failure where another command stands behind it."""
    if trial.outcome != FAILED or not step.has_fallback:
        return trial
    return not_tried(
        CONDA, trial.subject, f"{trial.text}; another command is behind it", trial.line
    )


def _channels(step: Step) -> Iterator[str]:
    """The channels that `conda config --add channels` and `-c` name."""
    words = step.argv
    for word, following in itertools.pairwise(words):
        if word in {"channels", "-c", "--channel"}:
            yield following


def _pins(step: Step) -> Iterator[re.Match[str]]:
    words = step.argv
    for before, word in itertools.pairwise(words):
        if before not in _WITH_VALUE and (found := _PIN.fullmatch(word)):
            yield found


def _versions(index: Mapping[str, object], name: str) -> Iterator[str]:
    for table in ("packages", "packages.conda"):
        for row in (part(index, table) or {}).values():
            if row.get("name") == name:
                yield str(row["version"])


def _is_prefix(asked: str, version: str) -> bool:
    """Return whether a version is one of those that `name=2.12` means: 2.12 and 2.12.x."""
    return version == asked or version.startswith(f"{asked}.")
