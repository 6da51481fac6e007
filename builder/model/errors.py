"""The errors that users meet: what went wrong, where, and what to do next.

Every error that ends a command derives from `BuildImagesError`, and carries the exit code of
the command line (0 done, 1 failed, 2 bad input, 3 nothing selected, 4 the machine lacks
something, 5 refused) and a hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.model.records import named, optional, write


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Fault:
    """One thing that is wrong in one input file.

    `key` is the path of the key in the file (`development[2].packages.ospackages`). The hint says
    what would be accepted there.
    """

    file: str
    line: int
    key: str
    problem: str = named("message")
    valid: str = named("hint", default="")

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " + (f"{self.key}: " if self.key else "")
        return where + self.problem + (f"\n    {self.valid}" if self.valid else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 fault, 2 faults."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_of(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first texts, and the number of the others: `a, b and 2 more`."""
    more = len(texts) - most
    end = f"{between.strip(', ')} and {more} more" if more > 0 else ""
    return between.join(texts[:most]) + end


def suggestion(
    word: str, names: Iterable[str], text: str = "did you mean {}? ", *, cutoff: float = 0.6
) -> str:
    """Return `text` with the most similar of `names`; empty if none is as similar as `cutoff`."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    return "".join(map(text.format, get_close_matches(word, [*names], n=1, cutoff=cutoff)))


def shortened(text: str, limit: int = 100) -> str:
    """Return a text as quoted in messages, with at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDocument:
    """The JSON that a command with --json prints for an error.

    `output` has the last lines of the program that failed, `first_error` the first lines before
    them that name an error, and `log` is the file with all lines.
    `reference` is an image that a policy refuses, and `rules` are the rulings of its rules.
    """

    schema: str = "build-images/error/v1"
    exit_code: int
    message: str
    hint: str = ""
    faults: tuple[Fault, ...] = ()
    output: tuple[str, ...] | None = optional()
    first_error: tuple[str, ...] | None = optional()
    log: Path | None = optional()
    reference: str | None = optional()
    rules: tuple[object, ...] | None = optional()


class BuildImagesError(Exception):
    """Base of all errors that are shown without a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  hint: {self.hint}" if self.hint else message

    def document(self) -> ErrorDocument:
        """Return the values of the error for programs."""
        message = str(self.args[0]) if self.args else ""
        return ErrorDocument(exit_code=self.exit_code, message=message, hint=self.hint)

    def as_json(self) -> dict[str, object]:
        return write(self.document())


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildStep:
    """A step of a build: an instruction of a Dockerfile, in its stage.

    `number` counts the stage's instructions of this text, from 1. `layer` is the engine's name of
    the image that it starts from, and `stages` has those of the stages before its own. `where` is
    the place in the project that the step comes from. All of it is empty where it is not known.
    """

    instruction: str
    number: int = 1
    layer: str = ""
    stage: str = ""
    where: str = ""
    engine: str = ""
    stages: Mapping[str, str] = field(default_factory=dict)


class StepFailed(BuildImagesError):
    """A command that a build or a check ran has failed, with an exit status if it ended itself.

    `tail` are the last lines of its output. `first_error` are those that name its first error, if
    that comes before them. `step` is the failed step of a build.
    """

    def __init__(
        self,
        message: str,
        *,
        tail: Sequence[str] = (),
        first_error: Sequence[str] = (),
        log: Path | None = None,
        hint: str = "",
        status: int = 1,
        step: BuildStep | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.message = message
        self.status = status
        self.step = step
        self.tail = tuple(tail)
        self.first_error = tuple(first_error)
        self.log = log

    def output(self) -> str:
        """Return the message and the last lines of the command, in small letters."""
        return "\n".join([self.message, *self.tail]).lower()

    def __str__(self) -> str:
        lines = [self.message]
        titles = {
            "its first error": self.first_error,
            f"its last {counted(len(self.tail), 'line')}": self.tail,
        }
        for title, output in titles.items():
            if output:
                lines += [f"  {title}:", *(f"  | {line}" for line in output)]
        if self.log:
            lines.append(f"  log: {self.log}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def document(self) -> ErrorDocument:
        first_error = self.first_error or None
        return replace(super().document(), output=self.tail, first_error=first_error, log=self.log)


class LintFailed(BuildImagesError):
    """Lint found errors in the compiled specs."""


class BadInput(BuildImagesError):
    """Input files or arguments are wrong; all faults that were found are listed."""

    exit_code = 2

    def __init__(self, message: str, *, faults: Sequence[Fault] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.faults = tuple(sorted(set(faults)))

    @classmethod
    def of(cls, faults: Sequence[Fault], rest: str = "nothing was built") -> BadInput:
        """Return an error that lists `faults` by file and line; `rest` says what was not done."""
        unique = sorted(set(faults))
        count = counted(len(unique), "fault")
        places = counted(len({fault.file for fault in unique}), "file")
        text = "\n".join([f"{count} in {places}; {rest}.", *map(str, unique)])
        return cls(text, faults=unique)

    def document(self) -> ErrorDocument:
        """Return the values with the faults, which the message then does not repeat."""
        document = super().document()
        head = document.message.partition("\n")[0] if self.faults else document.message
        return replace(document, message=head, faults=self.faults)


class EmptySelection(BuildImagesError):
    """No image matches the selectors."""

    exit_code = 3


class MissingPrerequisite(BuildImagesError):
    """This machine lacks something that the work needs."""

    exit_code = 4


class UnfitMachine(MissingPrerequisite):
    """This machine cannot do its work, whatever the image: its disk is full, its engine broken."""


class TemporaryFailure(MissingPrerequisite):
    """Something outside of this machine does not answer; it may do so later."""


class Refused(BuildImagesError):
    """A proof is missing, wrong or too old."""

    exit_code = 5


class Interrupted(BuildImagesError):
    """The user or the system asked the run to stop (Ctrl-C, SIGTERM)."""

    exit_code = 130
