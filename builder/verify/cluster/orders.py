"""Orders for workers, and their results.

Both are small JSON documents. Images, stages and the project itself go through the site's store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from builder.build.inputs import program_digest
from builder.model.errors import (
    BuildImagesError,
    MissingPrerequisite,
    StepFailed,
    TemporaryFailure,
    UnfitMachine,
)
from builder.model.records import read, write

T = TypeVar("T", bound="_Document")
INTERRUPTED = "interrupted"  # the message of a failure: the worker is to end
# Causes of failures
TASK, MACHINE, STORE = "task", "machine", "store"
POOL = "BUILD_IMAGES_POOL"  # names the pool of a worker in its environment


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    """A record that travels as JSON."""

    def text(self) -> str:
        """Return the record as JSON."""
        return json.dumps(write(self))

    @classmethod
    def read(cls: type[T], text: str) -> T:
        """Return the record in JSON."""
        return read(cls, json.loads(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Order(_Document):
    """One task of a run, for a worker: `kind` is base, stage, image or verify.

    `project` and `packed` are digests of entries of the site's store: the project's files, and the
    image to verify. `program` is the digest of build-images, `number` the stage's. The rest
    are settings of the run.
    """

    kind: str
    image: str
    flavour: str
    cpu: str
    store: str
    project: str
    program: str
    engine: str
    formats: tuple[str, ...]
    epoch: int
    number: int
    packed: str
    native_tools: bool
    offline: bool
    max_index_age: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error of an order, without its traceback.

    Its `cause` is the task, with all that its image asks for; the machine, whatever the image; or
    a store that does not answer now.
    """

    message: str
    hint: str = ""
    tail: tuple[str, ...] = ()
    first_error: tuple[str, ...] = ()
    exit_code: int = 1
    cause: str = TASK

    @classmethod
    def of(cls, error: BuildImagesError) -> Failure:
        """Return the failure of an error."""
        step = error if isinstance(error, StepFailed) else StepFailed(str(error.args[0]))
        causes: dict[type, str] = {TemporaryFailure: STORE, UnfitMachine: MACHINE}
        return cls(
            message=step.message,
            hint=error.hint,
            tail=step.tail,
            first_error=step.first_error,
            exit_code=error.exit_code,
            cause=causes.get(type(error), TASK),
        )

    @classmethod
    def of_machine(cls, error: Exception) -> Failure:
        """Return the failure of an error that says nothing of the task."""
        failure = cls.of(error if isinstance(error, BuildImagesError) else StepFailed(str(error)))
        return replace(failure, exit_code=MissingPrerequisite.exit_code, cause=MACHINE)

    @property
    def is_of_machine(self) -> bool:
        """True if another machine may do it: this one, or the store, lacks something."""
        return self.exit_code == MissingPrerequisite.exit_code


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderResult(_Document):
    """The result of an order: entries that were added to the site's store, by tag; or a failure.

    `entry` is the digest of the image's entry, after the kinds image and verify; `digest` is that
    of the OCI layout, if the worker built it. `log` is the end of the build's log after a failure,
    `seconds` the duration by the worker's clock.
    """

    entries: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    digest: str = ""
    failure: Failure | None = None
    log: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFacts:
    """Facts about a worker. `pool` is the pool that it was started for, if any.

    `emulates` are the architectures that its kernel starts programs of by an emulator. `program`
    is the digest of build-images there, `engine` the version of Buildah.
    """

    machine: str
    arch: str
    emulates: tuple[str, ...]
    gpus: int
    program: str
    engine: str
    pool: str = ""


@cache
def own_program() -> str:
    """Return the digest of this program's files."""
    return program_digest()
